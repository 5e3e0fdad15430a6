"""The main job: ingest -> statistics -> transform -> shuffle_write."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client
from prefect import flow, get_client, get_run_logger
from prefect.client.schemas.objects import FlowRun, StateDetails
from prefect.context import FlowRunContext, TagsContext
from prefect.states import Completed, Crashed, State

from flows import history, look
from flows.alive import signs_of_life
from flows.deployed import check_lasting
from flows.form import job_form, with_form
from flows.job import Application, Job
from flows.links import links, links_of_this_run, run_page
from flows.lost import Workers, in_every_attempt, workers_of
from flows.naming import run_name
from flows.parameters import job_of
from flows.ready import check_workers
from flows.sample import make_sample
from flows.shown import all_shown, show
from flows.stopping import mark_task_run, stop_stage
from flows.watch import tell
from infra.clusters import prepare
from infra.encryption import security_of
from infra.runner import runner, use_cluster
from infra.task_settings import TaskSettings
from tasks import run, stage, stalls
from tasks.commit import read_json
from tasks.errors import GiveUpError
from tasks.exchange import release
from tasks.failed_casts import sentence
from tasks.manifest import Manifest
from tasks.reading_notes import FOLDER, listed, notes_left
from tasks.report.making import Making
from tasks.run import Request

Summary = dict[str, Any]
RECORDED_SECONDS = 5.0  # in which the server usually hears of a task run
NO_WORKERS_SECONDS = 60.0
STALLED_SECONDS = 300.0
WAKE_SECONDS = 0.5
MADE_UP = "made-up-data"  # tag of a run; infra/automations.yaml looks at it, too


COMMITTED: list[str] = []  # what the last run of this process has committed, for a command whose server has gone
on_cluster: Any = runner()  # Prefect's own types know its thread and process runners only


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
    cluster: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    dry_run: bool = False,
) -> list[str]:
    """Turn raw interaction logs into shuffled, encoded, committed training data.

    Args:
        recipe: A job to start from, as shipped. What is left empty below stays as the recipe has it.
        job: A job file to start from, on the host of the worker. What is left empty below stays as it has it.
        source: Where the rows come from. More keys as JSON, from the menu of this field: columns, header, schema,
            null_values, delimiter, partition_size, keys, sort_by, sample, storage_options.
        features: Which columns go through which operators. YAML, an entry per line that begins with a dash:
            "- {columns: [x, y], ops: [{op: FillMissing, fill_value: 0}, {op: Normalize}]}".
        label: Columns that are written last, as they are, and tagged as target.
        output: Where the rows go, in which order and in how many files. More keys as JSON: rows_per_file,
            files_per_worker, format, compression, row_group_size, keys, sort_by, partition_on.
        cluster: The workers that do it. More keys as JSON: threads_per_worker, memory_limit, visible_devices,
            adapt, resources, tls, ssh, slurm, kubernetes.
        run: How it is done, as JSON: exchange, scratch, retries, stalled_after, min_partition_size, lock,
            report.
        dry_run: Only look: columns, rows before and after, plan, needs and time, as an artifact; nothing is written.
    """
    given = {
        "recipe": recipe,
        "job": job,
        "source": source,
        "features": features,
        "label": label,
        "output": output,
        "cluster": cluster,
        "run": run,
    }
    whole = job_of(given)
    return looked_at(whole) if dry_run else run_job(whole)


with_form(preprocess, job_form())


def looked_at(job: Job | Application, flow: str = "preprocess") -> list[str]:
    """Instead of a run: its preview as an artifact; no folder was committed."""
    look.dry_run(job, flow)
    return []


def run_job(job: Job) -> list[str]:
    """All stages of a job in the current flow run; returns the folders that were committed."""
    with started(job, job.request(job.cluster.resolved().engine)) as request:
        make_samples(job)
        done = [ingested(job, request), run_stage(stage.statistics, job, request)]
        return write_out(job, request, done)


@contextmanager
def started(job: Job | Application, request: Request) -> Iterator[Request]:
    """The request with the lock of its output, which may be written; what is left on a scheduler is released."""
    COMMITTED.clear()
    staging = request.staging
    check_lasting(staging.target, "output.path")
    check_lasting(staging.folder, "run.scratch")
    prepare(job.cluster)
    use_cluster(job.cluster)
    staging.check(job.output.on_existing)
    waits = job.run.lock == "wait"
    _done.set(None)
    with (
        signs_of_life(str(staging.target)),
        TaskSettings.current(),
        links_of_this_run(),
        all_shown(),
        staging.locked(wait=waits) as owner,
        _released(job, request),
    ):
        staging.check(job.output.on_existing)  # again: what was waited for, or mended, may stand there now
        yield replace(request, owner=owner)


def ingested(job: Job | Application, request: Request) -> Summary:
    """The stage ingest; what people must know of the source is a warning."""
    log, summary = get_run_logger(), run_stage(stage.ingest, job, request)
    if summary.get("made_up"):
        mark_made_up()
        log.warning("made-up data: %s", summary["made_up"])
    if "left_out" in summary:
        log.warning("left out, since the source lacks their columns: %s", summary["left_out"])
    if "differs_from_fit" in summary:
        log.warning("different from the fit: %s", summary["differs_from_fit"])
    return summary


def mark_made_up() -> None:
    """Tag the run, for its page and for whoever is notified: its data are made up."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or MADE_UP in run.tags:
        return
    run.tags = [*run.tags, MADE_UP]
    with stage.fresh_client(), get_client(sync_client=True) as client:
        client.update_flow_run(run.id, tags=run.tags)


