"""From what passes have seen of the rows to their profile."""

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


def column_profile(
    name: str, dtype: pa.DataType, sketch: Sketch, sample: pa.ChunkedArray | None = None, step: int = 1
) -> ColumnProfile:
    """The profile of a column of the source of this type, from the sketch of all its rows, and from a sample of one of
    `step` rows what they do not count each."""
    leaf = leaf_type(dtype)
    numbers = _extract_numbers(sample) if sample is not None and sketch.kind in ("integer", "float", "time") else None
    distinct, error, top, top_exact = _distinct(sketch, numbers, step)
    mean, std = _compute_mean_and_deviation(sketch)
    counted, sampled = _bins(sketch, numbers, step)
    bins = None if counted is None else dict(zip(counted[0].tolist(), counted[1].tolist(), strict=True))
    low = sketch.low
    high = sketch.high
    if sketch.kind == "time" and low is not None:
        low = _iso(low, leaf)
        high = _iso(high, leaf)
    elif isinstance(low, float):
        # 0.0 for -0.0
        low = low + 0.0
        high = high + 0.0
    buckets = _buckets(sketch)
    hours = None
    if numbers is not None and pa.types.is_timestamp(leaf):
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
        sampled=sampled,
        hours=hours,
        buckets=buckets,
        top=top,
        top_exact=top_exact,
    )


def _extract_numbers(sample: pa.ChunkedArray) -> np.ndarray:
    """The values of a sample without null and NaN: integers, float64, times as integers in the unit of the sketches."""
    array = one_array(sample)
    while is_list(array.type):
        array = array.flatten()
    array = array.drop_null()
    stored = raw(array)
    if kind_of(array.type) == "time":
        return canonical_bits(stored, array.type, np).view(np.int64)
    if stored.dtype.kind != "f":
        return stored
    stored = stored.astype(np.float64) + 0.0
    return stored[~np.isnan(stored)]


def _bins(sketch: Sketch, numbers: np.ndarray | None, step: int) -> tuple[column_sketch.Bins | None, int]:
    """(the histogram of numbers, how many rows stand behind each of it); of all values where each was counted."""
    if sketch.bins is not None:
        return sketch.bins, 1
    if sketch.table is not None and sketch.kind == "integer":
        values, counts = column_sketch.table_of(sketch.kind, sketch.table)
        return column_sketch.number_bins(np.asarray(values), counts), 1
    return (None, 1) if numbers is None else (column_sketch.number_bins(numbers), step)


class Distinct(NamedTuple):
    """The number of distinct values and its relative error; the most frequent ones, and whether their counts are
    exact."""

    number: float
    error: float
    top: list[tuple[Any, int]]
    top_exact: bool


def _distinct(sketch: Sketch, numbers: np.ndarray | None, step: int) -> Distinct:
    values = sketch.rows - sketch.nulls
    if sketch.distinct is not None:
        return Distinct(float(sketch.distinct), 0.0, sketch.top, sketch.kind in ("text", "integer"))
    if sketch.table is not None:
        pairs = list(zip(sketch.table[0], sketch.table[1].tolist(), strict=True))
        return Distinct(float(len(pairs)), 0.0, column_sketch.most_frequent(pairs), True)
    if sketch.least is not None:
        estimate, error = column_sketch.estimate(sketch.least)
        return Distinct(min(estimate, float(values)), error, [], False)
    if numbers is None:
        return Distinct(0.0 if sketch.rows == sketch.nulls else math.nan, 0.0, [], False)
    return Distinct(float(len(column_sketch.unique(numbers))), 0.0 if step == 1 else math.inf, [], False)


def _compute_mean_and_deviation(sketch: Sketch) -> tuple[float | None, float | None]:
    """(mean, standard deviation) of the finite values."""
    if sketch.sums is not None:
        n, (total, squares) = sketch.rows - sketch.nulls, sketch.sums
        if not n:
            return None, None
        try:
            std = math.sqrt((n * squares - total * total) / (n * (n - 1))) if n > 1 else 0.0
            return total / n, std
        except OverflowError:
            return None, None
    moments = column_sketch.moments_of(sketch)
    if moments is None or not math.isfinite(moments[1]):
        return None, None
    return moments[1], deviation(moments) if moments[0] > 1 else 0.0


def _buckets(sketch: Sketch) -> list[int] | None:
    """The number of texts, bytes or integers in each bucket of their hash; None for other values, and for integers that
    were not counted one by one."""
    if sketch.table is None:
        return None if sketch.buckets is None else [int(count) for count in sketch.buckets]
    values, counts = column_sketch.table_of(sketch.kind, sketch.table)
    hashes = murmur3.hash_array(values) & (BUCKETS - 1)
    return [int(count) for count in np.bincount(hashes, weights=counts, minlength=BUCKETS)]


def _iso(count: int, dtype: pa.DataType) -> str | int:
    """A time as ISO text, from microseconds since 1970 (dates: days); durations, and times beyond it, as the number."""
    try:
        if pa.types.is_date(dtype):
            return str(np.datetime64(count, "D"))
        if pa.types.is_time(dtype):
            return str(pa.scalar(count, pa.time64("us")).as_py())
        return str(np.datetime64(count, "us")) if pa.types.is_timestamp(dtype) else count
    except (ValueError, OverflowError):
        return count


def column_profiles(
    types: Mapping[str, pa.DataType], sketches: Mapping[str, Sketch], sample: pa.Table | None, step: int
) -> dict[str, ColumnProfile]:
    """The profiles of the columns of the source that were sketched."""
    drawn = sample.column_names if sample is not None else ()
    return {
        name: column_profile(name, types[name], sketch, sample[name] if name in drawn else None, step)  # type: ignore[index]
        for name, sketch in sketches.items()
    }
