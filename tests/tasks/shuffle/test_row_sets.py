"""Rows that a source leaves out beyond its filter: all but one of each key, and a part of some training rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.job.job import make_application, make_job
from flows.preview.job_preview import preview
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool
from tasks.core.settings import Unique
from tasks.errors import JobError
from tasks.job.base_version import find_newest_good
from tasks.manifest import Manifest
from tasks.report.artifact import markdown_numbers
from tasks.shuffle import key_ranges as module
from tasks.shuffle.key_ranges import SourceRows
from tasks.shuffle.row_sets import find_repeated_rows
from tasks.stages import ingest, statistics, transform
from tasks.workflow import Workflow
from tests.examples import examples
from tests.flows.runs import rows_of
from tests.frames import write_parts
from tests.learning import cut
from tests.stages import Report, run_stages

WORDS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é"]))
NUMBERS = st.one_of(st.none(), st.integers(-3, 3))
TIMES = st.one_of(st.none(), st.sampled_from([-1.5, 0.0, -0.0, 2.0, float("inf")]))
ROWS = st.lists(st.tuples(WORDS, NUMBERS, TIMES), min_size=1, max_size=60)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranges of key hashes even for a few rows."""
    monkeypatch.setattr(module, "key_blocks", lambda rows: 4)


def table_of(rows: list[tuple[Any, Any, Any]]) -> pa.Table:
    words, numbers, times = ([row[i] for row in rows] for i in range(3))
    return pa.table({"s": pa.array(words, pa.string()), "n": pa.array(numbers, pa.int32()),
                     "t": pa.array(times, pa.float64())})  # fmt: skip


def repeated(table: pa.Table, unique: Unique, folder: Path, engine: str, rows: int = 7, pool: Pool | None = None,
             filter: str | None = None, exchange: str = "memory") -> list[int]:  # fmt: skip
    """The numbers of the rows that go, with `rows` rows in a partition."""
    source = cut(table, rows)
    plan = source.plan
    rows_of_it = SourceRows(source, plan, engine, pool or LocalPool(2), filter, exchange=exchange)
    bits, count = find_repeated_rows(rows_of_it, unique, folder / "repeated.bits")
    gone = [r for p in plan.partitions for r in np.flatnonzero(bits.members(p.first_row, p.rows)) + p.first_row]
    assert len(gone) == count
    assert [path.name for path in folder.iterdir()] == ["repeated.bits"]
    return [int(row) for row in gone]


def staying(frame: pd.DataFrame, unique: Unique) -> set[int]:
    """The rows that stay, by plain pandas: a null loses to any value, equal values go by the order of rows."""
    if unique.by:
        first = unique.keep == "first"
        frame = frame.sort_values(unique.by, kind="stable", na_position="last" if first else "first")
        null = frame[unique.by].isna()
        frame = frame if first else pd.concat([frame[null], frame[~null]])
    return {*frame.drop_duplicates(unique.keys, keep=unique.keep).index}


