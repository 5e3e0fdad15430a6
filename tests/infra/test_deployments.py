"""Deployments on a real server: registered, run by a real worker, started by a real event; zombies, webhook, serve."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.orchestration import deployments
from infra.orchestration import server as orchestration_server
from infra.orchestration.deployment_file import read_file
from tasks.errors import GiveUpError, JobError
from tests.conftest import python_path
from tests.flows.runs import rows_of
from tests.infra.elsewhere import eventually, until

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("deployments"), pytest.mark.slow]
POOL = "rowmill-test"
SMALL = {"sample": {"name": "toy", "rows": 2000}}
ON_CPU = {"kind": "cpu", "workers": 1, "threads_per_worker": 2}
FINAL = ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")


def folder_with_decoys(folder: Path) -> Path:
    """A current folder whose own flows/, tasks/ and yaml.py must not be imported by anybody."""
    for name in ("flows/__init__.py", "tasks/__init__.py", "yaml.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise RuntimeError('a decoy was imported')\n")
    return folder


def started(folder: Path, *command: str) -> subprocess.Popen[str]:
    """A Python module with arguments, in that folder, knowing the session's server and this rowmill only."""
    environment = os.environ | {"PYTHONPATH": python_path(), "PREFECT_WORKER_QUERY_SECONDS": "1",
                                "PREFECT_RUNNER_POLL_FREQUENCY": "1"}  # fmt: skip
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen([sys.executable, "-P", "-m", *command], cwd=folder, env=environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)  # fmt: skip


def ended(process: subprocess.Popen[str], timeout: float = 150) -> int:
    try:
        return process.wait(timeout)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def final_state(api: Any, run_id: Any, log: Path | None = None) -> str:
    def state() -> str | None:
        name = api.read_flow_run(run_id).state_name
        return name if name in FINAL else None

    try:
        return str(until(state, f"run {run_id} in {api.read_flow_run(run_id).state_name}"))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()[-3000:] if log else ''}") from None


def runs_of(api: Any, name: str) -> list[Any]:
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName

    return list(api.read_flow_runs(deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=[name]))))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, api: Any) -> Path:
    """The folder in which `rowmill deploy` was called."""
    folder = folder_with_decoys(tmp_path_factory.mktemp("deployed"))
    assert ended(started(folder, "rowmill", "deploy", "--pool", POOL)) == 0, (folder / "log.txt").read_text()
    return folder


