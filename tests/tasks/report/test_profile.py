"""What a report says of columns: facts of a sample, and of all rows where they were learned."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks import ops
from tasks.core.schema import Schema
from tasks.graph.binding import Bound
from tasks.profile.output_profile import read_profile
from tasks.report import profile_section as profile
from tasks.workflow import Workflow
from tests.stages import run_stages


def of(values: list, dtype: pa.DataType) -> profile.ColumnSummary:
    return profile.of_column("x", pa.chunked_array([pa.array(values, dtype)]))


def test_numbers() -> None:
    found = of([3, 3, None, 5, 8, 3, 5, 3], pa.int64())
    assert (found.dtype, found.rows, found.nulls, found.distinct) == ("int64", 8, 0.125, 3)
    assert (found.low, found.mean, found.high) == ("3", "4.2857", "8")
    assert found.histogram == [4, 0, 2, 0, 0, 1]  # few whole numbers: a bar each
    assert found.top == [("3", 4 / 7), ("5", 2 / 7), ("8", 1 / 7)]


def test_floats_have_equal_bins_and_infinite_ones_no_place_in_them() -> None:
    found = of([0.0, 0.5, 1.0, float("inf")], pa.float64())
    assert len(found.histogram) == profile.BINS
    assert (found.histogram[0], found.histogram[12], found.histogram[-1], sum(found.histogram)) == (1, 1, 1, 3)


def test_bins_of_whole_numbers_hold_equally_many_values() -> None:
    every = of(list(range(100)), pa.int64()).histogram
    assert every == [5] * 20
    assert of([*range(25)], pa.int32()).histogram == [2] * 12 + [1]
    assert of([0.0, 48.0, 49.0], pa.float64()).histogram == [1] + [0] * 15 + [2]


def test_the_largest_span_of_floats_has_a_histogram() -> None:
    assert sum(of([-1.7e308, 0.0, 1.7e308], pa.float64()).histogram) == 3


def test_texts_and_dictionaries_of_them() -> None:
    column = pa.array(["b", "a", "b", None, "c", "b"])
    for values in (column, column.dictionary_encode()):
        found = profile.of_column("x", pa.chunked_array([values]))
        assert (found.dtype, found.distinct, found.low, found.high) == ("string", 3, "a", "c")
        assert found.top[0] == ("b", 0.6)
        assert found.histogram == []


def test_a_long_text_is_cut() -> None:
    assert of(["y" * 100], pa.string()).top == [("y" * 38 + "..", 1.0)]


def test_times_booleans_and_lists() -> None:
    days = [datetime.datetime(2024, 2, 1), datetime.datetime(2024, 2, 3)]
    assert (of(days, pa.timestamp("us")).low, of(days, pa.timestamp("us")).histogram[-1]) == ("2024-02-01 00:00:00", 1)
    assert of([True, False, True], pa.bool_()).histogram == [1, 2]
    lists = of([[1, 2], None, [2]], pa.list_(pa.int64()))
    assert (lists.dtype, lists.nulls, lists.distinct, lists.high) == ("list<int64>", 1 / 3, 2, "2")


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (pa.timestamp("s"), "-99999999999999 s since 1970", "99999999999999 s since 1970"),
        (pa.timestamp("us", "UTC"), "1966-10-31 14:13:20.000001+00:00", "1973-03-03 09:46:39.999999+00:00"),
        (pa.timestamp("ns"), "1969-12-30 20:13:20.000000001", "1970-01-02 03:46:39.999999999"),
        (pa.duration("s"), "-99999999999999 s", "99999999999999 s"),
    ],
    ids=str,
)
def test_times_that_python_does_not_hold(dtype: pa.DataType, low: str, high: str) -> None:
    """Seconds that are milliseconds are far from the years 1 to 9999: they are told as they are."""
    numbers = [-99_999_999_999_999, 0, 0, 99_999_999_999_999]
    (found,) = profile.of_table(pa.table({"t": pa.array(numbers).cast(dtype)}))
    assert (found.low, found.high, len(found.top)) == (low, high, 3)


def test_times_of_day_and_far_dates() -> None:
    times = pa.array([1, 86_399_000_001]).cast(pa.time64("us"))
    dates = pa.array([-(2**31), 2**31 - 1], pa.int32()).cast(pa.date32())
    of_times, of_dates = profile.of_table(pa.table({"time": times, "date": dates}))
    assert (of_times.low, of_times.high) == ("00:00:00.000001", "23:59:59.000001")
    assert (of_dates.low, of_dates.high) == ("-2147483648 days since 1970", "2147483647 days since 1970")


def test_columns_without_rows_or_values() -> None:
    nothing = of([], pa.int64())
    assert (nothing.rows, nothing.nulls, nothing.distinct, nothing.histogram, nothing.top) == (0, None, 0, [], [])
    nulls = of([None, None], pa.string())
    assert (nulls.nulls, nulls.distinct, nulls.low) == (1.0, 0, "")
    assert of([None], pa.null()).nulls == 1.0


def test_almost_unique_values_have_no_top() -> None:
    assert of(list(range(100)), pa.int64()).top == []


def test_what_was_learned_of_all_rows_stands_in_the_place_of_the_sample() -> None:
    table = pa.table(
        {
            "name": ["a"] * 6 + ["b"] * 3 + [None],
            "x": [float(i) for i in range(10)],
            "z": [1, 1, 2, 2, 2, 2, 2, 2, None, 9],
        }
    )
    graph = (["name"] >> ops.Categorify()) + (["x"] >> ops.Normalize()) + (["z"] >> ops.DataStats())
    workflow = Workflow(graph).fit(table)
    values = workflow.state.values
    bound = Bound(workflow.final, Schema.from_arrow(table.schema), values)
    name, x, z = profile.columns_of(bound.source, table.slice(0, 2))
    assert (name.distinct, x.mean, z.nulls) == (1, "0.5", 0.0)

    profile.add_learned([name, x, z], bound, values)
    assert (name.distinct, name.nulls, name.top) == (2, 0.1, [("a", 6 / 9), ("b", 3 / 9)])
    assert name.exact == {"distinct", "nulls", "top"}
    assert (x.mean, x.exact) == ("4.5", {"mean"})
    assert (z.nulls, z.low, z.high, z.distinct) == (0.1, "1", "9", 3)
    assert z.exact == {"nulls", "min", "distinct", "top", "mean", "histogram"}


def test_figures_of_all_rows_take_the_place_of_those_of_the_sample(tmp_path: Path, engine: str) -> None:
    """The sample is of the first rows; the profile of the run has counted all of them."""
    rows = 40_000
    table = pa.table({
        "n": np.arange(rows) % 7, "x": np.arange(rows) / 4, "ok": np.arange(rows) % 4 == 0,
        "t": pa.array(np.arange(rows) * 1_000_000, pa.timestamp("us")),
        "s": pa.array([None if n % 10 == 0 else f"s{n % 3}" for n in range(rows)]),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet")
    job = {
        "source": {"path": str(tmp_path / "in.parquet")}, "features": [{"columns": ["n", "x", "ok", "t", "s"]}],
        "output": {"path": str(tmp_path / "out"), "files": 1}, "run": {"profile": True, "report": False},
    }  # fmt: skip
    run_stages(make_job(job).request(engine))
    found = {summary.name: summary for summary in profile.of_table(table.slice(0, 1_000))}
    profile.add_profile([*found.values()], read_profile(tmp_path / "out"))
    assert (found["n"].low, found["n"].high, found["n"].distinct, found["n"].mean) == ("0", "6", 7, "2.9999")
    assert (found["x"].low, found["x"].high, found["x"].distinct) == ("0", "9999.8", rows)
    assert found["ok"].top == [("False", 0.75), ("True", 0.25)]
    assert (found["t"].low, found["t"].high) == ("1970-01-01 00:00:00", "1970-01-01 11:06:39")
    assert (found["s"].nulls, found["s"].distinct, found["s"].top[0]) == (0.1, 3, ("s0", 1 / 3))
    assert found["n"].exact == {"nulls", "distinct", "min", "mean", "top"}