@pytest.mark.promise("of the rows with equal keys one stays, over all files, after the filter")
@pytest.mark.promise("Only keys, `by` and row numbers move, in memory or on disk")
@examples(60)
@given(
    rows=ROWS, partition=st.integers(1, 20), threads=st.integers(1, 3), keep=st.sampled_from(["first", "last"]),
    keys=st.sampled_from([["s"], ["n"], ["s", "n"], ["t"]]), by=st.sampled_from([None, "t", "n", "s"]),
    filter=st.sampled_from([None, "n > -2"]), exchange=st.sampled_from(["memory", "disk"]),
)  # fmt: skip
def test_one_row_of_each_key_stays_as_in_pandas(
    rows: list[tuple[Any, Any, Any]], partition: int, threads: int, keep: Any, keys: list[str], by: str | None,
    filter: str | None, exchange: str, engine: str, tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    table, unique = table_of(rows), Unique(keys=keys, keep=keep, by=by)
    frame = table.to_pandas()
    frame = frame[frame["n"] > -2] if filter else frame
    folder = tmp_path_factory.mktemp("unique")
    gone = repeated(table, unique, folder, engine, partition, LocalPool(threads), filter, exchange)
    assert gone == sorted({*frame.index} - staying(frame, unique))


@pytest.mark.promise("A null key equals a null key. A null in `by` loses to any value")
def test_the_first_or_the_last_row_of_a_key_stays(tmp_path: Path, engine: str) -> None:
    table = pa.table({"u": ["a", "b", None, "a", None, "b", "a"], "t": [3, None, 1, 1, 1, None, 9]})
    assert repeated(table, Unique(keys=["u"]), tmp_path, engine) == [3, 4, 5, 6]
    assert repeated(table, Unique(keys=["u"], keep="last"), tmp_path, engine) == [0, 1, 2, 3]
    assert repeated(table, Unique(keys=["u"], by="t"), tmp_path, engine) == [0, 4, 5, 6]
    assert repeated(table, Unique(keys=["u"], by="t", keep="last"), tmp_path, engine) == [0, 1, 2, 3]


@pytest.mark.promise("Only keys, `by` and row numbers move, in memory or on disk")
def test_the_same_rows_go_on_a_cluster(tmp_path: Path, engine: str, client: Any) -> None:
    table = pa.table({"u": [i * i % 37 for i in range(500)], "t": [i * 7 % 11 for i in range(500)]})
    unique = Unique(keys=["u"], by="t", keep="last")
    assert repeated(table, unique, tmp_path, engine, 50, DaskPool(client)) == repeated(table, unique, tmp_path, engine)


def job_of(tmp_path: Path, output: str = "out", **more: Any) -> dict[str, Any]:
    return {
        "source": {"path": str(tmp_path / "data"), **more.pop("source", {})},
        "features": [{"columns": ["i", "w"] if more.pop("weighted", False) else ["i"]}],
        "label": ["y"],
        "output": {"path": str(tmp_path / output), "shuffle": "none", "files": 1},
        "run": {"min_partition_size": 1},
        **more,
    }


def write_data(tmp_path: Path, rows: int = 400, name: str = "data", files: int = 2) -> pd.DataFrame:
    numbers = np.arange(rows)
    frame = pd.DataFrame({"i": numbers, "u": numbers * numbers % 101, "y": (numbers % 4 == 0).astype("int64")})
    write_parts(tmp_path / name, frame, files, row_group_size=30)
    return frame


HALF = {"where": "y == 0", "fraction": 0.5, "weight": "w"}


@pytest.mark.promise("A hash of seed and row number decides, whatever the workers and partitions")
def test_a_part_of_some_rows_stays_with_its_weight_whatever_the_partitions(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path)
    outputs = []
    for size, threads in ((1, 1), (2000, 3), (None, 2)):
        source = {"downsample": HALF, "partition_size": size}
        job = job_of(tmp_path, f"out{size}", source=source, weighted=True)
        run_stages(make_job(job).request(engine), threads)
        outputs.append(rows_of(tmp_path / f"out{size}").to_pydict())
    assert outputs[0] == outputs[1] == outputs[2]
    result = pd.DataFrame(outputs[0])
    assert [*result.loc[result["y"] == 1, "i"]] == [*frame.loc[frame["y"] == 1, "i"]]
    assert 120 < (result["y"] == 0).sum() < 180  # of 300
    assert [*result["w"]] == [2.0 if y == 0 else 1.0 for y in result["y"]]
    assert pq.read_schema(next((tmp_path / "out1").glob("*.parquet"))).field("w").type == pa.float32()


@pytest.mark.promise("A hash of seed and row number decides, whatever the workers and partitions")
def test_another_seed_another_part_and_a_smaller_part_is_in_the_larger_one(tmp_path: Path, engine: str) -> None:
    write_data(tmp_path)
    rows = {}
    for seed, fraction in ((0, 0.5), (0, 0.2), (1, 0.5), (0, 1.0)):
        job = job_of(tmp_path, f"out{seed}{fraction}", source={"downsample": {**HALF, "seed": seed, "weight": None,
                                                                              "fraction": fraction}})  # fmt: skip
        run_stages(make_job(job).request(engine))
        rows[seed, fraction] = {*rows_of(tmp_path / f"out{seed}{fraction}")["i"].to_pylist()}
    assert rows[0, 0.2] < rows[0, 0.5] < rows[0, 1.0] == {*range(400)}
    assert rows[1, 0.5] != rows[0, 0.5]


def test_statistics_are_learned_from_the_rows_that_stay(tmp_path: Path, engine: str) -> None:
    write_data(tmp_path)
    features = [
        {"columns": ["i"]},
        {"columns": ["i"], "ops": [{"op": "NormalizeMinMax"}, {"op": "Rename", "name": "m"}]},
    ]
    source = {"filter": "i >= 10", "unique": {"keys": ["u"]}, "downsample": {"where": "i > 50", "fraction": 0.25}}
    run_stages(make_job(job_of(tmp_path, source=source, features=features)).request(engine))
    result = rows_of(tmp_path / "out").to_pandas()
    assert (result["i"].min(), result["m"].min(), result["m"].max()) == (10, 0.0, 1.0)
    assert result["i"].max() < 400


@pytest.mark.promise("Each split of `source.valid` is made unique by itself")
def test_validation_rows_all_stay_with_weight_one(tmp_path: Path, engine: str) -> None:
    write_data(tmp_path)
    write_data(tmp_path, 80, "later")
    source = {"valid": str(tmp_path / "later"), "downsample": HALF, "unique": {"keys": ["u"]}}
    run_stages(make_job(job_of(tmp_path, source=source, weighted=True)).request(engine))
    frame = rows_of(tmp_path / "out" / "valid").to_pandas()
    assert [*frame["i"]] == [*staying(pd.DataFrame({"u": np.arange(80) ** 2 % 101}), Unique(keys=["u"]))]
    assert {*frame["w"]} == {1.0}
    manifests = {split: Manifest.load(tmp_path / "out" / split).data["row_rules"] for split in ("train", "valid")}
    assert [rules["unique"]["rows"] for rules in manifests.values()] == [400 - 51, 80 - 51]
    assert "downsample" not in manifests["valid"]


@pytest.mark.promise("of the rows with equal keys one stays, over all files, after the filter")
def test_filter_unique_and_down_sampling_come_one_after_another(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path)
    source = {"filter": "i % 3 != 0", "unique": {"keys": ["u"], "keep": "last"}, "downsample": HALF}
    run_stages(make_job(job_of(tmp_path, source=source, weighted=True)).request(engine))
    result = rows_of(tmp_path / "out").to_pandas()
    stay = staying(frame[frame["i"] % 3 != 0], Unique(keys=["u"], keep="last"))
    assert {*result["i"]} < stay
    assert {*result.loc[result["y"] == 1, "i"]} == {i for i in stay if i % 4 == 0}


def test_rows_brought_together_by_keys_are_unique_too(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path)
    rows = []
    for name, keys in (("plain", []), ("keyed", ["y"])):
        source = {"unique": {"keys": ["u"], "by": "i", "keep": "last"}, "keys": keys, "downsample": HALF}
        run_stages(make_job(job_of(tmp_path, name, source=source, weighted=True)).request(engine))
        rows.append({*rows_of(tmp_path / name)["i"].to_pylist()})
    assert rows[0] == rows[1]
    assert rows[0] < staying(frame, Unique(keys=["u"], by="i", keep="last"))


def test_artifact_manifest_and_report_say_how_many_rows_are_left_out(tmp_path: Path) -> None:
    write_data(tmp_path)
    source = {"unique": {"keys": ["u"]}, "downsample": HALF}
    results = run_stages(make_job(job_of(tmp_path, source=source)).request("pandas"), plugins=[Report()])
    assert results[0].repeated == "349 rows"
    assert "| repeated | 349 rows |" in markdown_numbers(results[0])
    manifest = Manifest.load(tmp_path / "out").data
    downsampled = manifest["row_rules"]["downsample"]["rows"]
    assert manifest["rows"] == {"in": 400, "dropped": 349 + downsampled, "added": 0, "out": 51 - downsampled}
    assert manifest["row_rules"]["unique"] == {"keys": ["u"], "keep": "first", "by": None, "rows": 349}
    assert f"| downsampled | {downsampled} |" in markdown_numbers(results[2])
    report = (tmp_path / "out" / "_report.html").read_text()
    assert "Left out by source.unique: 349 rows." in report
    assert f"Left out by source.downsample: {downsampled} rows." in report


def test_a_fit_says_how_many_rows_it_did_not_learn_from(tmp_path: Path) -> None:
    write_data(tmp_path)
    features = [{"columns": ["i"], "ops": [{"op": "Normalize"}]}]
    request = make_job(job_of(tmp_path, source={"downsample": HALF}, features=features)).request("pandas")
    with request.staging.hold_lock():
        ingest.ingest(request, LocalPool(2))
        assert 120 < (statistics.statistics(request, LocalPool(2)).downsampled or 0) < 180
        assert statistics.statistics(request, LocalPool(2)).reused


def test_an_earlier_start_is_used_again_as_far_as_the_rows_are_the_same(tmp_path: Path) -> None:
    write_data(tmp_path)
    features = [{"columns": ["i"], "ops": [{"op": "Normalize"}]}]

    def stages(**source: Any) -> list[bool]:
        request = make_job(job_of(tmp_path, source=source, features=features)).request("pandas")
        with request.staging.hold_lock():
            pool = LocalPool(2)
            return [ingest.ingest(request, pool).reused, statistics.statistics(request, pool).reused,
                    transform.transform(request, "", pool).reused]  # fmt: skip

    unique = {"keys": ["u"]}
    assert stages(unique=unique, downsample=HALF) == [False, False, False]
    assert stages(unique=unique, downsample=HALF)[:2] == [True, True]
    assert stages(unique=unique, downsample={**HALF, "seed": 1}) == [True, False, False]
    assert stages(unique={**unique, "keep": "last"}, downsample=HALF) == [False, False, False]
    assert stages(unique={**unique, "keep": "last"}, filter="i > 3") == [False, False, False]
    (bits,) = (tmp_path / ".out.rowmill").glob("*.bits")
    bits.write_bytes(bits.read_bytes()[:-1] + b"\xff")
    assert stages(unique={**unique, "keep": "last"}, filter="i > 3")[0] is False


@pytest.mark.promise("`apply` does not take this key, and leaves the weight out")
def test_the_weight_is_left_out_where_a_fitted_workflow_is_applied(tmp_path: Path, engine: str) -> None:
    write_data(tmp_path)
    run_stages(make_job(job_of(tmp_path, source={"downsample": HALF}, weighted=True)).request(engine))
    application = make_application({"fitted": str(tmp_path / "out"), "source": {"path": str(tmp_path / "data")},
                                    "output": {"path": str(tmp_path / "new")}})  # fmt: skip
    results = run_stages(application.request(engine))
    assert results[0].left_out == "w"
    assert (*rows_of(tmp_path / "new").column_names,) == ("i", "y")
    assert rows_of(tmp_path / "new").num_rows == 400
    frame = Workflow.load(tmp_path / "out").transform(pd.DataFrame({"i": [1], "u": [1], "y": [0]}))
    assert [*frame.columns] == ["i", "y"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"unique": {"keys": ["user"]}}, "there is no column 'user'"),
        ({"unique": {"keys": ["u"], "by": "l"}}, "rows have no order by column 'l'"),
        ({"downsample": {**HALF, "weight": "u"}}, "the source has a column 'u' already"),
        ({"downsample": {**HALF, "where": "z == 0"}}, "there is no column 'z'"),
    ],
)
def test_a_preview_refuses_what_the_columns_do_not_allow(source: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"i": [1], "u": [1], "y": [0], "l": [[1]]}), tmp_path / "data" / "0.parquet")
    with pytest.raises(Exception, match=message):
        preview(make_job(job_of(tmp_path, source=source)))


