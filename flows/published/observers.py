"""The collectors of `run.lineage` and `run.metrics`, which hear of a run while it works.

A collector never fails a run, and holds up its end for less than a second. Without these keys nothing is imported.
"""

from __future__ import annotations

import importlib.metadata
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from tasks.cluster import monitor
from tasks.core.settings import collector_file
from tasks.core.stage_results import StageResult
from tasks.errors import GateAskedError, GiveUpError
from tasks.gate.earlier_outputs import read_profile
from tasks.gate.notes import GateNote, read_gate, read_note
from tasks.gate.output_profile import Profile
from tasks.job.profiles import STATISTICS, saved, whole_name
from tasks.job.request import Request
from tasks.report import series
from tasks.report.phrases import samples_path
from tasks.report.redaction import plain_url

WAIT_SECONDS = 0.9  # that the end of a run waits for its collectors
ANSWER_SECONDS = 5.0  # in which a collector has to answer, while the run goes on
log = logging.getLogger("rowmill")


@dataclass
class ObservedRun:
    """A run as its collectors hear of it: its request, on its base once that is chosen, and the results of its stages.

    `name` is the path of the output as the job has it, `flow` the name of the flow, `flow_run` the id of its run,
    `scheduled` the time of that. `committed` are the folders that are published.
    """

    request: Request
    name: str
    flow: str
    flow_run: str
    scheduled: datetime | None
    committed: Sequence[str]
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    end: Literal["COMPLETE", "FAIL", "ABORT"] = "COMPLETE"
    error: BaseException | None = None
    results: list[StageResult] = field(default_factory=list)
    samples: dict[str, series.Workers] = field(default_factory=dict)

    def __call__(self, result: StageResult) -> None:
        """Note the result of a stage, and the samples of its workers, which are gone after the commit."""
        self.results.append(result)
        if self.request.run.metrics:
            self.samples[result.title] = monitor.load(samples_path(self.request.staging.folder, result))

    @property
    def first(self) -> Path | None:
        """The folder of the first split that is published; None where nothing is."""
        return Path(self.committed[0]) if self.committed else None

    @property
    def profile(self) -> Profile | None:
        """The profile of the rows that the run has read; None without one."""
        if self.first:
            return read_profile(self.first)
        return saved(self.request, whole_name(self.request.splits[0])) or saved(self.request, STATISTICS)

    @property
    def gate(self) -> GateNote | None:
        """What the gate has said of the run; None where it has not judged."""
        note = read_gate(self.first) if self.first else read_note(self.request.staging.folder)
        return note if note and note.verdicts else None


@contextmanager
def observed(run: ObservedRun, harmless: tuple[type[Exception], ...]) -> Iterator[None]:
    """Tell the collectors of a run that it begins and how it ends; `harmless` errors end it well. GiveUpError where
    the library of a collector is missing."""
    wanted = {"lineage": run.request.run.lineage, "metrics": run.request.run.metrics}
    collectors = [Collector(key, address, run) for key, address in wanted.items() if address]
    try:
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
            raise GiveUpError(f"{library} is not installed", where=f"run.{key}: {self.shown}",
                              do=f"pip install 'rowmill[{key}]', where the flow runs") from None  # fmt: skip
        self._sends = SimpleQueue[Callable[[], None] | None]()
        self._thread = threading.Thread(target=self._work, name=f"rowmill-{key}", daemon=True)
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

    def _messages(self) -> Any:
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
