"""Readers: the same rows from every format, records counted exactly, values as the schema says."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import os
import re
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import fastavro
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks import ops
from tasks.core.dtypes import dtype_name, schema_advice
from tasks.core.plan import File, Limits, Plan
from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tasks.graph.node import Node
from tasks.sources.formats import FORMATS, record_ends, text_ranges
from tasks.sources.formats.conform import conform
from tasks.sources.formats.parquet_chunks import footers
from tasks.sources.formats.record_ends import Dialect, cut_text
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.workflow import Workflow
from tests.examples import examples
from tests.frames import to_list

ROWS = [{"x": 1.5, "n": 1, "s": "apple"}, {"x": None, "n": 2, "s": None}, {"x": -2.0, "n": 3, "s": "pear, green"}]
TABLE = pa.Table.from_pylist(ROWS, schema=pa.schema([("x", pa.float64()), ("n", pa.int64()), ("s", pa.string())]))


def everything(plan: Plan, columns: list[str] | None = None) -> pa.Table:
    return pa.concat_tables([read(plan, p, columns) for p in plan.partitions]).unify_dictionaries()


def write(kind: str, path: Path) -> None:
    if kind == "parquet":
        pq.write_table(TABLE, path)
    elif kind == "orc":
        paorc.write_table(TABLE, str(path))
    elif kind == "arrow":
        feather.write_feather(TABLE, str(path))
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS))
    elif kind == "avro":
        fields = [{"name": n, "type": ["null", t]} for n, t in (("x", "double"), ("n", "long"), ("s", "string"))]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, ROWS)
    else:
        assert kind in ("csv", "tsv"), f"write a file of the format {kind} here"
        with path.open("w", newline="") as text:
            writer = csv.writer(text, delimiter="\t" if kind == "tsv" else ",")
            writer.writerows([["x", "n", "s"], *([row[k] for k in "xns"] for row in ROWS)])


@pytest.mark.promise("parquet, csv, tsv, jsonl, orc, avro or arrow; `auto` goes by the suffix")
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path / f"a.{kind}")
    plan = make_plan(Source(path=str(tmp_path)))
    assert (plan.format, plan.rows) == (kind, 3)
    assert everything(plan).to_pylist() == ROWS
    assert everything(plan).schema.field("s").type == pa.dictionary(pa.int32(), pa.string())
    assert everything(plan, ["s", "x"]).to_pylist() == [{"s": r["s"], "x": r["x"]} for r in ROWS]


def test_a_job_can_name_every_format() -> None:
    assert {*get_args(Source.model_fields["format"].annotation)} == {"auto", *FORMATS}


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "orc", "avro"])
def test_two_files_are_read_one_after_the_other(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path / f"a.{kind}")
    write(kind, tmp_path / f"b.{kind}")
    assert everything(make_plan(Source(path=str(tmp_path)))).to_pylist() == ROWS * 2


@pytest.mark.parametrize(
    "options",
    [
        {"version": "1.0", "compression": "none"},
        {"version": "2.6", "data_page_version": "2.0", "compression": "zstd"},
        {"use_dictionary": False, "compression": "lz4"},
        {"use_dictionary": False, "column_encoding": {"s": "DELTA_BYTE_ARRAY", "n": "DELTA_BINARY_PACKED"}},
        {"use_dictionary": False, "column_encoding": {"s": "DELTA_LENGTH_BYTE_ARRAY", "x": "BYTE_STREAM_SPLIT"}},
    ],
)
def test_what_other_writers_make_of_parquet(options: dict[str, Any], tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", **options)
    assert everything(make_plan(Source(path=str(tmp_path)))).to_pylist() == ROWS


def test_texts_that_a_parquet_file_calls_bytes_are_texts_where_the_job_says_so(tmp_path: Path) -> None:
    column = TABLE.schema.get_field_index("s")
    pq.write_table(TABLE.set_column(column, "s", TABLE["s"].cast(pa.binary())), tmp_path / "a.parquet")
    assert make_plan(Source(path=str(tmp_path))).schema["s"].dtype == pa.binary()
    assert everything(make_plan(Source(path=str(tmp_path), schema={"s": "string"}))).to_pylist() == ROWS


@examples(150)
@given(
    kind=st.sampled_from(["csv", "jsonl"]),
    files=st.lists(st.lists(st.sampled_from(["row", ""]), min_size=1, max_size=4), min_size=1, max_size=3),
    line_end=st.sampled_from(["\n", "\r\n"]),
    ended=st.booleans(),
)
@example(kind="jsonl", files=[["row"], ["row", "row"]], line_end="\n", ended=False)
def test_every_row_is_read_with_and_without_a_last_line_end(
    kind: str, files: list[list[str]], line_end: str, ended: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, numbers = tmp_path_factory.mktemp("rows"), iter(range(100))
    expected = []
    for i, lines in enumerate(files):
        rows = [next(numbers) if line else None for line in lines]
        read = rows if ended or lines[-1] else rows[:-1]  # an empty line of one column is null
        expected += [{"a": row} for row in read if row is not None or kind == "csv"]
        made = ["" if row is None else f'{{"a": {row}}}' if kind == "jsonl" else str(row) for row in rows]
        (folder / f"{i}.{kind}").write_bytes((line_end.join(made) + (line_end if ended else "")).encode())
    source = Source(path=str(folder), columns=["a"] if kind == "csv" else None)
    if expected:
        assert everything(make_plan(source)).to_pylist() == expected
    else:
        with pytest.raises(DataError, match="no rows at all"):
            make_plan(source)


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ('[{"a": 1}, {"a": 2}]', r"an array: \[\{"),
        ('[\n{"a": 1}\n]\n', r"an array: \["),
        ('{\n  "a": 1\n}\n', r"an object over several lines: \{"),
        ('{"a": 1,\n "b": 2}\n', r"an object over several lines: \{"),
    ],
)
def test_json_that_is_not_an_object_a_line_is_named(tmp_path: Path, text: str, begins: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=rf"no object on each line[\s\S]*a.json, row 1[\s\S]*begins with {begins}"):
        make_plan(Source(path=str(tmp_path)))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_text_is_one_block(suffix: str, tmp_path: Path) -> None:
    text = b"a,b\n" + b"".join(b'%d,"x\n%d"\n' % (i, i) for i in range(100))
    path = tmp_path / f"a.csv{suffix}"
    if suffix == ".gz":
        path.write_bytes(gzip.compress(text))
    else:
        with pa.CompressedOutputStream(str(path), "zstd") as out:
            out.write(text)
    plan = make_plan(Source(path=str(path)), limits=Limits(join_below=1, range_bytes=50))
    assert (len(plan.blocks), plan.rows) == (1, 100)
    assert everything(plan).slice(99).to_pylist() == [{"a": 99, "b": "x\n99"}]


FIELDS = st.text(alphabet='ab",\n\r', max_size=5)


def quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if set(field) & set('",\r\n') else field


@examples(200)
@given(
    rows=st.lists(st.tuples(FIELDS, FIELDS), max_size=8),
    end=st.sampled_from(["\n", "\r\n"]),
    size=st.integers(1, 40),
    empty_lines=st.booleans(),
)
def test_any_range_size_cuts_csv_at_the_same_records(
    rows: list[tuple[str, str]], end: str, size: int, empty_lines: bool
) -> None:
    lines = [",".join(quoted(field) for field in row) + end * (1 + empty_lines) for row in rows]
    data = "".join(lines).encode()
    cuts = cut_text(data, 0, Dialect(","), size)
    assert sum(cut.records for cut in cuts) == len(rows)
    parsed = [list(csv.reader(io.StringIO(data[c.start : c.stop].decode(), newline=""))) for c in cuts]
    assert [tuple(r) for part in parsed for r in part if r] == rows
    assert [len([r for r in part if r]) for part in parsed] == [c.records for c in cuts]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_quote_inside_an_unquoted_field_is_a_letter(size: int) -> None:
    cuts = cut_text(b'5" pipe,1\n"a\n""b",2\n6" pipe,3\n"x"y",4', 0, Dialect(","), size)
    assert sum(cut.records for cut in cuts) == 4


@pytest.mark.parametrize(
    ("text", "records"),
    [
        (b"", 0),
        (b"\n\n", 0),
        (b"a", 1),
        (b"a\n", 1),
        (b"a\n\nb", 2),
        (b"a\r\n\r\nb\r\n", 2),
        (b'"\n"\n', 1),
        (b'"a""\n"\nb', 2),
        (b"a\rb\r", 2),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_records_of_small_texts(text: bytes, records: int, size: int) -> None:
    assert sum(cut.records for cut in cut_text(text, 0, Dialect(","), size)) == records


def test_quoted_line_ends_are_read_whole_over_range_borders(tmp_path: Path) -> None:
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["n", "s"], *([i, f'line\n"{i}"\n'] for i in range(200))])
    for size in (16, 33, 250):
        plan = make_plan(Source(path=str(tmp_path), partition_size=1), limits=Limits(join_below=1, range_bytes=size))
        assert len(plan.partitions) > 10
        assert everything(plan).to_pylist() == [{"n": i, "s": f'line\n"{i}"\n'} for i in range(200)]


def test_types_of_text_are_inferred(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "i,f,b,t,u,d,s,big,none\n"
        "1,1.5,true,2020-01-01 10:00:00,2020-01-01 10:00:00 UTC,2020-01-02,x,18446744073709551615,\n"
    )
    types = {c.name: str(c.dtype) for c in make_plan(Source(path=str(tmp_path))).schema.columns}
    assert types == {
        "i": "int64",
        "f": "double",
        "b": "bool",
        "t": "timestamp[us]",
        "u": "timestamp[us]",
        "d": "date32[day]",
        "s": "string",
        "big": "uint64",
        "none": "string",
    }


def test_types_hold_what_the_beginnings_of_other_files_show(tmp_path: Path) -> None:
    """Days on which all prices are whole, or nobody has a list: the other days say what the columns are."""
    days = [("1", "", "7", "2024-01-01", "1"), ("2", "", "8", "2024-01-02", "2")]
    days.append(("2.5", "yes", "18446744073709551615", "2024-01-03 10:00:00", "none"))
    for i, day in enumerate(days):
        (tmp_path / f"{i}.csv").write_text("price,seen,user,at,text\n" + ",".join(day) + "\n")
        (tmp_path / f"{i}.csv.gz").write_bytes(gzip.compress((tmp_path / f"{i}.csv").read_bytes()))
    for suffix in ("csv", "csv.gz"):
        plan = make_plan(Source(path=str(tmp_path / f"*.{suffix}"), schema={"text": "string"}))
        assert everything(plan).to_pydict() == {
            "price": [1.0, 2.0, 2.5],
            "seen": [None, None, "yes"],
            "user": [7, 8, 2**64 - 1],
            "at": [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2), datetime.datetime(2024, 1, 3, 10)],
            "text": ["1", "2", "none"],
        }
    with pytest.raises(DataError, match="column 'text' has a value that is not of type int64: 'none'"):
        everything(make_plan(Source(path=str(tmp_path / "*.csv"))))  # and not silently a text

    lines = ['{"l": [], "s": {"a": null}}', '{"l": [null, 1], "s": {"b": 2}}', '{"l": [2.5], "s": {"a": [true]}}']
    for i, line in enumerate(lines):
        (tmp_path / f"{i}.jsonl").write_text(line)
    rows = everything(make_plan(Source(path=str(tmp_path / "*.jsonl"))))
    assert rows.to_pydict() == {
        "l": [[], [None, 1.0], [2.5]],
        "s": [{"a": None, "b": None}, {"a": None, "b": 2}, {"a": [True], "b": None}],
    }


def test_ids_beyond_int64_keep_their_digits(tmp_path: Path) -> None:
    rows = [{"id": 2**64 - 1, "l": [2**63, None], "f": 1.5}, {"id": 2**64 - 3, "l": [1], "f": 10.0**19}, {"l": None}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    plan = make_plan(Source(path=str(tmp_path)))
    assert {c.name: str(c.dtype) for c in plan.schema.columns} == {
        "id": "uint64", "l": "list<item: uint64>", "f": "double",
    }  # fmt: skip
    assert everything(plan).to_pydict() == {
        "id": [2**64 - 1, 2**64 - 3, None],
        "l": [[2**63, None], [1], None],
        "f": [1.5, 1e19, None],
    }


@pytest.mark.promise("from the first 16 MiB, and from the beginnings of 16 other files")
def test_of_many_files_some_are_asked_for_types(tmp_path: Path) -> None:
    for i in range(100):
        (tmp_path / f"{i:02}.csv").write_text(f"n\n{i if i < 90 else i / 2}\n")
    asked = []

    def recorded(function: Any, items: Any) -> Any:
        items = list(items)
        asked.extend(i for i in items if isinstance(i, tuple) and isinstance(i[0], text_ranges.Head))
        return map(function, items)

    plan = make_plan(Source(path=str(tmp_path)), parallel_map=recorded)
    assert [length for _, length in asked] == [text_ranges.SAMPLE] + [text_ranges.OTHER_BYTES] * 15
    assert len({head.file for head, _ in asked}) == 16
    assert str(plan.schema["n"].dtype) == "double"


@pytest.mark.promise("the names of the columns of a CSV or TSV file where `header: false`")
@pytest.mark.promise("texts that stand for null in CSV and TSV files")
def test_text_without_header_takes_the_given_names_types_and_nulls(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1\tx\nNA\ty\n")
    source = Source(path=str(tmp_path), columns=["n", "s"], schema={"n": "int32"}, null_values=["NA"])
    assert everything(make_plan(source)).to_pylist() == [{"n": 1, "s": "x"}, {"n": None, "s": "y"}]
    assert list(make_plan(Source(path=str(tmp_path), header=False)).schema) == ["f0", "f1"]


@pytest.mark.parametrize(
    "nbytes",
    [
        text_ranges.OTHER_BYTES // 2,
        text_ranges.OTHER_BYTES,
        text_ranges.OTHER_BYTES + 1,
        2 * text_ranges.OTHER_BYTES,
        text_ranges.SAMPLE + 1,
    ],
)
def test_a_sample_of_a_file_is_cut_in_a_few_steps(nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut for every byte took a minute for each megabyte."""
    path, scans = tmp_path / "a.csv", list[int]()
    path.write_bytes(b'1,"a"\n' * (nbytes // 6))
    scan = record_ends.scan
    monkeypatch.setattr(record_ends, "scan", lambda *args: scans.append(1) or scan(*args))
    options = {"storage_options": None}
    for length in (text_ranges.OTHER_BYTES, text_ranges.SAMPLE):
        scans.clear()
        found = text_ranges.sample(File(str(path), path.stat().st_size, 0), 0, length, Dialect(), options)
        assert len(scans) < 4
        assert len(found) % 6 == 0
        assert min(length, nbytes) // 3 < len(found) <= length


@pytest.mark.promise("`delimiter` takes up to 20 letters")
@pytest.mark.parametrize("delimiter", ["|", ";", "\x01", " ", ","])
def test_values_may_stand_between_other_characters(tmp_path: Path, delimiter: str) -> None:
    """Quotes open behind the delimiter that the source names, and only there, also where ranges begin."""
    texts = [f'"a{delimiter}""b""\n{i}"' if i % 3 else f'c"{i}' for i in range(40)]
    lines = [delimiter.join((str(i), text, f"x{i}")) for i, text in enumerate(texts)]
    (tmp_path / "a.log").write_text(delimiter.join(("n", "text", "last")) + "\n" + "\n".join(lines) + "\n")
    source = Source(path=str(tmp_path), format="csv", delimiter=delimiter)
    plan = make_plan(source, limits=Limits(join_below=1, range_bytes=64))
    assert len(plan.blocks) > 8
    wanted = [f'a{delimiter}"b"\n{i}' if i % 3 else f'c"{i}' for i in range(40)]
    assert everything(plan).to_pydict() == {"n": list(range(40)), "text": wanted, "last": [f"x{i}" for i in range(40)]}
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert everything(again) == everything(plan)


@pytest.mark.parametrize("delimiter", ["|", ";", "\t"])
def test_a_header_with_other_delimiters_is_told(tmp_path: Path, delimiter: str) -> None:
    (tmp_path / "a.csv").write_text(delimiter.join(("user", "price", "brand")) + "\n" + delimiter.join("123") + "\n")
    with pytest.raises(JobError, match="there is no column 'price'") as error:
        Bound(Node("pick", selection=("price",), name="source"), make_plan(Source(path=str(tmp_path))).schema)
    assert error.value.do.endswith(f"if it is several columns, set source.delimiter to {delimiter!r}")


@pytest.mark.parametrize("wrong", ["", '"', "\n", "|\r", "\0", 21 * "|"])
def test_what_cannot_stand_between_values_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="cannot stand between values"):
        Source(path="x.csv", delimiter=wrong)


def test_a_delimiter_of_files_without_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(JobError, match="the format jsonl takes no delimiter") as error:
        make_plan(Source(path=str(tmp_path), delimiter="|"))
    assert error.value.where == "source.delimiter"


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int64", "oops"), ("decimal128(10, 2)", "1.005"), ("decimal128(3, 0)", "1.5"), ("decimal128(3, 0)", "1000")],
)
def test_a_value_that_does_not_parse_is_named_with_its_row(tmp_path: Path, dtype: str, value: str) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"{i},x\n" for i in range(50)) + f'7,"y\nz"\n{value},x\n8,z\n')
    plan = make_plan(Source(path=str(tmp_path), schema={"a": dtype}), limits=Limits(join_below=1, range_bytes=32))
    what = re.escape(f"column 'a' has a value that is not of type {dtype}: '{value}'")
    with pytest.raises(DataError, match=what) as error:
        everything(plan)
    assert error.value.where == f"{tmp_path / 'a.csv'}, column a, row 52 (the header not counted)"
    assert "source.schema" in error.value.do


