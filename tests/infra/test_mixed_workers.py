"""Workers of two kinds at one scheduler: each stage runs on those that offer what it takes, and the rows do not
change."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pytest
from distributed import Client, get_task_stream

from flows.job.job import load_job
from infra.clusters import resolve
from infra.clusters.expected import estimate_workers
from infra.clusters.model import STAGES, Cluster
from tasks.cluster.dask_pool import workers_at
from tasks.errors import GiveUpError
from tasks.job.request import Request
from tasks.manifest import Manifest
from tests.clusters import ON_LOOPBACK, ForkingNanny, start_threads
from tests.conftest import free_port
from tests.faults import chaos
from tests.faults.jobs import BLOCK, make_job, plan_chaos
from tests.faults.jobs import STAGES as FAULTS
from tests.infra.elsewhere import DASK, digests, processes, run_job
from tests.stages import run_stages

OF_STAGE = {"_each": "ingest", "_parse_block": "ingest", "observe": "statistics", "merge": "statistics",
            "cut_partition": "transform", "scratch_partition": "transform", "write_part": "shuffle_write",
            "_deliver": "shuffle_write"}  # fmt: skip
KINDS = {"ingest": "parsing", "statistics": "operators", "transform": "operators", "shuffle_write": "operators"}
RESOURCES = {stage: {kind: 1} for stage, kind in KINDS.items()}
HERE = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]


@contextmanager
def workers(folder: Path, commands: Sequence[list[str]]) -> Iterator[Client]:
    """The client of a scheduler on the loopback with these workers: Dask's commands, up to the address."""
    address = f"tcp://127.0.0.1:{free_port()}"
    scheduler = [*DASK, "scheduler", *HERE, "--port", address.rpartition(":")[2]]
    more = [*HERE, "--local-directory", str(folder)]
    with (
        processes([scheduler, *([*command, address, *more] for command in commands)], folder),
        Client(address, set_as_default=False) as client,
    ):
        client.wait_for_workers(len(commands), timeout=240)
        yield client


@pytest.fixture(scope="module")
def mixed() -> Iterator[Client]:
    """A worker that offers `parsing`, and two that offer `operators`."""
    offers = [{"parsing": 1}, {"operators": 1}, {"operators": 1}]
    with start_threads(offers) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture
