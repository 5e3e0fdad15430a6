"""Splits that only a look at all rows can tell: the last rows of each user, shares of the rows by time, and users that
stay together by the time of their last row."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flows.job.job import make_job
from flows.job.json_schema import job_schema
from flows.preview.job_preview import preview
from flows.preview.preview_text import sections
from flows.sample import make_sample
from tasks import ops
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool
from tasks.core.settings import SplitRule
from tasks.dataset import Dataset
from tasks.engines.algorithms import radix_selection
from tasks.errors import DataError, JobError
from tasks.graph.row_rules import Division
from tasks.manifest import Manifest
from tasks.report.artifact import markdown_numbers
from tasks.shuffle import key_ranges
from tasks.shuffle.key_ranges import SourceRows
from tasks.shuffle.row_sets import divide_rows
from tasks.stages import ingest, statistics
from tasks.storage.staging import Staging
from tasks.workflow import Workflow
from tests import learning
from tests.examples import examples
from tests.flows.runs import rows_of
from tests.frames import to_list, write_parts
from tests.stages import Report, run_stages
from tests.tasks.shuffle.test_splits import job_of, split_frames, split_rows

DAY = dt.datetime(2026, 11, 1)
INT32 = pa.int32()
USERS = st.one_of(st.none(), st.sampled_from(["a", "b", "c", ""]))
TIMES = st.one_of(st.none(), st.integers(0, 12))
ROWS = st.lists(st.tuples(USERS, TIMES), min_size=1, max_size=50)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranges of key hashes, and several passes over the times, even for a few rows."""
    monkeypatch.setattr(key_ranges, "key_blocks", lambda rows: 4)
    monkeypatch.setattr(radix_selection, "EXACT", 2)


def table_of(rows: list[tuple[Any, Any]], dtype: pa.DataType = INT32) -> pa.Table:
    times = pa.array([t for _, t in rows], pa.int64())
    times = times.cast(dtype) if dtype != pa.date32() else times.cast(pa.int32()).cast(dtype)
    return pa.table({"u": pa.array([u for u, _ in rows], pa.string()), "t": times})


def division_of(table: pa.Table, rule: SplitRule, folder: Path, engine: str, rows: int = 7, pool: Pool | None = None,
                filter: str | None = None, exchange: str = "memory") -> Division:  # fmt: skip
    source = learning.cut(table, rows)
    rows = SourceRows(source, source.plan, engine, pool or LocalPool(2), filter, exchange=exchange)
    return divide_rows(rows, rule, folder)


def sides_of(division: Division, rows: int) -> dict[str, list[int]]:
    numbers = np.arange(rows)
    return {name: [*np.flatnonzero(members.has(numbers))] for name, members in division.sets}


def last_rows(frame: pd.DataFrame, valid: int, test: int) -> dict[str, list[int]]:
    """By plain pandas: the last rows of each user with a time, later rows of one time behind earlier ones."""
    sides: dict[str, list[int]] = {"valid": [], "test": []}
    for _, group in frame[frame["u"].notna() & frame["t"].notna()].groupby("u"):
        if len(group) > valid + test:
            rows = [*group.sort_values("t", kind="stable").index][::-1]
            sides["test"] += rows[:test]
            sides["valid"] += rows[test : test + valid]
    return {name: sorted(rows) for name, rows in sides.items() if {"valid": valid, "test": test}[name]}


@pytest.mark.promise("takes the last `test` rows of each key by time for test, the `valid` rows before them for valid")
@examples(60)
@given(
    rows=ROWS, partition=st.integers(1, 20), threads=st.integers(1, 4), valid=st.integers(0, 2), test=st.integers(0, 2),
    filter=st.sampled_from([None, "t > 2"]), exchange=st.sampled_from(["memory", "disk"]),
)  # fmt: skip
def test_the_last_rows_of_each_user_are_test_those_before_them_valid(
    rows: list[tuple[Any, Any]], partition: int, threads: int, valid: int, test: int, filter: str | None, exchange: str,
    engine: str, tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    if not valid + test:
        return
    table = table_of(rows)
    frame = table.to_pandas()
    frame = frame[frame["t"] > 2] if filter else frame
    rule = SplitRule(by="last", column="t", together=["u"], valid=valid or None, test=test or None)
    expected, folder = last_rows(frame, valid, test), tmp_path_factory.mktemp("last")
    if not any(expected.values()):
        with pytest.raises(DataError, match=r"source\.split gives .* no row"):
            division_of(table, rule, folder, engine, partition, LocalPool(threads), filter, exchange)
        return
    division = division_of(table, rule, folder, engine, partition, LocalPool(threads), filter, exchange)
    assert sides_of(division, len(rows)) == expected
    counts = {name: len(numbers) for name, numbers in expected.items()}
    assert division.figures["rows"] == {"train": len(frame) - sum(counts.values()), **counts}
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"split-{name}.bits" for name in counts)


