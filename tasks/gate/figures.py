"""The single figures of a profile that the gate compares between versions, and the scales of these comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from tasks.core.settings import OF_STEPS
from tasks.core.units import HOUR
from tasks.gate.contract_values import format_percent, format_value
from tasks.profile.output_profile import MINUS_INFINITY, PLUS_INFINITY, ColumnProfile, Profile, bin_edges, bin_of

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHARES = ("nulls", "repeated", *OF_STEPS)


@dataclass(frozen=True, order=True)
class Key:
    """The name of a figure."""

    check: str
    column: str  # "" for the rows; the key of a step for figures of steps
    part: str = ""  # which of the figures of a check: the least value, a quantile, ..


def family(column: ColumnProfile) -> str:
    """Return the kind of a column's values: number, time, moment (a timestamp or a date), bool, or text."""
    name = column.type
    while name.startswith("list<"):
        name = name[5:-1]
    if name.startswith(("timestamp", "date")):
        return "moment"
    if name.startswith(("time", "duration")):
        return "time"
    if name.startswith(("int", "uint", "float", "double", "halffloat", "decimal")):
        return "number"
    return "bool" if name == "bool" else "text"


def compute_figures(profile: Profile) -> dict[Key, float]:
    """Compute the single figures of a profile: rows, shares, numbers of distinct values, means, extremes, quantiles.

    Means and extremes of timestamps and dates are hours since 1970.
    """
    figures = {Key("rows", ""): float(profile.rows)}
    if profile.repeated is not None:
        figures[Key("repeated", "")] = profile.repeated
    for name, column in profile.columns.items():
        if not column.rows:
            continue
        figures[Key("nulls", name)] = column.nulls / column.rows
        if not column.values:
            continue
        if column.is_distinct_known:
            figures[Key("distinct", name)] = float(column.distinct)
        kind = family(column)
        if column.mean is not None and math.isfinite(column.mean) and kind in ("number", "moment", "time"):
            figures[Key("mean", name)] = column.mean * hours_per_unit(column) if kind == "moment" else column.mean
        for part, end in (("least", column.minimum), ("largest", column.maximum)):
            number = _to_number(end, kind)
            if number is not None:
                figures[Key("extremes", name, part)] = number
        if kind == "number" and column.bins:
            for q, value in zip(QUANTILES, compute_quantiles(column.bins, QUANTILES), strict=True):
                if math.isfinite(value):
                    figures[Key("quantiles", name, f"{100 * q:.0f} %")] = value
    for key, step in profile.steps.items():
        for check in OF_STEPS:
            count = getattr(step, check)
            if count is not None and step.rows:
                figures[Key(check, key)] = count / step.rows
    return figures


def hours_per_unit(column: ColumnProfile) -> float:
    """Return the hours of the unit in which a timestamp (microseconds) or a date (days) counts."""
    return 24.0 if "date" in column.type else 1 / HOUR


def _to_number(value: str | float | None, kind: str) -> float | None:
    if value is None or kind not in ("number", "moment"):
        return None
    if not isinstance(value, str):
        number = float(value)
        return number if math.isfinite(number) else None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.timestamp() / 3600


def compute_quantiles(bins: Mapping[int, int], places: Sequence[float]) -> list[float]:
    """Compute the values at fractions of the finite values, interpolated within their bins; NaN without values."""
    numbers = np.fromiter(bins.keys(), np.int64, len(bins))
    counts = np.fromiter(bins.values(), np.float64, len(bins))
    finite = (numbers != MINUS_INFINITY) & (numbers != PLUS_INFINITY) & (counts > 0)
    order = np.argsort(numbers[finite])
    numbers = numbers[finite][order]
    counts = counts[finite][order]
    if not len(numbers):
        return [math.nan] * len(places)
    passed = np.cumsum(counts)
    values = []
    for q in places:
        place = min(int(np.searchsorted(passed, q * passed[-1])), len(numbers) - 1)
        low, high = bin_edges(int(numbers[place]))
        inside = 1 - (passed[place] - q * passed[-1]) / counts[place]
        zero = numbers[place] == bin_of(0.0)
        values.append(0.0 if zero else low + float(inside) * (high - low) if math.isfinite(high) else low)
    return values


def share_below(bins: Mapping[int, int], value: float) -> float:
    """Compute the share of values in bins up to that of `value`."""
    total = sum(bins.values())
    last = bin_of(value)
    return sum(n for b, n in bins.items() if b <= last) / total if total else 0.0


