"""The plugins that show a run: an artifact for each stage, and the report that the commit writes into the outputs."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from flows.job.refit_job import AnyJob
from flows.run.artifacts import later, write_markdown
from flows.run.links import links, run_page
from flows.run.stages import last_task_run
from tasks.cluster import monitor
from tasks.core.stage_results import StageResult
from tasks.job.apply_fitted import bind_graph
from tasks.job.fingerprints import fingerprint
from tasks.job.request import Request, SavedPlans
from tasks.report.artifact import stage_markdown
from tasks.report.diagram import load_or_draw_workflow
from tasks.report.html import ReportWriter
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.stages.progress_artifact import stage_key

log = logging.getLogger("rowmill")


class StagePagesPlugin(RunPlugin):
    """Shows each stage that is done as an artifact of its task run, under a key that stays the same from run to run of
    a flow. A page that cannot be made is a warning."""

    place: ClassVar[int] = 70

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def after(self, run: CurrentRun, result: StageResult) -> None:
        shown = links()
        try:  # now: the commit removes what the page is made of
            text = stage_page(run.request, result, shown.dashboard if shown else "")
        except Exception as error:  # the work is done all the same
            log.warning("an artifact could not be made: %s: %s", type(error).__name__, error)
            return
        key = f"{stage_key(run.request, result.stage, result.split)}-summary"
        task_run = last_task_run()
        later(lambda: write_markdown(key, text, result.line, task_run))


class ReportPlugin(RunPlugin):
    """Has the commit write the report of a run into its outputs."""

    place: ClassVar[int] = 71

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def begin(self, run: CurrentRun) -> None:
        request = run.request
        run.report = ReportWriter(
            request.staging.folder,
            request.staging.target,
            request.splits,
            lambda split: SavedPlans(request).plan(split),
            self.job.model_dump(mode="json", by_alias=True, exclude_unset=True),
            run_page(),
            wanted=request.run.report,
        )


def stage_page(request: Request, result: StageResult, dashboard: str = "") -> str:
    """Return the Markdown of a stage: what it did, what its workers did, and the workflow."""
    folder = request.staging.folder
    picture = folder / f"diagram-{fingerprint(request.graph)[:12]}.svg"
    schema = SavedPlans(request).plan(request.splits[0]).schema
    diagram = load_or_draw_workflow(picture, lambda: bind_graph(request, schema))
    workers: dict[str, Any] = monitor.load(monitor.samples_path(folder, result.title))
    return stage_markdown(result, diagram, workers, dashboard)
