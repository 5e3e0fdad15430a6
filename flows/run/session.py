"""Runs the jobs of a flow run: on their cluster, with what Prefect needs, and with the plugins of flow and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from distributed import Client
from prefect import get_run_logger

from flows.job import run_history
from flows.job.dates import DateOf
from flows.job.deployed import check_lasting
from flows.job.files_beside import check_files_beside
from flows.job.refit_job import AnyJob
from flows.run.artifacts import all_shown
from flows.run.empty_sources import EmptySourcePlugin
from flows.run.flow_plugin import CurrentFlow, Ended, NoOutputError
from flows.run.installed_plugins import load_installed_plugins
from flows.run.links import LinksPlugin, flow_run_id, links_of_this_run
from flows.run.listeners import work_in
from flows.run.run_names import show_date
from flows.run.signs_of_life import signs_of_life
from flows.run.stages import run_stage, stages_of_this_run
from flows.run.wings import flow_plugins, run_plugins
from flows.run.work_of_job import date_of_this_run
from flows.run.worker_imports import worker_imports
from infra.clusters.encryption import security_of
from infra.clusters.local import prepare
from infra.clusters.resolve import resolve_cluster, stage_engines
from infra.environment import keep_on_without_reader
from infra.orchestration.task_runner import runner, use_cluster
from infra.orchestration.task_settings import TaskSettings
from tasks.core.settings import FlowName, collector_file
from tasks.core.stage_results import StageResult
from tasks.errors import RowmillError
from tasks.job.request import Request
from tasks.run.plugin import CurrentRun, NothingToDoError, RunPlugin
from tasks.run.run import run
from tasks.shuffle.memory_exchange import release
from tasks.stages import reuse, task

COMMITTED: list[str] = []  # what the last run of this process has committed, for a command whose server has gone
on_cluster: Any = runner()  # Prefect's own types know its thread and process runners only
keep_on_without_reader()  # in every process that runs a flow


def run_flow(make: Callable[[DateOf], Any], flow: FlowName) -> Any:
    """Run the jobs of the current run of a flow; `make` gives the job of a date.

    Returns the folders that are committed, or the state of a run that has none.
    """
    own = make(date_of_this_run)
    if own.dated is not None:
        show_date(own.dated)
    plugins = flow_plugins()
    current = CurrentFlow(flow, own, make, plugins, jobs=[own])
    run_jobs: Callable[[], Ended] = partial(_run_jobs, current)
    for plugin in reversed(plugins):
        run_jobs = partial(plugin.around, current, run_jobs)
    return run_jobs()


def _run_jobs(current: CurrentFlow) -> Ended:
    """Run the jobs of a flow run one after another; the first that fails ends it."""
    current.errors.clear()
    folders: list[str] = []
    ended: Ended = folders
    for job in current.jobs:
        _tell_date(job)
        try:
            folders += run_job(job, current.flow)
        except NothingToDoError as end:
            current.errors.append((job, end))
            folders += end.outputs
            ended = end.state if isinstance(end, NoOutputError) and job is current.own else folders
        except RowmillError as error:
            current.errors.append((job, error))
            raise
    return ended


def _tell_date(job: AnyJob) -> None:
    """Log the date of a job, and what its patterns became."""
    if job.dated is None:
        return
    log = get_run_logger()
    run_date = job.dated.run_date
    log.info("the date is %s", run_date.sentence)
    if run_date.origin == "begun":
        log.warning("%s was begun by an earlier run but not published: it is finished first", run_date.day)
    for line in job.dated.lines:
        log.info("%s", line)


def run_job(job: AnyJob, flow: FlowName) -> list[str]:
    """Run a job in the current run of a flow; return the folders that are committed."""
    COMMITTED.clear()
    if flow == "fit":
        job = without_valid(job)
    request = replace(job.request(resolve_cluster(job.cluster).engine), flow=flow)
    _check_places(request)
    work_in(request.staging.folder)
    imports = worker_imports(f"flows.{flow}")
    prepare(job.cluster, imports)
    use_cluster(job.cluster, imports)

    def execute(stage: str, request: Request, split: str | None = None) -> StageResult:
        result: StageResult = run_stage(getattr(task, stage), job, request, split)
        return result

    empty_source = EmptySourcePlugin(job)
    core = [CommittedPlugin(), ClusterPlugin(job), empty_source, HistoryPlugin(job), LinksPlugin()]
    plugins = sorted([*core, *run_plugins(job)], key=lambda plugin: plugin.place)
    plugins += load_installed_plugins(get_run_logger())
    with _in_prefect(request):
        run(request, empty_source.around(execute), plugins, get_run_logger(), flow_run_id())
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

    It surrounds the lock of the output, since a run that waits for that lock lives.
    """
    with (
        signs_of_life(str(request.staging.target)),
        TaskSettings.current(),
        links_of_this_run(),
        all_shown(),
        stages_of_this_run(),
    ):
        yield


class CommittedPlugin(RunPlugin):
    """Notes what a run of this process has committed."""

    place: ClassVar[int] = 0

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        COMMITTED[:] = outputs

    def ended(self, run: CurrentRun, error: BaseException | None) -> None:
        COMMITTED[:] = run.outputs


class ClusterPlugin(RunPlugin):
    """Chooses the engine of each stage by the workers of the cluster, and leaves nothing on a scheduler that the run
    has not started."""

    place: ClassVar[int] = 10

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


class HistoryPlugin(RunPlugin):
    """Records the speed of a run, for the estimates of later ones."""

    place: ClassVar[int] = 91

    def __init__(self, job: AnyJob) -> None:
        self.recipe = getattr(job, "recipe", None)

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        run_history.record(run.request, run.results, self.recipe, run.run_id)


def without_valid(job: Any) -> Any:
    """The job without its validation data, which teach nothing."""
    return job.model_copy(update={"source": job.source.model_copy(update={"valid": None})})
