"""The nights of a deployment: the days on which its schedules start a run, and those whose output is published."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from flows.job.dates import texts_of
from flows.job.job import laid_over, merged, read_yaml, recipe_of
from infra.orchestration.deployment_file import FOLDER
from tasks.core.settings import Run
from tasks.errors import JobError
from tasks.job.run_date import as_glob, is_pattern, names_hour, zone_of
from tasks.storage.atomic import read_json
from tasks.storage.discarded import is_discarded
from tasks.storage.own_files import FITTED, MANIFEST, SPLITS, VERSION

BACKFILL = "millrace-backfill"  # the tag of runs that `millrace backfill` starts


@dataclass(frozen=True)
class Night:
    """An output, or a version of it, of one day."""

    day: date
    path: Path
    run: str = ""
    rows: int | None = None
    seconds: float | None = None


def published(output: str, folder: Path) -> dict[date, Night]:
    """The newest published output of each day, as manifests and fitted workflows say it; discarded ones do not count.

    `output` is the path of a job as it was written, relative to `folder`; in the place of its date any text may stand.
    """
    pattern = str(folder / output)
    roots = sorted(Path("/").glob(as_glob(pattern).lstrip("/"))) if is_pattern(output) else [Path(_literal(pattern))]
    nights: dict[date, Night] = {}
    for path in (place for root in roots for place in _outputs(root)):
        if (night := _night(path)) is not None:
            nights[night.day] = night
    return nights


def _literal(path: str) -> str:
    return path.replace("{{", "{").replace("}}", "}")


def _outputs(root: Path) -> Iterator[Path]:
    """The outputs at a path: itself, or its versions, the newest last."""
    yield root
    versions = [path for path in root.glob("v*") if VERSION.fullmatch(path.name)] if root.is_dir() else []
    yield from sorted(versions, key=lambda path: int(path.name[1:]))


def _night(path: Path) -> Night | None:
    if is_discarded(path):
        return None
    for note in (path / MANIFEST, path / SPLITS[0] / MANIFEST, path / FITTED):
        content = read_json(note)
        dated = content.get("dated") if isinstance(content, dict) else None
        if not isinstance(dated, dict):
            continue
        rows = content.get("rows")
        try:
            day = date.fromisoformat(dated["date"])
        except (KeyError, TypeError, ValueError):
            continue
        return Night(
            day, path, str(content.get("run", "")), rows.get("out") if isinstance(rows, dict) else None,
            content.get("seconds"),
        )  # fmt: skip
    return None


@dataclass(frozen=True)
class Deployed:
    """What a deployment says of its nights; `output` is written as in its job, relative to `folder`."""

    name: str
    id: Any
    created: datetime
    schedules: tuple[Any, ...]
    job: Mapping[str, Any]
    folder: Path

    @property
    def output(self) -> str:
        return str((self.job.get("output") or {}).get("path", ""))

    @property
    def run(self) -> Run:
        return Run(**(self.job.get("run") or {}))

    def published(self) -> dict[date, Night]:
        return published(self.output, self.folder)

    def today(self) -> date:
        return datetime.now(UTC).astimezone(zone_of(self.run.timezone)).date()

    def scheduled_days(self, first: date, last: date) -> list[date]:
        """The days of a range on which the schedules have started, or should have started, a run; all of them up to
        today where there is no schedule."""
        zone, now = zone_of(self.run.timezone), datetime.now(UTC)
        days = [day for day in days_between(first, last) if day <= self.today()]
        if not self.schedules:
            return days

        def has_run(day: date) -> bool:
            start = datetime.combine(day, time(), zone)
            end = min(datetime.combine(day + timedelta(days=1), time(), zone).astimezone(UTC), now)
            return any(_starts(schedule, start, end) for schedule in self.schedules)

        return [day for day in days if has_run(day)]

    def first_day(self) -> date:
        """The first published day; the day on which the deployment was made where none is published."""
        return min(self.published(), default=self.created.astimezone(zone_of(self.run.timezone)).date())

    def missing(self, first: date | None = None, last: date | None = None) -> list[date]:
        """The days of a range, by default from the first one until now, that have no published output."""
        nights = self.published()
        return [
            day for day in self.scheduled_days(first or self.first_day(), last or self.today()) if day not in nights
        ]

    def check(self) -> None:
        """A JobError if the job cannot have one output for each day."""
        texts = texts_of(self.job)
        if not any(is_pattern(text) for text in texts.values()):
            why, do = "every day would read the same rows", "write {date} or {date-1} into a path"
            raise JobError(f"the job of {self.name} names no date", where="source.path", why=why, do=do)
        hours = [f"{place}: {text}" for place, text in texts.items() if names_hour(text)]
        if hours:
            raise JobError(f"the job of {self.name} names hours, and a backfill makes a run for each day",
                           where=hours[0], do="write {date} instead")  # fmt: skip
        if not is_pattern(self.output) and (self.job.get("output") or {}).get("on_existing") != "version":
            raise JobError(f"the days of {self.name} have one output", where=f"output.path: {self.output}",
                           why="each would replace the one before",
                           do="write {date} into output.path, or output.on_existing: version")  # fmt: skip


def deployed(name: str, deployment: Any) -> Deployed:
    """A deployment of the server with the job that its parameters, job file and recipe give."""
    environment = (deployment.job_variables or {}).get("env") or {}
    folder = Path(environment.get(FOLDER) or Path.cwd())
    parameters = deployment.parameters or {}
    data = {key: value for key, value in parameters.items() if key != "dry_run" and value is not None}
    if file := data.pop("job", None):
        data = laid_over(read_yaml(folder / str(file)), data)
    schedules = tuple(one.schedule for one in deployment.schedules or ())
    return Deployed(name, deployment.id, deployment.created, schedules, merged(recipe_of(data), data), folder)


def days_between(first: date, last: date) -> list[date]:
    """Every day from the first to the last, both included."""
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def _starts(schedule: Any, start: datetime, end: datetime) -> bool:
    """Whether a schedule of Prefect starts a run from `start` until before `end`."""
    from prefect.server.schemas import schedules

    kinds: dict[str, Any] = {
        "cron": schedules.CronSchedule, "interval": schedules.IntervalSchedule, "rrule": schedules.RRuleSchedule,
    }  # fmt: skip
    kind = next((kind for key, kind in kinds.items() if hasattr(schedule, key)), None)
    if kind is None or end <= start:
        return False
    known = kind.model_validate(schedule.model_dump(include=set(kind.model_fields)))
    starts = asyncio.run(known.get_dates(n=1, start=start, end=end))
    return any(start <= one < end for one in starts)
