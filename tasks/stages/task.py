"""What makes a function a stage: a Prefect task with a retry rule, a manifest, artifacts and live progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

from distributed import KilledWorker, get_client, secede
from distributed.comm import CommClosedError
from distributed.threadpoolexecutor import thread_state
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.states import State as PrefectState

from tasks import report
from tasks.cluster import monitor, out_of_memory, stalled_tasks
from tasks.cluster.dask_pool import DaskPool
from tasks.core.unforeseen_errors import DefectError, defect
from tasks.errors import DataError, GiveUpError, JobError, MillraceError
from tasks.graph.binding import Bound
from tasks.job.apply_fitted import subject
from tasks.job.fingerprints import fingerprint
from tasks.job.request import PlanOf, Request
from tasks.report import run_log
from tasks.report.diagram import workflow_diagram
from tasks.report.text import samples_path
from tasks.stages import ingest as stages_ingest
from tasks.stages import shuffle_write as stages_shuffle_write
from tasks.stages import statistics as stages_statistics
from tasks.stages import transform as stages_transform
from tasks.stages.progress_artifact import LiveProgress, prefect_client, stage_key
from tasks.stages.storage_blocks import from_block
from tasks.storage.allowed_roots import limited
from tasks.storage.credentials import LOADERS, call_masked, storage

log = logging.getLogger("millrace")

LOST = (KilledWorker, CancelledError, CommClosedError)  # a worker went away: that of the stage, or one that it used
run_log.install()


def may_pass(task: Any, task_run: Any, state: PrefectState) -> bool:
    """Retry what may pass, never what the data or the job must mend first; after a lost worker the flow starts anew."""
    try:
        state.result(raise_on_failure=True)
    except (DataError, JobError, GiveUpError, *LOST):
        return False
    except Exception:
        return True
    return True


class ToRun(logging.Handler):
    """Hands records on to the log of a task run, where people read them on the run's page."""

    def __init__(self, told: Any) -> None:
        super().__init__(logging.INFO)
        self.told = told

    def emit(self, record: logging.LogRecord) -> None:
        self.told.log(record.levelno, record.getMessage())


@contextmanager
def reported(title: str, told: Any) -> Iterator[None]:
    """What nobody foresaw in a stage as an error that says where it was and how to report it; its traceback stands in
    the log of the run. It is tried again as before."""
    try:
        yield
    except (MillraceError, *LOST):
        raise
    except Exception as error:
        if out_of_memory.is_out_of_memory(error):
            raise
        found = defect(error, f"the stage {title}")
        if isinstance(found, DefectError):
            told.error("%s", found.trace)
        raise found from None


@contextmanager
def own_log() -> Iterator[Any]:
    """The log of this task run. What millrace itself says in this process meanwhile stands in it too, Dask's chatter
    not."""
    if TaskRunContext.get() is None:
        yield log
        return
    told = get_run_logger()
    handler = ToRun(told)
    log.addHandler(handler)
    try:
        yield told
    finally:
        log.removeHandler(handler)


def leave_pool() -> None:
    """Give the thread's place to the partitions' tasks, for good: the way back (`worker_client`) waits up to a second.

    Prefect's retry runs in the same thread, which has left already.
    """
    if thread_state.proceed:
        secede()


def stage(name: str, work: Callable[..., dict[str, Any]]) -> Any:
    """The Prefect task `name` around work(request, [split,] pool, progress) -> summary."""

    def body(request: Request, split: str | None = None, resources: dict[str, float] | None = None) -> dict[str, Any]:
        progress = LiveProgress(request, name, split or "")
        progress.check_owner()
        leave_pool()
        began = time.time()
        with prefect_client(None), limited(request.roots), out_of_memory.told(name, request.engine), own_log() as told:
            pool = DaskPool(get_client(), resources)
            told.info("%s on %s worker(s) with %s threads", progress.title, len(pool.workers), pool.threads)
            patience = request.run.stalled_after
            with (
                monitor.watched(pool.client, pool.workers, request.run.report) as watch,
                stalled_tasks.watched(progress.title, pool, patience),
            ):
                given = [] if split is None else [split]
                options = storage(request.source.storage_options)
                with reported(progress.title, told):
                    summary = call_masked(options, work, request, *given, pool, progress)
        context = TaskRunContext.get()
        summary["retries"] = (context.task_run.run_count - 1) if context else 0
        summary |= {"began": began, "ended": time.time()}
        told.info(report.stage_line(summary))
        return summary | {"shown": texts(summary, request, watch), "progress": progress.ended()}

    body.__name__, body.__doc__ = name, work.__doc__
    return task(
        name=name,
        retry_condition_fn=may_pass,
        retry_delay_seconds=1,
        persist_result=False,
        cache_policy=NO_CACHE,
    )(body)


def texts(summary: dict[str, Any], request: Request, watch: monitor.Watch) -> dict[str, Any] | None:
    """What the flow shows of a stage: one Markdown and one table artifact, under keys that stay the same from run to
    run of a flow.

    The samples of the workers stay in the staging folder, for the report; those of a stage that was found done are
    older.
    """
    if watch.workers and not summary.get("reused"):
        monitor.save(samples_path(request.staging.folder, summary), watch.workers)
    try:
        picture = request.staging.folder / f"diagram-{fingerprint(request.graph)[:12]}.svg"
        diagram = workflow_diagram(
            picture, lambda: Bound(*subject(request, PlanOf(request).plan(request.splits[0]).schema))
        )
        text = report.stage_markdown(summary, diagram, watch.workers, dashboard_of(watch.client))
        return {
            "key": stage_key(request, summary["stage"], summary.get("split", "")),
            "description": report.stage_line(summary),
            "markdown": text,
            "table": report.stage_table(summary),
        }
    except Exception as error:  # the work is done all the same
        log.warning("an artifact could not be made: %s: %s", type(error).__name__, error)
        return None


def dashboard_of(client: Any) -> str:
    """Where the scheduler of a client shows what it does; empty where it does not."""
    try:
        return str(client.dashboard_link or "")
    except Exception:  # a scheduler without bokeh has none
        return ""


LOADERS[1:] = [from_block]

ingest = stage("ingest", stages_ingest.ingest)
statistics = stage("statistics", stages_statistics.learn)
transform = stage("transform", stages_transform.cut)
shuffle_write = stage("shuffle_write", stages_shuffle_write.write)
