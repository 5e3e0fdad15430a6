"""Makes the profile of each column of the source from its sketch, and from a sample of the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks.core.dtypes import dtype_name, is_list, kind_of, leaf_type
from tasks.core.units import HOUR
from tasks.engines.algorithms import column_sketch
from tasks.engines.algorithms.arrow_arrays import one_array, raw
from tasks.engines.algorithms.column_sketch import Sketch
from tasks.engines.algorithms.moments import deviation
from tasks.engines.hashing import murmur3
from tasks.engines.hashing.canonical import canonical_bits
from tasks.profile.output_profile import BUCKETS, ColumnProfile


def make_column_profile(
    name: str, dtype: pa.DataType, sketch: Sketch, sample: pa.ChunkedArray | None = None, sample_every: int = 1
) -> ColumnProfile:
    """Make the profile of a column of the source from the sketch of all its rows.

    `sample` has one row in `sample_every`: it gives the figures that need each value, where the sketch has not counted
    the values one by one.
    """
    leaf = leaf_type(dtype)
    numbers = _extract_numbers(sample) if sample is not None and sketch.kind in ("integer", "float", "time") else None
    distinct, error, top, top_exact = _count_distinct(sketch, numbers, sample_every)
    mean, std = _compute_mean_and_deviation(sketch)
    histogram, rows_per_count = _make_histogram(sketch, numbers, sample_every)
    bins = None if histogram is None else dict(zip(histogram[0].tolist(), histogram[1].tolist(), strict=True))
    low = sketch.low
    high = sketch.high
    if sketch.kind == "time" and low is not None:
        low = _format_time(low, leaf)
        high = _format_time(high, leaf)
    elif isinstance(low, float):
        # 0.0 for -0.0: which of these equal numbers is the least depends on the order of rows
        low = low + 0.0
        high = high + 0.0
    buckets = _count_buckets(sketch)
    hours = None
    if numbers is not None and pa.types.is_timestamp(leaf):  # numbers are microseconds since 1970
        hours = np.bincount(numbers // HOUR % 24, minlength=24).tolist()
    return ColumnProfile(
        name=name,
        type=dtype_name(dtype),
        rows=sketch.rows,
        nulls=sketch.nulls,
        distinct=distinct,
        distinct_error=error,
        minimum=low,
        maximum=high,
        mean=mean,
        std=std,
        infinite=sketch.infinite,
        bins=bins,
        sampled=rows_per_count,
        hours=hours,
        buckets=buckets,
        top=top,
        top_exact=top_exact,
    )


def _extract_numbers(sample: pa.ChunkedArray) -> np.ndarray:
    """Extract a sample's values without null and NaN; times as in the sketches: microseconds since 1970, dates days."""
    array = one_array(sample)
    while is_list(array.type):
        array = array.flatten()
    array = array.drop_null()
    stored = raw(array)
    if kind_of(array.type) == "time":
        return canonical_bits(stored, array.type, np).view(np.int64)
    if stored.dtype.kind != "f":
        return stored
    stored = stored.astype(np.float64) + 0.0  # 0.0 for -0.0
    return stored[~np.isnan(stored)]


def _make_histogram(
    sketch: Sketch, numbers: np.ndarray | None, sample_every: int
) -> tuple[column_sketch.Bins | None, int]:
    """Return (the histogram of numbers, how many rows each counted value stands for: 1 if all values were counted)."""
    if sketch.bins is not None:
        return sketch.bins, 1
    if sketch.table is not None and sketch.kind == "integer":
        values, counts = column_sketch.table_of(sketch.kind, sketch.table)
        return column_sketch.number_bins(np.asarray(values), counts), 1
    if numbers is None:
        return None, 1
    return column_sketch.number_bins(numbers), sample_every


class Distinct(NamedTuple):
    """The number of distinct values, its relative error, the most frequent values, and whether their counts are exact.

    The number is NaN if it is unknown; the error is infinite if the number is that of a sample.
    """

    number: float
    error: float
    top: list[tuple[Any, int]]
    top_exact: bool


def _count_distinct(sketch: Sketch, numbers: np.ndarray | None, sample_every: int) -> Distinct:
    # From the most to the least exact. First: the sketch was made of a table with the counts of all values. Only texts
    # and integers have a `top`.
    if sketch.distinct is not None:
        return Distinct(float(sketch.distinct), 0.0, sketch.top, sketch.kind in ("text", "integer"))
    # Few distinct values: the sketch has a count for each.
    if sketch.table is not None:
        pairs = list(zip(sketch.table[0], sketch.table[1].tolist(), strict=True))
        return Distinct(float(len(pairs)), 0.0, column_sketch.most_frequent(pairs), True)
    # Many distinct texts, bytes or integers: their least hashes give an estimate.
    value_count = sketch.rows - sketch.nulls
    if sketch.least is not None:
        estimate, error = column_sketch.estimate(sketch.least)
        return Distinct(min(estimate, float(value_count)), error, [], False)
    # Floats and times: the sample has at most as many distinct values as all rows, so the number is a lower bound.
    if numbers is None:
        return Distinct(math.nan if value_count else 0.0, 0.0, [], False)
    return Distinct(float(len(column_sketch.unique(numbers))), 0.0 if sample_every == 1 else math.inf, [], False)


def _compute_mean_and_deviation(sketch: Sketch) -> tuple[float | None, float | None]:
    """Return (mean, standard deviation) of the finite values; (None, None) if unknown."""
    if sketch.sums is not None:
        n = sketch.rows - sketch.nulls
        total, squares = sketch.sums
        if not n:
            return None, None
        try:
            std = math.sqrt((n * squares - total * total) / (n * (n - 1))) if n > 1 else 0.0
            return total / n, std
        except OverflowError:  # these sums are integers of any size, and may be beyond float64
            return None, None
    moments = column_sketch.moments_of(sketch)
    if moments is None:
        return None, None
    n, mean, *_ = moments
    if not math.isfinite(mean):
        return None, None
    return mean, deviation(moments) if n > 1 else 0.0


def _count_buckets(sketch: Sketch) -> list[int] | None:
    """Count the texts, bytes or integers in each bucket of their hash.

    None for other values, and for integers that were not counted one by one.
    """
    if sketch.table is None:
        return None if sketch.buckets is None else [int(count) for count in sketch.buckets]
    values, counts = column_sketch.table_of(sketch.kind, sketch.table)
    hashes = murmur3.hash_array(values) & (BUCKETS - 1)
    return [int(count) for count in np.bincount(hashes, weights=counts, minlength=BUCKETS)]


def _format_time(count: int, dtype: pa.DataType) -> str | int:
    """Write a time as ISO text, from microseconds since 1970 (dates: days).

    Durations, and times that ISO texts cannot express, stay numbers.
    """
    try:
        if pa.types.is_date(dtype):
            return str(np.datetime64(count, "D"))
        if pa.types.is_time(dtype):
            return str(pa.scalar(count, pa.time64("us")).as_py())
        return str(np.datetime64(count, "us")) if pa.types.is_timestamp(dtype) else count
    except (ValueError, OverflowError):
        return count


def make_column_profiles(
    types: Mapping[str, pa.DataType], sketches: Mapping[str, Sketch], sample: pa.Table | None, sample_every: int
) -> dict[str, ColumnProfile]:
    """Make the profiles of the columns of the source that were sketched."""
    columns = {} if sample is None else dict(zip(sample.column_names, sample.columns, strict=True))
    return {
        name: make_column_profile(name, types[name], sketch, columns.get(name), sample_every)
        for name, sketch in sketches.items()
    }
