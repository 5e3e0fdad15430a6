"""A fitted workflow over new data: ingest -> transform -> shuffle_write; nothing is learned."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow

from flows.job.form import with_form
from flows.job.job import Application, make_application
from flows.job.parameters import job_data
from flows.run.dry_run import show_dry_run
from flows.run.on_cluster import on_cluster
from flows.run.run_names import run_name
from flows.run.session import run_flow
from flows.run.work_of_job import date_of_this_run


@flow(name="apply", task_runner=on_cluster, persist_result=False, validate_parameters=False, flow_run_name=run_name)
def apply(
    fitted: str,
    source: dict[str, Any],
    output: dict[str, Any],
    cluster: dict[str, Any] | None = None,
    contract: dict[str, Any] | str | None = None,
    checks: dict[str, Any] | None = None,
    dry_run: bool = False,
    run: dict[str, Any] | None = None,
) -> list[str]:
    """Transform new data with what was learned before, shuffle and write them."""
    make = partial(make_application, job_data(locals()))
    if dry_run:
        show_dry_run(make(date_of_this_run), "apply")
        return []
    folders: list[str] = run_flow(make, "apply")
    return folders


with_form(apply, Application, source=("path", "format"))
