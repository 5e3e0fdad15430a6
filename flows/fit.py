"""Learning only: ingest -> statistics; saves a fitted workflow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefect import flow, get_run_logger

from flows.job import run_history
from flows.job.form import job_form, with_form
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
    run: dict[str, Any] | None = None,
    dry_run: bool = False,
) -> str:
    """Learn what a job learns and save it as a fitted workflow, which `apply` and Workflow.load take.

    Args:
        recipe: A job to start from, as shipped. What is left empty below stays as the recipe has it.
        job: A job file to start from, on the host of the worker, or the text of a job, such as a draft. What is left
            empty below stays as it has it.
        source: Where the rows to learn from come from. More keys as JSON, from the menu of this field: columns, header,
            schema, null_values, missing, delimiter, quote, escape, comment, skip_rows, skip_initial_space, bad_lines,
            decimal, encoding, partition_size, keys, sort_by, strict, unique, split, downsample, sample,
            storage_options.
        features: Which columns go through which operators. YAML, an entry per line that begins with a dash:
            "- {columns: [x, y], ops: [{op: FillMissing, fill_value: 0}, {op: Normalize}]}". Or the text of a
            whole job, such as a draft of `rowmill new`: what is left empty stays as it has it.
        label: Columns that are written last and tagged as target.
        output: Where the fitted workflow goes.
        base: An output whose newest good version is learned on top of: its ids stay, new values come behind them.
            Mostly the path of the output itself; none: learn from the source alone.
        refit: How to go on from the base. More keys as JSON: an operator or an entry with merge or freeze, such as
            {"Normalize": "freeze", "features[2]": "merge"}.
        cluster: The workers that do it. More keys as JSON: threads_per_worker, memory_limit, visible_devices,
            adapt, resources, tls, ssh, slurm, kubernetes.
        contract: What the source has to be like, as JSON, or the YAML file that says it.
        checks: What follows when a night differs from its contract or from earlier nights: on_finding, and
            {threshold, level, columns} by check as JSON.
        run: Which date it is of, and how it is done. More keys as JSON: scratch, retries, stalled_after,
            min_partition_size, lock.
        dry_run: Only look: columns, rows before and after, plan, needs and time, as an artifact; nothing is written.
    """
    parameters = {
        "recipe": recipe, "job": job, "source": source, "features": features, "label": label,
        "output": output, "base": base, "refit": refit, "cluster": cluster, "contract": contract, "checks": checks,
        "run": run,
    }  # fmt: skip
    make = job_maker(parameters)
    if dry_run:
        show_preview(without_valid(make(date_of_this_run)), write_markdown, "fit")
        return ""
    done = run_in_order(make, lambda job: [run_fit(job)])
    return str(done[-1]) if isinstance(done, list) else done


with_form(fit, job_form(source=("path", "format", "filter"), output=("path", "on_existing")))


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
