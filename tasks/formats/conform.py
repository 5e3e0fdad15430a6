"""Tables as the plan promises them: its columns in its order and types, strings as indices into a
dictionary, no NaN.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import DataError
from tasks.schema import dtype_name, is_list, plain_type

STRINGS = pa.dictionary(pa.int32(), pa.string())


def carried_type(dtype: pa.DataType) -> pa.DataType:
    """The type that a table carries for a column of this type: a dictionary for strings, else the type itself."""
    return STRINGS if pa.types.is_string(dtype) else dtype


def conform(table: pa.Table, schema: pa.Schema, plain: Collection[str] = ()) -> pa.Table:
    """The table with columns, order and carried types of `schema`; a DataError names the column that does not fit.

    Of the columns `plain` those that are plain strings stay so.
    """
    left = {name for name in plain if table.schema.field(name).type == schema.field(name).type == pa.string()}
    columns = {f.name: table.column(f.name) if f.name in left else _fitting(table.column(f.name), f) for f in schema}
    if not columns:
        return table.select([])
    types = [(f.name, f.type if f.name in left else carried_type(f.type)) for f in schema]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(types))


def _fitting(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return conform_column(column, field.type)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise DataError(
            f"column {field.name!r} of type {dtype_name(plain_type(column.type))} "
            f"does not fit {dtype_name(field.type)}",
            why=str(error).split("\n")[0],
            do="mend the values, or give the column another type: in source.schema, and fit again where it was fitted",
        ) from None


def conform_column(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    """One column in the type that tables carry for `dtype`."""
    target = carried_type(dtype)
    if target == STRINGS:
        column = _as_strings(column)
    elif column.type != target:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
            column = pa.chunked_array([_lists(a, a.flatten()) for a in column.chunks], target)  # Arrow casts them wrong
        column = column.cast(target)
    return nans_to_nulls(column)


def _as_strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    elif column.type != STRINGS:
        column = column.cast(STRINGS)
    if column.num_chunks > 1:
        column = column.unify_dictionaries()
    return column


def nans_to_nulls(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """NaN becomes null, also among the elements of a list; the same column if there is none."""
    leaf = column.type
    while is_list(leaf):
        leaf = leaf.value_type
    if not pa.types.is_floating(leaf) or not any(_has_nan(chunk) for chunk in column.chunks):
        return column
    return pa.chunked_array([_without_nan(chunk) for chunk in column.chunks], column.type)


def _has_nan(array: pa.Array) -> bool:
    if is_list(array.type):
        return _has_nan(array.flatten())
    if array.null_count == 0 and not pa.types.is_float16(array.type):
        values = array.to_numpy(zero_copy_only=False)
        return bool(len(values)) and bool(np.isnan(values.min()))  # min is NaN as soon as one value is
    return bool(pc.any(pc.is_nan(array)).as_py())


def _without_nan(array: pa.Array) -> pa.Array:
    if not is_list(array.type):
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    return _lists(array, _without_nan(array.flatten())).cast(array.type)


def _lists(array: pa.Array, values: pa.Array) -> pa.ListArray:
    """Lists as long as those of the array, of these elements."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=pa.list_(values.type), mask=mask)