def write_out(job: Job | Application, request: Request, done: list[Summary]) -> list[str]:
    """transform and shuffle_write of every split, then the commit of all; the folders that were committed."""
    log = get_run_logger()
    report = Making(request, job.model_dump(mode="json", by_alias=True, exclude_unset=True), run_page())
    with run.Closing(request, report) as closing:
        for split in request.splits:
            done.append(run_stage(stage.transform, job, request, split))
            done.append(run_stage(stage.shuffle_write, job, request, split))
        retries, shown = {s["stage"]: s["retries"] for s in done}, links()
        report.performance = shown.performance() if shown else ""
        manifests = run.commit(request, done, _run_id(), retries, closing)
    COMMITTED[:] = [m.path for m in manifests]
    history.record(request, done, getattr(job, "recipe", None))
    if shown:
        shown.show_reports(manifests)
    for manifest in manifests:
        log.info("committed %s rows in %s files to %s", f"{manifest.rows['out']:,}", len(manifest.parts), manifest.path)
        if text := manifest.empty_files:
            log.warning("%s", text)
    return [m.path for m in manifests]


def run_stage(function: Any, job: Job | Application, request: Request, split: str | None = None) -> Summary:
    """Run a stage; when its worker is lost, mark that attempt as crashed and run it again, `run.retries` times.

    Prefect's own retries answer exceptions; a killed worker leaves its task run Running for ever unless the flow says
    so.
    """
    log = get_run_logger()
    name = function.name + (f" {split}" if split else "")
    attempts = job.run.retries + 1
    check_workers(job, request, function.name)
    before, files = Workers(0, 0, 0), notes_left(request.staging.folder / FOLDER)  # those of an earlier run, if any
    for attempt in range(attempts):
        runnable = function.with_options(
            retries=job.run.retries, task_run_name=f"{name}{f' again {attempt}' if attempt else ''}"
        )
        with untagged():
            future = runnable.submit(request, split, job.cluster.resources.get(function.name), wait_for=stages_before())
        links(future.wrapped_future.client, request.key, job.run.performance_report)
        before = before if attempt else workers_of(future.wrapped_future.client, request.engine)
        try:
            wait_for(future, name, job.run.stalled_after)
            summary = future.result()
        except stage.LOST as error:
            _mark_crashed(future.task_run_id, error, runnable)
            files = notes_left(request.staging.folder / FOLDER)
            read = f" while it read {listed(files)}" if files else ""
            log.warning("a worker was lost during %s (attempt %s of %s)%s", name, attempt + 1, attempts, read)
        except stalls.NotBegunError as error:
            _mark_crashed(future.task_run_id, error, runnable)
            log.warning("%s (attempt %s of %s)", error, attempt + 1, attempts)
            if attempt + 1 == attempts:
                raise
        except GiveUpError as error:
            if future.wrapped_future.status == "pending":
                _mark_crashed(future.task_run_id, error, runnable)
            raise
        except Exception:
            raise
        except BaseException:  # Ctrl-C, SIGTERM, a cancel
            stop_stage(future.task_run_id)
            raise
        else:
            summary["retries"] += attempt
            show(summary.pop("shown"), summary.pop("progress"), future.task_run_id)
            last = "statistics" if request.flow == "fit" else "transform"  # of the stages that make the same columns
            for failed in summary.get("failed_casts", []) if summary["stage"] == last else ():
                log.warning(sentence(failed))
            tell(summary)
            _done.set(future.task_run_id)
            return summary
        finally:
            future.wrapped_future.release()  # a result that is held and lost with its worker would be made again
            del future
    raise in_every_attempt(name, attempts, before, files)


