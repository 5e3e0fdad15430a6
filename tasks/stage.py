"""What makes a function a stage: a Prefect task with a retry rule, a manifest, artifacts and live progress."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import httpx
from distributed import KilledWorker, get_client, secede
from distributed.comm import CommClosedError
from distributed.threadpoolexecutor import thread_state
from prefect import get_client as get_prefect_client
from prefect import get_run_logger, task
from prefect.artifacts import (
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.context import SyncClientContext, TaskRunContext
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, get_current_settings, temporary_settings
from prefect.states import State as PrefectState

from tasks import memory, monitor, one_error, report, run, stalls
from tasks.allowed import limited
from tasks.commit import write_json
from tasks.defects import DefectError, defect
from tasks.errors import DataError, GiveUpError, JobError, MillraceError
from tasks.pool import DaskPool
from tasks.report.diagram import workflow_diagram
from tasks.report.text import samples_path
from tasks.run import Request
from tasks.secrets import LOADERS, call_masked, json_object, storage

LOST = (KilledWorker, CancelledError, CommClosedError)  # a worker went away: that of the stage, or one that it used
AWAY_SECONDS = 60.0  # in which a server that did not answer is asked only once
_away = {"until": 0.0}
PATIENCE = 10.0  # seconds that the end of a stage waits for the server to take how far it was
log = logging.getLogger("millrace")
one_error.install()


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
    """How far the stage is: a file in the staging folder four times a second, a Prefect artifact every two seconds.

    The artifact is written beside the work; that all is done the flow says in it, with the stage's other artifacts.
    """

    def __init__(self, request: Request, stage: str, split: str) -> None:
        self.path, self.stage, self.split = request.staging.folder / "progress.json", stage, split
        self.title = f"{stage} {split}".strip()
        self.request = request
        self.start = self.wrote = time.monotonic()
        self.artifact: uuid.UUID | None = None
        self.published = self.start
        self.publishing: threading.Thread | None = None
        self.text = ""

    def check_owner(self) -> None:
        """End the work of a flow that is gone once another one has the lock."""
        if self.request.owner and not self.request.staging.owned_by(self.request.owner):
            raise GiveUpError(
                "another run took over",
                where=str(self.request.staging.target),
                why="the flow that started this stage is gone",
                do="follow the run that holds the lock",
            )

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        last = done >= total
        if last or now - self.wrote > 0.25:
            self.check_owner()
            seconds = now - self.start
            rate = done / seconds if seconds else 0.0
            left = (total - done) / rate if rate else None
            write_json(
                self.path,
                {
                    "stage": self.stage,
                    "split": self.split,
                    "done": done,
                    "total": total,
                    "seconds": seconds,
                    "rows_per_second": rate,
                    "seconds_left": left,
                    "at": time.time(),
                },
            )
            self.wrote = now
            self.text = f"{self.stage} {self.split}: {done:,} of {total:,} rows, {rate:,.0f} rows/s" + (
                f", {left:,.0f} s left" if left else ""
            )
            if now - self.published > 2.0 and not last:
                self._publish_beside(100.0 * done / max(total, 1))
                self.published = now

    def ended(self) -> tuple[str, str] | None:
        """(the artifact, its last text) of a stage that is done; None if it was too short for one."""
        if self.publishing:
            self.publishing.join(PATIENCE)
        return (str(self.artifact), self.text) if self.artifact else None

    def _publish_beside(self, percent: float) -> None:
        """Unless the server has not taken the last one yet."""
        if self.publishing and self.publishing.is_alive():
            return
        arguments = (self._publish, percent, self.text)
        self.publishing = threading.Thread(target=contextvars.copy_context().run, args=arguments, daemon=True)
        self.publishing.start()

    def _publish(self, percent: float, text: str) -> None:
        with fresh_client():
            if self.artifact is None:
                found = create_progress_artifact(
                    percent, key=f"{stage_key(self.request, self.stage, self.split)}-progress", description=text
                )
                self.artifact = found if isinstance(found, uuid.UUID) else None
            else:
                update_progress_artifact(self.artifact, percent, description=text)


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
        if memory.is_out_of_memory(error):
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
        with prefect_client(None), limited(request.roots), memory.told(name, request.engine), own_log() as told:
            pool = DaskPool(get_client(), resources)
            told.info("%s on %s worker(s) with %s threads", progress.title, len(pool.workers), pool.threads)
            patience = request.settings[2].stalled_after
            with (
                monitor.watched(pool.client, pool.workers, request.settings[2].report) as watch,
                stalls.watched(progress.title, pool, patience),
            ):
                given = [] if split is None else [split]
                options = storage(request.settings[0].storage_options)
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


def stage_key(request: Request, stage: str, split: str) -> str:
    """What the keys of a stage's artifacts begin with: preprocess-out-shop-transform-valid."""
    return "-".join(filter(None, [request.key, stage.replace("_", "-"), split]))


