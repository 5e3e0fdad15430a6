"""What makes a function a stage: a Prefect task with a retry rule, a manifest and live progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distributed import KilledWorker, get_client, get_worker, secede
from distributed.comm import CommClosedError
from distributed.threadpoolexecutor import thread_state
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.states import State as PrefectState

from tasks.cluster import monitor, out_of_memory, stalled_tasks, usage
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.transfer import gpu_setup
from tasks.core.stage_results import StageResult, StageRun
from tasks.core.unforeseen_errors import DefectError, defect
from tasks.errors import DataError, GiveUpError, JobError, RowmillError
from tasks.job.request import Request
from tasks.stages import ingest as stages_ingest
from tasks.stages import run_log
from tasks.stages import shuffle_write as stages_shuffle_write
from tasks.stages import statistics as stages_statistics
from tasks.stages import transform as stages_transform
from tasks.stages.progress_artifact import LiveProgress, prefect_client
from tasks.stages.storage_blocks import from_block
from tasks.storage.allowed_roots import limit_roots
from tasks.storage.credentials import LOADERS, call_masked, storage

if TYPE_CHECKING:
    from distributed import Client

log = logging.getLogger("rowmill")

REPLACED_SECONDS = 60.0  # in which a worker that was lost usually comes again
LOST = (KilledWorker, CancelledError, CommClosedError)  # a worker went away: that of the stage, or one that it used
Resources = dict[str, dict[str, float]]  # what the tasks of a stage take of a worker, by the stage
run_log.install()


def may_pass(task: object, task_run: object, state: PrefectState) -> bool:
    """Retry errors that may be temporary, not those of data or job; after a lost worker the flow starts anew."""
    try:
        state.result(raise_on_failure=True)
    except (DataError, JobError, GiveUpError, *LOST):
        return False
    except Exception:
        return True
    return True


class ToRun(logging.Handler):
    """Passes records on to the log of a task run, where people read them on the run's page."""

    def __init__(self, run_log: Any) -> None:
        super().__init__(logging.INFO)
        self.run_log = run_log

    def emit(self, record: logging.LogRecord) -> None:
        self.run_log.log(record.levelno, record.getMessage())


@contextmanager
def report_defects(title: str, run_log: Any) -> Iterator[None]:
    """Raise an unforeseen error of a stage as one that says where it happened and how to report it, and log its
    traceback. Prefect tries the stage again as before."""
    try:
        yield
    except (RowmillError, *LOST):
        raise
    except Exception as error:
        if out_of_memory.is_out_of_memory(error):
            raise
        described = defect(error, f"the stage {title}")
        if isinstance(described, DefectError):
            run_log.error("%s", described.trace)
        raise described from None


@contextmanager
def run_logger() -> Iterator[Any]:
    """Provide the log of this task run; while the block runs, rowmill's own log of this process goes there, too."""
    if TaskRunContext.get() is None:
        yield log
        return
    run_log = get_run_logger()
    handler = ToRun(run_log)
    log.addHandler(handler)
    try:
        yield run_log
    finally:
        log.removeHandler(handler)


def leave_pool() -> None:
    """Give the thread's place to the partitions' tasks, for good: the way back (`worker_client`) waits up to a second.

    Prefect's retry runs in the same thread, which has left already.
    """
    if thread_state.proceed:
        secede()


def fitting_pool(resources: dict[str, float] | None, planned_for: DaskPool | None = None) -> DaskPool:
    """Return the workers that offer the resources; waits a minute while the only one is being replaced."""
    began = time.monotonic()
    while True:
        pool = DaskPool(get_client(), resources, gpu_setup.allocatable, planned_for)
        if pool.workers or time.monotonic() - began > REPLACED_SECONDS:
            return pool
        time.sleep(1)


def stage(name: str, work: Callable[..., StageResult]) -> Any:
    """Make the Prefect task `name` of work(request, [split,] pool, progress); the task returns a StageRun."""

    def body(request: Request, split: str | None = None, resources: Resources | None = None) -> StageRun:
        request = request.of_stage(name)
        taken = resources or {}
        progress = LiveProgress(request, name, split or "")
        progress.check_owner()
        leave_pool()
        began = time.time()
        with (
            prefect_client(None),
            limit_roots(request.roots),
            out_of_memory.explain_out_of_memory(name, request.engine),
            run_logger() as log,
        ):
            planned_for = fitting_pool(taken.get(request.planned_stage)) if taken and name == "ingest" else None
            pool = fitting_pool(taken.get(name), planned_for)
            log.info("%s on %s worker(s) with %s threads", progress.title, len(pool.workers), pool.threads)
            with (
                monitor.watch_workers(
                    pool.client, pool.workers, request.run.report or bool(request.run.metrics)
                ) as watch,
                stalled_tasks.watch_for_stall(progress.title, pool, request.run.stalled_after),
                report_defects(progress.title, log),
            ):
                options = storage(request.source.storage_options, "source.storage_options")
                splits = [] if split is None else [split]
                result: StageResult = call_masked(options, work, request, *splits, pool, progress)
        context = TaskRunContext.get()
        retries = (context.task_run.run_count - 1) if context else 0
        samples = monitor.samples_path(request.staging.folder, result.title)
        workers = monitor.load(samples) if result.reused else watch.workers
        used = usage.measure_resources(workers, request.run.price_per_hour, request.run.storage_price)
        result = replace(result, retries=retries, began=began, ended=time.time(), resources=used)
        log.info(result.line)
        if not result.reused:  # the report shows them, and so does a later start that reuses the work
            monitor.save(samples, watch.workers)
        return StageRun(result, progress.finish(), get_worker().address)

    body.__doc__ = work.__doc__
    body.__name__ = name
    body.__qualname__ = name  # Prefect makes the key of a task from it: each stage has one of its own
    return task(
        name=name,
        retry_condition_fn=may_pass,
        retry_delay_seconds=1,
        persist_result=False,
        cache_policy=NO_CACHE,
    )(body)


def find_dashboard(client: Client) -> str:
    """Return the address of a scheduler's dashboard; empty if it has none."""
    try:
        return str(client.dashboard_link or "")
    except Exception:  # a scheduler without bokeh has none
        return ""


LOADERS[1:] = [from_block]

ingest = stage("ingest", stages_ingest.ingest)
statistics = stage("statistics", stages_statistics.statistics)
transform = stage("transform", stages_transform.transform)
shuffle_write = stage("shuffle_write", stages_shuffle_write.shuffle_write)
