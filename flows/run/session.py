"""What surrounds the stages of a run: its cluster, its staging folder, its samples, what it returns at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client
from prefect import get_client, get_run_logger
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from flows.job import run_history
from flows.job.deployed import check_lasting
from flows.job.job import Application, Job, absolute
from flows.job.ready_by import deadline
from flows.job.refit_job import AnyJob, Refit
from flows.published.collector_files import check_files_beside
from flows.published.observed_run import ObservedRun
from flows.published.observers import observed
from flows.published.outbox import deliver
from flows.run.artifacts import all_shown
from flows.run.gate import gate_of, pass_gate
from flows.run.late import ready_in_time
from flows.run.links import links, links_of_this_run, run_page
from flows.run.listeners import listening, work_in
from flows.run.nights import NoDataError, PublishedError, check_source, empty, has_date, needs_rows, note_night
from flows.run.questions import settle_question
from flows.run.signs_of_life import signs_of_life
from flows.run.stages import run_stage, stages_of_this_run
from flows.sample import make_sample
from infra.clusters.encryption import security_of
from infra.clusters.local import prepare
from infra.clusters.resolve import stage_engines
from infra.environment import keep_on_without_reader
from infra.orchestration.task_runner import runner, use_cluster
from infra.orchestration.task_settings import TaskSettings
from infra.workers.imports import WorkerImports
from tasks.core.settings import collector_file
from tasks.core.stage_results import IngestResult, StageResult, StatisticsResult, TransformResult
from tasks.core.versions import rowmill_version
from tasks.errors import JobError
from tasks.job.base_version import (
    check_not_discarded,
    is_published,
    newest_good,
    nights_text,
    other_ids_text,
    set_aside,
    why_no_base,
)
from tasks.job.refitting import LEARN_FROM, matched_to_base
from tasks.job.request import PlanOf, Request
from tasks.learning.refit_modes import mode_lines
from tasks.manifest import Manifest
from tasks.report.html import ReportWriter
from tasks.shuffle.memory_exchange import release
from tasks.sources.planning import NoRowsError, NoValidationRowsError
from tasks.stages import commit, progress_artifact, reuse, task
from tasks.stages.statistics import modes_of
from tasks.storage.files import is_remote
from tasks.storage.files_being_read import OpenFolder, open_outputs
from tasks.storage.sample_data import marker

MADE_UP = "made-up-data"  # tag of a run; infra/automations.yaml looks at it, too


OPENED: list[OpenFolder] = []  # the outputs that the run of this process reads
COMMITTED: list[str] = []  # what the last run of this process has committed, for a command whose server has gone
on_cluster: Any = runner()  # Prefect's own types know its thread and process runners only
keep_on_without_reader()  # in every process that runs a flow


@contextmanager
def started(job: AnyJob, request: Request, imports: WorkerImports) -> Iterator[Request]:
    """The request with the lock of its output, which may be written; what is left on a scheduler is released."""
    COMMITTED.clear()
    staging = request.staging
    check_lasting(staging.target, "output.path")
    check_lasting(staging.folder, "run.scratch")
    for key in ("lineage", "metrics"):
        if path := collector_file(getattr(request.run, key) or ""):
            check_lasting(path, f"run.{key}")
    check_files_beside(request)
    work_in(staging.folder)
    prepare(job.cluster, imports)
    use_cluster(job.cluster, imports)
    staging.check(job.output.on_existing)
    waits = job.run.lock == "wait"
    with (
        signs_of_life(str(staging.target)),
        ready_in_time(request),
        TaskSettings.current(),
        links_of_this_run(),
        all_shown(),
        stages_of_this_run(),
        staging.locked(wait=waits) as owner,
        _released(job, request),
    ):
        settle_question(staging)
        note_night(job, staging)
        staging.check(job.output.on_existing)  # again: what was waited for, or fixed, may stand there now
        request = replace(request, stage_engines=dict(stage_engines(job.cluster)))
        observer = _observed(job, request)
        with listening(observer), observed(observer, harmless=(NoDataError, PublishedError)):
            observer.request = request = on_base(job, request.of_stage(request.planned_stage))
            yield replace(request, owner=owner)


def _observed(job: AnyJob, request: Request) -> ObservedRun:
    """The current flow run as its collectors hear of it."""
    context, name = FlowRunContext.get(), absolute(job.as_written()["output"]["path"])
    scheduled = context.flow_run.expected_start_time if context and context.flow_run else None
    flow, run = context.flow.name if context and context.flow else request.flow, request.run
    ready = deadline(run.ready_by, run.timezone, scheduled) if run.ready_by and scheduled else None
    return ObservedRun(request, name, flow, _run_id(), scheduled, ready, COMMITTED)


def on_base(job: AnyJob, request: Request) -> Request:
    """The request on top of the newest good version of the base, chosen by the owner of the output's lock; as it is
    for a job without a base, and for the first run of an output that is its own base.

    The log says which version it is, and which newer ones are damaged or discarded. A JobError where there is no base
    at another place than the output's; PublishedError where this very run has been published before it was cut off.
    """
    log = get_run_logger()
    if isinstance(job, Application):
        return request
    if job.base_path is None:
        if text := other_ids_text(request):
            log.warning("%s", text)
        return request
    root = job.base_path
    if job.output.keep_versions is not None:
        log.warning(
            "output.keep_versions: %s removes data: each version has only the rows of its own night",
            job.output.keep_versions,
        )
    choice = newest_good(root)
    for line in set_aside(choice, stops=job.checks.on_finding == "stop"):
        log.warning("not the base, since it is damaged: %s", line)
    if choice.on_discarded:
        log.warning("%s", choice.on_discarded)
    if choice.discarded:
        log.info("not the base, since discarded: %s", ", ".join(choice.discarded))
    staging, version = request.staging, choice.version
    if version is None:
        if not isinstance(job, Job) or (os.path.realpath(root) != str(staging.target) and not has_date(job, "base")):
            raise JobError(
                "there is no base",
                where=f"base: {root}",
                why=why_no_base(root),
                do="correct base; or, in a job for rowmill run, write base: none to learn from the source alone",
            )
        first = f"there is no base at {root} yet: this run is a fit and writes the first version of the output"
        log.warning("%s", choice.all_discarded(root) or first)
        return replace(request, no_base=True)
    if os.path.realpath(root) == str(staging.target):
        staging.point_to(version.path)  # a run that was cut off may not have come so far
        if is_published(request, version):
            log.info("%s was published by a run that was cut off right after: nothing is left to do", version.path)
            staging.clean()
            COMMITTED[:] = [str(version.path / split) if split else str(version.path) for split in request.splits]
            raise PublishedError([*COMMITTED])
    based = replace(job.request(request.engine, version), flow=request.flow, stage_engines=request.stage_engines)
    log.info("the base is %s: %s rows of %s", version.path, f"{version.learned_rows:,}", nights_text(version.data))
    if (written_by := version.data.get("rowmill")) != rowmill_version():
        log.info("the base was written by rowmill %s, this is %s", written_by, rowmill_version())
    if isinstance(job, Refit) and job.inherited:
        log.info("as in the base: %s", job.inherited)
    if not version.data.get("history"):
        log.warning("%s does not say which files it has learned: files that come again cannot be refused", version.path)
    for line in mode_lines({key: mode for key, mode in modes_of(based).items() if mode.mode == "frozen"}):
        log.warning("%s", line)
    return based


def ingested(job: AnyJob, request: Request) -> IngestResult:
    """Run the stage ingest, and log as warnings what people must know of the source."""
    log = get_run_logger()
    check_source(job, request)
    if isinstance(job, Job) and job.refit.learn_from and not request.changes_features:
        log.info(
            "refit.learn_from is not read: %s",
            "the base has the features of the job"
            if request.base
            else "there is no base, and all is learned from source.path",
        )
    try:
        result: IngestResult = run_stage(task.ingest, job, request)
    except NoRowsError as error:
        if needs_rows(job, "source.valid" if isinstance(error, NoValidationRowsError) else "source"):
            empty(job, f"{error.what}: {error.where}")
        raise
    taught = [LEARN_FROM] if request.base and request.base.learn_from else []
    plans = [PlanOf(request).plan(name) for name in (*request.plan_names, *taught)]
    OPENED[:] = open_outputs(file.path for plan in plans for file in plan.files if not is_remote(file.path))
    for line in changed_lines(request):
        log.warning("differs from the base: %s", line)
    if result.made_up:
        mark_made_up()
        log.warning("made-up data: %s", result.made_up)
    if result.left_out:
        log.warning("left out, since the source lacks their columns: %s", result.left_out)
    if result.differs_from_fit:
        log.warning("different from the %s: %s", "base" if request.base else "fit", result.differs_from_fit)
    if result.again:
        log.warning("%s files are learned once more: their rows count twice (refit.again)", f"{result.again:,}")
    if result.contract:
        log.warning("the contract: %s", result.contract)
    if result.united:
        log.warning("how columns are read: %s", result.united)
    if result.bad_lines_of:
        log.warning("%s", result.bad_lines_of)
    if result.repeated:
        log.info("source.unique leaves out %s: other rows have the same keys", result.repeated)
    if result.divided:
        log.info("source.split: %s", result.divided)
    return result


def changed_lines(request: Request) -> list[str]:
    """In what the features of a job differ from those of its base, and what becomes of each; [] where they do not."""
    changes = matched_to_base(request, PlanOf(request).plan(request.splits[0]).schema)
    return list(changes.lines) if changes else []


def learned(job: AnyJob, request: Request) -> StatisticsResult:
    """Run the stage statistics, and let the gate judge what it read: nothing is shuffled yet."""
    result: StatisticsResult = run_stage(task.statistics, job, request)
    check_not_discarded(request)
    if request.flow == "fit" and result.downsampled is not None:
        get_run_logger().info("source.downsample leaves out %s rows", f"{result.downsampled:,}")
    pass_gate(job, request, "statistics")
    return result


def transformed(job: AnyJob, request: Request, split: str) -> TransformResult:
    """Run the stage transform; a job whose source holds a date ends here where its filter leaves no row."""
    result: TransformResult = run_stage(task.transform, job, request, split)
    log = get_run_logger()
    if result.other_splits is not None:
        log.info("%s: %s rows belong to other splits (source.split)", split, f"{result.other_splits:,}")
    if result.null_in_train:
        log.warning("%s rows are in train since the column of source.split is null", f"{result.null_in_train:,}")
    if result.downsampled is not None:
        log.info("source.downsample leaves out %s rows", f"{result.downsampled:,}")
    if not result.rows_out and split in ("", "train") and needs_rows(job):
        request.staging.clean()
        empty(job, f"the filter leaves none of {result.rows:,} rows")
    return result


def mark_made_up() -> None:
    """Tag the run, for its page and for whoever is notified: its data are made up."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or MADE_UP in run.tags:
        return
    run.tags = [*run.tags, MADE_UP]
    with progress_artifact.fresh_client(), get_client(sync_client=True) as client:
        client.update_flow_run(run.id, tags=run.tags)