@pytest.fixture(scope="module")
def worker(home: Path, api: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A process worker of the pool, started elsewhere; its log. It looks for new files when a test says so."""
    api.pause_deployment(api.read_deployment_by_name("watch-source/every-minute").id)
    folder = tmp_path_factory.mktemp("worker")
    process = started(folder, "prefect", "worker", "start", "--pool", POOL)
    yield folder / "log.txt"
    process.terminate()
    ended(process)


def limits(api: Any) -> dict[str, int | None]:
    """How many runs of each queue of the pool run at once."""
    return {queue.name: queue.concurrency_limit for queue in api.read_work_queues(work_pool_name=POOL)}


@pytest.mark.promise("`deploy` makes a process pool that runs one job at a time")
@pytest.mark.promise("the deployments that `rowmill serve` offers and `rowmill deploy` registers")
def test_what_is_deployed(home: Path, api: Any) -> None:
    nightly = api.read_deployment_by_name("preprocess/nightly")
    pool = api.read_work_pool(POOL)

    assert (pool.type, pool.concurrency_limit) == ("process", 3)
    assert limits(api) == {"default": 1, "light": 2}
    assert api.read_deployment_by_name("watch-source/every-minute").work_queue_name == "light"
    assert nightly.work_queue_name == "default"
    assert nightly.tags == ["rowmill"]
    assert (nightly.work_pool_name, nightly.global_concurrency_limit.limit) == (POOL, 1)
    assert nightly.concurrency_options.collision_strategy == "ENQUEUE"
    assert [(s.schedule.cron, s.schedule.timezone) for s in nightly.schedules] == [("0 2 * * *", "Europe/Berlin")]
    assert [
        s.schedule.interval.seconds for s in api.read_deployment_by_name("watch-source/every-minute").schedules
    ] == [60]
    assert api.read_deployment_by_name("apply/apply-hourly").parameters["fitted"] == "out/nightly"
    assert (home / "log.txt").read_text().count("deployed ") == 10


@pytest.mark.promise("A second `deploy` updates the deployments")
def test_deploying_again_updates(home: Path, api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def there() -> Any:
        known = [api.read_deployment_by_name(name) for name in ("preprocess/nightly", "preprocess/on-new-data")]
        names = ("rowmill-on-new-data", "rowmill-zombie-runs", "rowmill-failed-runs")
        automations = [len(api.read_automations_by_name(name)) for name in names]
        return [(d.id, [s.slug for s in d.schedules]) for d in known], automations

    before = there()
    monkeypatch.setenv("PYTHONPATH", python_path())
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.chdir(home)
    deployments.deploy(POOL, limit=2)
    assert there() == before
    assert before[1] == [1, 1, 0]
    assert limits(api) == {"default": 2, "light": 2}
    deployments.keep_pool(POOL, 1)
    assert limits(api) == {"default": 1, "light": 2}


@pytest.mark.promise("writes `out/nightly` as version v0001, v0002, ..")
def test_a_worker_picks_up_a_scheduled_run(home: Path, worker: Path, api: Any) -> None:
    from prefect.states import Scheduled

    given = {"output": {"seed": 1}, "source": SMALL, "cluster": ON_CPU}
    nightly = api.read_deployment_by_name("preprocess/nightly")
    soon = datetime.now(UTC) + timedelta(seconds=1)
    run = api.create_flow_run_from_deployment(nightly.id, parameters=given, state=Scheduled(scheduled_time=soon))

    assert final_state(api, run.id, worker) == "Completed"
    manifest = json.loads((home / "out/nightly/v0001/_manifest.json").read_text())
    assert (manifest["rows"]["out"], manifest["seed"], manifest["run"]) == (2000, 1, str(run.id))
    assert "rowmill" in api.read_flow_run(run.id).tags


@pytest.mark.promise("on the event `rowmill.data.arrived`", "flows/OPERATIONS.md#schedule-it")
def test_an_event_starts_a_run_on_the_new_files(home: Path, worker: Path, api: Any) -> None:
    from prefect.client.schemas.actions import WorkPoolUpdate

    from flows.sample import make_sample

    arrived = home / "data/incoming/day=1"
    make_sample("toy", arrived, 1000, seed=5)
    watch = api.read_deployment_by_name("watch-source/every-minute")
    api.update_work_pool(POOL, WorkPoolUpdate(is_paused=True))  # until both are due
    looks = [api.create_flow_run_from_deployment(watch.id, parameters={"settle": 0}) for _ in range(2)]
    api.update_work_pool(POOL, WorkPoolUpdate(is_paused=False))
    assert sorted(final_state(api, look.id, worker) for look in looks) == ["Cancelled", "Completed"]
    (note,) = (home / ".rowmill").glob("seen-*.json")
    assert [Path(path).name for path in json.loads(note.read_text())["files"]] == ["part-00000.parquet"]
    source = {"path": [str(arrived / "part-00000.parquet")]}

    def begun() -> list[Any]:  # files of other tests arrive at the same server
        return [run for run in runs_of(api, "on-new-data") if run.parameters["source"] == source]

    (run,) = until(begun, "the event starts a run")
    assert final_state(api, run.id, worker) == "Completed"
    assert rows_of(home / "out/on-new-data/v0001").num_rows == 1000
    assert len(begun()) == 1


@pytest.mark.promise("a run fails, or its process is killed | seconds")
def test_a_failed_run_is_told_to_the_webhook(api: Any) -> None:
    from prefect import flow, tags

    heard: list[str] = []  # tests beside this one have runs that fail, too

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        deployments.keep_automations(f"http://127.0.0.1:{server.server_port}/secret")
        runs: list[int] = []

        @flow(name="failing", flow_run_name="the-run")
        def failing() -> None:
            runs.append(1)
            raise ValueError('a "quoted" cause')

        def heard_of() -> list[str]:
            """What is told of a run that fails now: the server looks for its automations from time to time."""
            with tags("rowmill"), pytest.raises(ValueError):
                failing()
            return list(eventually(lambda: [text for text in heard if "failing " in text], 5))

        told = until(heard_of, "the webhook is called")
        server.shutdown()
    for name in ("silent-starts", "silent-runs", "late-runs", "open-questions", "failed-runs"):
        (automation,) = api.read_automations_by_name(f"rowmill-{name}")
        api.delete_automation(automation.id)

    assert len(told) <= len(runs)
    first, why, *rest = told[0].splitlines()
    assert first == "rowmill: failing Failed"
    assert why.startswith("why: ")
    assert 'a "quoted" cause' in why
    assert rest[0] == "run: the-run"
    assert rest[-1].startswith(f"page: {orchestration_server.ui_url()}/runs/flow-run/")
    assert "None" not in told[0]
    assert "secret" not in automation.model_dump_json()


@pytest.mark.promise(
    "one at a time (`--limit`; a look at a watched folder waits for no job), each in a process of its own"
)
@pytest.mark.promise("Ctrl-C or SIGTERM cancels what runs and pauses the schedules; the next start resumes them")
def test_serve_runs_one_at_a_time_and_ends_cleanly(tmp_path: Path, api: Any) -> None:
    spec = {"name": "served", "entrypoint": "flows.preprocess.preprocess", "tags": ["rowmill"],
            "parameters": {"recipe": "toy", "source": SMALL, "cluster": ON_CPU,
                           "output": {"path": "out", "on_existing": "replace"}},
            "schedules": [{"cron": "0 3 * * *", "timezone": "Asia/Tokyo", "slug": "early"}]}  # fmt: skip
    folder = folder_with_decoys(tmp_path / "here")
    watch = {"name": "served", "entrypoint": "flows.watch_source.watch_source", "parameters": {"path": "."}}
    (folder / "own.yaml").write_text(yaml.safe_dump({"deployments": [spec, watch]}))
    process = started(folder, "rowmill", "serve", "--file", "own.yaml")
    try:
        served = until(lambda: _named(api, "preprocess/served"), "the deployment is there")
        first = api.create_flow_run_from_deployment(served.id, parameters={"output": {"seed": 7}})
        other = started(folder, "rowmill", "serve", "--file", "own.yaml")
        assert ended(other) == 1
        assert f"preprocess/served already\n  where: process {process.pid}\n" in (folder / "log.txt").read_text()
        assert not api.read_deployment(served.id).paused
        until(lambda: api.read_flow_run(first.id).state_name != "Scheduled", "the first run is taken")
        big = {"source": {"path": "big", "sample": {"rows": 20_000_000}}}
        second = api.create_flow_run_from_deployment(served.id, parameters=big)
        assert final_state(api, first.id, folder / "log.txt") == "Completed"
        assert json.loads((folder / "out/_manifest.json").read_text())["seed"] == 7
        until((folder / "big").exists, "the second run works")
        assert api.read_flow_run(second.id).start_time >= api.read_flow_run(first.id).end_time
        third = api.create_flow_run_from_deployment(served.id)
        look = api.create_flow_run_from_deployment(api.read_deployment_by_name("watch-source/served").id)
        assert final_state(api, look.id, folder / "log.txt") == "Completed"  # it does not wait behind the job
        assert api.read_flow_run(second.id).state_name == "Running"
        assert api.read_flow_run(third.id).state_name in ("Scheduled", "Late")
        process.terminate()
        assert ended(process) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert api.read_flow_run(second.id).state_name == "Cancelled"
    assert api.read_deployment(served.id).paused
    log = (folder / "log.txt").read_text()
    last = log.rpartition("stopped serving; the schedules are paused until the next start\n")
    assert last[1]
    assert not last[2] or "resource_tracker" in last[2]  # a run that is killed leaves semaphores, which Python clears
    assert log.count("scheduled runs skipped (at capacity)") <= 2  # once for one that waits, not at each look
    assert "rowmill" in api.read_flow_run(look.id).tags


def _named(api: Any, name: str) -> Any:
    from prefect.exceptions import ObjectNotFound

    try:
        return api.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deployments: [", "cannot be read"),
        ("deployments: []", "has no deployments"),
        ("source: {path: in}", r"has no deployments(.|\n)*it is a job(.|\n)*parameters: {job: .*wrong.yaml}"),
        ("deployments: [{name: a}]", "needs a name and an entrypoint"),
        ("deployments: [a]", "needs a name and an entrypoint"),
        ("deployments: [{ENTRY, schedules: [{cron: not a cron}]}]", "not a cron"),
        ("deployments: [{ENTRY, schedules: [{interval: soon}]}]", "interval"),
        ("deployments: [{ENTRY, schedules: [{every: 5}]}]", "every"),
        ("deployments: [{ENTRY, schedules: nightly}]", "schedules: needs a list, not 'nightly'"),
        ("deployments: [{ENTRY, schedule: {cron: 0 0 * * *}}]", "schedule is not read"),
        ("deployments: [{ENTRY, parameter: {job: a}}]", r"parameter is not read(.|\n)*did you mean 'parameters'"),
        ("deployments: [{ENTRY, triggers: [{type: event, expect: {a: 1}}]}]", "expect"),
        ("deployments: [{ENTRY, parameters: {recipee: toy}}]", "did you mean 'recipe'"),
        ("deployments: [{ENTRY, parameters: [toy]}]", "parameters: needs a map, not"),
        ("deployments: [{ENTRY, tags: rowmill}]", "tags: needs a list, not 'rowmill'"),
        ("deployments: [{ENTRY, work_pool: gpu}]", "work_pool: needs a map, not 'gpu'"),
        ("deployments: [{ENTRY, concurrency_limit: {limit: 1, collision_strategy: WAIT}}]", "collision_strategy"),
        ("deployments: [{name: [a], entrypoint: flows.fit.fit}]", "name: needs a text, not"),
        ("deployments: [{name: a, entrypoint: flows.fit.nothing}]", "entrypoint flows.fit.nothing"),
        ("deployments: [{name: a, entrypoint: flows.fit.Any}]", "is not a flow"),
        ("deployments: [{name: a, entrypoint: fit}]", "entrypoint fit"),
        ("deployments: [{name: a, entrypoint: 'flows/fit.py:fit'}]", "entrypoint flows/fit.py:fit"),
        ("deployments: [{ENTRY}, {ENTRY}]", "two deployments fit/a"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "wrong.yaml").write_text(text.replace("ENTRY", "name: a, entrypoint: flows.fit.fit"))
    with pytest.raises(JobError, match=message) as error:
        read_file(tmp_path / "wrong.yaml")
    assert str(error.value.where).startswith(str(tmp_path / "wrong.yaml"))


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_bytes(b"deployments: \xff")
    with pytest.raises(JobError, match="cannot be read"):
        read_file(tmp_path / "wrong.yaml")


def test_what_prefect_refuses_is_told(tmp_path: Path, api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"name": "wrong", "entrypoint": "flows.preprocess.preprocess", "build": [{"no.such.step": {}}]}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump({"deployments": [spec]}))
    monkeypatch.setenv("PYTHONPATH", python_path())
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with pytest.raises(GiveUpError, match="could not be registered"):
        deployments.deploy(POOL, tmp_path / "wrong.yaml")


@pytest.mark.parametrize(("url", "shown"), [
    ("hooks.slack.com/services/T0/SECRET", "a text without a scheme"), ("SECRET:x", "a text without a scheme"),
    ("htps://me:SECRET@hooks.slack.com/SECRET?k=SECRET", "htps://hooks.slack.com"), ("https:///SECRET", "https://"),
    ("http://[SECRET", "a text without a scheme"),
])  # fmt: skip
def test_a_url_to_notify_is_checked_before_anything_is_registered_and_not_shown(
    url: str, shown: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(deployments, "read_file", lambda _: pytest.fail("the file was read"))
    for refused in (
        lambda: deployments.deploy(POOL, tmp_path, notify=url), lambda: deployments.serve(tmp_path, notify=url),
        lambda: deployments.keep_automations(url),
    ):  # fmt: skip
        with pytest.raises(JobError) as error:
            refused()
        assert str(error.value).startswith(f"--notify needs an http or https URL, not {shown}\n")
        assert "SECRET" not in str(error.value)
