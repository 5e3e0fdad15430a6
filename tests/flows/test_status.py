"""What `status` says of a server and its runs, and when `stop` refuses, without a server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flows.commands import status
from infra.orchestration import server
from infra.orchestration.server import RunningServer
from tests.commands import rowmill

OWN = RunningServer("http://127.0.0.1:1/api", "http://127.0.0.1:1", 42)
STATES = ["Running", "Paused", "Running"]


def have_runs(monkeypatch: pytest.MonkeyPatch, states: list[str]) -> None:
    runs = [SimpleNamespace(id=f"{n:02}", name=f"run-{n}", state_name=state) for n, state in enumerate(states)]
    monkeypatch.setattr(status, "read_runs", lambda: status.ServerRuns(runs, []))
    monkeypatch.setattr(server, "own_server", lambda: OWN)
    monkeypatch.setattr(server, "use_server", lambda server: None)


def test_status_counts_runs_by_state_and_shows_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    have_runs(monkeypatch, STATES)
    assert list(status.status_lines(OWN)) == [
        "server   http://127.0.0.1:1, started by rowmill, process 42",
        "runs     1 Paused, 2 Running",
        "run      run-0, Running: http://127.0.0.1:1/runs/flow-run/00",
        "run      run-1, Paused: http://127.0.0.1:1/runs/flow-run/01",
        "run      run-2, Running: http://127.0.0.1:1/runs/flow-run/02",
    ]
    have_runs(monkeypatch, ["Scheduled"] * 300 + ["Late"] * 23)
    lines = list(status.status_lines(OWN._replace(pid=None)))
    assert lines[:3] == [
        "server   http://127.0.0.1:1, not started by rowmill",
        "runs     23 Late, 300 Scheduled",
        "run      run-300, Late: http://127.0.0.1:1/runs/flow-run/300",
    ]
    assert (len(lines), lines[-1]) == (23, "run      and 3 more: http://127.0.0.1:1/runs")


def test_status_without_a_server_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "running_server", lambda: None)
    done = rowmill("status")
    assert done.exit_code == 1
    assert done.stdout == "server   none runs; the next rowmill run, serve or deploy starts one\n"


def test_stop_leaves_a_server_to_which_runs_report(monkeypatch: pytest.MonkeyPatch) -> None:
    have_runs(monkeypatch, STATES)
    stopped: list[bool] = []
    monkeypatch.setattr(server, "stop_server", lambda: stopped.append(True))
    refused = rowmill("stop")
    assert refused.exit_code == 1
    assert "2 run(s) report to the server" in refused.stderr
    assert "run-0, run-2: they would lose it" in refused.stderr
    assert stopped == []
    assert rowmill("stop", "--force").stdout == "stopped the Prefect server http://127.0.0.1:1; its database stays\n"
    assert stopped == [True]
