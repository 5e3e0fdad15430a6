"""The stages of a job one after another, without Prefect, for tests of what they do."""

from __future__ import annotations

from typing import Any

from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool
from tasks.job.request import PlanOf, Request
from tasks.report.html import ReportWriter
from tasks.stages import commit, ingest, shuffle_write, statistics, transform


def run_stages(request: Request, threads: int = 2, pool: Pool | None = None) -> list[Any]:
    """Ingest to commit, on threads of this process or on a pool; the results of the stages."""
    pool = pool or LocalPool(threads)
    with request.staging.locked():
        results: list[Any] = [ingest.ingest(request, pool)]
        if not request.fitted:
            results.append(statistics.statistics(request, pool))
        for split in request.splits:
            results.append(transform.transform(request, split, pool))
            results.append(shuffle_write.shuffle_write(request, split, pool))
        with commit.Closing(request, report_of(request)) as closing:
            commit.commit(request, results, closing=closing)
    return results


def report_of(request: Request) -> ReportWriter:
    """What writes the report of a run, as the flow makes it."""
    sections = request.sections
    job = {name: sections[name] for name in ("source", "output", "run")} | {"graph": request.graph}
    staging = request.staging
    return ReportWriter(
        staging.folder, staging.target, request.splits, lambda split: PlanOf(request).plan(split), job,
        wanted=request.run.report,
    )  # fmt: skip
