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
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from distributed import Event
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.states import Cancelling
from prefect_dask.task_runners import PrefectDaskFuture

from flows.run.stages import wait_for
from tests.conftest import python_path
from tests.faults import chaos
from tests.faults.jobs import STAGES, digests, flow_state, make_data, make_job, plan_chaos, run_flow
from tests.infra.elsewhere import eventually, is_worker, until

pytestmark = pytest.mark.xdist_group("killed-flow")
COMMAND = [sys.executable, "-X", "faulthandler", "-P", "-c", "from rowmill.cli import main; main()", "run", "job.yaml"]
SERVE = "from flows.preprocess import preprocess; preprocess.serve('stopped', print_starting_message=False)"
SECONDS = 20.0  # in which a stopped run has ended


class Process:
    """A process in a folder with a plan of faults; what it prints is read as it comes."""

    def __init__(self, command: list[str], folder: Path) -> None:
        environment = os.environ | {
            chaos.VARIABLE: str(folder / "chaos.json"), "PYTHONPATH": python_path(), "COLUMNS": "200",
            "DASK_DISTRIBUTED__WORKER__PRELOAD": "tests.faults.chaos",
        }  # fmt: skip
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))
        self.process.stdout.close()

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def run(self) -> str:
        """The id of the run, from the line that names its page."""
        line = next(line for line in self.lines if "/runs/flow-run/" in line)
        return line.rpartition("/")[2].strip()

    def family(self) -> list[psutil.Process]:
        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]

    def hold(self, folder: Path) -> None:
        """Until its worker stands still."""
        held = folder / "chaos.held"
        until(lambda: held.exists() or self.process.poll() is not None, "the worker is held")
        assert held.exists(), self.text

    def ended(self, seconds: float) -> int:
        """Its status; one that does not end in time tells, as far as it can, where its threads stand."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(SECONDS)
            self.reader.join(SECONDS)
            raise AssertionError(f"not ended after {seconds} s:\n{self.text}") from None
        self.reader.join(seconds)
        return code


@pytest.fixture
def started(tmp_path: Path, prefect_server: Any) -> Iterator[Callable[..., Process]]:
    """started(command, stage) is a process whose worker is held in that stage; what is left is killed at the end."""
    processes: list[Process] = []

    def start(command: list[str], stage: str = "") -> Process:
        for name in (".held", ".release"):
            (tmp_path / "chaos").with_suffix(name).unlink(missing_ok=True)
        plan_chaos(tmp_path / "chaos.json", [{"at": STAGES[stage], "call": 2, "do": "hold"}] if stage else [])
        processes.append(Process(command, tmp_path))
        return processes[-1]

    yield start
    for process in processes:
        for one in reversed(process.family() if process.process.poll() is None else []):
            one.kill()
        process.ended(SECONDS)
        print(process.text)  # shown where the test has failed


def write_job(folder: Path, **sections: Any) -> dict[str, Any]:
    if not (folder / "data").exists():
        make_data(folder / "data")
    job = make_job(folder / "data", folder / "out", **sections)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return job


def state_of(run: str) -> str:
    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(run).state_name)  # type: ignore[arg-type]


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


def alive(process: psutil.Process) -> bool:
    """Not ended; what nobody has asked about since it ended does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check_nothing_left(folder: Path, family: list[psutil.Process]) -> None:
    """No process, no lock, no output, nothing half-written beside it; what is done is there for the next start."""
    until(lambda: not any(alive(process) for process in family), "the processes have ended", SECONDS)
    staging = folder / ".out.rowmill"
    assert sorted(p.name for p in folder.iterdir() if "out" in p.name) == [".out.rowmill"]
    assert not list(staging.glob("lock*"))
    assert (staging / "plan.json").exists()


