"""A fitted workflow over new data: ingest -> transform -> shuffle_write; nothing is learned."""

from __future__ import annotations

from functools import partial

from prefect import flow

from flows.job.form import with_form
from flows.job.job import Application, make_application
from flows.job.parameters import job_data
from flows.run.dry_run import show_dry_run
from flows.run.on_cluster import on_cluster
from flows.run.run_names import run_name
from flows.run.session import run_flow
from flows.run.work_of_job import date_of_this_run
from tasks.core.strict_json import JsonObject


@flow(name="apply", task_runner=on_cluster, persist_result=False, validate_parameters=False, flow_run_name=run_name)
def apply(
    fitted: str,
    source: JsonObject,
    output: JsonObject,
    cluster: JsonObject | None = None,
    contract: JsonObject | str | None = None,
    checks: JsonObject | None = None,
    dry_run: bool = False,
    run: JsonObject | None = None,
) -> list[str]:
    """Transform new data with what was learned before, shuffle and write them."""
    make = partial(make_application, job_data(locals()))
    if dry_run:
        show_dry_run(make(date_of_this_run), "apply")
        return []
    folders: list[str] = run_flow(make, "apply")
    return folders


with_form(apply, Application, source=("path", "format"))
