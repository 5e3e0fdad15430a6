"""Profiles of columns: exact where the run has counted all rows, or statistics learned them, else from a few thousand
rows, which the profile says.

A sample's shares have a standard error of sqrt(p (1 - p) / n): at 10,000 rows a share of 10 % is exact to 0.6 points
(two standard errors). The number of distinct values in the sample is a lower bound.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import dtype_name, is_list, kind_of
from tasks.core.schema import Schema
from tasks.engines.convert.python_values import to_python_list, to_storage_type, value_of
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.graph.learned_text import count_distinct_values
from tasks.ops.fitted_values import FittedSteps, FittedValues
from tasks.profile.output_profile import ColumnProfile, Profile

# bars of a histogram, top values, characters of a value that is shown
BINS = 24
TOP = 5
LONG = 40
EXACT = 2.0**53  # up to which float64 holds every whole number


@dataclass
class ColumnSummary:
    """A column as the report shows it. `exact` names the figures of all rows; the others are of `rows` sampled rows."""

    name: str
    dtype: str
    rows: int = 0
    nulls: float | None = None  # share of the rows
    distinct: int | None = None
    low: str = ""
    high: str = ""
    mean: str = ""
    histogram: list[int] = field(default_factory=list)
    top: list[tuple[str, float]] = field(default_factory=list)  # value and its share of the rows
    exact: set[str] = field(default_factory=set)


def of_table(table: pa.Table) -> list[ColumnSummary]:
    """Summarize every column of a sample."""
    return [of_column(name, table.column(name)) for name in table.column_names]


def of_column(name: str, column: pa.ChunkedArray) -> ColumnSummary:
    """Summarize a column, or the elements of lists: nulls, distinct, least, mean, largest, histogram and top values."""
    dtype = dtype_name(_decode_type(column.type))
    rows = len(column)
    profile = ColumnSummary(name, dtype, rows, column.null_count / rows if rows else None)
    if is_list(column.type):
        column = pc.list_flatten(column)
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    values = column.drop_null()
    if not len(values) or pa.types.is_nested(values.type) or pa.types.is_null(values.type):
        profile.distinct = 0 if not len(values) else None
        return profile
    counts = values.value_counts()
    order = np.argsort(-counts.field("counts").to_numpy(), kind="stable")
    profile.distinct = len(counts)
    if (
        profile.distinct < 0.9 * len(values) or profile.distinct <= TOP
    ):  # the top values of an almost unique column mean nothing
        few = counts.take(pa.array(order[:TOP]))
        most_frequent = zip(to_python_list(few.field("values")), few.field("counts").to_pylist(), strict=True)
        profile.top = [(format_column_value(value), count / len(values)) for value, count in most_frequent]
    _summarize_numbers(profile, values)
    return profile


def _decode_type(dtype: pa.DataType) -> pa.DataType:
    return dtype.value_type if pa.types.is_dictionary(dtype) else dtype


def _summarize_numbers(profile: ColumnSummary, values: pa.ChunkedArray) -> None:
    kind = kind_of(values.type)
    if kind == "bool":
        values = values.cast(pa.int8())
        kind = "number"
    if kind not in ("number", "time"):
        if kind == "string":
            low, high = pc.min_max(values).values()
            profile.low = format_column_value(low.as_py())
            profile.high = format_column_value(high.as_py())
        return
    numbers = _as_floats(values)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return
    low, high = pc.min_max(values.cast(to_storage_type(values.type))).values()
    profile.low, profile.high = (format_column_value(value_of(end.cast(values.type))) for end in (low, high))
    profile.mean = format_column_value(float(numbers.mean())) if kind == "number" else ""
    profile.histogram = histogram(numbers)


def _as_floats(values: pa.ChunkedArray) -> np.ndarray:
    if kind_of(values.type) == "time":
        values = values.cast(to_storage_type(values.type))
    return values.cast(pa.float64(), safe=False).to_numpy()


def histogram(numbers: np.ndarray) -> list[int]:
    """Count numbers in equal bins between the least and the largest value.

    A bin of whole numbers holds as many of them as any other, so that even counts look even.
    """
    low = float(numbers.min())
    high = float(numbers.max())
    if low == high:
        return [len(numbers)]
    if high - low < EXACT and bool((numbers == np.floor(numbers)).all()):
        values = int(high - low) + 1
        width = -(-values // BINS)
        bins = -(-values // width)
        places = (numbers - low).astype(np.int64) // width
    else:
        bins = BINS
        share = (numbers / 2 - low / 2) / (high / 2 - low / 2)  # halves: the span may be beyond the largest float
        places = np.minimum((share * bins).astype(np.int64), bins - 1)
    return [int(n) for n in np.bincount(places, minlength=bins)]


def format_column_value(value: object) -> str:
    """Format a value of a column as short text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.5g}"
    text = value.isoformat(sep=" ") if isinstance(value, datetime.datetime) else str(value)
    return text if len(text) <= LONG else text[: LONG - 2] + ".."