@pytest.mark.promise(
    "What rowmill starts on this host (Prefect server, Dask scheduler, workers, dashboard) listens on the loopback"
)
@pytest.mark.promise("within seconds the workers are gone, the lock is free and the target is as it was")
def test_sigterm_stops_the_command_whose_ports_are_of_the_loopback(
    tmp_path: Path, started: Callable[..., Process]
) -> None:
    write_job(tmp_path)
    process = started(COMMAND, "transform")
    process.hold(tmp_path)
    family = process.family()
    port = os.environ["ROWMILL_TEST_PORT"]
    server = [p for p in psutil.process_iter(["cmdline"]) if port in (p.info["cmdline"] or [])]
    assert len(family) >= 2
    assert server
    assert listening([*family, *server]) == {"127.0.0.1"}
    process.process.send_signal(signal.SIGTERM)
    assert process.ended(SECONDS) == 143
    assert process.lines[-1] == "error: stopped by SIGTERM; give the same command again to go on\n"
    check_nothing_left(tmp_path, family)
    assert state_of(process.run) == "Crashed"
    check_stages(process.run, ingest="Completed", statistics="Completed", transform="Cancelled")


@pytest.mark.promise("The run is Cancelled, or Crashed after a signal")
def test_a_cancel_at_the_server_stops_the_command_and_the_next_start_completes(
    tmp_path: Path, started: Callable[..., Process]
) -> None:
    write_job(tmp_path)
    process = started(COMMAND, "shuffle_write")
    process.hold(tmp_path)
    family = process.family()
    cancel(process.run)
    assert process.ended(SECONDS) == 1
    assert process.lines[-1] == "error: the run was cancelled; give the same command again to go on\n"
    check_nothing_left(tmp_path, family)
    assert state_of(process.run) == "Cancelled"
    check_stages(
        process.run, ingest="Completed", statistics="Completed", transform="Completed", shuffle_write="Cancelled"
    )

    assert started(COMMAND).ended(120) == 0
    assert len(digests(tmp_path / "out")) == 5
    assert not (tmp_path / ".out.rowmill").exists()


def test_a_cancel_at_the_server_stops_a_run_of_a_deployment(tmp_path: Path, started: Callable[..., Process]) -> None:
    job = write_job(tmp_path)
    runner = started([sys.executable, "-P", "-c", SERVE], "transform")
    with get_client(sync_client=True) as client:
        made = until(lambda: _deployment(client), "the deployment is there")
        run = client.create_flow_run_from_deployment(made.id, parameters=job)
    runner.hold(tmp_path)
    family = [p for p in runner.family()[1:] if is_worker(p)]
    assert len(family) >= 2
    cancel(str(run.id))
    until(lambda: not any(alive(process) for process in family), "the processes have ended", SECONDS)
    check_nothing_left(tmp_path, family)
    until(lambda: state_of(str(run.id)) == "Cancelled", "the run is cancelled", SECONDS)
    check_stages(str(run.id), ingest="Completed", statistics="Completed", transform="Cancelled")
    assert runner.process.poll() is None


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
def test_a_second_run_fails_or_waits_for_the_first(tmp_path: Path, started: Callable[..., Process]) -> None:
    job = write_job(tmp_path, output={"on_existing": "replace"})
    first = started(COMMAND, "transform")
    first.hold(tmp_path)
    refused = run_flow(job)
    assert flow_state(refused) == "Failed"
    assert "another run is working on this output" in refused.message
    assert f"process {first.process.pid} on " in refused.message
    assert "set run.lock to wait" in refused.message
    assert first.process.poll() is None

    write_job(tmp_path, output={"on_existing": "replace", "seed": 8}, run={"lock": "wait", "keep_replaced": 0})
    second = Process(COMMAND, tmp_path)
    until(lambda: any("/runs/flow-run/" in line for line in second.lines), "the second run begins")
    assert not (tmp_path / "out").exists()
    (tmp_path / "chaos.release").touch()
    assert (first.ended(120), second.ended(120)) == (0, 0), first.text + second.text
    assert state_of(first.run) == state_of(second.run) == "Completed"
    manifest = yaml.safe_load((tmp_path / "out" / "_manifest.json").read_text())
    assert (manifest["run"], manifest["seed"]) == (second.run, 8)
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out"]
