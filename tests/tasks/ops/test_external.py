"""Facts about side tables."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.core.settings import Output, Run, Source
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tasks.job.request import make_request
from tasks.workflow import Workflow
from tests.tasks.ops.fitting import transformed

SIDE = pa.table(
    {"id": [3, 1, None], "colour": ["red", "blue", "none"], "size": [1.5, None, 0.0], "tags": [["a"], [], None]}
)


@pytest.fixture
def side(tmp_path):
    pq.write_table(SIDE, tmp_path / "side.parquet")
    return str(tmp_path / "side.parquet")


@pytest.mark.promise(
    "Add the columns of a side table (a Parquet or text file) to the selected ones; the rows keep their order"
)
def test_columns_are_added_in_the_order_of_the_rows(engine, side):
    table = pa.table({"k": [1, 3, 9, None, 3], "x": [1, 2, 3, 4, 5]})
    assert transformed(["x"] >> ops.JoinExternal(side, on={"k": "id"}), table, engine) == {
        "x": [1, 2, 3, 4, 5],
        "colour": ["blue", "red", None, "none", "red"],
        "size": [None, 1.5, None, 0.0, 1.5],
        "tags": [[], ["a"], None, None, ["a"]],
    }


def test_only_the_columns_that_are_asked_for(engine, side):
    table = pa.table({"id": pa.array([3], pa.int16())})
    assert transformed(["id"] >> ops.JoinExternal(side, on="id", columns=["size"]), table, engine) == {
        "id": [3],
        "size": [1.5],
    }


def test_keys_of_several_columns_from_a_csv_file(engine, tmp_path):
    pa.csv.write_csv(pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "v": [10, 20, 30]}), tmp_path / "side.csv")
    table = pa.table({"a": [1, 2, 2], "b": ["y", "x", "y"]})
    made = transformed(["a"] >> ops.JoinExternal(str(tmp_path / "side.csv"), on=["a", "b"]), table, engine)
    assert made == {"a": [1, 2, 2], "v": [20, 30, None]}


def test_the_table_is_saved_with_the_workflow(engine, side, tmp_path):
    table = pa.table({"id": [3]})
    Workflow(["id"] >> ops.JoinExternal(side, on="id", columns=["colour"])).fit(Dataset(table, engine=engine)).save(
        tmp_path / "fitted"
    )
    Path(side).unlink()
    assert Workflow.load(tmp_path / "fitted").transform(table).to_pydict() == {"id": [3], "colour": ["red"]}


def test_reading_a_side_table_costs_no_pass_over_the_data(engine, side, monkeypatch):
    from tasks.learning import observe

    table, nodes = pa.table({"id": [3, 1]}), ["id"] >> ops.JoinExternal(side, on="id", columns=["size"])
    assert observe.passes(Bound(nodes, Dataset(table).schema)) == 0
    filled = nodes["size"] >> ops.FillMedian()
    assert observe.passes(Bound(filled, Dataset(table).schema)) == 1
    assert transformed(filled, table, engine) == {"size": [1.5, 1.5]}


@pytest.mark.promise("a key that occurs twice is an error unless `duplicates: first`")
def test_a_key_that_occurs_twice_is_an_error_or_the_first_counts(engine, tmp_path):
    pq.write_table(pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]}), tmp_path / "side.parquet")
    path, table = str(tmp_path / "side.parquet"), pa.table({"k": ["b", "a"]})
    with pytest.raises(DataError, match=r"(?s)a key occurs twice in the side table: a.*rows 0 and 2"):
        transformed(["k"] >> ops.JoinExternal(path, on="k"), table, engine)
    made = transformed(["k"] >> ops.JoinExternal(path, on="k", duplicates="first"), table, engine)
    assert made == {"k": ["b", "a"], "v": [2, 1]}


def test_what_does_not_fit_is_named(side, tmp_path):
    schema = Dataset(pa.table({"id": [1], "name": ["a"], "size": [1]})).schema
    cases = [
        (ops.JoinExternal("/nowhere/side.parquet", on="id"), JobError, "there is no side table"),
        (ops.JoinExternal(side, on="id", columns=["colur"]), JobError, "did you mean 'colour'"),
        (ops.JoinExternal(side, on={"name": "id"}), DataError, "'name' is string"),
    ]
    decimals = pa.table({"id": pa.array(["1.5"]).cast(pa.decimal128(10, 3)), "colour": ["red"]})
    pq.write_table(decimals, tmp_path / "decimals.parquet")
    cases.append((
        ops.JoinExternal(str(tmp_path / "decimals.parquet"), on="id"), DataError, r"int64, .*'id' decimal128\(10, 3\)"
    ))  # fmt: skip
    for op, error, message in cases:
        with pytest.raises(error, match=message):
            Workflow(["id"] >> op).output_schema_of(schema)
    with pytest.raises(JobError, match="second column 'size'"):
        Workflow(["id", "size"] >> ops.JoinExternal(side, on="id")).output_schema_of(schema)


def test_a_changed_side_table_makes_what_was_learned_invalid(side, tmp_path):
    source, output = Source(path=str(tmp_path / "data.parquet")), Output(path=str(tmp_path / "out"))
    request = make_request(source, ["id"] >> ops.JoinExternal(side, on="id"), output, Run(), "pandas")
    before = request.state_fingerprint("plan")
    assert request.state_fingerprint("plan") == before
    pq.write_table(SIDE.slice(0, 2), side)
    assert request.state_fingerprint("plan") != before


ROWS = {"k": ["007", "08", "9"]}
TEXT_TABLES = [  # (name of the file, content, read, the added columns)
    ("a.csv", b"k;z\n007;1,5\n08;2\n", {"delimiter": ";", "decimal": ",", "schema": {"k": "string"}}, [1.5, 2, None]),
    ("a.tsv", b"007\t5\n9\t6\n", {"columns": ["k", "z"], "schema": {"k": "string"}}, [5, None, 6]),
    ("a.csv", "k::z\nx::\n9::né\n".encode("latin-1"), {"delimiter": "::", "encoding": "latin-1"}, [None, None, "né"]),
    ("a.csv.gz", gzip.compress(b"k, z\n007, 5\n08, 6\n", mtime=0), {"schema": {"k": "string"}}, [5, 6, None]),
    ("a.txt", b"title\nk,z\n08,x\n", {"format": "csv", "skip_rows": 1, "schema": {"k": "string"}}, [None, "x", None]),
    ("a.jsonl", b'{"k": "007", "z": [1, 2]}\n{"k": "08"}\n', None, [[1, 2], None, None]),
    ("a.csv", b"k,z\nx007,NA\n08x,\n", {"schema": {"z": "int64"}}, [None, None, None]),
]  # fmt: skip


@pytest.mark.promise(
    "`read` says how a file of CSV, TSV or JSON lines is read, with these keys of a job's `source`",
    "tasks/ops/README.md#joinexternal",
)
@pytest.mark.parametrize(("name", "content", "read", "added"), TEXT_TABLES)
def test_a_text_file_is_read_by_the_settings_of_a_source(engine, tmp_path, name, content, read, added):
    (tmp_path / name).write_bytes(content)
    join = ops.JoinExternal(str(tmp_path / name), on="k", read=read)
    assert transformed(["k"] >> join, pa.table(ROWS), engine) == {**ROWS, "z": added}


def test_texts_are_null_in_columns_of_numbers_unless_read_says_which(engine, tmp_path):
    (tmp_path / "a.csv").write_text("k,z,s\na,1,\nb,NA,NA\n")
    for read, texts in ((None, ["", "NA"]), ({"null_values": ["NA"]}, ["", None])):
        join = ops.JoinExternal(str(tmp_path / "a.csv"), on="k", read=read)
        made = transformed(["k"] >> join, pa.table({"k": ["a", "b"]}), engine)
        assert made == {"k": ["a", "b"], "z": [1, None], "s": texts}


def test_an_open_quote_in_a_side_table_is_an_error(tmp_path):
    (tmp_path / "a.csv").write_text('k,z\na,"1\nb,2\n')
    with pytest.raises(DataError, match="a quote of a text file is not closed") as error:
        transformed(["k"] >> ops.JoinExternal(str(tmp_path / "a.csv"), on="k"), pa.table({"k": ["a"]}), "pandas")
    assert error.value.where == f"{tmp_path}/a.csv, line 2"
    assert error.value.do == 'set read.quote: "", if quotes are letters like others'


def test_what_a_side_table_cannot_be_read_by_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("k;z\na;1\n")
    path, rows = str(tmp_path / "a.csv"), pa.table({"k": ["a"]})
    for read, message in (
        ({"delimeter": ";"}, "read takes no 'delimeter': did you mean 'delimiter'?"),
        ({"bad_lines": "skip"}, "read takes no 'bad_lines'"),
        ({"decimal": "x"}, "read.decimal: "),
    ):
        with pytest.raises(JobError) as refused:
            ops.JoinExternal(path, on="k", read=read)
        assert message in str(refused.value)
    with pytest.raises(JobError, match="the table is a frame"):
        ops.JoinExternal(rows, on="k", read={"delimiter": ";"})
    with pytest.raises(JobError, match="has no column 'k'") as error:
        transformed(["k"] >> ops.JoinExternal(path, on="k"), rows, "pandas")
    assert error.value.do.endswith("give its delimiter, read.delimiter: ';'")
    made = transformed(["k"] >> ops.JoinExternal(path, on="k", read={"delimiter": ";"}), rows, "pandas")
    assert made == {"k": ["a"], "z": [1]}
    join = ops.JoinExternal(path, on="k", read={"delimiter": ";", "schema": {"y": "int64"}})
    with pytest.raises(JobError, match=r"read\.schema names a column 'y'"):
        transformed(["k"] >> join, rows, "pandas")