def columns_of(schema: Schema, sample: pa.Table | None) -> list[ColumnSummary]:
    """Make a summary for every column of a schema; figures of those in the sample come from there."""
    seen = {p.name: p for p in of_table(sample)} if sample is not None else {}
    profiles = []
    for column in schema.columns:
        profile = seen.get(column.name, ColumnSummary(column.name, dtype_name(column.dtype)))
        profile.dtype = dtype_name(column.dtype)
        profiles.append(profile)
    return profiles


def add_learned(profiles: Sequence[ColumnSummary], bound: Bound, values: FittedSteps) -> None:
    """Replace figures of the sample by those that the statistics learned from all rows."""
    by_name = {p.name: p for p in profiles}
    for step in bound.learned:
        places = [bound.origin(*step.fit_inputs[name]) for name in step.unit]
        if len(places) == 1 and places[0][0] == SOURCE and places[0][1] in by_name and step.key in values:
            _add(by_name[places[0][1]], step, values[step.key])


def add_profile(summaries: Sequence[ColumnSummary], profile: Profile) -> None:
    """Replace figures of the sample by those of all rows that the run has counted."""
    for summary in summaries:
        column = profile.columns.get(summary.name)
        if column is not None and column.rows:
            _add_profile(summary, column)


def _add_profile(summary: ColumnSummary, column: ColumnProfile) -> None:
    if not summary.dtype.startswith("list<"):  # of lists the elements were counted
        summary.nulls = column.nulls / column.rows
        summary.exact.add("nulls")
    if column.is_distinct_known and math.isfinite(column.distinct):
        summary.distinct = round(column.distinct)
        summary.exact |= {"distinct"} if not column.distinct_error else set()
    if column.minimum is not None and column.maximum is not None:
        low, high = (format_column_value(end) for end in (column.minimum, column.maximum))
        if column.type.startswith(("timestamp", "date")):
            low, high = (end.replace("T", " ").removesuffix(".000000") for end in (low, high))
        summary.low = low
        summary.high = high
        summary.exact.add("min")
    if column.mean is not None and summary.mean:
        summary.mean = format_column_value(float(column.mean))
        summary.exact.add("mean")
    if column.top_exact and column.top:
        kind = bool if column.type == "bool" else type(column.top[0][0])
        summary.top = [
            (format_column_value(kind(value)), count / max(column.values, 1)) for value, count in column.top[:TOP]
        ]
        summary.exact.add("top")


def _add(profile: ColumnSummary, step: Step, fitted: FittedValues) -> None:
    name = type(step.op).__name__
    if name == "DataStats":
        _add_stats(profile, fitted)
    elif name == "Categorify" and isinstance(fitted.get("values"), pa.Table):
        _add_vocabulary(profile, fitted)
    elif isinstance(fitted.get("mean"), float) and not profile.exact & {"mean"}:
        profile.mean = format_column_value(fitted["mean"])
        profile.exact.add("mean")


def _add_vocabulary(profile: ColumnSummary, fitted: FittedValues) -> None:
    table = fitted["values"]
    if table.num_columns != 2 or table["count"].null_count:
        return
    known = fitted.get("occurrences") or int(pc.sum(table["count"]).as_py() or 0)
    nulls = int(fitted.get("nulls", 0))
    profile.distinct = count_distinct_values(fitted)
    profile.top = [
        (format_column_value(v), n / max(known, 1))
        for v, n in zip(
            to_python_list(table.column(0).slice(0, TOP)), table["count"].slice(0, TOP).to_pylist(), strict=True
        )
    ]
    profile.exact |= {"distinct", "top"}
    if not profile.dtype.startswith("list<"):  # of lists it counts the elements
        profile.nulls = nulls / max(known + nulls, 1)
        profile.exact.add("nulls")


def _add_stats(profile: ColumnSummary, fitted: FittedValues) -> None:
    rows = max(int(fitted["rows"]), 1)
    profile.nulls = fitted["nulls"] / rows
    profile.distinct = fitted["distinct"]
    profile.low = format_column_value(fitted["min"])
    profile.high = format_column_value(fitted["max"])
    profile.exact |= {"nulls", "min"} | ({"distinct", "top"} if fitted["exact"] else set())
    left = max(rows - fitted["nulls"], 1)
    profile.top = [(format_column_value(t["value"]), t["count"] / left) for t in fitted["top"][:TOP]]
    if fitted.get("mean") is not None:
        profile.mean = format_column_value(fitted["mean"])
        profile.exact.add("mean")
    if "histogram" in fitted:
        profile.histogram = fitted["histogram"]["counts"]
        profile.exact.add("histogram")


def error_of(rows: int) -> float:
    """Compute two standard errors of a share at worst (one half), in points.

    >>> error_of(10_000)
    1.0
    """
    return round(100 / math.sqrt(rows), 2) if rows else 100.0
