"""A preview: what it says is true, it writes nothing, starts no cluster, and is the same as a dry run in Prefect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from dask.system import CPU_COUNT

from flows.job import run_history as history
from flows.job.job import make_application, make_job
from flows.preview.job_preview import preview
from flows.preview.preview_content import Preview
from flows.preview.preview_text import markdown, sections
from tasks.errors import JobError
from tasks.sources.formats.parquet_chunks import footers
from tests.commands import rowmill
from tests.flows.runs import have_previews_here, key_of, run_flow
from tests.running import section_of
from tests.stages import run_stages

pytestmark = pytest.mark.xdist_group("flows")
ROWS = 4000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data/ of two files, in which `out` is to be written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path.parent / "state"))
    (tmp_path / "data").mkdir()
    for part in range(2):
        number = np.arange(part * ROWS // 2, (part + 1) * ROWS // 2)
        word = np.array(["to", "be", "or"])[number % 3]
        table = pa.table({"number": number, "x": number**2.0, "word": word, "other": number, "label": number % 2})
        pq.write_table(table, tmp_path / "data" / f"logs-{part}.parquet")
    return tmp_path


def job(**more: Any) -> dict[str, Any]:
    return {
        "source": {"path": "data", "filter": "number < 3000"},
        "features": [
            {"columns": ["number"]},
            {"columns": ["x"], "ops": [{"op": "FillMedian"}, {"op": "Normalize"}]},
            {"columns": ["word"], "ops": [{"op": "Categorify"}]},
        ],
        "label": ["label"],
        "output": {"path": "out", "files": 4, **more},
        "cluster": {"kind": "cpu", "workers": 1, "threads_per_worker": 2, "memory_limit": "1GB"},
    }


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder in it with size and time, the folder itself too."""
    found = [folder, *folder.rglob("*")]
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in found}


def looked(monkeypatch: pytest.MonkeyPatch, data: dict[str, Any]) -> Preview:
    """The preview of a job, in which the start of any cluster would be an error."""
    from infra.clusters import kinds, local

    monkeypatch.setattr(kinds, "make_cluster", None)
    monkeypatch.setattr(local, "LocalCluster", None)
    return preview(make_job(data))


def table(found: Preview, title: str) -> list[dict[str, str]]:
    return [dict(row) for section in sections(found) if section.title == title for row in section.rows]


@pytest.mark.promise("`auto` goes by an estimate, which `rowmill preview` shows")
@pytest.mark.promise("shows what the job would do, need and take, and writes nothing")
def test_it_says_what_the_job_would_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(folder)
    found = looked(monkeypatch, job())

    assert everything(folder) == before
    assert not found.refused
    assert (found.rows, found.plans[""].rows, found.files[""].number) == (ROWS, ROWS, 4)
    assert [(r.what, r.columns) for r in found.readings] == [
        ("statistics, phase 1", ["number", "x", "word"]),
        ("statistics, phase 2", ["number", "x"]),
        ("transform", ["number", "x", "word", "label"]),
    ]
    assert table(found, "Columns in")[3] == {"column": "other", "type": "int64", "read": ""}
    assert table(found, "Columns out")[2] == {
        "column": "word", "type": "int32", "tags": "categorical", "ids": "6", "embedding": "6 x 16",
    }  # fmt: skip
    assert found.sample.before.num_rows == ROWS
    assert found.sample.after.num_rows == 3000
    assert table(found, "Rows before")[2] == {
        "column": "word",
        "row 1": "to",
        "row 2": "be",
        "row 3": "or",
        "row 4": "to",
        "row 5": "be",
    }
    assert found.needs
    assert found.needs.exchange == "memory"
    assert found.needs.memory == 10**9
    assert found.workers.text == "1 worker(s) with 2 thread(s) in all, on this host; engine pandas"
    assert found.guess is None


@pytest.mark.promise("which pass reads which columns and how many bytes")
def test_it_says_what_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = "what a pass decodes stays in memory for the next"
    (folder / "text").mkdir()
    for number in range(2):
        csv.write_csv(pq.read_table(folder / "data" / f"logs-{number}.parquet"), folder / "text" / f"{number}.csv")

    def plan(path: str, **run: str) -> str:
        source = {"source": {"path": path, "filter": "number < 3000"}}
        found = looked(monkeypatch, job() | source | {"run": run})
        return next(section.text for section in sections(found) if section.title == "Plan")

    assert once in plan("text")
    assert once not in plan("text", exchange="disk")
    assert once not in plan("data")


