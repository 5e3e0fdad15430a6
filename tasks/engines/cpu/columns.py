"""Columns of the CPU engine: conversion to and from Arrow, and kernels that work value by value."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import is_list as is_list_type
from tasks.core.dtypes import plain_type
from tasks.engines.algorithms import arrow_arrays
from tasks.engines.algorithms.arrow_arrays import build, columns_by_name, find_valid_rows, one_array, raw
from tasks.engines.algorithms.moments import Moments, power_of, within
from tasks.engines.algorithms.separators import escapes
from tasks.engines.algorithms.text_casts import times_of
from tasks.engines.convert.libraries import arrow_values
from tasks.engines.convert.type_widening import check_range
from tasks.engines.cpu.user_series import user_column
from tasks.engines.hashing.canonical import decimal_floats
from tasks.engines.types import Series

# Kernels make Arrow arrays. What operators of users make are pandas Series with an Arrow type: `array` opens both.
Column: TypeAlias = "pa.Array | pd.Series"
ROWS_PER_RESULT = 4  # from so many rows on for each integer of a range, results are looked up and not computed


def column(values: pa.Array | pa.ChunkedArray) -> Column:
    """Make a column of an Arrow array; no copy unless it has several chunks."""
    return one_array(values)


def array(values: Series | pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the column as one Arrow array; no copy unless it has several chunks. Dictionary encoding stays."""
    if isinstance(values, pa.Array):
        return values
    return one_array(arrow_values(values) if isinstance(values, pd.Series) else values)


def series(values: Column) -> pd.Series:
    """Return the column as a user's function takes it, as a decoded Series. (The GPU's also changes some types.)"""
    return user_column(decode(values))


def user_frame(frame: dict[str, Column]) -> pd.DataFrame:
    """Make a pandas DataFrame of plain columns, for users' functions."""
    return pd.DataFrame(
        {name: pd.arrays.ArrowExtensionArray(host(values)) for name, values in frame.items()}, copy=False
    )


def decode(values: Column) -> Column:
    """Remove the dictionary encoding of a column."""
    arrow = array(values)
    return column(arrow.dictionary_decode()) if isinstance(arrow, pa.DictionaryArray) else values


def from_arrow(table: pa.Table | Mapping[str, pa.ChunkedArray]) -> dict[str, Column]:
    """Make a frame of the columns of an Arrow table, or of columns by name, without a copy."""
    return {name: column(values) for name, values in columns_by_name(table).items()}


def to_arrow(frame: dict[str, Column]) -> pa.Table:
    """Convert a frame to an Arrow table; dictionary encoding stays."""
    return pa.table({name: array(values) for name, values in frame.items()})


def host(values: Column) -> pa.Array:
    """Return the column as one Arrow array in host memory, without dictionary encoding."""
    arrow = array(values)
    return arrow.dictionary_decode() if isinstance(arrow, pa.DictionaryArray) else arrow


def length(frame: dict[str, Column]) -> int:
    """Count the rows of a frame; 0 for a frame without columns."""
    return len(next(iter(frame.values()))) if frame else 0


def numbers(values: Column) -> tuple[np.ndarray, np.ndarray | None]:
    """(values, valid): the stored numbers (see `raw`), and which rows are not null; valid is None without nulls."""
    arrow = array(values)
    return raw(arrow), find_valid_rows(arrow)


def from_numbers(values: np.ndarray, valid: np.ndarray | None = None, dtype: pa.DataType | None = None) -> Column:
    """Make a column of raw numbers and their validity (None: no nulls); `dtype` is by default that of the numbers."""
    return build(values, valid, dtype)


def finite(values: Column) -> Column:
    """Replace NaN by null; infinities stay."""
    arrow = array(values)
    if not pa.types.is_floating(arrow.type):
        return values
    data, valid = numbers(arrow)
    without_nan = _exclude_nan(data, valid)
    return values if without_nan is valid else from_numbers(data, without_nan, arrow.type)


def _exclude_nan(data: np.ndarray, valid: np.ndarray | None) -> np.ndarray | None:
    """Return which rows are valid and not NaN: `valid` itself if no number is NaN."""
    is_number = data == data
    if is_number.all():
        return valid
    return is_number if valid is None else is_number & valid


def cast(values: Column, dtype: pa.DataType) -> Column:
    """Cast values to another type; pa.ArrowInvalid if a value does not fit."""
    arrow = array(values)
    if arrow.type == dtype:
        return values
    if pa.types.is_dictionary(arrow.type):
        if dtype == arrow.type.value_type:
            return column(arrow.dictionary_decode())
        arrow = arrow.dictionary_decode()
    if pa.types.is_decimal(arrow.type) and pa.types.is_floating(dtype):
        arrow = decimal_floats(arrow)
    check_range(arrow, dtype)
    if pa.types.is_floating(arrow.type) and pa.types.is_floating(dtype):
        return column(pc.cast(arrow, dtype, safe=False))
    return column(pc.cast(arrow, dtype))


