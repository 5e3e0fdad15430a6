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
from typing import Any, NamedTuple

import pytest

from infra.orchestration import deployments
from infra.orchestration import server as orchestration_server
from tests.conftest import python_path
from tests.infra.elsewhere import eventually, until
from tests.infra.operations import POOL, final_state

pytestmark = [pytest.mark.xdist_group("deployments"), pytest.mark.slow]
SOON = 60  # seconds
SILENCE = {"rowmill-silent-runs": 45, "rowmill-silent-starts": 45, "rowmill-zombie-runs": 400}  # seconds
QUICK = {"rowmill-silent-runs": 10, "rowmill-silent-starts": 10, "rowmill-zombie-runs": 15}  # Prefect's least is 10
TOLD = SOON - 45  # seconds, after the silence
NOTIFYING = ["rowmill-failed-runs", "rowmill-late-runs", "rowmill-open-questions", "rowmill-silent-runs",
             "rowmill-silent-starts"]  # fmt: skip
SLEEPER = """
import sys, time
from prefect import flow, tags
from flows.job.run_labels import label_host; from flows.run import signs_of_life

@flow(name="sleeper")
def sleeper(seconds: float):
    label_host()
    signs_of_life.SECONDS = 1.0
    with signs_of_life.signs_of_life("/data/out"):
        time.sleep(seconds)

with tags("rowmill"):
    for name, seconds in zip(sys.argv[1:], (3.0, 600.0)):
        sleeper.with_options(flow_run_name=name)(seconds)
"""


@pytest.fixture(scope="module")
def heard(api: Any) -> Iterator[list[tuple[float, str]]]:
    """(when, text) of what a webhook on the loopback hears; gone with its automations after the tests.

    Copies of the automations that wait for silence wait for less of it. They are for the flows of these tests: a busy
    host may keep the runs of others from giving a sign of life for so long.
    """
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
        copies: list[Any] = []
        try:
            deployments.ensure_automations(f"http://127.0.0.1:{server.server_port}/secret")
            webhook = deployments.ensure_webhook(deployments.WEBHOOK)
            specs = {spec["name"]: spec for spec in deployments.fill_automations(webhook)}
            copies.extend(make_quick(specs[name]) for name in QUICK)
            until(lambda: is_heard(api, heard), "the server knows its automations")
            yield heard
        finally:
            for copy in copies:
                copy.delete()
            api.delete_block_document(api.read_block_document_by_name(deployments.WEBHOOK, "webhook").id)
            for name in NOTIFYING:
                for automation in api.read_automations_by_name(name):
                    api.delete_automation(automation.id)
            server.shutdown()


def make_quick(spec: dict[str, Any]) -> Any:
    """A copy of an automation, at the server, that waits for less silence of the flows of these tests."""
    from prefect.automations import Automation

    trigger, name = spec["trigger"], spec["name"]
    flow = {"prefect.resource.role": "flow", "prefect.resource.name": "waiting" if "starts" in name else "sleeper"}
    related = [flow, trigger["match_related"]] if "match_related" in trigger else flow
    changed = trigger | {"within": QUICK[name], "match_related": related}
    copy: Any = Automation.model_validate(spec | {"name": f"quick-{name}", "trigger": changed})
    return copy.create()


def is_heard(api: Any, heard: list[tuple[float, str]]) -> bool:
    """Whether the webhook hears of a run that fails now."""
    from prefect import flow
    from prefect.states import Failed

    @flow(name="probing")
    def probing() -> None:
        pass

    run = api.create_flow_run(probing, name=unique("probe"), tags=["rowmill"])
    api.set_flow_run_state(run.id, Failed())
    return bool(eventually(lambda: any(f"\nrun: {run.name}\n" in text for _, text in heard), 5))


def text_of(heard: list[tuple[float, str]], run: str, about: str = "") -> tuple[float, str]:
    """The first notification of a run, or the first about something."""

    def told() -> Any:
        return next((entry for entry in heard if f"\nrun: {run}\n" in entry[1] and about in entry[1]), None)

    return until(told, f"{run} is told")


def sleeping(folder: Path, *names: str) -> subprocess.Popen[bytes]:
    """A process that runs the flow `sleeper` twice, with a sign of life each second: for a moment, and for long. The
    runs have these names."""
    (folder / "sleeper.py").write_text(SLEEPER)
    environment = os.environ | {"PYTHONPATH": python_path()}
    command = [sys.executable, "-P", str(folder / "sleeper.py"), *names]
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