def test_a_line_of_json_that_does_not_fit_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a": "x"}\n')
    with pytest.raises(DataError, match="JSON does not fit") as error:
        everything(make_plan(Source(path=str(tmp_path), schema={"a": "int64"})))
    assert error.value.where == f"{tmp_path / 'a.jsonl'}, column a, row 3"


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_avro_of_every_codec_and_type(tmp_path: Path, codec: str) -> None:
    """Also types that no operator takes: a job may use the other columns of a log."""
    if library := {"snappy": "cramjam", "zstandard": "backports.zstd"}.get(codec):
        pytest.importorskip(library)
    item = {"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "next", "type": ["null", "Tree"]}]}
    fields = {
        "id": {"type": "string", "logicalType": "uuid"},
        "hash": {"type": "fixed", "name": "Hash", "size": 2},
        "item": ["null", item],
        "items": {"type": "array", "items": "shop.Item"},
        "tags": {"type": "map", "values": ["null", "Hash"]},
        "number": ["null", "int", "long", "double"],
        "either": ["null", "string", "long", {"type": "map", "values": "int"}],
        "kind": {"type": "enum", "name": "Kind", "symbols": ["view", "buy"]},
        "tree": tree,
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
    }
    first = {
        "id": uuid.UUID(int=7), "hash": b"ab", "item": {"id": 1}, "items": [{"id": 2}], "tags": {"a": b"xy", "b": None},
        "number": 2**40, "either": {"é": 1}, "kind": "buy", "tree": {"next": {"next": None}}, "price": Decimal("1.25"),
    }  # fmt: skip
    second = first | {"item": None, "items": [], "tags": {}, "number": 2.5, "either": 7, "tree": {"next": None}}
    third = second | {"number": None, "either": "x"}
    schema = {"type": "record", "name": "row", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, [first, second, third], codec=codec)
    plan = make_plan(Source(path=str(tmp_path)))
    assert {c.name: dtype_name(c.dtype) for c in plan.schema.columns} == {
        "id": "string", "hash": "fixed_size_binary[2]", "item": "struct<id: int64>", "items": "list<struct<id: int64>>",
        "tags": "map<string, fixed_size_binary[2]>", "number": "float64", "either": "string", "kind": "string",
        "tree": "struct<next: string>", "price": "decimal128(5, 2)",
    }  # fmt: skip
    found = everything(plan).to_pydict()
    assert found["id"] == [str(uuid.UUID(int=7))] * 3
    assert (found["hash"][0], found["item"], found["items"]) == (b"ab", [{"id": 1}, None, None], [[{"id": 2}], [], []])
    assert found["tags"] == [[("a", b"xy"), ("b", None)], [], []]
    assert (found["number"], found["either"]) == ([2.0**40, 2.5, None], ['{"é": 1}', "7", "x"])
    assert found["tree"] == [{"next": '{"next": null}'}, {"next": None}, {"next": None}]
    assert (found["kind"], found["price"]) == (["buy"] * 3, [Decimal("1.25")] * 3)


@pytest.mark.promise("UUIDs are texts", "flows/KEYS.md#types")
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_uuids_are_texts_and_other_extensions_what_they_are_stored_as(tmp_path: Path, kind: str, engine: str) -> None:
    ids = [uuid.UUID(int=i << 64 | i) for i in (7, 2**63, 7)]
    uuids = pa.array([*ids, None, ids[0]], pa.uuid())
    table = pa.table(
        {
            "user": uuids,
            "seen": pa.ListArray.from_arrays([0, 2, 2, 3, 4, 5], uuids),
            "event": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None, "2", "[]", "2"])),
            "n": range(5),
        }
    )
    for i in range(2):  # of a slice, and of several row groups
        part = table.slice(2 * i, 2 + i)
        if kind == "parquet":
            pq.write_table(part, tmp_path / f"{i}.parquet", row_group_size=1, store_schema=bool(i))
        else:
            with pa.ipc.new_file(tmp_path / f"{i}.arrow", part.schema) as file:
                file.write_table(part)
    texts = [*map(str, ids), None, str(ids[0])]
    expected = {
        "user": texts, "seen": [texts[:2], [], [texts[2]], [None], [texts[4]]], "event": table["event"].to_pylist(),
        "n": [0, 1, 2, 3, 4],
    }  # fmt: skip
    for source in (str(tmp_path), table):
        dataset = Dataset(source, engine=engine)
        assert {c.name: dtype_name(c.dtype) for c in dataset.schema.columns} == {
            "user": "string", "seen": "list<string>", "event": "string", "n": "int64",
        }  # fmt: skip
        assert read(dataset.handle, 0).to_pydict() == expected
        coded = Workflow((["user", "seen"] >> ops.Categorify()) + ["n"]).fit_transform(dataset)
        (frame,) = coded.frames()
        assert to_list(frame["user"]) == [3, 4, 3, 1, 3]
        assert to_list(frame["seen"]) == [[3, 4], [], [3], [1], [3]]


