"""kill -9 of any process of a real run at a random moment: the flow, a worker, the fork server, a nanny.

The run goes on and is Completed, or it fails and says so; the same command again gives the bytes of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, Nanny, Scheduler, Worker

from tests.conftest import free_port
from tests.faults.conftest import Known
from tests.faults.rounds import Ended, Rounds, has_ended
from tests.faults.seeds import VARIANTS, contents, nightly, seeds, variant
from tests.infra.elsewhere import until

pytestmark = [pytest.mark.xdist_group("rounds"), pytest.mark.timeout(900)]
LOCAL = {"cluster": {"kind": "cpu", "workers": 2, "threads_per_worker": 1}, "run": {"retries": 2}}
VICTIMS = ("flow", "worker", "fork server")
FORK_SERVER = 2  # a seed with this victim; each run of the suite kills flows and workers elsewhere
MOST_SECONDS = 240.0  # of a run, killed or not; this suite shares its machine with others


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def usual_seconds(
    place: Path, round_data: Path, rounds: Rounds, prefect_server: Any, undisturbed: dict[str, Known]
) -> float:
    """How long a run takes when nothing happens; its files are those of the stages alone."""
    began = time.monotonic()
    ended = rounds.run("flow", variant("memory", round_data, place / "quiet", **LOCAL))
    assert ended.status == 0, (ended.error, rounds.says())
    assert contents(place / "quiet") == undisturbed["memory"].files
    return time.monotonic() - began


@pytest.fixture
def folder(place: Path) -> Iterator[Path]:
    (place / "round").mkdir()
    yield place / "round"
    shutil.rmtree(place / "round")


def is_victim(process: psutil.Process, kind: str) -> bool:
    """Whether a process of a run is of that kind; a worker is a fork of the fork server."""
    try:
        command, parent = " ".join(process.cmdline()), process.parent()
        forks = "multiprocessing.forkserver" in command
        below = parent is not None and parent.cmdline() == process.cmdline()
    except psutil.Error:
        return False
    return forks and below == (kind == "worker")


def killed_or_ended(pid: int, kind: str, moment: float) -> str:
    """Wait until the moment, then until such a process is there, and kill it; its kind, '' if the run is over."""
    time.sleep(moment)
    while not has_ended(psutil.Process(pid)):
        if kind == "flow":
            os.kill(pid, signal.SIGKILL)
            return kind
        for process in psutil.Process(pid).children(recursive=True):
            if is_victim(process, kind):
                process.kill()
                return kind
        time.sleep(0.02)
    return ""


def end_in_time(rounds: Rounds, begun: tuple[int, Path]) -> Ended:
    """The end of a run, which comes within `MOST_SECONDS`."""
    deadline, pid = time.monotonic() + MOST_SECONDS, begun[0]
    while not has_ended(psutil.Process(pid)):
        if time.monotonic() > deadline:
            tree = [(p.pid, p.status(), p.cmdline()[-2:]) for p in psutil.Process(pid).children(recursive=True)]
            os.kill(pid, signal.SIGABRT)  # faulthandler writes where its threads are
            time.sleep(1)
            os.kill(pid, signal.SIGKILL)
            rounds.end(begun)
            raise AssertionError(f"the run did not end within {MOST_SECONDS:.0f} s: {tree}\n{rounds.says()}")
        time.sleep(0.05)
    return rounds.end(begun)


@pytest.mark.promise("After a killed run, give the same command again")
@pytest.mark.parametrize("seed", [FORK_SERVER, *nightly((n,) for n in range(200) if n != FORK_SERVER)])
def test_whatever_is_killed_the_same_command_completes_the_work(
    seed: int, round_data: Path, folder: Path, rounds: Rounds, undisturbed: dict[str, Known], usual_seconds: float
) -> None:
    draws = random.Random(seed)
    name, victim = draws.choice(sorted(VARIANTS)), VICTIMS[seed % 3]
    job = variant(name, round_data, folder / "out", **LOCAL)
    begun = rounds.begin("flow", job)
    killed = killed_or_ended(begun[0], victim, draws.uniform(0, usual_seconds))
    ended = end_in_time(rounds, begun)
    if ended.status == 0:
        assert contents(folder / "out") == undisturbed[name].files
    elif not ended.killed:
        assert killed, ended.error
        assert ended.error["what"], ended.error
    if ended.status:
        again = end_in_time(rounds, rounds.begin("flow", job))
        assert again.status == 0 or again.error["what"] == "the output already exists", (again.error, rounds.says())
    assert contents(folder / "out") == undisturbed[name].files


def serve(port: int) -> None:
    """A scheduler and a worker beside it, for a round that runs until it is killed."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

    async def run() -> None:
        async with (
            Scheduler(host="127.0.0.1", port=port, dashboard=False) as scheduler,
            Worker(scheduler.address, nthreads=1, host="127.0.0.1"),
        ):
            await scheduler.finished()

    asyncio.run(run())


def look_after_a_worker(address: str) -> None:
    """What `dask worker` is, for a round that runs until it is killed: a nanny with its worker."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

    async def run() -> None:
        async with Nanny(address, nthreads=1, host="127.0.0.1") as nanny:
            await nanny.finished()

    asyncio.run(run())


@pytest.mark.parametrize("seed", seeds(few=1, all=100))
def test_a_killed_nanny_of_a_cluster_elsewhere(
    seed: int, round_data: Path, folder: Path, rounds: Rounds, undisturbed: dict[str, Known], usual_seconds: float
) -> None:
    """A nanny, which is not started again, or its worker, which is.

    The workers see no GPU: `undisturbed` are files of the CPU's engine.
    """
    draws = random.Random(2000 + seed)
    name = draws.choice(sorted(VARIANTS))
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    job = variant(
        name,
        round_data,
        folder / "out",
        cluster={"kind": "address", "address": address, "threads_per_worker": None},
        run={"retries": 2},
    )
    elsewhere = [rounds.begin(f"{__name__}:serve", {"port": port})]
    try:
        elsewhere.append(rounds.begin(f"{__name__}:look_after_a_worker", {"address": address}))
        with Client(address, set_as_default=False, timeout="60s") as client:
            client.wait_for_workers(2, timeout=240)
        begun = rounds.begin("flow", job)
        time.sleep(draws.uniform(0, usual_seconds))
        nanny = psutil.Process(elsewhere[1][0])
        victim = nanny if draws.random() < 0.5 else until(nanny.children, "a worker")[-1]
        victim.kill()
        ended = end_in_time(rounds, begun)
        assert ended.status == 0 or ended.error["what"], ended.error
        if ended.status:
            again = end_in_time(rounds, rounds.begin("flow", job))
            assert again.status == 0, (again.error, rounds.says())
    finally:
        for process in reversed(elsewhere):
            os.kill(process[0], signal.SIGKILL)
            rounds.end(process)
    assert contents(folder / "out") == undisturbed[name].files
