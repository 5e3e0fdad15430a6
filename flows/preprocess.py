"""The main job: ingest -> statistics -> transform -> shuffle_write."""

from __future__ import annotations

import logging
from typing import Any

from prefect import flow

from flows.job.form import with_form
from flows.job.job import Job
from flows.job.parameters import job_maker
from flows.run.dry_run import show_dry_run
from flows.run.on_cluster import on_cluster
from flows.run.run_names import run_name
from flows.run.session import run_flow
from flows.run.work_of_job import date_of_this_run


@flow(
    name="preprocess", task_runner=on_cluster, persist_result=False, validate_parameters=False, flow_run_name=run_name
)
def preprocess(
    recipe: str | None = None,
    job: str | None = None,
    source: dict[str, Any] | None = None,
    features: list[dict[str, Any]] | str | None = None,
    label: list[str] | None = None,
    output: dict[str, Any] | None = None,
    base: str | None = None,
    refit: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    contract: dict[str, Any] | str | None = None,
    checks: dict[str, Any] | None = None,
    dry_run: bool = False,
    run: dict[str, Any] | None = None,
) -> list[str]:
    """Turn raw interaction logs into shuffled, encoded, committed training data."""
    make = job_maker(locals())
    if dry_run:
        show_dry_run(make(date_of_this_run), "preprocess")
        return []
    folders: list[str] = run_flow(make, "preprocess")
    return folders


with_form(preprocess, Job)


logging.getLogger("distributed.shuffle").setLevel(logging.ERROR)