def texts(summary: dict[str, Any], request: Request, watch: monitor.Watch) -> dict[str, Any] | None:
    """What the flow shows of a stage: one Markdown and one table artifact, under keys that stay the same from run to
    run of a flow.

    The samples of the workers stay in the staging folder, for the report; those of a stage that was found done are
    older.
    """
    if watch.workers and not summary.get("reused"):
        monitor.save(samples_path(request.staging.folder, summary), watch.workers)
    try:
        text = report.stage_markdown(summary, workflow_diagram(request), watch.workers, dashboard_of(watch.client))
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
    """A client of Prefect for this block alone. What cannot be shown is a warning: the work is done all the same.

    Of a server that did not answer a moment ago it asks once, and no work waits for it again.
    """
    away = time.monotonic() < _away["until"]
    tries = temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}) if away else nullcontext()
    try:
        with tries, prefect_client(None), SyncClientContext():
            yield
    except Exception as error:
        if isinstance(error, httpx.TransportError):
            _away["until"] = time.monotonic() + AWAY_SECONDS
        log.warning("an artifact could not be published: %s: %s", type(error).__name__, error)


def from_block(name: str) -> Mapping[str, Any] | None:
    """Storage options in a block of the Prefect server: `name` of a Secret block, or type and name:
    aws-credentials/shop.

    None where there is no such block, or no server; a JobError for a type that is not known.
    """
    if not get_current_settings().api.url:
        return None
    kind, _, block = name.rpartition("/")
    kind = kind or "secret"
    if kind not in BLOCKS:
        raise JobError(f"blocks of the type {kind!r} hold no storage options", where="source.storage_options",
                       do=f"name a block of one of these types: {', '.join(BLOCKS)}")  # fmt: skip
    with prefect_client(None), get_prefect_client(sync_client=True) as client:
        try:
            found = client.read_block_document_by_name(block, kind, include_secrets=True)
        except ObjectNotFound:
            return None
    return json_object(BLOCKS[kind](found.data), f"the block {kind}/{block}")


def _aws(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of AwsCredentials and MinIOCredentials under the names that s3fs has for them."""
    more = data.get("aws_client_parameters") or {}
    client = {"region_name": data.get("region_name"), "endpoint_url": more.get("endpoint_url")}
    options = {
        "key": data.get("aws_access_key_id") or data.get("minio_root_user"),
        "secret": data.get("aws_secret_access_key") or data.get("minio_root_password"),
        "token": data.get("aws_session_token"),
        "client_kwargs": {name: value for name, value in client.items() if value},
    }
    return {name: value for name, value in options.items() if value}


BLOCKS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "secret": lambda data: data.get("value"),
    "remote-file-system": lambda data: data.get("settings") or {},
    "aws-credentials": _aws,
    "minio-credentials": _aws,
    "gcp-credentials": lambda data: {"token": data.get("service_account_info") or data.get("service_account_file")},
}
LOADERS[1:] = [from_block]

ingest = stage("ingest", run.ingest)
statistics = stage("statistics", run.learn)
transform = stage("transform", run.cut)
shuffle_write = stage("shuffle_write", run.write)
