"""Stand-ins on the GPU for columns of types that cuDF lacks, while rows are gathered, joined, sent and sorted.

    struct          a struct of the stand-ins of its fields     map     a list of such structs, of key and value
    bytes           a string of the same bytes                  list    a list of the stand-ins of its values
    decimal256      its 32 bytes as a string                    times of day, date64, times inside of these: integers
    times in zones without a name (+05:30): integers

Inside of these types, decimals are strings of their 16 bytes. The name of a cuDF Series of a stand-in is a mark: a sign
with which no column name begins, and the type. Lists of dates, which cuDF counts in seconds, and of decimals, whose
precision cuDF forgets, have a mark too. Arrow arrays become stand-ins, and stand-ins Arrow arrays, without a loop over
rows. Nothing here needs a GPU.
"""

from __future__ import annotations

from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import dtype_name, is_bytes, is_list, leaf_type, parse_dtype
from tasks.engines.convert.python_values import to_storage_type

SIGN = "\0"  # the first character of a mark


@lru_cache(maxsize=4096)
def is_foreign(dtype: pa.DataType) -> bool:
    """Whether a column of this (plain) type needs a stand-in.

    >>> is_foreign(pa.list_(pa.binary())), is_foreign(pa.list_(pa.timestamp("us")))
    (True, False)
    """
    if is_list(dtype):
        return is_foreign(dtype.value_type)
    times = pa.types.is_time(dtype) or pa.types.is_date64(dtype) or lacks_zone(dtype)
    nested = pa.types.is_struct(dtype) or pa.types.is_map(dtype)
    return nested or times or is_bytes(dtype) or pa.types.is_decimal256(dtype)


def lacks_zone(dtype: pa.DataType) -> bool:
    """Whether times are in a zone that cuDF lacks: an offset, or a name that is not in the time zone database.

    >>> lacks_zone(pa.timestamp("us", "+05:30")), lacks_zone(pa.timestamp("us", "Europe/Berlin"))
    (True, False)
    """
    return pa.types.is_timestamp(dtype) and dtype.tz is not None and not _is_zone(dtype.tz)


@lru_cache(maxsize=4096)
def _is_zone(name: str) -> bool:
    try:
        return bool(ZoneInfo(name).key)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False


def mark_of(dtype: pa.DataType) -> str | None:
    """The mark of this type: the name of a Series that stands for it; None if cuDF has the type."""
    leaf = leaf_type(dtype)
    inexact = is_list(dtype) and (pa.types.is_date32(leaf) or pa.types.is_decimal(leaf))
    return SIGN + dtype_name(dtype) if inexact or is_foreign(dtype) else None


def type_of_mark(name: object) -> pa.DataType | None:
    """The type for which a Series of this name stands; None if the name is not a mark.

    >>> type_of_mark(mark_of(pa.map_(pa.string(), pa.int8())))
    MapType(map<string, int8>)
    """
    return _parse_mark(name) if isinstance(name, str) and name.startswith(SIGN) else None


@lru_cache(maxsize=4096)
def _parse_mark(mark: str) -> pa.DataType:
    return parse_dtype(mark.removeprefix(SIGN))


def stand_in(values: pa.Array) -> pa.Array:
    """The stand-in of an array of a type that `is_foreign`, or of a part of it.

    >>> stand_in(pa.array([{"a": b"x"}, None])).type
    StructType(struct<0: string>)
    """
    dtype = values.type
    rows = len(values)
    nulls = values.null_count
    first = values.offset
    if is_list(dtype) or pa.types.is_map(dtype):
        inner = stand_in(_entries(values) if pa.types.is_map(dtype) else values.values)
        return pa.Array.from_buffers(pa.list_(inner.type), rows, values.buffers()[:2], nulls, first, [inner])
    if pa.types.is_struct(dtype) and dtype.num_fields:
        fields = [stand_in(values.field(i)) for i in range(dtype.num_fields)]
        return pa.StructArray.from_arrays(fields, [str(i) for i in range(len(fields))], mask=values.is_null())
    if pa.types.is_struct(dtype) or pa.types.is_null(dtype):  # nothing but null or not null
        return pc.if_else(values.is_null(), pa.scalar(None, pa.int8()), pa.scalar(0, pa.int8()))
    if pa.types.is_decimal(dtype):
        return stand_in(pa.Array.from_buffers(pa.binary(dtype.byte_width), rows, values.buffers(), nulls, first))
    if pa.types.is_fixed_size_binary(dtype):
        return stand_in(values.cast(pa.binary()))
    if pa.types.is_binary(dtype):
        return pa.Array.from_buffers(pa.string(), rows, values.buffers(), nulls, first)
    return values.view(to_storage_type(dtype))


def _entries(values: pa.MapArray) -> pa.StructArray:
    return pa.StructArray.from_arrays([values.keys, values.items], ["0", "1"])


def from_stand_in(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """The array of type `dtype` from its stand-in.

    >>> from_stand_in(stand_in(pa.array([{"a": b"x"}, None])), pa.struct([("a", pa.binary())])).to_pylist()
    [{'a': b'x'}, None]
    """
    rows = len(values)
    nulls = values.null_count
    first = values.offset
    if nulls == rows:
        return pa.nulls(rows, dtype)
    if is_list(dtype):
        inner = from_stand_in(values.values, dtype.value_type)
        return pa.Array.from_buffers(dtype, rows, values.buffers()[:2], nulls, first, [inner])
    if pa.types.is_map(dtype):
        inner = from_stand_in(values.values, pa.struct([dtype.key_field, dtype.item_field]))
        return pa.Array.from_buffers(dtype, rows, values.buffers()[:2], nulls, first, [inner])
    if pa.types.is_struct(dtype) and dtype.num_fields:
        fields = [from_stand_in(values.field(i), dtype.field(i).type) for i in range(dtype.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(dtype), mask=values.is_null())
    if pa.types.is_struct(dtype):
        return pa.array([None if null else {} for null in values.is_null().to_pylist()], dtype)
    if pa.types.is_decimal(dtype):
        wide = from_stand_in(values, pa.binary(dtype.byte_width))
        return pa.Array.from_buffers(dtype, rows, wide.buffers(), nulls, wide.offset)
    if pa.types.is_fixed_size_binary(dtype):
        return from_stand_in(values, pa.binary()).cast(dtype)
    if pa.types.is_binary(dtype):
        return pa.Array.from_buffers(dtype, rows, values.buffers(), nulls, first)
    return values.view(dtype)
