"""cuDF's DataFrames from and to libcudf's columns, without a Series for each: that takes longer than most kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cudf
import pylibcudf as plc

from tasks.engines.gpu.columns import rebuilt
from tasks.engines.gpu.kernels.column_arrays import Marked, is_plain


def parts_of(table: cudf.DataFrame) -> list[plc.Column]:
    """The columns of a table."""
    return list(table.to_pylibcudf()[0].columns())


def make_frame(names: Sequence[str], columns: Sequence[plc.Column], like: Callable[[str], Marked]) -> cudf.DataFrame:
    """A table of columns; `like(name)` has the type and the name that `rebuilt` needs for other than plain ones."""
    if all(is_plain(column) for column in columns):
        return cudf.DataFrame.from_pylibcudf(plc.Table(list(columns)), {"columns": list(names)})
    return cudf.DataFrame({n: rebuilt(c, like(n)) for n, c in zip(names, columns, strict=True)})


def make_frame_like(table: cudf.DataFrame, columns: Sequence[plc.Column]) -> cudf.DataFrame:
    """Other rows of a table, or rows like its own, as a table of the same names and types."""
    return make_frame(list(table), columns, table.__getitem__)