_done: ContextVar[uuid.UUID | None] = ContextVar("stage_that_is_done", default=None)


def stages_before() -> list[State]:
    """What a stage follows in the run's graph: the state of the stage before it, without its future, whose result would
    be made again with a worker that is lost."""
    before = _done.get()
    return [Completed(data=True, state_details=StateDetails(task_run_id=before))] if before else []


def untagged() -> TagsContext:
    """No tags for task runs in this block, the flow run has them: Prefect asks for a slot of each tag of a task run
    over a connection that the server has closed by then, and waits two seconds before it asks again."""
    return TagsContext(current_tags=set())


def wait_for(future: Any, name: str, stalled_after: float = STALLED_SECONDS) -> None:
    """Until the stage is done; GiveUpError when there has been no worker for `NO_WORKERS_SECONDS`, NotBegunError when
    there are some, but for `stalled_after` seconds none has begun with it, nor done anything else.

    A signal that comes as this thread is about to wait, or to another thread, does not end the wait: Python looks for
    it when the wait is over, so that each one is short.
    """
    client, context = future.wrapped_future.client, FlowRunContext.get()
    cluster = getattr(context.task_runner, "_cluster", None) if context else None
    looked = alone = checked = time.monotonic()
    key = future.wrapped_future.key
    begins = stalls.Stall(client, lambda: [key] * (not client.run_on_scheduler(stalls.has_begun, key)), stalled_after)
    while future.wrapped_future.status == "pending":
        future.wait(timeout=WAKE_SECONDS)
        now = time.monotonic()
        if now - checked >= begins.every and client.status == "running":
            checked = now
            stalls.expect_workers(client, cluster, 2 * begins.every)
            if facts := begins.check():
                client.cancel([future.wrapped_future], force=True)
                raise stalls.stood_still(name, stalled_after, facts, stalls.NotBegunError)
        if now - looked < NO_WORKERS_SECONDS / 6:
            continue
        looked = now
        if client.status == "running" and client.scheduler_info(n_workers=-1)["workers"]:
            alone = looked
        elif looked - alone > NO_WORKERS_SECONDS:
            raise GiveUpError(
                f"no worker is left for {name}",
                why=f"there has been none for {NO_WORKERS_SECONDS:.0f} s",
                do="start workers again, then run the same job again: what is done is kept",
            )


@contextmanager
def _released(job: Job | Application, request: Request) -> Iterator[None]:
    """A scheduler that somebody else runs keeps nothing of ours, however the run ends."""
    try:
        yield
    finally:
        if job.cluster.kind == "address":
            security = security_of(job.cluster)
            known = {"security": security, "set_as_default": False, "timeout": "8s"}
            with suppress(OSError), Client(job.cluster.address, **known) as client:
                release(client, run.exchange_prefix(request.staging))


def _mark_crashed(task_run_id: uuid.UUID, error: Exception, task: Any) -> None:
    mark_task_run(task_run_id, Crashed(message=f"the worker was lost: {error}"), RECORDED_SECONDS, task)


def make_samples(job: Job) -> None:
    """Look-alike data for `source.sample` where nothing is at `source.path` yet, or where a run was cut off making
    it."""
    log, sample = get_run_logger(), job.source.sample
    paths = [(n, p) for n, p in enumerate((job.source.path, job.source.valid)) if isinstance(p, str)]
    for number, path in paths:
        folder = Path(path)
        if sample and (sample.valid or not number) and not any(c in path for c in "*?[") and "://" not in path:
            rows = sample.rows if number == 0 else max(1, sample.rows // 5)
            begun = read_json(folder / "_sample.json") or {}
            if not folder.exists() or (begun.get("rows"), begun.get("seed")) == (rows, sample.seed + number):
                log.info("making %s look-alike rows of %s in %s", f"{rows:,}", sample.name, folder)
                make_sample(sample.name, folder, rows, sample.seed + number, columns=sample.columns)
                mark_made_up()


def _run_id() -> str:
    context = FlowRunContext.get()
    return str(context.flow_run.id) if context and isinstance(context.flow_run, FlowRun) else ""


def load_outputs(folders: list[str]) -> list[Manifest]:
    return [Manifest.load(folder) for folder in folders]


logging.getLogger("distributed.shuffle").setLevel(logging.ERROR)