@pytest.mark.promise("What the run would refuse comes first, with exit status 1")
def test_what_would_be_refused_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.stages import needs

    (folder / "out").mkdir()
    (folder / "out" / "mine.txt").write_text("mine")
    monkeypatch.setattr(needs, "_read_free_bytes", lambda path: 1000)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    data = job() | {"cluster": {"kind": "cuda"}}
    found = looked(monkeypatch, data)

    assert [error.what for error in found.refused] == [
        "no GPU",
        "the output already exists",
        "the disk is too small for this run",
    ]
    assert "1.0 kB is free" in found.refused[2].why
    assert sections(found)[0].title == "Would be refused"
    assert found.workers.engine == "pandas"
    assert "the output already exists" in markdown(found).partition("### Source")[0]


@pytest.mark.promise("takes seconds, writes nothing and starts no cluster")
@pytest.mark.promise("What the run would refuse comes first, with exit status 1")
def test_the_command_ends_with_0_or_with_1_when_the_run_would_be_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_previews_here(monkeypatch)
    (folder / "job.yaml").write_text(str(job()))
    before = everything(folder)
    wrong = rowmill("preview", "job.yaml", "--set", "source.path=nowhere")
    assert wrong.exit_code == 1
    assert "there is no input" in wrong.output
    good = rowmill("preview", "job.yaml", "--rows", "2", COLUMNS="120")
    assert good.exit_code == 0, good.output
    for said in ("nothing is written", "Columns out", "exchange in memory", "Time  not known"):
        assert said in good.output
    before_rows = good.output.partition("Rows before")[2].partition("Rows after")[0].splitlines()[1:]
    assert [line.split() for line in before_rows if line] == [
        ["number", "x", "word", "label"], ["0", "0", "to", "0"], ["1", "1", "be", "1"],
    ]  # fmt: skip
    narrow = rowmill("preview", "job.yaml", "--rows", "2", COLUMNS="20").output
    assert ["column", "row", "1", "row", "2"] in [line.split() for line in narrow.splitlines()]
    assert everything(folder) == before
    (folder / "out").mkdir()
    (folder / "out" / "mine.txt").write_text("mine")
    refused = rowmill("preview", "job.yaml", COLUMNS="120")
    assert refused.exit_code == 1
    assert "the output already exists" in refused.output


def test_a_recipe_without_data_is_looked_at_with_a_few_rows_that_are_made_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(folder)
    found = looked(monkeypatch, {"recipe": "ecommerce", "source": {"sample": {"name": "ecommerce", "rows": 50_000}}})

    assert everything(folder) == before
    assert found.scale == 2.5
    assert found.rows == 60_000
    assert sorted(found.files) == ["train", "valid"]
    assert "look-alike data, which the run will make" in markdown(found)


def test_hostile_values_stay_text_in_markdown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = pa.table({"number": [1], "x": [1.0], "word": ["<b>|`x`\n# [a](b)"], "label": [0]})
    pq.write_table(hostile, folder / "one.parquet")
    data = job() | {"source": {"path": "one.parquet"}}
    line = next(line for line in markdown(looked(monkeypatch, data)).splitlines() if line.startswith("| word | \\<"))
    assert line == r"| word | \<b\>\|\`x\` \# \[a\](b) |"


def artifacts_of(tag: str) -> tuple[Any, list[Any]]:
    """The state of the run with a tag, and its artifacts."""
    from prefect import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterTags

    with get_client(sync_client=True) as client:
        (run,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[tag])))
        only = ArtifactFilterFlowRunId(any_=[run.id])
        return run.state, client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=only))


@pytest.mark.promise("a Completed run with one artifact, `preprocess-out-toy-preview`")
def test_a_dry_run_is_completed_with_one_artifact_and_wrote_nothing(folder: Path, prefect_server: Any) -> None:
    from prefect import tags

    from flows.preprocess import preprocess

    before = everything(folder)
    with tags(str(folder)):
        assert preprocess(**job(), dry_run=True) == []
    state, found = artifacts_of(str(folder))

    assert everything(folder) == before
    assert state.name == "Completed"
    assert [(a.key, a.type) for a in found] == [(f"{key_of(folder / 'out')}-preview", "markdown")]
    assert "### Columns out" in found[0].data
    assert f"{ROWS:,} rows to {folder / 'out'}" in found[0].description