@pytest.mark.parametrize(
    ("downsample", "message"),
    [
        ({"where": "y = 0", "fraction": 0.5}, "cannot be read"),
        ({"where": "1 == 1", "fraction": 0.5}, "names no column"),
        ({"where": "y == 0", "fraction": 0}, r"source\.downsample\.fraction"),
        ({"where": "y == 0", "fraction": 2}, r"source\.downsample\.fraction"),
    ],
)
def test_a_job_refuses_what_no_rows_can_make_right(downsample: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=message):
        make_job(job_of(tmp_path, source={"downsample": downsample}))


@pytest.mark.promise("`apply` does not take this key, and leaves the weight out")
def test_down_sampling_is_not_for_apply(tmp_path: Path) -> None:
    write_data(tmp_path)
    run_stages(make_job(job_of(tmp_path)).request("pandas"))
    source = {"path": str(tmp_path / "data"), "downsample": HALF}
    with pytest.raises(JobError, match=r"source\.downsample is not for apply"):
        make_application({"fitted": str(tmp_path / "out"), "source": source, "output": {"path": str(tmp_path / "n")}})


def test_a_preview_shows_rows_that_stay_and_the_pass_over_the_keys(tmp_path: Path) -> None:
    write_data(tmp_path)
    source = {"unique": {"keys": ["u"]}, "downsample": HALF}
    shown = preview(make_job(job_of(tmp_path, source=source, weighted=True)))
    assert shown.sample.after.column_names == ["i", "w", "y"]
    assert 200 < shown.sample.after.num_rows < 300
    assert [(r.what, r.columns) for r in shown.readings] == [
        ("ingest: rows with equal keys", ["u"]), ("transform", ["i", "y"])
    ]  # fmt: skip


