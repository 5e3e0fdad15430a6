"""The run dates of a deployment: the days or hours in which its schedules start a run, and those with an output."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from flows.job.dates import texts_of
from flows.job.job import merge_maps, overlay_job, read_job, recipe_of
from infra.orchestration.deployment_file import FOLDER
from tasks.core.settings import Run
from tasks.core.strict_json import JsonObject
from tasks.errors import JobError
from tasks.job.run_date import as_glob, is_pattern, names_hour, parse_run_date, zone_of
from tasks.storage.allowed_roots import is_local
from tasks.storage.atomic import read_json
from tasks.storage.discarded import is_discarded
from tasks.storage.output_mirror import list_mirrors
from tasks.storage.own_files import FITTED, MANIFEST, SPLITS, find_description, versions_of
from tasks.storage.retention import read_removed_versions

STEP = timedelta(minutes=15)  # all hours of all zones begin at one of these
MOST_STARTS = 1000  # that a schedule of Prefect gives at once
BACKFILL = "rowmill-backfill"  # the tag of runs that `rowmill backfill` starts
TRAIN_LATER = "rowmill-train-later"  # the tag of those for which `rowmill backfill --train-once` trains at its end


@dataclass(frozen=True)
class Calendar:
    """The run dates of a job by their names: days, or, for a job that names hours, the beginnings of hours in UTC.

    Hours are those that passed: on the day on which the clocks go forward there are 23, and 25 when they go back.
    """

    timezone: str = "UTC"
    hourly: bool = False

    @property
    def unit(self) -> str:
        return "hour" if self.hourly else "day"

    def run_date_of(self, moment: datetime) -> date:
        """Return the run date of an instant.

        >>> Calendar("Europe/Berlin", hourly=True).run_date_of(datetime(2026, 10, 25, 1, 30, tzinfo=UTC)).isoformat()
        '2026-10-25T01:00:00+00:00'
        """
        return self._hour(moment) if self.hourly else moment.astimezone(zone_of(self.timezone)).date()

    def begin(self, run_date: date) -> datetime:
        """Return the instant at which a run date begins, in the time zone."""
        zone = zone_of(self.timezone)
        return run_date.astimezone(zone) if isinstance(run_date, datetime) else datetime.combine(run_date, time(), zone)

    def end(self, run_date: date) -> datetime:
        """Return the instant at which the next run date begins."""
        return self.begin(self.back(run_date, -1))

    def back(self, run_date: date, number: int) -> date:
        """Return the run date that lies `number` run dates before.

        Where clocks move by half an hour, as in Lord Howe, an hour at night lasts half or one and a half.

        >>> calendar = Calendar("Australia/Lord_Howe", hourly=True)
        >>> long = datetime(2026, 4, 4, 14, tzinfo=UTC)
        >>> calendar.back(long, -1).isoformat(), calendar.back(calendar.back(long, -1), 1) == long
        ('2026-04-04T15:30:00+00:00', True)
        """
        if not isinstance(run_date, datetime):
            return run_date - timedelta(days=number)
        for _ in range(number):
            run_date = self._hour(run_date - STEP)
        for _ in range(-number):
            later = run_date + STEP
            while self._hour(later) == run_date:
                later += STEP
            run_date = self._hour(later)
        return run_date

    def _hour(self, moment: datetime) -> datetime:
        local = moment.astimezone(zone_of(self.timezone))
        return local.replace(minute=0, second=0, microsecond=0).astimezone(UTC)

    def between(self, first: date, last: date) -> list[date]:
        """Return every run date from the first to the last, both included."""
        run_dates = []
        while first <= last:
            run_dates.append(first)
            first = self.back(first, -1)
        return run_dates

    def text(self, run_date: date) -> str:
        """Return the value of `run.date` that names a run date: `2026-11-22`, or `2026-11-22T03:00:00+01:00`."""
        return self.begin(run_date).isoformat(timespec="seconds") if self.hourly else run_date.isoformat()

    def format_run_date(self, run_date: date) -> str:
        """Write a run date for people: `2026-11-22`, or `2026-11-22 03:00+01:00`."""
        return self.begin(run_date).isoformat(" ", "minutes") if self.hourly else run_date.isoformat()

    def parse(self, text: str, where: str, is_last: bool = False) -> date:
        """Parse the run date that a text names; of a day that has hours the first one, or the last.

        A JobError, which names the option `where`, for a text that is not a day, and for an hour where there are days.
        """
        try:
            named = parse_run_date(text, self.timezone)
        except JobError as error:
            raise JobError(error.what, where=where, why=error.why, do=error.do) from None
        if not self.hourly:
            if named.has_hour:
                why = "the job names no {hour}: it has one run for each day"
                raise JobError(f"{text!r} is not a day", where=where, why=why, do=f"write {named.day}")
            return named.day
        if not is_last:
            return self.run_date_of(named.time)
        if not named.has_hour:
            return self.back(self.run_date_of(self.begin(named.day + timedelta(days=1))), 1)
        has_offset = datetime.fromisoformat(text.strip()).tzinfo is not None
        return self.run_date_of(named.time if has_offset else named.time.replace(fold=1))  # of an hour that comes twice


def calendar_of(job: JsonObject) -> Calendar:
    """Return the run dates of a job, which has an hour for each run where one of its texts names hours."""
    run = Run(**(job.get("run") or {}))
    return Calendar(run.timezone, any(map(names_hour, texts_of(job).values())))


@dataclass(frozen=True)
class DatedOutput:
    """An output, or a version of it, of one day or hour.

    `seconds` are those of the whole run, `stages` those of its stages, `nbytes` the size of the files of data.
    `is_removed`: a version that output.keep_versions has removed since; nothing is at its path.
    """

    day: date
    path: Path
    run: str = ""
    rows: int | None = None
    seconds: float | None = None
    stages: Mapping[str, float] = field(default_factory=dict)
    nbytes: int | None = None
    is_removed: bool = False


def find_published_outputs(
    output: str,
    folder: Path,
    calendar: Calendar | None = None,
    without_date: bool = False,
    options: str | Mapping[str, Any] | None = None,
) -> dict[date, DatedOutput]:
    """Find the newest published output of each run date by manifests and fitted workflows; discarded ones do not count.

    `output` is the path of a job as it was written, relative to `folder`; in the place of its date any text may stand.
    Run dates are days without a `calendar`. `without_date`: an output that names no date is of the day on which it was
    written; else it is left out. `options` are those of the storage, where the outputs are behind URLs.
    """
    calendar = calendar or Calendar()
    outputs = dict[date, DatedOutput]()
    for root in roots_of(output, folder, options):
        for path in _list_outputs(root):  # the newest last, which replaces those before it
            dated_output = _read_dated_output(path, calendar, without_date)
            if dated_output is not None:
                outputs[dated_output.day] = dated_output
    return outputs


def find_removed_outputs(
    output: str,
    folder: Path,
    calendar: Calendar | None = None,
    without_date: bool = False,
    options: str | Mapping[str, Any] | None = None,
) -> dict[date, DatedOutput]:
    """Find the run dates whose versions output.keep_versions has removed, as the outputs note it; parameters as in
    `find_published_outputs`."""
    calendar = calendar or Calendar()
    removed = dict[date, DatedOutput]()
    for root in roots_of(output, folder, options):
        for note in read_removed_versions(root):
            version = root / note.version
            day = _parse_day(note.date, note.run_date, note.created, calendar, without_date)
            if day is not None and not find_description(version):  # one that is still there speaks for itself
                removed[day] = DatedOutput(day, version, note.run, is_removed=True)
    return removed


def find_all_outputs(
    output: str,
    folder: Path,
    calendar: Calendar | None = None,
    without_date: bool = False,
    options: str | Mapping[str, Any] | None = None,
) -> dict[date, DatedOutput]:
    """Find the run dates of `find_published_outputs` and of `find_removed_outputs`; one that is in both is there."""
    # published ones first: what is removed meanwhile is among the removed ones then
    published = find_published_outputs(output, folder, calendar, without_date, options)
    removed = find_removed_outputs(output, folder, calendar, without_date, options)
    return {**removed, **published}


def roots_of(output: str, folder: Path, options: str | Mapping[str, Any] | None = None) -> list[Path]:
    """Return the folders that the path of a job may name, on whatever date; of an object store, their mirrors."""
    if not is_local(output):
        return list_mirrors(as_glob(output), options)
    pattern = str(folder / output)
    return sorted(Path("/").glob(as_glob(pattern).lstrip("/"))) if is_pattern(output) else [Path(_literal(pattern))]


def _literal(path: str) -> str:
    return path.replace("{{", "{").replace("}}", "}")


def _list_outputs(root: Path) -> Iterator[Path]:
    """Return the outputs at a path: itself, or its versions, the newest last."""
    yield root
    yield from versions_of(root)


def _read_dated_output(path: Path, calendar: Calendar, without_date: bool) -> DatedOutput | None:
    """Read the run date of an output; None for a folder that is not an output, and for one of no run date."""
    if is_discarded(path):
        return None
    notes = [_read_note(path / name) for name in (MANIFEST, *(f"{split}/{MANIFEST}" for split in SPLITS), FITTED)]
    existing = [note for note in notes if note]
    if not existing:
        return None
    first, *others = existing
    day = _parse_day(first.date, first.run_date, first.created, calendar, without_date)
    if day is None:
        return None
    stages = dict(first.stages)
    for name in ("transform", "shuffle_write"):  # once for each split; the stages before them are of both
        for other in others:
            if name in other.stages:
                stages[name] = stages.get(name, 0.0) + other.stages[name]
    counted = [note for note in (first, *others) if note.rows is not None]
    return DatedOutput(
        day=day,
        path=path,
        run=first.run,
        rows=sum(note.rows or 0 for note in counted) if counted else None,
        seconds=first.seconds,
        stages=stages,
        nbytes=sum(note.nbytes for note in counted) if counted else None,
    )


def _parse_day(text: str, run_date: str, created: str, calendar: Calendar, without_date: bool) -> date | None:
    """Find the run date of an output by the texts of its manifest: `dated.date`, `dated.run_date` and `created`.

    None where they name none.
    """
    try:
        if text and calendar.hourly:
            named = parse_run_date(run_date, calendar.timezone)
            return calendar.run_date_of(named.time) if named.has_hour else None
        if text:
            return date.fromisoformat(text)
        return calendar.run_date_of(datetime.fromisoformat(created)) if without_date else None
    except (ValueError, JobError):
        return None


@dataclass(frozen=True)
class _Note:
    """The figures of a manifest or of a fitted workflow; empty where it does not have them."""

    date: str
    run_date: str
    created: str
    run: str
    rows: int | None
    seconds: float | None
    stages: Mapping[str, float]
    nbytes: int


def _read_note(path: Path) -> _Note | None:
    """Read the note in a file; None where there is none. What was read once is not read again while the file stays."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _parse_note(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=10_000)
