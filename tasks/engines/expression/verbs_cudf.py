"""The engine-specific verbs of expressions, for cuDF Series: conversions and strings.

A text is a Series of strings with a plain index, a literal text a Python str. Nulls are handled apart from values, so
that nothing depends on how cuDF's string methods treat them. Where cuDF and Arrow differ (letters beyond ASCII, casts
of text), Arrow computes on the host. Needs a GPU: imported only for cuDF Series.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import cudf
import cupy
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.convert.gpu_types import is_foreign, mark_of, stand_in
from tasks.engines.expression.type_families import family
from tasks.engines.expression.verbs_numbers import COMPARISONS, Flat, nan_to_null
from tasks.engines.gpu.columns import column as from_host
from tasks.engines.gpu.columns import device, from_pylibcudf
from tasks.engines.gpu.groups import hash_columns
from tasks.engines.gpu.kernels import canonical_cudf
from tasks.engines.gpu.kernels.canonical_cudf import TICKS_PER_DAY
from tasks.engines.gpu.text import concat_texts

xp: ModuleType = cupy
LARGE = 2**31 - 1  # bytes of texts that Arrow's type string holds in one array


def arrow_type(column: cudf.Series) -> pa.DataType:
    """The Arrow type of a column, which its name marks if cuDF lacks the type (dates, and types with stand-ins)."""
    return pa.date32() if column.name == str(pa.date32()) else canonical_cudf.type_of_series(column)


def decode_column(column: cudf.Series) -> cudf.Series:
    """The column itself: `to_arrow` decodes categories."""
    return column


def flat(column: cudf.Series, dtype: pa.DataType) -> Flat:
    """A column of numbers, booleans or times as a Flat; NaN is null."""
    values, valid = canonical_cudf.raw_values(column, dtype)
    return nan_to_null(Flat(values, valid), cupy)


def from_arrow(arrow: pa.Array, dtype: pa.DataType) -> Flat:
    return flat(cudf.Series.from_arrow(stand_in(arrow) if is_foreign(arrow.type) else arrow), dtype)


def to_arrow(value: Flat | cudf.Series, dtype: pa.DataType, rows: int) -> pa.Array:
    """A Flat, a text or a column as an Arrow array in host memory; texts of more than 2 GiB as large_string."""
    series = _series(value, dtype, rows) if isinstance(value, Flat) else canonical_cudf.decode_categories(value)
    arrow = series.to_arrow()
    if pa.types.is_decimal(dtype) or (pa.types.is_large_string(arrow.type) and arrow.nbytes > LARGE):
        return arrow
    if pa.types.is_timestamp(arrow.type) and pa.types.is_date32(dtype):
        return arrow.cast(pa.date32())
    return arrow if arrow.type == dtype else arrow.cast(dtype)


def _series(value: Flat, dtype: pa.DataType, rows: int) -> cudf.Series:
    """A Flat as a Series of the type that cuDF has for it."""
    values = cupy.ascontiguousarray(cupy.broadcast_to(value.values, (rows,)))
    if pa.types.is_date32(dtype):
        values = values * TICKS_PER_DAY["s"]
    series = cudf.Series(values)
    if value.valid is not None:
        series = series.where(cupy.ascontiguousarray(cupy.broadcast_to(value.valid, (rows,))))
    if is_foreign(dtype):  # times in a zone that cuDF lacks
        return series
    if family(dtype) == "time":
        series = series.astype(f"datetime64[{'s' if pa.types.is_date32(dtype) else dtype.unit}]")
        if getattr(dtype, "tz", None) is not None:
            series = series.dt.tz_localize("UTC").dt.tz_convert(dtype.tz)
    return series


def column(value: Flat | cudf.Series, dtype: pa.DataType, like: cudf.Series) -> cudf.Series:
    """The result as a cuDF Series of exactly this type (a date as a timestamp), with the index of `like`."""
    series = _series(value, dtype, len(like)) if isinstance(value, Flat) else value.copy(deep=False)
    series.index = like.index
    series.name = mark_of(dtype) if isinstance(value, Flat) else series.name
    return series


def text(column: cudf.Series) -> cudf.Series:
    return canonical_cudf.decode_categories(column).reset_index(drop=True)


def text_from_arrow(arrow: pa.Array) -> cudf.Series:
    return cudf.Series.from_arrow(arrow)


def nested_from_arrow(arrow: pa.Array) -> cudf.Series:
    """Lists as the column that later steps take, with the mark of their type where cuDF lacks it."""
    return from_host(arrow)


def hash_column(column: cudf.Series, seed: int, whole: bool) -> cupy.ndarray:
    """MurmurHash3_x86_32 of each row, uint32; with `whole`, of whole floats as integers."""
    return hash_columns([column], seed, whole)


def literal_text(value: str | None, rows: int) -> cudf.Series:
    return text_from_arrow(pa.array([value], pa.string())).repeat(rows).reset_index(drop=True)


def is_null(value: cudf.Series) -> cupy.ndarray:
    return value.isnull().values


def _valid(series: cudf.Series) -> cupy.ndarray | None:
    return series.notna().values if series.null_count else None


def _fill_with_empty_text(series: cudf.Series) -> cudf.Series:
    """The texts with "" in place of nulls."""
    return series.fillna("") if series.null_count else series


def text_compare(verb: str, a: cudf.Series | str, b: cudf.Series | str) -> Flat:
    valid: cupy.ndarray | None = None
    sides: list[Any] = []
    for side in (a, b):
        if not isinstance(side, str):
            here = _valid(side)
            side = _fill_with_empty_text(side)
            valid = here if valid is None else valid if here is None else valid & here
        sides.append(side)
    return Flat(COMPARISONS[verb](*sides).astype("bool").values, valid)


def text_in(a: cudf.Series, items: list[str]) -> Flat:
    return Flat(_fill_with_empty_text(a).isin(items).values, _valid(a))


def _is_ascii(a: cudf.Series) -> bool:
    filled = _fill_with_empty_text(a)
    return bool((filled.str.byte_count().values == filled.str.len().values).all())


def lower(a: cudf.Series) -> cudf.Series:
    return a.str.lower() if _is_ascii(a) else text_from_arrow(pc.utf8_lower(to_arrow(a, pa.string(), len(a))))


def upper(a: cudf.Series) -> cudf.Series:
    return a.str.upper() if _is_ascii(a) else text_from_arrow(pc.utf8_upper(to_arrow(a, pa.string(), len(a))))


def length(a: cudf.Series) -> Flat:
    return Flat(_fill_with_empty_text(a).str.len().astype("int64").values, _valid(a))


def list_length(value: cudf.Series) -> Flat:
    return Flat(value.list.len().fillna(0).astype("int64").values, _valid(value))


def contains(a: cudf.Series, pattern: str) -> Flat:
    if not pattern:
        return Flat(cupy.ones(len(a), dtype=bool), _valid(a))
    return Flat(_fill_with_empty_text(a).str.contains(pattern, regex=False).astype("bool").values, _valid(a))


def startswith(a: cudf.Series, pattern: str) -> Flat:
    if not pattern:
        return Flat(cupy.ones(len(a), dtype=bool), _valid(a))
    return Flat(_fill_with_empty_text(a).str.startswith(pattern).astype("bool").values, _valid(a))


def join(a: cudf.Series | str, b: cudf.Series | str) -> cudf.Series:
    rows = len(b) if isinstance(a, str) else len(a)
    sides = [literal_text(side, rows) if isinstance(side, str) else side for side in (a, b)]
    return from_pylibcudf(concat_texts([device(side) for side in sides], ""))


def text_where(condition: Flat, a: cudf.Series, b: cudf.Series, rows: int) -> cudf.Series:
    chosen = a.where(cupy.ascontiguousarray(cupy.broadcast_to(condition.values, (rows,))), b)
    if condition.valid is None:
        return chosen
    return chosen.where(cupy.ascontiguousarray(cupy.broadcast_to(condition.valid, (rows,))))
