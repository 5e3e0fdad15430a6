"""Facts about the data report."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from tasks import ops
from tasks.ops import datastats
from tests.tasks.ops.fitting import learned, transformed


def report(values, dtype, engine, cuts=(), **parameters):
    return learned(ops.DataStats(**parameters), pa.table({"x": pa.array(values, dtype)}), ["x"], engine, cuts)


@pytest.mark.promise("Profile each column, in the pass in which other operators learn; the data pass through unchanged")
def test_numbers(engine):
    found = report([0, 3, 3, None, 8], pa.int64(), engine, top=2, histogram_bins=4)
    assert {k: found[k] for k in ("rows", "nulls", "min", "max", "mean", "distinct", "exact", "infinite")} == {
        "rows": 5, "nulls": 1, "min": 0, "max": 8, "mean": 3.5, "distinct": 3, "exact": True, "infinite": 0,
    }  # fmt: skip
    assert found["std"] == pytest.approx(np.std([0, 3, 3, 8], ddof=1), rel=1e-15)
    assert found["top"] == [{"value": 3, "count": 2}, {"value": 0, "count": 1}]
    assert found["histogram"] == {"edges": [0.0, 2.0, 4.0, 6.0, 8.0], "counts": [1, 2, 0, 1]}


def test_the_mean_of_large_integers_is_exact(engine):
    found = report([2**62, 2**62 + 2, 2**62 + 4], pa.int64(), engine, (1,))
    assert found["mean"] == float(2**62 + 2)


def test_text(engine):
    assert report(["b", "a", None, "b", ""], pa.string(), engine) == {
        "dtype": "string", "rows": 5, "nulls": 1, "exact": True, "distinct": 3, "min": "", "max": "b",
        "top": [{"value": "b", "count": 2}, {"value": "", "count": 1}, {"value": "a", "count": 1}],
    }  # fmt: skip


def test_times_are_texts_and_their_spread_is_in_seconds(engine):
    day = datetime.datetime(2024, 2, 1)
    found = report([day, day + datetime.timedelta(hours=2)], pa.timestamp("us"), engine)
    assert [found[k] for k in ("min", "max", "mean")] == [
        "2024-02-01T00:00:00",
        "2024-02-01T02:00:00",
        "2024-02-01T01:00:00",
    ]
    assert found["std"] == pytest.approx(np.std([0, 7200], ddof=1))


def test_times_beyond_the_years_of_python_are_told_as_they_are(engine):
    found = report([-(2**50), 0, 2**50], pa.timestamp("s"), engine)
    assert [found[k] for k in ("min", "max", "mean")] == [
        "-1125899906842624 s since 1970", "1125899906842624 s since 1970", "1970-01-01T00:00:00",
    ]  # fmt: skip
    assert {top["value"] for top in found["top"]} == {found["min"], found["max"], found["mean"]}
    found = report([-(2**31), 2**31 - 1], pa.date32(), engine)
    assert [found[k] for k in ("min", "max")] == ["-2147483648 days since 1970", "2147483647 days since 1970"]


def test_lists_are_told_by_their_elements(engine):
    found = report([[1.0, 3.0], None, [], [2.0]], pa.list_(pa.float64()), engine)
    assert found["lengths"] == {"min": 0, "max": 2, "mean": 1.0}
    assert [found[k] for k in ("rows", "nulls", "min", "max", "mean")] == [4, 1, 1.0, 3.0, 2.0]


def test_infinite_values_are_counted_apart(engine):
    found = report([1.0, float("inf"), -float("inf"), 3.0], pa.float64(), engine)
    assert [found[k] for k in ("infinite", "min", "max", "mean")] == [2, 1.0, 3.0, 2.0]


@pytest.mark.parametrize(
    "dtype", [pa.float64(), pa.string(), pa.bool_(), pa.timestamp("us"), pa.list_(pa.int64())], ids=str
)
def test_nothing_but_nulls_and_nothing_at_all(engine, dtype):
    for values, rows in (([None, None], 2), ([], 0)):
        found = report(values, dtype, engine)
        assert [found[k] for k in ("rows", "nulls", "min", "max", "distinct", "top")] == [rows, rows, None, None, 0, []]


def test_a_constant(engine):
    found = report([4.0] * 3, pa.float64(), engine)
    assert (found["std"], found["quantiles"]["0.5"], found["histogram"]) == (
        0.0,
        4.0,
        {"edges": [4.0, 4.0], "counts": [3]},
    )


@pytest.mark.promise("exact counts and moments; sketches with stated errors")
@pytest.mark.parametrize("cuts", [(1,), (100, 100, 900)])
def test_any_split_of_the_rows_is_the_whole(engine, cuts):
    values = np.random.default_rng(2).normal(1e9, 3, 1000).round(1)
    whole, split = (report(values, pa.float64(), engine, c) for c in ((), cuts))
    assert split.pop("std") == pytest.approx(whole.pop("std"), rel=1e-9)
    assert split.pop("mean") == pytest.approx(whole.pop("mean"), rel=1e-14)
    assert split == whole


@pytest.mark.promise("exact counts and moments; sketches with stated errors")
def test_quantiles_of_few_values_are_exact(engine):
    values = np.random.default_rng(9).lognormal(0, 2, 20_000) * np.random.default_rng(1).choice([-1, 1], 20_000)
    found = report(values, pa.float64(), engine, (5000,))["quantiles"]
    assert found == {f: np.quantile(values, float(f), method="lower") for f in found}


@pytest.mark.parametrize("kind", ["numbers", "lists", "mostly null"])
def test_quantiles_of_many_values_are_those_of_a_sample(engine, monkeypatch, kind):
    monkeypatch.setattr(datastats, "SAMPLE", 4_000)
    values = np.random.default_rng(9).lognormal(0, 2, 60_000)
    lists, dtype = values.reshape(-1, 3).tolist(), pa.list_(pa.float64())
    sparse = [value if n % 4 == 0 else None for value in values for n in range(4)]
    rows = {"numbers": (values, pa.float64()), "lists": (lists, dtype), "mostly null": (sparse, pa.float64())}[kind]
    whole, parted = (report(*rows, engine, cuts) for cuts in ((), (300, 5_000, 5_000, 19_000)))
    assert parted["quantiles"] == whole["quantiles"]
    assert parted["histogram"] == whole["histogram"]
    for fraction, value in whole["quantiles"].items():
        below = float((values <= value).mean())
        assert below == pytest.approx(float(fraction), abs=4 * np.sqrt(0.25 / 2_000))
        assert value in values
    assert sum(whole["histogram"]["counts"]) == pytest.approx(60_000, rel=0.1)


def test_many_distinct_values_are_estimated(engine, monkeypatch):
    monkeypatch.setattr(datastats, "EXACT", 5000)
    monkeypatch.setattr(datastats, "LEAST", 4096)
    values = np.concatenate([np.arange(200_000) * 7, np.full(3000, 14), np.full(2000, 7)])
    found = report(values, pa.int64(), engine, (20_000, 100_000))
    assert not found["exact"]
    assert found["distinct"] == pytest.approx(200_000, rel=0.03)
    assert found["top"][0] == {"value": 14, "count": 3001}
    assert report(values, pa.int64(), engine, (50_000,))["distinct"] == found["distinct"]


@pytest.mark.promise("Profile each column, in the pass in which other operators learn; the data pass through unchanged")
def test_the_data_pass_through(engine):
    table = pa.table({"x": [1, None], "s": ["a", "b"]})
    assert transformed(["x", "s"] >> ops.DataStats(), table, engine) == {"x": [1, None], "s": ["a", "b"]}


def test_a_histogram_of_the_widest_range_and_of_one_too_narrow_for_floats(engine):
    wide = report([-1.5e308, 0.0, 1.5e308], pa.float64(), engine, histogram_bins=2)["histogram"]
    assert wide == {"edges": [-1.5e308, 0.0, 1.5e308], "counts": [1, 2]}
    narrow = report([2**62, 2**62 + 1], pa.int64(), engine)["histogram"]
    assert narrow == {"edges": [2**62, 2**62 + 1], "counts": [2]}


def test_what_is_saved_for_a_refit_does_not_depend_on_the_order_of_counting():
    """GPUs give the groups of values in any order."""
    op, saved = ops.DataStats(), []
    counts = pa.table({"v0": ["b", None, "a", "c"], "count": [2, 2, 2, 5]})
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        partial = {"dtype": "string", "rows": 11, "nulls": 2, "least": None, "min": "a", "max": "c"}
        saved.append(op.kept_partial(partial | {"counts": counts.take(pa.array(order))}, {})["counts"].to_pydict())
    assert saved == [{"v0": ["c", None, "a", "b"], "count": [5, 2, 2, 2]}] * 3
