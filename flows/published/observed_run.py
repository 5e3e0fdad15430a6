"""A run as its collectors hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from flows.job.files_beside import collector_files
from tasks.cluster import monitor, usage
from tasks.cluster.monitor import samples_path
from tasks.core.stage_results import StageResult
from tasks.gate.notes import GateNote, read_gate, read_note
from tasks.job.profiles import STATISTICS, load_profile, whole_name
from tasks.job.request import Request
from tasks.profile.output_profile import Profile, read_profile
from tasks.storage.sidecars import Sidecar, check_sidecars

WAIT_SECONDS = 0.9  # that the end of a run waits for its collectors


@dataclass
class ObservedRun:
    """A run as its collectors hear of it: its request, on its base once that is chosen, and the results of its stages.

    `name` is the path of the output as the job has it, `flow` the name of the flow, `flow_run` the id of its run,
    `scheduled` the time of that, `deadline` when it is to be ready. `committed` are the folders that are published.
    """

    request: Request
    name: str
    flow: str
    flow_run: str
    scheduled: datetime | None
    deadline: datetime | None
    committed: Sequence[str]
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    end: Literal["COMPLETE", "FAIL", "ABORT"] = "COMPLETE"
    error: BaseException | None = None
    results: list[StageResult] = field(default_factory=list)
    samples: dict[str, usage.Workers] = field(default_factory=dict)

    @cached_property
    def files(self) -> dict[str, Sidecar]:
        """The files of `run.lineage` and `run.metrics`: their folders are resolved once a run."""
        return collector_files(self.request.run)

    def note(self, result: StageResult) -> None:
        """Note the result of a stage, and the samples of its workers, which are gone after the commit."""
        self.results.append(result)
        if self.request.run.metrics:
            self.samples[result.title] = monitor.load(samples_path(self.request.staging.folder, result.title))

    def check_files(self) -> None:
        """Raise a JobError where a run must not write one of its files."""
        check_sidecars([*self.files.values()], self.request.read_paths, self.request.staging)

    @property
    def first(self) -> Path | None:
        """The folder of the first split that is published; None where nothing is."""
        return Path(self.committed[0]) if self.committed else None

    @property
    def profile(self) -> Profile | None:
        """The profile of the rows that the run has read; None without one."""
        if self.first:
            return read_profile(self.first)
        return load_profile(self.request, whole_name(self.request.splits[0])) or load_profile(self.request, STATISTICS)

    @property
    def gate(self) -> GateNote | None:
        """What the gate has said of the run; None where it has not judged."""
        note = read_gate(self.first) if self.first else read_note(self.request.staging.folder)
        return note if note and note.verdicts else None
