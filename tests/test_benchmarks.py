"""The benchmarks: each says what it takes and finds what it checks; with `-m nightly` they run at toy size."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flows.job.job import load_job
from flows.sample import make_sample
from tests.bench import (
    compare,
    dialects,
    distinct,
    drafts,
    first_minute,
    gate,
    gpu,
    linear,
    linear_cluster,
    loading,
    memory_limits,
    plain,
    refit,
    regression,
    scaling,
    serving,
    soak,
    vocabulary,
)
from tests.conftest import python_path
from tests.cost import Cost
from tests.running import section_of
from tests.stages import run_stages

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = sorted(path.stem for path in (ROOT / "tests" / "bench").glob("*.py")
                  if "argparse" in path.read_text() and "__main__" in path.read_text())  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_says_what_it_takes(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [program, "--help"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"tests.bench.{program}").main()
    assert not ended.value.code
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.promise(
    "Columns of real files that `rowmill new` drafts otherwise than a reader who had seen the values",
    "tests/bench/README.md#drafts",
)
def test_drafted_roles_are_compared_with_those_that_were_judged(tmp_path: Path) -> None:
    lines = [f"{i % 3},{i * 0.5},x{i % 4},{i % 2},2024-01-0{i % 9 + 1},0" for i in range(60)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("\n".join(["kind,price,color,label,day,none", *lines]) + "\n")
    judged = {"kind": "C", "price": "AC", "color": "A", "label": "L", "day": "T", "none": "X"}
    (tmp_path / "roles.json").write_text(json.dumps({"drawn": {"data/rows.csv": judged}}))
    drafts.main([str(tmp_path), "--roles", str(tmp_path / "roles.json"), "--out", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())["sets"]["drawn"]
    assert (found["columns"], found["otherwise"], found["percent"]) == (6, 1, 16.7)
    assert found["by_file"] == {"data/rows.csv": {"color": "C for A"}}


@pytest.mark.parametrize("name", ["csv_semicolon", "r_write_table", "preface_of_a_portal", "mysql_outfile_enclosed"])
def test_what_other_programs_write_is_read_as_drafted(tmp_path: Path, name: str) -> None:
    written = dialects.WRITERS[name](dialects.make_rows(dialects.SPECIAL))
    path = tmp_path / f"rows.{written.suffix}"
    path.write_bytes(written.data)
    names, rows = dialects.read_as_drafted(path)
    assert dialects.find_difference(written, (names, rows)) == ""
    assert dialects.find_difference(written, (None, rows[1:])) != ""


@pytest.mark.system
def test_a_source_has_every_value_so_often_and_each_time_in_another_order(tmp_path: Path) -> None:
    distinct.make("int64", 1000, 3, tmp_path / "data")
    files = [sorted(tmp_path.glob(f"data/*-{again}.parquet")) for again in range(3)]
    parts = [[pq.read_table(path)["c"].to_pylist() for path in paths] for paths in files]
    first, second, third = ([value for file in part for value in file] for part in parts)
    assert len(set(first)) == 1000
    assert sorted(first) == sorted(second) == sorted(third)
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
    assert sum(a == b for a, b in zip(second, third, strict=True)) < 10
    assert len(set(parts[0][0]) & set(parts[1][0])) < 60  # files beside each other do not hold the same values


@pytest.mark.nightly
@pytest.mark.promise("check what is learned and made, and record the memory it takes")
@pytest.mark.parametrize("kind", distinct.KINDS)
def test_a_vocabulary_is_learned_and_applied_on_a_cluster(client: Any, engine: str, tmp_path: Path, kind: str) -> None:
    distinct.make(kind, 150_000, 2, tmp_path / "data")
    found = vocabulary.measure_on(client, tmp_path, engine, repeats=1, partition_size="600kB")
    assert (found["rows"], found["vocabulary"], found["workers"]) == (300_000, 150_000, 1)
    assert found["partitions"] > 2
    assert found["ids"] == {"rows": 300_000, "seen": 150_000, "least": 2, "most": 2, "others": 0}
    assert found["fits"][0]["host_peak_bytes"] > 10e6
    assert (found["transforms"][0]["allocated_peak_bytes"][0] is None) == (engine == "pandas")
    assert len(found["fits"]) == len(found["transforms"]) == 1


@pytest.mark.promise(
    "check what is learned and made, and record the memory it takes",
    "tests/bench/README.md#measure-it",
)
def test_an_id_that_is_missing_ends_the_benchmark() -> None:
    ids = {"rows": 10, "seen": 5, "least": 2, "most": 2, "others": 0}
    assert vocabulary.checked(ids, 10, 5) == ids
    with pytest.raises(SystemExit, match="the ids are wrong"):
        vocabulary.checked(ids | {"seen": 4, "least": 0}, 10, 5)


@pytest.mark.nightly
def test_processes_that_map_a_vocabulary_hold_one_copy(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    serving.main(["--vocabulary", "300000", "--processes", "2", "--folder", str(tmp_path), "--out", str(out)])
    found = json.loads(out.read_text())
    assert found["bytes of the mapped files"] > 300_000 * 24
    assert len(found["runs"]["mapped"]) == 2
    assert len({process["ids"] for name in ("copies", "mapped") for process in found["runs"][name]}) == 1


@pytest.mark.nightly
def test_requests_are_measured_in_turns_with_another_checkout(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    serving.main(["--times", "2", "--rounds", "1", "--before", str(ROOT), "--out", str(out)])
    found = json.loads(out.read_text())
    assert {*found["seconds"]["now"]} == {*found["seconds"]["before"]} > {"1 rows, pandas", "1000 rows, Arrow table"}


@pytest.mark.system
@pytest.mark.promise("An output of the recipe criteo", "tests/bench/README.md#what-training-gets")
def test_readers_of_an_output_are_measured_and_a_missing_row_ends_the_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "found.json"
    said = ["--rows", "3000", "--batch", "1000", "--files", "2", "--rounds", "1", "--folder", str(tmp_path / "data")]
    chosen = ["--readers", "loader", "pyarrow.dataset, in order, Arrow", "no such package"]
    missing = loading.Reader("no such package", lambda: iter(()), ("no_such_package",))
    plain = loading.list_host_readers
    monkeypatch.setattr(loading, "list_host_readers", lambda *how: [*plain(*how), missing])
    loading.main([*said, *chosen, "--out", str(out)])
    found = json.loads(out.read_text())
    assert [*found["rows a second"]] == [
        "loader, shuffled, Arrow tables",
        "loader, in order, Arrow tables",
        "loader, shuffled, arrays",
        "pyarrow.dataset, in order, Arrow batches",
    ]
    assert found["missing"] == {"no such package": ["no_such_package"]}
    assert "M rows/s  loader, shuffled, arrays\n" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()

    short = loading.Reader("short", lambda: iter([{"label": np.zeros(7)}]))
    monkeypatch.setattr(loading, "list_host_readers", lambda *_: [short])
    with pytest.raises(SystemExit, match=r"short gives \(rows, positive\) \(7, 0\), the files have \(3000, "):
        loading.main([*said, "--out", str(out)])


@pytest.mark.nightly
def test_encode_is_measured_over_more_and_more_rows(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    said = ["--kinds", "int64=2000", "--sizes", "2000", "4000", "--repeats", "1", "--folder", str(tmp_path)]
    vocabulary.main([*said, "--out", str(out)])
    found = json.loads(out.read_text())
    (case,) = found["cases"]
    assert [size["rows"] for size in case["sizes"]] == [2000, 4000]
    assert [size["ids"]["least"] for size in case["sizes"]] == [1, 2]
    assert all(np.isclose(s["rows_per_second"], s["rows"] / s["seconds"], rtol=0.5) for s in case["sizes"])
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.nightly
@pytest.mark.parametrize("source", [["--nights", "3", "--rows", "2000"], ["--ids", "5000", "--rows", "1000"]])
def test_a_night_is_measured_beside_apply_and_a_fit_of_all_rows(tmp_path: Path, source: list[str], capsys: Any) -> None:
    out = tmp_path / "found.json"
    said = [*source, "--repeats", "2", "--files", "2"]
    refit.main([*said, "--folder", str(tmp_path / "refit"), "--out", str(out)])
    found = json.loads(out.read_text())
    assert [len(found[name]) for name in ("base", "refit", "apply", "full")] == [1, 2, 2, 1]
    runs = found["runs"]
    assert runs["full"]["rows"] == runs["base"]["rows"] + runs["refit"]["rows"]
    assert runs["refit"]["rows"] == runs["apply"]["rows"]
    before, after = next(sizes for sizes in found["ids"].values() if sizes[0] > 500)
    assert after > before
    assert not any(one["moved"] for one in found["id_churn"]["refit"].values())
    assert max(found["moved_by_a_fit"].values()) > 0.5
    if "--ids" in source:
        assert (before, after, runs["refit"]["rows"]) == (5000, 5200, 1000)
    assert "a fit moves" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_profile_is_measured_in_pairs(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    gate.main(["--rows", "3000", "--pairs", "2", "--files", "2", "--folder", str(tmp_path), "--out", str(out)])
    found = json.loads(out.read_text())
    assert (found["workload"], found["rows"], len(found["pairs"])) == ("toy", 3000, 2)
    assert found["cost"]["min"] <= found["cost"]["median"] <= found["cost"]["max"]
    for pair in found["pairs"]:
        assert pair["with"]["profile_seconds"] > 0
        assert pair["cost"] == pytest.approx(pair["with"]["cpu_seconds"] / pair["without"]["cpu_seconds"] - 1, abs=1e-3)


@pytest.mark.nightly
@pytest.mark.promise("check what is learned and made, and record the memory it takes")
def test_a_refit_that_moves_ids_ends_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = {"c": {"before": 5, "after": 6, "moved": 0.2}}
    monkeypatch.setattr(refit, "id_churn", lambda before, after: moved)
    said = ["--ids", "200", "--rows", "50", "--repeats", "1", "--folder", str(tmp_path / "refit")]
    with pytest.raises(SystemExit, match="ids moved in the refit"):
        refit.main([*said, "--out", str(tmp_path / "found.json")])


@pytest.mark.nightly
@pytest.mark.parametrize("work", ["pca-200", "pairs-50"])
def test_what_is_learned_of_a_matrix_on_a_cluster_is_numpys(
    client: Any, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    monkeypatch.setattr(linear_cluster, "CELLS", 100_000)
    source = linear_cluster.source_of(work, 3000, tmp_path)
    found = linear_cluster.measure_on(client, work, source, engine, repeats=1, partition_size="1MB")
    theirs = linear_cluster.with_axes(work, source) if work == "pca-200" else linear.numpy_lstsq(work, source)
    assert len(list(source.glob("*.parquet"))) in (2, 6)
    assert found["fits"] == {"pca-200": 1, "pairs-50": 1225}[work]
    assert set(linear_cluster.checked(work, found, theirs)) >= {"differences"}
    with pytest.raises(SystemExit, match=f"{work}: too far from numpy"):
        linear_cluster.checked(work, found | {"found": (np.array(found["found"]) * (1 + 1e-7)).tolist()}, theirs)


@pytest.mark.nightly
@pytest.mark.xdist_group("flows")
@pytest.mark.parametrize(("recipe", "rows", "files"), [("pca", 2000, 4), ("ecommerce", 4000, 8)])
def test_a_recipe_is_measured_through_the_flow(
    prefect_server: Any, cluster: Any, tmp_path: Path, recipe: str, rows: int, files: int
) -> None:
    nbytes, source = gpu.make_source(recipe, tmp_path, rows, 60 if recipe == "pca" else None)
    assert nbytes > 20 * rows
    assert all(str(tmp_path) in change for change in source)
    changes = [*source, "output.files=4", "output.files_per_worker=null"]
    found = gpu.run_flow(section_of(cluster), recipe, changes, tmp_path / "out", tmp_path / "trace")
    assert list(found["stages"]) == ["ingest", "statistics", "transform", "shuffle_write"]
    assert sum(found["stages"].values()) <= found["seconds"] <= found["flow_wall"]
    assert (found["files"], found["rows"] <= rows * 1.2) == (files, True)
    stages = [stage["stage"] for stage in json.loads((tmp_path / "trace").read_text())["stages"]]
    assert set(stages) == {"ingest", "statistics", "transform", "shuffle_write"}


def test_a_stage_that_splits_share_counts_once() -> None:
    def manifest(**seconds: float) -> dict[str, Any]:
        return {"stages": {stage: {"seconds": value} for stage, value in seconds.items()}}

    both = [manifest(ingest=1.0, statistics=2.0, transform=0.25), manifest(ingest=1.0, statistics=2.0, transform=0.5)]
    assert [gpu.seconds_of(name, both) for name in both[0]["stages"]] == [1.0, 2.0, 0.75]


@pytest.mark.nightly
def test_every_recipe_can_be_measured(tmp_path: Path) -> None:
    for recipe in gpu.SAMPLES:
        _, (source, *valid) = gpu.make_source(recipe, tmp_path, 300, None)
        assert list(Path(source.removeprefix("source.path=")).glob("part-*.parquet"))
        validated = recipe in ("ecommerce", "sequences")
        assert [change.partition("=")[0] for change in valid] == ["source.valid"] * validated


def test_the_storage_alone_is_measured_with_as_many_bytes(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.parquet").write_bytes(bytes(1000))
    run = {"files": 3, "bytes": 2 * plain.BLOCK + 1}
    found = gpu.plain_run(tmp_path, [f"source.path={tmp_path / 'source'}"], run)
    assert min(found["read"], found["write"]) > 0
    assert [p.name for p in tmp_path.iterdir()] == ["source"]
    plain._write_one(tmp_path / "one", bytes(plain.BLOCK), plain.BLOCK + 7)
    assert (tmp_path / "one").stat().st_size == plain._read_one(tmp_path / "one") == plain.BLOCK + 7


@pytest.mark.nightly
@pytest.mark.xdist_group("flows")
def test_a_round_is_a_cluster_of_its_own(prefect_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["--rows", "3000", "--files", "2", "--repeats", "1", "--rounds", "2", "--plain", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["gpu", *said, "--cluster", '{"kind": "cpu"}', "--out", str(tmp_path / "found")])
    monkeypatch.setattr("infra.orchestration.server.stop_server", bool)  # the session's server is left alone
    gpu.main()
    found = json.loads((tmp_path / "found").read_text())
    assert [run["rows"] for run in found["runs"]] == [3000, 3000]
    assert len({run["digest"] for run in found["runs"]}) == 1
    assert set(found["medians"]) == {"rowmill", "plain write", "plain read"}
    assert len(found["plain"]) == 2


def test_contenders_read_the_same_files_in_the_same_format() -> None:
    workload = compare.Workload("criteo", "tsv", Path("/in"), 8)
    _, script, *options = workload.make_command("polars-streaming", Path("/out"), {})
    where = ["--input", "/in", "--output", "/out", "--files", "8"]
    assert (Path(script).name, options) == ("peer_polars_criteo.py", ["--suffix", "tsv", *where])
    _, *options = workload.make_command("disk", Path("/out"), {"disk": ["run.exchange=disk"]})
    names = ", ".join(["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))])
    changes = ["source.format=tsv", "source.header=false", f"source.columns=[{names}]", "run.exchange=disk"]
    assert options == ["-m", "tests.bench.rowmill_run", "--recipe", "criteo", *where, "--set", *changes]


def test_statistics_of_contenders_are_compared() -> None:
    assert compare.seconds_of_statistics({"stages": {"statistics": {"seconds": 2.5}}}) == 2.5
    assert compare.seconds_of_statistics({"laps": {"read": 1.5, "stats": 2.0, "write": 9.0}}) == 3.5


@pytest.mark.nightly
@pytest.mark.parametrize("suffix", ["parquet", "tsv"])
def test_the_peer_of_criteo_writes_the_same_codes(tmp_path: Path, suffix: str) -> None:
    make_sample("criteo", tmp_path / "in", 20_000, format=suffix)
    workload = compare.Workload("criteo", suffix, tmp_path / "in", 2)
    compare.measured(workload.make_command("polars-streaming", tmp_path / "peer", {}), dict(os.environ))
    changes = [*workload.list_source_changes(), f"source.path={tmp_path / 'in'}", f"output.path={tmp_path / 'out'}"]
    run_stages(load_job("criteo", changes).request("pandas"))
    ours, theirs = (pq.read_table(sorted((tmp_path / folder).glob("part*"))) for folder in ("out", "peer"))
    for name in ("label", "C1", "C6", "C22"):
        assert sorted(theirs[name].to_pylist()) == sorted(ours[name].to_pylist())
    for name in ("I1", "I5"):
        assert np.allclose(np.sort(theirs[name]), np.sort(ours[name]), atol=1e-4)


@pytest.mark.nightly
def test_what_was_measured_is_kept_when_the_rest_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "peers").mkdir()
    script = "import sys\nfor i in range(int(sys.argv[3])): print({'seconds': i}, flush=True)\nsys.exit(i - 1)"
    (tmp_path / "peers" / "peer_dask_cudf.py").write_text(script.replace("{'seconds': i}", "'{\"seconds\": %d}' % i"))
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    asked = argparse.Namespace(repeats=2, gpus=None, recipe="toy", files=1, out=tmp_path / "found")
    runs = gpu.peer_runs(asked, "source", tmp_path / "out")
    first = next(runs)
    gpu.write_result(asked, 3, [{"seconds": 2.0}], [first], [])
    with pytest.raises(SystemExit, match="status 1"):
        list(runs)
    assert json.loads((tmp_path / "found").read_text())["medians"] == {"rowmill": 2.0, "dask-cudf": 1}
    asked.repeats = 1
    assert [peer["seconds"] for peer in gpu.peer_runs(asked, "source", tmp_path / "out")] == [1]


@pytest.mark.promise("the most that was resident, and the estimate of ingest", "tests/bench/README.md#little-memory")
def test_a_case_with_little_memory_is_a_line() -> None:
    case = {"rows": 40_000_000, "limit": "1GB", "files": 8, "interface": "job", "result": "complete", "seconds": 110.8,
            "resident": {"transform": 403_000_000, "shuffle_write": 673_000_000},
            "estimate": {"host_memory_needed": "about 745.0 MB of 1.0 GB"}}  # fmt: skip
    assert memory_limits.line_of(case) == (
        " 40,000,000 rows,    1GB,   8 files, job: complete, 110.8 s, peak 673 MB, estimate about 745.0 MB of 1.0 GB"
    )


def make_case(*ours: float) -> regression.Case:
    """A case whose peer takes a second, and rowmill so many in its turns."""
    seconds = iter(ours)
    return regression.Case("toy", lambda: {"toy": Cost(next(seconds), 9.0)}, lambda: Cost(1.0, 1.0), turns=2)


def check(*ours: float) -> list[regression.Slowdown]:
    return regression.check_case(make_case(*ours), 3, "cpu", {"toy": 1.0})


@pytest.mark.promise(
    "fails where the median of five pairs is 10 % above the record in two runs",
    "tests/bench/README.md#slower-than-before",
)
def test_a_slowdown_is_what_is_measured_twice() -> None:
    first_turn = 9.0  # does not count
    steady = (1.5, 1.0, 1.0, 1.09, 3.0, 1.2)  # the least of two turns: 1.0, 1.0, 1.2
    slow = (1.2, 1.3, 1.4, 1.15, 1.0, 2.0)  # 1.2, 1.15, 1.0
    assert check(first_turn, *steady) == []
    assert check(first_turn, *slow, *steady) == []
    assert check(first_turn, *slow, *slow) == [regression.Slowdown("toy", 1.0, [[1.2, 1.15, 1.0], [1.2, 1.15, 1.0]])]


def test_a_slowdown_says_what_is_slower() -> None:
    slowdown = regression.Slowdown("toy statistics", 0.15, [[0.17, 0.18, 0.16], [0.18, 0.19, 0.17]])
    assert regression.explain(slowdown) == (
        "toy statistics is slower: 0.170 and 0.180 times its peer, 0.150 recorded "
        "(0.170, 0.180, 0.160; 0.180, 0.190, 0.170)"
    )


@pytest.mark.nightly
def test_a_made_up_slowdown_ends_the_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ["--folder", str(tmp_path / "data"), "--rows", "40000", "--pairs", "1", "--out", str(tmp_path / "record")]
    with pytest.raises(SystemExit) as ended:
        regression.main([*said, "--record"])
    assert ended.value.code == 0
    cases = {"toy", "read back", "criteo", "text", "1 row", "1,000 rows"}
    stages = {f"{recipe} {stage}" for recipe in ("toy", "criteo") for stage in regression.STAGES}
    assert json.loads((tmp_path / "record").read_text())["cpu"].keys() == cases | stages
    with pytest.raises(SystemExit) as ended:
        regression.main([*said, "--cases", "text", "--slow", "text=2"])
    assert ended.value.code == 1
    assert "text is slower: " in capsys.readouterr().out


@pytest.mark.promise("What no rows cost is subtracted", "tests/bench/README.md#cost-that-grows")
def test_growth_is_of_the_cost_by_byte_without_what_no_rows_cost() -> None:
    def run(cpu: float, nbytes: int) -> scaling.Run:
        return scaling.Run({"whole": Cost(cpu, 9.0)}, nbytes, nbytes // 8, 4)

    runs = {"x 1": [run(3.0, 10**9)] * 3, "x 2": [run(6.0, 2 * 10**9), run(99.0, 2 * 10**9), run(5.0, 2 * 10**9)]}
    described = scaling.describe_series(runs, [run(1.0, 8)], "cpu")
    assert described["without_rows"] == {"whole": 1.0}
    assert [point["nanoseconds_per_byte"] for point in described["points"]] == [2.0, 2.5]
    assert [scaling.line_of("rows", point) for point in described["points"]] == [
        "| rows x 1 | 1,000 | 4 | 3.00 | 2.00 | 1.00 |",
        "| rows x 2 | 2,000 | 4 | 6.00 | 2.50 | 1.25 ! |",
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("name", scaling.SERIES)
def test_growth_is_measured_next_to_the_first_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(scaling, "SMALL_FILES", 40)
    monkeypatch.setattr(scaling, "FOLDERS", 16)
    out = tmp_path / "found.json"
    scaling.main(
        ["--folder", str(tmp_path / "data"), "--base", "1MB", "--series", name, "--repeats", "1", "--out", str(out)]
    )
    points = json.loads(out.read_text())["series"][name]["points"]
    assert len(points) == {"rows": 4, "columns": 4}.get(name, 2)
    assert points[0]["of_the_first"] == 1
    assert list((tmp_path / "data").iterdir()) == []


def test_what_grows_in_a_soak_is_found() -> None:
    def judged(**changes: Any) -> dict[str, Any]:
        steady = dict.fromkeys(soak.ALLOWED, 10.0) | {"database_mb": 5.0}
        grown = changes.pop("per_minute", {})
        samples = [
            {"minute": m, **steady, **{name: 10.0 + step * m for name, step in grown.items()}} for m in range(60)
        ]
        result: dict[str, Any] = {
            "samples": samples, "runs": {"Completed": 100, "Crashed": 3}, "kills": {"flow": 3},
            "outputs": {"verified": 100, "wrong": 0}, "left": {"processes": [], "seconds_to_stop": 5.0}, **changes,
        }  # fmt: skip
        soak.finish(result, soak.arguments(["--minutes", "60"]))
        return result

    assert judged()["verdict"] == {"ok": True, "problems": []}
    assert judged(per_minute={"serve_rss_mb": 0.1, "database_mb": 1.0})["verdict"]["ok"]
    assert judged(per_minute={"serve_rss_mb": 0.2})["verdict"]["problems"] == ["serve_rss_mb grows: 12.0 an hour"]
    assert judged(per_minute={"temporary_files": 0.5})["fits"]["temporary_files"]["per_hour"] == 30.0
    assert judged(per_minute={"database_mb": 1.0})["database_mb_per_run"] == 0.573
    assert not judged(outputs={"verified": 99, "wrong": 1})["verdict"]["ok"]
    assert not judged(kills={"flow": 2})["verdict"]["ok"]
    assert not judged(left={"processes": ["python"], "seconds_to_stop": 5.0})["verdict"]["ok"]


def first_minute_of(server: Any, folder: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """(what the benchmark writes; the CPU seconds of commands over their limit, in those of the stack's imports)."""
    command = [sys.executable, "-m", "tests.bench.first_minute", "--repeats", "1", "--folder", str(folder / "work")]
    options = ["--server", server.api_url, "--out", str(folder / "found.json")]
    environment = {**os.environ, "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([*command, *options], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    found = json.loads((folder / "found.json").read_text())
    cpu = {name: runs[0]["cpu_seconds"] / found["yardstick_cpu_seconds"] for name, runs in found["runs"].items()}
    return found, {name: times for name, times in cpu.items() if times > first_minute.CPU_LIMITS[name]}


@pytest.mark.nightly
@pytest.mark.promise("`run`, `fit`, `apply` and `refit` say at once what they start")
def test_the_first_minute_takes_no_more_cpu_than_it_may(prefect_server: Any, tmp_path: Path) -> None:
    """CPU seconds are compared with those of the stack's imports in the same minute: alone, they differ by half between
    two days of a shared machine. A neighbor may add to one round: one of three has to stay below the limits."""
    for number in range(3):
        found, over = first_minute_of(prefect_server, tmp_path / str(number))
        if not over:
            break
    runs = {name: of[0] for name, of in found["runs"].items()}
    assert {name: run["status"] for name, run in runs.items()} == dict.fromkeys(first_minute.COMMANDS, 0)
    assert runs["run"]["lines"][0][1].startswith("starting job.yaml: ")
    assert runs["run"]["lines"][-1][1].startswith("next     rowmill inspect")
    assert over == {}
    own = {
        role: seconds / found["yardstick_cpu_seconds"]
        for role, seconds in runs["run"]["cpu_seconds_by_process"].items()
    }
    assert own["command"] < 2.4
    assert own["worker"] < 1.0  # a fork that has all it needs, no new interpreter
