"""Arrow types and their names: parsed, written, told apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import accumulate

import pyarrow as pa

from tasks.errors import JobError, near


def is_list(dtype: pa.DataType) -> bool:
    return isinstance(dtype, (pa.ListType, pa.LargeListType, pa.FixedSizeListType))


def leaf_type(dtype: pa.DataType) -> pa.DataType:
    return leaf_type(dtype.value_type) if is_list(dtype) else dtype


def field_type(dtype: pa.DataType, path: str) -> pa.DataType | None:
    """The type of a field of a struct, or of the structs in a list, by the names that lead to it; None without it.

    A null has any field.

    >>> field_type(pa.list_(pa.struct({"a": pa.struct({"b": pa.int8()})})), "a.b")
    ListType(list<item: int8>)
    """
    if is_list(dtype):
        leaf = field_type(dtype.value_type, path)
        return None if leaf is None else pa.list_(leaf)
    if pa.types.is_null(dtype):
        return dtype
    for field in dtype if pa.types.is_struct(dtype) else ():
        if path == field.name:
            return field.type
        if path.startswith(f"{field.name}.") and (leaf := field_type(field.type, path[len(field.name) + 1 :])):
            return leaf
    return None


def list_field_paths(dtype: pa.DataType, root: str) -> list[str]:
    """The paths of all fields of a struct, or of the structs in a list, each before its own fields.

    >>> list_field_paths(pa.list_(pa.struct({"a": pa.struct({"b": pa.int8()}), "c": pa.string()})), "events")
    ['events.a', 'events.a.b', 'events.c']
    """
    if is_list(dtype):
        return list_field_paths(dtype.value_type, root)
    paths = []
    for field in dtype if pa.types.is_struct(dtype) else ():
        path = f"{root}.{field.name}"
        paths += [path, *list_field_paths(field.type, path)]
    return paths


_PLAIN_IDS = frozenset(
    dtype.id
    for dtype in (
        *(pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.float32(), pa.float64()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.date32(), pa.timestamp("s"), pa.duration("s"), pa.time32("s"), pa.time64("us"), pa.decimal128(1)),
    )
)


def plain_type(dtype: pa.DataType) -> pa.DataType:
    """The one Arrow type that stands for all encodings of the same values: no dictionaries, views or large offsets.

    A UUID is its text, another extension type what it is stored as. Dates counted in milliseconds are those in days.
    """
    if dtype.id in _PLAIN_IDS:
        return dtype
    if isinstance(dtype, pa.BaseExtensionType):
        return pa.string() if is_uuid(dtype) else plain_type(dtype.storage_type)
    if pa.types.is_dictionary(dtype):
        return plain_type(dtype.value_type)
    if is_list(dtype) or pa.types.is_list_view(dtype) or pa.types.is_large_list_view(dtype):
        return pa.list_(plain_type(dtype.value_type))
    if pa.types.is_struct(dtype):
        return pa.struct([(f.name, plain_type(f.type)) for f in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(plain_type(dtype.key_type), plain_type(dtype.item_type))
    if pa.types.is_decimal32(dtype) or pa.types.is_decimal64(dtype):
        return pa.decimal128(dtype.precision, dtype.scale)
    if pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype):
        return pa.string()
    if pa.types.is_large_binary(dtype) or pa.types.is_binary_view(dtype):
        return pa.binary()
    if pa.types.is_float16(dtype):
        return pa.float32()
    return pa.date32() if pa.types.is_date64(dtype) else dtype


def size_property_of(dtypes: Iterable[pa.DataType]) -> dict[str, int]:
    """The property of a column of lists whose types all have the same length; {} for others.

    >>> size_property_of([pa.list_(pa.int8(), 2)] * 2), size_property_of([pa.list_(pa.int8(), 2), pa.list_(pa.int8())])
    ({'fixed_size': 2}, {})
    """
    sizes = {dtype.list_size if pa.types.is_fixed_size_list(dtype) else None for dtype in dtypes}
    size = sizes.pop() if len(sizes) == 1 else None
    return {"fixed_size": size} if size else {}


def is_uuid(dtype: pa.DataType) -> bool:
    return isinstance(dtype, pa.BaseExtensionType) and dtype.extension_name == "arrow.uuid"


def is_storable(dtype: pa.DataType) -> bool:
    """Whether Parquet has a type for these values: not for intervals, unions and run-end encoded values.

    >>> is_storable(pa.list_(pa.duration("s"))), is_storable(pa.list_(pa.month_day_nano_interval()))
    (True, False)
    """
    if pa.types.is_interval(dtype) or pa.types.is_union(dtype) or pa.types.is_run_end_encoded(dtype):
        return False
    return all(is_storable(dtype.field(i).type) for i in range(dtype.num_fields))


def kind_of(dtype: pa.DataType) -> str:
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "number"
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_dictionary(dtype):
        return "string"
    if pa.types.is_boolean(dtype):
        return "bool"
    if pa.types.is_temporal(dtype):
        return "time"
    return "list" if is_list(dtype) else "other"


def is_bytes(dtype: pa.DataType) -> bool:
    return pa.types.is_binary(dtype) or pa.types.is_fixed_size_binary(dtype)


def dtype_name(dtype: pa.DataType) -> str:
    """The name that `parse_dtype` reads back: int64, string, timestamp[us], list<int32>, decimal128(10, 2) ...

    >>> dtype_name(pa.struct([("a", pa.int8()), ("b, c", pa.map_(pa.string(), pa.float64()))]))
    'struct<a: int8, "b, c": map<string, float64>>'
    """
    if is_list(dtype):
        return f"list<{dtype_name(dtype.value_type)}>"
    if pa.types.is_map(dtype):
        return f"map<{dtype_name(dtype.key_type)}, {dtype_name(dtype.item_type)}>"
    if pa.types.is_struct(dtype):
        named = [f.name if f.name.isidentifier() else json.dumps(f.name) for f in dtype]
        return f"struct<{', '.join(f'{name}: {dtype_name(f.type)}' for name, f in zip(named, dtype, strict=True))}>"
    names = {
        pa.float64(): "float64",
        pa.float32(): "float32",
        pa.float16(): "float16",
        pa.date32(): "date32",
        pa.date64(): "date64",
        pa.bool_(): "bool",
    }
    return names.get(dtype, str(dtype))


def schema_advice(name: str, dtype: pa.DataType | str) -> str:
    """The setting that gives a column a type, or the values of an expression, as a job writes it: in YAML, [ , and
    spaces need quotes.

    >>> schema_advice("x", pa.string()), schema_advice("a, b", pa.timestamp("us"))
    ('source.schema: {x: string}', 'source.schema: {"a, b": "timestamp[us]"}')
    """
    value = dtype if isinstance(dtype, str) else dtype_name(dtype)
    key, value = (text if text.isidentifier() else json.dumps(text, ensure_ascii=False) for text in (name, value))
    return f"source.schema: {{{key}: {value}}}"


def parse_dtype(name: str | pa.DataType) -> pa.DataType:
    """The Arrow type of a name as written in a job; a JobError names near ones."""
    if isinstance(name, pa.DataType):
        return name
    text = name.strip()
    if _depth(text) > MOST_DEPTH:
        what = f"{text[:50]!r} .. is not a type"
        do = f"write at most {MOST_DEPTH} in one another"
        raise JobError(what, why=f"more than {MOST_DEPTH} types are nested", do=do)
    try:
        nested = _NESTED.fullmatch(text)
        return _parse_nested_type(nested[1], nested[2]) if nested else _parse_scalar_type(text)
    except (ValueError, pa.ArrowException) as error:  # a unit, precision or zone that does not exist
        raise JobError(
            f"{name!r} is not a type", why=str(error), do="for example timestamp[us], decimal128(10, 2)"
        ) from None


def is_nested(name: str) -> bool:
    """Whether a text has the form of a type of values in values, such as struct<id: int64>."""
    return _NESTED.fullmatch(name.strip()) is not None


def _depth(text: str) -> int:
    """How many brackets are open at once."""
    return max(accumulate((sign == "<") - (sign == ">") for sign in text), default=0)


MOST_DEPTH = 100  # of lists and structs in each other
_NESTED = re.compile(r"(list|struct|map)<(.*)>", re.DOTALL)
_DECIMAL = re.compile(r"decimal(32|64|128|256)\((\d+), *(-?\d+)\)")
_FIELD = re.compile(r' *("(?:[^"\\]|\\.)*"|\w+) *:', re.DOTALL)


def _parse_nested_type(kind: str, text: str) -> pa.DataType:
    parts = _split_at_commas(text)
    if kind == "list" and len(parts) == 1:
        return pa.list_(parse_dtype(text))
    if kind == "map" and len(parts) == 2:
        return pa.map_(*map(parse_dtype, parts))
    fields = [_FIELD.match(part) for part in parts]
    if kind == "struct" and all(fields):
        named = [(m[1], part[m.end() :]) for m, part in zip(fields, parts, strict=True) if m]
        return pa.struct([(json.loads(n) if n.startswith('"') else n, parse_dtype(rest)) for n, rest in named])
    raise ValueError(f"between < and > of {kind} stands {text!r}")


def _split_at_commas(text: str) -> list[str]:
    """What stands between commas that are in no brackets and no quotes."""
    parts = [""] if text.strip() else []
    depth = 0
    for token in re.findall(r'"(?:[^"\\]|\\.)*"|.', text, re.DOTALL):
        depth += (token in "<([") - (token in ">)]")
        if token == "," and not depth:
            parts.append("")
        else:
            parts[-1] += token
    return parts


NAMED = (  # types without parameters of their own
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "bool",
    "string",
    "timestamp[s]",
    "timestamp[ms]",
    "timestamp[us]",
    "timestamp[ns]",
    "date32",
    "binary",
)
NESTED = ("list<int64>", "list<string>", "decimal128(10, 2)")  # examples of the other ones


def _parse_scalar_type(text: str) -> pa.DataType:
    if decimal := _DECIMAL.fullmatch(text):
        make = {"32": pa.decimal32, "64": pa.decimal64, "128": pa.decimal128, "256": pa.decimal256}[decimal[1]]
        return make(int(decimal[2]), int(decimal[3]))
    if sized := re.fullmatch(r"fixed_size_binary\[(\d+)\]", text):
        return pa.binary(int(sized[1]))
    if text.startswith("timestamp[") and text.endswith("]"):
        unit, _, zone = text[len("timestamp[") : -1].partition(",")
        return pa.timestamp(unit.strip(), zone.strip().removeprefix("tz=") or None)
    alias = {
        "str": "string",
        "object": "string",
        "datetime64[us]": "timestamp[us]",
        "datetime": "timestamp[us]",
        "float": "float64",
        "double": "float64",
        "int": "int64",
        "date": "date32",
    }
    if text in alias:
        return parse_dtype(alias[text])
    if text not in NAMED:
        if text.startswith(("duration[", "time32[", "time64[")):
            return {"duration": pa.duration, "time32": pa.time32, "time64": pa.time64}[text.split("[")[0]](
                text.split("[")[1][:-1]
            )
        if text in ("null", "date64", "halffloat", "large_string"):
            return pa.type_for_alias(text)
        raise JobError(f"{text!r} is not a type", do=near(text, [*NAMED, *NESTED]))
    return pa.type_for_alias(text)
