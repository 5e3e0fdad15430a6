"""The types that the columns of an output have in its files."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.orc as orc

from tasks.core.dtypes import plain_type
from tasks.core.schema import Schema
from tasks.core.settings import Output


def to_stored_schema(schema: Schema, output: Output) -> Schema:
    """The columns as readers of the files find them: ORC has times in nanoseconds, in UTC or of no zone, and bytes of
    any length. Columns that name folders are in no file."""
    if output.format != "orc":
        return schema
    inside = (c if c.name in output.partition_on else replace(c, dtype=_in_orc(c.dtype)) for c in schema.columns)
    return Schema(inside)


@lru_cache(maxsize=4096)
def _in_orc(dtype: pa.DataType) -> pa.DataType:
    """The types that ORC stores for these columns, from a file without rows."""
    sink = pa.BufferOutputStream()
    orc.write_table(pa.schema([("x", dtype)]).empty_table(), sink)
    return plain_type(orc.ORCFile(pa.BufferReader(sink.getvalue())).schema.field("x").type)
