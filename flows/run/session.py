"""Runs a job in the current flow run: on its cluster, with what Prefect needs, and with the plugins of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client
from prefect import get_run_logger
from prefect.context import FlowRunContext

from flows.gate.judging import GatePlugin
from flows.gate.questions import QuestionPlugin
from flows.job import run_history
from flows.job.dates import DateOf
from flows.job.deployed import check_lasting
from flows.job.files_beside import check_files_beside
from flows.job.job import absolute
from flows.job.ready_by import deadline
from flows.job.refit_job import AnyJob
from flows.job.run_calendar import TRAIN_LATER
from flows.nights.base import BasePlugin
from flows.nights.late import ready_in_time
from flows.nights.run_dates import EmptySourcePlugin, RunDatePlugin, run_in_order
from flows.published.observed_run import ObservedRun
from flows.published.observers import CollectorsPlugin
from flows.published.outbox import deliver
from flows.report.plugins import ReportPlugin, StagePagesPlugin
from flows.run.artifacts import all_shown
from flows.run.installed_plugins import installed_plugins
from flows.run.links import LinksPlugin, flow_run_id, links_of_this_run
from flows.run.listeners import work_in
from flows.run.signs_of_life import signs_of_life
from flows.run.stages import run_stage, stages_of_this_run
from flows.run.worker_imports import worker_imports
from flows.sample.plugin import SamplesPlugin
from infra.clusters.encryption import security_of
from infra.clusters.local import prepare
from infra.clusters.resolve import resolved, stage_engines
from infra.environment import keep_on_without_reader
from infra.orchestration.task_runner import runner, use_cluster
from infra.orchestration.task_settings import TaskSettings
from tasks.core.settings import FlowName, collector_file
from tasks.core.stage_results import StageResult
from tasks.job.request import Request
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.run.run import run
from tasks.shuffle.memory_exchange import release
from tasks.stages import reuse, task

COMMITTED: list[str] = []  # what the last run of this process has committed, for a command whose server has gone
on_cluster: Any = runner()  # Prefect's own types know its thread and process runners only
keep_on_without_reader()  # in every process that runs a flow


def run_flow(make: Callable[[DateOf], Any], flow: FlowName) -> Any:
    """Run the job of the current run of a flow; `make` gives the job of a date.

    Returns the folders that are committed, or the state of a run that had nothing to do.
    """
    return run_in_order(make, lambda job: run_job(job, flow))


def run_job(job: AnyJob, flow: FlowName) -> list[str]:
    """Run a job in the current run of a flow; return the folders that are committed."""
    COMMITTED.clear()
    if flow == "fit":
        job = without_valid(job)
    request = replace(job.request(resolved(job.cluster).engine), flow=flow)
    _check_places(request)
    work_in(request.staging.folder)
    imports = worker_imports(f"flows.{flow}")
    prepare(job.cluster, imports)
    use_cluster(job.cluster, imports)

    def execute(stage: str, request: Request, split: str | None = None) -> StageResult:
        result: StageResult = run_stage(getattr(task, stage), job, request, split)
        return result

    source = EmptySourcePlugin(job)
    plugins = [
        CommittedPlugin(),
        ClusterPlugin(job),
        QuestionPlugin(),
        RunDatePlugin(job),
        CollectorsPlugin(lambda current: _observed(job, current)),
        BasePlugin(job),
        SamplesPlugin(job),
        source,
        StagePagesPlugin(job),
        ReportPlugin(job),
        GatePlugin(job),
        EventsPlugin(job),
        HistoryPlugin(job),
        LinksPlugin(),
        *installed_plugins(get_run_logger()),
    ]
    with _in_prefect(request):
        run(request, source.around(execute), plugins, get_run_logger(), flow_run_id())
    return [*COMMITTED]


def _check_places(request: Request) -> None:
    """A JobError where the run would write to a folder that does not last, or a file beside the output that is not its
    own."""
    check_lasting(request.staging.target, "output.path")
    check_lasting(request.staging.folder, "run.scratch")
    for key in ("lineage", "metrics"):
        if path := collector_file(getattr(request.run, key) or ""):
            check_lasting(path, f"run.{key}")
    check_files_beside(request)


@contextmanager
def _in_prefect(request: Request) -> Iterator[None]:
    """What the Prefect server hears of a run besides its stages, and what Prefect's tasks need, while the block runs.

    It surrounds the lock of the output, since a run that waits for that lock lives, and may be late.
    """
    with (
        signs_of_life(str(request.staging.target)),
        ready_in_time(request),
        TaskSettings.current(),
        links_of_this_run(),
        all_shown(),
        stages_of_this_run(),
    ):
        yield


class CommittedPlugin(RunPlugin):
    """Notes what a run of this process has committed."""

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        COMMITTED[:] = outputs

    def ended(self, run: CurrentRun, error: BaseException | None) -> None:
        COMMITTED[:] = run.outputs


class ClusterPlugin(RunPlugin):
    """Chooses the engine of each stage by the workers of the cluster, and leaves nothing on a scheduler that the run
    has not started."""

    def __init__(self, job: AnyJob) -> None:
        self.cluster = job.cluster

    def begin(self, run: CurrentRun) -> None:
        request = replace(run.request, stage_engines=dict(stage_engines(self.cluster)))
        run.request = request.of_stage(request.planned_stage)

    def ended(self, run: CurrentRun, error: BaseException | None) -> None:
        if self.cluster.kind != "address":
            return
        security = security_of(self.cluster)
        known = {"security": security, "set_as_default": False, "timeout": "8s"}
        with suppress(OSError), Client(self.cluster.address, **known) as client:
            release(client, reuse.exchange_prefix(run.request.staging))


class EventsPlugin(RunPlugin):
    """Announces the outputs of a run, with the paths that they are made of."""

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def before_commit(self, run: CurrentRun) -> None:
        contract = getattr(self.job, "contract", None)
        run.upstream = [str(Path(contract).absolute())] if isinstance(contract, str) else []
        context = FlowRunContext.get()
        if context and context.flow_run and TRAIN_LATER in context.flow_run.tags:
            run.train = "later"

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        if run.request.flow != "fit":
            deliver([run.request.staging.target])


class HistoryPlugin(RunPlugin):
    """Records the speed of a run, for the estimates of later ones."""

    def __init__(self, job: AnyJob) -> None:
        self.recipe = getattr(job, "recipe", None)

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        run_history.record(run.request, run.results, self.recipe, run.run_id)


def without_valid(job: Any) -> Any:
    """The job without its validation data, which teach nothing."""
    return job.model_copy(update={"source": job.source.model_copy(update={"valid": None})})


def _observed(job: AnyJob, run: CurrentRun) -> ObservedRun:
    """The current flow run as its collectors hear of it."""
    context = FlowRunContext.get()
    request = run.request
    name = absolute(job.as_written()["output"]["path"])
    scheduled = context.flow_run.expected_start_time if context and context.flow_run else None
    flow = context.flow.name if context and context.flow else request.flow
    ready_by, timezone = request.run.ready_by, request.run.timezone
    ready = deadline(ready_by, timezone, scheduled) if ready_by and scheduled else None
    return ObservedRun(request, name, flow, run.run_id, scheduled, ready, run.outputs)
