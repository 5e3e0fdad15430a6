"""Facts about side tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.core.settings import Output, Run, Source
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
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
    assert observe.passes(nodes, Dataset(table).schema) == 0
    filled = nodes["size"] >> ops.FillMedian()
    assert observe.passes(filled, Dataset(table).schema) == 1
    assert transformed(filled, table, engine) == {"size": [1.5, 1.5]}


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