@contextmanager
def committing(job: AnyJob, request: Request) -> Iterator[commit.Closing]:
    """Prepare the commit of a run beside its last stages: the fitted workflow, and the report's look at the source."""
    report = ReportWriter(
        request.staging.folder,
        request.staging.target,
        request.splits,
        lambda split: PlanOf(request).plan(split),
        job.model_dump(mode="json", by_alias=True, exclude_unset=True),
        run_page(),
        wanted=request.run.report,
    )
    with commit.Closing(request, report) as closing:
        yield closing


def publish_outputs(
    job: AnyJob, request: Request, results: Sequence[StageResult], closing: commit.Closing
) -> list[str]:
    """Commit the outputs of all splits; return their folders."""
    log, shown = get_run_logger(), links()
    check_not_discarded(request)
    pass_gate(job, request, "commit")
    gate = gate_of(request)
    if closing.report and shown:
        closing.report.performance = shown.performance()
    contract = [str(Path(job.contract).absolute())] if isinstance(job.contract, str) else []
    manifests = commit.commit(request, results, _run_id(), closing, gate, contract)
    COMMITTED[:] = [m.path for m in manifests]
    deliver([request.staging.target])
    run_history.record(request, results, getattr(job, "recipe", None), _run_id())
    if shown:
        shown.show_reports(manifests)
    for manifest in manifests:
        log.info("committed %s rows in %s files to %s", f"{manifest.rows['out']:,}", len(manifest.parts), manifest.path)
        if text := manifest.empty_files:
            log.warning("%s", text)
    return [m.path for m in manifests]


