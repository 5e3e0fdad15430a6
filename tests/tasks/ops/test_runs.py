"""Runs of equal keys: differences, windows, one row per key; values are pandas', or written out."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import ops
from tasks.core.dtypes import dtype_name
from tasks.core.schema import Schema
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tasks.graph.node import as_node
from tasks.workflow import Workflow
from tests.examples import examples
from tests.frames import to_list

VISITS = pa.table(
    {
        "user": ["b", "a", "b", None, "a", "b", None],
        "time": pa.array([30, 10, 20, 5, 12, 25, 1], pa.timestamp("s")),
        "price": [1.0, 2.0, None, 4.0, 5.0, 6.0, 7.0],
        "item": ["u", "v", "w", None, "v", "u", "z"],
        "number": pa.array([1, 2, 3, 4, None, 6, 7], pa.int32()),
    }
)


def made(nodes: Any, table: pa.Table, keys: Any, sort_by: Any, engine: str) -> dict[str, list[Any]]:
    """The output columns for rows grouped by keys."""
    dataset = Dataset(table, engine=engine).shuffle_by_keys(keys, sort_by)
    workflow, found = Workflow(nodes).fit(dataset), dict[str, list[Any]]()
    for frame in workflow.transform(dataset).frames():
        for name in frame.columns:
            found.setdefault(name, []).extend(to_list(frame[name]))
    return found


def types(nodes: Any, table: pa.Table) -> dict[str, str]:
    output = Bound(as_node(nodes), Schema.from_arrow(table.schema)).output
    return {c.name: dtype_name(c.dtype) for c in output.columns}


# DifferenceLag


@pytest.mark.promise(
    "Subtract from each value the one `shift` rows before it in its run: `<column>_difference_lag_<shift>`, float64",
    "tasks/ops/README.md#differencelag",
)
def test_difference_lag_is_inside_a_run_and_of_times_in_seconds(engine: str) -> None:
    lag = ["time", "price"] >> ops.DifferenceLag("user", [1, -1])
    assert made(["user", *[lag]], VISITS, "user", "time", engine) == {
        "user": ["a", "a", "b", "b", "b", None, None],
        "time_difference_lag_1": [None, 2.0, None, 5.0, 5.0, None, 4.0],
        "time_difference_lag_-1": [-2.0, None, -5.0, -5.0, None, -4.0, None],
        "price_difference_lag_1": [None, 3.0, None, None, -5.0, None, -3.0],
        "price_difference_lag_-1": [-3.0, None, None, 5.0, None, 3.0, None],
    }


@pytest.mark.parametrize(
    ("values", "dtype", "difference"),
    [
        ([2**62, 2**62 + 1], pa.int64(), 1.0),
        ([2**64 - 3, 2**64 - 1], pa.uint64(), 2.0),
        ([-(2**63), 2**63 - 1], pa.int64(), 2.0**64),
        ([5, 3], pa.uint8(), -2.0),
        ([1_700_000_000_000_000_001, 1_700_000_001_000_000_001], pa.timestamp("ns"), 1.0),
        ([dt.datetime(2020, 2, 28), dt.datetime(2020, 3, 1, 0, 0, 0, 250_000)], pa.timestamp("us"), 172_800.25),
        ([dt.date(2020, 2, 28), dt.date(2020, 3, 1)], pa.date32(), 172_800.0),
        ([1.5, 1.0], pa.float32(), -0.5),
    ],
)
def test_differences_lose_nothing(values: list[Any], dtype: pa.DataType, difference: float, engine: str) -> None:
    table = pa.table({"k": [1, 1], "x": pa.array(values, dtype)})
    found = made(["x"] >> ops.DifferenceLag(["k"]), table, "k", (), engine)
    assert found == {"x_difference_lag_1": [None, difference]}


def test_infinite_minus_infinite_is_null(engine: str) -> None:
    table = pa.table({"k": [1, 1, 1], "x": [float("inf"), float("inf"), 1.0]})
    found = made(["x"] >> ops.DifferenceLag("k"), table, "k", (), engine)
    assert found == {"x_difference_lag_1": [None, None, float("-inf")]}


def test_runs_of_more_columns_than_the_keys_are_found_where_they_lie_apart(engine: str) -> None:
    table = pa.table({"k": [1, 1, 1, 1, 1], "part": ["x", "y", "x", None, "y"], "v": [1, 10, 4, 0, 30]})
    found = made(["v"] >> ops.DifferenceLag(["k", "part"]), table, "k", (), engine)
    assert found == {"v_difference_lag_1": [None, None, 3.0, None, 20.0]}
    found = made(["v"] >> ops.Groupby(["k", "part"], aggs=["list", "sum"]), table, "k", (), engine)
    assert found == {"k": [1, 1, 1], "part": ["x", "y", None], "v_list": [[1, 4], [10, 30], [0]], "v_sum": [5, 40, 0]}


# Rolling


def test_rolling_stays_inside_a_run_and_leaves_nulls_out(engine: str) -> None:
    found = made(["price"] >> ops.Rolling(2, ["mean", "max"], "user", min_periods=1), VISITS, "user", "time", engine)
    assert found == {
        "price_rolling_mean_2": [2.0, 3.5, None, 6.0, 3.5, 7.0, 5.5],
        "price_rolling_max_2": [2.0, 5.0, None, 6.0, 6.0, 7.0, 7.0],
    }
    found = made(["price"] >> ops.Rolling(2, "sum", "user"), VISITS, "user", "time", engine)
    assert found == {"price_rolling_sum_2": [None, 7.0, None, None, 7.0, None, 11.0]}


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(-1000, 1000).map(lambda n: n / 8))),
    min_size=1,
    max_size=40,
)


@pytest.mark.promise(
    "Compute mean, sum, min or max of a run's last `window` rows: `<column>_rolling_<aggregation>_<window>`, float64",
    "tasks/ops/README.md#rolling",
)
@examples(40)
@given(rows=ROWS, window=st.integers(1, 9), least=st.integers(1, 9))
def test_rolling_is_pandas(rows: list[tuple[int, float | None]], window: int, least: int, engine: str) -> None:
    least = min(least, window)
    table = pa.table(
        {"k": [k for k, _ in rows], "x": pa.array([x for _, x in rows], pa.float64()), "i": range(len(rows))}
    )
    frame = pd.DataFrame({"k": [k for k, _ in rows], "x": np.array([x for _, x in rows], dtype=float)})
    wanted = ["sum", "mean", "min", "max"]
    found = made(["i", *[["x"] >> ops.Rolling(window, wanted, "k", least)]], table, "k", "i", engine)
    for name in wanted:
        expected = frame.groupby("k")["x"].rolling(window, least).agg(name).droplevel(0)
        values = pd.Series(np.array(found[f"x_rolling_{name}_{window}"], dtype=float), index=found["i"]).sort_index()
        pd.testing.assert_series_equal(values, expected.sort_index(), check_names=False, rtol=1e-12, atol=1e-12)


def test_rolling_sums_do_not_carry_what_left_the_window(engine: str) -> None:
    table = pa.table({"k": [1] * 4, "x": [1e20, 1.0, 2.0, 3.0]})
    assert made(["x"] >> ops.Rolling(2, "sum", "k", 1), table, "k", (), engine) == {
        "x_rolling_sum_2": [1e20, 1e20, 3.0, 5.0]
    }


# Groupby


def test_groupby_makes_one_row_per_key(engine: str) -> None:
    grouped = ["price", "item", "number", "time"] >> ops.Groupby(
        "user",
        aggs={
            "price": ["list", "count", "sum", "mean", "median"],
            "item": ["list", "first", "last", "nunique", "min", "max"],
            "number": ["list", "sum", "min", "var"],
            "time": ["first", "max"],
        },
    )
    assert made(grouped, VISITS, "user", "time", engine) == {
        "user": ["a", "b", None],
        "price_list": [[2.0, 5.0], [None, 6.0, 1.0], [7.0, 4.0]],
        "price_count": [2, 2, 2],
        "price_sum": [7.0, 7.0, 11.0],
        "price_mean": [3.5, 3.5, 5.5],
        "price_median": [3.5, 3.5, 5.5],
        "item_list": [["v", "v"], ["w", "u", "u"], ["z", None]],
        "item_first": ["v", "w", "z"],
        "item_last": ["v", "u", None],
        "item_nunique": [1, 2, 1],
        "item_min": ["v", "u", "z"],
        "item_max": ["v", "w", "z"],
        "number_list": [[2, None], [3, 6, 1], [7, 4]],
        "number_sum": [2, 10, 11],
        "number_min": [2, 1, 4],
        "number_var": [None, 6.333333333333334, 4.5],
        "time_first": [dt.datetime(1970, 1, 1, 0, 0, s) for s in (10, 20, 1)],
        "time_max": [dt.datetime(1970, 1, 1, 0, 0, s) for s in (12, 30, 5)],
    }


def test_groupby_types_are_known_before_any_row_is_read() -> None:
    table = pa.table({"k": pa.array([], pa.int8()), "u": pa.array([], pa.uint16()), "f": pa.array([], pa.float32()),
                      "b": pa.array([], pa.bool_()), "s": pa.array([], pa.string())})  # fmt: skip
    grouped = ["k", "u", "f", "b", "s"] >> ops.Groupby(
        ["k"],
        aggs={
            "u": ["list", "sum", "mean", "min"],
            "f": ["sum", "max", "std"],
            "b": ["sum", "first"],
            "s": ["list", "nunique"],
        },
    )
    assert types(grouped, table) == {
        "k": "int8", "u_list": "list<uint16>", "u_sum": "uint64", "u_mean": "float64", "u_min": "uint16",
        "f_sum": "float64",
        "f_max": "float32", "f_std": "float64", "b_sum": "int64", "b_first": "bool",
        "s_list": "list<string>", "s_nunique": "int64",
    }  # fmt: skip


def test_a_list_of_aggregations_is_for_all_columns_but_the_keys(engine: str) -> None:
    found = made(
        ["user", "number"] >> ops.Groupby(["user"], aggs=["last", "count"], name_sep="."),
        VISITS,
        "user",
        "time",
        engine,
    )
    assert found == {"user": ["a", "b", None], "number.last": [None, 1, 4], "number.count": [1, 3, 2]}


def test_sort_cols_sort_inside_a_key_whatever_the_source_order(engine: str) -> None:
    grouped = ["item"] >> ops.Groupby("user", ["price"], ["list", "first"])
    found = made(grouped, VISITS, "user", (), engine)
    assert (found["item_list"], found["item_first"]) == ([["v", "v"], ["w", "u", "u"], [None, "z"]], ["v", "w", None])
    grouped = ["item"] >> ops.Groupby("user", ["price"], "list", ascending=False)
    assert made(grouped, VISITS, "user", (), engine)["item_list"] == [["v", "v"], ["w", "u", "u"], ["z", None]]


def test_ties_keep_the_order_they_had(engine: str) -> None:
    table = pa.table({"k": [1] * 6, "s": [2, 1, 2, 1, None, 1], "i": list("abcdef")})
    assert made(["i"] >> ops.Groupby("k", "s"), table, "k", (), engine)["i_list"] == [list("ebdfac")]


def test_all_null_and_single_values(engine: str) -> None:
    table = pa.table(
        {"k": [1, 1, 2], "x": pa.array([None, None, 3.0], pa.float64()), "s": pa.array([None, None, "q"], pa.string())}
    )
    names = ["count", "nunique", "sum", "mean", "std", "var", "min", "max", "median", "list"]
    found = made(
        ["x", "s"] >> ops.Groupby("k", aggs={"x": names, "s": ["min", "max", "nunique"]}), table, "k", (), engine
    )
    assert found == {
        "k": [1, 2], "x_count": [0, 1], "x_nunique": [0, 1], "x_sum": [0.0, 3.0], "x_mean": [None, 3.0],
        "x_std": [None, None],
        "x_var": [None, None], "x_min": [None, 3.0], "x_max": [None, 3.0], "x_median": [None, 3.0],
        "x_list": [[None, None], [3.0]],
        "s_min": [None, "q"], "s_max": [None, "q"], "s_nunique": [0, 1],
    }  # fmt: skip


def test_the_median_of_large_values_is_finite(engine: str) -> None:
    table = pa.table({"k": [1, 1, 2, 2], "x": [1.7e308, 1.6e308, -math.inf, 1.0]})
    found = made(["x"] >> ops.Groupby("k", aggs="median"), table, "k", (), engine)
    assert found == {"k": [1, 2], "x_median": [1.7e308 / 2 + 1.6e308 / 2, -math.inf]}


def test_the_median_of_both_infinities_is_null(engine: str) -> None:
    table = pa.table({"k": [1, 1], "x": [math.inf, -math.inf]})
    assert made(["x"] >> ops.Groupby("k", aggs="median"), table, "k", (), engine) == {"k": [1], "x_median": [None]}


def test_sums_of_integers_beyond_64_bits_are_refused(engine: str) -> None:
    def total(values: list[int], dtype: pa.DataType) -> list[Any]:
        table = pa.table({"k": [1] * len(values), "n": pa.array(values, dtype)})
        return made(["n"] >> ops.Groupby("k", aggs="sum"), table, "k", (), engine)["n_sum"]

    assert total([2**63 - 1, -1, 1], pa.int64()) == [2**63 - 1]
    assert total([2**63, 2**63 - 1], pa.uint64()) == [2**64 - 1]
    assert total([100] * 3, pa.int8()) == [300]
    for values, dtype in (([2**63 - 1, 1], pa.int64()), ([2**63, 2**63], pa.uint64())):
        with pytest.raises(DataError, match="a sum of integers is beyond 64 bits"):
            total(values, dtype)


def test_sums_of_integers_are_exact_and_variances_right_at_large_offsets(engine: str) -> None:
    table = pa.table({"k": [1, 1, 1], "n": [2**53, 1, 1], "t": [1e9, 1e9 + 1, 1e9 + 2], "c": [0.1, 0.1, 0.1]})
    found = made(["n", "t", "c"] >> ops.Groupby("k", aggs={"n": "sum", "t": "var", "c": "var"}), table, "k", (), engine)
    assert found == {"k": [1], "n_sum": [2**53 + 2], "t_var": [1.0], "c_var": [0.0]}


@pytest.mark.promise("Make one row of all rows of a key: the keys under their names, then `<column>_<aggregation>`")
@examples(40)
@given(rows=ROWS)
def test_groupby_is_pandas(rows: list[tuple[int, float | None]], engine: str) -> None:
    table = pa.table(
        {"k": [k for k, _ in rows], "x": pa.array([x for _, x in rows], pa.float64()), "i": range(len(rows))}
    )
    frame = pd.DataFrame({"k": [k for k, _ in rows], "x": np.array([x for _, x in rows], dtype=float)})
    names = ["count", "nunique", "sum", "mean", "std", "var", "min", "max", "median"]
    found = made(["x"] >> ops.Groupby("k", aggs=names), table, "k", "i", engine)
    grouped = frame.groupby("k")["x"]
    for name in names:
        values = pd.Series(np.array(found[f"x_{name}"], dtype=float), index=found["k"]).sort_index()
        expected = grouped.agg(name).astype(float)
        pd.testing.assert_series_equal(values, expected, check_names=False, rtol=1e-12, atol=1e-12)
    whole = made(["x"] >> ops.Groupby("k"), table, "k", "i", engine)
    assert dict(zip(whole["k"], whole["x_list"], strict=True)) == {
        k: [None if pd.isna(x) else x for x in group] for k, group in grouped
    }


@pytest.mark.promise("Keys with fewer than `min_length` rows (default 1) are dropped", "tasks/ops/README.md#groupby")
def test_short_keys_are_dropped_and_long_ones_are_cut(engine: str) -> None:
    columns, aggs = ["item", "price"], {"item": ["list", "first", "last", "nunique"], "price": ["list", "sum", "count"]}
    grouped = columns >> ops.Groupby("user", aggs=aggs, min_length=3)
    assert made(grouped, VISITS, "user", "time", engine) == {
        "user": ["b"], "item_list": [["w", "u", "u"]], "item_first": ["w"], "item_last": ["u"], "item_nunique": [2],
        "price_list": [[None, 6.0, 1.0]], "price_sum": [7.0], "price_count": [2],
    }  # fmt: skip
    grouped = columns >> ops.Groupby("user", aggs=aggs, max_length=2)
    assert made(grouped, VISITS, "user", "time", engine) == {
        "user": ["a", "b", None], "item_list": [["v", "v"], ["w", "u"], ["z", None]], "item_first": ["v", "w", "z"],
        "item_last": ["v", "u", None], "item_nunique": [1, 2, 1],
        "price_list": [[2.0, 5.0], [None, 6.0], [7.0, 4.0]], "price_sum": [7.0, 6.0, 11.0], "price_count": [2, 1, 2],
    }  # fmt: skip
    grouped = columns >> ops.Groupby("user", aggs=aggs, max_length=1, last=True)
    assert made(grouped, VISITS, "user", "time", engine) == {
        "user": ["a", "b", None], "item_list": [["v"], ["u"], [None]], "item_first": ["v", "u", None],
        "item_last": ["v", "u", None], "item_nunique": [1, 1, 0],
        "price_list": [[5.0], [1.0], [4.0]], "price_sum": [5.0, 1.0, 4.0], "price_count": [1, 1, 1],
    }  # fmt: skip


def test_a_key_is_dropped_for_all_its_rows_not_for_those_that_are_left(engine: str) -> None:
    grouped = ["item"] >> ops.Groupby("user", min_length=3, max_length=1)
    assert made(grouped, VISITS, "user", "time", engine) == {"user": ["b"], "item_list": [["w"]]}


def test_the_last_rows_of_ties_are_those_that_came_last(engine: str) -> None:
    table = pa.table({"k": [1] * 6, "s": [2, 1, 2, 1, None, 1], "i": list("abcdef")})
    for max_length, expected in ((3, "fac"), (5, "bdfac"), (9, "ebdfac")):
        grouped = ["i"] >> ops.Groupby("k", "s", max_length=max_length, last=True)
        assert made(grouped, table, "k", (), engine)["i_list"] == [list(expected)]
    grouped = ["i"] >> ops.Groupby("k", "s", ascending=False, max_length=2, last=True)
    assert made(grouped, table, "k", (), engine)["i_list"] == [list("df")]


def test_no_key_is_long_enough(engine: str) -> None:
    grouped = ["item", "price"] >> ops.Groupby("user", aggs=["list", "min", "count"], min_length=9)
    assert {name: len(values) for name, values in made(grouped, VISITS, "user", "time", engine).items()} == {
        "user": 0, "item_list": 0, "item_min": 0, "item_count": 0, "price_list": 0, "price_min": 0, "price_count": 0,
    }  # fmt: skip


@pytest.mark.promise("Keys with fewer than `min_length` rows (default 1) are dropped")
def test_dropped_keys_count_as_dropped_rows(engine: str, tmp_path: Path) -> None:
    dataset = Dataset(VISITS, engine=engine).shuffle_by_keys("user", "time")
    grouped = Workflow(["item"] >> ops.Groupby("user", min_length=3)).fit_transform(dataset)
    assert grouped.to_parquet(tmp_path / "out", files=1).rows == {"in": 7, "dropped": 6, "added": 0, "out": 1}


@pytest.mark.promise("Make one row of all rows of a key: the keys under their names, then `<column>_<aggregation>`")
@examples(40)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3) | st.none(), st.integers(0, 2) | st.none()), min_size=1, max_size=30),
    min_length=st.integers(1, 6),
    max_length=st.none() | st.integers(1, 6),
    last=st.booleans(),
    partition_size=st.sampled_from([1, 160, 1 << 30]),
)
def test_lengths_are_those_of_pandas_for_any_partition(
    rows: list[tuple[int | None, int | None]], min_length: int, max_length: int | None, last: bool,
    partition_size: int, engine: str,
) -> None:  # fmt: skip
    table = pa.table(
        {"k": pa.array([k for k, _ in rows], pa.int64()), "s": pa.array([s for _, s in rows], pa.int64()),
         "i": range(len(rows))}
    )  # fmt: skip
    names = ["list", "first", "last", "count", "sum", "max"]
    op = ops.Groupby("k", "s", {"i": names}, min_length=min_length, max_length=max_length,
                     last=last and max_length is not None)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.shuffle.key_ranges.key_blocks", lambda rows: 8)
        dataset = Dataset(table, engine=engine, partition_size=partition_size).shuffle_by_keys("k", "i")
    workflow, found = Workflow(["i"] >> op).fit(dataset), dict[Any, Any]()
    for frame in workflow.transform(dataset).frames():
        columns = [to_list(frame[name]) for name in ("k", *(f"i_{agg}" for agg in names))]
        found |= {k: tuple(values) for k, *values in zip(*columns, strict=True)}
    frame = table.to_pandas(types_mapper=pd.ArrowDtype).sort_values("s", kind="stable", na_position="first")
    expected = {}
    for k, group in frame.groupby("k", dropna=False)["i"]:
        if len(group) >= min_length:
            most = len(group) if max_length is None else max_length
            items = (group.tail(most) if op.last else group.head(most)).tolist()
            key = None if pd.isna(k) else int(k)
            expected[key] = (items, items[0], items[-1], len(items), sum(items), max(items))
    assert found == expected


def test_operators_go_on_after_groupby(engine: str) -> None:
    lists = ["item", "price"] >> ops.Groupby("user")
    coded = lists["item_list"] >> ops.ListSlice(-2) >> ops.Categorify()
    found = made(["user"] >> ops.Groupby("user", aggs={"price": "count"}), VISITS, "user", "time", engine)
    assert found == {"user": ["a", "b", None], "price_count": [2, 2, 2]}
    assert made(coded, VISITS, "user", "time", engine) == {"item_list": [[4, 4], [3, 3], [5, 1]]}


def test_columns_from_before_and_after_groupby_do_not_mix(engine: str) -> None:
    with pytest.raises(JobError, match="the columns 'price' and 'item_list' have different rows"):
        made(["price"] + (["item"] >> ops.Groupby("user")), VISITS, "user", "time", engine)


def test_a_frame_is_transformed_as_it_stands_without_keys(engine: str) -> None:
    dataset = Dataset(VISITS, engine=engine).shuffle_by_keys("user", "time")
    workflow = Workflow(["item"] >> ops.Groupby("user")).fit(dataset)
    given = pa.table({"user": ["x", "y", "x"], "time": VISITS["time"][:3], "price": [1.0, 2.0, 3.0],
                      "item": ["1", "2", "3"], "number": VISITS["number"][:3]})  # fmt: skip
    assert workflow.transform(given).to_pydict() == {"user": ["x", "y"], "item_list": [["1", "3"], ["2"]]}


# what is refused


RUN_OPS = [
    ops.DifferenceLag("user"),
    ops.Rolling(2, "mean", "user"),
    ops.Lag("user"),
    ops.History(2, "user"),
    ops.Groupby("user"),
]


@pytest.mark.parametrize("op", RUN_OPS, ids=lambda op: type(op).__name__)
def test_without_keys_they_say_what_is_missing(op: Any, engine: str) -> None:
    expected = (
        f"{type(op).__name__} needs all rows of user together\n"
        "  why: the source has no keys, so rows of one key lie in several partitions\n"
        r"  do: set source.keys to \['user'\] \(in Python: Dataset.shuffle_by_keys\), and source.sort_by to their order"
    )
    with pytest.raises(JobError, match=expected):
        Workflow(["price"] >> op).fit(Dataset(VISITS, engine=engine))
    with pytest.raises(JobError, match=r"why: source.keys is \['item'\]"):
        Workflow(["price"] >> op).fit(Dataset(VISITS, engine=engine).shuffle_by_keys("item"))
    with pytest.raises(JobError, match=r"why: source.keys is \['item', 'user'\]"):
        Workflow(["price"] >> op).fit(Dataset(VISITS, engine=engine).shuffle_by_keys(["user", "item"]))


def test_a_key_that_an_operator_hands_on_is_as_it_stands_in_the_source(engine: str) -> None:
    dataset = Dataset(VISITS, engine=engine).shuffle_by_keys("user")
    names = pa.table({"user": VISITS["user"].unique(), "name": [f"n{n}" for n in range(len(VISITS["user"].unique()))]})
    for step in (ops.JoinExternal(names, on="user"), ops.DataStats(), ops.Dropna()):
        out = Workflow((["user", "price"] >> step)["price"] >> ops.Lag("user")).fit(dataset)
        assert list(out.output_schema) == ["price_lag_1"]
    made = (["item"] >> ops.Rename(name="user")) + ["price"]
    with pytest.raises(JobError, match="Rename before it makes it, so that rows of one value may lie in several"):
        Workflow(made["price"] >> ops.Lag("user")).fit(dataset)


@pytest.mark.parametrize("op", RUN_OPS, ids=lambda op: type(op).__name__)
def test_a_key_that_was_changed_before_is_refused(op: Any, engine: str) -> None:
    dataset = Dataset(VISITS, engine=engine).shuffle_by_keys("user")
    coded = (["user"] >> ops.Categorify()) + ["price"]
    chosen = coded["price", "user"] if isinstance(op, ops.Groupby) else coded["price"]
    refused = (
        f"{type(op).__name__} needs the column 'user' as it stands in the source\n  why: Categorify before it changes"
    )
    with pytest.raises(JobError, match=refused):
        Workflow(chosen >> op).fit(dataset)
    tagged = (["user"] >> ops.AddTags(["user_id"])) + ["price"]
    chosen = tagged["price", "user"] if isinstance(op, ops.Groupby) else tagged["price"]
    assert Workflow(chosen >> op).fit(dataset).output_schema


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ops.DifferenceLag, "DifferenceLag needs the parameter 'partition_cols'"),
        (lambda: ops.DifferenceLag("k", 0), "a shift of 0 is the row itself"),
        (lambda: ops.DifferenceLag("k", []), "at least one is needed"),
        (lambda: ops.Rolling(0, "mean", "k"), "window must be 1 or more, not 0"),
        (lambda: ops.Rolling(2, "mean", "k", 3), r"min_periods must be from 1 to window \(2\), not 3"),
        (lambda: ops.Rolling(2, "median", "k"), "aggregation"),
        (lambda: ops.Groupby([]), "at least one is needed"),
        (lambda: ops.Groupby("k", aggs="lst"), "aggs"),
        (lambda: ops.Groupby("k", min_length=0), "min_length must be 1 or more, not 0"),
        (lambda: ops.Groupby("k", max_length=0), "max_length must be 1 or more, not 0"),
        (lambda: ops.Groupby("k", last=True), "last needs max_length, the number of last rows"),
        (lambda: ops.Groupby("k", agg="list"), "Groupby has no parameter 'agg'"),
    ],
)
def test_parameters_are_checked(make: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make()


@pytest.mark.parametrize(
    ("op", "columns", "message"),
    [
        (ops.Groupby("user", aggs="mean"), ["item"], "Groupby cannot make mean of column 'item' of type string"),
        (ops.Groupby("user", aggs="sum"), ["time"], r"Groupby cannot make sum of column 'time' of type timestamp\[s\]"),
        (ops.DifferenceLag("user"), ["item"], "DifferenceLag does not take column 'item' of type string"),
        (ops.Rolling(2, "mean", "user"), ["time"], r"Rolling does not take column 'time' of type timestamp\[s\]"),
    ],
)
def test_columns_are_checked_before_any_row_is_read(op: Any, columns: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        types(columns >> op, VISITS)


# the order of rows and files


def sizes(folder: Path) -> list[int]:
    return [pq.read_metadata(path).num_rows for path in sorted(folder.glob("*.parquet"))]


def events(rows: int, keys: int) -> pa.Table:
    key = (np.arange(rows) * 7919) % keys
    return pa.table({"key": key, "time": np.arange(rows)[::-1], "x": np.arange(rows, dtype=float)})


def lists_of(folder: Path) -> list[tuple[int, list[float]]]:
    table = pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("*.parquet")))
    return list(zip(table["key"].to_pylist(), table["x_list"].to_pylist(), strict=True))


def test_a_full_shuffle_after_groupby_gives_files_of_exact_size(engine: str, tmp_path: Path) -> None:
    table = events(1000, 103)
    dataset = Dataset(table, engine=engine).shuffle_by_keys("key", "time")
    Workflow(["x"] >> ops.Groupby("key")).fit_transform(dataset).to_parquet(
        tmp_path / "out", shuffle="full", seed=5, files=4
    )
    assert sizes(tmp_path / "out") == [25, 26, 26, 26]
    found = lists_of(tmp_path / "out")
    assert [k for k, _ in found] != sorted(k for k, _ in found)
    key, x = table["key"].to_numpy(), table["x"].to_numpy()
    assert dict(found) == {k: x[key == k][::-1].tolist() for k in range(103)}


@pytest.mark.parametrize("mode", ["none", "partition", "worker", "full", "key"])
def test_every_shuffle_writes_each_group_once(mode: str, engine: str, tmp_path: Path) -> None:
    dataset = Dataset(events(500, 37), engine=engine).shuffle_by_keys("key", "time")
    keys = {"keys": ["key"]} if mode == "key" else {}
    Workflow(["x"] >> ops.Groupby("key")).fit_transform(dataset).to_parquet(
        tmp_path / "out", shuffle=mode, files=3, **keys
    )
    assert sorted(k for k, _ in lists_of(tmp_path / "out")) == list(range(37))
    assert len(sizes(tmp_path / "out")) == 3


def test_shuffle_by_a_source_column_that_was_grouped_away_is_refused(engine: str, tmp_path: Path) -> None:
    dataset = Dataset(events(50, 5), engine=engine).shuffle_by_keys("key")
    made = Workflow(["x"] >> ops.Groupby("key")).fit_transform(dataset)
    with pytest.raises(
        JobError, match=r"there is no column 'time'\n.*\n.*the rows were grouped.*\n  do: there are: key, x_list"
    ):
        made.to_parquet(tmp_path / "out", shuffle="key", keys=["time"])


def test_the_row_of_a_key_has_its_smallest_row_number(engine: str) -> None:
    table = pa.table({"k": ["b", "a", "b", "a", "c"], "y": [1, 0, 1, 1, 0]})
    dataset = Dataset(table, engine=engine).shuffle_by_keys("k")
    encoded = (["k", "y"] >> ops.Groupby("k", aggs={"y": "max"}))["k", "y_max"]
    folds = encoded["k"] >> ops.TargetEncoding("y_max", kfold=3, drop_folds=False)
    frames = Workflow(folds + encoded).fit_transform(dataset).frames()
    found = {k: f for frame in frames for k, f in zip(to_list(frame["k"]), to_list(frame["__fold__"]), strict=True)}
    assert found == dict(zip("bac", folds_of([0, 1, 4], 3, engine), strict=True))


def folds_of(rows: Sequence[int], kfold: int, engine: str) -> list[int]:
    """fold(row) = floor(MurmurHash3(row number) * kfold / 2^32)."""
    from tasks import engines

    kernels = engines.engine(engine)
    hashes = kernels.hash_rows(kernels.xp.asarray(rows, dtype=kernels.xp.uint64), 42)
    return [int(h) * kfold >> 32 for h in hashes.tolist()]


def test_runs_are_the_same_for_any_partition_size(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.shuffle.key_ranges.key_blocks", lambda rows: 8)
    rng = np.random.default_rng(0)
    table = pa.table({"k": rng.integers(0, 60, 4000), "t": rng.integers(0, 99, 4000), "x": rng.normal(size=4000)})
    nodes = ["k", *[["x"] >> ops.Rolling(5, "sum", "k", 1)], *[["t"] >> ops.DifferenceLag("k", [1, 2])]]
    found = []
    for size in ("20KB", "1GB"):
        dataset = Dataset(table, engine=engine, partition_size=size).shuffle_by_keys("k", "t")
        frames = list(Workflow(nodes).fit_transform(dataset).frames())
        assert len(frames) == {"20KB": 8, "1GB": 1}[size]
        found.append({name: [x for frame in frames for x in to_list(frame[name])] for name in frames[0].columns})
    assert found[0] == found[1]
    assert sum(a != b for a, b in pairwise(found[0]["k"])) == 59
