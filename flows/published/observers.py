"""The collectors of `run.lineage` and `run.metrics`, which hear of a run while it works.

A collector never fails a run, and holds up its end for less than a second. Without these keys nothing is imported.
"""

from __future__ import annotations

import contextvars
import importlib.metadata
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import ModuleType

from flows.published.observed_run import WAIT_SECONDS, ObservedRun
from tasks.core.settings import collector_file
from tasks.errors import GateAskedError, GiveUpError
from tasks.report.redaction import plain_url

log = logging.getLogger("rowmill")


@contextmanager
def observed(run: ObservedRun, harmless: tuple[type[Exception], ...]) -> Iterator[None]:
    """Tell the collectors of a run that it begins and how it ends; `harmless` errors end it well. GiveUpError where
    the library of a collector is missing, a JobError where a file of one must not be written."""
    run.check_files()
    collectors = list[Collector]()
    try:
        for key in ("lineage", "metrics"):
            if address := getattr(run.request.run, key):
                collectors.append(Collector(key, address, run))
        yield
    except BaseException as error:
        if not run.committed and not isinstance(error, harmless):
            is_failed = isinstance(error, Exception) and not isinstance(error, GateAskedError)
            run.end, run.error = "FAIL" if is_failed else "ABORT", error
        raise
    finally:
        for collector in collectors:
            collector.end()
        until = time.monotonic() + WAIT_SECONDS
        for collector in collectors:
            collector.close(until)


class Collector:
    """A collector, and the thread that sends to it; what goes wrong is logged once, when it is closed."""

    def __init__(self, key: str, address: str, run: ObservedRun) -> None:
        self.key, self.run, self.shown, self.error = key, run, plain_url(address), ""
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
        """The module that makes the messages; to import it takes a moment, in which the run goes on."""
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