@contextmanager
def _released(job: AnyJob, request: Request) -> Iterator[None]:
    """A scheduler that this run did not start keeps nothing of ours, and no output is held, however the run ends."""
    try:
        yield
    finally:
        OPENED.clear()
        if job.cluster.kind == "address":
            security = security_of(job.cluster)
            known = {"security": security, "set_as_default": False, "timeout": "8s"}
            with suppress(OSError), Client(job.cluster.address, **known) as client:
                release(client, reuse.exchange_prefix(request.staging))


def make_samples(job: Job) -> None:
    """Look-alike data for `source.sample` where nothing is at `source.path` yet, or where a run was cut off making
    it."""
    log, sample = get_run_logger(), job.source.sample
    paths = [(n, p) for n, p in enumerate((job.source.path, job.source.valid)) if isinstance(p, str)]
    for number, path in paths:
        folder = Path(path)
        if sample and (sample.valid or not number) and not any(c in path for c in "*?[") and "://" not in path:
            rows = sample.rows if number == 0 else max(1, sample.rows // 5)
            drift = sample.later and number > 0
            begun = marker(folder)
            if not folder.exists() or (begun.get("rows"), begun.get("seed")) == (rows, sample.seed + number):
                log.info("making %s look-alike rows of %s in %s", f"{rows:,}", sample.name, folder)
                make_sample(sample.name, folder, rows, sample.seed + number, drift=drift, columns=sample.columns)
                mark_made_up()


def _run_id() -> str:
    context = FlowRunContext.get()
    return str(context.flow_run.id) if context and isinstance(context.flow_run, FlowRun) else ""


def load_outputs(folders: list[str]) -> list[Manifest]:
    return [Manifest.load(folder) for folder in folders]
