"""Histories and lags: what stood before a row, and what comes next; values are plain pandas', or written out."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import ops
from tasks.core.schema import Schema, Tags
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tasks.graph.node import as_node
from tasks.workflow import Workflow
from tests.examples import examples
from tests.frames import to_list
from tests.learning import rows
from tests.tasks.ops.test_runs import VISITS, made

CLICKS = pa.table(
    {
        "user": ["u", "v", "u", "u", None, "u", "v", None],
        "time": pa.array([10, 10, 20, 20, 5, 30, 11, 6], pa.timestamp("s")),
        "item": pa.array([1, 9, 2, 3, 7, 4, None, 8], pa.int64()),
        "brand": ["a", None, "b", "a", "x", "c", "d", "y"],
    }
)


# History


def test_a_history_has_the_rows_before_oldest_first(engine: str) -> None:
    history = ["item", "brand"] >> ops.History(2, "user")
    assert made(["user", "item", *[history]], CLICKS, "user", "time", engine) == {
        "user": ["u", "u", "u", "u", "v", "v", None, None],
        "item": [1, 2, 3, 4, 9, None, 7, 8],
        "item_history": [[], [1], [1, 2], [2, 3], [], [9], [], [7]],
        "brand_history": [[], ["a"], ["a", "b"], ["b", "a"], [], [None], [], ["x"]],
    }


@pytest.mark.promise("List for each row the values of the rows before it in its run, oldest first: `<column>_history`")
def test_rows_of_one_time_are_not_in_each_others_histories(engine: str) -> None:
    history = ["item"] >> ops.History(2, "user", time_col="time")
    assert made(["item", *[history]], CLICKS, "user", "time", engine) == {
        "item": [1, 2, 3, 4, 9, None, 7, 8],
        "item_history": [[], [1], [1], [2, 3], [], [9], [], [7]],
    }
    current = ["item"] >> ops.History(2, "user", True, time_col="time")
    assert made(current, CLICKS, "user", "time", engine) == {
        "item_history": [[1], [1, 2], [1, 3], [3, 4], [9], [9, None], [7], [7, 8]],
    }


def test_a_history_with_the_row_itself_ends_with_it(engine: str) -> None:
    history = ["item"] >> ops.History(3, "user", include_current=True)
    assert made(history, CLICKS, "user", "time", engine) == {
        "item_history": [[1], [1, 2], [1, 2, 3], [2, 3, 4], [9], [9, None], [7], [7, 8]],
    }
    alone = ["item"] >> ops.History(1, "user", include_current=True)
    assert made(alone, CLICKS, "user", "time", engine)["item_history"] == [[1], [2], [3], [4], [9], [None], [7], [8]]


def test_short_histories_are_null_and_others_are_filled_up(engine: str) -> None:
    history = ["item"] >> ops.History(3, "user", min_length=1, pad="left")
    assert made(history, CLICKS, "user", "time", engine)["item_history"] == [
        None, [0, 0, 1], [0, 1, 2], [1, 2, 3], None, [0, 0, 9], None, [0, 0, 7],
    ]  # fmt: skip
    history = ["brand"] >> ops.History(3, "user", pad="right", pad_value="-")
    assert made(history, CLICKS, "user", "time", engine)["brand_history"] == [
        ["-", "-", "-"], ["a", "-", "-"], ["a", "b", "-"], ["a", "b", "a"], ["-", "-", "-"], [None, "-", "-"],
        ["-", "-", "-"], ["x", "-", "-"],
    ]  # fmt: skip


def test_runs_that_lie_apart_have_their_own_histories(engine: str) -> None:
    table = pa.table({"k": [1, 1, 1, 1, 1], "part": ["x", "y", "x", None, "y"], "v": [1, 10, 4, 0, 30]})
    history = ["v"] >> ops.History(9, ["k", "part"], min_length=1)
    assert made(history, table, "k", (), engine) == {"v_history": [None, None, [1], None, [10]]}
    history = ["v"] >> ops.History(2, ["k", "part"], include_current=True, pad="left")
    assert made(history, table, "k", (), engine) == {"v_history": [[0, 1], [0, 10], [1, 4], [0, 0], [10, 30]]}


def test_what_is_known_of_the_values_holds_for_the_histories() -> None:
    schema = Schema.from_arrow(CLICKS.schema)
    coded = ["brand"] >> ops.Categorify() >> ops.History(5, "user", pad="left")
    column = Bound(as_node(coded), schema).output["brand_history"]
    assert column.dtype == pa.list_(pa.int32())
    assert {Tags.LIST.value, Tags.CATEGORICAL.value} <= column.tags
    assert column.properties["value_count"] == {"min": 5, "max": 5}
    (column,) = Bound(as_node(["item"] >> ops.History(5, "user")), schema).output.columns
    assert "value_count" not in column.properties
    lag = Bound(as_node(["item", "brand"] >> ops.Lag("user", -1)), schema).output
    assert [c.dtype for c in lag.columns] == [pa.int64(), pa.string()]


def test_no_rows_and_nothing_but_empty_histories(engine: str) -> None:
    table = pa.table({"k": [1, 2, 3], "x": [1, 2, 3]})
    assert made(["x"] >> ops.History(5, "k"), table, "k", (), engine) == {"x_history": [[], [], []]}
    nodes = ["x"] >> ops.Filter("x > 5")
    for history in (ops.History(5, "k"), ops.History(2, "k", True, pad="left"), ops.Lag("k")):
        (values,) = made(nodes >> history, table, "k", (), engine).values()
        assert values == []


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 3) | st.none(), st.integers(0, 4) | st.none(), st.integers(0, 9) | st.none(),
        st.sampled_from("abc"),
    ),
    min_size=1,
    max_size=30,
)  # fmt: skip


def events(rows: list[Any]) -> pa.Table:
    k, t, x, s = zip(*rows, strict=True)
    types = {"k": pa.int64(), "t": pa.int64(), "x": pa.int64(), "s": pa.string()}
    columns = {name: pa.array(values, types[name]) for name, values in zip(types, (k, t, x, s), strict=True)}
    return pa.table({**columns, "i": range(len(rows))})


def in_small_partitions(table: pa.Table, engine: str, partition_size: int) -> Dataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.shuffle.key_ranges.key_blocks", lambda rows: 8)
        return Dataset(table, engine=engine, partition_size=partition_size).shuffle_by_keys("k", "t")


def by_row(workflow: Workflow, dataset: Dataset, *names: str) -> dict[int, tuple[Any, ...]]:
    """The values of each row, by its column i."""
    found = {}
    for frame in workflow.transform(dataset).frames():
        columns = [to_list(frame[name]) for name in ("i", *names)]
        found |= {i: tuple(values) for i, *values in zip(*columns, strict=True)}
    return found


@pytest.mark.promise(
    "List for each row the values of the rows before it in its run, oldest first: `<column>_history`",
    "tasks/ops/README.md#history",
)
@examples(60)
@given(
    rows=EVENTS, length=st.integers(1, 5), current=st.booleans(), timed=st.booleans(), min_length=st.integers(0, 3),
    pad=st.sampled_from([None, "left", "right"]), partition_size=st.sampled_from([1, 160, 1 << 30]),
)  # fmt: skip
def test_histories_are_those_of_pandas_for_any_partition(
    rows: list[Any], length: int, current: bool, timed: bool, min_length: int, pad: Any, partition_size: int,
    engine: str,
) -> None:  # fmt: skip
    table = events(rows)
    min_length, time_col = min(min_length, length), "t" if timed else None
    rules: dict[str, Any] = {"length": length, "partition_cols": "k", "include_current": current, "time_col": time_col,
                             "min_length": min_length, "pad": pad}  # fmt: skip
    lists = (["x"] >> ops.History(**rules)) + (["s"] >> ops.History(**rules, pad_value="-"))
    dataset = in_small_partitions(table, engine, partition_size)
    found = by_row(Workflow(["i", *[lists]]).fit(dataset), dataset, "x_history", "s_history")

    frame = table.to_pandas(types_mapper=pd.ArrowDtype).sort_values("t", kind="stable", na_position="first")
    expected = {}
    for _, group in frame.groupby("k", dropna=False):
        for n, row in enumerate(group.to_dict("records")):
            before = group.iloc[:n]
            if timed:
                equal = before["t"].isna() if pd.isna(row["t"]) else (before["t"] == row["t"]).fillna(False)
                before = before[~equal.astype(bool)]
            before = pd.concat([before, group.iloc[n : n + 1]]) if current else before
            before = before.tail(length)
            lists_of_row: list[Any] = []
            for name, fill in (("x", 0), ("s", "-")):
                values = [None if pd.isna(value) else value for value in before[name]]
                more = [fill] * (length - len(values))
                values = {"left": more + values, "right": values + more}.get(pad, values)
                lists_of_row.append(None if len(before) < min_length else values)
            expected[row["i"]] = tuple(lists_of_row)
    assert found == expected


@pytest.mark.promise("takes no event out of the histories of later ones")
@examples(30)
@given(rows=EVENTS, length=st.integers(1, 5), partition_size=st.sampled_from([1, 160, 1 << 30]))
def test_a_filter_of_histories_is_a_filter_after_pandas_for_any_partition(
    rows: list[Any], length: int, partition_size: int, engine: str
) -> None:
    """What another filter removes is in no history; what this one removes is in those of later rows."""
    dataset = in_small_partitions(events(rows), engine, partition_size)
    history = ["x"] >> ops.History(length, "k", time_col="t") >> ops.Filter("len(x_history) > 1")
    workflow = Workflow(["i", *[history], *[["s"] >> ops.Filter("s != 'c'")]]).fit(dataset)
    found = by_row(workflow, dataset, "x_history", "s")

    frame = events(rows).to_pandas(types_mapper=pd.ArrowDtype).query("s != 'c'")
    expected = {}
    for _, group in frame.sort_values("t", kind="stable", na_position="first").groupby("k", dropna=False):
        for row in group.to_dict("records"):
            if pd.isna(row["t"]):  # before all times, and tied with each other
                continue
            earlier = group[(group["t"].isna() | (group["t"] < row["t"]).fillna(False)).astype(bool)]
            values = [None if pd.isna(value) else value for value in earlier["x"].tail(length)]
            if len(values) > 1:
                expected[row["i"]] = (values, row["s"])
    assert found == expected


# Lag


def test_a_lag_is_inside_its_run_and_of_any_type(engine: str) -> None:
    lag = ["item", "brand", "time"] >> ops.Lag("user", [1, -1])
    at = dt.datetime(1970, 1, 1)
    first, second = at + dt.timedelta(seconds=5), at + dt.timedelta(seconds=6)
    found = made(lag, CLICKS, "user", "time", engine)
    assert found["item_lag_1"] == [None, 1, 2, 3, None, 9, None, 7]
    assert found["item_lag_-1"] == [2, 3, 4, None, None, None, 8, None]
    assert found["brand_lag_1"] == [None, "a", "b", "a", None, None, None, "x"]
    assert found["time_lag_-1"][6:] == [second, None]
    assert found["time_lag_1"][6:] == [None, first]
    lists = ["item"] >> ops.History(2, "user") >> ops.Lag("user")
    assert made(lists, CLICKS, "user", "time", engine) == {
        "item_history_lag_1": [None, [], [1], [1, 2], None, [], None, []]
    }


@pytest.mark.promise(
    "Take the value `shift` rows before each row in its run: `<column>_lag_<shift>`, of the column's own type",
    "tasks/ops/README.md#lag",
)
@examples(40)
@given(rows=EVENTS, shift=st.integers(-4, 4).filter(bool), partition_size=st.sampled_from([1, 160, 1 << 30]))
def test_lags_are_those_of_pandas_for_any_partition(
    rows: list[Any], shift: int, partition_size: int, engine: str
) -> None:
    table = events(rows)
    dataset = in_small_partitions(table, engine, partition_size)
    lag = ["x", "s"] >> ops.Lag("k", shift)
    found = by_row(Workflow(["i", *[lag]]).fit(dataset), dataset, f"x_lag_{shift}", f"s_lag_{shift}")
    frame = table.to_pandas(types_mapper=pd.ArrowDtype).sort_values("t", kind="stable", na_position="first")
    moved = frame.groupby("k", dropna=False)[["x", "s"]].shift(shift)
    values = zip(frame["i"], moved["x"], moved["s"], strict=True)
    assert found == {i: tuple(None if pd.isna(v) else v for v in pair) for i, *pair in values}


@pytest.mark.promise(
    "one row per visitor: (1) add the next product as a column with `{op: Lag, shift: -1, ..}`; (2) collect both "
    "columns into lists with `Groupby`; (3) drop the last element with `ListSlice`"
)
def test_lists_of_items_and_of_the_next_items_stand_side_by_side(engine: str) -> None:
    clicks = CLICKS.filter(pa.compute.is_valid(CLICKS["item"]))
    lag = ["item"] >> ops.Lag("user", -1) >> ops.Rename(name="next")
    lists = ["item", *[lag]] >> ops.Groupby("user", aggs={"item": ["list", "count"], "next": "list"})
    sequences = lists >> ops.Filter("item_count > 1")
    inputs = sequences["item_list", "next_list"] >> ops.ListSlice(0, -1)
    assert made(inputs, clicks, "user", "time", engine) == {
        "item_list": [[1, 2, 3], [7]],
        "next_list": [[2, 3, 4], [8]],
    }


# what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.Lag("k", 0), "a shift of 0 is the row itself"),
        (lambda: ops.Lag("k", []), "at least one is needed"),
        (lambda: ops.History(0, "k"), "length must be 1 or more, not 0"),
        (lambda: ops.History(2, "k", min_length=3), r"min_length must be from 0 to length \(2\), not 3"),
        (lambda: ops.History(2, "k", min_length=-1), r"min_length must be from 0 to length \(2\), not -1"),
        (lambda: ops.History(2, []), "at least one is needed"),
        (lambda: ops.History(2, "k", pad="middle"), "pad"),
    ],
)
def test_parameters_are_checked(make: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make()


def test_a_pad_value_of_a_time_and_of_a_decimal_is_written_as_in_jobs(engine: str) -> None:
    clicks = pa.table({"user": ["u", "u"], "day": pa.array([1, 2], pa.date32()), "price": pa.array([1, 2], pa.int8())})
    clicks = clicks.set_column(2, "price", clicks["price"].cast(pa.decimal128(5, 2)))
    days = ["day"] >> ops.History(1, "user", pad="left", pad_value="2020-01-31")
    prices = ["price"] >> ops.History(1, "user", pad="left", pad_value=0.5)
    assert rows([*[days], *[prices]], clicks, engine) == {
        "day_history": [[dt.date(2020, 1, 31)], [dt.date(1970, 1, 2)]],
        "price_history": [[Decimal("0.50")], [Decimal("1.00")]],
    }


def test_a_pad_value_of_another_type_and_lists_are_refused() -> None:
    schema = Schema.from_arrow(VISITS.schema)
    with pytest.raises(DataError, match="History: pad_value 0 does not fit column 'item' of type string"):
        Bound(as_node(["item"] >> ops.History(2, "user", pad="left")), schema)
    lists = ["item"] >> ops.History(2, "user")
    with pytest.raises(DataError, match="History does not take column 'item_history' of type list<string>"):
        Bound(as_node(lists >> ops.History(2, "user")), schema)


def test_more_values_than_a_column_of_lists_holds_are_refused(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.engines.algorithms.key_runs.MOST_ELEMENTS", 6)
    assert made(["item"] >> ops.History(2, "user", time_col="time"), CLICKS, "user", "time", engine)
    for history in (ops.History(3, "user"), ops.History(1, "user", pad="left")):
        with pytest.raises(DataError, match=r"the histories of one partition have [78] elements together"):
            made(["item"] >> history, CLICKS, "user", "time", engine)
