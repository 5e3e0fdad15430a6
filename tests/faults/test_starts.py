"""Workers that die while their cluster starts, a fork server that is killed, and too little memory to start at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import dask
import pytest
from distributed import Client

from infra.clusters.model import Cluster
from tasks.errors import GiveUpError
from tests.clusters import make_cluster
from tests.conftest import python_path
from tests.faults import chaos
from tests.faults.jobs import plan_chaos
from tests.infra.elsewhere import until

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("faults"), pytest.mark.timeout(300)]
AT_START = "infra.workers.preload:dask_setup"
ONE = Cluster(kind="cpu", threads_per_worker=1)


@pytest.fixture
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """deaths({"at": .., "do": ..}, ..) is what workers meet that start after it; without a Prefect server."""
    monkeypatch.setenv(chaos.VARIABLE, str(tmp_path / "chaos.json"))
    with dask.config.set({"distributed.worker.preload": ["tests.faults.chaos"]}):
        yield lambda *given: plan_chaos(tmp_path / "chaos.json", given)


@pytest.mark.parametrize("how", ["kill", "fall"])
def test_a_worker_that_dies_once_while_it_starts_is_started_again_and_keeps_its_way_to_stderr(
    how: str, deaths: Callable[..., None], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []

    def say(text: str) -> int:
        return os.write(2, text.encode())

    def is_read() -> bool:
        lines.append(capfd.readouterr().err)
        return "a line of the worker" in "".join(lines)

    deaths({"at": AT_START, "do": how})
    with make_cluster(ONE) as cluster, Client(cluster, set_as_default=False) as client:
        assert client.submit(sum, [1, 2]).result(timeout=120) == 3
        client.run(say, "a line of the worker\n")
        until(is_read, "the worker's line is in stderr")
    assert [r.getMessage() for r in caplog.records if "workers died while they started (attempt 1 of 3)" in r.message]


@pytest.mark.promise("`a worker died while it started`")
@pytest.mark.promise("the message has the worker's last lines")
def test_workers_that_always_die_while_they_start_are_told_with_what_they_wrote(deaths: Callable[..., None]) -> None:
    deaths({"at": AT_START, "do": "fall", "always": True})
    with pytest.raises(GiveUpError) as caught:
        make_cluster(ONE)
    assert caught.value.what == "a worker died while it started, 3 times"
    assert "it wrote: there is no memory for this worker" in caught.value.why
    assert "free" in caught.value.do


def kill_fork_server() -> None:
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGKILL)


def test_a_fork_server_that_was_killed_is_replaced() -> None:
    with make_cluster(ONE):
        kill_fork_server()
    with make_cluster(ONE) as cluster, Client(cluster, set_as_default=False) as client:
        (first,) = client.run(os.getpid).values()
        kill_fork_server()  # its forks seem to end with it
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            client.wait_for_workers(1, timeout=240)
            if (found := list(client.run(os.getpid, on_error="ignore").values())) and found != [first]:
                break
            time.sleep(0.5)
        assert len(found) == 1
        assert found != [first]
        assert client.submit(sum, [1, 2]).result(timeout=120) == 3
        assert not Path(f"/proc/{first}").exists() or "Z" in Path(f"/proc/{first}/stat").read_text().split()[2]


@pytest.mark.promise("`the address space of this process is too small`")
@pytest.mark.parametrize("limit", [2_000_000_000, 3_900_000_000])
def test_too_little_address_space_is_an_error_not_a_hang(limit: int, tmp_path: Path) -> None:
    began = time.monotonic()
    limited = f"ulimit -v {limit // 1000}; exec {sys.executable} -P -c 'from rowmill.cli import main; main()' run toy"
    done = subprocess.run(
        ["bash", "-c", limited], capture_output=True, text=True, timeout=250, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": python_path(), "COLUMNS": "200", "PREFECT_HOME": str(tmp_path / "prefect")},
    )  # fmt: skip
    assert done.returncode == 1
    assert time.monotonic() - began < 120
    assert "error: the address space of this process is too small" in done.stderr
    assert f"where: ulimit -v = {limit // 1000} (" in done.stderr
    assert "raise it: `ulimit -v unlimited`" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"prefect"}  # its home, if Prefect was loaded by then


DIES = """
import threading, time
from flows.commands.launch import ends_without_memory

def die():
    raise MemoryError

if __name__ == "__main__":
    with ends_without_memory():
        threading.Thread(target=die).start()
        threading.Event().wait()
"""


def test_a_thread_that_dies_for_want_of_memory_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(tmp_path / "dies.py")], capture_output=True, text=True, timeout=240,
        env=os.environ | {"PYTHONPATH": python_path(), "COLUMNS": "200"}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    assert "there is no memory left for this process" in done.stderr