def test_times_of_96_bits_are_exact_or_refused(tmp_path: Path, engine: str) -> None:
    ends, near = ("0001-01-01", "9999-12-31T23:59:59.999999"), ("1677-09-22", "2262-04-11T23:47:16.854775")
    for name, texts in (("near", near), ("far", (*ends, *near))):
        times = pa.array([None, *texts, "1969-12-31T23:59:59.999999"]).cast(pa.timestamp("us"))
        table = pa.table(
            {"t": times, "l": pa.ListArray.from_arrays([0, *range(len(times))], times), "n": range(len(times))}
        )
        for i, part in enumerate((table.slice(0, 2), table.slice(2))):
            path = tmp_path / name / f"{i}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(part, path, use_deprecated_int96_timestamps=True, row_group_size=2)
        types = {"t": "timestamp[us]", "l": "list<timestamp[us]>"}
        exact = Dataset(path.parent, engine=engine, schema=types)
        assert read(exact.handle, 0).equals(table)
        ticks = Workflow(["t"] >> ops.Lambda(expression="cast(_, 'int64')")).fit_transform(exact)
        assert to_list(ticks.head(9)["t"]) == times.cast(pa.int64()).to_pylist()
        default = Dataset(path.parent, engine=engine)
        assert dtype_name(default.schema["t"].dtype) == "timestamp[ns]"
        if name == "near":
            assert read(default.handle, 0)["t"].cast(pa.timestamp("us")).to_pylist() == times.to_pylist()
            continue
        with pytest.raises(DataError, match="'t' has times that nanoseconds cannot hold") as error:
            read(default.handle, 0)
        assert "0001-01-01" in str(error.value.why)
        assert 'source.schema: {t: "timestamp[us]"}' in str(error.value.do)
        with pytest.raises(DataError, match=r"source.schema: \{l: .list<timestamp\[us\]>.\}"):
            read(Dataset(path.parent, engine=engine, schema={"t": "timestamp[us]"}).handle, 0)


