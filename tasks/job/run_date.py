"""The date of a run, and the texts of a job that hold it: `logs/{date-1:%Y/%m/%d}`.

Pure functions of a text, a time and a time zone: no clock, no Prefect.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from tasks.core.strict_json import JsonObject
from tasks.errors import JobError, near
from tasks.manifest import ORIGINS

Origin = Literal["run.date", "scheduled", "started", "begun"]
NAMES = ("date", "hour")
FORMATS = {"date": "%Y-%m-%d", "hour": "%H"}
# Directives of strftime that give the same text on every host, whatever its language.
DAY_DIRECTIVES = {*"YmdyjGVuwUWF%"}
TIME_DIRECTIVES = {*"HMSzT"}
WITHOUT_ZEROS = {*"mdjHMS"}  # `%-d`: 1 instead of 01
BRACES = re.compile(r"\{\{|\}\}|\{(?P<inside>[^{}]*)\}|[{}]")
PATTERN = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(?P<shift>[+-]\s*\d+)?\s*(?::(?P<format>.*))?", re.DOTALL)
DIRECTIVE = re.compile(r"%(?P<flag>-?)(?P<directive>.?)", re.DOTALL)
SHIFT_LIMIT = 100_000


@dataclass(frozen=True)
class RunDate:
    """The time that the patterns of a run stand for, in the run's time zone, and where it comes from.

    `origin`: run.date, the schedule, the start of a run by hand, or an earlier run that was begun and not published.
    `has_hour` is false where `run.date` names a day alone.
    """

    time: datetime
    timezone: str
    origin: Origin
    has_hour: bool = True

    @property
    def day(self) -> date:
        return self.time.date()

    @property
    def text(self) -> str:
        """The value of `run.date` that gives this date again: `2026-11-22`, or `2026-11-22T02:00:00+01:00`."""
        return self.time.isoformat(timespec="seconds") if self.has_hour else self.day.isoformat()

    @property
    def sentence(self) -> str:
        """The date and where it comes from, for logs."""
        at = self.time.isoformat(sep=" ", timespec="minutes")
        return f"{self.day}, {ORIGINS[self.origin].format(at=at)} ({self.timezone})"


def zone_of(timezone: str) -> ZoneInfo:
    """Return the time zone of an IANA name; a JobError names similar ones."""
    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        raise JobError(
            f"there is no time zone {timezone!r}",
            where="run.timezone",
            do=near(timezone, sorted(available_timezones())),
        ) from None


def run_date_at(instant: datetime, timezone: str, origin: Origin) -> RunDate:
    """Return the date of a run whose scheduled time, or start, is an instant with an offset.

    >>> run_date_at(datetime(2026, 11, 21, 23, 30, tzinfo=UTC), "Europe/Berlin", "scheduled").day
    datetime.date(2026, 11, 22)
    """
    return RunDate(instant.astimezone(zone_of(timezone)), timezone, origin)


def parse_run_date(text: str, timezone: str, origin: Origin = "run.date") -> RunDate:
    """Parse `run.date`: a day, or a day with a time, in the time zone unless an offset is given.

    A JobError for another text, and for a time that the change to daylight saving time leaves out. Of an hour that
    comes twice the first one counts; an offset names the other.

    >>> parse_run_date("2026-11-22T02:00", "Europe/Berlin").text
    '2026-11-22T02:00:00+01:00'
    """
    zone = zone_of(timezone)
    do = "write a day, 2026-11-22, or a day with a time, 2026-11-22T02:00"
    stripped = text.strip()
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", stripped):
            return RunDate(datetime.combine(date.fromisoformat(stripped), time(), zone), timezone, origin, False)
        if not re.match(r"\d{4}-\d\d-\d\d[T ]\d\d", stripped):
            raise ValueError("it is neither a day nor a day with a time")
        moment = datetime.fromisoformat(stripped)
        local = moment.replace(tzinfo=zone) if moment.tzinfo is None else moment.astimezone(zone)
        back = local.astimezone(UTC).astimezone(zone)
    except (ValueError, OverflowError) as error:  # beyond the years 1 to 9999 in another time zone
        raise JobError(f"{text!r} is not a date", where="run.date", why=str(error), do=do) from None
    if moment.tzinfo is None and back.replace(tzinfo=None) != moment:
        raise JobError(
            f"there is no {stripped} in {timezone}",
            where="run.date",
            why="the clocks went forward over it",
            do="give a time before or after it",
        )
    return RunDate(local, timezone, origin)


def is_pattern(text: object) -> bool:
    """Return whether a text holds a date or an hour; literal braces are none.

    >>> is_pattern("logs/{date-1}"), is_pattern("logs/{{date}}"), is_pattern("logs")
    (True, False, False)
    """
    return isinstance(text, str) and any(match["inside"] is not None for match in BRACES.finditer(text))


def as_glob(path: str) -> str:
    """Convert a path to a glob pattern in which any text may take the place of a date.

    >>> as_glob("out/{date}/{{a}}[1]"), as_glob("out/{date:%Y/%m}")
    ('out/*/{a}[[]1]', 'out/*/*')
    """
    parts = []
    end = 0
    for match in BRACES.finditer(path):
        folders = (match["inside"] or "").count("/")  # of a format: {date:%Y/%m/%d}
        stars = "/".join(["*"] * (folders + 1))
        parts += [glob.escape(path[end : match.start()]), match[0][0] if match["inside"] is None else stars]
        end = match.end()
    return "".join([*parts, glob.escape(path[end:])])


def names_hour(text: str) -> bool:
    """Return whether a text holds an hour."""
    return any((match["inside"] or "").strip().startswith("hour") for match in BRACES.finditer(text))


def find_fixed_folder(path: str) -> str:
    """Find the folder of a path before its first pattern or wildcard: the same for all dates.

    >>> find_fixed_folder("logs/shop/{date}/*.parquet"), find_fixed_folder("/logs/day-{date}")
    ('logs/shop', '/logs')
    >>> find_fixed_folder("{date}")
    ''
    """
    return re.split(r"[{*?\[]", path, maxsplit=1)[0].rpartition("/")[0]


def resolve_patterns(text: str, run_date: RunDate, where: str = "") -> str:
    """Replace the patterns in a text by the date; `{{` and `}}` are braces.

    `{date}` is the day, `{date-1}` the day before (calendar days, however many hours they have), `{hour}` the hour,
    `{hour-1}` the one before (hours that passed: over a change of the clocks none is left out and none comes twice,
    told apart by `%z`). A format of strftime may follow: `{date-1:%Y/%m/%d}`. Without one: `%Y-%m-%d` and `%H`.

    >>> resolve_patterns("logs/{date-1:%Y/%m/%d}/{{a}}", parse_run_date("2026-03-01", "UTC"))
    'logs/2026/02/28/{a}'
    """

    def replace_braces(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match["inside"] is None:
            raise JobError(f"a brace of {text!r} has no partner", where=where, do="write {{ or }} for a brace itself")
        return _resolve_pattern(match["inside"], text, run_date, where)

    return BRACES.sub(replace_braces, text)


def _resolve_pattern(inside: str, text: str, run_date: RunDate, where: str) -> str:
    """Resolve one pair of braces."""
    match = PATTERN.fullmatch(inside)
    if match is None or match["name"] not in NAMES:
        name = match["name"] if match else inside
        do = "write {date}, {date-1}, {hour} or, with a format, {date:%Y/%m/%d}; {{ and }} are braces themselves"
        close = near(name, NAMES)
        do = f"{close} {do}" if close.startswith("did") else do
        raise JobError(f"there is no {{{inside}}}", where=where, why=f"in {text!r}", do=do)
    name = match["name"]
    shift = int((match["shift"] or "0").replace(" ", ""))
    if name == "hour" and not run_date.has_hour:
        raise JobError(
            f"run.date has no hour, and {{{inside}}} needs one",
            where=where,
            do=f"write run.date with a time: {run_date.day}T02:00",
        )
    if abs(shift) > SHIFT_LIMIT:
        raise JobError(f"{{{inside}}} is out of reach", where=where, do=f"at most {SHIFT_LIMIT:,} days or hours")
    format = match["format"] or FORMATS[name]
    _check_format(format, name, inside, where)
    try:
        if name == "date":
            return (run_date.day + timedelta(days=shift)).strftime(_portable(format))
        instant = run_date.time.astimezone(UTC) + timedelta(hours=shift)
        return instant.astimezone(run_date.time.tzinfo).strftime(_portable(format))
    except OverflowError:
        raise JobError(f"{{{inside}}} is out of reach", where=where, why="years go from 1 to 9999") from None


def _portable(format: str) -> str:
    return format.replace("%F", "%Y-%m-%d").replace("%T", "%H:%M:%S")


def _check_format(format: str, name: str, inside: str, where: str) -> None:
    """Raise a JobError for a directive that is unknown, differs from host to host, or needs a time that a day lacks."""
    for match in DIRECTIVE.finditer(format):
        directive = match["directive"]
        known = DAY_DIRECTIVES | TIME_DIRECTIVES
        if directive not in known or (match["flag"] and directive not in WITHOUT_ZEROS):
            listed = " ".join(f"%{one}" for one in sorted(known))
            raise JobError(
                f"{{{inside}}} has the unknown directive {match[0]!r}",
                where=where,
                do=f"there are: {listed}; %-d is without zeros",
            )
        if name == "date" and directive in TIME_DIRECTIVES:
            raise JobError(
                f"{{{inside}}} is a day, and {match[0]!r} needs a time", where=where, do=f"write {{hour:{format}}}"
            )


@dataclass(frozen=True)
class Dated:
    """The date of a run, and what the patterns of its job became: by place in the job (pattern, text)."""

    run_date: RunDate
    became: Mapping[str, tuple[str, str]]

    def to_json(self) -> JsonObject:
        """Convert to plain values, as manifests and notes have it."""
        return {
            "date": self.run_date.day.isoformat(),
            "run_date": self.run_date.text,
            "timezone": self.run_date.timezone,
            "origin": self.run_date.origin,
            "became": {place: {"pattern": pattern, "text": text} for place, (pattern, text) in self.became.items()},
        }

    @property
    def lines(self) -> list[str]:
        """What each pattern became, for people: `source.path: logs/{date-1} is logs/2026-11-22`."""
        return [f"{place}: {pattern} is {text}" for place, (pattern, text) in self.became.items()]
