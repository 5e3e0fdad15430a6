"""Facts about Avro read as columns: the same values as record by record, for any plain types, codec and blocks."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.plan import Plan
from tasks.core.settings import Source
from tasks.errors import DataError
from tasks.sources.formats import avro, avro_columns
from tasks.sources.formats.avro_columns import BLOCKS, NotPlain, columns_of, plain_fields
from tasks.sources.planning import make_plan
from tasks.sources.reader import read

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
def test_values_are_those_of_record_by_record(
    tmp_path_factory: pytest.TempPathFactory, file: Any, codec: str, block: int, run: int
) -> None:
    plan = plan_of(tmp_path_factory.mktemp("avro"), *file, codec, block)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro, "RUN_BYTES", run)
        patch.setattr(avro_columns, "BLOCKS", 0)
        patch.setattr(avro, "_column", None)  # nothing is left to fastavro
        found = pa.concat_tables(read(plan, partition) for partition in plan.partitions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro, "plain_fields", refused)
        expected = pa.concat_tables(read(plan, partition) for partition in plan.partitions)
    assert found.schema == expected.schema
    assert found.to_pydict() == expected.to_pydict()


def refused(schema: Any) -> Any:
    raise NotPlain


@pytest.fixture
def few_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_columns, "BLOCKS", 0)


def test_few_large_blocks_are_read_record_by_record() -> None:
    fields, types = plain_fields({"fields": [{"name": "a", "type": "long"}]}), pa.schema([("a", pa.int64())])
    blocks, counts = [b"\x02"] * BLOCKS, [1] * BLOCKS
    assert columns_of(blocks, counts, fields, types)["a"].to_pylist() == [1] * BLOCKS
    with pytest.raises(NotPlain, match="few blocks"):
        columns_of([*blocks[1:], b"\x02\x02"], [*counts[1:], 2], fields, types)


def test_some_columns_of_many_and_none(few_will_do: None) -> None:
    fields = plain_fields({"fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]})
    data = [b"\x02\x02x", b"\x01\x00\x04\x04yz"]
    found = columns_of(data, [1, 2], fields, pa.schema([("b", pa.string())]))
    assert found.to_pydict() == {"b": ["x", "", "yz"]}
    assert columns_of([], [], fields, pa.schema([("a", pa.int64())])).num_rows == 0


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"\x02\x04x", 1),  # a text behind the end
        (b"\x02\x02x\x00", 1),  # bytes left over
        (b"\x02\x01x", 1),  # a text of negative length
        (b"\x80" * 30, 1),  # a number without an end
        (b"\x02\x02\xff", 1),  # no UTF-8
        (b"", 1),
    ],
)
def test_what_is_no_avro_is_left_to_fastavro(data: bytes, count: int, few_will_do: None) -> None:
    fields = plain_fields({"fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]})
    with pytest.raises((NotPlain, pa.ArrowInvalid)):
        columns_of([b"\x02\x02x", data], [1, count], fields, pa.schema([("a", pa.int64()), ("b", pa.string())]))


@pytest.mark.parametrize(
    "kind", [{"type": "array", "items": "int"}, ["null", "int", "string"], {"type": "string", "logicalType": "uuid"}]
)
def test_other_than_plain_values_are_read_record_by_record(kind: Any) -> None:
    with pytest.raises(NotPlain):
        plain_fields({"fields": [{"name": "a", "type": kind}]})


def test_a_damaged_block_is_told(tmp_path: Path) -> None:
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]})
    plan = plan_of(tmp_path, schema, [{"a": "word"}] * 50, "null", 40)
    path = tmp_path / "a.avro"
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"\x08word", b"\x7fword", 1))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # a bit that the disk has lost
    with pytest.raises(DataError, match="no whole Avro file"):
        read(plan, 0)
