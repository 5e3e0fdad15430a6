"""Runs that are stopped while a worker is busy: SIGTERM, cancel at the server; and two runs to one target."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from distributed import Event
from prefect import get_client, tags
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterTags
from prefect.states import Cancelling
from prefect_dask.task_runners import PrefectDaskFuture

from flows.run.stages import wait_for
from tests.conftest import python_path
from tests.faults import chaos, small_blocks
from tests.faults.jobs import STAGES, digests, flow_state, go, make_data, make_job, plan_chaos, run_here
from tests.faults.rounds import Rounds, has_ended
from tests.faults.small_blocks import ROWS
from tests.infra.elsewhere import eventually, is_worker, until

pytestmark = pytest.mark.xdist_group("rounds")
COMMAND = [sys.executable, "-X", "faulthandler", "-P", "-c", "from rowmill.cli import main; main()", "run", "job.yaml"]
SECONDS = 60.0  # in which a stopped run has ended; a worker that is held would stand still for two minutes


class Running:
    """A child of this session or of its rounds in a folder, whose worker meets a plan of faults."""

    def __init__(self, pid: int, output: Path, wait: Callable[[], int]) -> None:
        self.pid, self.output, self.status = pid, output, cache(wait)

    @property
    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    @property
    def run(self) -> str:
        """The id of the run, from the line that names its page."""
        line = next(line for line in self.lines if "/runs/flow-run/" in line)
        return line.rpartition("/")[2].strip()

    def family(self) -> list[psutil.Process]:
        process = psutil.Process(self.pid)
        return [process, *process.children(recursive=True)]

    def is_over(self) -> bool:
        return not psutil.pid_exists(self.pid) or has_ended(psutil.Process(self.pid))

    def hold(self, folder: Path) -> None:
        """Until its worker stands still."""
        held = folder / "chaos.held"
        until(lambda: held.exists() or self.is_over(), "the worker is held")
        assert held.exists(), self.output.read_text()

    def ended(self, seconds: float) -> int:
        """Its status; one that does not end in time tells, as far as it can, where its threads stand."""
        if not eventually(self.is_over, seconds):
            os.kill(self.pid, signal.SIGABRT)
            eventually(self.is_over, SECONDS)
            raise AssertionError(f"not ended after {seconds} s:\n{self.output.read_text()}")
        return self.status()


@pytest.fixture
def held_in(tmp_path: Path, prefect_server: Any) -> Callable[[str], Path]:
    """held_in(stage) is the plan of faults that holds a worker in that stage."""

    def plan(stage: str) -> Path:
        return plan_chaos(tmp_path / "chaos.json", [{"at": STAGES[stage], "call": 2, "do": "hold"}])

    return plan


@pytest.fixture
def kept() -> Iterator[list[Running]]:
    """Processes of which nothing is left at the end."""
    running: list[Running] = []
    yield running
    for one in running:
        for process in reversed([] if one.is_over() else one.family()):
            process.kill()
        one.ended(SECONDS)
        print(one.output.read_text())  # shown where the test has failed


@pytest.fixture
def begin(
    tmp_path: Path, rounds: Rounds, held_in: Callable[[str], Path], kept: list[Running]
) -> Callable[..., Running]:
    """begin(stage) is `rowmill run job.yaml`, whose worker is held in that stage; or another round."""

    def started(stage: str, do: str = "command", **job: Any) -> Running:
        output = tmp_path / "said"
        begun = rounds.begin(do, job or command_in(tmp_path), output, in_workers=str(held_in(stage)))
        kept.append(Running(begun[0], output, lambda: rounds.end(begun).status))
        return kept[-1]

    return started


def command_in(folder: Path) -> dict[str, Any]:
    return {"words": ["run", "job.yaml"], "folder": str(folder), "environment": {"COLUMNS": "200"}}


@pytest.fixture
def begin_anew(tmp_path: Path, held_in: Callable[[str], Path], kept: list[Running]) -> Callable[[str], Running]:
    """begin_anew(stage) is the same command in an interpreter of its own."""

    def started(stage: str) -> Running:
        environment = os.environ | {
            chaos.VARIABLE: str(held_in(stage)), "PYTHONPATH": python_path(), "COLUMNS": "200",
            "DASK_DISTRIBUTED__WORKER__PRELOAD": repr([small_blocks.__name__, chaos.__name__]),
        }  # fmt: skip
        output = tmp_path / "said"
        with output.open("w") as said:
            process = subprocess.Popen(COMMAND, cwd=tmp_path, env=environment, stdout=said, stderr=subprocess.STDOUT)
        kept.append(Running(process.pid, output, process.wait))
        return kept[-1]

    return started


def serve(folder: str) -> None:
    """Serve the flow as the deployment `stopped`, for a round that runs until it is killed."""
    from flows.preprocess import preprocess
    from infra.orchestration.server import ensure_server

    os.chdir(folder)
    ensure_server()
    preprocess.serve("stopped", print_starting_message=False)


def write_job(folder: Path, **sections: Any) -> dict[str, Any]:
    if not (folder / "data").exists():
        make_data(folder / "data", rows=ROWS)
    job = make_job(folder / "data", folder / "out", **sections)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return job


def state_of(run: str) -> str:
    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(run).state_name)  # type: ignore[arg-type]


def run_tagged(tag: str, job: dict[str, Any], cluster: Any) -> Any:
    with tags(tag):
        return run_here(job, cluster)


def states_of(tag: str) -> list[str]:
    """The states of the runs with a tag."""
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[tag])))
    return [str(run.state_name) for run in runs]


def check_stages(run: str, **expected: str) -> None:
    """The stages that the run has begun and their states; the server hears of them some time after they change."""

    def stages() -> dict[str, str]:
        with get_client(sync_client=True) as client:
            runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run])))  # type: ignore[list-item]
        # a run has a name of Prefect's until the server hears ours
        return {re.sub("-[0-9a-f]{3}$", "", r.name): str(r.state_name) for r in runs}

    eventually(lambda: stages() == expected)
    assert stages() == expected


def cancel(run: str) -> None:
    """What the button of the run's page does."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, Cancelling())  # type: ignore[arg-type]


