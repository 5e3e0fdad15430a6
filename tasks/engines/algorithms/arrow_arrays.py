"""Arrow arrays: one array of chunks, their numbers as numpy and back, limits. Both engines share it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.convert.python_values import to_storage_type
from tasks.engines.hashing.canonical import decimal_floats


def one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The values in one array; no copy unless they are in several chunks."""
    if isinstance(values, pa.Array):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    return values.combine_chunks() if values.num_chunks else pa.array([], values.type)


def columns_by_name(table: pa.Table | Mapping[str, pa.ChunkedArray]) -> Mapping[str, pa.ChunkedArray]:
    """The columns of a table by their names; columns by name as they are."""
    if isinstance(table, pa.Table):
        return dict(zip(table.column_names, table.columns, strict=True))
    return table


def raw(values: pa.Array) -> np.ndarray:
    """The stored numbers as numpy: booleans as uint8, times as integers in their unit, decimals as float64.

    Not copied, but for booleans and decimals. What stands in the place of a null is any number.
    """
    stored = _get_stored_dtype(values.type)
    if stored is None:
        values = values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else decimal_floats(values)
        stored = np.dtype(values.type.to_pandas_dtype())
    rows = len(values)
    buffer = values.buffers()[1]
    if buffer is None or not rows:  # Arrow's casts of no values leave buffers of any size
        return np.zeros(rows, dtype=stored)
    return np.frombuffer(buffer, stored, rows, values.offset * stored.itemsize)


@functools.cache
def _get_stored_dtype(dtype: pa.DataType) -> np.dtype | None:
    """Return NumPy's type of the numbers that Arrow stores for a type: of times, integers; None for booleans and
    decimals, which are not stored as numbers of NumPy."""
    if pa.types.is_boolean(dtype) or pa.types.is_decimal(dtype):
        return None
    return np.dtype(to_storage_type(dtype).to_pandas_dtype())


def find_valid_rows(values: pa.Array) -> np.ndarray | None:
    """Which rows are not null; None if no row is."""
    if not values.null_count:
        return None
    bits = values.buffers()[0]
    if bits is None:  # an array of nulls alone has none
        return values.is_valid().to_numpy(zero_copy_only=False)
    first, skipped = divmod(values.offset, 8)
    rows = skipped + len(values)
    stored = np.frombuffer(bits, np.uint8, -(-rows // 8), first)
    return np.unpackbits(stored, count=rows, bitorder="little")[skipped:].view(bool)


def build(values: np.ndarray, valid: np.ndarray | None = None, dtype: pa.DataType | None = None) -> pa.Array:
    """The Arrow array of numbers and their validity (None: no nulls), of type `dtype` or that of the numbers."""
    if dtype is not None and pa.types.is_boolean(dtype):
        return pa.array(values.astype(bool), mask=None if valid is None else ~valid)
    dtype = dtype or _get_arrow_type(values.dtype)
    bits = None if valid is None or valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(dtype, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


@functools.cache
def _get_arrow_type(dtype: np.dtype) -> pa.DataType:
    return pa.from_numpy_dtype(dtype)


def clip(values: pa.Array, low: float | None, high: float | None) -> pa.Array:
    """The values limited to [low, high]; None means no limit. Null stays null."""
    if low is not None:
        values = pc.max_element_wise(values, pa.scalar(low, values.type), skip_nulls=False)
    if high is not None:
        values = pc.min_element_wise(values, pa.scalar(high, values.type), skip_nulls=False)
    return values
