"""What makes a function a stage: a Prefect task with a retry rule, a manifest, artifacts and live progress."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from distributed import KilledWorker, get_client, secede
from distributed.comm import CommClosedError
from distributed.threadpoolexecutor import thread_state
from prefect import task
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.context import SyncClientContext, TaskRunContext
from prefect.states import State as PrefectState

from tasks import memory, monitor, report, run
from tasks.allowed import limited
from tasks.commit import write_json
from tasks.errors import DataError, GiveUpError, JobError
from tasks.pool import DaskPool
from tasks.report.diagram import workflow_diagram
from tasks.report.text import samples_path
from tasks.run import Request

LOST = (KilledWorker, CancelledError, CommClosedError)  # a worker went away: that of the stage, or one that it used
log = logging.getLogger("millrace")


def may_pass(task: Any, task_run: Any, state: PrefectState) -> bool:
    """Retry what may pass, never what the data or the job must mend first; after a lost worker the flow starts anew."""
    try:
        state.result(raise_on_failure=True)
    except (DataError, JobError, GiveUpError, *LOST):
        return False
    except Exception:
        return True
    return True


class LiveProgress:
    """How far the stage is: a file in the staging folder four times a second, a Prefect artifact every two seconds."""

    def __init__(self, request: Request, stage: str, split: str) -> None:
        self.path, self.stage, self.split = request.staging.folder / "progress.json", stage, split
        self.request = request
        self.start = self.wrote = time.monotonic()
        self.artifact: uuid.UUID | None = None
        self.published = self.start

    def check_owner(self) -> None:
        """End the work of a flow that is gone once another one has the lock."""
        if self.request.owner and not self.request.staging.owned_by(self.request.owner):
            raise GiveUpError("another run took over", where=str(self.request.staging.target),
                              why="the flow that started this stage is gone", do="follow the run that holds the lock")  # fmt: skip

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        last = done >= total
        if last or now - self.wrote > 0.25:
            self.check_owner()
            seconds = now - self.start
            rate = done / seconds if seconds else 0.0
            left = (total - done) / rate if rate else None
            write_json(self.path, {"stage": self.stage, "split": self.split, "done": done, "total": total, "seconds": seconds,
                                   "rows_per_second": rate, "seconds_left": left, "at": time.time()})  # fmt: skip
            self.wrote = now
            if now - self.published > 2.0 or (last and self.artifact):
                with fresh_client():
                    self._publish(done, total, rate, left)
                self.published = now

    def _publish(self, done: int, total: int, rate: float, left: float | None) -> None:
        text = f"{self.stage} {self.split}: {done:,} of {total:,} rows, {rate:,.0f} rows/s" + (
            f", {left:,.0f} s left" if left else ""
        )
        percent = 100.0 * done / max(total, 1)
        if self.artifact is None:
            found = create_progress_artifact(
                percent, key=f"{self.request.flow}-{self.stage.replace('_', '-')}-progress", description=text
            )
            self.artifact = found if isinstance(found, uuid.UUID) else None
        else:
            update_progress_artifact(self.artifact, percent, description=text)


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
        with prefect_client(None), limited(request.roots), memory.told(name, request.engine):
            pool = DaskPool(get_client(), resources)
            with monitor.watched(pool.client, pool.workers, request.settings[2].report) as watch:
                summary = work(request, *([] if split is None else [split]), pool, progress)
        context = TaskRunContext.get()
        summary["retries"] = (context.task_run.run_count - 1) if context else 0
        summary |= {"began": began, "ended": time.time()}
        publish(summary, request, watch)
        return summary

    body.__name__, body.__doc__ = name, work.__doc__
    return task(
        body,
        name=name,
        tags={"millrace"},
        retry_condition_fn=may_pass,
        retry_delay_seconds=1,
        persist_result=False,
        cache_policy=None,
    )


def publish(summary: dict[str, Any], request: Request, watch: monitor.Watch) -> None:
    """One Markdown and one table artifact of a stage, under keys that stay the same from run to run of a flow.

    The samples of the workers stay in the staging folder, for the report; those of a stage that was found done are older.
    """
    key = f"{request.flow}-{summary['stage'].replace('_', '-')}"
    with fresh_client():
        if watch.workers and not summary.get("reused"):
            monitor.save(samples_path(request.staging.folder, summary), watch.workers)
        text = report.stage_markdown(summary, workflow_diagram(request), watch.workers, dashboard_of(watch.client))
        create_markdown_artifact(text, key=f"{key}-summary", description=report.stage_line(summary))
        create_table_artifact(report.stage_table(summary), key=f"{key}-table")


def dashboard_of(client: Any) -> str:
    """Where the scheduler of a client shows what it does; empty where it does not."""
    try:
        return str(client.dashboard_link or "")
    except Exception:  # a scheduler without bokeh has none
        return ""


@contextmanager
def prefect_client(context: SyncClientContext | None) -> Iterator[None]:
    """Prefect's client of the current thread while the block runs; None: the next user makes one.

    Dask starts tasks in the context of whatever call made them run, which may be the work of an earlier stage: without
    this a stage would find that stage's client, closed.
    """
    variable: ContextVar[Any] = SyncClientContext.__var__
    token = variable.set(context)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def fresh_client() -> Iterator[None]:
    """A client of Prefect for this block alone. What cannot be shown is a warning: the work is done all the same."""
    try:
        with prefect_client(None), SyncClientContext():
            yield
    except Exception as error:
        log.warning("an artifact could not be published: %s: %s", type(error).__name__, error)


ingest = stage("ingest", run.ingest)
statistics = stage("statistics", run.learn)
transform = stage("transform", run.cut)
shuffle_write = stage("shuffle_write", run.write)
