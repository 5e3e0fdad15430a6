"""A real Prefect server in a home of its own: started once, found again, stopped; and what is said without one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from infra.orchestration.server import flow_run_url
from tests.conftest import free_port, python_path

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("server")]
ENSURE = "import json; from infra.orchestration.server import *; print(json.dumps(ensure_server()))"
TWICE = "import json; from infra.orchestration.server import *; print(json.dumps([ensure_server(), ensure_server()]))"
STOP = "import json; from infra.orchestration.server import *; print(json.dumps([stop_server(), stop_server()]))"


def started(code: str, home: Path, **environment: Any) -> subprocess.Popen[str]:
    """Another Python process that knows this home only."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    known |= {"PREFECT_HOME": str(home), "PYTHONPATH": python_path()} | {k: str(v) for k, v in environment.items()}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.Popen(command, cwd=home, env=known, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def answer(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def refusal(process: subprocess.Popen[str]) -> str:
    _, err = process.communicate(timeout=240)
    assert process.returncode != 0
    return err


@pytest.mark.promise("otherwise one on this host. They start it if needed and leave it running")
def test_two_processes_that_start_at_once_share_one_server_that_outlives_them(
    tmp_path: Path, new_prefect_home: Callable[[Path], Path]
) -> None:
    home, port = new_prefect_home(tmp_path), free_port()
    try:
        both = [started(ENSURE, home, PREFECT_SERVER_API_PORT=port) for _ in range(2)]
        first, second = (answer(process) for process in both)

        assert first[:2] == second[:2] == [f"http://127.0.0.1:{port}/api", f"http://127.0.0.1:{port}"]
        assert sorted([first[2], second[2]]) == [False, True]
        assert httpx.get(f"{first[0]}/health").json() is True
        # The first call finds it, and sets PREFECT_API_URL for the second.
        assert answer(started(TWICE, home, PREFECT_SERVER_API_PORT=port)) == [[*first[:2], False]] * 2
    finally:
        stopped = answer(started(STOP, home))
    assert stopped == [True, False]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{first[0]}/health")


class Started(NamedTuple):
    """What two processes were told, one after the other, that asked for a server with a password on a port that
    something else had taken."""

    taken: int
    first: list[Any]
    second: list[Any]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, new_prefect_home: Callable[[Path], Path]) -> Iterator[Started]:
    home = new_prefect_home(tmp_path_factory.mktemp("prefect-home"))
    secret = {"PREFECT_SERVER_API_AUTH_STRING": "admin:secret", "PREFECT_API_AUTH_STRING": "admin:secret"}
    try:
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            taken = stranger.getsockname()[1]
            stranger.settimeout(0)
            first, second = (answer(started(ENSURE, home, PREFECT_SERVER_API_PORT=taken, **secret)) for _ in range(2))
        yield Started(taken, first, second)
    finally:
        answer(started(STOP, home))


def test_a_port_taken_by_something_else_is_left_alone_and_the_other_one_remembered(guarded: Started) -> None:
    assert guarded.first[0] != f"http://127.0.0.1:{guarded.taken}/api"
    assert (guarded.first[2], guarded.second[2]) == (True, False)
    assert guarded.first[:2] == guarded.second[:2]


@pytest.mark.promise("the page and `prefect` ask for it then")
def test_a_server_with_a_password_asks_for_it_and_is_used_with_it(guarded: Started) -> None:
    page = f"{guarded.first[0]}/admin/version"
    assert httpx.get(page).status_code == 401
    assert httpx.get(page, auth=("admin", "secret")).status_code == 200
    assert (guarded.first[:2], guarded.second[2]) == (guarded.second[:2], False)


@pytest.mark.promise("`the configured Prefect server does not answer`")
def test_a_configured_server_that_does_not_answer_is_never_replaced(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    message = refusal(started(ENSURE, tmp_path, PREFECT_API_URL=url))
    assert "the configured Prefect server does not answer" in message
    assert f"PREFECT_API_URL = {url}" in message
    assert not (tmp_path / "rowmill-server.json").exists()


def test_the_server_of_the_active_profile_counts_as_configured(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    profiles = f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{url}"\n'
    (tmp_path / "profiles.toml").write_text(profiles)
    assert url in refusal(started(ENSURE, tmp_path))


def test_settings_reach_a_process_that_imported_prefect_before(prefect_server: Any) -> None:
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    assert settings.api.url == prefect_server.api_url == os.environ["PREFECT_API_URL"]
    assert settings.server.analytics_enabled is False
    assert settings.server.ephemeral.enabled is False


def test_a_flow_run_has_a_page() -> None:
    assert flow_run_url("http://host:1/", "abc") == "http://host:1/runs/flow-run/abc"
