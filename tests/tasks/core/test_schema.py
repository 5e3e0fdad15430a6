"""Types by name, kinds, tags, and what a schema says of a column."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tasks.core.dtypes import dtype_name, kind_of, leaf_type, parse_dtype, plain_type
from tasks.core.schema import Column, Schema, Tags, check_kinds
from tasks.errors import DataError, JobError

NAMES = {
    "int8": pa.int8(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[ns, tz=UTC]": pa.timestamp("ns", "UTC"),
    "duration[ms]": pa.duration("ms"),
    "time64[us]": pa.time64("us"),
    "decimal128(10, 2)": pa.decimal128(10, 2),
    "list<string>": pa.list_(pa.string()),
    "list<list<int32>>": pa.list_(pa.list_(pa.int32())),
    "decimal256(50, -2)": pa.decimal256(50, -2),
    "fixed_size_binary[16]": pa.binary(16),
    "struct<>": pa.struct([]),
    "struct<a: int8, b: list<struct<c: timestamp[us, tz=UTC], d: decimal128(9, 1)>>>": pa.struct(
        [("a", pa.int8()), ("b", pa.list_(pa.struct([("c", pa.timestamp("us", "UTC")), ("d", pa.decimal128(9, 1))])))]
    ),
    'struct<"": bool, "a b": string, "c, \\"d>\\": <": binary>': pa.struct(
        [("", pa.bool_()), ("a b", pa.string()), ('c, "d>": <', pa.binary())]
    ),
    "map<string, list<float64>>": pa.map_(pa.string(), pa.list_(pa.float64())),
}


@pytest.mark.parametrize(("name", "dtype"), NAMES.items(), ids=NAMES)
def test_the_name_of_a_type_gives_the_type_back(name: str, dtype: pa.DataType) -> None:
    assert parse_dtype(name) == parse_dtype(dtype_name(dtype)) == dtype


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("int", pa.int64()),
        ("str", pa.string()),
        (" float ", pa.float64()),
        ("datetime", pa.timestamp("us")),
        ("date", pa.date32()),
    ],
)
def test_other_names_of_types(name: str, dtype: pa.DataType) -> None:
    assert parse_dtype(name) == dtype


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("int46", "did you mean 'int64'"),
        ("strin", "did you mean 'string'"),
        ("decimal128(x)", "not a type"),
        ("timestamp[h]", "not a type"),
        ("time64[s]", "not a type"),
        ("struct<a>", "not a type"),
        ("struct<a: int46>", "did you mean 'int64'"),
        ("map<string>", "not a type"),
        ("list<int8, int8>", "not a type"),
        ("list<>", "not a type"),
    ],
)
def test_a_name_that_is_no_type(name: str, hint: str) -> None:
    with pytest.raises(JobError, match=hint):
        parse_dtype(name)


def test_kinds_leaves_and_plain_types() -> None:
    types = (pa.int8(), pa.decimal128(5, 1), pa.string(), pa.bool_(), pa.date32(), pa.list_(pa.int8()), pa.null())
    assert [kind_of(t) for t in types] == ["number", "number", "string", "bool", "time", "list", "other"]
    assert leaf_type(pa.list_(pa.list_(pa.int8()))) == pa.int8()
    assert plain_type(pa.list_(pa.dictionary(pa.int8(), pa.large_string()))) == pa.list_(pa.string())
    assert plain_type(pa.float16()) == pa.float32()
    assert plain_type(pa.decimal32(5, 2)) == plain_type(pa.decimal64(5, 2)) == pa.decimal128(5, 2)
    assert plain_type(pa.large_list(pa.list_view(pa.string_view()))) == pa.list_(pa.list_(pa.string()))
    assert plain_type(
        pa.struct([("a", pa.float16()), ("m", pa.map_(pa.large_string(), pa.large_binary()))])
    ) == pa.struct([("a", pa.float32()), ("m", pa.map_(pa.string(), pa.binary()))])


def test_a_schema_knows_its_columns() -> None:
    schema = Schema(
        [Column("a", pa.int64()).tagged(Tags.USER_ID, "own"), Column("b", pa.string()).with_properties(unit="m")]
    )
    assert list(schema) == ["a", "b"]
    assert schema.with_tag(Tags.USER_ID) == schema.with_tag("own") == ["a"]
    assert Schema.from_json(schema.to_json()).to_json() == schema.to_json()
    assert schema.to_json()[0] == {"name": "a", "dtype": "int64", "tags": ["own", "user_id"]}
    assert repr(schema) == "Schema(a: int64, b: string)"
    with pytest.raises(JobError, match="there is no column 'c'"):
        schema["c"]


def test_data_of_another_kind_is_refused_and_narrower_or_wider_is_not() -> None:
    fitted = Schema.from_arrow(pa.schema([("a", pa.int64()), ("l", pa.list_(pa.string()))]))
    fine = pa.schema([("a", pa.float32()), ("l", pa.list_(pa.null())), ("more", pa.string())])
    check_kinds(fitted, Schema.from_arrow(fine), ["a", "l"])
    with pytest.raises(DataError, match="column 'a' is string, the workflow was fitted with int64"):
        check_kinds(fitted, Schema.from_arrow(pa.schema([("a", pa.string())])), ["a"])
    with pytest.raises(DataError, match="column 'l' is string, the workflow was fitted with list<string>"):
        check_kinds(fitted, Schema.from_arrow(pa.schema([("l", pa.string())])), ["l"])
