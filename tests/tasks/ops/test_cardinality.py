"""Facts about dropping columns with few values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tasks import ops
from tasks.dataset import Dataset
from tasks.workflow import Workflow
from tests.tasks.ops.fitting import learned, transformed

TABLE = pa.table({"a": ["x", "y", "z", None], "b": [1, 1, 2, None], "c": [0.5, 1.5, 2.5, 3.5]})


@pytest.mark.promise(
    "Drop columns with fewer than `min_cardinality` distinct values; nulls do not count, the elements of lists do",
    "tasks/ops/README.md#droplowcardinality",
)
def test_columns_with_fewer_distinct_values_are_dropped(engine):
    made = transformed(["a", "b", "c"] >> ops.DropLowCardinality(3), TABLE, engine)
    assert list(made) == ["a", "c"]
    assert made["a"] == ["x", "y", "z", None]


def test_before_fitting_the_schema_shows_all_columns_as_unsettled(engine):
    workflow = Workflow(["a", "b"] >> ops.DropLowCardinality(3))
    promised = workflow.output_schema_of(Dataset(TABLE).schema)
    assert {c.name: dict(c.properties) for c in promised.columns} == {
        "a": {"settles": "presence"},
        "b": {"settles": "presence"},
    }
    assert [(c.name, dict(c.properties)) for c in workflow.fit(Dataset(TABLE)).output_schema.columns] == [("a", {})]


def test_what_selects_a_dropped_column_goes_without_it(engine):
    kept = ["a", "b"] >> ops.DropLowCardinality(3)
    assert list(transformed(kept >> ops.Categorify(), TABLE, engine)) == ["a"]
    assert list(transformed(kept["a", "b"] >> ops.HashBucket(10), TABLE, engine)) == ["a"]
    assert list(transformed(kept[[["a", "b"]]] >> ops.HashedCross(10), TABLE, engine)) == []
    assert list(transformed((kept - ["b"]) + ["c"], TABLE, engine)) == ["a", "c"]


def test_a_dropped_column_does_not_come_back_from_the_source(engine):
    kept = (["b"] >> ops.DropLowCardinality(3)) + ["c"]
    assert list(transformed(kept["b", "c"], TABLE, engine)) == ["c"]


def test_all_dropped_before_another_phase(engine):
    nodes = (["b"] >> ops.DropLowCardinality(9) >> ops.Normalize()) + (["c"] >> ops.Normalize())
    assert list(transformed(nodes, TABLE, engine)) == ["c"]


def test_a_saved_workflow_still_drops(engine, tmp_path):
    Workflow(["a", "b"] >> ops.DropLowCardinality(3)).fit(Dataset(TABLE, engine=engine)).save(tmp_path)
    assert Workflow.load(tmp_path).transform(TABLE).column_names == ["a"]


@pytest.mark.parametrize("column", ["a", "b", "c"])
@pytest.mark.parametrize("cuts", [(), (1,), (2, 2, 3)])
@pytest.mark.parametrize("backward", [False, True])
def test_any_split_of_the_rows_is_the_whole(engine, column, cuts, backward):
    expected = {
        "a": {"kept": True, "at_least": 3},
        "b": {"kept": False, "at_least": 2},
        "c": {"kept": True, "at_least": 3},
    }
    assert learned(ops.DropLowCardinality(3), TABLE, [column], engine, cuts, backward) == expected[column]


def test_elements_of_lists_booleans_and_nulls(engine):
    table = pa.table({"l": [[1, 2], [3, None]], "b": [True, False], "n": pa.nulls(2, pa.int64())})
    assert list(transformed(["l", "b", "n"] >> ops.DropLowCardinality(2), table, engine)) == ["l", "b"]