def cut(times: list[int], share: float) -> int:
    """The time at which the last share of the rows begins, by sorting."""
    return sorted(times)[min(max(len(times) - int(share * len(times) + 0.5), 0), len(times) - 1)]


@pytest.mark.promise("The cut times are exact, over all files")
@examples(60)
@given(
    rows=ROWS, partition=st.integers(1, 20), threads=st.integers(1, 4), together=st.booleans(),
    valid=st.sampled_from([None, 0.1, 0.25]), test=st.sampled_from([0.1, 0.3, 0.5]),
    dtype=st.sampled_from([pa.int32(), pa.float32(), pa.timestamp("ns"), pa.date32()]),
)  # fmt: skip
def test_the_last_shares_of_the_rows_by_time_are_valid_and_test(
    rows: list[tuple[Any, Any]], partition: int, threads: int, together: bool, valid: float | None, test: float,
    dtype: pa.DataType, engine: str, tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    rule = SplitRule(by="time", column="t", together=["u"] if together else [], valid=valid, test=test)
    frame = table_of(rows).to_pandas()
    decides = frame["t"].copy()
    if together:  # the time of the last row of the user; a row without a user goes by its own
        decides = frame.groupby("u")["t"].transform("max").where(frame["u"].notna(), frame["t"])
    times = [int(t) for t in decides.dropna()]
    moments = {"test": cut(times, test), **({"valid": cut(times, test + valid)} if valid else {})} if times else {}
    sides = {"test": [i for i, t in decides.items() if moments and t >= moments["test"]]}
    if valid:
        sides["valid"] = [i for i, t in decides.items() if moments and t >= moments["valid"] and i not in sides["test"]]
    counts = {"train": len(frame) - sum(map(len, sides.values())), **{name: len(of) for name, of in sides.items()}}
    folder, table = tmp_path_factory.mktemp("shares"), table_of(rows, dtype)
    if not all(counts.values()):
        with pytest.raises(DataError, match=r"source\.split gives .* no row"):
            division_of(table, rule, folder, engine, partition, LocalPool(threads))
        return
    division = division_of(table, rule, folder, engine, partition, LocalPool(threads))
    assert division.figures["rows"] == {name: counts[name] for name in ("train", "valid", "test") if name in counts}
    assert {*division.figures["cuts"]} == {*moments}
    if together:
        assert sides_of(division, len(rows)) == sides
    else:
        assert dict(division.cuts) == moments


@pytest.mark.promise("All rows of a session or user go where its last row goes")
@examples(40)
@given(rows=ROWS, partition=st.integers(1, 20), valid=st.integers(1, 6), more=st.integers(1, 6))
def test_users_stay_together_by_the_time_of_their_last_row(
    rows: list[tuple[Any, Any]], partition: int, valid: int, more: int, engine: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    rule = SplitRule(by="time", column="t", together=["u"], valid=valid, test=valid + more)
    frame = table_of(rows).to_pandas()
    decides = frame.groupby("u")["t"].transform("max").where(frame["u"].notna(), frame["t"])
    test = {i for i, t in decides.items() if t >= valid + more}
    later = {i for i, t in decides.items() if t >= valid} - test
    folder = tmp_path_factory.mktemp("users")
    if not test or not later or len(test | later) == len(rows):
        with pytest.raises(DataError, match=r"source\.split gives .* no row"):
            division_of(table_of(rows), rule, folder, engine, partition)
        return
    division = division_of(table_of(rows), rule, folder, engine, partition)
    assert sides_of(division, len(rows)) == {"test": sorted(test), "valid": sorted(later)}
    train = {*range(len(rows))} - test - later
    assert all(not frame["t"][i] >= valid for i in train)  # no row of train is as late as valid


@pytest.mark.promise("The cut times are exact, over all files")
def test_the_same_rows_are_split_off_on_a_cluster(tmp_path: Path, engine: str, client: Any) -> None:
    table = pa.table({"u": [i * i % 37 for i in range(500)], "t": [i * 7 % 110 for i in range(500)]})
    rules = [
        SplitRule(by="last", column="t", together=["u"], valid=1, test=2),
        SplitRule(by="time", column="t", together=["u"], test=0.3),
        SplitRule(by="time", column="t", valid=0.1, test=0.1),
    ]
    for number, rule in enumerate(rules):
        here, there = (tmp_path / f"{name}{number}" for name in ("here", "there"))
        here.mkdir()
        there.mkdir()
        one, other = (division_of(table, rule, here, engine, 50, LocalPool(1)),
                      division_of(table, rule, there, engine, 50, DaskPool(client)))  # fmt: skip
        assert (one.cuts, one.figures, sides_of(one, 500)) == (other.cuts, other.figures, sides_of(other, 500))


def write_data(folder: Path, rows: int = 300, files: int = 3) -> pd.DataFrame:
    """Events of users of 1 to some rows, in no order of time; every 40th has no time."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"i": np.arange(rows), "u": (rng.pareto(1, rows) * 7).astype("int64") % 60})
    hours = rng.integers(0, rows // 2, rows)
    frame["t"] = pd.Series([None if i % 40 == 7 else DAY + dt.timedelta(hours=int(h)) for i, h in enumerate(hours)])
    frame["x"], frame["y"], frame["s"] = rng.normal(size=rows), np.arange(rows) % 2, np.arange(rows) // 4
    write_parts(folder, frame, files)
    return frame


LAST = {"by": "last", "column": "t", "together": ["u"], "valid": 1, "test": 1}


def expected_last(frame: pd.DataFrame, valid: int = 1, test: int = 1) -> dict[str, list[int]]:
    sides = last_rows(frame, valid, test)
    taken = {i for numbers in sides.values() for i in numbers}
    return {"train": [i for i in frame.index if i not in taken], **sides}


@pytest.mark.promise("takes the last `test` rows of each key by time for test, the `valid` rows before them for valid")
@pytest.mark.parametrize("exchange", ["memory", "disk"])
def test_a_job_leaves_the_last_rows_out_whatever_the_partitions(exchange: str, tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    for size, threads in ((1, 1), (3000, 4)):
        run = {"min_partition_size": 1, "exchange": exchange}
        rows = split_rows(tmp_path, LAST, engine, f"out{size}", threads, source={"partition_size": size}, run=run)
        assert rows == expected_last(frame)
        assert not (tmp_path / f".out{size}.rowmill").exists()


def test_what_a_killed_look_leaves_is_removed_with_the_work(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path / "out"))
    for name in (
        "split-test.bits", "split-valid.tmp", "split.scratch/rows-00000.npz", "split.scratch/rows-00000.sides.npz",
        "split.scratch/rowmill-0123456789ab/partition-000000.arrow",
    ):  # fmt: skip
        (staging.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (staging.folder / name).write_bytes(b"")
    staging.clean()
    assert not staging.folder.exists()


def test_filter_and_unique_come_before_the_last_rows(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    source = {"filter": "i % 5 != 0", "unique": {"keys": ["u", "t"], "keep": "last"}, "keys": ["u"], "sort_by": ["t"]}
    rows = split_rows(tmp_path, {**LAST, "test": 2}, engine, source=source)
    stay = frame[frame["i"] % 5 != 0].drop_duplicates(["u", "t"], keep="last")
    assert {name: sorted(numbers) for name, numbers in rows.items()} == expected_last(stay, 1, 2)


@pytest.mark.promise("key that would have no row left for train stays in train as a whole")
def test_users_that_stay_in_train_are_counted(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    results = run_stages(make_job(job_of(tmp_path, LAST)).request(engine), plugins=[Report()])
    timed = frame[frame["t"].notna()].groupby("u").size().reindex(frame["u"].unique(), fill_value=0)
    short = timed.index[timed < 3]
    expected = expected_last(frame)
    figures = Manifest.load(tmp_path / "out" / "test").data["row_rules"]["split"]["divided"]
    assert figures["rows"] == {name: len(numbers) for name, numbers in expected.items()}
    assert figures["keys_in_train"] == len(short) > 0
    assert figures["rows_of_keys_in_train"] == int(frame["u"].isin(short).sum())
    text = f"{len(short)} keys with too few rows ({figures['rows_of_keys_in_train']} rows) stay in train"
    assert text in results[0].divided
    assert f"| divided | {results[0].divided} |" in markdown_numbers(results[0])
    assert text in (tmp_path / "out" / "train" / "_report.html").read_text()


def test_several_keys_ties_and_rows_without_a_key_or_a_time(tmp_path: Path, engine: str) -> None:
    table = pa.table({
        "k": pa.array([0.0, -0.0, 0.0, None, None, 1.0, 1.0, 1.0, 0.0], pa.float64()),
        "s": ["a", "a", "a", "a", "a", None, None, None, "a"],
        "t": [5, 5, None, 1, 2, 1, 2, 3, 5],
    })  # fmt: skip
    division = division_of(table, SplitRule(by="last", column="t", together=["k", "s"], test=1), tmp_path, engine)
    assert sides_of(division, 9) == {"test": [8]}  # of three rows at 5 the last one; 0.0 and -0.0 are one key
    assert division.text == (
        "8 rows are train, 1 rows are test; 5 rows without a key are in train; 1 rows without a time are in train"
    )


def past_of(frame: pd.DataFrame, i: int, rows: set[int]) -> list[int]:
    """The rows of the same user among `rows` that the order by time has before a row, nulls first."""
    of_user = frame[frame["u"] == frame["u"][i]].sort_values("t", kind="stable", na_position="first")
    order = [*of_user.index]
    return [j for j in order[: order.index(i)] if j in rows]


HISTORY = {
    "source": {"keys": ["u"], "sort_by": ["t"]},
    "features": [
        {"columns": ["i", "u"]},
        {"columns": ["i"], "ops": [{"op": "History", "length": 300, "partition_cols": "u"}]},
        {"columns": ["i"], "ops": [{"op": "Lag", "partition_cols": "u", "shift": -1}]},
        {"columns": ["x"], "ops": [{"op": "NormalizeMinMax"}, {"op": "Rename", "name": "m"}]},
    ],
}


@pytest.mark.promise("see the rows of earlier splits as the past")
def test_histories_look_back_into_earlier_splits_and_never_ahead(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    expected = expected_last(frame)
    split = split_frames(tmp_path, LAST, engine, **HISTORY)
    seen: set[int] = set()
    low, high = frame["x"][expected["train"]].min(), frame["x"][expected["train"]].max()
    for name in ("train", "valid", "test"):
        out, seen = split[name], seen | {*expected[name]}
        assert sorted(out["i"]) == sorted(expected[name])
        for i, history, after, scaled in zip(out["i"], out["i_history"], out["i_lag_-1"], out["m"], strict=True):
            assert [*history] == past_of(frame, i, seen)
            assert pd.isna(after) or (name == "train" and after in seen)  # what comes next is in a later split
            assert scaled == pytest.approx((frame["x"][i] - low) / (high - low), abs=1e-6)
    assert all(len(history) for history in split["test"]["i_history"])


@pytest.mark.promise(
    "If it is empty, they do with `by: last`, and do not with `by: time`, where each split begins anew"
)
@pytest.mark.parametrize("split", [
    {"valid": str(DAY + dt.timedelta(hours=100)), "test": str(DAY + dt.timedelta(hours=120))},
    {"valid": 0.2, "test": 0.2}, {"together": ["s"], "test": 0.3},
])  # fmt: skip
def test_splits_by_time_look_back_where_the_rule_says_so(split: dict[str, Any], tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    split = {"by": "time", "column": "t", **split}
    anew = split_frames(tmp_path, split, engine, "anew", **HISTORY)
    back = split_frames(tmp_path, {**split, "look_back": True}, engine, "back", **HISTORY)
    seen: set[int] = set()
    for name, out in back.items():
        own = {*out["i"]}
        assert own == {*anew[name]["i"]}
        seen |= own
        for rows, past in ((out, seen), (anew[name], own)):
            for i, history in zip(rows["i"], rows["i_history"], strict=True):
                assert [*history] == past_of(frame, i, past)
    assert back["test"]["i_history"].map(len).sum() > anew["test"]["i_history"].map(len).sum()


def test_last_rows_begin_anew_where_the_rule_says_so(tmp_path: Path, engine: str) -> None:
    write_data(tmp_path / "data")
    out = split_frames(tmp_path, {**LAST, "look_back": False}, engine, **HISTORY)
    assert {*out["test"]["i_history"].map(len)} == {0}


@pytest.mark.promise("No pass reads rows of later splits", "flows/SPLITS.md#train-valid-and-test")
def test_changing_valid_and_test_changes_nothing_of_train(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    later = {*expected_last(frame)["valid"], *expected_last(frame)["test"]}
    features = [
        *HISTORY["features"],
        {"columns": ["x"], "ops": [{"op": "Rolling", "window": 3, "partition_cols": "u", "aggregation": "sum"}]},
        {"columns": ["u"], "ops": [{"op": "TargetEncoding", "target": "x", "kfold": 3}]},
        {"columns": ["u"], "ops": [{"op": "JoinGroupby", "cont_cols": ["x"], "stats": ["count", "mean", "max"]}]},
        {"columns": ["x"], "ops": [{"op": "QuantileBucketize"}, {"op": "Rename", "name": "q"}]},
    ]
    source = HISTORY["source"]
    before = split_frames(tmp_path, LAST, engine, "before", source=source, features=features)["train"]
    frame.loc[sorted(later), "x"] = 1e6
    write_parts(tmp_path / "data", frame, 3)
    after = split_frames(tmp_path, LAST, engine, "after", source=source, features=features)["train"]
    pd.testing.assert_frame_equal(before, after)


@pytest.mark.promise("see the rows of earlier splits as the past")
def test_groups_of_later_splits_have_the_rows_of_earlier_ones(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    expected = expected_last(frame)
    features = [{"columns": ["u"], "ops": [{"op": "Groupby", "groupby_cols": "u", "aggs": {"i": ["list", "last"]}},
                                           {"op": "Filter", "expression": "len(i_list) > 1"}]}]  # fmt: skip
    split = split_frames(tmp_path, LAST, engine, source={"keys": ["u"], "sort_by": ["t"]}, features=features, label=[])
    seen: set[int] = set()
    ordered = frame.sort_values("t", kind="stable", na_position="first")
    for name in ("train", "valid", "test"):
        seen |= {*expected[name]}
        users = {*frame["u"][expected[name]]}
        lists = {u: [i for i in group.index if i in seen] for u, group in ordered.groupby("u") if u in users}
        lists = {u: rows for u, rows in lists.items() if len(rows) > 1}
        out = split[name]
        assert {u: [*rows] for u, rows in zip(out["u"], out["i_list"], strict=True)} == lists
    assert {*split["test"]["i_last"]} == {*expected["test"]}  # the item to be predicted


class Firsts(ops.Groupby):
    """Groups rows as an operator of a user's does that knows nothing of splits."""

    def regroup(self, columns: Any, unit: Any, context: Any) -> Any:
        columns, context = super().regroup(columns, unit, context)
        return columns, replace(context, own=None)


def test_a_grouping_operator_that_does_not_say_whose_rows_it_makes_is_an_error(engine: str) -> None:
    table = pa.table({"u": ["a", "a", "b", "b"], "t": [1, 2, 1, 2]})
    data = Dataset(table, engine=engine).shuffle_by_keys("u", sort_by="t")
    splits = data.split("last", column="t", together="u", test=1)
    workflow = Workflow(["u", "t"] >> Firsts("u")).fit(splits["train"])
    assert len(workflow.transform(splits["train"]).head(9)) == 2
    with pytest.raises(DataError, match="Firsts does not say which of its rows belong to this split"):
        workflow.transform(splits["test"]).head()


def test_profiles_of_the_gate_are_of_a_split_s_own_rows(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    job = job_of(tmp_path, LAST, **HISTORY) | {"run": {"min_partition_size": 1, "profile": True}}
    run_stages(make_job(job).request(engine))
    for name, numbers in expected_last(frame).items():
        profile = json.loads((tmp_path / "out" / name / "_profile.json").read_text())
        assert profile["rows"] == len(numbers)


def test_a_sort_by_another_column_is_named(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    source = {"keys": ["u"], "sort_by": ["i"]}
    results = run_stages(make_job(job_of(tmp_path, LAST, source=source)).request("pandas"))
    assert "histories are not in the order of t, which source.sort_by does not begin with" in results[0].divided


def test_the_estimate_has_the_scratch_files_of_the_look(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    job = job_of(tmp_path, {**SHARES, "together": ["u"]}) | {"run": {"exchange": "disk"}}
    shown = preview(make_job(job))
    assert shown.needs is not None
    assert shown.needs.scratch == 300 * (2 * (8 + 8 + 8 + 8) - 8 + 16)


@pytest.mark.promise("see the rows of earlier splits as the past")
def test_the_recipe_for_sequences_leaves_the_last_product_out(tmp_path: Path, engine: str) -> None:
    job = make_job({
        "recipe": "sequences", "source": {"path": str(tmp_path / "data"), "valid": None, "split": {
            "by": "last", "column": "event_time", "together": ["user_id"], "valid": 1, "test": 1}, "sample": None},
        "output": {"path": str(tmp_path / "out"), "files": 1}})  # fmt: skip
    make_sample("ecommerce", tmp_path / "data", 3000, 0)
    run_stages(job.request(engine))
    source = rows_of(tmp_path / "data").to_pandas()
    sizes = source.groupby("user_id").size()
    outs = {name: rows_of(tmp_path / "out" / name).to_pandas() for name in ("train", "valid", "test")}
    assert 0 < len(outs["test"]) <= (sizes > 2).sum()
    latest = {user: rows["seconds_history"].map(max).max() for user, rows in outs["train"].groupby("user_id")}
    by_user = {name: outs[name].set_index("user_id")["seconds_history"] for name in ("valid", "test")}
    known = [user for user in by_user["test"].index if user in latest and user in by_user["valid"].index]
    assert len(known) > 20
    for user in known:  # ids of users are those of train, so that they name the same users in all splits
        valid, test = (max(by_user[name][user]) for name in ("valid", "test"))
        assert latest[user] <= valid <= test
        assert len(by_user["test"][user]) >= len(by_user["valid"][user])


SHARES = {"by": "time", "column": "t", "valid": 0.1, "test": 0.2}


@pytest.mark.promise("state the cut times and the rows of each split; a split without a row is an error")
def test_the_moments_of_shares_are_stated_in_summary_and_manifest(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    results = run_stages(make_job(job_of(tmp_path, SHARES)).request(engine))
    times = sorted(frame["t"].dropna())
    first, second = times[len(times) - int(0.3 * len(times) + 0.5)], times[len(times) - int(0.2 * len(times) + 0.5)]
    sides = {"train": ~(frame["t"] >= first), "valid": (frame["t"] >= first) & (frame["t"] < second),
             "test": frame["t"] >= second}  # fmt: skip
    for name, side in sides.items():
        assert rows_of(tmp_path / "out" / name)["i"].to_pylist() == [*frame["i"][side]]
    rule = Manifest.load(tmp_path / "out" / "train").data["row_rules"]["split"]
    moments = {"valid": f"{first:%Y-%m-%d %H:%M:%S}", "test": f"{second:%Y-%m-%d %H:%M:%S}"}
    assert {name: text[:19] for name, text in rule["divided"]["cuts"].items()} == moments
    assert rule["divided"]["rows"] == {name: int(side.sum()) for name, side in sides.items()}
    assert rule["null_in_train"] == int(frame["t"].isna().sum())
    assert results[0].divided.startswith(f"valid begins at {moments['valid']}")
    assert f"| divided | {results[0].divided} |" in markdown_numbers(results[0])


def test_an_infinite_time_is_a_moment_like_others(tmp_path: Path, engine: str) -> None:
    (tmp_path / "data").mkdir()
    table = pa.table({"i": [0, 1, 2, 3, 4], "u": [0] * 5, "y": [0] * 5, "t": [np.inf, 2.0, -np.inf, np.inf, np.nan]})
    pq.write_table(table, tmp_path / "data" / "0.parquet")
    rows = split_rows(tmp_path, {"by": "time", "column": "t", "test": 0.5}, engine)
    assert rows == {"train": [1, 2, 4], "test": [0, 3]}


def test_shares_are_of_the_rows_that_filter_and_unique_keep(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    source = {"filter": "i >= 100", "unique": {"keys": ["u", "t"]}}
    for name, more in (("plain", {}), ("keyed", {"keys": ["u"]})):
        rows = split_rows(tmp_path, {**SHARES, "valid": None}, engine, name, source={**source, **more})
        stay = frame[frame["i"] >= 100].drop_duplicates(["u", "t"])
        times = sorted(stay["t"].dropna())
        test = stay["t"] >= times[len(times) - int(0.2 * len(times) + 0.5)]
        assert {name: sorted(numbers) for name, numbers in rows.items()} == {
            "train": [*stay["i"][~test]], "test": [*stay["i"][test]]
        }  # fmt: skip


@pytest.mark.promise("All rows of a session or user go where its last row goes")
def test_sessions_go_where_their_last_row_goes(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    moment = DAY + dt.timedelta(hours=140)
    rows = split_rows(tmp_path, {"by": "time", "column": "t", "together": ["u"], "test": str(moment)}, engine)
    last = frame.groupby("u")["t"].transform("max")
    assert rows == {"train": [*frame["i"][~(last >= moment)]], "test": [*frame["i"][last >= moment]]}
    assert not (frame["t"][rows["train"]] >= moment).any()


def test_an_earlier_start_is_used_again_while_its_bits_are_whole(tmp_path: Path) -> None:
    write_data(tmp_path / "data")

    def stages(split: dict[str, Any], **source: Any) -> list[bool]:
        features = [{"columns": ["x"], "ops": [{"op": "Normalize"}]}]
        request = make_job(job_of(tmp_path, split, source=source, features=features)).request("pandas")
        with request.staging.hold_lock():
            return [stage(request, LocalPool(2)).reused for stage in (ingest.ingest, statistics.statistics)]

    assert stages(LAST) == [False, False]
    assert stages(LAST) == [True, True]
    bits = tmp_path / ".out.rowmill" / "split-test.bits"
    bits.write_bytes(bits.read_bytes()[:-1] + b"\xff")
    assert stages(LAST) == [False, True]
    assert stages(LAST, filter="i > 3") == [False, False]
    assert stages({**LAST, "test": 2}) == [False, False]
    assert stages(SHARES) == [False, False]
    assert stages(SHARES) == [True, True]


@pytest.mark.promise("need a look at all rows in the stage ingest, which `rowmill preview` lists")
def test_a_preview_shows_the_looks_at_all_rows(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    shown = preview(make_job(job_of(tmp_path, LAST)))
    assert [(r.what, r.columns) for r in shown.readings][:2] == [
        ("ingest: rows of each split", ["u", "t"]), ("transform train", ["i", "u", "y"])
    ]  # fmt: skip
    shown = preview(make_job(job_of(tmp_path, SHARES)))
    assert [(r.what, r.columns) for r in shown.readings][0] == ("ingest: moments at which splits begin", ["t"])


@pytest.mark.promise("which rows each split gets, where the job has `source.split`")
@pytest.mark.parametrize(
    ("split", "rows"),
    [
        (LAST, ["all others", "1 of each u by t, before those of test", "the last 1 of each u by t"]),
        (SHARES, ["all others", "0.1 of the rows by t, before those of test", "the last 0.2 of the rows by t"]),
        ({"by": "time", "column": "t", "test": "2026-11-04", "together": ["u"]},
         ["all others", "t from 2026-11-04 on; u as a whole, by the last row"]),
        ({"by": "hash", "together": ["u"], "valid": 0.2}, ["all others", "0.2 of all u"]),
        ({"by": "fraction", "test": 0.3}, ["all others", "0.3 of the rows"]),
        ({"by": "column", "column": "y", "valid": [1, 2]}, ["all others", "y is 1 or 2"]),
    ],
)  # fmt: skip
def test_a_preview_says_which_rows_each_split_gets(split: dict[str, Any], rows: list[str], tmp_path: Path) -> None:
    write_data(tmp_path / "data", 30)
    (section,) = [one for one in sections(preview(make_job(job_of(tmp_path, split)))) if one.title == "Splits"]
    assert [row["rows"] for row in section.rows] == rows
    assert ("see the rows of earlier splits" in section.text) == (split is LAST)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({**LAST, "column": "z"}, "there is no column 'z'"),
        ({**LAST, "together": ["z"]}, "there is no column 'z'"),
        ({**SHARES, "column": "s"}, "shares by time need a column of times or numbers, and 's' is string"),
        ({**SHARES, "column": "l"}, "rows have no order by column 'l'"),
    ],
)
def test_a_preview_refuses_what_the_columns_do_not_allow(split: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table = pa.table({"i": [1], "u": [1], "y": [0], "t": [1], "s": ["a"], "l": [[1]]})
    pq.write_table(table, tmp_path / "data" / "0.parquet")
    with pytest.raises(JobError, match=message):
        preview(make_job(job_of(tmp_path, split)))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({**LAST, "together": []}, "by: last needs together: the keys whose last rows are meant"),
        ({**LAST, "column": None}, "by: last needs a column"),
        ({"by": "fraction", "test": 0.1, "look_back": True}, "by: fraction takes no look_back"),
        ({**LAST, "test": 0.1}, "numbers of rows of each key, 1 or more"),
        ({**LAST, "valid": True}, "numbers of rows of each key, 1 or more"),
        ({**SHARES, "valid": "2026-11-01"}, "both shares of the rows, or both moments"),
        ({**SHARES, "valid": 0.8}, "together below 1"),
    ],
)
def test_a_split_that_contradicts_itself_is_refused(split: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=message):
        make_job(job_of(tmp_path, split))


@pytest.mark.promise("state the cut times and the rows of each split; a split without a row is an error")
def test_a_split_without_a_row_is_an_error_with_counts(tmp_path: Path) -> None:
    write_data(tmp_path / "data", 30)
    with pytest.raises(DataError, match=r"source\.split gives valid and test no row") as error:
        run_stages(make_job(job_of(tmp_path, {**LAST, "test": 100})).request("pandas"))
    assert "no key of u has more rows with a time than valid and test take" in error.value.why


def test_the_splits_of_the_manual_are_those_of_the_job_and_of_its_schema() -> None:
    manual = (Path(__file__).parents[3] / "flows" / "SPLITS.md").read_text()
    lines = manual.partition("## Train, valid and test")[2].partition("```yml\n")[2].partition("```")[0]
    rules = [yaml.safe_load(line)["split"] for line in lines.splitlines()]
    assert {rule["by"] for rule in rules} == {*get_args(SplitRule.model_fields["by"].annotation)}
    schema = job_schema()
    validator = jsonschema.validators.validator_for(schema)(schema)
    for rule in rules:
        SplitRule(**rule)
        job = {"source": {"path": "data", "split": rule}, "features": [{"columns": ["x"]}], "output": {"path": "out"}}
        validator.validate(job)


FINE = [1_700_000_000_000_000_001, 1_700_000_000_000_000_002]
MOMENT = "2023-11-14T22:13:20.000000002"


@pytest.mark.promise("with up to nine digits behind the second")
@pytest.mark.parametrize("together", [[], ["u"]])
def test_a_moment_may_have_nanoseconds(together: list[str], tmp_path: Path, engine: str) -> None:
    columns = {"t": pa.array(FINE, pa.timestamp("ns")), "u": pa.array([1, 2]), "n": pa.array(FINE)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    for column, unit in (("t", None), ("n", "ns"), ("n", None)):
        rule = {"column": column, "valid": MOMENT, "unit": unit, "together": together or None}
        splits = Dataset(tmp_path, engine=engine).split("time", **{n: v for n, v in rule.items() if v is not None})
        assert {name: to_list(split.head(9)["u"]) for name, split in splits.items()} == {"train": [1], "valid": [2]}


def test_a_moment_between_two_whole_numbers_begins_at_the_later(tmp_path: Path, engine: str) -> None:
    for dtype in (pa.int64(), pa.float64()):
        pq.write_table(pa.table({"t": pa.array([1_700_000_000, 1_700_000_001], dtype)}), tmp_path / "a.parquet")
        splits = Dataset(tmp_path, engine=engine).split("time", column="t", valid=MOMENT, unit="s")
        found = {name: to_list(split.head(9)["t"]) for name, split in splits.items()}
        assert found == {"train": [1_700_000_000], "valid": [1_700_000_001]}