class Silent(NamedTuple):
    """Runs of which nothing is heard any more: one that has ended, one whose process was killed after that (`killed`:
    when), and one that a worker took and never began."""

    finished: Any
    dead: Any
    killed: float
    taken: Any


@pytest.fixture(scope="module")
def silent(api: Any, heard: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Silent:
    from prefect import flow
    from prefect.states import Pending, Scheduled

    @flow(name="waiting")
    def waiting() -> None:
        pass

    taken = api.create_flow_run(waiting, name=unique("taken"), tags=["rowmill"], state=Scheduled())
    api.set_flow_run_state(taken.id, Pending())
    folder, names = tmp_path_factory.mktemp("sleeper"), (unique("finishes"), unique("dies"))
    process = sleeping(folder, *names)
    try:
        dead = until(lambda: run_called(api, names[1]), "the run is there")
        until(lambda: signs_of(api, dead) > 1, "signs of life")
    finally:
        process.kill()
        process.wait()
    return Silent(run_called(api, names[0]), dead, time.time(), taken)


def test_how_long_a_run_may_be_silent() -> None:
    specs = {spec["name"]: spec for spec in deployments.fill_automations("a block")}
    assert {name: specs[name]["trigger"]["within"] for name in SILENCE} == SILENCE


@pytest.mark.promise("posts a message to a webhook within a minute")
def test_the_crash_of_a_run_whose_host_is_gone_is_told(silent: Silent, heard: list[Any]) -> None:
    when, text = text_of(heard, silent.dead.name, "gives no sign of life")
    assert when - silent.killed < QUICK["rowmill-silent-runs"] + TOLD, f"after {when - silent.killed:.0f} s"
    assert text.splitlines() == [
        "rowmill: sleeper gives no sign of life",
        "why: nothing was heard of it for 45 s; its process or its host is gone, or cannot reach the server. After "
        "400 s it is marked as crashed; the same job resumes from finished work",
        f"run: {silent.dead.name}", "output: /data/out", f"host: {socket.gethostname()}",
        f"page: {orchestration_server.ui_url()}/runs/flow-run/{silent.dead.id}",
    ]  # fmt: skip


@pytest.mark.promise("a worker takes a run and is gone before it begins | 45 to 60 s")
def test_a_run_that_a_lost_worker_took_is_told(silent: Silent, heard: list[Any]) -> None:
    when, text = text_of(heard, silent.taken.name)
    silence = QUICK["rowmill-silent-starts"]
    assert silence < when - silent.taken.created.timestamp() < silence + TOLD
    assert text.startswith("rowmill: waiting does not begin\nwhy: a worker took it 45 s ago")


@pytest.mark.promise("A run that has not given a sign of life for 400 s is marked as crashed")
@pytest.mark.promise("after 400 s the server marks it as crashed", "flows/OPERATIONS.md#when-a-run-ends-badly")
def test_only_a_run_that_is_not_over_is_a_zombie(silent: Silent, api: Any) -> None:
    from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter

    assert final_state(api, silent.dead.id) == "Crashed"  # after the silence of the one that has ended before it
    assert "no sign of life" in api.read_flow_run(silent.dead.id).state.message
    assert api.read_flow_run(silent.finished.id).state_name == "Completed"
    [zombies] = api.read_automations_by_name("quick-rowmill-zombie-runs")
    fired = EventFilter(event=EventNameFilter(name=["prefect.automation.triggered"]),
                        resource=EventResourceFilter(id=[f"prefect.automation.{zombies.id}"]))  # fmt: skip
    events = until(lambda: api.read_events(fired, limit=50).events, "the event of the automation")
    # A server that is behind, or whose database was locked, may fire twice for one run. Which runs is the claim.
    labels = [event.payload["triggering_labels"] for event in events]
    assert {resource for of_one in labels for resource in of_one.values()} == {f"prefect.flow-run.{silent.dead.id}"}


@pytest.mark.promise("a run fails, or its process is killed | seconds")
def test_a_failed_run_is_told_to_the_webhook(api: Any, heard: list[Any]) -> None:
    from prefect import flow, tags

    run = unique("the-run")

    @flow(name="failing", flow_run_name=run)
    def failing() -> None:
        raise ValueError('a "quoted" cause')

    with tags("rowmill"), pytest.raises(ValueError):
        failing()
    _, told = text_of(heard, run)
    first, why, *rest = told.splitlines()
    assert first == "rowmill: failing Failed"
    assert why.startswith("why: ")
    assert 'a "quoted" cause' in why
    assert rest[0] == f"run: {run}"
    assert rest[-1].startswith(f"page: {orchestration_server.ui_url()}/runs/flow-run/")
    assert "None" not in told
    assert [text for _, text in heard if f"run: {run}\n" in text] == [told]
    for name in NOTIFYING:
        [automation] = api.read_automations_by_name(name)
        assert "secret" not in automation.model_dump_json()


@pytest.mark.promise("A run that is not ready then says so once, at the deadline")
def test_a_run_that_is_late_is_told(api: Any, heard: list[Any]) -> None:
    from prefect import flow, tags
    from prefect.context import FlowRunContext

    from flows.nights.late import tell_late

    name, limit = unique("late"), datetime(2026, 11, 22, 6, tzinfo=UTC)
    text = "the run is late: it was not ready by 06:00 (UTC), its run.ready_by"

    @flow(name="slow", flow_run_name=name)
    def slow() -> None:
        context = FlowRunContext.get()
        assert context is not None
        tell_late(context.flow_run, "slow-out", text, limit)

    with tags("rowmill"):
        slow()
    run = run_called(api, name)
    _, told = text_of(heard, name)
    assert told.splitlines() == [
        "rowmill: slow is not ready in time", f"why: {text}", f"run: {name}",
        f"page: {orchestration_server.ui_url()}/runs/flow-run/{run.id}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def sleepers(api: Any, worker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the worker that runs the deployments `sleeper/works` and `sleeper/gone`, of which the module of the
    second is not there."""
    folder = tmp_path_factory.mktemp("sleepers")
    text = "import time\nfrom prefect import flow\n\n@flow(name='sleeper')\ndef sleeper(): time.sleep(600)\n"
    (folder / "sleeping.py").write_text(text)
    pull = [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}]
    flow_id = api.create_flow_from_name("sleeper")
    for name, entrypoint in (("works", "sleeping.py:sleeper"), ("gone", "no_such_module.sleeper")):
        api.create_deployment(
            flow_id, name, entrypoint=entrypoint, work_pool_name=POOL, pull_steps=pull, tags=["rowmill"]
        )
    return worker


def requested(api: Any, name: str) -> Any:
    """A run by hand: its first state has an event, unlike that of a run that the scheduler has just made."""
    return api.create_flow_run_from_deployment(api.read_deployment_by_name(name).id)


@pytest.mark.promise("the process that a worker starts ends before the flow begins (a module is missing) | seconds")
def test_a_run_that_crashes_before_it_begins_is_told(api: Any, sleepers: Path, heard: list[Any]) -> None:
    run = requested(api, "sleeper/gone")
    assert final_state(api, run.id, sleepers) == "Crashed"
    crashed = api.read_flow_run(run.id).state.timestamp.timestamp()
    when, text = text_of(heard, run.name, "Crashed")
    assert when - crashed < SOON, f"after {when - crashed:.0f} s"
    lines = text.splitlines()
    assert lines[0] == "rowmill: sleeper/gone Crashed"
    assert lines[1].startswith("why: Process exited with status code: 1")
    assert lines[2:] == [
        f"run: {run.name}", "host: the-worker", f"page: {orchestration_server.ui_url()}/runs/flow-run/{run.id}",
    ]  # fmt: skip


@pytest.mark.promise("a run fails, or its process is killed | seconds")
def test_a_running_one_whose_process_is_killed_is_told(api: Any, sleepers: Path, heard: list[Any]) -> None:
    run = requested(api, "sleeper/works")
    until(lambda: api.read_flow_run(run.id).state_name == "Running", "it runs")
    os.kill(int(api.read_flow_run(run.id).infrastructure_pid.rpartition(":")[2]), signal.SIGKILL)
    killed = time.time()
    when, text = text_of(heard, run.name, "Crashed")
    assert when - killed < SOON, f"after {when - killed:.0f} s"
    assert text.startswith("rowmill: sleeper/works Crashed\nwhy: ")
