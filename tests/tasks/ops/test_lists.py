"""Facts about slices and lengths of lists."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import ops
from tasks.dataset import Dataset
from tasks.engines import cpu
from tasks.errors import DataError, JobError
from tasks.graph.state import State
from tasks.workflow import Workflow
from tests.examples import examples
from tests.learning import applied, cut, rows
from tests.tasks.ops.fitting import learned, one_column

LISTS = [[1, 2, 3, 4], [], None, [5], [6, None, 8]]
INTS = pa.list_(pa.int64())


@pytest.mark.promise(
    "Take list[start:end] of every list, as Python does, negative numbers counting from the end; null lists stay null",
    "tasks/ops/README.md#listslice",
)
@pytest.mark.parametrize(
    ("start", "end"), [(0, 2), (1, None), (-2, None), (0, -1), (2, 1), (-3, -1), (10, None), (-10, 10)]
)
def test_every_list_is_sliced_as_python_does(engine, start, end):
    expected = [None if v is None else v[start:end] for v in LISTS]
    assert one_column(ops.ListSlice(start, end), LISTS, INTS, engine) == expected


def test_padding_fills_up_on_the_right(engine):
    assert one_column(ops.ListSlice(1, 3, pad=True), LISTS, INTS, engine) == [[2, 3], [0, 0], None, [0, 0], [None, 8]]
    assert one_column(ops.ListSlice(-2, pad=True, pad_value=-1), LISTS, INTS, engine) == [
        [3, 4], [-1, -1], None, [5, -1], [None, 8],
    ]  # fmt: skip


def test_lists_of_text_are_sliced_and_padded(engine):
    values = [["a", "b"], None, ["c"]]
    assert one_column(ops.ListSlice(0, 2, pad=True, pad_value=""), values, pa.list_(pa.string()), engine) == [
        ["a", "b"], None, ["c", ""],
    ]  # fmt: skip


@examples(60)
@given(
    st.lists(st.none() | st.lists(st.integers(0, 9), max_size=6), max_size=8),
    st.integers(-7, 7),
    st.none() | st.integers(-7, 7),
)
def test_any_slice_of_any_lists(values, start, end):
    column = ops.ListSlice(start, end)
    expected = [None if v is None else v[start:end] for v in values]
    assert one_column(column, values or [[]], INTS, "pandas") == (expected or [[]])


@pytest.mark.parametrize(("start", "end"), [(0, None), (0, -1), (-2, 3), (3, 1)])
def test_padding_needs_a_known_width(start, end):
    with pytest.raises(JobError, match="pad needs a start and an end of one sign"):
        ops.ListSlice(start, end, pad=True)


def test_a_pad_value_of_a_time_is_written_as_in_jobs(engine):
    days = pa.table({"x": pa.array([[datetime.date(2020, 1, 1)], []], pa.list_(pa.date32()))})
    padded = rows(["x"] >> ops.ListSlice(0, 1, pad=True, pad_value="2019-12-31"), days, engine)["x"]
    assert padded == [[datetime.date(2020, 1, 1)], [datetime.date(2019, 12, 31)]]


def test_a_pad_value_fits_the_elements():
    workflow = Workflow(["x"] >> ops.ListSlice(0, 2, pad=True, pad_value=300))
    with pytest.raises(DataError, match="pad_value 300 does not fit column 'x' of type int8"):
        workflow.output_schema_of(Dataset(pa.table({"x": pa.array([[1]], pa.list_(pa.int8()))})).schema)


def checked(table, engine):
    workflow = Workflow(list(table.column_names) >> ops.EqualLengths())
    source = cut(table, 2)
    return applied(workflow.final, source, State(), engine).to_pydict()


@pytest.mark.promise(
    "Check that the lists of all selected columns have one length in each row, as ids and their weights; data stay",
    "tasks/ops/README.md#equallengths",
)
def test_lists_of_equal_length_pass_unchanged(engine):
    texts = [["a", None], [], None, ["b"]]
    table = pa.table({"ids": [[1, 2], None, [], [3]], "weights": [[0.5, None], [], None, [1.0]], "texts": texts})
    assert checked(table, engine) == table.to_pydict()


@pytest.mark.promise(
    "Check that the lists of all selected columns have one length in each row, as ids and their weights; data stay"
)
def test_the_first_row_with_lists_of_different_lengths_is_named(engine):
    table = pa.table({"ids": [[1], [1], [1, 2, 3], []], "a": [[1], [1], [1, 2], [1]], "b": [[1], [1], [], [2]]})
    message = (
        "the lists of 'ids' and 'a' have different lengths: 3 and 2\n"
        "  where: EqualLengths of 'ids\\+a\\+b', partition 1 \\(rows from 2\\)\n"
        "  why: row 2 of the source holds them"
    )
    with pytest.raises(DataError, match=message):
        checked(table, engine)
    with pytest.raises(DataError, match="the lists of 'a' and 'b' have different lengths: 2 and 0"):
        checked(table.select(["a", "b"]), engine)


def test_rows_that_a_filter_removes_need_no_equal_lengths(engine):
    table = pa.table({"n": [1, 2, 3], "ids": [[1], [1], [2, 3]], "weights": [[0.5], [], [1.0, 2.0]]})
    nodes = (["n"] >> ops.Filter("n != 2")) + (["ids", "weights"] >> ops.EqualLengths())
    assert Workflow(nodes).fit(Dataset(table, engine=engine)).transform(table)["ids"].to_pylist() == [[1], [2, 3]]


@examples(60)
@given(
    st.lists(st.tuples(*[st.none() | st.lists(st.integers(0, 9), max_size=2)] * 3), min_size=1, max_size=6),
    st.integers(1, 3),
)
def test_equal_lengths_are_those_of_python(engine, rows, partition_rows):
    table = pa.table({name: pa.array([row[i] for row in rows], INTS) for i, name in enumerate("abc")})
    wrong = [i for i, row in enumerate(rows) if len({len(values or ()) for values in row}) > 1]
    source, nodes = cut(table, partition_rows), list("abc") >> ops.EqualLengths()
    if not wrong:
        assert applied(nodes, source, State(), engine).to_pydict() == table.to_pydict()
        return
    with pytest.raises(DataError, match=f"why: row {wrong[0]} of the source"):
        applied(nodes, source, State(), engine)


def test_more_elements_than_a_column_of_lists_holds_are_refused():
    elements = cpu.column(pa.nulls(2**31))  # nulls without a type take no memory
    with pytest.raises(DataError, match="the lists of one partition have 2,147,483,648 elements together"):
        cpu.make_lists(np.array([2**31]), None, elements)


def test_one_column_has_nothing_to_compare():
    with pytest.raises(JobError, match="EqualLengths compares two columns or more, only 'x' is selected"):
        Workflow(["x"] >> ops.EqualLengths()).fit(pa.table({"x": [[1]]}))
    with pytest.raises(DataError, match="EqualLengths does not take column 'y' of type int64"):
        Workflow(["x", "y"] >> ops.EqualLengths()).fit(pa.table({"x": [[1]], "y": [1]}))


@pytest.mark.promise(
    "Learn the lengths of the shortest and the longest list, for the schema: `value_count`: {min, max}; the data stay",
    "tasks/ops/README.md#valuecount",
)
def test_value_count_puts_the_lengths_into_the_schema(engine):
    table = pa.table({"x": pa.array(LISTS, INTS)})
    workflow = Workflow(["x"] >> ops.ValueCount()).fit(Dataset(table, engine=engine))
    assert workflow.output_schema["x"].properties == {"value_count": {"min": 0, "max": 4}}
    assert "list" in workflow.output_schema["x"].tags
    assert one_column(ops.ValueCount(), LISTS, INTS, engine) == LISTS


@pytest.mark.parametrize("cuts", [(1,), (2, 3), (0, 3, 4)])
def test_lengths_are_the_same_for_any_split(engine, cuts):
    table = pa.table({"x": pa.array([[1], None, [2, 3], [], [4]], INTS)})
    assert learned(ops.ValueCount(), table, ["x"], engine, cuts) == {"min": 0, "max": 2}


def test_no_lists_no_lengths(engine):
    table = pa.table({"x": pa.array([None, None], INTS)})
    assert learned(ops.ValueCount(), table, ["x"], engine) == {"min": None, "max": None}
    assert Workflow(["x"] >> ops.ValueCount()).fit(Dataset(table)).output_schema["x"].properties == {}


def test_value_count_takes_lists_alone(engine):
    with pytest.raises(DataError, match="ValueCount does not take column 'x' of type int64"):
        Workflow(["x"] >> ops.ValueCount()).fit(Dataset(pa.table({"x": [1]}), engine=engine))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ops.ListSlice(-2, pad_left=True), [[0, 7], [8, 9], [0, 0], None, [None, 5]]),
        (ops.ListSlice(0, 3, pad_left=True, pad_value=-1), [[-1, -1, 7], [7, 8, 9], [-1, -1, -1], None, [-1, None, 5]]),
        (ops.ListSlice(1, 3, pad_left=True), [[0, 0], [8, 9], [0, 0], None, [0, 5]]),
    ],
)
def test_pad_left_puts_the_last_elements_into_the_last_places(op: Any, expected: Any, engine: str) -> None:
    lists = [[7], [7, 8, 9], [], None, [None, 5]]
    assert one_column(op, lists, INTS, engine) == expected


def test_pad_left_needs_a_known_length_and_excludes_pad() -> None:
    with pytest.raises(JobError, match="pad_left needs a start and an end of one sign"):
        ops.ListSlice(1, pad_left=True)
    with pytest.raises(JobError, match="pad fills up on the right, pad_left on the left: give one of them"):
        ops.ListSlice(-2, pad=True, pad_left=True)
