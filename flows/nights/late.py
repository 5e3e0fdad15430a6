"""Says once that a run will not be ready by `run.ready_by`: log, artifact, event, and by it a notification."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from prefect import get_run_logger
from prefect.context import FlowRunContext
from prefect.events import emit_event

from flows.job.ready_by import LEAST_NIGHTS, Forecast, StageProgress, deadline, duration, forecast
from flows.job.run_calendar import BACKFILL
from flows.job.run_history import nights_of
from flows.job.run_labels import label_run
from flows.run.artifacts import write_markdown
from flows.run.listeners import listening
from tasks.core.markdown import markdown_table
from tasks.core.settings import STAGES
from tasks.core.stage_results import IngestResult, StageResult
from tasks.job.request import Request
from tasks.storage.atomic import read_json

LATE = "rowmill.run.late"  # the event, and the label of a run of which it was said
WAKE_SECONDS = 5.0  # between two looks at a run
PATIENCE = 10.0  # seconds that the end of a run waits for what is being said
log = logging.getLogger("rowmill")


class LateWatch:
    """What is known of the stages of a run: those that are done, and the one that runs."""

    def __init__(self, request: Request) -> None:
        self.path = request.staging.folder / "progress.json"
        learns = STAGES[:2] if not request.fitted else STAGES[:1]
        each = () if request.flow == "fit" else tuple((name, one) for one in request.splits for name in STAGES[2:])
        self.steps = [*((name, "") for name in learns), *each]
        self.rows: int | None = None
        self.done: dict[tuple[str, str], float] = {}
        self.since = self.began = time.time()

    def __call__(self, result: StageResult) -> None:
        if isinstance(result, IngestResult):
            self.rows = result.rows
        self.done[result.stage, result.split] = result.seconds
        self.since = time.time()

    def progress(self, now: float) -> StageProgress:
        """How far the run is; the running stage is the first that is not done."""
        done, ended = dict(self.done), self.since
        seconds: dict[str, float] = {}
        for (name, _), one in done.items():
            seconds[name] = seconds.get(name, 0.0) + one
        waiting = [step for step in self.steps if step not in done]
        if not waiting:
            return StageProgress(self.rows, seconds)
        name, split = waiting[0]
        note = read_json(self.path)
        share, elapsed = None, now - ended
        if isinstance(note, dict) and (note.get("stage"), note.get("split")) == (name, split):
            with suppress(KeyError, TypeError, ZeroDivisionError):
                if note["at"] >= ended:
                    share, elapsed = note["done"] / note["total"], note["seconds"] + now - note["at"]
        return StageProgress(self.rows, seconds, name, elapsed, share, tuple(one for one, _ in waiting[1:]))


@contextmanager
def ready_in_time(request: Request) -> Iterator[None]:
    """While the block runs, a thread says as soon as it is to be expected that the current flow run will be late.

    Nothing without `run.ready_by`, and of runs that a backfill has started. Without enough earlier nights only a run
    whose time is over is late.
    """
    context = FlowRunContext.get()
    flow_run: Any = context.flow_run if context else None
    if request.run.ready_by is None or flow_run is None or BACKFILL in flow_run.tags or LATE in flow_run.labels:
        yield
        return
    scheduled = flow_run.expected_start_time or datetime.now(UTC)
    limit = deadline(request.run.ready_by, request.run.timezone, scheduled)
    nights, watch, run_log = nights_of(request), LateWatch(request), get_run_logger()
    ended, once = threading.Event(), threading.Lock()

    def say(expected: Forecast | None, now: datetime) -> None:
        with once:
            if LATE in flow_run.labels:
                return
            flow_run.labels[LATE] = limit.isoformat()
        text = late_text(expected, limit, now, watch.began, ended.is_set())
        run_log.warning("%s", text)
        tell(flow_run, request.key, text, expected, limit)

    def look() -> None:
        times = 0  # one look may fall into a moment in which a stage stands still
        while not ended.wait(WAKE_SECONDS):
            now = datetime.now(UTC)
            expected = forecast(now, watch.progress(now.timestamp()), nights)
            times = times + 1 if expected is not None and expected.is_late(limit) else 0
            if times > 1 or now >= limit:
                say(expected, now)
                return

    thread = threading.Thread(target=contextvars.copy_context().run, args=(look,), name="rowmill-ready-by", daemon=True)
    thread.start()
    try:
        with listening(watch):
            yield
        ended.set()
        if (now := datetime.now(UTC)) >= limit:
            say(forecast(now, watch.progress(now.timestamp()), nights), now)
    finally:
        ended.set()
        thread.join(PATIENCE)


def late_text(expected: Forecast | None, limit: datetime, now: datetime, began: float, is_over: bool) -> str:
    """The sentence that says that a run is late, when it is expected, and why."""
    clock = f"{limit:%H:%M} ({limit.tzinfo})"
    if is_over:
        text = f"the run is late: it ended at {now.astimezone(limit.tzinfo):%H:%M}, and run.ready_by is {clock}"
    elif expected is None:
        return f"the run is late: it was not ready by {clock}; to predict its end takes {LEAST_NIGHTS} earlier nights"
    else:
        end = expected.end.astimezone(limit.tzinfo)
        day = "" if end.date() == limit.date() else f"{end:%Y-%m-%d} "
        verb = "will be late" if now < limit else "is late"
        text = f"the run {verb}: it is expected to end at {day}{end:%H:%M}, and run.ready_by is {clock}"
    if expected is not None and expected.reason:
        return f"{text}; {expected.reason}"
    start = datetime.fromtimestamp(began, limit.tzinfo)
    return f"{text}; it began at {start:%H:%M}, and no stage takes longer than usual" if expected else text


def tell(flow_run: Any, key: str, text: str, expected: Forecast | None, limit: datetime) -> None:
    """Artifact, label and event of a run that is late. A server that is away is no reason to fail."""
    stages = expected.stages if expected else ()
    rows = [
        {"stage": one.name, "now": duration(one.seconds), "usual": duration(one.usual), "growth": f"{one.growth:.1f} x"}
        for one in stages
    ]
    table = f"\n\n{markdown_table(rows)}" if rows else ""
    write_markdown(f"{key}-late", f"{text[0].upper()}{text[1:]}.{table}", "Late")
    label_run({LATE: limit.isoformat()})
    grown = expected.grown if expected else None
    payload = {
        "text": text,
        "ready_by": limit.isoformat(),
        "expected": expected.end.isoformat() if expected else None,
        "stage": grown.name if grown else None,
    }
    resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name}
    with suppress(Exception):
        emit_event(event=LATE, resource=resource, payload=payload)
