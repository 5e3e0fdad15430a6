"""Numbers with their units as text (bytes, rows, rates), and the units in which numbers count time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction

DECIMAL = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1))
BINARY = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


def amount(nbytes: float) -> str:
    """Bytes as a person reads them, to one decimal.

    >>> amount(1_234_567), amount(0)
    ('1.2 MB', '0 B')
    """
    number, unit = _scale_to_unit(nbytes, DECIMAL)
    return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"


def least_amount(nbytes: float) -> str:
    """Bytes as `amount`, rounded up: for the least value that is enough, which the text has to be when it is set.

    >>> least_amount(444_960_000), least_amount(445_000_000), least_amount(1_000_000_001)
    ('445.0 MB', '445.0 MB', '1.1 GB')
    """
    return _format_bytes(nbytes, math.ceil)


def most_amount(nbytes: float) -> str:
    """Bytes as `amount`, rounded down: for the largest value that helps.

    >>> most_amount(1_290_000), most_amount(999)
    ('1.2 MB', '999 B')
    """
    return _format_bytes(nbytes, math.floor)


def _format_bytes(nbytes: float, to_whole: Callable[[float], int]) -> str:
    """Bytes as text, with one decimal that `to_whole` decides."""
    number, unit = _scale_to_unit(nbytes, DECIMAL)
    if unit == "B":
        return f"{to_whole(number):,} B"
    tenths = to_whole(10 * nbytes / dict(DECIMAL)[unit])  # 10 * number would be above 11 for 1.1
    return f"{tenths / 10:,.1f} {unit}"


def exact_amount(nbytes: float) -> str:
    """Bytes as the shortest exact text: for the axis of a plot.

    >>> [exact_amount(nbytes) for nbytes in (0, 5e8, 2.5e9)]
    ['0', '500 MB', '2.5 GB']
    """
    number, unit = _scale_to_unit(nbytes, DECIMAL)
    return f"{number:g}" if unit == "B" else f"{number:g} {unit}"


def binary_amount(nbytes: float) -> str:
    """Bytes in powers of two: for limits, which jobs set so.

    >>> binary_amount(2**24), binary_amount(100), binary_amount(1e20)
    ('16 MiB', '100 bytes', '1.0e+20 bytes')
    """
    number, unit = _scale_to_unit(nbytes, BINARY)
    return f"{number:,.4g} {unit}" if nbytes < 10_000 * 2**30 else f"{nbytes:.1e} bytes"


def _scale_to_unit(nbytes: float, units: Sequence[tuple[str, float]]) -> tuple[float, str]:
    """The number in the largest of the units of which there is one at least."""
    unit, size = next(((unit, size) for unit, size in units if nbytes >= size), units[-1])
    return nbytes / size, unit


def rate(rows: float, seconds: float) -> str:
    """Rows in a second; a dash where no time was measured."""
    return f"{rows / seconds:,.0f} rows/s" if seconds > 0 else "-"


HOUR = 3_600_000_000  # microseconds
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


FRACTION = re.compile(r"\d[.,](\d+)")


def nanoseconds(text: str) -> int:
    """The nanoseconds since 1970 of a time in ISO 8601, in UTC if it names no zone; ValueError for other texts.

    >>> nanoseconds("2024-01-02"), nanoseconds("2024-01-02T01:00:00.000000002+01:00")
    (1704153600000000000, 1704153600000000002)
    """
    time = datetime.fromisoformat(text)  # which drops what is finer than microseconds
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    whole = (time.replace(tzinfo=time.tzinfo or UTC) - epoch) // timedelta(microseconds=1)
    fraction = FRACTION.search(text)
    finer = fraction[1][6:] if fraction else ""
    if finer[3:].strip("0"):
        raise ValueError(f"{text} is finer than nanoseconds")
    return 1000 * whole + int(finer[:3].ljust(3, "0"))


def to_epoch_units(text: str, unit: str) -> int | float:
    """A time in ISO 8601 as a number of units since 1970: whole where it is whole, else the least float that is not
    before it.

    >>> to_epoch_units("2024-01-02", "s"), to_epoch_units("2024-01-02", "ns")
    (1704153600, 1704153600000000000)
    >>> to_epoch_units("2024-01-02T00:00:00.5", "s")
    1704153600.5
    >>> to_epoch_units("2024-01-02T00:00:00.000000001", "s")
    1704153600.0000002
    """
    exact = Fraction(nanoseconds(text) * PER_SECOND[unit], 10**9)
    if exact.denominator == 1:
        return int(exact)
    nearest = float(exact)
    return nearest if nearest >= exact else math.nextafter(nearest, math.inf)


def unit_of_times(number: float) -> str | None:
    """The unit in which a number counts time since 1970, if it is a time between 1973 and 2286 in one of them.

    >>> [unit_of_times(number) for number in (1_704_153_600, -1_704_153_600_000, 20_240_102)]
    ['s', 'ms', None]
    """
    return next((unit for unit, per in PER_SECOND.items() if 1e8 * per <= abs(number) < 1e10 * per), None)
