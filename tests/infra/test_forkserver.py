"""Workers of this host are forks of one process that has loaded what they need, and differ in nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

from infra.clusters.model import Cluster
from infra.workers import forked, forkserver
from tests.clusters import IMPORTS, make_cluster
from tests.conftest import python_path
from tests.infra.elsewhere import eventually

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("clusters"),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone"),
]
DECOY = """
from infra.workers import forkserver
forkserver.start()
print(bool(forkserver._server))
"""
PROGRAM = """
from distributed import Client
from infra.clusters.model import Cluster; from infra.clusters.kinds import make_cluster
if __name__ == "__main__":
    with make_cluster(Cluster(kind="cpu")) as cluster, Client(cluster) as client:
        import os, time
        (pids,) = client.run(lambda: (os.getpid(), os.getppid())).values()
        print(*pids, flush=True)
        time.sleep(100)
"""


def seen(names: list[str]) -> dict[str, Any]:
    """What a worker has before its first task."""
    import pyarrow as pa
    from prefect.settings import PREFECT_API_URL

    return {
        "loaded": {"flows.preprocess", "tasks.stages.task", "pandas"} <= set(sys.modules),
        "parent": os.getppid(),
        "variables": {name: os.environ.get(name) for name in names},
        "threads": pa.cpu_count(),
        "server": PREFECT_API_URL.value(),
    }


@contextmanager
def worker(*names: str, threads: int = 2) -> Iterator[dict[str, Any]]:
    with (
        make_cluster(Cluster(kind="cpu", threads_per_worker=threads)) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        (found,) = client.run(seen, list(names)).values()
        yield found


def test_workers_come_from_one_process_with_all_they_need() -> None:
    with worker() as first, worker() as second:
        assert first["loaded"]
        assert second["loaded"]
        assert first["parent"] == second["parent"] != os.getpid()
        assert psutil.Process(first["parent"]).ppid() == os.getpid()


def test_a_fork_has_the_variables_and_settings_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWMILL_TEST_OLD", "told")
    monkeypatch.setenv("SOMETHING_ELSE", "old")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    names = ["ROWMILL_TEST_OLD", "SOMETHING_ELSE", "OMP_NUM_THREADS", forked.FORKED]
    with worker(*names, threads=3) as found:
        assert found["loaded"]
        assert found["variables"] == dict(zip(names, ["told", "old", "3", None], strict=True))
        assert found["threads"] == 3
        assert found["server"] == "http://127.0.0.1:1/api"
    monkeypatch.delenv("ROWMILL_TEST_OLD")
    monkeypatch.setenv("SOMETHING_ELSE", "new")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:2/api")
    with worker(*names, threads=1) as found:
        assert found["variables"] == dict(zip(names, [None, "new", "1", None], strict=True))
        assert found["threads"] == 1
        assert found["server"] == "http://127.0.0.1:2/api"


def test_what_the_server_had_and_a_fork_must_not_have_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, forked.FORKED, "LEFT_BY_THE_SERVER")
    monkeypatch.setitem(os.environ, "LEFT_BY_THE_SERVER", "1")
    monkeypatch.setattr("prefect.context.refresh_global_settings_context", lambda: None)
    monkeypatch.setattr("prefect.logging.configuration.setup_logging", lambda incremental: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    forked.adopt()
    assert not {forked.FORKED, "LEFT_BY_THE_SERVER"} & set(os.environ)
    forked.adopt()  # no fork: nothing is done


def test_what_is_imported_before_the_first_task_is_a_setting() -> None:
    code = "import infra.workers.preimport, sys; print('json.tool' in sys.modules, 'flows' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": python_path(), forked.IMPORTS_VARIABLE: "['json.tool']"}
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=environment)
    assert found.stdout.split() == ["True", "False"], found.stderr


@pytest.mark.parametrize("name", ["ARROW_DEFAULT_MEMORY_POOL", "TZ", "PYTHONOPTIMIZE"])
def test_what_is_read_at_the_start_alone_takes_an_interpreter_of_its_own(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    value = {"ARROW_DEFAULT_MEMORY_POOL": "system", "TZ": "Asia/Tokyo", "PYTHONOPTIMIZE": "1"}[name]
    forkserver.start(IMPORTS.tasks)
    monkeypatch.setenv(name, value)
    with worker(name) as found:
        assert not found["loaded"]
        assert found["parent"] == os.getpid()
        assert found["variables"] == {name: value}


def test_nobody_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": python_path()}
    command = [sys.executable, str(tmp_path / "program.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len({process.pid, *pids}) == 3
        process.send_signal(signal.SIGKILL)
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))


@pytest.mark.parametrize(("package", "starts"), [("flows", False), ("other", True)])
def test_a_server_that_would_load_another_package_of_our_name_is_not_started(
    tmp_path: Path, package: str, starts: bool
) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{python_path()}"}
    command = [sys.executable, "-c", DECOY]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert found.stdout.strip() == str(starts), found.stderr
