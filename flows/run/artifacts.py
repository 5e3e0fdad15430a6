"""Writes the artifacts of a run; those of stages while the next stage runs, since the server takes longer than a stage
of few rows. The artifact of a stage's progress is the worker's: `tasks.stages.progress_artifact`."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from prefect.artifacts import MarkdownArtifact, TableArtifact, update_progress_artifact

from tasks.core.markdown import escape_rows
from tasks.core.stage_results import ProgressArtifact
from tasks.stages.progress_artifact import open_prefect_client

PATIENCE = 30.0  # seconds that the end of a run waits for artifacts that are on their way
DELAY = 0.4  # seconds that they leave to the next stage, which the server has to hear of first


def write_markdown(key: str, text: str, description: str, task_run: UUID | None = None) -> UUID | None:
    """Write a page, of the current run or of a task run of it; return its id, None where the server does not answer."""
    written: Any = None
    page = MarkdownArtifact(key=key, markdown=text, description=description, task_run_id=task_run)
    with open_prefect_client():
        written = page.create(_sync=True)  # type: ignore[call-arg]
    return None if written is None else written.id


def write_table(key: str, rows: Sequence[Mapping[str, Any]], description: str) -> None:
    """Write a table of the current run."""
    table = TableArtifact(key=key, table=escape_rows(rows), description=description)
    with open_prefect_client():
        table.create(_sync=True)  # type: ignore[call-arg]


class _Shown:
    """The threads that write the artifacts of a run; they wait no longer once it ends."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.last: dict[str, threading.Thread] = {}  # of those that write one key
        self.ending = threading.Event()


_shown: ContextVar[_Shown] = ContextVar("artifacts")


@contextmanager
def all_shown() -> Iterator[None]:
    """All artifacts of `later` calls in this block are written when the block ends."""
    shown = _Shown()
    token = _shown.set(shown)
    try:
        yield
    finally:
        _shown.reset(token)
        shown.ending.set()
        for thread in shown.threads:
            thread.join(PATIENCE)


def complete(progress: ProgressArtifact) -> None:
    """Write 100 % into the artifact of the progress of a stage soon, in a thread."""
    later(lambda: _complete(progress))


def later(write: Callable[[], object], key: str = "") -> None:
    """Have a thread write artifacts soon; it is done when the block of `all_shown` ends.

    Artifacts of one key are written in their order: the server shows the newest.
    """
    shown = _shown.get()
    context = contextvars.copy_context()

    before = shown.last.get(key)

    def create() -> None:
        shown.ending.wait(DELAY)
        if before is not None:
            before.join(PATIENCE)
        context.run(write)

    shown.threads.append(threading.Thread(target=create, name="rowmill-artifacts", daemon=True))
    if key:
        shown.last[key] = shown.threads[-1]
    shown.threads[-1].start()


def _complete(progress: ProgressArtifact) -> None:
    with open_prefect_client():
        update_progress_artifact(UUID(progress.artifact), 100.0, description=progress.description)
