"""The least and the greatest value of columns in each row group, as footers say them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FLOATS = (pa.float32(), pa.float64())
TEXTS = (pa.string(), pa.large_string())


@dataclass(frozen=True)
class Bounds:
    """One value for each row group, null where the footer names none. Texts may be cut: still no value is beyond."""

    least: pa.Array
    greatest: pa.Array


def bounds_of(footer: pq.FileMetaData, schema: pa.Schema, names: Collection[str]) -> dict[str, Bounds]:
    """The bounds of these columns, as far as their types have an order that footers and filters share."""
    places = {footer.schema.column(i).path: i for i in range(len(footer.schema))}
    bounds = {}
    for name in names:
        if name not in places or schema.get_field_index(name) < 0:  # also -1 of a name that stands twice
            continue
        dtype = schema.field(name).type
        if not is_ordered(dtype):
            continue
        pairs = [_pair(footer.row_group(group).column(places[name]), dtype) for group in range(footer.num_row_groups)]
        bounds[name] = Bounds(_array([low for low, _ in pairs], dtype), _array([high for _, high in pairs], dtype))
    return bounds


def is_ordered(dtype: pa.DataType) -> bool:
    """Whether values of a type are compared by footers as by filters."""
    plain = dtype in TEXTS or dtype in FLOATS or dtype == pa.date32()
    return plain or pa.types.is_integer(dtype) or (pa.types.is_timestamp(dtype) and dtype.unit != "s")


def _pair(chunk: pq.ColumnChunkMetaData, dtype: pa.DataType) -> tuple[Any, Any]:
    """(least, greatest) of a chunk as stored; (None, None) where they are not known."""
    shown = chunk.statistics
    if shown is None or not shown.has_min_max or chunk.physical_type == "INT96":
        return None, None
    pair = shown.min_raw, shown.max_raw
    if dtype in FLOATS and any(math.isnan(value) for value in pair):
        return None, None
    if pa.types.is_unsigned_integer(dtype):  # stored as signed numbers of 32 or 64 bits
        pair = pair[0] % 2**dtype.bit_width, pair[1] % 2**dtype.bit_width
    if dtype not in TEXTS:
        return pair
    try:
        return pair[0].decode(), pair[1].decode()
    except UnicodeDecodeError:  # cut within a letter
        return None, None


def _array(values: list[Any], dtype: pa.DataType) -> pa.Array:
    if dtype == pa.date32():
        return pa.array(values, pa.int32()).cast(dtype)
    return pa.array(values, pa.int64()).cast(dtype) if pa.types.is_timestamp(dtype) else pa.array(values, dtype)
