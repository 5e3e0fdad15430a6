"""The main job: ingest -> statistics -> transform -> shuffle_write."""

from __future__ import annotations

import logging

from prefect import flow

from flows.job.form import with_form
from flows.job.job import Job
from flows.job.parameters import job_maker
from flows.run.dry_run import show_dry_run
from flows.run.on_cluster import on_cluster
from flows.run.run_names import run_name
from flows.run.session import run_flow
from flows.run.work_of_job import date_of_this_run
from tasks.core.strict_json import JsonObject


@flow(
    name="preprocess", task_runner=on_cluster, persist_result=False, validate_parameters=False, flow_run_name=run_name
)
def preprocess(
    recipe: str | None = None,
    job: str | None = None,
    source: JsonObject | None = None,
    features: list[JsonObject] | str | None = None,
    label: list[str] | None = None,
    output: JsonObject | None = None,
    base: str | None = None,
    refit: JsonObject | None = None,
    cluster: JsonObject | None = None,
    contract: JsonObject | str | None = None,
    checks: JsonObject | None = None,
    dry_run: bool = False,
    run: JsonObject | None = None,
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
