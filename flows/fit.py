"""Learning only: ingest -> statistics; saves a fitted workflow."""

from __future__ import annotations

from prefect import flow

from flows.job.form import with_form
from flows.job.job import Job
from flows.job.parameters import job_maker
from flows.run.dry_run import show_dry_run
from flows.run.on_cluster import on_cluster
from flows.run.run_names import run_name
from flows.run.session import run_flow, without_valid
from flows.run.work_of_job import date_of_this_run
from tasks.core.strict_json import JsonObject


@flow(name="fit", task_runner=on_cluster, persist_result=False, validate_parameters=False, flow_run_name=run_name)
def fit(
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
) -> str:
    """Learn what a job learns and save it as a fitted workflow, which `apply` and Workflow.load take."""
    make = job_maker(locals())
    if dry_run:
        show_dry_run(without_valid(make(date_of_this_run)), "fit")
        return ""
    done = run_flow(make, "fit")
    if not isinstance(done, list):
        return str(done)
    return str(done[-1]) if done else ""


with_form(
    fit,
    Job,
    texts={"source": "where the rows to learn from come from", "output": "Where the fitted workflow goes."},
    source=("path", "format", "filter"),
    output=("path", "on_existing"),
)