def _parse_note(path: Path, _changed: int, _size: int) -> _Note | None:
    content = read_json(path)
    if not isinstance(content, dict):
        return None

    def section(name: str) -> JsonObject:
        value = content.get(name)
        return value if isinstance(value, dict) else {}

    def number(value: object) -> float | None:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    stages = {str(name): number(one.get("seconds")) for name, one in section("stages").items() if isinstance(one, dict)}
    parts = content.get("parts")
    sizes = [number(one.get("bytes")) for one in parts if isinstance(one, dict)] if isinstance(parts, list) else []
    rows = number(section("rows").get("out"))
    return _Note(
        date=str(section("dated").get("date", "")),
        run_date=str(section("dated").get("run_date", "")),
        created=str(content.get("created", "")),
        run=str(content.get("run", "")),
        rows=None if rows is None else int(rows),
        seconds=number(content.get("seconds")),
        stages={name: seconds for name, seconds in stages.items() if seconds is not None},
        nbytes=int(sum(size for size in sizes if size is not None)),
    )


@dataclass(frozen=True)
class DeployedJob:
    """A deployment with its job, from which its run dates and their outputs follow.

    `output` is written as in its job, relative to `folder`. `is_paused`: none of its schedules starts runs now.
    """

    name: str
    id: Any
    created: datetime
    schedules: tuple[Any, ...]
    job: JsonObject
    folder: Path
    is_paused: bool = False

    @property
    def output(self) -> str:
        """The path of the outputs; of a refit that names none, its base, of which it writes a new version."""
        return str((self.job.get("output") or {}).get("path") or self.job.get("base") or "")

    @property
    def storage_options(self) -> str | Mapping[str, Any] | None:
        """The options of the storage in which the outputs are."""
        options: str | None = (self.job.get("output") or {}).get("storage_options")
        return options

    @property
    def writes_versions(self) -> bool:
        output = self.job.get("output") or {}
        return output.get("on_existing", "version" if not output.get("path") else "") == "version"

    @property
    def run(self) -> Run:
        return Run(**(self.job.get("run") or {}))

    @property
    def calendar(self) -> Calendar:
        return calendar_of(self.job)

    @property
    def has_date(self) -> bool:
        """Whether the job names a date, so that an output is of a run date."""
        return any(map(is_pattern, texts_of(self.job).values()))

    def find_published_outputs(self) -> dict[date, DatedOutput]:
        """Find the newest output of each run date; without a date, of each day on which outputs were written."""
        return find_published_outputs(self.output, self.folder, self.calendar, not self.has_date, self.storage_options)

    def find_all_outputs(self) -> dict[date, DatedOutput]:
        """Find the published output of each run date, and the versions that output.keep_versions has removed since."""
        return find_all_outputs(self.output, self.folder, self.calendar, not self.has_date, self.storage_options)

    def today(self) -> date:
        """Return the run date of a run that starts now."""
        return self.calendar.run_date_of(datetime.now(UTC))

    def find_last_run_date(self) -> date:
        """Find the last run date whose run should have started: today's, or the one before if today's starts later."""
        today = self.today()
        now = datetime.now(UTC)
        end = self.calendar.end(today).astimezone(UTC)
        begun = bool(self.list_scheduled_run_dates(today, today))
        later = any(True for schedule in self.schedules for _ in _list_starts(schedule, now, end))
        return self.calendar.back(today, 1) if later and not begun else today

    def list_scheduled_run_dates(self, first: date, last: date) -> list[date]:
        """List the run dates of a range on which the schedules have started, or should have started, a run.

        Without a schedule these are all run dates up to now.
        """
        calendar = self.calendar
        run_dates = calendar.between(first, min(last, self.today()))
        if not self.schedules or not run_dates:
            return run_dates
        start = calendar.begin(run_dates[0]).astimezone(UTC)
        end = min(calendar.end(run_dates[-1]).astimezone(UTC), datetime.now(UTC))
        started = {calendar.run_date_of(at) for schedule in self.schedules for at in _list_starts(schedule, start, end)}
        return [run_date for run_date in run_dates if run_date in started]

    def find_first_run_date(self) -> date:
        """Find the first published run date; that in which the deployment was made where none is published."""
        return min(self.find_all_outputs(), default=self.calendar.run_date_of(self.created))

    def missing(self, first: date | None = None, last: date | None = None) -> list[date]:
        """List the run dates of a range that never had a published output; by default from the first one until now."""
        outputs = self.find_all_outputs()
        run_dates = self.list_scheduled_run_dates(first or self.find_first_run_date(), last or self.today())
        return [run_date for run_date in run_dates if run_date not in outputs]

    def check(self) -> None:
        """Raise a JobError if the job cannot have one output for each of its run dates."""
        if not self.has_date:
            why = "every day would read the same rows"
            do = "write {date} or {date-1} into a path"
            raise JobError(f"the job of {self.name} names no date", where="source.path", why=why, do=do)
        unit = self.calendar.unit
        is_own = names_hour if self.calendar.hourly else is_pattern
        if not is_own(self.output) and not self.writes_versions:
            raise JobError(
                f"all {unit}s of {self.name} write the same output",
                where=f"output.path: {self.output}",
                why="each run would replace the output of the one before",
                do=f"write {{{'hour' if unit == 'hour' else 'date'}}} into output.path, or output.on_existing: version",
            )