@dataclass(frozen=True)
class Scale:
    """The scale on which a figure is compared.

    rows and distinct: logarithm. Shares: arc sine of the root, on which a share's sampling error is 1 / (2 sqrt(n))
    for all shares. Means: divided by the standard deviation. Extremes and quantiles: asinh(x / spread), which is linear
    within the spread and a logarithm beyond it; those of times: hours.
    """

    kind: str  # log, share, linear or asinh
    spread: float = 1.0  # of the column's past values, in their own unit
    floor: float = 0.0  # the least change that counts, on the scale
    early: float = 0.0  # the same with few versions

    def to(self, value: float) -> float:
        """Convert a value to the scale."""
        if self.kind == "log":
            return math.log(max(value, 0.5))
        if self.kind == "share":
            return math.asin(math.sqrt(min(max(value, 0.0), 1.0)))
        return math.asinh(value / self.spread) if self.kind == "asinh" else value / self.spread

    def back(self, value: float) -> float:
        """Convert a value on the scale back."""
        if self.kind == "log":
            return math.exp(min(value, 700.0))
        if self.kind == "share":
            return math.sin(min(max(value, 0.0), math.pi / 2)) ** 2
        if self.kind == "asinh":
            return self.spread * math.sinh(min(max(value, -700.0), 700.0))
        return value * self.spread

    def change(self, now: float, before: float) -> float:
        """Compute the figure of a finding from two values on the scale.

        That is the relative change of rows and of distinct values, the difference of shares, and otherwise the
        distance on the scale.
        """
        if self.kind == "log":
            return abs(math.expm1(min(now - before, 700.0)))
        return abs(self.back(now) - self.back(before)) if self.kind == "share" else abs(now - before)


def choose_scale(key: Key, past: Sequence[Profile], figures: Sequence[Mapping[Key, float]], now: Profile) -> Scale:
    """Choose the scale of a figure from the column's values in earlier versions (oldest first) and their figures."""
    name = key.column
    if key.check == "rows":
        return Scale("log", floor=0.05, early=0.7)
    if key.check == "distinct":
        error = max(profile.columns[name].distinct_error for profile in (*past[-1:], now))
        return Scale("log", floor=0.1 + 2 * error, early=0.7)
    if key.check in SHARES:
        return Scale("share", floor=0.03, early=0.1 if key.check == "repeated" else 0.2)
    columns = [profile.columns[name] for profile in past]
    moment = family(columns[-1]) == "moment"
    deviation = _find_middle([c.std for c in columns if c.std]) * (hours_per_unit(columns[-1]) if moment else 1.0)

    def list_figures(check: str, part: str = "") -> list[float]:
        other = Key(check, name, part)
        return [version_figures[other] for version_figures in figures if other in version_figures]

    if key.check == "mean":
        spread = deviation or 0.01 * _find_middle([abs(mean) for mean in list_figures("mean")]) or 1.0
        return Scale("linear", spread, floor=0.1, early=1.0)
    if moment:
        ends = zip(list_figures("extremes", "least"), list_figures("extremes", "largest"), strict=False)
        width = _find_middle([high - low for low, high in ends])
        return Scale("linear", 1.0, floor=max(1.0, 0.05 * width), early=max(24.0, 0.5 * width))
    ends = zip(list_figures("quantiles", "25 %"), list_figures("quantiles", "75 %"), strict=False)
    box = _find_middle([(high - low) / 2 for low, high in ends])
    # A column of few values may have no spread between its quartiles, and a constant one no deviation.
    spread = box or deviation or _find_middle([abs(middle) for middle in list_figures("quantiles", "50 %")]) or 1.0
    if key.check == "extremes":
        return Scale("asinh", spread, floor=math.log(2), early=math.log(10))
    return Scale("asinh", spread, floor=0.15, early=0.7)


def _find_middle(values: Sequence[float]) -> float:
    """Find the upper median; 0 without values."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def compute_noise(
    key: Key, now: ColumnProfile | None, value: float, rows: int, before: float, z: float, scale: Scale
) -> float:
    """Compute the change on the scale that sampling alone makes at `z` standard errors.

    `rows` values made the figure of the batch, `before` values that of the version before.
    """
    both = 1 / max(rows, 1) + 1 / max(before, 1.0)
    if scale.kind == "share":
        return z * 0.5 * math.sqrt(both)
    if key.check == "rows":
        return z * math.sqrt(both)
    if key.check == "distinct":
        return z * 0.5 / math.sqrt(max(value, 1.0))
    if key.check == "mean":
        return z * math.sqrt(both)
    if key.check == "quantiles" and now is not None and now.bins:
        q = float(key.part.split()[0]) / 100
        reach = z * math.sqrt(q * (1 - q) * both)
        low, high = compute_quantiles(now.bins, (max(q - reach, 0.0), min(q + reach, 1.0)))
        return (scale.to(high) - scale.to(low)) / 2
    return 0.0


def format_values(key: Key, now: float, expected: float, kind: str) -> tuple[str, str]:
    """Format two figures for people: whole extremes exactly, others with as many digits as tell them apart."""
    if key.check in SHARES:
        return format_percent(now), format_percent(expected)
    if key.check in ("rows", "distinct"):
        return f"{round(now):,}", f"{round(expected):,}"
    if kind == "moment":
        return _format_moment(now), _format_moment(expected)
    texts = ("", "")
    is_whole = key.check == "extremes" and float(now).is_integer() and float(expected).is_integer()
    for digits in range(16 if is_whole else 4, 17):
        texts = format_value(float(f"{now:.{digits}g}")), format_value(float(f"{expected:.{digits}g}"))
        if texts[0] != texts[1]:
            break
    return texts


def _format_moment(hours: float) -> str:
    try:
        return datetime.fromtimestamp(hours * 3600, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{hours:.4g} hours since 1970"
