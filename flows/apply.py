"""A fitted workflow over new data: ingest -> transform -> shuffle_write; nothing is learned."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow

from flows.job.form import application_form, with_form
from flows.job.job import Application, make_application
from flows.job.parameters import job_data
from flows.preview.dry_run import show_preview
from flows.run.artifacts import write_markdown
from flows.run.nights import date_of_this_run, run_in_order
from flows.run.run_names import run_name
from flows.run.session import committing, ingested, on_cluster, publish_outputs, started, transformed
from flows.run.stages import run_stage
from flows.run.worker_imports import worker_imports
from infra.clusters.resolve import resolved
from tasks.core.stage_results import StageResult
from tasks.stages import task


@flow(name="apply", task_runner=on_cluster, persist_result=False, validate_parameters=False, flow_run_name=run_name)
def apply(
    fitted: str,
    source: dict[str, Any],
    output: dict[str, Any],
    cluster: dict[str, Any] | None = None,
    contract: dict[str, Any] | str | None = None,
    checks: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    dry_run: bool = False,
) -> list[str]:
    """Transform new data with what was learned before, shuffle and write them.

    Args:
        fitted: Folder of a fitted workflow, or the output of a run, which holds one.
        source: Where the new rows come from. More keys as JSON, from the menu of this field: columns, header,
            delimiter, storage_options, and null_values, schema, filter, strict, keys, sort_by. What is not given is as
            in the fit, of header, columns and delimiter where the files have its format.
        output: Where the rows go, in which order and in how many files. More keys as JSON: rows_per_file,
            files_per_worker, format, compression, row_group_size, keys, sort_by, partition_on.
        cluster: The workers that do it. More keys as JSON: threads_per_worker, memory_limit, visible_devices,
            adapt, resources, tls, ssh, slurm, kubernetes.
        contract: What the source has to be like, as JSON, or the YAML file that says it.
        checks: What follows when a night differs from its contract or from earlier nights: on_finding, and
            {threshold, level, columns} by check as JSON.
        run: Which date it is of, and how it is done. More keys as JSON: exchange, scratch, retries, stalled_after,
            min_partition_size, lock, report, ready_by.
        dry_run: Only look: columns, rows before and after, plan, needs and time, as an artifact; nothing is written.
    """
    parameters = {
        "fitted": fitted,
        "source": source,
        "output": output,
        "cluster": cluster,
        "contract": contract,
        "checks": checks,
        "run": run,
    }
    make = partial(make_application, job_data(parameters))
    if dry_run:
        show_preview(make(date_of_this_run), write_markdown, "apply")
        return []
    folders: list[str] = run_in_order(make, run_apply)
    return folders


with_form(apply, application_form())


def run_apply(job: Application) -> list[str]:
    """Run the three stages in the current flow run; return the folder that is committed."""
    with started(job, job.request(resolved(job.cluster).engine), worker_imports("flows.apply")) as request:
        results: list[StageResult] = [ingested(job, request)]
        with committing(job, request) as closing:
            for split in request.splits:
                results.append(transformed(job, request, split))
                results.append(run_stage(task.shuffle_write, job, request, split))
            return publish_outputs(job, request, results, closing)
