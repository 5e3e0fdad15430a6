"""New rows on top of what an output has learned: ingest -> statistics -> transform -> shuffle_write."""

from __future__ import annotations

from functools import partial

from prefect import flow

from flows.job.form import with_form
from flows.job.parameters import job_data
from flows.job.refit_job import Refit, make_refit
from flows.run.dry_run import show_dry_run
from flows.run.on_cluster import on_cluster
from flows.run.run_names import run_name
from flows.run.session import run_flow
from flows.run.work_of_job import date_of_this_run
from tasks.core.strict_json import JsonObject


@flow(name="refit", task_runner=on_cluster, persist_result=False, validate_parameters=False, flow_run_name=run_name)
def refit(
    base: str,
    source: JsonObject,
    output: JsonObject | None = None,
    refit: JsonObject | None = None,
    cluster: JsonObject | None = None,
    contract: JsonObject | str | None = None,
    checks: JsonObject | None = None,
    dry_run: bool = False,
    run: JsonObject | None = None,
) -> list[str]:
    """Learn from new rows on top of what an output has learned, and write them: ids stay, new values are appended."""
    make = partial(make_refit, job_data(locals()))
    if dry_run:
        show_dry_run(make(date_of_this_run), "refit")
        return []
    folders: list[str] = run_flow(make, "refit")
    return folders


with_form(refit, Refit, source=("path", "format", "filter"))
