"""The content of a preview, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flows.job.run_history import Guess
from flows.preview.readings import Reading
from flows.preview.split_files import SplitFiles
from flows.preview.storage_traffic import StorageTraffic
from infra.clusters.expected import ExpectedWorkers
from tasks.core.plan import Plan
from tasks.core.schema import Schema
from tasks.core.settings import Source
from tasks.errors import RowmillError
from tasks.job.run_date import Dated
from tasks.stages.needs import ResourceEstimate
from tasks.stages.trial import Sampled


@dataclass(frozen=True)
class Preview:
    """The content of a preview. `scale` is above 1 where the plans are of fewer look-alike rows than the job makes."""

    target: str
    workers: ExpectedWorkers
    plans: Mapping[str, Plan]
    source: Schema
    job_source: Source
    sample: Sampled
    readings: list[Reading]
    needs: ResourceEstimate | None
    files: dict[str, SplitFiles]
    guess: Guess | None
    traffic: StorageTraffic | None = None
    refused: list[RowmillError] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    united: list[str] = field(default_factory=list)
    contract: list[str] = field(default_factory=list)
    bad_lines: str = ""
    made_up: str = ""
    scale: float = 1.0
    dated: Dated | None = None
    base: str = ""
    modes: list[dict[str, str]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return int(sum(plan.rows for plan in self.plans.values()) * self.scale)

    @property
    def nbytes(self) -> int:
        return int(sum(plan.nbytes for plan in self.plans.values()) * self.scale)
