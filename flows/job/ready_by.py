"""The end of a run that has a time to be ready: `run.ready_by`, expected from earlier nights and from its progress.

Pure functions of times and figures: no clock, no Prefect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from statistics import median
from typing import Any

from tasks.core.settings import STAGES
from tasks.job.run_date import zone_of

LEAST_NIGHTS = 3  # from which on the end of a run is expected
MOST_NIGHTS = 14  # the newest ones, whose medians are usual
LEAST_SHARE = 0.1  # of a stage, from which on its own speed counts
SLACK = 0.1  # of the time that is left: a run that is late by less than this may still be in time
GREW = 1.1  # a stage that takes so many times its usual seconds has grown


def deadline(ready_by: str, timezone: str, scheduled: datetime) -> datetime:
    """The first time of day `ready_by` after the scheduled time of a run: of the day on which it starts, or of the next
    one, where the run starts later in the day.

    >>> from datetime import UTC
    >>> deadline("06:00", "Europe/Berlin", datetime(2026, 11, 21, 23, 30, tzinfo=UTC)).isoformat()
    '2026-11-22T06:00:00+01:00'
    >>> deadline("06:00", "Europe/Berlin", datetime(2026, 11, 21, 21, 30, tzinfo=UTC)).isoformat()
    '2026-11-22T06:00:00+01:00'
    """
    zone = zone_of(timezone)
    local, clock = scheduled.astimezone(zone), time.fromisoformat(ready_by)
    today = datetime.combine(local.date(), clock, zone)
    is_over = today.timestamp() <= scheduled.timestamp()
    return datetime.combine(local.date() + timedelta(days=1), clock, zone) if is_over else today


@dataclass(frozen=True)
class StageProgress:
    """How far a run is: the seconds of the stages that are done, over all splits, and of the one that runs.

    `rows` is None until the source is planned; `share` is the part of the running stage that is done, None if
    unknown; `remaining` names the stages that have not begun.
    """

    rows: int | None
    done: Mapping[str, float]
    running: str = ""
    seconds: float = 0.0
    share: float | None = None
    remaining: Sequence[str] = ()


@dataclass(frozen=True)
class Stage:
    """The seconds that a stage takes now, or will take, and those of earlier nights."""

    name: str
    seconds: float
    usual: float

    @property
    def growth(self) -> float:
        return self.seconds / self.usual if self.usual > 0 else 1.0


@dataclass(frozen=True)
class Forecast:
    """The expected end of a run, and its stages beside those of the last `nights`."""

    end: datetime
    left: float
    rows: int | None = None
    usual_rows: float = 0.0
    nights: int = 0
    stages: Sequence[Stage] = field(default_factory=tuple)

    def is_late(self, limit: datetime) -> bool:
        """Whether the run is expected after its limit by more than such an expectation errs."""
        return (self.end - limit).total_seconds() > SLACK * self.left

    @property
    def grown(self) -> Stage | None:
        """The stage that takes the most seconds more than usual; None where none has grown."""
        stages = [stage for stage in self.stages if stage.growth > GREW]
        return max(stages, key=lambda stage: stage.seconds - stage.usual, default=None)

    @property
    def reason(self) -> str:
        """What takes longer than usual, as a sentence; empty where nothing does, or if unknown."""
        stage = self.grown
        if stage is None:
            return ""
        text = f"{stage.name} takes {duration(stage.seconds)} instead of {duration(stage.usual)}"
        text += f" on the last {self.nights} nights"
        if self.rows is None or not self.usual_rows:
            return text
        more_rows = self.rows / self.usual_rows
        slower = stage.growth / max(more_rows, 1e-9)
        counts = f"{self.rows:,} instead of {self.usual_rows:,.0f}"
        if more_rows >= slower:
            return f"{text}: the rows grew {more_rows:.1f} x ({counts})"
        return f"{text}: the seconds per row grew {slower:.1f} x (rows: {counts})"


def forecast(now: datetime, progress: StageProgress, nights: Sequence[Mapping[str, Any]]) -> Forecast | None:
    """The expected end of a run; None without enough earlier nights of its job.

    `nights` are recorded figures of runs (`flows.job.run_history`: rows, and seconds by stage), the oldest first.
    A stage that has not begun takes its usual seconds per row; one that runs goes on as fast as it is.
    """
    nights = [night for night in nights if night["seconds"]][-MOST_NIGHTS:]
    if len(nights) < LEAST_NIGHTS:
        return None
    usual_rows = median(night["rows"] for night in nights)
    factor = 1.0 if progress.rows is None else progress.rows / usual_rows
    usual, expected = {}, {}
    for name in STAGES:
        seconds = [night["seconds"][name] for night in nights if name in night["seconds"]]
        rates = [night["seconds"][name] / night["rows"] for night in nights if name in night["seconds"]]
        if seconds:
            usual[name] = median(seconds)
            expected[name] = median(rates) * usual_rows * factor
    stages, left = [], 0.0
    for name in STAGES:
        before, known = progress.done.get(name, 0.0), expected.get(name, 0.0)
        if name == progress.running:
            own = max(known - before, progress.seconds)
            if progress.share is not None and progress.share >= LEAST_SHARE:
                alone = progress.seconds / progress.share
                own = max(alone, known - before) if name in progress.remaining else alone
            left += own - progress.seconds
            total = before + own
        elif name in progress.remaining:
            total = max(known, before)
            left += total - before
        else:
            total = before
        if name in usual and (total or name in progress.done):
            stages.append(Stage(name, total, usual[name]))
    end = now + timedelta(seconds=left)
    return Forecast(end, left, progress.rows, usual_rows, len(nights), tuple(stages))


def duration(seconds: float) -> str:
    """
    >>> duration(4.2), duration(75), duration(7300)
    ('4.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
