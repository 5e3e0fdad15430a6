"""Filter and Dropna: a row that is removed is gone for every output column and for what is learned beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.job.job import load_job
from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tasks.graph.node import as_node
from tasks.workflow import Workflow
from tests.examples import examples
from tests.frames import to_list
from tests.stages import run_stages

TABLE = pa.table(
    {
        "x": [1.0, 2.0, None, 4.0, 100.0],
        "kind": ["a", "b", "a", None, "c"],
        "n": [1, 2, 3, 4, 5],
    }
)


def made(nodes: Any, table: pa.Table, engine: str) -> dict[str, list[Any]]:
    """The output columns of a workflow that was fitted on the same rows."""
    dataset = Dataset(table, engine=engine)
    found: dict[str, list[Any]] = {}
    for frame in Workflow(nodes).fit_transform(dataset).frames():
        for name in frame.columns:
            found.setdefault(name, []).extend(to_list(frame[name]))
    return found


def above_two(frame: Any) -> Any:
    return frame["n"] > 2


def one_too_few(frame: Any) -> Any:
    return (frame["n"] > 2).iloc[1:]


@pytest.mark.promise("Keep the rows for which an expression, or a function of the frame, is true; null is not true")
def test_an_expression_keeps_rows_of_the_whole_table(engine: str) -> None:
    nodes = ["n", *[["x"] >> ops.Filter("n >= 2 and n < 5")]]
    assert made(nodes, TABLE, engine) == {"n": [2, 3, 4], "x": [2.0, None, 4.0]}


@pytest.mark.promise("Keep the rows for which an expression, or a function of the frame, is true; null is not true")
def test_null_is_not_true(engine: str) -> None:
    assert made(["n", *[["kind"] >> ops.Filter("kind == 'a'")]], TABLE, engine)["n"] == [1, 3]
    assert made(["n", *[["kind"] >> ops.Filter("not kind == 'a'")]], TABLE, engine)["n"] == [2, 5]
    assert made(["n", *[["kind"] >> ops.Filter("kind != 'a' or kind is None")]], TABLE, engine)["n"] == [2, 4, 5]
    assert made(["n", *[["x"] >> ops.Filter("x > 1")]], TABLE, engine)["n"] == [2, 4, 5]


@pytest.mark.parametrize("function", [above_two, f"{__name__}:above_two"])
def test_a_function_of_the_frame_keeps_rows(function: Any, engine: str) -> None:
    nodes = ["kind", *[["n"] >> ops.Filter(function=function)]]
    assert made(nodes, TABLE, engine) == {"kind": ["a", None, "c"], "n": [3, 4, 5]}


def nullable(frame: Any) -> Any:
    return frame["x"] > 1


def test_where_a_function_gives_null_the_row_goes(engine: str) -> None:
    assert made(["n", *[["x"] >> ops.Filter(function=nullable)]], TABLE, engine)["n"] == [2, 4, 5]


def nothing_known(frame: Any) -> list[None]:
    return [None] * len(frame)


def names(frame: Any) -> list[str]:
    return ["a"] * len(frame)


def test_a_function_of_nothing_but_nulls_keeps_no_row(engine: str) -> None:
    assert made(["n", *[["x"] >> ops.Filter(function=nothing_known)]], TABLE, engine)["n"] == []
    with pytest.raises(JobError, match="values of type string"):
        made(["n"] >> ops.Filter(function=names), TABLE, engine)


def test_a_function_has_to_give_one_value_per_row(engine: str) -> None:
    with pytest.raises(JobError, match="the function gave 4 values for 5 rows"):
        made(["n"] >> ops.Filter(function=one_too_few), TABLE, engine)


def test_statistics_are_of_the_rows_that_stay(engine: str) -> None:
    nodes = (["x"] >> ops.NormalizeMinMax()) + (["n"] >> ops.Filter("n < 5")) + (["kind"] >> ops.Categorify())
    assert made(nodes, TABLE, engine) == {
        "x": [0.0, 0.3333333432674408, None, 1.0],
        "n": [1, 2, 3, 4],
        "kind": [3, 4, 3, 1],
    }


def test_what_a_filter_depends_on_is_learned_from_all_rows(engine: str) -> None:
    scaled = ["x"] >> ops.NormalizeMinMax()
    nodes = (scaled >> ops.Filter("x < 1")) + (["n"] >> ops.NormalizeMinMax()) + ["kind"]
    found = made(nodes, TABLE, engine)
    assert [round(x, 6) for x in found["x"]] == [0.0, 0.010101, 0.030303]  # of 1 .. 100
    assert found["n"] == [0.0, 0.3333333432674408, 1.0]  # of the rows 1, 2, 4 that stay
    assert found["kind"] == ["a", "b", None]


def test_filters_on_learned_columns_of_learned_columns(engine: str) -> None:
    ids = ["kind"] >> ops.Categorify()  # a 3, b 4, c 5, null 1
    kept = ids >> ops.Filter("kind >= 3")
    nodes = kept + (["n"] >> ops.NormalizeMinMax()) + (["x"] >> ops.Filter("x < 50"))
    assert made(nodes, TABLE, engine) == {"kind": [3, 4], "n": [0.0, 1.0], "x": [1.0, 2.0]}


def test_of_several_filters_a_row_has_to_pass_all(engine: str) -> None:
    nodes = (["n"] >> ops.Filter("n > 1")) + (["x"] >> ops.Dropna()) + (["kind"] >> ops.Filter("kind != 'c'"))
    assert made(nodes, TABLE, engine) == {"n": [2], "x": [2.0], "kind": ["b"]}
    chained = ["n"] >> ops.Filter("n > 1") >> ops.Filter("n < 4") >> ops.LogOp()
    assert made([chained, "kind"], TABLE, engine)["kind"] == ["b", "a"]


@pytest.mark.promise("Drop the rows with a null in any of the selected columns", "tasks/ops/README.md#dropna")
def test_dropna_is_of_the_selection(engine: str) -> None:
    assert made(["n", *[["x"] >> ops.Dropna()]], TABLE, engine)["n"] == [1, 2, 4, 5]
    assert made(["n", *[["x", "kind"] >> ops.Dropna()]], TABLE, engine)["n"] == [1, 2, 5]
    assert made(["n"] >> ops.Dropna(), TABLE, engine) == {"n": [1, 2, 3, 4, 5]}
    lists = pa.table({"l": pa.array([[1], None, []], pa.list_(pa.int64())), "n": [1, 2, 3]})
    assert made(["n", *[["l"] >> ops.Dropna()]], lists, engine) == {"n": [1, 3], "l": [[1], []]}


def test_a_filter_sees_columns_that_were_made_before(engine: str) -> None:
    parts = pa.table({"code": ["a.b", "a", "c.d"], "n": [1, 2, 3]})
    nodes = (["code"] >> ops.SplitText(".", 2, prefix="part") >> ops.Filter("part_1 is not None")) + ["n"]
    assert made(nodes, parts, engine) == {"part_0": ["a", "c"], "part_1": ["b", "d"], "n": [1, 3]}


def test_source_columns_that_only_a_filter_needs_are_read(engine: str) -> None:
    assert made(["kind"] >> ops.Filter("x > 3"), TABLE, engine) == {"kind": [None, "c"]}
    workflow = Workflow(["kind"] >> ops.Filter("x > 3")).fit(Dataset(TABLE, engine=engine))
    assert list(workflow.input_schema) == ["x", "kind"]


def test_no_row_may_be_left(engine: str, tmp_path: Path) -> None:
    nodes = (["x"] >> ops.Normalize()) + (["n"] >> ops.Filter("n > 9"))
    assert made(nodes, TABLE, engine) == {"x": [], "n": []}
    transformed = Workflow(nodes).fit_transform(Dataset(TABLE, engine=engine))
    with pytest.raises(DataError, match="no row is left to write"):
        transformed.to_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_of_filtered_rows_are_equal_to_one_row(engine: str, tmp_path: Path) -> None:
    table = pa.table({"n": range(1000), "x": [float(i % 7) for i in range(1000)]})
    transformed = Workflow(["n", *[["x"] >> ops.Filter("x != 3")]]).fit_transform(Dataset(table, engine=engine))
    manifest = transformed.to_parquet(tmp_path / "out", shuffle="full", seed=1, files=4)
    assert manifest.rows == {"in": 1000, "dropped": 143, "added": 0, "out": 857}
    assert [part["rows"] for part in manifest.parts] == [214, 214, 214, 215]
    found = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "out").glob("*.parquet")))
    assert sorted(found["n"].to_pylist()) == [i for i in range(1000) if i % 7 != 3]


def test_folds_are_of_the_row_number_in_the_source(engine: str) -> None:
    table = pa.table({"k": ["a"] * 6, "y": [1, 0, 1, 1, 0, 1], "n": range(6)})
    encoded = ["k"] >> ops.TargetEncoding("y", kfold=3, drop_folds=False)
    folds = dict(zip(range(6), made(encoded, table, engine)["__fold__"], strict=True))
    kept = made(encoded + (["n"] >> ops.Filter("n % 2 == 1")), table, engine)
    assert kept["n"] == [1, 3, 5]
    assert kept["__fold__"] == [folds[1], folds[3], folds[5]]


def test_a_frame_that_is_transformed_keeps_the_index_of_its_rows() -> None:
    import pandas as pd

    workflow = Workflow(["n", *[["x"] >> ops.Filter("x > 1")]]).fit(Dataset(TABLE, engine="pandas"))
    given = pd.DataFrame({"x": [3.0, 0.0, 5.0], "kind": ["a", "b", "c"], "n": [7, 8, 9]}, index=[10, 20, 30])
    found = workflow.transform(given)
    assert found.index.tolist() == [10, 30]
    assert found["n"].tolist() == [7, 9]
    table = workflow.transform(pa.table({"x": [3.0, 0.0], "kind": ["a", "b"], "n": [7, 8]}))
    assert table.to_pydict() == {"n": [7], "x": [3.0]}


# after Groupby, and of runs

SESSIONS = pa.table(
    {
        "user": ["a", "b", "a", "c", "b", "a", "c"],
        "time": [1, 1, 2, 1, 2, 3, 2],
        "item": ["x", "y", "x", "z", "x", "y", None],
        "price": [1.0, 8.0, 3.0, None, 4.0, 5.0, None],
    }
)


def of_users(nodes: Any, engine: str) -> dict[str, list[Any]]:
    dataset = Dataset(SESSIONS, engine=engine).shuffle_by_keys("user", "time")
    found: dict[str, list[Any]] = {}
    for frame in Workflow(nodes).fit_transform(dataset).frames():
        for name in frame.columns:
            found.setdefault(name, []).extend(to_list(frame[name]))
    return found


def test_after_groupby_a_filter_keeps_groups(engine: str) -> None:
    grouped = ["item", "price"] >> ops.Groupby("user", aggs={"item": ["list", "count"], "price": "mean"})
    found = of_users(grouped >> ops.Filter("item_count >= 2"), engine)
    assert found == {"user": ["a", "b"], "item_list": [["x", "x", "y"], ["y", "x"]], "item_count": [3, 2],
                     "price_mean": [3.0, 6.0]}  # fmt: skip
    assert of_users((grouped >> ops.Dropna())["user"], engine) == {"user": ["a", "b"]}
    by_lists = grouped["user", "item_list"] >> ops.Filter("len(item_list) > 2 or item_list is None")
    assert of_users(by_lists, engine) == {"user": ["a"], "item_list": [["x", "x", "y"]]}
    both = (["item", "price"] >> ops.Filter("price < 5")) >> ops.Groupby("user", aggs={"item": "count"})
    assert of_users(both >> ops.Filter("item_count > 1"), engine) == {"user": ["a"], "item_count": [2]}


@pytest.mark.promise("After Groupby a filter keeps groups, for the columns and statistics of groups")
def test_what_learns_from_groups_learns_from_those_that_stay(engine: str) -> None:
    grouped = ["item", "price"] >> ops.Groupby("user", aggs={"item": ["list", "count"], "price": "mean"})
    coded = grouped["item_list"] >> ops.Categorify()
    scaled = grouped["price_mean"] >> ops.NormalizeMinMax()
    kept = grouped["user", "item_count"] >> ops.Filter("user != 'b'")
    assert of_users(coded + scaled + kept, engine) == {
        "user": ["a", "c"], "item_count": [3, 1],
        "item_list": [[3, 3, 4], [5, 1]], "price_mean": [0.0, None],  # one value left: it is least and greatest
    }  # fmt: skip
    learned = scaled >> ops.Filter("price_mean < 1")  # of 3 .. 6
    found = of_users(learned + grouped["user"] + (grouped["item_count"] >> ops.NormalizeMinMax()), engine)
    assert (found["user"], found["price_mean"]) == (["a"], [0.0])


def test_phases_of_what_learns_before_and_after_a_filter_of_groups() -> None:
    coded = (["item"] >> ops.Categorify()) + (["price"] >> ops.LogOp())
    grouped = coded >> ops.Groupby("user", aggs={"item": "list", "price": "mean"})
    nodes = (grouped >> ops.Filter("price_mean > 1"))["price_mean"] >> ops.Normalize()
    bound = Bound(as_node(nodes), Dataset(SESSIONS).schema)
    assert {type(s.op).__name__: s.depth for s in bound.learned} == {"Categorify": 1, "Normalize": 2}


def test_groups_that_are_dropped_count_as_dropped_rows(engine: str, tmp_path: Path) -> None:
    dataset = Dataset(SESSIONS, engine=engine).shuffle_by_keys("user", "time")
    grouped = ["item"] >> ops.Groupby("user", aggs=["list", "count"]) >> ops.Filter("item_count > 2")
    manifest = Workflow(grouped).fit_transform(dataset).to_parquet(tmp_path / "out", files=1)
    assert manifest.rows == {"in": 7, "dropped": 6, "added": 0, "out": 1}


def test_groups_of_groups_are_filtered_each_by_their_own(engine: str) -> None:
    first = ["price"] >> ops.Groupby(["user", "item"], aggs=["sum", "count"]) >> ops.Filter("price_sum > 3")
    second = first["user", "price_sum"] >> ops.Groupby("user", aggs=["list", "count"])
    assert of_users(second, engine) == {
        "user": ["a", "b"], "price_sum_list": [[4.0, 5.0], [8.0, 4.0]], "price_sum_count": [2, 2],
    }  # fmt: skip
    assert of_users((second >> ops.Filter("get(price_sum_list, 0) > 4"))["user"], engine) == {"user": ["b"]}


@pytest.mark.promise("takes no event out of the histories of later ones", "tasks/ops/README.md#filter")
def test_a_row_that_a_filter_of_histories_removes_stays_in_the_histories_of_others(engine: str) -> None:
    history = ["item"] >> ops.History(9, "user")
    kept = history >> ops.Filter("len(item_history) > 0")
    assert of_users(["user", "item", *[kept]], engine) == {
        "user": ["a", "a", "b", "c"], "item": ["x", "y", "x", None],
        "item_history": [["x"], ["x", "x"], ["y"], ["z"]],
    }  # fmt: skip
    lag = ["price"] >> ops.DifferenceLag("user")
    assert of_users(["user", *[lag >> ops.Dropna()]], engine) == {
        "user": ["a", "a", "b"], "price_difference_lag_1": [2.0, 2.0, -4.0],
    }  # fmt: skip


def test_rows_that_other_filters_remove_are_in_no_history(engine: str) -> None:
    history = ["item"] >> ops.History(9, "user")
    nodes = (history >> ops.Filter("len(item_history) > 0")) + (["user", "price"] >> ops.Filter("price != 3"))
    assert of_users(nodes, engine) == {"user": ["a", "b"], "price": [5.0, 4.0], "item_history": [["x"], ["y"]]}
    again = history >> ops.Filter("len(item_history) > 0") >> ops.Lag("user") >> ops.Dropna()
    assert of_users(again, engine) == {"item_history_lag_1": [["x"]]}


def test_what_histories_are_made_of_is_learned_from_all_rows_what_is_beside_from_those_that_stay(engine: str) -> None:
    coded = ["item"] >> ops.Categorify()  # x 3, y 4, z 5, null 1
    history = coded >> ops.History(9, "user")
    nodes = coded + (history >> ops.Filter("len(item_history) > 0")) + (["price"] >> ops.NormalizeMinMax())
    assert of_users(nodes, engine) == {
        "item": [3, 4, 3, 1], "item_history": [[3], [3, 3], [4], [5]], "price": [0.0, 1.0, 0.5, None],
    }  # fmt: skip


# what is refused


def test_before_groupby_a_filter_holds(engine: str) -> None:
    table = pa.table({"user": ["a", "b", "a", "b"], "price": [1.0, 2.0, 3.0, 4.0], "n": [1, 2, 3, 4]})
    dataset = Dataset(table, engine=engine).shuffle_by_keys("user")
    nodes = (["price", "n"] >> ops.Filter("n > 1") >> ops.Groupby("user", aggs="list"))["user", "price_list"]
    (frame,) = Workflow(nodes).fit_transform(dataset).frames()
    assert dict(zip(to_list(frame["user"]), to_list(frame["price_list"]), strict=True)) == {"a": [3.0], "b": [2.0, 4.0]}


def test_filters_that_wait_for_each_other_are_refused() -> None:
    left = ["x"] >> ops.Normalize() >> ops.Filter("x > 0")
    right = ["n"] >> ops.Normalize() >> ops.Filter("n > 0")
    with pytest.raises(JobError, match="filters wait for each other's statistics"):
        Bound(as_node(left + right), Dataset(TABLE).schema)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ops.Filter, "give either an expression or a function"),
        (lambda: ops.Filter("n > 1", above_two), "give either an expression or a function"),
        (lambda: ops.Filter("n >"), "expression: cannot be read"),
        (lambda: ops.Filter(function=lambda frame: frame["n"]).to_json(), "cannot be saved"),
    ],
)
def test_parameters_are_checked(make: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make()


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(JobError, match=r"Filter needs the column 'prise', which is not there\n.*did you mean 'price'"):
        Bound(as_node(["price"] >> ops.Filter("prise > 1")), Dataset(pa.table({"price": [1.0]})).schema)


# jobs


def test_an_entry_that_is_not_kept_filters_all_the_same(tmp_path: Path, engine: str) -> None:
    pq.write_table(TABLE, tmp_path / "in.parquet")
    job = load_job(
        {
            "source": {"path": str(tmp_path / "in.parquet")},
            "features": [
                {"columns": ["x"], "ops": [{"op": "Filter", "expression": "x < 50"}], "keep": False},
                {"columns": ["n"], "ops": [{"op": "NormalizeMinMax"}]},
            ],
            "label": ["kind"],
            "output": {"path": str(tmp_path / "out")},
        }
    )
    found = made(job.graph(), TABLE, engine)
    assert found == {"n": [0.0, 0.3333333432674408, 1.0], "kind": ["a", "b", None]}


def test_source_filter_and_filters_of_the_graph_hold_together(tmp_path: Path, engine: str) -> None:
    pq.write_table(TABLE, tmp_path / "in.parquet")
    job = load_job(
        {
            "source": {"path": str(tmp_path / "in.parquet"), "filter": "n != 2"},
            "features": [
                {"columns": ["n"], "ops": [{"op": "NormalizeMinMax"}, {"op": "Filter", "expression": "n < 1"}]}
            ],
            "label": ["kind"],
            "output": {"path": str(tmp_path / "out"), "shuffle": "none", "files": 1},
        }
    )
    run_stages(job.request(engine))
    found = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    assert found.to_pydict() == {"n": [0.0, 0.5, 0.75], "kind": ["a", "a", None]}


KEEP = st.lists(st.tuples(st.integers(-9, 9), st.one_of(st.none(), st.integers(-9, 9))), min_size=1, max_size=30)


@pytest.mark.system
@examples(30)
@given(rows=KEEP, bound=st.integers(-9, 9))
def test_filtering_in_the_graph_is_filtering_before(
    rows: list[tuple[int, int | None]], bound: int, engine: str
) -> None:
    nodes = ["a"] + (["b"] >> ops.NormalizeMinMax())

    def table(kept: list[tuple[int, int | None]]) -> pa.Table:
        return pa.table(
            {"a": pa.array([a for a, _ in kept], pa.int64()), "b": pa.array([b for _, b in kept], pa.int64())}
        )

    left = [(a, b) for a, b in rows if a > bound]
    found = made(nodes + (["a"] >> ops.Filter(f"a > {bound}") >> ops.Rename(name="c")), table(rows), engine)
    assert found["a"] == [a for a, _ in left]
    if left:
        assert found["b"] == made(nodes, table(left), engine)["b"]


@pytest.mark.promise("After Groupby a filter keeps groups, for the columns and statistics of groups")
@examples(30)
@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), min_size=1, max_size=30),
    least=st.integers(1, 4),
    partition_size=st.sampled_from([1, 160, 1 << 30]),
)
def test_a_filter_of_groups_is_the_min_length_of_groupby_for_any_partition(
    rows: list[tuple[int, int]], least: int, partition_size: int, engine: str
) -> None:
    table = pa.table({"k": [k for k, _ in rows], "x": [x for _, x in rows], "i": range(len(rows))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.shuffle.key_ranges.key_blocks", lambda rows: 8)
        dataset = Dataset(table, engine=engine, partition_size=partition_size).shuffle_by_keys("k", "i")

    def found(grouped: Any) -> dict[str, list[Any]]:
        ids, scaled = grouped["x_list"] >> ops.Categorify(), grouped["x_mean"] >> ops.NormalizeMinMax()
        columns: dict[str, list[Any]] = {}
        for frame in Workflow(ids + scaled + grouped["k"]).fit_transform(dataset).frames():
            for name in frame.columns:
                columns.setdefault(name, []).extend(to_list(frame[name]))
        return columns

    aggs = {"x": ["list", "count", "mean"]}
    filtered = ["x"] >> ops.Groupby("k", aggs=aggs) >> ops.Filter(f"x_count >= {least}")
    assert found(filtered) == found(["x"] >> ops.Groupby("k", aggs=aggs, min_length=least))
