"""PostgreSQL as the database of Prefect's server, with a password, as compose.yaml and server.yaml set it up."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import free_port, python_path
from tests.faults.jobs import make_data, make_job
from tests.infra.elsewhere import eventually

PLACES = os.pathsep.join([os.environ.get("PATH", ""), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))])
INITDB, POSTGRES = (shutil.which(program, path=PLACES) for program in ("initdb", "postgres"))
AUTH = "admin:a-password"
pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("postgresql"),
    pytest.mark.timeout(600),  # the first start makes Prefect's tables, for a minute on a busy host
    pytest.mark.skipif(not (INITDB and POSTGRES), reason="needs PostgreSQL: apt-get install postgresql"),
]

RUN = """
import json, sys
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
if __name__ == "__main__":
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        from flows.preprocess import preprocess
        from tests.clusters import start_threads
        from tests.running import section_of
        with start_threads([{}, {}]) as cluster:
            print(json.dumps(preprocess(**json.loads(sys.argv[1]) | {"cluster": section_of(cluster)})))
"""


def owner() -> str | None:
    """The user that runs PostgreSQL, which refuses root."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The connection URL of a PostgreSQL of this test's own, on the loopback, with a password."""
    folder, user, port = Path(tempfile.mkdtemp(prefix="rowmill-postgresql-")), owner(), free_port()
    (folder / "password").write_text("db-password")
    if user:  # pytest's own folders are for the user of the tests alone
        shutil.chown(folder, user)
        shutil.chown(folder / "password", user)
    common: dict[str, Any] = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL}
    subprocess.run([str(INITDB), "-D", str(folder / "data"), "-U", "prefect", "--auth", "scram-sha-256", "--no-sync",
                    "--pwfile", str(folder / "password")], check=True, **common)  # fmt: skip
    settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": port, "fsync": "off"}
    command = [str(POSTGRES), "-D", str(folder / "data"), *(f"--{k}={v}" for k, v in settings.items())]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, **common) as server:
        try:
            yield f"postgresql+asyncpg://prefect:db-password@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(30)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a client of a Prefect server over that database."""
    home, port = tmp_path_factory.mktemp("prefect"), free_port()
    api = f"http://127.0.0.1:{port}/api"
    known = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    known |= {"PREFECT_HOME": str(home), "PYTHONPATH": python_path(), "PYTHONWARNINGS": "ignore",
              "PREFECT_SERVER_EPHEMERAL_ENABLED": "false", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}  # fmt: skip
    command = [sys.executable, "-P", "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    settings = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database, "PREFECT_SERVER_API_AUTH_STRING": AUTH}
    with (home / "log").open("w") as log:
        running = subprocess.Popen(command, cwd=home, env=known | settings, stdout=log, stderr=log)
    try:
        assert eventually(lambda: healthy(api), 240), (home / "log").read_text()[-3000:]
        yield known | {"PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": AUTH}
    finally:
        running.terminate()
        running.wait(30)


def healthy(api: str) -> bool:
    """What the health checks of compose.yaml and server.yaml ask, without a password."""
    try:
        return bool(httpx.get(f"{api}/health", timeout=5, trust_env=False).json())
    except (httpx.HTTPError, ValueError):
        return False


@pytest.mark.promise("let the Prefect server use PostgreSQL")
def test_a_run_against_a_server_on_postgresql(server: dict[str, str], tmp_path: Path) -> None:
    import json

    job = make_job(make_data(tmp_path / "in", files=1), tmp_path / "out")
    (tmp_path / "run.py").write_text(RUN)
    done = subprocess.run([sys.executable, str(tmp_path / "run.py"), json.dumps(job)], env=server, cwd=tmp_path,
                          capture_output=True, text=True, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [str(tmp_path / "out")]
    url, auth = server["PREFECT_API_URL"], tuple(AUTH.split(":"))
    with httpx.Client(trust_env=False, timeout=30) as client:
        runs = client.post(f"{url}/flow_runs/filter", json={}, auth=(auth[0], auth[1])).json()
        assert [run["state_type"] for run in runs] == ["COMPLETED"]
        tasks = client.post(f"{url}/task_runs/filter", json={}, auth=(auth[0], auth[1])).json()
        assert sorted(task["name"] for task in tasks) == ["ingest", "shuffle_write", "statistics", "transform"]
        assert client.post(f"{url}/flow_runs/filter", json={}).status_code == 401
        assert client.get(f"{url}/ready").status_code == 200
