"""Runs for tests: the flow in this process, on the session's cluster, reporting to the session's server; and cheaper
ones, for tests of what is around the stages, whose stages run in this process (the fixture `stages_here`)."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.cluster.local_pool import LocalPool
from tasks.core.settings import FlowName
from tasks.job.run_date import RunDate
from tasks.run.run import execute_on
from tests.infra.elsewhere import until
from tests.running import section_of


def run_flow(data: Mapping[str, Any], cluster: Any) -> list[Path]:
    """Run `preprocess` with the parameters of a job on a running cluster; the folders that were committed."""
    from flows.preprocess import preprocess

    return [Path(folder) for folder in run_on(preprocess, data, cluster)]


def run_on(flow: Any, data: Mapping[str, Any], cluster: Any) -> Any:
    """Run any of the flows with its parameters on a running cluster; what it returns."""
    from infra.clusters.model import Cluster
    from infra.orchestration.task_runner import runner

    where = section_of(cluster)
    on_cluster: Any = runner(Cluster(**where))
    return run_any(flow.with_options(task_runner=on_cluster), {**data, "cluster": where})


def run_any(flow: Any, data: Mapping[str, Any]) -> Any:
    """Run any of the flows with its parameters, on the cluster that these ask for; what it returns."""
    from prefect import tags
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    # Prefect's heartbeats sleep in whole seconds, and the end of a run waits for them: the commands have none, either.
    silent = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    with silent, tags(data["output"]["path"]):  # by which a test finds its run
        return flow(**data)


def execute(flow: Any, flow_run: Any) -> Any:
    """Go on with a flow run that the server knows, as the process does that a worker starts for it; its final state, or
    None where it pauses. The limits of a deployment, which are variables, end with the run."""
    from prefect.exceptions import Pause
    from prefect.flow_engine import run_flow
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from tests.commands import same_variables

    silent = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    with same_variables(), silent, suppress(Pause):
        return run_flow(flow, flow_run=flow_run, parameters=flow_run.parameters, return_type="state")
    return None


def have_stages_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the stages of flows, also of those that commands start, run in this process: no cluster is started, and the
    server hears of no task runs."""
    from flows.run import session
    from infra.workers import forkserver

    monkeypatch.setattr(session, "run_stage", run_stage_here)
    monkeypatch.setattr(forkserver, "start", lambda modules=(): False)


def run_stage_here(function: Any, job: Any, request: Any, split: str | None = None) -> Any:
    """Run a stage in this process, in the place of `flows.run.stages.run_stage`; its result."""
    from flows.run.listeners import notify

    result = execute_on(LocalPool(2))(function.name, request, split)
    notify(result)
    return result


def have_previews_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have previews look at their jobs in this process, and not in one of their own, a Python that imports for
    seconds."""
    from flows.preview import own_process

    monkeypatch.setattr(own_process, "make_preview", look_here)
    monkeypatch.setattr(own_process, "PreviewProcess", lambda: nullcontext(SimpleNamespace(make_preview=look_here)))


def look_here(data: Mapping[str, Any], flow: FlowName = "preprocess", run_date: RunDate | None = None) -> Any:
    """What a preview's own process answers."""
    from flows.job.dates import date_of_run_now
    from flows.job.refit_job import maker_of
    from flows.preview.job_preview import preview

    date_of = date_of_run_now if run_date is None else lambda _: run_date
    return preview(maker_of(flow)(data, date_of=date_of), flow)


def call(flow: Any, data: Mapping[str, Any]) -> Any:
    """Call the function of a flow with its parameters; what a run of it returns. With the fixture `stages_here`.

    As any run it has an id and begins now, but no flow run is made, and no server hears of it.
    """
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.states import State

    from flows.job.dates import date_of_run_now
    from flows.run.wings import flow_plugins

    flow_plugins()  # imports the wings, so that they are patched, too
    log, run = logging.getLogger("rowmill.call"), str(uuid4())
    log.setLevel(logging.INFO)  # as that of a flow run
    instead: dict[str, Any] = {
        "get_run_logger": lambda: log,
        "flow_run_id": lambda: run,
        "date_of_this_run": date_of_run_now,
        "write_markdown": lambda *_: None,
        "write_table": lambda *_: None,
        "emit_event": lambda *_, **__: None,
        "TaskSettings": SimpleNamespace(current=nullcontext),  # of tasks of Prefect, of which there are none
    }
    with ExitStack() as patched:
        if PREFECT_API_URL.value():  # all settings are made anew for it
            patched.enter_context(temporary_settings({PREFECT_API_URL: None}))
        for module in [module for name, module in [*sys.modules.items()] if name.startswith("flows.")]:
            for name in instead.keys() & vars(module).keys():
                if not getattr(module, name).__module__.startswith("tests."):  # a test has replaced it
                    patched.enter_context(patch.object(module, name, instead[name]))
        ended = flow.fn(**data)
    return ended.result() if isinstance(ended, State) else ended


def loaded_by_a_run(job: Mapping[str, Any], packages: Sequence[str]) -> list[str]:
    """The modules of some packages that this process, a fork (`tests.faults.rounds`), has loaded after a run of a job
    whose stages are its own."""
    from flows.preprocess import preprocess

    have_stages_here(pytest.MonkeyPatch())
    call(preprocess, job)
    return sorted(name for name in sys.modules if name.startswith(tuple(packages)))


def completed_tasks(run: str, names: Sequence[str]) -> list[Any]:
    """The task runs of a flow run once all of these names are completed and no other is there; the server hears of
    them some time after they change."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    def there() -> list[Any]:
        runs = api.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run)])))
        return runs if {r.name: r.state_name for r in runs} == dict.fromkeys(names, "Completed") else []

    with get_client(sync_client=True) as api:
        return list(until(there, f"completed tasks {', '.join(names)}"))


def rows_of(folder: Path) -> pa.Table:
    """All rows of an output, in the order of its files."""
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("*.parquet")))


def key_of(out: Path, flow: str = "preprocess") -> str:
    """What the keys of the artifacts of a run to this output begin with."""
    return f"{flow}-" + re.sub("[^a-z0-9]+", "-", f"{out.parent.name}-{out.name}".lower())
