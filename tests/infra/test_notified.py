"""What the webhook hears of runs that crash, before they begin and while they work, and how soon; zombies."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.run.signs_of_life import SECONDS
from infra.orchestration import deployments
from infra.orchestration import server as orchestration_server
from tests.conftest import python_path
from tests.infra.elsewhere import until
from tests.infra.test_deployments import ended, final_state, started

pytestmark = [pytest.mark.xdist_group("deployments"), pytest.mark.slow]
POOL = "rowmill-notified"
SOON = 60  # seconds
SLEEPER = """
import sys, time
from prefect import flow, tags
from flows.job.run_labels import label_host; from flows.run import signs_of_life

@flow(name="sleeper", flow_run_name=sys.argv[1])
def sleeper():
    label_host()
    signs_of_life.SECONDS = float(sys.argv[3])
    with signs_of_life.signs_of_life("/data/out"):
        time.sleep(float(sys.argv[2]))

with tags("rowmill"):
    sleeper()
"""


@pytest.fixture(scope="module")
def heard(api: Any) -> Iterator[list[tuple[float, str]]]:
    """(when, text) of what a webhook on the loopback hears; gone with its automations after the tests."""
    heard: list[tuple[float, str]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
            heard.append((time.time(), text))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        deployments.keep_automations(f"http://127.0.0.1:{server.server_port}/hook")
        time.sleep(10)  # in which the server looks for its automations twice
        yield heard
        for name in ("failed-runs", "late-runs", "open-questions", "silent-runs", "silent-starts"):
            for automation in api.read_automations_by_name(f"rowmill-{name}"):
                api.delete_automation(automation.id)
        server.shutdown()


def text_of(heard: list[tuple[float, str]], run: str) -> tuple[float, str]:
    """The first notification of a run."""
    return until(lambda: next((entry for entry in heard if f"\nrun: {run}\n" in entry[1]), None), f"{run} is told")


def sleeping(folder: Path, name: str, seconds: float, between_signs: float = SECONDS) -> subprocess.Popen[bytes]:
    """A process that runs the flow `sleeper`; its run is called `name`."""
    (folder / "sleeper.py").write_text(SLEEPER)
    environment = os.environ | {"PYTHONPATH": python_path()}
    command = [sys.executable, "-P", str(folder / "sleeper.py"), name, str(seconds), str(between_signs)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def run_called(api: Any, name: str) -> Any:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

    found = api.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name])))
    return found[0] if found else None


def signs_of(api: Any, run: Any) -> int:
    """How many signs of life the server has of a run."""
    from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter

    name, of_it = EventNameFilter(name=["rowmill.run.alive"]), EventResourceFilter(id=[f"prefect.flow-run.{run.id}"])
    return len(api.read_events(EventFilter(event=name, resource=of_it), limit=50).events)


@pytest.mark.promise("posts a message to a webhook within a minute")
def test_the_crash_of_a_run_whose_host_is_gone_is_told(tmp_path: Path, api: Any, heard: list[Any]) -> None:
    name = unique("killed")
    process = sleeping(tmp_path, name, 600)
    try:
        run = until(lambda: run_called(api, name), "the run is there")
        # A busy server may still not look at its automations when the first one comes.
        until(lambda: signs_of(api, run) > 1, "signs of life")
    finally:
        process.kill()
        process.wait()
    killed = time.time()
    when, text = text_of(heard, name)
    assert when - killed < SOON, f"after {when - killed:.0f} s"
    assert text.splitlines() == [
        "rowmill: sleeper gives no sign of life",
        "why: nothing was heard of it for 45 s; its process or its host is gone, or cannot reach the server. After "
        "400 s it is marked as crashed; the same job goes on from what is done",
        f"run: {name}", "output: /data/out", f"host: {socket.gethostname()}",
        f"page: {orchestration_server.ui_url()}/runs/flow-run/{run.id}",
    ]  # fmt: skip


@pytest.mark.promise(
    "As soon as the expected end is too late, by more than the error of such an expectation, the run says so once"
)
def test_a_run_that_will_be_late_is_told(api: Any, heard: list[Any]) -> None:
    from prefect import flow, tags
    from prefect.context import FlowRunContext

    from flows.run.late import tell

    name, limit = unique("late"), datetime(2026, 11, 22, 6, tzinfo=UTC)
    text = "the run will be late: it is expected to end at 07:10, and run.ready_by is 06:00 (UTC)"

    @flow(name="slow", flow_run_name=name)
    def slow() -> None:
        context = FlowRunContext.get()
        assert context is not None
        tell(context.flow_run, "slow-out", text, None, limit)

    with tags("rowmill"):
        slow()
    run = run_called(api, name)
    _, told = text_of(heard, name)
    assert told.splitlines() == [
        "rowmill: slow will not be ready in time", f"why: {text}", f"run: {name}",
        f"page: {orchestration_server.ui_url()}/runs/flow-run/{run.id}",
    ]  # fmt: skip


@pytest.mark.promise("a worker takes a run and is gone before it begins | 45 to 60 s")
def test_a_run_that_a_lost_worker_took_is_told(api: Any, heard: list[Any]) -> None:
    from prefect import flow
    from prefect.states import Pending, Scheduled

    @flow(name="waiting")
    def waiting() -> None:
        pass

    name = unique("taken")
    run = api.create_flow_run(waiting, name=name, tags=["rowmill"], state=Scheduled())
    api.set_flow_run_state(run.id, Pending())
    when, text = text_of(heard, name)
    assert 40 < when - run.created.timestamp() < SOON
    assert text.startswith("rowmill: waiting does not begin\nwhy: a worker took it 45 s ago")


@pytest.fixture(scope="module")
def worker(api: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A process worker of the pool with the deployments `sleeper/works` and `sleeper/gone`, of which the module of the
    second is not there; its log."""
    folder = tmp_path_factory.mktemp("worker")
    (folder / "sleeping_flow.py").write_text(
        "import time\nfrom prefect import flow\n\n@flow(name='sleeper')\ndef sleeper(): time.sleep(600)\n"
    )
    spec = {"tags": ["rowmill"], "parameters": {}, "work_pool": {"name": POOL}}
    names = (("works", "sleeping_flow.sleeper"), ("gone", "no_such_module.sleeper"))
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{python_path()}"}
    deployments.keep_pool(POOL, 5)
    (folder / "prefect.yaml").write_text(yaml.safe_dump({
        "pull": [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}],
        "deployments": [{**spec, "name": name, "entrypoint": "sleeping_flow.sleeper"} for name, _ in names],
    }))  # fmt: skip
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    from prefect.client.schemas.actions import DeploymentUpdate

    gone = api.read_deployment_by_name("sleeper/gone")
    api.update_deployment(gone.id, DeploymentUpdate(entrypoint="no_such_module.sleeper"))
    process = started(folder, "prefect", "worker", "start", "--pool", POOL, "--name", "the-worker")
    yield folder / "log.txt"
    process.terminate()
    ended(process)