def listening(processes: list[psutil.Process]) -> set[str]:
    """The addresses on which processes wait for connections."""
    return {c.laddr.ip for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}


def check_nothing_left(folder: Path, family: list[psutil.Process]) -> None:
    """No process, no lock, no output, nothing half-written beside it; what is done is there for the next start."""
    until(lambda: all(has_ended(process) for process in family), "the processes have ended", SECONDS)
    staging = folder / ".out.rowmill"
    assert sorted(p.name for p in folder.iterdir() if "out" in p.name) == [".out.rowmill"]
    assert not list(staging.glob("lock*"))
    assert (staging / "plan.json").exists()


@pytest.mark.promise(
    "What rowmill starts on this host (Prefect server, Dask scheduler, workers, dashboard) listens on the loopback"
)
@pytest.mark.promise("within seconds the workers are gone, the lock is free and the target is as it was")
def test_sigterm_stops_the_command_whose_ports_are_of_the_loopback(
    tmp_path: Path, begin_anew: Callable[[str], Running]
) -> None:
    write_job(tmp_path)
    command = begin_anew("transform")
    command.hold(tmp_path)
    family = command.family()
    port = os.environ["ROWMILL_TEST_PORT"]
    server = [p for p in psutil.process_iter(["cmdline"]) if port in (p.info["cmdline"] or [])]
    assert len(family) >= 2
    assert server
    assert listening([*family, *server]) == {"127.0.0.1"}
    os.kill(command.pid, signal.SIGTERM)
    assert command.ended(SECONDS) == 143
    assert command.lines[-1] == "error: stopped by SIGTERM; give the same command again to go on"
    check_nothing_left(tmp_path, family)
    assert state_of(command.run) == "Crashed"
    check_stages(command.run, ingest="Completed", statistics="Completed", transform="Cancelled")


