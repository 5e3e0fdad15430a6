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

from flows.job.run_labels import OUTPUT, label_run

ALIVE = "rowmill.run.alive"
ENDED = "rowmill.run.ended"
SECONDS = 10.0  # between two signs
log = logging.getLogger("rowmill")


@contextmanager
def signs_of_life(output: str) -> Iterator[None]:
    """While the block runs, the server hears of the current flow run every `SECONDS`, and at the end that it is over.

    The output is noted as a label of the run before the block begins: the next start looks for runs to this output that
    were killed. A thread beside the work sends the events.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None:
        yield
        return
    label_run({OUTPUT: output})
    ended = threading.Event()

    def send() -> None:
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
