"""The main job: ingest -> statistics -> transform -> shuffle_write."""

from __future__ import annotations

import logging
from typing import Any

from prefect import flow

from flows.job.form import job_form, with_form
from flows.job.job import Job
from flows.job.parameters import job_maker
from flows.preview.dry_run import show_preview
from flows.run.artifacts import write_markdown
from flows.run.nights import date_of_this_run, run_in_order
from flows.run.run_names import run_name
from flows.run.session import (
    committing,
    ingested,
    learned,
    make_samples,
    on_cluster,
    publish_outputs,
    started,
    transformed,
)
from flows.run.stages import run_stage
from flows.run.worker_imports import worker_imports
from infra.clusters.resolve import resolved
from tasks.stages import task


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
    run: dict[str, Any] | None = None,
    dry_run: bool = False,
) -> list[str]:
    """Turn raw interaction logs into shuffled, encoded, committed training data.

    Args:
        recipe: A job to start from, as shipped. What is left empty below stays as the recipe has it.
        job: A job file to start from, on the host of the worker, or the text of a job, such as a draft. What is left
            empty below stays as it has it.
        source: Where the rows come from. More keys as JSON, from the menu of this field: columns, header, schema,
            null_values, missing, delimiter, quote, escape, comment, skip_rows, skip_initial_space, bad_lines, decimal,
            encoding, partition_size, keys, sort_by, strict, unique, split, downsample, sample, storage_options.
        features: Which columns go through which operators. YAML, an entry per line that begins with a dash:
            "- {columns: [x, y], ops: [{op: FillMissing, fill_value: 0}, {op: Normalize}]}". Or the text of a
            whole job, such as a draft of `rowmill new`: what is left empty stays as it has it.
        label: Columns that are written last, as they are, and tagged as target.
        output: Where the rows go, in which order and in how many files. More keys as JSON: rows_per_file,
            files_per_worker, format, compression, row_group_size, keys, sort_by, partition_on.
        base: An output whose newest good version is learned on top of: its ids stay, new values come behind them.
            Mostly the path of the output itself; none: learn from the source alone.
        refit: How to go on from the base. More keys as JSON: an operator or an entry with merge or freeze, such as
            {"Normalize": "freeze", "features[2]": "merge"}.
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
        "recipe": recipe,
        "job": job,
        "source": source,
        "features": features,
        "label": label,
        "output": output,
        "base": base,
        "refit": refit,
        "cluster": cluster,
        "contract": contract,
        "checks": checks,
        "run": run,
    }
    make = job_maker(parameters)
    if dry_run:
        show_preview(make(date_of_this_run), write_markdown)
        return []
    folders: list[str] = run_in_order(make, run_job)
    return folders


with_form(preprocess, job_form())


def run_job(job: Job) -> list[str]:
    """Run the four stages of a job in the current flow run; return the folders that are committed."""
    with started(job, job.request(resolved(job.cluster).engine), worker_imports("flows.preprocess")) as request:
        make_samples(job)
        results = [ingested(job, request), learned(job, request)]
        with committing(job, request) as closing:
            for split in request.splits:
                results.append(transformed(job, request, split))
                results.append(run_stage(task.shuffle_write, job, request, split))
            return publish_outputs(job, request, results, closing)


logging.getLogger("distributed.shuffle").setLevel(logging.ERROR)