def test_numbers_that_are_texts_keep_their_digits(tmp_path: Path) -> None:
    rows = ['{"id": 1.10, "n": 1.50}', '{"id": "x", "n": 2}', '{"id": [1.10, {"é": 1e5, "b": true}]}', '{"id": null}']
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    found = everything(make_plan(Source(path=str(tmp_path), schema={"id": "string"})))
    assert found.to_pydict() == {
        "id": ["1.10", "x", '[1.10, {"é": 1e5, "b": true}]', None], "n": [1.5, 2.0, None, None],
    }  # fmt: skip


def test_dates_in_json(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"d": "2020-02-29", "l": ["1969-12-31", null]}\n{"d": null}')
    types = {"d": "date32", "l": "list<date32>"}
    found = everything(make_plan(Source(path=str(tmp_path), schema=types))).to_pydict()
    assert found == {
        "d": [datetime.date(2020, 2, 29), None],
        "l": [[datetime.date(1969, 12, 31), None], None],
    }  # fmt: skip
    (tmp_path / "a.jsonl").write_text('{"d": 18321, "l": [-1, null]}\n{"d": null}')
    assert everything(make_plan(Source(path=str(tmp_path), schema=types))).to_pydict() == found


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"a": "x"}\n\n{"a": "\xff"}\n', r"(?s)a\.jsonl, row 2.*not UTF-8, byte 0xff.*write the file as UTF-8"),
        (b'{"a": 1} {"a": 2}\n{"a": 3}\n', r"(?s)row 1.*two objects on one line"),
        (b'{"a": 1}\n{"a": 2}{"a": 3}\n', r"(?s)3 rows .* 2 had been counted.*a line of JSON lines has two objects"),
    ],
)
def test_json_that_is_no_text_or_not_one_object_a_line(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(DataError, match=said):
        everything(make_plan(Source(path=str(tmp_path))))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\r\n\n"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_empty_lines_behind_a_byte_order_mark_are_no_records(tmp_path: Path, kind: str, end: str) -> None:
    text = '{"x": 1}\n{"x": 2}\n' if kind == "jsonl" else "x\n1\n2\n"
    (tmp_path / f"a.{kind}").write_bytes(b"\xef\xbb\xbf" + end.encode() + text.encode())
    plan = make_plan(Source(path=str(tmp_path)))
    assert (plan.rows, everything(plan).to_pydict()) == (2, {"x": [1, 2]})


@pytest.mark.parametrize("kind", ["parquet", "frame", "csv", "jsonl"])
def test_numbers_beyond_a_type_are_refused_and_not_infinite(tmp_path: Path, kind: str, engine: str) -> None:
    table = pa.table({"n": [1, 2, 3], "x": [1.0, 1e300, None]})
    path = tmp_path / f"a.{kind}"
    if kind == "csv":
        path.write_text("n,x\n1,-Inf\n2,1.0e300\n3,\n")
    elif kind == "jsonl":
        path.write_text('{"n": 1, "x": 1}\n\n{"n": 2, "x": 1.0e300}\n{"n": 3}\n')
    else:
        pq.write_table(table, path)
    source: Any = table if kind == "frame" else path
    whole = Dataset(source, engine=engine)
    assert read(whole.handle, 0)["x"].to_pylist()[1:] == [1e300, None]
    if kind == "frame":
        narrow = Workflow(["x"]).fit(pa.table({"x": pa.array([1.0], pa.float32())})).transform(whole)
    else:
        narrow = Workflow(["x"]).fit_transform(Dataset(source, engine=engine, schema={"x": "float32"}))
    with pytest.raises(DataError) as error:
        narrow.head(3)
    said = {
        "csv": r"column 'x' has a value that is not of type float32: '1.0e300'.*row 2 \(the header not counted\)",
        "jsonl": r"column x, row 2\n.*number beyond float.*source\.schema: \{x: string\}",
    }
    assert re.search(
        said.get(kind, r"column 'x' of type float64 does not fit float32.*1e\+300"), str(error.value), re.S
    )


@pytest.mark.parametrize("text", ["x\n1\n1e400\n", '{"x": [1]}\n{"x": [2, 3]}\n{"x": [4, 1e300]}\n'])
def test_a_text_that_no_float_holds(tmp_path: Path, text: str) -> None:
    path = tmp_path / ("a.csv" if text.startswith("x") else "a.jsonl")
    path.write_text(text)
    with pytest.raises(DataError, match=r"row [23]"):
        read(Dataset(path, schema={"x": "float64" if path.suffix == ".csv" else "list<float32>"}).handle, 0)
    path.write_text("x\n+INF\n-infinity\n")
    if path.suffix == ".csv":
        assert read(Dataset(path, schema={"x": "float64"}).handle, 0)["x"].to_pylist() == [float("inf"), -float("inf")]


def test_times_that_orc_holds_and_nanoseconds_do_not(tmp_path: Path) -> None:
    far = pa.table({"t": pa.array([253402300799, None], pa.timestamp("s")), "n": pa.array([1, 2], pa.int8())})
    paorc.write_table(far, tmp_path / "a.orc")
    plan = make_plan(Source(path=str(tmp_path)))
    assert everything(plan, ["n"])["n"].to_pylist() == [1, 2]
    with pytest.raises(DataError, match=r"(?s)times that nanoseconds cannot hold.*write the column as Parquet"):
        everything(plan)


def test_times_of_texts_are_as_fine_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "n,u\n2020-01-01 00:00:00.123456789,2020-01-01 00:00:00.5\n,2020-01-01 00:00:00.25\n"
    )
    plan = make_plan(Source(path=str(tmp_path)))
    assert [dtype_name(c.dtype) for c in plan.schema.columns] == ["timestamp[ns]", "timestamp[us]"]
    found = everything(plan)
    assert found["n"].cast(pa.int64()).to_pylist() == [1577836800123456789, None]


