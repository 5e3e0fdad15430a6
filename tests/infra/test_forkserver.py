"""Workers of this host are forks of one process that has loaded what they need, and differ in nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import dask.config
import psutil
import pytest
from distributed import Client

from infra.clusters.model import Cluster
from infra.environment import cpu_environment, local_environment
from infra.workers import forked, forkserver
from tests.clusters import IMPORTS, make_cluster
from tests.conftest import python_path
from tests.infra.elsewhere import ROOT, eventually

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
# Like a notebook or a served flow: the current folder gets ahead in sys.path after rowmill was imported.
PROGRAM = """
import os, sys, time
from infra.clusters.model import Cluster; from infra.clusters.kinds import make_cluster
from distributed import Client

def of_tasks():
    import flows, infra.orchestration.task_runner
    from tasks import errors
    return errors.__file__

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    with make_cluster(Cluster(kind="cpu")) as cluster, Client(cluster, set_as_default=False) as client:
        (pids,) = client.run(lambda: (os.getpid(), os.getppid())).values()
        print(*pids, client.submit(of_tasks).result(), *client.run(of_tasks).values(), flush=True)
        time.sleep(100)
"""


class Killed(NamedTuple):
    """A program that was killed while its cluster ran: the processes of it, its worker and its fork server, and the
    files that its worker had imported."""

    pids: list[int]
    imported: list[str]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """In a folder with packages that are called like rowmill's and must not be imported."""
    folder = tmp_path_factory.mktemp("program")
    for name in ("flows", "tasks", "infra"):
        (folder / "here" / name).mkdir(parents=True)
        (folder / "here" / name / "__init__.py").write_text("raise RuntimeError('the decoy was imported')")
    (folder / "program.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": python_path()}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, "-W", "error", str(folder / "program.py"), str(folder / "here")]
    options = {"stdout": subprocess.PIPE, "text": True, "env": environment, "cwd": folder / "here"}
    with subprocess.Popen(command, **options) as process:
        assert process.stdout
        worker, server, *imported = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    return Killed([process.pid, int(worker), int(server)], imported)


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


FIXED = {"ARROW_DEFAULT_MEMORY_POOL": "system", "TZ": "Asia/Tokyo", "PYTHONOPTIMIZE": "1"}


def test_what_is_read_at_the_start_alone_takes_an_interpreter_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    forkserver.start(IMPORTS.tasks)
    for name, value in FIXED.items():
        monkeypatch.setenv(name, value)
    with worker(*FIXED) as found:
        assert not found["loaded"]
        assert found["parent"] == os.getpid()
        assert found["variables"] == FIXED


@pytest.mark.parametrize("name", FIXED)
def test_each_of_these_variables_forbids_forks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with dask.config.set({forkserver.METHOD: "spawn"}), local_environment(cpu_environment(1)):
        assert forkserver.use(IMPORTS.tasks)["env"]
        assert dask.config.get(forkserver.METHOD) == "forkserver"
        monkeypatch.setenv(name, FIXED[name])
        assert forkserver.use(IMPORTS.tasks) == {}
        assert dask.config.get(forkserver.METHOD) == "spawn"


def test_workers_take_the_installed_packages_not_those_of_the_current_folder(killed: Killed) -> None:
    assert killed.imported == [str(ROOT / "tasks" / "errors.py")] * 2


def test_nobody_outlives_a_process_that_is_killed(killed: Killed) -> None:
    assert len({*killed.pids}) == 3
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in killed.pids))


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
