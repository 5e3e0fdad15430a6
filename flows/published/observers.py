"""The collectors of `run.lineage` and `run.metrics`, which hear of a run while it works.

A collector never fails a run, and holds up its end for less than a second. Without these keys nothing is imported.
"""

from __future__ import annotations

import contextvars
import importlib.metadata
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import ModuleType
from typing import ClassVar

from prefect.context import FlowRunContext

from flows.job.job import absolute
from flows.job.ready_by import deadline
from flows.job.refit_job import AnyJob
from flows.published.observed_run import WAIT_SECONDS, ObservedRun
from tasks.core.redaction import plain_url
from tasks.core.settings import collector_file
from tasks.core.stage_results import StageResult
from tasks.errors import GateAskedError, GiveUpError
from tasks.run.plugin import CurrentRun, NothingToDoError, RunPlugin

log = logging.getLogger("rowmill")


class CollectorsPlugin(RunPlugin):
    """Tells the collectors of a run that it begins and how it ends.

    GiveUpError at the beginning where the library of a collector is missing, a JobError where a file of one must not be
    written.
    """

    place: ClassVar[int] = 40

    def __init__(self, job: AnyJob) -> None:
        self.job = job
        self.collectors: list[Collector] = []

    def begin(self, run: CurrentRun) -> None:
        self.run = observe(self.job, run)
        self.run.check_files()
        try:
            for key in ("lineage", "metrics"):
                if address := getattr(run.request.run, key):
                    self.collectors.append(Collector(key, address, self.run))
        except BaseException as error:
            self.ended(run, error)
            raise

    def after(self, run: CurrentRun, result: StageResult) -> None:
        self.run.request = run.request
        self.run.note(result)

    def ended(self, run: CurrentRun, error: BaseException | None) -> None:
        self.run.request = run.request
        if error is not None and not run.outputs and not isinstance(error, NothingToDoError):
            is_failed = isinstance(error, Exception) and not isinstance(error, GateAskedError)
            self.run.end = "FAIL" if is_failed else "ABORT"
            self.run.error = error
        for collector in self.collectors:
            collector.end()
        until = time.monotonic() + WAIT_SECONDS
        for collector in self.collectors:
            collector.close(until)


def observe(job: AnyJob, run: CurrentRun) -> ObservedRun:
    """Return the current flow run as its collectors hear of it."""
    context = FlowRunContext.get()
    request = run.request
    name = absolute(job.as_written()["output"]["path"])
    scheduled = context.flow_run.expected_start_time if context and context.flow_run else None
    flow = context.flow.name if context and context.flow else request.flow
    ready_by = request.run.ready_by
    timezone = request.run.timezone
    ready = deadline(ready_by, timezone, scheduled) if ready_by and scheduled else None
    return ObservedRun(request, name, flow, run.run_id, scheduled, ready, run.outputs)


class Collector:
    """A collector, and the thread that sends to it; what goes wrong is logged once, when it is closed."""

    def __init__(self, key: str, address: str, run: ObservedRun) -> None:
        self.key = key
        self.run = run
        self.shown = plain_url(address)
        self.error = ""
        library = "openlineage-python"
        if key == "metrics":
            library = "prometheus-client" if collector_file(address) else "opentelemetry-exporter-otlp-proto-http"
        try:
            importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            raise GiveUpError(
                f"{library} is not installed",
                where=f"run.{key}: {self.shown}",
                do=f"pip install 'rowmill[{key}]', where the flow runs",
            ) from None
        self._sends = SimpleQueue[Callable[[], None] | None]()
        context = contextvars.copy_context()  # with the settings of Prefect
        self._thread = threading.Thread(target=context.run, args=(self._work,), name=f"rowmill-{key}", daemon=True)
        self._thread.start()
        self._sends.put(lambda: self._messages().begin(run))

    def end(self) -> None:
        """Send what there is to say at the end of the run."""
        try:
            self._sends.put(self._messages().end(self.run))
        except Exception as error:  # of the output, which may be damaged by now
            self.error = f"{type(error).__name__}: {error}"
        self._sends.put(None)

    def close(self, until: float) -> None:
        """Wait for the thread until a moment of the monotonic clock."""
        self._thread.join(max(until - time.monotonic(), 0))
        if self._thread.is_alive():
            self.error = self.error or f"it did not answer within {WAIT_SECONDS} s"
        if self.error:
            log.warning("run.%s: %s did not take all of this run: %s", self.key, self.shown, plain_url(self.error))

    def _messages(self) -> ModuleType:
        """Return the module that makes the messages; to import it takes a moment, in which the run goes on."""
        if self.key == "lineage":
            from flows.published import lineage_events

            return lineage_events
        from flows.published import run_metrics

        return run_metrics

    def _work(self) -> None:
        for send in iter(self._sends.get, None):
            try:
                send()
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"
