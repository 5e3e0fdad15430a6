"""Checks before a stage that workers on other hosts can run it."""

from __future__ import annotations

from typing import Any

from prefect.context import FlowRunContext
from prefect.settings import get_current_settings

from flows.job.refit_job import AnyJob
from infra.clusters.reach import check_resources, check_shared
from tasks.job.request import Request
from tasks.storage.atomic import no_space

HERE = ("auto", "cuda", "cpu")


def check_workers(job: AnyJob, request: Request, stage: str) -> None:
    """Check that workers elsewhere offer the stage's resources, and before ingest those of all stages; that they
    share the run's folder and source.

    JobError names the worker's host and the path that is not shared, GiveUpError the resource that nobody offers.
    """
    context = FlowRunContext.get()
    if job.cluster.kind in HERE or context is None:
        return
    runner: Any = context.task_runner
    for name, needed in job.cluster.resources.items():
        if stage in (name, "ingest"):
            check_resources(runner.client, needed, name)
    if stage == "ingest":
        with no_space(request.staging.folder):
            check_shared(runner.client, request.staging.folder, request.source.paths, get_current_settings().api.url)
