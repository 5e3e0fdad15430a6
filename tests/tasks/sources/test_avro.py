"""Facts about Avro: the values that were written, for any types, codec and blocks; damaged blocks are refused."""

from __future__ import annotations

import datetime
import io
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.plan import Plan
from tasks.core.settings import Source
from tasks.engines.convert.python_values import to_storage_type
from tasks.errors import DataError
from tasks.sources.formats import avro
from tasks.sources.planning import make_plan
from tasks.sources.reader import read, read_pieces

MARKER = b"0123456789abcdef"

times = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))
utc = times.map(lambda t: t.replace(tzinfo=datetime.UTC))
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-70, 70))),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("boolean", st.booleans()),
    ("string", st.text(max_size=9)),
    ("bytes", st.binary(max_size=9)),
    ({"type": "string", "avro.java.string": "String"}, st.text(max_size=3)),
    ({"type": "enum", "name": "E", "symbols": ["a", "b", "c"]}, st.sampled_from("abc")),
    ({"type": "int", "logicalType": "date"}, times.map(lambda t: t.date())),
    ({"type": "int", "logicalType": "time-millis"}, times.map(lambda t: t.time().replace(microsecond=0))),
    ({"type": "long", "logicalType": "time-micros"}, times.map(lambda t: t.time())),
    ({"type": "long", "logicalType": "timestamp-millis"}, utc.map(lambda t: t.replace(microsecond=123_000))),
    ({"type": "long", "logicalType": "timestamp-micros"}, utc),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, times),
    ("null", st.none()),
]


@st.composite
def files(draw: st.DrawFn) -> tuple[Any, list[dict[str, Any]]]:
    """(the schema, the records) of a file of plain values."""
    fields, values = [], {}
    for number, (kind, strategy) in enumerate(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))):
        if isinstance(kind, dict) and kind["type"] == "enum":
            kind = {**kind, "name": f"E{number}"}
        union = draw(st.sampled_from(["", "null first", "null last"])) if kind != "null" else ""
        types = {"": kind, "null first": ["null", kind], "null last": [kind, "null"]}[union]
        fields.append({"name": f"f{number}", "type": types})
        values[f"f{number}"] = st.one_of(st.none(), strategy) if union else strategy
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    return schema, draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=40))


def plan_of(folder: Path, schema: Any, records: list[dict[str, Any]], codec: str, block: int) -> Plan:
    with (folder / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, records, codec=codec, sync_interval=block)
    return make_plan(Source(path=str(folder)))


@given(files(), st.sampled_from(["null", "deflate", "snappy", "zstandard"]), st.integers(1, 200), st.integers(1, 300))
def test_values_are_those_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, file: Any, codec: str, block: int, run: int
) -> None:
    schema, records = file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro, "RUN_BYTES", run)
        patch.setattr(avro, "RUN_ROWS", 7)
        plan = plan_of(tmp_path_factory.mktemp("avro"), schema, records, codec, block)
        names, pieces = list(records[0]), [piece for block in plan.blocks for piece in block.pieces]
        found = pa.concat_tables(read_pieces(plan, [piece], names) for piece in pieces)
    assert found.to_pydict() == {name: [record[name] for record in records] for name in names}


