"""New rows on top of what an output has learned: ingest -> statistics -> transform -> shuffle_write."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow

from flows.job.form import refit_form, with_form
from flows.job.parameters import job_data
from flows.job.refit_job import Refit, make_refit
from flows.preview.dry_run import show_preview
from flows.run.artifacts import write_markdown
from flows.run.nights import date_of_this_run, run_in_order
from flows.run.run_names import run_name
from flows.run.session import committing, ingested, learned, on_cluster, publish_outputs, started, transformed
from flows.run.stages import run_stage
from flows.run.worker_imports import worker_imports
from infra.clusters.resolve import resolved
from tasks.core.stage_results import StageResult
from tasks.stages import task


@flow(name="refit", task_runner=on_cluster, persist_result=False, validate_parameters=False, flow_run_name=run_name)
def refit(
    base: str,
    source: dict[str, Any],
    output: dict[str, Any] | None = None,
    refit: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    contract: dict[str, Any] | str | None = None,
    checks: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    dry_run: bool = False,
) -> list[str]:
    """Learn from new rows on top of what an output has learned, and write these rows: ids stay, new values come behind.

    Args:
        base: An output of earlier runs. Its newest good version is learned on top of, with its features.
        source: Where the new rows come from. More keys as JSON, from the menu of this field: columns, header,
            delimiter, storage_options, and null_values, schema, strict, keys, sort_by. What is not given is as in the
            base.
        output: Where the rows go, in which order and in how many files; a new version of the base if empty, in the
            order and the files of the base. More keys as JSON: rows_per_file, files_per_worker, format, compression,
            row_group_size, keys, sort_by, partition_on.
        refit: How to go on from the base. More keys as JSON: an operator or an entry with merge or freeze, such as
            {"Normalize": "freeze", "features[2]": "merge"}.
        cluster: The workers that do it. More keys as JSON: threads_per_worker, memory_limit, visible_devices,
            adapt, resources, tls, ssh, slurm, kubernetes.
        contract: What the source has to be like, as JSON, or the YAML file that says it; that of the base if empty.
        checks: What follows when a night differs from its contract or from earlier nights: on_finding, and
            {threshold, level, columns} by check as JSON. What is not given is as in the base.
        run: Which date it is of, and how it is done. More keys as JSON: exchange, scratch, retries, stalled_after,
            min_partition_size, lock, report.
        dry_run: Only look: columns, rows before and after, plan, needs and time, as an artifact; nothing is written.
    """
    parameters = {
        "base": base, "source": source, "output": output, "refit": refit, "cluster": cluster,
        "contract": contract, "checks": checks, "run": run,
    }  # fmt: skip
    make = partial(make_refit, job_data(parameters))
    if dry_run:
        show_preview(make(date_of_this_run), write_markdown, "refit")
        return []
    folders: list[str] = run_in_order(make, run_refit)
    return folders


with_form(refit, refit_form())


def run_refit(job: Refit) -> list[str]:
    """Run the four stages in the current flow run; return the folder that is committed."""
    with started(job, job.request(resolved(job.cluster).engine), worker_imports("flows.refit")) as request:
        results: list[StageResult] = [ingested(job, request), learned(job, request)]
        with committing(job, request) as closing:
            for split in request.splits:
                results.append(transformed(job, request, split))
                results.append(run_stage(task.shuffle_write, job, request, split))
            return publish_outputs(job, request, results, closing)
