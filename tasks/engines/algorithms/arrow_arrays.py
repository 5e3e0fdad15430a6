"""Arrow arrays: one array of chunks, their numbers as numpy and back, limits. Both engines share it."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.convert.python_values import to_storage_type
from tasks.engines.hashing.canonical import decimal_floats


def one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The values in one array; no copy unless they are in several chunks."""
    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks == 1:
            return values.chunk(0)
        return values.combine_chunks() if values.num_chunks else pa.array([], values.type)
    return values


def raw(values: pa.Array) -> np.ndarray:
    """The stored numbers as numpy: booleans as uint8, times as integers in their unit, decimals as float64.

    Not copied, but for booleans and decimals. What stands in the place of a null is any number.
    """
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    elif pa.types.is_decimal(values.type):
        values = decimal_floats(values)
    stored = _get_stored_dtype(values.type)
    buffer = values.buffers()[1]
    if buffer is None or not len(values):  # Arrow's casts of no values leave buffers of any size
        return np.zeros(len(values), dtype=stored)
    return np.frombuffer(buffer, dtype=stored, count=values.offset + len(values))[values.offset :]


@functools.cache
def _get_stored_dtype(dtype: pa.DataType) -> np.dtype:
    """Return NumPy's type of the numbers that Arrow stores for a type: of times, integers."""
    return np.dtype(to_storage_type(dtype).to_pandas_dtype())


def build(values: np.ndarray, valid: np.ndarray | None = None, dtype: pa.DataType | None = None) -> pa.Array:
    """The Arrow array of numbers and their validity (None: no nulls), of type `dtype` or that of the numbers."""
    if dtype is not None and pa.types.is_boolean(dtype):
        return pa.array(values.astype(bool), mask=None if valid is None else ~valid)
    dtype = dtype or pa.from_numpy_dtype(values.dtype)
    bits = None if valid is None or valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(dtype, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


def clip(values: pa.Array, low: float | None, high: float | None) -> pa.Array:
    """The values limited to [low, high]; None means no limit. Null stays null."""
    if low is not None:
        values = pc.max_element_wise(values, pa.scalar(low, values.type), skip_nulls=False)
    if high is not None:
        values = pc.min_element_wise(values, pa.scalar(high, values.type), skip_nulls=False)
    return values
