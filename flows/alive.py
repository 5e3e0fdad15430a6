"""Signs of life of a run, by which infra/automations.yaml notices that its process or its host is gone."""

from __future__ import annotations

import contextvars
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from prefect import get_client
from prefect.context import FlowRunContext
from prefect.events import emit_event

ALIVE, ENDED = "millrace.run.alive", "millrace.run.ended"
SECONDS = 10.0  # between two signs
HOST, OUTPUT = "millrace.host", "millrace.output"  # labels of a run, which notifications name
log = logging.getLogger("millrace")


@contextmanager
def signs_of_life(output: str) -> Iterator[None]:
    """While the block runs, the server hears of the current flow run every `SECONDS`, and at the end that it is over.

    A thread beside the work sends the events, and notes the output of the run as a label.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None:
        yield
        return
    ended = threading.Event()

    def send() -> None:
        label_run({OUTPUT: output})
        while not ended.is_set():
            _emit(ALIVE, run)
            ended.wait(SECONDS)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(send,), name="millrace-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(SECONDS)
        _emit(ENDED, run)


def label_run(labels: dict[str, Any]) -> None:
    """Add labels to the current flow run; nothing without one. A server that is away is no reason to stop."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run_labels(context.flow_run.id, labels)
    except Exception as error:
        log.debug("the run could not be labelled: %s", error)


def label_host() -> None:
    """Note on which host the current flow run works."""
    label_run({HOST: socket.gethostname()})


def _emit(event: str, run: Any) -> None:
    resource = {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name}
    with suppress(Exception):  # as above
        emit_event(event=event, resource=resource)