@pytest.mark.promise("The run is Cancelled, or Crashed after a signal")
def test_a_cancel_at_the_server_stops_the_command_and_the_next_start_completes(
    tmp_path: Path, begin: Callable[..., Running], in_small_blocks: None
) -> None:
    job = write_job(tmp_path)
    command = begin("shuffle_write")
    command.hold(tmp_path)
    family = command.family()
    cancel(command.run)
    assert command.ended(SECONDS) == 1
    assert command.lines[-1] == "error: the run was cancelled; give the same command again to go on"
    check_nothing_left(tmp_path, family)
    assert state_of(command.run) == "Cancelled"
    check_stages(
        command.run, ingest="Completed", statistics="Completed", transform="Completed", shuffle_write="Cancelled"
    )

    assert go(job, "pandas")[:2] == ["ingest", "statistics"]
    assert len(digests(tmp_path / "out")) == 5
    assert not (tmp_path / ".out.rowmill").exists()


def test_a_cancel_at_the_server_stops_a_run_of_a_deployment(tmp_path: Path, begin: Callable[..., Running]) -> None:
    job = write_job(tmp_path)
    runner = begin("transform", f"{__name__}:serve", folder=str(tmp_path))
    with get_client(sync_client=True) as client:
        made = until(lambda: _deployment(client), "the deployment is there")
        run = client.create_flow_run_from_deployment(made.id, parameters=job)
    runner.hold(tmp_path)
    family = [p for p in runner.family()[1:] if is_worker(p)]
    assert len(family) >= 2
    cancel(str(run.id))
    until(lambda: all(has_ended(process) for process in family), "the processes have ended", SECONDS)
    check_nothing_left(tmp_path, family)
    until(lambda: state_of(str(run.id)) == "Cancelled", "the run is cancelled", SECONDS)
    check_stages(str(run.id), ingest="Completed", statistics="Completed", transform="Cancelled")
    assert not runner.is_over()


def _deployment(client: Any) -> Any:
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_deployment_by_name("preprocess/stopped")
    except ObjectNotFound:
        return None


def test_a_signal_that_does_not_reach_the_waiting_thread_ends_its_wait(client: Any) -> None:
    class Stopped(BaseException):
        pass

    def stop(*_: Any) -> None:
        raise Stopped

    name = f"go-{os.getpid()}"
    stage = client.submit(lambda: Event(name).wait(60), pure=False)
    before = signal.signal(signal.SIGUSR1, stop)
    other = threading.Timer(0.3, signal.raise_signal, [signal.SIGUSR1])  # Python notes it there, and nobody is woken
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    began = time.monotonic()
    try:
        with pytest.raises(Stopped):
            wait_for(PrefectDaskFuture(uuid.uuid4(), stage), "transform")
        assert 0.2 < time.monotonic() - began < 30  # and not the minute for which the stage waits
    finally:
        other.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        signal.signal(signal.SIGUSR1, before)
        Event(name, client=client).set()
    assert stage.result(60)


@pytest.mark.promise("fail or wait, when another run works on the same output")
@pytest.mark.promise("the second fails and says which process holds the lock, or waits for its end")
@pytest.mark.promise("`another run is working on this output`")
def test_a_second_run_fails_or_waits_for_the_first(tmp_path: Path, begin: Callable[..., Running], cluster: Any) -> None:
    job = write_job(tmp_path, output={"on_existing": "replace"})
    first = begin("transform")
    first.hold(tmp_path)
    refused = run_here(job, cluster)
    assert flow_state(refused) == "Failed"
    assert "another run is working on this output" in refused.message
    assert f"process {first.pid} on " in refused.message
    assert "set run.lock to wait" in refused.message
    assert not first.is_over()

    other = write_job(tmp_path, output={"on_existing": "replace", "seed": 8}, run={"lock": "wait", "keep_replaced": 0})
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(run_tagged, str(tmp_path), other, cluster)
        until(lambda: "Running" in states_of(str(tmp_path)), "the second run begins")
        assert not (tmp_path / "out").exists()
        (tmp_path / "chaos.release").touch()
        assert first.ended(120) == 0
        state = second.result(120)
    assert state_of(first.run) == flow_state(state) == "Completed"
    manifest = yaml.safe_load((tmp_path / "out" / "_manifest.json").read_text())
    assert (manifest["run"], manifest["seed"]) == (str(state.state_details.flow_run_id), 8)
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out"]