@pytest.mark.promise("Times in texts may have an offset")
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("dtype", [None, "timestamp[us]", "timestamp[ms, tz=UTC]", "timestamp[us, tz=+05:30]"])
def test_times_with_an_offset(kind: str, dtype: str | None, tmp_path: Path, engine: str) -> None:
    """Moments in UTC, whatever their texts say; with the type given also beside texts without an offset."""
    values, hours = ["2020-01-01T00:00:00+02:00", "2020-01-01 14:00:00-05:00"], [-2, 19]
    if dtype is not None and kind == "csv":
        values, hours = [*values, "2020-01-01 05:00:00", "2020-01-01T05:00:00Z"], [*hours, 5, 5]
    lines = values if kind == "csv" else [f'{{"t": "{value}"}}' for value in values]
    path = tmp_path / f"in.{kind}"
    path.write_text("\n".join([*(["t"] if kind == "csv" else []), *lines]) + "\n")
    source = Dataset(str(path), engine=engine, schema={"t": dtype} if dtype else None)
    nodes = ["t"] >> ops.Lambda(expression="cast(cast(_, 'timestamp[s]'), 'int64') - 1577836800")
    (part,) = Workflow(nodes).fit(source).transform(source).frames()
    assert to_list(part["t"]) == [3600 * hour for hour in hours]