def test_a_night_on_top_of_a_base_is_down_sampled_with_weights_too(tmp_path: Path, engine: str) -> None:
    write_data(tmp_path)
    features = [{"columns": ["i", "w"]}, {"columns": ["u"], "ops": [{"op": "Categorify"}]}]
    output = {"path": str(tmp_path / "out"), "on_existing": "version", "shuffle": "none", "files": 1}
    job = job_of(tmp_path, source={"downsample": HALF}, features=features) | {"output": output}
    run_stages(make_job(job).request(engine))
    write_data(tmp_path, 100, "next")
    source = {"path": str(tmp_path / "next"), "downsample": HALF}
    made = make_job(job | {"source": source, "base": str(tmp_path / "out")})
    results = run_stages(made.request(engine, find_newest_good(tmp_path / "out").version))
    result = rows_of(tmp_path / "out" / "v0002").to_pandas()
    assert len(result) == 100 - (results[2].downsampled or 0)
    assert [*result["w"]] == [2.0 if y == 0 else 1.0 for y in result["y"]]
    assert [*result.loc[result["y"] == 1, "i"]] == [*range(0, 100, 4)]


def test_the_estimate_has_the_scratch_files_of_the_keys(tmp_path: Path) -> None:
    write_data(tmp_path)
    job = job_of(tmp_path, source={"unique": {"keys": ["u"]}})
    job["run"] = {"exchange": "disk"}
    shown = preview(make_job(job))
    assert shown.needs is not None
    assert shown.needs.scratch == 400 * (2 * (8 + 8) + 8)
