"""The progress of a stage on the Prefect server, and the clients that it needs."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import SyncClientContext
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from tasks.core.stage_results import ProgressArtifact
from tasks.errors import GiveUpError
from tasks.job.request import Request
from tasks.storage.atomic import write_json

AWAY_SECONDS = 60.0  # in which a server that did not answer is asked only once
_away = {"until": 0.0}
PATIENCE = 10.0  # seconds that the end of a stage waits for the server to take how far it was
log = logging.getLogger("rowmill")


class LiveProgress:
    """How far the stage is: a file in the staging folder four times a second, a Prefect artifact every two seconds.

    The artifact is written in a thread; the flow writes the last one, with the stage's other artifacts.
    """

    def __init__(self, request: Request, stage: str, split: str) -> None:
        self.path = request.staging.folder / "progress.json"
        self.stage = stage
        self.split = split
        self.title = f"{stage} {split}".strip()
        self.request = request
        self.start = self.wrote = time.monotonic()
        self.artifact: uuid.UUID | None = None
        self.published = self.start
        self.publishing: threading.Thread | None = None
        self.text = ""

    def check_owner(self) -> None:
        """End the work of a flow that is gone once another one has the lock."""
        if self.request.owner and not self.request.staging.is_owned_by(self.request.owner):
            raise GiveUpError(
                "another run took over",
                where=self.request.staging.address,
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

    def finish(self) -> ProgressArtifact | None:
        """Write the progress artifact of a stage that is done; None if the stage was too short for one."""
        if self.publishing:
            self.publishing.join(PATIENCE)
        return ProgressArtifact(str(self.artifact), self.text) if self.artifact else None

    def _publish_beside(self, percent: float) -> None:
        """Publish the progress in a thread, unless the server has not taken the last one yet."""
        if self.publishing and self.publishing.is_alive():
            return
        arguments = (self._publish, percent, self.text)
        self.publishing = threading.Thread(target=contextvars.copy_context().run, args=arguments, daemon=True)
        self.publishing.start()

    def _publish(self, percent: float, text: str) -> None:
        with open_prefect_client():
            if self.artifact is None:
                artifact = create_progress_artifact(
                    percent, key=f"{stage_key(self.request, self.stage, self.split)}-progress", description=text
                )
                self.artifact = artifact if isinstance(artifact, uuid.UUID) else None
            else:
                update_progress_artifact(self.artifact, percent, description=text)


def stage_key(request: Request, stage: str, split: str) -> str:
    """Return the beginning of the keys of a stage's artifacts: preprocess-out-shop-transform-valid."""
    return "-".join(filter(None, [request.key, stage.replace("_", "-"), split]))


@contextmanager
def prefect_client(context: SyncClientContext | None) -> Iterator[None]:
    """Provide a client of Prefect to the current thread while the block runs; with None, the next user makes one.

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
def open_prefect_client() -> Iterator[None]:
    """Provide a client of Prefect for this block only.

    If something cannot be shown, that is a warning: the work is done all the same.

    Of a server that did not answer a moment ago it asks once, and no work waits for it again.
    """
    away = time.monotonic() < _away["until"]
    tries = temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}) if away else nullcontext()
    try:
        with tries, prefect_client(None), ExitStack() as opened:
            try:
                opened.enter_context(SyncClientContext())
            except Exception:  # no API URL, or no answer: the block, which must run, meets the same error at once
                _away["until"] = time.monotonic() + AWAY_SECONDS
                opened.enter_context(temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}))
            yield
    except Exception as error:
        if isinstance(error, httpx.TransportError):
            _away["until"] = time.monotonic() + AWAY_SECONDS
        log.warning("an artifact could not be published: %s: %s", type(error).__name__, error)
