"""Deployments on a real server: registered, run by a real worker, started by a real event; serve."""

from __future__ import annotations

import json
import logging
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.job.access import CLUSTERS, SWITCHES
from infra.orchestration import deployments
from infra.orchestration.deployment_file import read_file
from tasks.errors import GiveUpError, JobError
from tasks.storage.staging import Staging
from tests.commands import rowmill
from tests.conftest import python_path
from tests.flows.runs import rows_of
from tests.infra.elsewhere import until
from tests.infra.forking_worker import OWN
from tests.infra.operations import (
    POOL,
    SMALL,
    ended,
    final_state,
    folder_with_decoys,
    paused_pool,
    prefect_in_process,
    runs_of,
    started,
    watch_only,
)
from tests.running import section_of

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("deployments"), pytest.mark.slow]


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
    from prefect.automations import Automation

    def there() -> Any:
        known = [api.read_deployment_by_name(name) for name in ("preprocess/nightly", "preprocess/on-new-data")]
        names = ("rowmill-on-new-data", "rowmill-zombie-runs", "rowmill-failed-runs")
        automations = [len(api.read_automations_by_name(name)) for name in names]
        return [(d.id, [s.slug for s in d.schedules]) for d in known], automations

    before = there()
    monkeypatch.chdir(home)
    with prefect_in_process():
        deployments.deploy(POOL, limit=2)
    started_by: Any = Automation.read(name="rowmill-on-new-data").trigger
    assert started_by.match.model_dump() == {"prefect.resource.id": "rowmill.source.*"}
    watch_only(home)
    assert there() == before
    assert before[1] == [1, 1, 0]
    assert limits(api) == {"default": 2, "light": 2}
    deployments.ensure_pool(POOL, 1)
    assert limits(api) == {"default": 1, "light": 2}


@pytest.mark.promise("writes `out/nightly` as version v0001, v0002, ..")
def test_a_worker_picks_up_a_scheduled_run(home: Path, worker: Path, api: Any, cluster: Any) -> None:
    from prefect.states import Scheduled

    given = {"output": {"seed": 1}, "source": SMALL, "cluster": section_of(cluster)}
    nightly = api.read_deployment_by_name("preprocess/nightly")
    soon = datetime.now(UTC) + timedelta(seconds=1)
    scheduled = Scheduled(scheduled_time=soon)
    run = api.create_flow_run_from_deployment(nightly.id, parameters=given, state=scheduled, name=OWN)

    assert final_state(api, run.id, worker) == "Completed"
    manifest = json.loads((home / "out/nightly/v0001/_manifest.json").read_text())
    assert (manifest["rows"]["out"], manifest["seed"], manifest["run"]) == (2000, 1, str(run.id))
    assert "rowmill" in api.read_flow_run(run.id).tags


@pytest.mark.promise("on the event `rowmill.data.arrived`", "flows/OPERATIONS.md#schedule-it")
def test_an_event_starts_a_run_on_the_new_files(home: Path, worker: Path, api: Any) -> None:
    from flows.sample import make_sample

    arrived = home / "data/incoming/day=1"
    make_sample("toy", arrived, 1000, seed=5)
    watch = api.read_deployment_by_name("watch-source/every-minute")
    with paused_pool(api):  # until both are due
        looks = [api.create_flow_run_from_deployment(watch.id, parameters={"settle": 0}) for _ in range(2)]
    assert sorted(final_state(api, look.id, worker) for look in looks) == ["Cancelled", "Completed"]
    (note,) = (home / ".rowmill").glob("seen-*.json")
    assert [Path(path).name for path in json.loads(note.read_text())["files"]] == ["part-00000.parquet"]
    source = {"path": [str(arrived / "part-00000.parquet")]}

    def begun() -> list[Any]:
        return [run for run in runs_of(api, "on-new-data") if run.parameters["source"] == source]

    (run,) = until(begun, "the event starts a run")
    assert final_state(api, run.id, worker) == "Completed"
    assert rows_of(home / "out/on-new-data/v0001").num_rows == 1000
    assert len(begun()) == 1


@pytest.mark.promise(
    "one at a time (`--limit`; a look at a watched folder waits for no job), each in a process of its own"
)
@pytest.mark.promise("Ctrl-C or SIGTERM cancels what runs and pauses the schedules; the next start resumes them")
def test_serve_runs_one_at_a_time_and_ends_cleanly(
    tmp_path: Path, api: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"name": "served", "entrypoint": "flows.preprocess.preprocess", "tags": ["rowmill"],
            "parameters": {"recipe": "toy", "source": SMALL, "output": {"path": "out", "on_existing": "replace"}},
            "schedules": [{"cron": "0 3 * * *", "timezone": "Asia/Tokyo", "slug": "early"}]}  # fmt: skip
    folder = folder_with_decoys(tmp_path / "here")
    watch = {"name": "served", "entrypoint": "flows.watch_source.watch_source", "parameters": {"path": "."}}
    (folder / "own.yaml").write_text(yaml.safe_dump({"deployments": [spec, watch]}))
    monkeypatch.setattr("flows.job.access.serving_limits", list)  # they would hold for all of this process
    monkeypatch.setattr(logging.getLogger("prefect.runner"), "filters", [])
    allowed = {CLUSTERS: cluster.scheduler_address, SWITCHES: "tls"}
    process = started(folder, "tests.forking", "serve", "--file", "own.yaml", **allowed)
    try:
        served = until(lambda: _named(api, "preprocess/served"), "the deployment is there")
        small = {"output": {"seed": 7}, "cluster": section_of(cluster)}
        first = api.create_flow_run_from_deployment(served.id, parameters=small)
        other = rowmill("serve", "--file", "own.yaml", folder=folder)
        assert other.exit_code == 1
        assert f"preprocess/served already\n  where: process {process.pid}\n" in other.output
        assert not api.read_deployment(served.id).paused
        until(lambda: api.read_flow_run(first.id).state_name != "Scheduled", "the first run is taken")
        long = {"output": {"path": "long"}, "run": {"lock": "wait"}}
        with Staging(folder / "long").hold_lock():  # for which the second run waits
            second = api.create_flow_run_from_deployment(served.id, parameters=long)
            assert final_state(api, first.id, folder / "log.txt") == "Completed"
            assert json.loads((folder / "out/_manifest.json").read_text())["seed"] == 7
            until(lambda: api.read_flow_run(second.id).state_name == "Running", "the second run works")
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
        ("deployments: [{name: a, entrypoint: flows.fit.run_name}]", "is not a flow"),
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
        lambda: deployments.ensure_automations(url),
    ):  # fmt: skip
        with pytest.raises(JobError) as error:
            refused()
        assert str(error.value).startswith(f"--notify needs an http or https URL, not {shown}\n")
        assert "SECRET" not in str(error.value)
