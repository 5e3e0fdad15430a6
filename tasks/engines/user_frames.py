"""Reads frames of users for a workflow, and returns results as the same kind of frame with the same index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tasks.core.schema import check_names
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.convert.libraries import columns_of, from_any, library
from tasks.engines.types import Array, DataFrame, Index
from tasks.errors import DataError

Restore = Callable[[dict[str, Any], Kernels, Any], Any]


def open_frame(frame: Any, needed: list[str] | None = None) -> tuple[pa.Table, str, Restore]:
    """(the columns of the frame as a table, the engine for it, a function that turns output columns into such a frame).

    `needed` are the columns to read. A pandas or cuDF frame may lack one of them: the caller refuses it, and checks the
    names of the table.
    """
    kind = library(frame)
    if kind in ("pandas", "cudf") and hasattr(frame, "columns"):  # a Series is not a frame
        index = frame.index
        chosen = list(frame.columns) if needed is None else [n for n in needed if n in frame.columns]
        if needed and len(chosen) < len(needed):  # pandas names columns by any object, such as numbers
            named = {str(name): name for name in frame.columns}
            chosen = [named[name] for name in needed if name in named]
        if not frame.columns.is_unique:
            check_names([str(name) for name in frame.columns if name in {*chosen}], "the given frame")
        table = columns_of(frame, chosen)
        return table, kind, lambda columns, kernels, rows: _with_index(kernels.user_frame(columns), index, rows)
    table = from_any(frame)
    if table is None:
        raise DataError(
            f"a workflow cannot transform {type(frame).__name__}", do="give a Dataset, or a pandas, Arrow or cuDF frame"
        )
    return table, "pandas", _make_table


def _make_table(columns: dict[str, Any], kernels: Kernels, rows: Array | None) -> pa.Table:
    return pa.table({name: kernels.host(column) for name, column in columns.items()})


def _with_index(frame: DataFrame, index: Index, rows: Array | None) -> DataFrame:
    """The frame with the index of its input rows; `rows` are those left (None: all). Grouped rows keep a new index."""
    if rows is not None:
        frame.index = index.take(rows.astype("int64"))
    elif len(frame) == len(index):
        frame.index = index
    return frame
