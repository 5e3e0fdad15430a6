"""One stage on the cluster of the run: submitted, waited for, tried again where workers are lost."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import dask
from prefect import get_client, get_run_logger
from prefect.client.schemas.objects import StateDetails
from prefect.context import FlowRunContext, TagsContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed, Crashed, State

from flows.job.refit_job import AnyJob
from flows.run.artifacts import complete
from flows.run.links import links
from flows.run.listeners import notify
from flows.run.lost_workers import WorkersAtStart, in_every_attempt, workers_of
from flows.run.stopping import mark_task_run, stop_stage
from flows.run.worker_checks import check_workers
from tasks.cluster import stalled_tasks
from tasks.cluster.dask_pool import select_offering, workers_at
from tasks.core.stage_results import StageResult, StageRun
from tasks.errors import GiveUpError
from tasks.job.request import Request
from tasks.stages import task as stages_task
from tasks.storage.files_being_read import FOLDER, doing, notes_left

if TYPE_CHECKING:
    from distributed import Client

RECORDED_SECONDS = 5.0  # in which the server usually hears of a task run
NO_WORKERS_SECONDS = 60.0
STALLED_SECONDS = 300.0
WAKE_SECONDS = 0.5


def run_stage(function: Any, job: AnyJob, request: Request, split: str | None = None) -> Any:
    """Run a stage and return its result (of tasks.core.stage_results); when its worker is lost, mark that attempt as
    crashed and run it again, `run.retries` times.

    Prefect's own retries answer exceptions; a killed worker leaves its task run Running for ever unless the flow says
    so.
    """
    log = get_run_logger()
    name = " ".join(filter(None, (function.name, split)))
    attempts = job.run.retries + 1
    check_workers(job, request, function.name)
    # notes of an earlier run, if any
    workers = WorkersAtStart(0, 0, 0)
    notes = notes_left(request.staging.folder / FOLDER)
    for attempt in range(attempts):
        task = function.with_options(
            retries=job.run.retries, task_run_name=f"{name}{f' again {attempt}' if attempt else ''}"
        )
        with _submit_stage(task, job, request, split) as future:
            if attempt == 0:
                workers = workers_of(future.wrapped_future.client, request.engine)
            try:
                wait_for(future, name, job.run.stalled_after, owned=job.cluster.kind != "address")
                run: StageRun = future.result()
                _done.get().append(_Done(future.task_run_id, task, run.worker, future.wrapped_future.client))
                return _report_result(run, attempt)
            except stages_task.LOST as error:
                _mark_crashed(future.task_run_id, error, task)
                notes = notes_left(request.staging.folder / FOLDER)
                read = f" {doing(notes)}" if notes else ""
                log.warning("a worker was lost during %s (attempt %s of %s)%s", name, attempt + 1, attempts, read)
            except stalled_tasks.NotBegunError as error:
                _mark_crashed(future.task_run_id, error, task)
                log.warning("%s (attempt %s of %s)", error, attempt + 1, attempts)
                if attempt + 1 == attempts:
                    raise
            except GiveUpError as error:
                if future.wrapped_future.status == "pending":
                    _mark_crashed(future.task_run_id, error, task)
                raise
    raise in_every_attempt(name, attempts, workers, notes)


@contextmanager
def _submit_stage(task: Any, job: AnyJob, request: Request, split: str | None) -> Iterator[Any]:
    """The future of a stage while the block runs. Ctrl-C, SIGTERM and a cancel stop the stage."""
    with suspend_tags(), dask.annotate(**_where_it_fits(job.cluster.resources.get(task.name))):
        future = task.submit(request, split, job.cluster.resources, wait_for=stages_before())
    links(future.wrapped_future.client, request.key, job.run.performance_report)
    try:
        yield future
    except Exception:
        raise
    except BaseException:
        stop_stage(future.task_run_id)
        raise
    finally:
        future.wrapped_future.release()  # Dask would run the stage again for a future whose worker is lost


def _where_it_fits(resources: dict[str, float] | None) -> dict[str, Any]:
    """Return annotations by which Dask prefers workers for a stage itself that offer what its tasks take; {} where all
    do. The stage does not take that itself: its tasks would wait for it. Another worker goes on where these are lost.
    """
    context = FlowRunContext.get()
    if not resources or context is None:
        return {}
    workers = workers_at(cast("Any", context.task_runner).client)
    fitting = list(select_offering(workers, resources))
    return {"workers": fitting, "allow_other_workers": True} if 0 < len(fitting) < len(workers) else {}


def _report_result(run: StageRun, attempt: int) -> StageResult:
    """The result of a stage that is done, after its listeners have heard of it."""
    result = replace(run.result, retries=run.result.retries + attempt)
    if run.progress:
        complete(run.progress)
    notify(result)
    return result


@dataclass(frozen=True)
class _Done:
    """A stage that is done: the attempt that did it, and the address of its worker."""

    task_run_id: uuid.UUID
    task: Any
    worker: str
    client: Client  # of Dask
    ended: float = field(default_factory=time.monotonic)


_done: ContextVar[list[_Done]] = ContextVar("stages_that_are_done")


@contextmanager
def stages_of_this_run() -> Iterator[None]:
    """The stages of this block follow each other in the run's graph; the server knows that they are completed when the
    block ends, unless the run is stopped (Ctrl-C, SIGTERM, a cancel).

    A worker tells the server a moment after its stage. A worker that is killed in between leaves the task run Running
    for ever unless the flow says that the stage is completed.
    """
    done = list[_Done]()
    token = _done.set(done)
    try:
        yield
    except Exception:
        _tell_completed(done)
        raise
    else:
        _tell_completed(done)
    finally:
        _done.reset(token)


def _tell_completed(done: list[_Done]) -> None:
    """Mark the stages as completed whose workers are gone and have not told the server `RECORDED_SECONDS` later."""
    for stage in done:
        if stage.client.status != "running":
            continue
        with suppress(Exception):  # a server that does not answer any more: the work is done all the same
            if stage.worker not in workers_at(stage.client) and not _is_told(stage):
                state: State = Completed(message="the worker was lost when its stage was done")
                mark_task_run(stage.task_run_id, state, 0.0, stage.task)


def _is_told(stage: _Done) -> bool:
    """Tell whether the server knows how the stage ended, by `RECORDED_SECONDS` after that."""
    with get_client(sync_client=True) as client:
        while True:
            with suppress(ObjectNotFound):
                state = client.read_task_run(stage.task_run_id).state
                if state is not None and state.is_final():
                    return True
            if time.monotonic() - stage.ended > RECORDED_SECONDS:
                return False
            time.sleep(WAKE_SECONDS)


def last_task_run() -> uuid.UUID | None:
    """Return the task run of the stage that is done last; None before the first one is done."""
    return _done.get()[-1].task_run_id if _done.get() else None


def stages_before() -> list[State]:
    """The state of the stage before, for the run's graph. Its future is left out: Dask would run that stage again for a
    future whose worker is lost."""
    return [Completed(data=True, state_details=StateDetails(task_run_id=s.task_run_id)) for s in _done.get()[-1:]]


def suspend_tags() -> TagsContext:
    """Leave the flow run's tags off the task runs of this block: Prefect asks the server for a slot of each tag over a
    connection that the server has closed by then, and waits two seconds before it asks again."""
    return TagsContext(current_tags=set())


def wait_for(future: Any, name: str, stalled_after: float = STALLED_SECONDS, owned: bool = False) -> None:
    """Wait until the stage is done; GiveUpError when there was no worker for `NO_WORKERS_SECONDS`, NotBegunError when
    workers are there but none began with the stage, or did anything else, for `stalled_after` seconds.

    On a cluster of the run's own (`owned`), a worker that has sent no sign for that time is lost.

    Each wait is short: Python looks for signals between two waits only. No wait fetches the result: a wait that times
    out just as Dask begins to fetch leaves a client that cannot fetch anything any more (dask/distributed#8514).
    """
    client = future.wrapped_future.client
    context = FlowRunContext.get()
    cluster = getattr(context.task_runner, "_cluster", None) if context else None
    looked = alone = checked = time.monotonic()
    key = future.wrapped_future.key
    begins = stalled_tasks.Stall(
        client, lambda: [key] * (not client.run_on_scheduler(stalled_tasks.has_begun, key)), stalled_after
    )
    while future.wrapped_future.status == "pending":
        with suppress(TimeoutError):
            future.wrapped_future.exception(timeout=WAKE_SECONDS)
        now = time.monotonic()
        if now - checked >= begins.every and client.status == "running":
            checked = now
            stalled_tasks.expect_workers(client, cluster, 2 * begins.every)
            if owned:
                client.run_on_scheduler(stalled_tasks.lose_silent_workers, stalled_after)
            if facts := begins.check():
                client.cancel([future.wrapped_future], force=True)
                raise stalled_tasks.make_stall_error(name, stalled_after, facts, stalled_tasks.NotBegunError)
        if now - looked < NO_WORKERS_SECONDS / 6:
            continue
        looked = now
        if client.status == "running" and workers_at(client):
            alone = looked
        elif looked - alone > NO_WORKERS_SECONDS:
            raise GiveUpError(
                f"no worker is left for {name}",
                why=f"there has been none for {NO_WORKERS_SECONDS:.0f} s",
                do="start workers again, then run the same job again: what is done is kept",
            )


def _mark_crashed(task_run_id: uuid.UUID, error: Exception, task: object) -> None:
    mark_task_run(task_run_id, Crashed(message=f"the worker was lost: {error}"), RECORDED_SECONDS, task)