def test_some_columns_of_a_file_and_none(tmp_path: Path) -> None:
    fields = [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    plan = plan_of(tmp_path, schema, [{"a": 1, "b": "x"}, {"a": 2, "b": ""}], "null", 1)
    assert read(plan, 0, ["b"]).to_pydict() == {"b": ["x", ""]}
    assert (read(plan, 0, []).num_rows, read(plan, 0, []).num_columns) == (2, 0)


def one_block(path: Path, kinds: list[Any], body: bytes, records: int = 1) -> Plan:
    """A file of one block with these bytes; its columns are a, b, c."""
    fields = [{"name": name, "type": kind} for name, kind in zip("abc", kinds, strict=False)]
    file, lengths = io.BytesIO(), io.BytesIO()
    fastavro.writer(file, {"type": "record", "name": "R", "fields": fields}, [], sync_marker=MARKER)
    for number in (records, len(body)):
        fastavro.schemaless_writer(lengths, "long", number)
    path.write_bytes(file.getvalue() + lengths.getvalue() + body + MARKER)
    return make_plan(Source(path=str(path)))


@pytest.mark.parametrize(
    ("kind", "logical", "number", "dtype", "stored"),
    [
        ("int", "date", 4_000_000, pa.date32(), 4_000_000),
        ("int", "time-millis", 86_399_999, pa.time32("ms"), 86_399_999),
        ("long", "time-micros", 1, pa.time64("us"), 1),
        ("long", "timestamp-millis", 2**53, pa.timestamp("us", "UTC"), 2**53 * 1000),
        ("long", "timestamp-micros", -(2**63), pa.timestamp("us", "UTC"), -(2**63)),
        ("long", "local-timestamp-millis", -1, pa.timestamp("us"), -1000),
        ("long", "local-timestamp-micros", 2**63 - 1, pa.timestamp("us"), 2**63 - 1),
    ],
)
def test_times_are_those_of_the_file_beyond_the_years_of_python(
    kind: str, logical: str, number: int, dtype: pa.DataType, stored: int, tmp_path: Path
) -> None:
    described, body = {"type": kind, "logicalType": logical}, io.BytesIO()
    for union in (number, None):
        fastavro.schemaless_writer(body, kind, number)
        fastavro.schemaless_writer(body, ["null", kind], union)
    found = read(one_block(tmp_path / "a.avro", [described, ["null", described]], body.getvalue(), 2), 0)
    expected = {"a": [stored, stored], "b": [stored, None]}
    assert found.schema.types == [dtype, dtype]
    assert {name: found[name].combine_chunks().view(to_storage_type(dtype)).to_pylist() for name in "ab"} == expected


def test_milliseconds_beyond_microseconds_of_64_bits_are_refused(tmp_path: Path) -> None:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, "long", 2**62)
    plan = one_block(tmp_path / "a.avro", [{"type": "long", "logicalType": "timestamp-millis"}], body.getvalue())
    with pytest.raises(DataError, match="overflow"):
        read(plan, 0)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x02\x04x", "Expected 2 bytes, read 1"),
        (b"\x02\x02x\x00", "bytes are left after its last record"),
        (b"\x02\x01x", "Expected -1 bytes"),
        (b"\x80" * 30, "out of range"),
        (b"\x02\x02\xff", "'utf-8' codec can't decode byte 0xff"),
        (b"\x02", "it ends within a value"),
    ],
)
def test_a_block_that_is_damaged_is_named(body: bytes, why: str, tmp_path: Path) -> None:
    plan = one_block(tmp_path / "a.avro", ["long", "string"], body)
    with pytest.raises(DataError, match="this is not a whole Avro file") as caught:
        read(plan, 0)
    start = (tmp_path / "a.avro").stat().st_size - len(body) - 18
    assert caught.value.where == f"{tmp_path / 'a.avro'}, block at byte {start}"
    assert why in (caught.value.why or "")


def test_a_damaged_block_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro, "RUN_ROWS", 1)
        plan = plan_of(tmp_path, schema, [{"a": "word"}] * 49 + [{"a": "last"}], "null", 40)
    path, pieces = tmp_path / "a.avro", [piece for block in plan.blocks for piece in block.pieces]
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"\x08last", b"\x7flast", 1))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # a bit that the disk has lost
    with pytest.raises(DataError, match="not a whole Avro file") as caught:
        read_pieces(plan, pieces[-1:], ["a"])
    assert caught.value.where == f"{path}, block at byte {pieces[-1].start:,}"


def test_a_name_that_is_used_again_has_its_type(tmp_path: Path) -> None:
    price = {"type": "fixed", "name": "Price", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2}
    plan = one_block(tmp_path / "a.avro", [price, "Price", ["null", "Price"]], b"\x00\x7d\x00\x01\x00")
    assert read(plan, 0).to_pylist() == [{"a": Decimal("1.25"), "b": Decimal("0.01"), "c": None}]
    assert read(plan, 0).schema.types == [pa.decimal128(4, 2)] * 3
