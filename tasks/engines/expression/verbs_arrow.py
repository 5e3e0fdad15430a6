"""The engine-specific verbs of expressions, for pandas columns of Arrow types: conversions and strings.

A text is an Arrow string array without dictionary encoding, a literal text a Python str. `verbs_cudf` has the same
functions for cuDF.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import plain_type
from tasks.engines.algorithms.arrow_arrays import find_valid_rows
from tasks.engines.cpu import columns
from tasks.engines.cpu.columns import Column
from tasks.engines.cpu.groups import hash_columns
from tasks.engines.expression.type_families import family
from tasks.engines.expression.verbs_numbers import Flat, nan_to_null
from tasks.engines.hashing.canonical import raw_values
from tasks.engines.types import Series

xp: ModuleType = np
_COMPARE = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


def arrow_type(column: Series | pa.Array) -> pa.DataType:
    """The plain Arrow type of a column."""
    if isinstance(column, pa.Array):
        return plain_type(column.type)
    dtype = getattr(column, "dtype", None)
    return plain_type(dtype.pyarrow_dtype if isinstance(dtype, pd.ArrowDtype) else columns.array(column).type)


def array(column: Series | pa.Array) -> pa.Array:
    """The column as one Arrow array of its plain type."""
    values = columns.array(column)
    return values if values.type == plain_type(values.type) else values.cast(plain_type(values.type))


def decode_column(column: Column) -> Column:
    """The column without dictionary encoding."""
    return columns.decode(column)


def flat(column: Column, dtype: pa.DataType) -> Flat:
    """A column of numbers, booleans or times as a Flat; NaN is null."""
    return from_arrow(array(column), dtype)


def from_arrow(arrow: pa.Array, dtype: pa.DataType) -> Flat:
    """An Arrow array of numbers, booleans or times as a Flat; NaN is null."""
    values = raw_values(arrow)
    if family(dtype) == "time":
        values = values.astype(np.int64, copy=False)
    return nan_to_null(Flat(values, find_valid_rows(arrow)), np)


def to_arrow(value: Flat | Column | pa.Array, dtype: pa.DataType, rows: int) -> pa.Array:
    """A Flat, a text or a column as an Arrow array in host memory."""
    if isinstance(value, pa.Array):
        return value
    if not isinstance(value, Flat):
        return array(value)
    values = _repeat_to(rows, value.values)
    mask = None if value.valid is None else ~_repeat_to(rows, value.valid)
    if family(dtype) == "time":
        stored = pa.int32() if pa.types.is_date32(dtype) else pa.int64()
        return pa.array(values.astype(stored.to_pandas_dtype()), mask=mask).view(dtype)
    return pa.array(values, dtype, mask=mask, from_pandas=False)


def _repeat_to(rows: int, values: np.ndarray) -> np.ndarray:
    """An array of one number or of `rows` numbers, with `rows` numbers."""
    return values if len(values) == rows else np.broadcast_to(values, (rows,))


def column(value: Flat | Column | pa.Array, dtype: pa.DataType, like: Column) -> Column:
    """The result as a column of exactly this type: a pandas Series with the index of `like`, if that is one."""
    arrow = to_arrow(value, dtype, len(like))
    if isinstance(like, pa.Array):
        return arrow
    return pd.Series(pd.arrays.ArrowExtensionArray(arrow), index=getattr(like, "index", None), copy=False)


def text(column: Column) -> pa.Array:
    return array(column)


def text_from_arrow(arrow: pa.Array) -> pa.Array:
    return arrow


def nested_from_arrow(arrow: pa.Array) -> pa.Array:
    """Lists as the column that later steps take."""
    return arrow


def hash_column(column: Column, seed: int, whole: bool) -> np.ndarray:
    """MurmurHash3_x86_32 of each row, uint32; with `whole`, of whole floats as integers."""
    return hash_columns([column], seed, whole)


def literal_text(value: str | None, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), rows)


def is_null(value: pa.Array) -> np.ndarray:
    return array(value).is_null().to_numpy(zero_copy_only=False)


def text_compare(verb: str, a: pa.Array | str, b: pa.Array | str) -> Flat:
    return from_arrow(getattr(pc, _COMPARE[verb])(a, b), pa.bool_())


def text_in(a: pa.Array, items: list[str]) -> Flat:
    is_item = pc.is_in(a, value_set=pa.array(items, pa.string())).to_numpy(zero_copy_only=False)
    return Flat(is_item, find_valid_rows(a))


def lower(a: pa.Array) -> pa.Array:
    return pc.utf8_lower(a)


def upper(a: pa.Array) -> pa.Array:
    return pc.utf8_upper(a)


def length(a: pa.Array) -> Flat:
    return from_arrow(pc.utf8_length(a).cast(pa.int64()), pa.int64())


def list_length(value: Column | pa.Array) -> Flat:
    return from_arrow(pc.list_value_length(array(value)).cast(pa.int64()), pa.int64())


def contains(a: pa.Array, pattern: str) -> Flat:
    return from_arrow(pc.match_substring(a, pattern), pa.bool_())


def startswith(a: pa.Array, pattern: str) -> Flat:
    return from_arrow(pc.starts_with(a, pattern), pa.bool_())


def join(a: pa.Array | str, b: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*(pa.scalar(s) if isinstance(s, str) else s for s in (a, b)), "")


def text_where(condition: Flat, a: pa.Array, b: pa.Array, rows: int) -> pa.Array:
    return pc.if_else(to_arrow(condition, pa.bool_(), rows), a, b)
