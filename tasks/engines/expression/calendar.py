"""Times as counts of a unit since 1970, in numpy or CuPy arrays: their parts, and the beginnings of days and months."""

from __future__ import annotations

from types import ModuleType

import pyarrow as pa

from tasks.engines.expression.type_families import NANOSECONDS
from tasks.engines.types import Array

DAY = NANOSECONDS["day"]


def format_learned_time(ticks: int, unit: str) -> str | list[str | int]:
    """A learned time as it is saved: ISO text in UTC, or [unit, count] where no such text says exactly the same.

    >>> format_learned_time(1_600_000_000_000, "ms"), format_learned_time(2**62, "s")
    ('2020-09-13 12:26:40.000', ['s', 4611686018427387904])
    """
    dtype = pa.date32() if unit == "day" else pa.timestamp(unit)
    try:
        text: str = _moment(ticks, dtype).cast(pa.string()).as_py()
        return text if parse_learned_time(text, dtype) == ticks else [unit, ticks]
    except (pa.ArrowInvalid, OverflowError):
        return [unit, ticks]


def parse_learned_time(saved: str | list[str | int], dtype: pa.DataType) -> int:
    """The count of units since 1970 of a time that `format_learned_time` wrote."""
    if not isinstance(saved, str):
        return int(saved[1])
    if pa.types.is_date32(dtype):
        return int(pa.scalar(saved).cast(pa.timestamp("s")).cast(dtype).cast(pa.int32()).as_py())
    return int(pa.scalar(saved).cast(pa.timestamp(dtype.unit)).cast(pa.int64()).as_py())


def _moment(ticks: int, dtype: pa.DataType) -> pa.Scalar:
    return pa.scalar(ticks, pa.int32() if pa.types.is_date32(dtype) else pa.int64()).cast(dtype)


def part(ticks: Array, unit: str, name: str, xp: ModuleType) -> Array:
    """second, minute, hour, weekday (Monday 0), day, dayofyear, month or year, int64."""
    if name in ("second", "minute", "hour"):
        seconds = xp.zeros_like(ticks) if unit == "day" else ticks // (NANOSECONDS["s"] // NANOSECONDS[unit])
        divisor, size = {"second": (1, 60), "minute": (60, 60), "hour": (3600, 24)}[name]
        return seconds // divisor % size
    days = ticks // (DAY // NANOSECONDS[unit])
    if name == "weekday":
        return (days + 3) % 7  # 1970-01-01 was a Thursday
    year, month, day = civil(days, xp)
    if name == "dayofyear":
        return days - days_from_civil(year, xp.ones_like(month), xp) + 1
    return {"year": year, "month": month, "day": day}[name]


def civil(days: Array, xp: ModuleType) -> tuple[Array, Array, Array]:
    """(year, month, day) of days since 1970-01-01, by Hinnant's `civil_from_days`."""
    shifted = days + 719_468  # since 0000-03-01
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    from_march = (5 * of_year + 2) // 153
    day = of_year - (153 * from_march + 2) // 5 + 1
    month = xp.where(from_march < 10, from_march + 3, from_march - 9)
    return year + era * 400 + (month <= 2), month, day


def days_from_civil(year: Array, month: Array, xp: ModuleType) -> Array:
    """Days since 1970-01-01 of the first of a month, by Hinnant's `days_from_civil`."""
    year = year - (month <= 2)
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * xp.where(month > 2, month - 3, month + 9) + 2) // 5
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def floor_times(ticks: Array, unit: str, of: str, every: int, from_monday: bool, xp: ModuleType) -> Array:
    """The beginning of the `every` seconds, days or months (`of`: s, day, month) in which the times lie."""
    if of == "month":
        year, month, _ = civil(ticks // (DAY // NANOSECONDS[unit]), xp)
        months = ((year - 1970) * 12 + month - 1) // every * every
        days = days_from_civil(1970 + months // 12, months % 12 + 1, xp)
        return days * (DAY // NANOSECONDS[unit])
    length = NANOSECONDS[of] * every // NANOSECONDS[unit]
    if length <= 1:
        return ticks
    shift = 3 * (DAY // NANOSECONDS[unit]) if from_monday else 0  # 1969-12-29 was a Monday
    return (ticks + shift) // length * length - shift