@pytest.mark.system
@pytest.mark.promise("requests, bytes, seconds at the speed that is measured now, and the cost")
def test_what_a_run_fetches_from_storages_is_estimated(
    folder: Path, object_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = np.random.default_rng(0)
    for part in range(3):
        table = pa.table({f"c{i}": draws.integers(0, 2**62, 40_000) for i in range(6)})
        pq.write_table(table, folder / "a.parquet", row_group_size=10_000)
        object_store.put(f"preview/{part}.parquet", (folder / "a.parquet").read_bytes())
    pq.write_table(pa.table({"c1": [1, 2], "town": ["a", "b"]}), folder / "a.parquet")
    object_store.put("side/towns.parquet", (folder / "a.parquet").read_bytes())
    monkeypatch.setenv("ROWMILL_STORAGE_SHOP", json.dumps(object_store.options))
    join = {"op": "JoinExternal", "table": "s3://shop/side/towns.parquet", "on": "c1", "storage_options": "shop"}
    remote = {
        "source": {"path": "s3://shop/preview", "storage_options": "shop"},
        "features": [{"columns": ["c1"], "ops": [join]}, {"columns": ["c4"], "ops": [{"op": "Normalize"}]}],
        "output": {"path": "out"},
        "run": {"storage_price": {"gb": 1000, "thousand_requests": 1}},
    }
    traffic = preview(make_job(remote)).traffic
    assert traffic
    assert traffic.storages == ["s3://shop"]
    assert list(traffic.reads) == ["listing", "footers", "side tables", "statistics, phase 1", "transform"]
    footers.forget()
    request = make_job(remote).request("pandas")
    with object_store.proxy.counting() as seen:
        run_stages(request)
    total = traffic.total
    assert seen.fetched <= total.nbytes
    assert traffic.reads["transform"].requests == 24  # two chunks apart in each row group
    # statistics read c4 alone, and transform takes from memory what they have decoded
    needed = 2 * 3 * 40_000 * 8
    assert needed <= seen.fetched <= total.nbytes <= 2.2 * needed
    assert total.requests >= seen.count("get")
    assert traffic.cost == pytest.approx(total.nbytes / 10**6 + total.requests / 1000)
    assert traffic.seconds == pytest.approx(total.nbytes / (traffic.bandwidth or 0))
    text = markdown(preview(make_job(remote)))
    assert f"at most {total.requests} requests and " in text
    assert "/s, as measured now; cost " in text


def test_after_a_run_the_time_is_known_and_apply_is_shown_with_what_was_learned(
    folder: Path, prefect_server: Any, cluster: Any, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect import tags

    from flows.apply import apply
    from flows.fit import fit

    run_flow({k: v for k, v in job().items() if k != "cluster"}, cluster)
    again = job(path="again") | ({"cluster": {"kind": "cuda", "workers": 1}} if engine == "cudf" else {})
    found = preview(make_job(again | {"run": {"price_per_hour": 3600}}))  # times are those of an engine
    assert found.guess
    assert found.guess.basis == f"1 run(s) of this job, of {ROWS:,} rows"
    assert set(found.guess.seconds) == set(history.STAGES)
    taken = {"core_seconds", "cost", *(("gpu_seconds", "energy_joules") if engine == "cudf" else ())}
    assert set(found.guess.resources) == taken
    assert found.guess.resources["cost"] == pytest.approx(found.guess.total)
    (text,) = [section.text for section in sections(found) if section.title == "Time"]
    assert text.endswith(f" core seconds, cost {found.guess.total:,.4g}") or engine == "cudf"

    applied = {"fitted": "out", "source": {"path": "data/logs-1.parquet"}, "output": {"path": "applied"}}
    shown = preview(make_application(applied), "apply")
    assert shown.sample.fitted_on is None
    assert [r.what for r in shown.readings] == ["transform"]
    # x was normalized with the mean and deviation of the 3000 rows that the run learned from
    x = np.arange(3000.0) ** 2
    assert shown.sample.after["x"][0].as_py() == pytest.approx((2000.0**2 - x.mean()) / x.std(ddof=1), rel=1e-6)

    before = everything(folder)
    have_previews_here(monkeypatch)
    with tags(f"{folder}-apply"):
        assert apply(**applied, dry_run=True) == []
    with tags(f"{folder}-fit"):
        assert fit(**job(path="fitted"), dry_run=True) == ""
    assert everything(folder) == before
    assert [a.key for a in artifacts_of(f"{folder}-apply")[1]] == [f"{key_of(folder / 'applied', 'apply')}-preview"]
    state, found_artifacts = artifacts_of(f"{folder}-fit")
    assert state.name == "Completed"
    assert "### Needs" in found_artifacts[0].data


@pytest.mark.system
@pytest.mark.parametrize("asked", [{"kind": "cpu", "workers": 2, "threads_per_worker": 3}, {"kind": "cpu"}])
def test_the_workers_that_there_would_be(asked: dict[str, Any]) -> None:
    from infra.clusters.expected import estimate_workers
    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    found = estimate_workers(Cluster(**asked))
    if asked.get("workers"):
        assert (len(found.workers), found.threads, found.device_memory) == (2, 6, 0)
        return
    with make_cluster(Cluster(**asked)) as running:
        info = running.scheduler_info["workers"]
        assert len(found.workers) == len(info)
        assert found.threads == sum(w["nthreads"] for w in info.values()) == CPU_COUNT
        assert found.memory == sum(w["memory_limit"] for w in info.values())


def test_workers_elsewhere_are_those_that_run_or_were_asked_for(cluster: Any, engine: str) -> None:
    from infra.clusters.expected import estimate_workers
    from infra.clusters.model import Cluster

    running = estimate_workers(Cluster(**section_of(cluster)))
    threads = sum(worker["nthreads"] for worker in cluster.scheduler_info["workers"].values())
    assert (len(running.workers), running.threads) == (1, threads)
    assert threads == 2 or engine == "cudf"
    assert running.text.endswith(f"at {cluster.scheduler_address}; engine {engine}")
    slurm = {"cores": 8, "memory": "64GB", "gpus": 2}
    found = estimate_workers(Cluster(kind="slurm", workers=3, slurm=slurm))
    assert (found.engine, len(found.workers), found.threads, found.memory) == ("cudf", 3, 24, 3 * 32 * 10**9)
    found = estimate_workers(Cluster(kind="slurm", slurm=slurm))  # a job with a worker for each GPU
    assert (len(found.workers), found.memory) == (2, 64 * 10**9)
    pods = {"image": "rowmill", "cores": 4, "memory": "16GiB"}
    found = estimate_workers(Cluster(kind="kubernetes", workers=2, kubernetes=pods))
    assert (found.engine, found.threads, found.memory) == ("pandas", 8, 2 * 16 * 2**30)
    found = estimate_workers(Cluster(kind="ssh", ssh={"hosts": ["a", "b"]}, threads_per_worker=5, memory_limit="10GB"))
    assert (len(found.workers), found.threads, found.memory) == (2, 10, 20 * 10**9)


def test_a_job_with_a_base_shows_what_becomes_of_each_step(folder: Path) -> None:
    """The modes and their reasons, and settings that are impossible, before anything runs."""
    features = [
        *job()["features"][:1],
        {"columns": ["x"], "ops": [{"op": "FillMedian"}, {"op": "Normalize"}, {"op": "PCA", "n_components": 1}]},
        {"columns": ["word", "other"], "ops": [{"op": "Categorify"}]},
    ]
    first = {**job(), "features": features, "base": "out"}
    shown = preview(make_job(first))
    assert shown.modes == []
    assert "nothing is published at" in markdown(shown)
    run_stages(make_job({**job(), "features": features}).request("pandas"))

    night = {**first, "output": {"path": "night"}, "refit": {"features[2]": "merge", "other": "freeze"}}
    shown = preview(make_job(night))
    (section,) = [s for s in sections(shown) if s.title == "Base"]
    assert [(row["operator"], row["columns"], row["mode"]) for row in section.rows] == [
        ("FillMedian", "x", "frozen"),
        ("Normalize", "x", "merged"),
        ("PCA", "x", "frozen"),
        ("Categorify", "other", "frozen"),
        ("Categorify", "word", "appended"),
    ]
    assert "outputs move as it learns" in section.rows[2]["why"]
    assert "the job says other: freeze" in markdown(shown)
    with pytest.raises(JobError, match=r"PCA of 'x' cannot be merged(.|\n)*freeze Normalize"):
        preview(make_job({**night, "refit": {"PCA": "merge"}}))
