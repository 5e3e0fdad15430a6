"""Tables as the plan promises them: its columns in its order and types, strings as indices into a
dictionary, no NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import dtype_name, field_type, is_list, is_uuid, kind_of, leaf_type, plain_type
from tasks.core.schema import Schema, check_storable
from tasks.engines.algorithms import short_strings
from tasks.engines.algorithms.arrow_arrays import one_array
from tasks.engines.algorithms.text_casts import parse_text
from tasks.engines.convert.python_values import to_python_list
from tasks.engines.convert.type_widening import check_range
from tasks.engines.hashing.canonical import decimal_floats
from tasks.errors import DataError

STRINGS = pa.dictionary(pa.int32(), pa.string())
ONE_CHUNK_BYTES = 2**30  # of strings: half of what one chunk can hold


def to_carried_type(dtype: pa.DataType) -> pa.DataType:
    """The type that a table carries for a column of this type: a dictionary for strings, else the type itself."""
    return STRINGS if pa.types.is_string(dtype) else dtype


class MisfitError(DataError):
    """Values of a column do not fit the type of the plan; `column` is its name."""

    column = ""


def conform(table: pa.Table, schema: pa.Schema, plain: Collection[str] = ()) -> pa.Table:
    """The table with columns, order and carried types of `schema`; a DataError names the column that does not fit.

    Of the columns `plain` those that are plain strings stay so.
    """
    check_storable(schema)
    left = {name for name in plain if table.schema.field(name).type == schema.field(name).type == pa.string()}
    columns = {f.name: table.column(f.name) if f.name in left else fit_column(table.column(f.name), f) for f in schema}
    if not columns:
        return table.select([])
    types = [(f.name, f.type if f.name in left else to_carried_type(f.type)) for f in schema]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(types))


def concatenate_tables(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The tables one after another, in the types of the schema; their rows also where it has no columns."""
    if not schema.names:
        return pa.table({"": pa.nulls(sum(table.num_rows for table in tables))}).select([])
    return conform(pa.concat_tables([conform(table, schema) for table in tables]), schema)


def with_distinct_values(table: pa.Table) -> pa.Table:
    """The table with each value once in its dictionaries, and null in none."""
    for number, field in enumerate(table.schema):
        column = table.column(number)
        decoded = decode_repeated_values(column)
        if decoded is not column:
            table = table.set_column(number, field.name, decoded)
    return table


def decode_repeated_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode dictionaries that hold a value twice, or null; leave all other columns as they are.

    Arrow allows both in what others made. A place in the dictionary would then be taken for a value.
    """
    if not pa.types.is_dictionary(column.type) or all(map(_is_distinct, column.chunks)):
        return column
    return pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks])


def _is_distinct(values: pa.DictionaryArray) -> bool:
    """Whether that is known at no more cost than a look at each of the values."""
    known = values.dictionary
    return not known.null_count and len(known) <= len(values) and len(known.unique()) == len(known)


def fit_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """The column in the type that tables carry for the field's; a MisfitError names the field."""
    try:
        return conform_column(column, field.type)
    except (pa.ArrowException, ValueError, TypeError) as error:
        misfit = MisfitError(
            f"column {field.name!r} of type {dtype_name(plain_type(column.type))} "
            f"does not fit {dtype_name(field.type)}",
            why=str(error).split("\n")[0],
            do="fix the values, or give the column another type in source.schema; if it was fitted, fit again",
        )
        misfit.column = field.name
        raise misfit from None


