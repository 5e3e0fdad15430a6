"""Learning only: ingest -> statistics; saves a fitted workflow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefect import flow, get_run_logger

from flows.job import run_history
from flows.job.form import with_form
from flows.job.job import Job
from flows.job.parameters import job_maker
from flows.preview.dry_run import show_preview
from flows.run.artifacts import write_markdown
from flows.run.gate import gate_of
from flows.run.nights import date_of_this_run, run_in_order
from flows.run.run_names import run_name
from flows.run.session import COMMITTED, ingested, learned, make_samples, on_cluster, started
from flows.run.worker_imports import worker_imports
from infra.clusters.resolve import resolved
from tasks.stages import commit


@flow(name="fit", task_runner=on_cluster, persist_result=False, validate_parameters=False, flow_run_name=run_name)
def fit(
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
) -> str:
    """Learn what a job learns and save it as a fitted workflow, which `apply` and Workflow.load take."""
    make = job_maker(locals())
    if dry_run:
        show_preview(without_valid(make(date_of_this_run)), write_markdown, "fit")
        return ""
    done = run_in_order(make, lambda job: [run_fit(job)])
    return str(done[-1]) if isinstance(done, list) else done


with_form(
    fit,
    Job,
    texts={"source": "where the rows to learn from come from", "output": "Where the fitted workflow goes."},
    source=("path", "format", "filter"),
    output=("path", "on_existing"),
)


def without_valid(job: Job) -> Job:
    """The job without its validation data, which teach nothing."""
    return job.model_copy(update={"source": job.source.model_copy(update={"valid": None})})


def run_fit(job: Job) -> str:
    """Run both stages of a fit in the current flow run; return the folder of the fitted workflow."""
    job = without_valid(job)
    request = replace(job.request(resolved(job.cluster).engine), flow="fit")
    with started(job, request, worker_imports("flows.fit")) as request:
        make_samples(job)
        results = [ingested(job, request), learned(job, request)]
        folder = commit.commit_fitted(request, gate_of(request))
        COMMITTED[:] = [folder]
        run_history.record(request, results, job.recipe)
    get_run_logger().info("the fitted workflow is in %s", folder)
    return folder