def test_a_type_that_grew_holds_both(tmp_path: Path) -> None:
    for name, first, second in (("int64", pa.int64(), pa.int32()), ("float64", pa.int8(), pa.float32())):
        folder = tmp_path / name
        folder.mkdir()
        for i, dtype in enumerate((first, second)):
            pq.write_table(pa.table({"x": pa.array([i], dtype)}), folder / f"{i}.parquet")
        plan = make_plan(Source(path=str(folder)))
        assert f"read as {name}" in plan.options["grown"]["x"]
        assert everything(plan)["x"].to_pylist() == [0, 1]


@pytest.mark.promise("which takes any value as text")
@pytest.mark.promise("In JSON Lines a column whose values are of several types needs `source.schema: {id: string}`")
def test_json_values_of_several_types_are_texts_where_the_schema_says_so(tmp_path: Path) -> None:
    rows = [{"id": 7, "n": 1}, {"id": "a7", "n": 2.5}, {"id": None}, {"id": 2**70}, {"n": 3, "id": [1, {"é": True}]}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(DataError, match="JSON does not fit") as error:
        make_plan(Source(path=str(tmp_path)))
    assert "{id: string} takes any value as text" in str(error.value.do)
    found = everything(make_plan(Source(path=str(tmp_path), schema={"id": "string"})))
    assert found.to_pydict() == {
        "id": ["7", "a7", None, str(2**70), '[1, {"é": true}]'],
        "n": [1.0, 2.5, None, None, 3.0],
    }


def test_each_error_of_json_names_the_next_column_that_takes_any_value_as_text(tmp_path: Path) -> None:
    rows = [
        {"a": 1, "rank": "x", "price (EUR)": 1, "a/b": 1, "tags": [1, "x"]},
        {"a": 2, "rank": ["y"], "price (EUR)": "n/a", "a/b": [2], "tags": []},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    schema = dict[str, str]()
    for name, place in (("tags", "tags/[]"), ("rank", "rank"), ("price (EUR)", "price (EUR)"), ("a/b", "a/b")):
        with pytest.raises(DataError, match="JSON does not fit") as error:
            make_plan(Source(path=str(tmp_path), schema=schema))
        assert f", column {place}, row " in error.value.where
        assert f"{schema_advice(name, 'string')} takes any value as text" in error.value.do
        schema[name] = "string"
    assert everything(make_plan(Source(path=str(tmp_path), schema=schema))).to_pydict() == {
        "a": [1, 2], "rank": ["x", '["y"]'], "price (EUR)": ["1", "n/a"], "a/b": ["1", "[2]"],
        "tags": ['[1, "x"]', "[]"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "why", "do"),
    [
        ('{"id": 1', "Expecting ',' delimiter, at letter 9, in row 2", "source.bad_lines: skip"),
        ('{"id": {"a": 1, "a": 2}}', "a key was specified twice, in row 2", "each key of an object is there once"),
        ('{"id": "\\x"}', r"Invalid \escape, at letter 9, in row 2", "source.bad_lines: skip"),
    ],
)
def test_a_line_that_is_wrong_below_a_column_of_any_values_is_named(
    line: str, why: str, do: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "a"}\n{"id": 7}\n' + line)
    with pytest.raises(DataError, match="JSON does not fit") as error:
        make_plan(Source(path=str(tmp_path), schema={"id": "string"}))
    assert error.value.where == f"{tmp_path}/a.jsonl, row 3 (line 3 of the file)"
    assert error.value.why == f"{why} in {line}"
    assert do in error.value.do


def test_text_files_may_order_their_columns_differently(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,x\n")
    (tmp_path / "b.csv").write_text("b,a\ny,2\n")
    assert everything(make_plan(Source(path=str(tmp_path)))).to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_nan_becomes_null_also_in_lists() -> None:
    nan = float("nan")
    table = pa.table({"f": [1.0, nan, None], "l": pa.array([[nan, 1.0], None, []], pa.list_(pa.float64()))})
    assert conform(table, table.schema).to_pydict() == {"f": [1.0, None, None], "l": [[None, 1.0], None, []]}


def test_mixed_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.tsv").write_text("a\n1\n")
    with pytest.raises(JobError, match="mixes formats"):
        make_plan(Source(path=str(tmp_path)))
    (tmp_path / "c.data").write_text("a\n1\n")
    with pytest.raises(JobError, match="cannot be told"):
        make_plan(Source(path=str(tmp_path / "c.data")))
    assert make_plan(Source(path=str(tmp_path / "c.data"), format="csv")).rows == 1


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "avro", "orc", "arrow", "parquet"])
def test_several_files_of_megabytes_take_a_second(kind: str, tmp_path: Path) -> None:
    """In seconds of this process, which hardly depend on what else runs; some of these took minutes once."""
    rows = 60_000
    table = pa.table({"n": range(rows), "s": [f'word "{i % 999}", {i}' for i in range(rows)], "x": [0.5] * rows})
    for number in range(3):
        path = tmp_path / f"{number}.{kind}"
        if kind in ("csv", "tsv"):
            pacsv.write_csv(table, path, pacsv.WriteOptions(delimiter="\t" if kind == "tsv" else ","))
        elif kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        elif kind == "avro":
            fields = [{"name": n, "type": t} for n, t in (("n", "long"), ("s", "string"), ("x", ["null", "double"]))]
            with path.open("wb") as file:
                fastavro.writer(file, {"type": "record", "name": "R", "fields": fields}, table.to_pylist())
        elif kind == "orc":
            paorc.write_table(table, str(path))
        elif kind == "parquet":
            pq.write_table(table, path, row_group_size=5_000)
        else:
            with pa.ipc.new_file(path, table.schema) as sink:
                sink.write_table(table, max_chunksize=5_000)
    start = time.process_time()
    found = everything(make_plan(Source(path=str(tmp_path))))
    seconds = time.process_time() - start
    assert found.num_rows == 3 * rows
    assert found["s"][-1].as_py() == table["s"][-1].as_py()
    assert seconds < 5


@examples(60)
@given(
    lines=st.lists(st.sampled_from(["null", " null\t", "", '{"a": 1}', "{}", '{"a": null}']), min_size=1, max_size=6),
    line_end=st.sampled_from(["\n", "\r\n"]), ended=st.booleans(), bom=st.booleans(), limit=st.integers(1, 30),
)  # fmt: skip
@example(lines=["null", '{"a": 1}'], line_end="\n", ended=True, bom=False, limit=30)  # Arrow ends the process
def test_a_line_null_is_a_row_of_nulls_wherever_it_stands(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], line_end: str, ended: bool, bom: bool, limit: int
) -> None:
    path = tmp_path_factory.mktemp("nulls") / "a.jsonl"
    path.write_bytes(
        (b"\xef\xbb\xbf" if bom and lines[0] else b"") + (line_end.join(lines) + line_end * ended).encode()
    )
    expected = [(json.loads(line) or {}).get("a") for line in lines if line.strip()]
    source = Source(path=str(path), schema={"a": "int64"})
    if not expected:
        with pytest.raises(DataError, match="no rows at all"):
            make_plan(source)
        return
    plan = make_plan(source, limits=Limits(range_bytes=limit))
    assert everything(plan)["a"].to_pylist() == expected


