"""A run of a job without Prefect and without a cluster, for tests of what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool
from tasks.core.stage_results import StageResult
from tasks.job.request import Request, SavedPlans
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.run.run import execute_on, run
from tasks.stages.commit import RunReport


class Results(RunPlugin):
    """The results of the stages of a run."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def after(self, run: CurrentRun, result: StageResult) -> None:
        self.all.append(result)


class Report(RunPlugin):
    """Writes the report of a run, as the flow does."""

    def begin(self, run: CurrentRun) -> None:
        run.report = report_of(run.request)


def run_stages(
    request: Request, threads: int = 2, pool: Pool | None = None, plugins: Sequence[RunPlugin] = ()
) -> list[Any]:
    """Ingest to commit, on threads of this process or on a pool; the results of the stages.

    The outputs have no reports, a third of what a small run takes, unless `Report` is among the plugins.
    """
    results = Results()
    run(request, execute_on(pool or LocalPool(threads)), [results, *plugins])
    return results.all


def report_of(request: Request) -> RunReport:
    """What writes the report of a run, as the flow makes it."""
    from tasks.report.html import ReportWriter

    sections = request.sections
    job = {name: sections[name] for name in ("source", "output", "run")} | {"graph": request.graph}
    staging = request.staging
    return ReportWriter(
        staging.folder, staging.target, request.splits, lambda split: SavedPlans(request).plan(split), job,
        wanted=request.run.report,
    )  # fmt: skip
