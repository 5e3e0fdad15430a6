"""A run that is stopped (cancel, SIGTERM, Ctrl-C): its workers end first, and the server hears what happened."""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from contextlib import suppress
from typing import Any

from distributed import Nanny
from prefect import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled, State

log = logging.getLogger("rowmill")


def stop_workers() -> None:
    """Close what the current run has started: its client, then its cluster with every worker.

    The lock of the output is let go only after this: workers that still write would be in the next run's way. Workers
    of this host are killed, since a thread cannot be interrupted; their nannies remove what they spilled. A scheduler
    that this run did not start stays, without the tasks of this run. A second call does nothing.
    """
    context = FlowRunContext.get()
    runner: Any = context.task_runner if context else None
    for nanny in getattr(getattr(runner, "_cluster", None), "workers", {}).values():
        if isinstance(nanny, Nanny) and nanny.pid:
            nanny.close_gracefully("the run was stopped")  # it does not start another one
            with suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)
    with suppress(Exception):  # whatever it is, the run is ending
        runner._exit_stack.close()


def mark_task_run(task_run_id: uuid.UUID, state: State, seconds: float, task: Any = None) -> None:
    """Set the state of an attempt that cannot do so itself.

    The server hears of task runs from their workers, with some delay; of one whose worker was lost at its very start it
    never hears: after `seconds` that is recorded here, as a run of `task`.
    """
    deadline = time.monotonic() + seconds
    with get_client(sync_client=True) as client:
        while True:
            try:
                client.set_task_run_state(task_run_id, state, force=True)
                if task is not None:  # the worker may have been lost before it sent the name
                    client.set_task_run_name(task_run_id, task.task_run_name)
                return
            except (ObjectNotFound, PrefectHTTPStatusError) as missing:
                refused = isinstance(missing, PrefectHTTPStatusError) and missing.response.status_code != 404
                if refused:
                    raise
                if time.monotonic() > deadline:
                    break
            time.sleep(0.5)
        context = FlowRunContext.get()
        if task is not None and context and context.flow_run:
            client.create_task_run(
                task, context.flow_run.id, str(task_run_id), id=task_run_id, name=task.task_run_name, state=state
            )


def stop_stage(task_run_id: uuid.UUID) -> None:
    """End the work of a stage whose run was stopped, and say so at the server as far as it still answers."""
    stop_workers()
    with suppress(Exception):
        mark_task_run(task_run_id, Cancelled(message="the run was stopped"), seconds=2.0)
