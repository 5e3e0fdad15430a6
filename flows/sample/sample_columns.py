"""Arrays of numbers -> Arrow columns, without a copy where the array is already in host memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from flows.sample.draws import Array


def on_host(array: Array) -> np.ndarray:
    """Return the array in host memory: a CuPy array is copied, a numpy array is returned as it is."""
    return np.ascontiguousarray(array.get() if hasattr(array, "get") else array)


def numbers(values: Array, dtype: pa.DataType | None = None, valid: Array | None = None) -> pa.Array:
    """Return a column of numbers, cast to the Arrow type if one is given; null where `valid` is false."""
    host = on_host(values)
    kind = pa.from_numpy_dtype(host.dtype) if dtype is None else dtype
    if not pa.types.is_temporal(kind):
        host = host.astype(kind.to_pandas_dtype(), copy=False)
    return pa.Array.from_buffers(kind, len(host), [_bitmap(valid), pa.py_buffer(host)])


def words(index: Array, dictionary: pa.Array, valid: Array | None = None) -> pa.DictionaryArray:
    """Return a column of words given by their index, dictionary-encoded; null where `valid` is false."""
    return pa.DictionaryArray.from_arrays(numbers(index, pa.int32(), valid), dictionary, safe=False)


def letters(text: Array, valid: Array | None = None) -> pa.StringArray:
    """A column of strings of one length from a uint8 array (rows, length) of ASCII; null where `valid` is false."""
    rows, length = text.shape
    offsets = np.arange(0, rows * length + 1, length, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(on_host(text)), _bitmap(valid))


def _bitmap(valid: Array | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(on_host(valid), bitorder="little"))


def plain(table: pa.Table) -> pa.Table:
    """Return the same rows with dictionary-encoded columns as plain strings."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