def on_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are threads of this process see no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def of_one_kind(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The digests of the same job in this process."""
    out = tmp_path_factory.mktemp("one") / "out"
    run_stages(load_job(make_job(text, out, source={"parse_once": False})).request("pandas"))
    return digests(out)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four CSV files of a block each."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(4):
        rows = range(number * BLOCK, (number + 1) * BLOCK)
        table = pa.table({"row": rows, "x": [row % 7 / 7 for row in rows], "name": [f"n{row % 91}" for row in rows],
                          "label": [row % 3 == 0 for row in rows]})  # fmt: skip
        csv.write_csv(table, folder / f"{number}.csv")
    return folder


def at(client: Client, resources: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "address", "address": client.scheduler.address, "resources": resources}


def ran_on(stream: Any, client: Client) -> dict[str, set[str]]:
    """The kinds of workers on which each stage, and its tasks, ran."""
    kinds = {address: next(iter(spec["resources"])) for address, spec in workers_at(client).items()}
    ran: dict[str, set[str]] = {stage: set() for stage in STAGES}
    for task in stream.data:
        name = str(task["key"]).partition("-")[0]
        if name in ran or name in OF_STAGE:
            ran[OF_STAGE.get(name, name)].add(kinds[task["worker"]])
    return ran


@pytest.mark.system
@pytest.mark.xdist_group("clusters")
@pytest.mark.promise("runs the work of a stage on workers that offer it", "infra/README.md#resources")
@pytest.mark.parametrize("exchange", ["memory", "disk"])
def test_each_stage_runs_on_workers_that_fit_and_writes_the_files_of_one_kind(
    mixed: Client, text: Path, tmp_path: Path, of_one_kind: Any, on_cores: None, prefect_server: Any, exchange: str
) -> None:
    with get_task_stream(mixed) as stream:
        state = run_job(text, tmp_path / "out", at(mixed, RESOURCES), run={"exchange": exchange})
    assert state.is_completed()
    assert ran_on(stream, mixed) == {stage: {kind} for stage, kind in KINDS.items()}
    planned = estimate_workers(Cluster(**at(mixed, RESOURCES)))
    assert (len(planned.workers), planned.threads) == (2, 2)
    assert Manifest.load(tmp_path / "out").data["exchange"] == exchange
    assert digests(tmp_path / "out") == of_one_kind
    assert sum(rows for rows, _ in digests(tmp_path / "out")) == 4 * BLOCK


@pytest.mark.system
@pytest.mark.xdist_group("clusters")
@pytest.mark.promise("parses text on the workers of ingest and keeps it in scratch files, which the others read")
def test_text_is_parsed_on_the_workers_of_ingest_alone(
    mixed: Client, text: Path, tmp_path: Path, of_one_kind: Any, on_cores: None, prefect_server: Any
) -> None:
    source = {"path": str(text), "parse_once": True}
    with get_task_stream(mixed) as stream:
        assert run_job(text, tmp_path / "out", at(mixed, RESOURCES), source=source).is_completed()
    assert ran_on(stream, mixed) == {stage: {kind} for stage, kind in KINDS.items()}
    assert sum(str(task["key"]).startswith("_parse_block") for task in stream.data) == 4
    assert digests(tmp_path / "out") == of_one_kind


@pytest.mark.system
@pytest.mark.xdist_group("clusters")
def test_the_only_worker_that_fits_is_replaced(
    text: Path, tmp_path: Path, on_cores: None, prefect_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plan = plan_chaos(tmp_path / "plan.json", [{"at": FAULTS["transform"]}])
    options = {**ON_LOOPBACK, "nthreads": 1, "resources": {"operators": 1}, "preload": ["tests.faults.chaos"],
               "env": {chaos.VARIABLE: str(plan)}}  # fmt: skip
    dies = {"cls": ForkingNanny, "options": options}
    with start_threads([{"parsing": 1}], dies=dies) as cluster, Client(cluster, set_as_default=False) as client:
        before = set(workers_at(client))
        assert run_job(text, tmp_path / "out", at(client, RESOURCES), run={"exchange": "memory"}).is_completed()
        assert len(before & set(workers_at(client))) == 1
    assert not plan.with_suffix(".flag0").exists()
    assert "OMP_NUM_THREADS" not in os.environ  # which the clusters of later tests would have
    assert sum(rows for rows, _ in digests(tmp_path / "out")) == 4 * BLOCK


@pytest.mark.gpu
@pytest.mark.system
@pytest.mark.xdist_group("clusters")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("exchange", ["memory", "disk"])
def test_eight_workers_on_cores_count_text_for_one_on_a_gpu(
    text: Path, tmp_path: Path, prefect_server: Any, exchange: str
) -> None:
    options = {"run": {"exchange": exchange}}
    on_cores = ["env", "CUDA_VISIBLE_DEVICES=", *DASK, "worker", "--nthreads", "1", "--resources", "parsing=1"]
    on_gpu = [*DASK, "cuda", "worker", "--nthreads", "4", "--resources", "operators=4"]
    with workers(tmp_path, [*[on_cores] * 8, ["env", "CUDA_VISIBLE_DEVICES=0", *on_gpu]]) as client:
        with get_task_stream(client) as stream:
            assert run_job(text, tmp_path / "mixed", at(client, RESOURCES), **options).is_completed()
        assert ran_on(stream, client) == {stage: {kind} for stage, kind in KINDS.items()}
        parsed_once = {"source": {"path": str(text), "parse_once": True}, **options}
        assert run_job(text, tmp_path / "parsed", at(client, RESOURCES), **parsed_once).is_completed()
        learning = {stage: {"parsing": 1} for stage in ("ingest", "statistics")}
        resources = {**RESOURCES, **learning}  # what one engine learns, the other one applies
        assert run_job(text, tmp_path / "learned", at(client, resources), **options).is_completed()
    assert run_job(text, tmp_path / "one", {"kind": "cuda", "workers": 1}, **options).is_completed()
    for name in ("mixed", "parsed", "learned"):
        assert digests(tmp_path / name) == digests(tmp_path / "one")
    assert Manifest.load(tmp_path / "mixed").data["engine"] == "cudf"


WORKERS = {"a": {"resources": {"CPU": 1}}, "b": {"resources": {"CPU": 1}}, "c": {"resources": {"GPU": 1}}}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers, the last of which has a GPU."""
    monkeypatch.setattr(resolve, "workers_of", lambda _: (WORKERS, {"c"}))


def mixed_section(*on_gpu: str, **more: dict[str, float]) -> Cluster:
    resources = {stage: {"GPU": 1.0} for stage in on_gpu} | more
    return Cluster(kind="address", address="tcp://127.0.0.1:8786", resources=resources)


@pytest.mark.usefixtures("seen")
@pytest.mark.promise("The engine of a stage is cuDF where all of its workers have a GPU, else pandas")
def test_a_stage_has_the_engine_of_all_its_workers() -> None:
    operators = mixed_section("statistics", "transform", "shuffle_write", ingest={"CPU": 1})
    every = mixed_section(*STAGES)
    learning = mixed_section("statistics")
    assert [resolve.resolve_cluster(c).engine for c in (operators, every, learning)] == ["cudf", "cudf", "pandas"]
    assert [resolve.stage_engines(c) for c in (operators, every, learning)] == [
        {"ingest": "pandas", "statistics": "cudf", "transform": "cudf", "shuffle_write": "cudf"},
        {},
        {"ingest": "pandas", "statistics": "cudf", "transform": "pandas", "shuffle_write": "pandas"},
    ]


@pytest.mark.usefixtures("seen")
def test_a_gpu_that_no_stage_uses_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve.stage_engines(mixed_section()) == {}
    assert caplog.messages == [
        "1 of 3 workers have a GPU, which no stage uses: keep stages to these workers with cluster.resources"
    ]


@pytest.mark.usefixtures("seen")
@pytest.mark.promise("transform and shuffle_write need workers of one kind")
@pytest.mark.parametrize(("one", "other"), [("transform", "shuffle_write"), ("shuffle_write", "transform")])
def test_rows_that_one_engine_hands_to_the_other_are_refused(one: str, other: str) -> None:
    with pytest.raises(GiveUpError) as caught:
        resolve.stage_engines(mixed_section(one))
    assert str(caught.value).splitlines() == [
        f"{one} runs on GPUs, and {other} does not",
        f"  where: cluster.resources.{other}",
        "  why: the rows that one hands to the other stay in the memory of one kind of worker",
        f"  do: set cluster.resources.{other} to {{GPU: 1}}",
    ]
    assert resolve.stage_engines(mixed_section(one, other))[one] == "cudf"


def test_work_that_one_kind_of_workers_did_is_not_reused_for_another() -> None:
    request = Request({"source": {"path": "in"}, "output": {"path": "out"}, "run": {}}, [], engine="cudf")
    assert request.of_stage("ingest") is request
    differing = replace(request, stage_engines={"ingest": "pandas", "transform": "cudf"})
    assert differing.of_stage("ingest").engine == "pandas"
    assert differing.of_stage("ingest").plan_fingerprint == differing.of_stage("transform").plan_fingerprint
    assert differing.plan_fingerprint != request.plan_fingerprint
    assert (request.planned_stage, replace(request, flow="fit").planned_stage) == ("transform", "statistics")