def is_null(values: Column) -> Column:
    """Say whether each value is null, as a boolean column without nulls."""
    return column(pc.is_null(array(values)))


def fill_null(values: Column, value: object) -> Column:
    """Put `value` in place of nulls; dictionary encoding stays."""
    arrow = array(values)
    if pa.types.is_dictionary(arrow.type):
        return column(pc.fill_null(arrow.dictionary_decode(), value).dictionary_encode())
    if pa.types.is_null(arrow.type):
        return column(pa.repeat(pa.scalar(value), len(arrow)))
    valid = find_valid_rows(arrow)
    if valid is None:
        return values
    if not pa.types.is_integer(arrow.type) and not pa.types.is_floating(arrow.type):
        return column(pc.fill_null(arrow, pa.scalar(value, arrow.type)))
    data = raw(arrow)
    return from_numbers(np.where(valid, data, data.dtype.type(value)), None, arrow.type)


def clip(values: Column, low: float | None, high: float | None) -> Column:
    """Limit values to [low, high]; None means no limit. Null stays null; NaN becomes a limit."""
    arrow = array(values)
    if not pa.types.is_integer(arrow.type) and not pa.types.is_floating(arrow.type):
        return column(arrow_arrays.clip(arrow, low, high))
    data, valid = numbers(arrow)
    if low is not None:
        data = np.where(data > low, data, data.dtype.type(low))
    if high is not None:
        data = np.where(data < high, data, data.dtype.type(high))
    return from_numbers(data, valid, arrow.type)


def affine(values: Column, shift: float, scale: float, dtype: pa.DataType) -> Column:
    """Compute (x - shift) / scale in float64, and convert it to `dtype`; null and NaN stay."""
    data, valid = numbers(values)
    with np.errstate(all="ignore"):  # in the place of a null there may be any number
        out = np.subtract(data, shift, dtype=np.float64)
        if scale != 1.0:
            out /= scale
        return from_numbers(out.astype(dtype.to_pandas_dtype()), valid)


def log1p(values: Column, dtype: pa.DataType) -> Column:
    """Compute ln(1 + x) in float64, and convert it to `dtype`; -1 gives -inf, values below -1 give null."""
    data, valid = numbers(values)
    out = _map_numbers(data, lambda each: _log1p(each, dtype))
    return from_numbers(out, _exclude_nan(out, valid))


def _log1p(data: np.ndarray, dtype: pa.DataType) -> np.ndarray:
    with np.errstate(all="ignore"):  # in the place of a null there may be any number
        return np.log1p(data, dtype=np.float64).astype(dtype.to_pandas_dtype())


