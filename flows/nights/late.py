"""Says once that a run is not ready by `run.ready_by`: log, artifact, event, and by it a notification."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, ClassVar

from prefect import get_run_logger
from prefect.context import FlowRunContext
from prefect.events import emit_event

from flows.job.ready_by import deadline
from flows.job.run_calendar import BACKFILL
from flows.job.run_labels import label_run
from flows.run.artifacts import write_markdown
from flows.run.flow_plugin import CurrentFlow, Ended, FlowPlugin
from flows.run.work_of_job import staging_of
from tasks.job.request import output_slug

LATE = "rowmill.run.late"  # the event, and the label of a run of which it was said
PATIENCE = 10.0  # seconds that the end of a run waits for what is being said
log = logging.getLogger("rowmill")


class ReadyByPlugin(FlowPlugin):
    """Watches the deadline of a flow run, also while it waits for the lock of its output."""

    place: ClassVar[int] = 20

    def around(self, flow: CurrentFlow, run: Callable[[], Ended]) -> Ended:
        own = flow.own
        key = f"{flow.flow}-{output_slug(staging_of(own).target)}"
        with ready_in_time(own.run.ready_by, own.run.timezone, key):
            return run()


@contextmanager
def ready_in_time(ready_by: str | None, timezone: str, key: str) -> Iterator[None]:
    """While the block runs, a thread says so once where the current flow run is not ready by its deadline.

    Nothing without `ready_by`, and of runs that a backfill has started.
    """
    context = FlowRunContext.get()
    flow_run: Any = context.flow_run if context else None
    if ready_by is None or flow_run is None or BACKFILL in flow_run.tags or LATE in flow_run.labels:
        yield
        return
    limit = deadline(ready_by, timezone, flow_run.expected_start_time or datetime.now(UTC))
    run_log = get_run_logger()
    ended = threading.Event()

    def watch() -> None:
        seconds = (limit - datetime.now(UTC)).total_seconds()
        if not ended.wait(max(seconds, 0.0)):
            flow_run.labels[LATE] = limit.isoformat()
            text = f"the run is late: it was not ready by {limit:%H:%M} ({limit.tzinfo}), its run.ready_by"
            run_log.warning("%s", text)
            tell_late(flow_run, key, text, limit)

    context_of_run = contextvars.copy_context()
    thread = threading.Thread(target=context_of_run.run, args=(watch,), name="rowmill-ready-by", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE)


def tell_late(flow_run: Any, key: str, text: str, limit: datetime) -> None:
    """Artifact, label and event of a run that is late. A server that is away is no reason to fail."""
    write_markdown(f"{key}-late", f"{text[0].upper()}{text[1:]}.", "Late")
    label_run({LATE: limit.isoformat()})
    resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name}
    with suppress(Exception):
        emit_event(event=LATE, resource=resource, payload={"text": text, "ready_by": limit.isoformat()})