def make_deployed_job(name: str, deployment: Any) -> DeployedJob:
    """Join a deployment of the server with the job that its parameters, job file and recipe give."""
    environment = (deployment.job_variables or {}).get("env") or {}
    folder = Path(environment.get(FOLDER) or Path.cwd())
    parameters = deployment.parameters or {}
    data = {key: value for key, value in parameters.items() if key != "dry_run" and value is not None}
    if file := data.pop("job", None):
        data = overlay_job(read_job(str(file), folder), data)
    schedules = tuple(one.schedule for one in deployment.schedules or ())
    paused = bool(deployment.paused) or not any(one.active for one in deployment.schedules or ())
    return DeployedJob(
        name=name,
        id=deployment.id,
        created=deployment.created,
        schedules=schedules,
        job=merge_maps(recipe_of(data), data),
        folder=folder,
        is_paused=paused,
    )


def _list_starts(schedule: Any, start: datetime, end: datetime) -> Iterator[datetime]:
    """Return the times from `start` until before `end` at which a schedule of Prefect starts a run.

    The schedule is asked for one day after another, since it gives 1,000 times at most; and from some hours before,
    since from within an hour that comes twice it gives none in it.
    """
    from prefect.server.schemas import schedules

    kinds: JsonObject = {
        "cron": schedules.CronSchedule,
        "interval": schedules.IntervalSchedule,
        "rrule": schedules.RRuleSchedule,
    }
    kind = next((kind for key, kind in kinds.items() if hasattr(schedule, key)), None)
    if kind is None:
        return
    known = kind.model_validate(schedule.model_dump(include=set(kind.model_fields)))
    while start < end:
        until = min(start + timedelta(days=1), end)
        for at in asyncio.run(known.get_dates(n=MOST_STARTS, start=start - timedelta(hours=3), end=until)):
            if start <= at < until:
                yield at
        start = until