def _map_numbers(data: np.ndarray, work: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply `work` to each number; of integers of a small range only to all integers of the range."""
    if data.dtype.kind in "iu" and len(data) >= ROWS_PER_RESULT:
        low = int(data.min())
        high = int(data.max())
        if high - low < len(data) // ROWS_PER_RESULT:
            data = data if data.dtype.itemsize >= 4 else data.astype(np.int32)
            first = data.dtype.type(low)
            results = work(np.arange(high - low + 1).astype(data.dtype) + first)
            return results.take(data - first if low else data)
    return work(data)


def moments(values: Column, starts: Sequence[int]) -> list[tuple[int, float, float, float, float]]:
    """Compute the moments of the non-null values of each run [starts[i], starts[i + 1]), in float64 with pairwise sums.

    `tasks.engines.algorithms.moments` defines them.
    """
    data, valid = numbers(values)
    by_run = []
    for start, stop in pairwise(starts):
        run = data[start:stop] if valid is None else data[start:stop][valid[start:stop]]
        by_run.append(_compute_moments(run.astype(np.float64)))
    return by_run


def _compute_moments(data: np.ndarray) -> Moments:
    """Compute the moments of float64 values; the squares stay those of the scaled values, as `Moments` defines them."""
    if not len(data):
        return 0, 0.0, 0.0, 0.0, 0.0
    low = float(data.min())
    high = float(data.max())
    power = power_of(low, high)
    data = np.ldexp(data, -power) if power else data  # so that squares stay within float64
    with np.errstate(all="ignore"):  # infinite values have moments that are not finite
        mean = float(np.add.reduce(data) / len(data))
        data -= mean
        shift = float(np.add.reduce(data) / len(data))  # the rounding error of the mean
        np.multiply(data, data, out=data)
        squares = max(float(np.add.reduce(data)) - len(data) * shift * shift, 0.0)
    mean += shift
    return len(data), within(mean, power, low, high) if math.isfinite(mean) else mean, squares, low, high


def is_list(values: Column) -> bool:
    """Say whether the values are lists."""
    return is_list_type(array(values).type)


def leaves(values: Column) -> Column:
    """Return the elements of all lists, one after another (null lists have none)."""
    return column(array(values).flatten())


def with_leaves(values: Column, new: Column) -> Column:
    """Make lists of the same lengths as `values` with the elements `new`; null lists stay null."""
    arrow = array(values)
    counts = np.asarray(pc.fill_null(pc.list_value_length(arrow), 0), dtype=np.int64)
    offsets = np.zeros(len(arrow) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    bits = None
    if arrow.null_count:
        # The data of a new boolean array are validity bits without the offset that those of a slice would have.
        bits = pa.array(find_valid_rows(arrow)).buffers()[1]
    child = array(new)
    return column(
        pa.Array.from_buffers(pa.list_(child.type), len(arrow), [bits, pa.py_buffer(offsets)], children=[child])
    )


def _replace_dictionary(arrow: pa.DictionaryArray, strings: pa.Array) -> pa.DictionaryArray:
    """Replace each string of a dictionary by another one, of which several may be equal, or by null."""
    encoded = strings.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.take(arrow.indices), encoded.dictionary)


def text(values: Column) -> Column:
    """Convert values to text: integers in decimal digits, booleans true and false, strings as they are."""
    arrow = array(values)
    return values if plain_type(arrow.type) == pa.string() else column(pc.cast(arrow, pa.string()))


_TESTS = {"contains": pc.match_substring, "starts": pc.starts_with, "ends": pc.ends_with}


def join_text(columns: list[Column], sep: str, escape: bool = False) -> Column:
    """Join the values of each row to one text, not dictionary-encoded; null if any value is null.

    With `escape`, separators in values are escaped.
    """
    texts = [array(decode(text(c))) for c in columns]
    joined = pc.binary_join_element_wise(*texts, sep, null_handling="emit_null")
    tests, replacements = escapes(sep) if escape else ([], [])
    # Only rows whose text could be split in two ways are escaped (see `escapes`).
    ambiguous = []
    for values in texts:
        for test, part in tests:
            passes = _TESTS[test](values, part)
            if pc.any(passes).as_py():
                ambiguous.append(passes)
    if not ambiguous:
        return column(joined)
    for letter, replacement in replacements:
        texts = [pc.replace_substring(t, letter, replacement) for t in texts]
    escaped = pc.binary_join_element_wise(*texts, sep, null_handling="emit_null")
    return column(pc.if_else(pc.fill_null(functools.reduce(pc.or_kleene, ambiguous), False), escaped, joined))


def split_text(values: Column, sep: str, parts: int) -> list[Column]:
    """Split each text and return its first `parts` parts; missing parts are null."""
    arrow = array(values)
    strings = arrow.dictionary if isinstance(arrow, pa.DictionaryArray) else arrow
    lists = array(pc.split_pattern(strings, sep))
    offsets = raw(lists.offsets)  # of a null, the list has no parts
    number = np.arange(parts)[:, np.newaxis]
    missing = number >= offsets[1:] - offsets[:-1]
    places = offsets[:-1] + number
    texts = lists.values.take(pa.array(places.ravel(), mask=missing.ravel()))
    rows = len(strings)
    each = [texts.slice(number * rows, rows) for number in range(parts)]
    return each if strings is arrow else [_replace_dictionary(arrow, part) for part in each]


def to_time(values: Column) -> pa.Array:
    """Convert times, dates or ISO texts to timestamps in UTC; a text may end in UTC, Z or an offset."""
    arrow = array(values)
    if pa.types.is_timestamp(arrow.type):
        return arrow if arrow.type.tz is None else pc.cast(arrow, pa.timestamp(arrow.type.unit))
    if plain_type(arrow.type) == pa.string():
        return array(times_of(array(decode(values)), pa.timestamp("us")))
    if pa.types.is_date(arrow.type):
        return pc.cast(arrow, pa.timestamp("us") if pa.types.is_date32(arrow.type) else pa.timestamp("ms"))
    return arrow


PARTS = {
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
    "weekday": pc.day_of_week,
    "day": pc.day,
    "month": pc.month,
    "year": pc.year,
    "dayofyear": pc.day_of_year,
}


def date_part(values: Column, part: str) -> Column:
    """Compute a part of each time in UTC, int16; null stays.

    `part` is hour, minute, second, weekday (Monday 0), day, month, year or dayofyear.
    """
    whole = PARTS[part](to_time(values))  # int64
    if part == "year":
        return column(pc.cast(whole, pa.int16()))  # times in seconds have years beyond int16
    data, valid = numbers(whole)
    return from_numbers(data.astype(np.int16), valid)


def adopt(result: object) -> Column:
    """Make a column of the result of a user's function: a Series, an Arrow array, a numpy array or a list."""
    return column(arrow_values(result))


def dtype(values: Column) -> pa.DataType:
    """Return the Arrow type of the values, without dictionary encoding."""
    return plain_type(array(values).type)


def row_numbers(first: int, rows: int) -> np.ndarray:
    """Number `rows` rows, beginning with `first`, uint64."""
    return np.arange(first, first + rows, dtype=np.uint64)
