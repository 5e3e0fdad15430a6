"""Signs of life of a run, by which infra/automations.yaml notices that its process or its host is gone."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.events import emit_event

from flows.job.run_labels import OUTPUT, PROCESS, label_run, this_process

ALIVE, ENDED = "rowmill.run.alive", "rowmill.run.ended"
SECONDS = 10.0  # between two signs
log = logging.getLogger("rowmill")


@contextmanager
def signs_of_life(output: str) -> Iterator[None]:
    """While the block runs, the server hears of the current flow run every `SECONDS`, and at the end that it is over.

    A thread beside the work sends the events, and notes the output and the process of the run as labels.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None:
        yield
        return
    ended = threading.Event()

    def send() -> None:
        label_run({OUTPUT: output, PROCESS: this_process()})
        while not ended.is_set():
            _emit(ALIVE, run)
            ended.wait(SECONDS)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(send,), name="rowmill-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(SECONDS)
        _emit(ENDED, run)


def _emit(event: str, run: FlowRun) -> None:
    resource = {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name}
    with suppress(Exception):  # as above
        emit_event(event=event, resource=resource)