def first_fraction(column: pa.ChunkedArray, dtype: pa.DataType) -> tuple[int, str] | None:
    """(place, value) of the first number that an integer type does not hold; None where it holds all."""
    if not pa.types.is_integer(dtype) or not (pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        return None
    for place, value in enumerate(column.to_pylist()):
        try:
            if value is not None and value == value:
                pa.scalar(value, column.type).cast(dtype)
                if isinstance(value, float):
                    check_whole(pa.array([value]))
        except pa.ArrowInvalid:
            return place, str(value)
    return None


def check_whole(values: pa.Array | pa.ChunkedArray) -> None:
    """pa.ArrowInvalid for floats beyond 2^53, each of which may stand for several whole numbers."""
    bounds = pc.min_max(values)
    if bounds["max"].as_py() is not None and max(-bounds["min"].as_py(), bounds["max"].as_py()) > 2**53:
        ends = f"values from {bounds['min']} to {bounds['max']}"
        raise pa.ArrowInvalid(f"{ends}: a float beyond 2^53 may stand for several whole numbers")


def is_carried(here: pa.DataType, dtype: pa.DataType) -> bool:
    """Whether tables carry each column of the type `here` as it is for `dtype`: `conform_column` then does nothing."""
    return here == to_carried_type(dtype) and here != STRINGS and not pa.types.is_floating(leaf_type(here))


def conform_column(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    """One column in the type that tables carry for `dtype`."""
    target = to_carried_type(dtype)
    if column.type == target and target != STRINGS:
        return nans_to_nulls(column)
    here = plain_type(column.type)
    if kind_of(here) == "time" and (kind_of(dtype) == "number" or (pa.types.is_duration(here) and target == STRINGS)):
        raise pa.ArrowInvalid("the number of a time depends on its unit: read it as it is, and cast it in a Lambda")
    if target == STRINGS and pa.types.is_nested(here):
        column = pa.chunked_array([json_texts(chunk, here) for chunk in column.cast(here).chunks], pa.string())
    elif is_list(target) and pa.types.is_string(here):
        column = lists_in(column.cast(here), target)
    if isinstance(leaf_type(column.type), pa.BaseExtensionType):
        column = pa.chunked_array([_to_storage_values(chunk) for chunk in column.chunks] or [pa.array([], target)])
    if target == STRINGS:
        column = _as_strings(column)
    elif column.type != target:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
            lists = [_lists(chunk, chunk.flatten()) for chunk in column.chunks]  # Arrow's cast lacks the last offset
            column = pa.chunked_array(lists or [pa.array([], target)])
        if pa.types.is_decimal(column.type) and pa.types.is_floating(target):
            column = pa.chunked_array([decimal_floats(chunk) for chunk in column.chunks], pa.float64())
        check_range(column, target)
        if pa.types.is_floating(column.type) and pa.types.is_integer(target):
            column = nans_to_nulls(column)
            check_whole(column)
        column = column.cast(target)
    return nans_to_nulls(column)


def with_fields(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """The table with columns of those names that are paths of fields of its structs; other names are passed over."""
    present = {*table.column_names}
    missing = [name for name in names if name not in present]
    if not missing:
        return table
    schema = Schema.from_arrow(table.schema)
    for name in missing:
        if (root := schema.root(name)) is not None:
            column = table.column(root).cast(schema[root].dtype)
            chunks = [_field(chunk, name[len(root) + 1 :]) for chunk in column.chunks]
            table = table.append_column(name, pa.chunked_array(chunks, schema[name].dtype))
    return table


def _field(array: pa.Array, path: str) -> pa.Array:
    """The values at the path of a struct, null where a struct on the way is."""
    if is_list(array.type):
        return _lists(array, _field(array.flatten(), path))
    if pa.types.is_null(array.type):
        return array
    for place, field in enumerate(array.type):
        values = pc.struct_field(array, [place])
        if path == field.name:
            return values
        if path.startswith(f"{field.name}.") and field_type(field.type, path[len(field.name) + 1 :]):
            return _field(values, path[len(field.name) + 1 :])
    raise ValueError(f"there is no field {path}")


class NoListError(pa.ArrowInvalid):
    """A text is not a list of numbers: the text, and its row."""

    def __init__(self, text: str, row: int) -> None:
        super().__init__(f"{text!r} is not a list of numbers, such as [0.5, 1.5] or 1|2|3")
        self.text = text
        self.row = row


def lists_in(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    """The lists of numbers that texts write; NoListError for another text."""
    if kind_of(dtype.value_type) != "number":
        raise pa.ArrowInvalid("texts are read as lists of numbers alone; a Lambda makes others: split(x, '|')")
    texts = column.combine_chunks()
    lists = parse_text(texts, dtype)
    if lists.null_count > texts.null_count:
        row = pc.index(pc.and_not(lists.is_null(), texts.is_null()), pa.scalar(True)).as_py()
        raise NoListError(texts[row].as_py(), row)
    return pa.chunked_array([lists])


def json_texts(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Structs, maps and lists as JSON: times and decimals as texts, NaN and infinities as null.

    >>> json_texts(pa.array([{"a": 1, "b": ["x"]}, None]), pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}))[0]
    <pyarrow.StringScalar: '{"a": 1, "b": ["x"]}'>
    """
    values = [_json_value(value, dtype) for value in to_python_list(array)]
    texts = [None if value is None else json.dumps(value, default=str, ensure_ascii=False) for value in values]
    return pa.array(texts, pa.string())


def _json_value(value: Any, dtype: pa.DataType) -> object:
    """A value as JSON has it."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if pa.types.is_struct(dtype):
        return {field.name: _json_value(value[field.name], field.type) for field in dtype}
    if pa.types.is_map(dtype):
        return {str(key): _json_value(item, dtype.item_type) for key, item in value}
    return [_json_value(item, dtype.value_type) for item in value] if is_list(dtype) else value


def _to_storage_values(array: pa.Array) -> pa.Array:
    """Extension values, also in lists, as they are stored: UUIDs as texts."""
    if is_list(array.type):
        return _lists(array, _to_storage_values(array.flatten()))
    return _uuid_texts(array.storage) if is_uuid(array.type) else array.storage


def _uuid_texts(array: pa.FixedSizeBinaryArray) -> pa.DictionaryArray:
    """UUIDs as RFC 9562 writes them: 8-4-4-4-12 hexadecimal digits."""
    encoded = array.dictionary_encode()
    values = encoded.dictionary
    data = np.frombuffer(values.buffers()[1], np.uint8)[16 * values.offset : 16 * (values.offset + len(values))]
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    texts = np.full((len(values), 36), ord("-"), np.uint8)
    places = [i for i in range(36) if i not in (8, 13, 18, 23)]
    texts[:, places[::2]], texts[:, places[1::2]] = (digits[half].reshape(-1, 16) for half in (data >> 4, data & 15))
    offsets = 36 * np.arange(len(values) + 1, dtype=np.int32)
    strings = pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(texts))
    return pa.DictionaryArray.from_arrays(encoded.indices, strings)


def _as_strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        column = _encode_strings(column.cast(pa.string()))
    elif column.type != STRINGS:
        column = column.cast(STRINGS)
    if column.num_chunks > 1:  # in one chunk: the next who unifies would go through a dictionary again for each
        chunks = column.unify_dictionaries().chunks
        indices = pa.concat_arrays([chunk.indices for chunk in chunks])
        column = pa.chunked_array([pa.DictionaryArray.from_arrays(indices, chunks[0].dictionary)])
    return column


def _encode_strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dictionary-encode strings, in one chunk where it can hold them.

    Arrow gives each chunk a dictionary of all values up to there, whose time and memory grow with the square of their
    number.
    """
    if column.nbytes > ONE_CHUNK_BYTES:
        return column.dictionary_encode()
    strings = one_array(column)
    width = short_strings.measure_width(strings)
    return pa.chunked_array([short_strings.encode(strings, width) if width else strings.dictionary_encode()])


def infinite_columns(table: pa.Table) -> list[str]:
    """The columns of floats, or of lists of them, with an infinite value: of a text it may be a number too large."""
    return [f.name for f in table.schema if pa.types.is_floating(leaf_type(f.type)) and _is_infinite(table[f.name])]


def _is_infinite(values: pa.ChunkedArray) -> bool:
    while is_list(values.type):
        values = pc.list_flatten(values)
    bounds = pc.min_max(values)
    return np.inf in (bounds["max"].as_py(), -(bounds["min"].as_py() or 0))


def nans_to_nulls(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """NaN becomes null, also among the elements of a list; the same column if there is none."""
    if not pa.types.is_floating(leaf_type(column.type)) or not any(_has_nan(chunk) for chunk in column.chunks):
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
    """Lists of the elements, with the lengths and nulls of the lists of the array."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=pa.list_(values.type), mask=mask)
