"""A real Prefect server in a home of its own: started once, found again, stopped; and what is said without one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from prefect.context import refresh_global_settings_context

from infra.orchestration.server import ServerInfo, ensure_server, flow_run_url
from tasks.errors import GiveUpError
from tests.commands import rowmill, unchanged
from tests.conftest import free_port, python_path

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("server")]
ENSURE = "import json; from infra.orchestration.server import *; print(json.dumps(ensure_server()))"


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


@contextmanager
def knowing(home: Path, **variables: Any) -> Iterator[None]:
    """Let this process know this home only, as one that imported Prefect before."""
    with unchanged():
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            del os.environ[name]
        os.environ.update({"PREFECT_HOME": str(home)} | {name: str(value) for name, value in variables.items()})
        refresh_global_settings_context()
        yield


class Started(NamedTuple):
    """What processes were told that asked for a server with a password on a port that something else had taken: two at
    once, and one after them, twice."""

    taken: int
    first: list[Any]
    second: list[Any]
    later: list[ServerInfo]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, new_prefect_home: Callable[[Path], Path]) -> Iterator[Started]:
    home = new_prefect_home(tmp_path_factory.mktemp("prefect-home"))
    known = {"PREFECT_SERVER_API_AUTH_STRING": "admin:secret", "PREFECT_API_AUTH_STRING": "admin:secret"}
    try:
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            taken = stranger.getsockname()[1]
            stranger.settimeout(0)
            both = [started(ENSURE, home, PREFECT_SERVER_API_PORT=taken, **known) for _ in range(2)]
            first, second = (answer(process) for process in both)
            with knowing(home, PREFECT_SERVER_API_PORT=taken, **known):
                # The first call finds it, and sets PREFECT_API_URL for the second.
                later = [ensure_server(), ensure_server()]
        yield Started(taken, first, second, later)
    finally:
        with knowing(home, **known):
            shown = rowmill("status").stdout
            stopped = [rowmill("stop").stdout for _ in range(2)]
    assert shown.startswith(f"server   {first[1]}, started by rowmill, process ")
    assert shown.endswith("runs     none\n")
    assert stopped == [
        f"stopped the Prefect server {first[1]}; its database stays\n",
        "no Prefect server that rowmill has started runs here\n",
    ]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{first[0]}/health")


@pytest.mark.promise("otherwise one on this host. They start it if needed and leave it running")
def test_two_processes_that_start_at_once_share_one_server_that_outlives_them(guarded: Started) -> None:
    assert guarded.first[:2] == guarded.second[:2]
    assert sorted([guarded.first[2], guarded.second[2]]) == [False, True]
    assert httpx.get(f"{guarded.first[0]}/health").json() is True
    assert [[*found] for found in guarded.later] == [[*guarded.first[:2], False]] * 2


def test_a_port_taken_by_something_else_is_left_alone_and_the_other_one_remembered(guarded: Started) -> None:
    assert guarded.first[0] != f"http://127.0.0.1:{guarded.taken}/api"
    assert guarded.first[:2] == [*guarded.later[0][:2]]


@pytest.mark.promise("the page and `prefect` ask for it then")
def test_a_server_with_a_password_asks_for_it_and_is_used_with_it(guarded: Started) -> None:
    page = f"{guarded.first[0]}/admin/version"
    assert httpx.get(page).status_code == 401
    assert httpx.get(page, auth=("admin", "secret")).status_code == 200
    assert (guarded.first[0], guarded.later[0].started) == (guarded.later[0].api_url, False)


@pytest.mark.promise("`the configured Prefect server does not answer`")
def test_a_configured_server_that_does_not_answer_is_never_replaced(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    with knowing(tmp_path, PREFECT_API_URL=url), pytest.raises(GiveUpError) as refused:
        ensure_server()
    assert "the configured Prefect server does not answer" in str(refused.value)
    assert f"PREFECT_API_URL = {url}" in str(refused.value)
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
    port = os.environ["PREFECT_SERVER_API_PORT"]  # which was free
    assert prefect_server[:2] == (f"http://127.0.0.1:{port}/api", f"http://127.0.0.1:{port}")
    assert settings.server.analytics_enabled is False
    assert settings.server.ephemeral.enabled is False


def test_a_flow_run_has_a_page() -> None:
    assert flow_run_url("http://host:1/", "abc") == "http://host:1/runs/flow-run/abc"
