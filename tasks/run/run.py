"""A run of a job: ingest, statistics, transform and shuffle_write, then one commit that publishes everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tasks.cluster.pool import Pool
from tasks.core.stage_results import IngestResult, StageResult
from tasks.graph.failed_casts import describe_record
from tasks.job.refitting import LEARN_FROM
from tasks.job.request import Request, SavedPlans
from tasks.manifest import Manifest
from tasks.run.plugin import CurrentRun, NothingToDoError, RunPlugin, UnfinishedError
from tasks.stages import commit, ingest, shuffle_write, statistics, transform
from tasks.storage.files import is_remote
from tasks.storage.files_being_read import open_outputs
from tasks.storage.output_mirror import address_of

WORK = {"ingest": ingest, "statistics": statistics, "transform": transform, "shuffle_write": shuffle_write}


class Execute(Protocol):
    """Does the work of a stage (of one split in transform and shuffle_write), and returns its result."""

    def __call__(self, stage: str, request: Request, split: str | None = None) -> StageResult: ...


def execute_on(pool: Pool) -> Execute:
    """Do the work of stages in this process, and that of partitions on a pool."""

    def execute(stage: str, request: Request, split: str | None = None) -> StageResult:
        work: Callable[..., StageResult] = getattr(WORK[stage], stage)
        splits = [] if split is None else [split]
        return work(request.of_stage(stage), *splits, pool)

    return execute


def run(
    request: Request, execute: Execute, plugins: Sequence[RunPlugin] = (), log: Any = None, run_id: str = ""
) -> list[Manifest]:
    """Do what a request asks for; return the manifests of the outputs, one for each split (none for a fit).

    `execute` does the work of each stage: here, or on the workers of a cluster. What else belongs to a run is a plugin.
    Work that an earlier start of the same request has finished is not repeated.

    The order in which things end, also when a run fails or is stopped:

    | what ends | when |
    |---|---|
    | the stage that runs | `execute` stops it before it lets the error pass |
    | the thread that prepares the commit | then: nothing writes to the staging folder any more |
    | the plugins (`ended`) | then, the last one first |
    | the hold on outputs that the run reads | then: they may be removed again |
    | the lock of the output | last: the next run finds nothing at work |

    Args:
        request: What to do, and where.
        execute: Does the work of a stage.
        plugins: What accompanies the run, in this order.
        log: Where the run says what people should know; rowmill's own log if None.
        run_id: The id of the flow run, for the manifests.

    Raises:
        JobError: The output must not be changed.
        NothingToDoError: A run that was cut off has published this work, or a plugin found that nothing is to be done.
    """
    staging = request.staging
    current = CurrentRun(request, run_id=run_id)
    if log is not None:
        current.log = log
    # Before the lock is waited for: what has_remains says may still change.
    staging.check(request.output.on_existing, staging.has_remains)
    with staging.hold_lock(wait=request.run.lock == "wait") as owner:
        # Again: the run that this one waited for may have published meanwhile. `resumes` is the earlier `has_remains`.
        staging.check(request.output.on_existing, staging.resumes)
        current.request = replace(request, owner=owner, resumes=staging.resumes)
        try:
            with accompany_run(current, plugins):
                _plan_and_learn(current, execute, plugins)
                if current.request.flow == "fit":
                    _publish_fitted(current, plugins)
                else:
                    _transform_and_publish(current, execute, plugins)
        finally:
            current.read_outputs.clear()
    return current.manifests


@contextmanager
def accompany_run(current: CurrentRun, plugins: Sequence[RunPlugin]) -> Iterator[None]:
    """Tell plugins that a run begins and, those that have let it begin, how it ended."""
    begun: list[RunPlugin] = []
    ended_by: BaseException | None = None
    try:
        for plugin in plugins:
            plugin.begin(current)
            begun.append(plugin)
        yield
    except BaseException as error:
        ended_by = error
        raise
    finally:
        for plugin in reversed(begun):
            with _log_plugin_error(current, plugin, "ended"):
                plugin.ended(current, ended_by)


@contextmanager
def _log_plugin_error(current: CurrentRun, plugin: RunPlugin, method: str) -> Iterator[None]:
    """Log an error of a plugin and go on: the event that the plugin was told of has happened all the same."""
    try:
        yield
    except Exception as error:
        name = type(plugin).__name__
        current.log.warning("%s of the plugin %s: %s: %s", method, name, type(error).__name__, error)


def _plan_and_learn(current: CurrentRun, execute: Execute, plugins: Sequence[RunPlugin]) -> None:
    """Plan the source, and learn from it unless the run applies what was learned before.

    Ends the run with a NothingToDoError if an interrupted run has already published its work.
    """
    planned = _do_stage(current, execute, plugins, "ingest")
    assert isinstance(planned, IngestResult)
    if planned.published:
        _end_published(current, Path(planned.published))
    if not current.request.fitted:
        _do_stage(current, execute, plugins, "statistics")


def _end_published(current: CurrentRun, output: Path) -> NoReturn:
    """End a run whose work was published by an interrupted run; remove what that run left."""
    request = current.request
    address = address_of(output)
    current.log.info("%s was published by a run that was cut off right after: nothing is left to do", address)
    request.staging.point_to(output)
    request.staging.clean()
    splits = () if request.flow == "fit" else filter(None, request.splits)
    current.outputs[:] = [str(output / split) for split in splits] or [str(output)]
    raise NothingToDoError(f"{address} is published", current.outputs)


def _transform_and_publish(current: CurrentRun, execute: Execute, plugins: Sequence[RunPlugin]) -> None:
    """Transform, shuffle and write the rows of all splits, and publish them together."""
    request = current.request
    with commit.CommitPreparation(request, current.report) as preparation:
        with request.staging.upload_ahead(request.output.on_existing):
            for split in request.splits:
                _do_stage(current, execute, plugins, "transform", split)
                _do_stage(current, execute, plugins, "shuffle_write", split)
        for plugin in plugins:
            plugin.before_commit(current)
        current.manifests += commit.commit(
            request, current.results, current.run_id, preparation, current.gate, current.upstream, current.train
        )
    for manifest in current.manifests:
        rows = f"{manifest.rows['out']:,}"
        current.log.info("committed %s rows in %s files to %s", rows, len(manifest.parts), address_of(manifest.path))
        if text := manifest.empty_files:
            current.log.warning("%s", text)
    _tell_committed(current, plugins, [manifest.path for manifest in current.manifests])


def _publish_fitted(current: CurrentRun, plugins: Sequence[RunPlugin]) -> None:
    """Publish what was learned as a fitted workflow."""
    for plugin in plugins:
        plugin.before_commit(current)
    folder = commit.commit_fitted(current.request, current.gate)
    current.log.info("the fitted workflow is in %s", address_of(folder))
    _tell_committed(current, plugins, [folder])


def _tell_committed(current: CurrentRun, plugins: Sequence[RunPlugin], outputs: Sequence[str]) -> None:
    current.outputs[:] = outputs
    unfinished: list[UnfinishedError] = []
    for plugin in plugins:
        with _log_plugin_error(current, plugin, "committed"):
            try:
                plugin.committed(current, outputs)
            except UnfinishedError as error:
                unfinished.append(error)
    if unfinished:
        raise unfinished[0]


def _do_stage(
    current: CurrentRun, execute: Execute, plugins: Sequence[RunPlugin], stage: str, split: str | None = None
) -> StageResult:
    """Do a stage; say what people should know of its result, and let the plugins look at it."""
    result = execute(stage, current.request, split)
    current.results.append(result)
    if stage == "ingest":
        current.read_outputs += open_outputs(_list_local_files(current.request))
    _log_result(current, result)
    for plugin in plugins:
        plugin.after(current, result)
    return result


def _log_result(current: CurrentRun, result: StageResult) -> None:
    """Log what people should know of the result of a stage."""
    request = current.request
    makes_columns = result.stage == ("statistics" if request.flow == "fit" else "transform")
    for failed in result.failed_casts if makes_columns else ():
        current.log.warning("%s", describe_record(dict(failed)))
    for level, text in result.messages(makes_columns, "base" if request.base else "fit"):
        current.log.log(level, "%s", text)


def _list_local_files(request: Request) -> Iterator[str]:
    """Yield the paths of the local files that the run reads."""
    plans = SavedPlans(request)
    older_rows = [LEARN_FROM] if request.base and request.base.learn_from else []
    for name in (*request.plan_names, *older_rows):
        yield from (file.path for file in plans.plan(name).files if not is_remote(file.path))
