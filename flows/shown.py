"""The artifacts of stages, written beside the next stage: asking the server takes longer than a stage of few rows."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from prefect.artifacts import MarkdownArtifact, TableArtifact

from tasks.stage import fresh_client

PATIENCE = 30.0  # seconds that the end of a run waits for artifacts that are on their way
_threads: ContextVar[list[threading.Thread]] = ContextVar("artifacts")


@contextmanager
def all_shown() -> Iterator[None]:
    """Every artifact that `show` is given in this block is written when the block is left."""
    threads: list[threading.Thread] = []
    token = _threads.set(threads)
    try:
        yield
    finally:
        _threads.reset(token)
        for thread in threads:
            thread.join(PATIENCE)


def show(text: dict[str, Any], task_run: UUID) -> None:
    """Write what `tasks.stage.texts` made as the artifacts of a task run, soon."""
    context = contextvars.copy_context()
    thread = threading.Thread(
        target=context.run, args=(_create, text, task_run), name="millrace-artifacts", daemon=True
    )
    thread.start()
    _threads.get([]).append(thread)


def _create(text: dict[str, Any], task_run: UUID) -> None:
    key, named = text["key"], {"description": text["description"], "task_run_id": task_run}
    with fresh_client():
        MarkdownArtifact(key=f"{key}-summary", markdown=text["markdown"], **named).create(_sync=True)  # type: ignore[call-arg]
        TableArtifact(key=f"{key}-table", table=text["table"], **named).create(_sync=True)  # type: ignore[call-arg]
