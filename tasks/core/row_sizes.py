"""How many bytes a row takes, from its schema."""

from __future__ import annotations

import pyarrow as pa

from tasks.core.dtypes import is_list
from tasks.core.schema import Schema

VARYING = {"string": 24, "list": 64, "other": 64}  # bytes assumed for a value whose width the type does not tell
POSITION = 8


def row_bytes(schema: Schema) -> int:
    """About how many bytes a row of the output takes in memory, its position included."""
    return POSITION + sum(_value_bytes(c.dtype, c.kind) for c in schema.columns)


def _value_bytes(dtype: pa.DataType, kind: str) -> int:
    if is_list(dtype) or kind not in ("number", "bool", "time"):
        return VARYING.get(kind, VARYING["other"])
    return max(1, dtype.bit_width // 8)