def test_a_process_reads_each_footer_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    plan = make_plan(Source(path=str(tmp_path)))
    monkeypatch.setattr(pq, "read_metadata", None)
    assert everything(plan)["x"].to_pylist() == [1, 2]
    monkeypatch.undo()
    footers.forget()
    assert everything(plan)["x"].to_pylist() == [1, 2]
    assert footers.find(plan.files[0]) is not None


def test_a_file_in_the_place_of_another_has_a_footer_of_its_own(tmp_path: Path) -> None:
    path, other = tmp_path / "rows.parquet", tmp_path / "other"
    pq.write_table(pa.table({"x": [1, 2], "y": [3, 4]}), path)
    pq.write_table(pa.table({"y": [5, 6], "x": [7, 8]}), other)
    first = make_plan(Source(path=str(path)))
    assert everything(first, ["x", "y"]).to_pydict() == {"x": [1, 2], "y": [3, 4]}
    os.utime(other, ns=(first.files[0].mtime, first.files[0].mtime))
    other.replace(path)
    second = make_plan(Source(path=str(path)))
    assert (second.files[0].size, second.files[0].mtime) == (first.files[0].size, first.files[0].mtime)
    assert everything(second, ["x", "y"]).to_pydict() == {"x": [7, 8], "y": [5, 6]}
