"""How many bytes a row takes, from its schema."""

from __future__ import annotations

import pyarrow as pa

from tasks.core.dtypes import is_list, kind_of
from tasks.core.schema import Column, Schema

VARYING = {"string": 24, "list": 64, "other": 64}  # bytes assumed for a value whose width the type does not tell
POSITION = 8


def row_bytes(schema: Schema) -> int:
    """About how many bytes a row of the output takes in memory, its position included."""
    return POSITION + row_width(schema)


def row_width(schema: Schema) -> int:
    """The bytes of a row as its schema tells: the same for any engine, codec and machine.

    >>> types = {"id": pa.int64(), "price": pa.float32(), "brand": pa.string(), "last": pa.list_(pa.int32())}
    >>> row_width(Schema.from_arrow(pa.schema(types))), row_width(Schema.from_arrow(pa.schema({"x": pa.bool_()})))
    (100, 1)
    """
    return sum(_value_bytes(column) for column in schema.columns)


def _value_bytes(column: Column) -> int:
    dtype = column.stored_dtype
    length = 1
    while pa.types.is_fixed_size_list(dtype):
        dtype, length = dtype.value_type, length * dtype.list_size
    kind = kind_of(dtype)
    if is_list(dtype) or kind not in ("number", "bool", "time"):
        return length * VARYING.get(kind, VARYING["other"])
    return length * max(1, dtype.bit_width // 8)