def requested(api: Any, name: str) -> Any:
    """A run by hand: its first state has an event, unlike that of a run that the scheduler has just made."""
    return api.create_flow_run_from_deployment(api.read_deployment_by_name(name).id)


@pytest.mark.promise("the process that a worker starts ends before the flow begins (a module is missing) | seconds")
def test_a_run_that_crashes_before_it_begins_is_told(api: Any, worker: Path, heard: list[Any]) -> None:
    run = requested(api, "sleeper/gone")
    assert final_state(api, run.id, worker) == "Crashed"
    crashed = api.read_flow_run(run.id).state.timestamp.timestamp()
    when, text = text_of(heard, run.name)
    assert when - crashed < SOON, f"after {when - crashed:.0f} s"
    lines = text.splitlines()
    assert lines[0] == "rowmill: sleeper/gone Crashed"
    assert lines[1].startswith("why: Process exited with status code: 1")
    assert lines[2:] == [
        f"run: {run.name}", "host: the-worker", f"page: {orchestration_server.ui_url()}/runs/flow-run/{run.id}",
    ]  # fmt: skip


@pytest.mark.promise("a run fails, or its process is killed | seconds")
def test_a_running_one_whose_process_is_killed_is_told(api: Any, worker: Path, heard: list[Any]) -> None:
    run = requested(api, "sleeper/works")
    until(lambda: api.read_flow_run(run.id).state_name == "Running", "it runs")
    os.kill(int(api.read_flow_run(run.id).infrastructure_pid.rpartition(":")[2]), signal.SIGKILL)
    killed = time.time()
    when, text = text_of(heard, run.name)
    assert when - killed < SOON, f"after {when - killed:.0f} s"
    assert text.startswith("rowmill: sleeper/works Crashed\nwhy: ")


@pytest.mark.promise("A run that has not given a sign of life for 400 s is marked as crashed")
@pytest.mark.promise("after 400 s the server marks it as crashed", "flows/OPERATIONS.md#when-a-run-ends-badly")
def test_only_a_run_that_is_not_over_is_a_zombie(tmp_path: Path, api: Any) -> None:
    from prefect.automations import Automation
    from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter

    (spec,) = [s for s in deployments.automations(None) if s["name"] == "rowmill-zombie-runs"]
    assert spec["trigger"]["within"] == 400
    # Not the runs of tests beside this one, which a busy host may keep from giving a sign of life for so long.
    ours = {"prefect.resource.role": "flow", "prefect.resource.name": "sleeper"}
    trigger = spec["trigger"] | {"within": 15, "match_related": ours}
    quick: Any = Automation.model_validate(spec | {"name": "zombies", "trigger": trigger})
    quick = quick.create()
    try:
        time.sleep(10)
        names = unique("finishes"), unique("dies")
        # A sign every second: a server that is seconds behind with its events still hears of them in time.
        finishes, dies = sleeping(tmp_path, names[0], 12, 1), sleeping(tmp_path, names[1], 600, 1)
        try:
            run = until(lambda: run_called(api, names[1]), "the run is there")
            until(lambda: signs_of(api, run) > 1, "signs of life")
        finally:
            dies.kill()
            dies.wait()
        assert finishes.wait(60) == 0
        assert final_state(api, run.id) == "Crashed"
        assert "no sign of life" in api.read_flow_run(run.id).state.message
        time.sleep(20)
        over = run_called(api, names[0])
        assert over.state_name == "Completed"
        fired = EventFilter(event=EventNameFilter(name=["prefect.automation.triggered"]),
                            resource=EventResourceFilter(id=[f"prefect.automation.{quick.id}"]))  # fmt: skip
        # A server that is behind, or whose database was locked, may fire twice for one run. Which runs is the claim.
        labels = [event.payload["triggering_labels"] for event in api.read_events(fired, limit=50).events]
        assert {resource for of_one in labels for resource in of_one.values()} == {f"prefect.flow-run.{run.id}"}
    finally:
        quick.delete()
