"""Runs the jobs of a flow run: on their cluster, with what Prefect needs, and with the plugins of flow and run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from prefect import get_run_logger

from flows.job.dates import DateOf
from flows.job.refit_job import AnyJob
from flows.run.empty_sources import EmptySourcePlugin
from flows.run.flow_plugin import CurrentFlow, Ended, NoOutputError
from flows.run.in_prefect import in_prefect
from flows.run.installed_plugins import load_installed_plugins
from flows.run.links import LinksPlugin, flow_run_id
from flows.run.listeners import work_in
from flows.run.on_cluster import choose_cluster
from flows.run.places import check_places
from flows.run.run_names import show_date
from flows.run.run_plugins import COMMITTED, ClusterPlugin, CommittedPlugin, HistoryPlugin
from flows.run.stages import run_stage
from flows.run.wings import flow_plugins, run_plugins
from flows.run.work_of_job import date_of_this_run
from infra.clusters.resolve import resolve_cluster
from infra.environment import keep_on_without_reader
from tasks.core.settings import FlowName
from tasks.core.stage_results import StageResult
from tasks.errors import RowmillError
from tasks.job.request import Request
from tasks.run.plugin import NothingToDoError
from tasks.run.run import run
from tasks.stages import task

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
    check_places(request)
    work_in(request.staging.folder)
    choose_cluster(job.cluster, flow)

    def execute(stage: str, request: Request, split: str | None = None) -> StageResult:
        result: StageResult = run_stage(getattr(task, stage), job, request, split)
        return result

    empty_source = EmptySourcePlugin(job)
    core = [CommittedPlugin(), ClusterPlugin(job), empty_source, HistoryPlugin(job), LinksPlugin()]
    plugins = sorted([*core, *run_plugins(job)], key=lambda plugin: plugin.place)
    plugins += load_installed_plugins(get_run_logger())
    with in_prefect(request):
        run(request, empty_source.around(execute), plugins, get_run_logger(), flow_run_id())
    return [*COMMITTED]


def without_valid(job: Any) -> Any:
    """The job without its validation data, which teach nothing."""
    return job.model_copy(update={"source": job.source.model_copy(update={"valid": None})})
