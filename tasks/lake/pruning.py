"""Which data files of a table may have rows for the filter of a source, by what the metadata says of their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tasks.core.dtypes import plain_type
from tasks.core.settings import Source
from tasks.engines.expression.syntax import parse
from tasks.sources.formats.parquet_bounds import Bounds, is_ordered
from tasks.sources.row_group_filter import may_pass


def choose_files(
    source: Source, schema: pa.Schema, count: int, bounds_of: Callable[[str, pa.DataType], Bounds | None]
) -> np.ndarray:
    """Tell for each of `count` files whether it may have rows for the filter; one may at least, which has the columns.

    The conditions are those that also leave out row groups, so that a file is opened unless its rows would fail them.
    `bounds_of` gives the bounds of a column in all files; None where the metadata says nothing of it. Columns that
    `source.schema` changes do not decide, nor does a filter of what lists become.
    """
    parts = parse(source.filter).conjuncts if source.filter and not source.explode else []
    changed = source.schema_ or {}
    named = {name for part in parts for name in part.columns if name in schema.names and name not in changed}
    types = {name: plain_type(schema.field(name).type) for name in named}
    known = {name: bounds_of(name, dtype) for name, dtype in types.items() if is_ordered(dtype)}
    bounds: Mapping[str, Bounds] = {name: pair for name, pair in known.items() if pair is not None}
    chosen = may_pass(parts, bounds, count)
    if count and not chosen.any():
        chosen[0] = True
    return chosen


def as_bounds(least: Sequence[object], greatest: Sequence[object], dtype: pa.DataType) -> Bounds:
    """Make bounds of values as the metadata stores them: days and times as numbers since 1970; None: not known."""
    return Bounds(to_arrow(least, dtype), to_arrow(greatest, dtype))


def to_arrow(values: Sequence[object], dtype: pa.DataType) -> pa.Array:
    """Convert values of the metadata to Arrow.

    >>> to_arrow([20758, None], pa.date32()).to_pylist()
    [datetime.date(2026, 11, 1), None]
    """
    if pa.types.is_date32(dtype) or pa.types.is_time32(dtype):
        return pa.array(values, pa.int32()).cast(dtype)
    if pa.types.is_timestamp(dtype) or pa.types.is_time64(dtype):
        return pa.array(values, pa.int64()).cast(dtype)
    return pa.array(values, dtype)


def to_texts(values: pa.Array) -> list[str | None]:
    """Write values as texts from which Arrow makes them again (`tasks.sources.table_files.constant`)."""
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts
