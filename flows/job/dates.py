"""The date of a job: which places may hold `{date}` and `{hour}`, and what they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple

from tasks.core.settings import Run, S
from tasks.core.strict_json import JsonObject
from tasks.job.run_date import Dated, RunDate, is_pattern, parse_run_date, resolve_patterns, run_date_at

DateOf = Callable[[Run], RunDate]
# Where a job may hold a date; braces anywhere else are ordinary text. In texts a place is written as `source.path`, and
# as `source.path[1]` for an item of a list.
PLACES = (
    ("source", "path"),
    ("source", "delta"),
    ("source", "as_of"),
    ("source", "valid"),
    ("source", "filter"),
    ("source", "bad_lines"),
    ("output", "path"),
    ("fitted",),
    ("base",),
    ("refit", "learn_from"),
)


class Resolved(NamedTuple, Generic[S]):
    """A job (or an application) whose patterns are resolved."""

    job: S
    dated: Dated | None  # None without patterns and without `run.date`
    written: dict[str, str]  # by place, the texts with braces, as the author of the job wrote them


def date_of_run_now(run: Run) -> RunDate:
    """Return the date of a run that starts now: that of `run.date`, else the time of its start."""
    if run.date is not None:
        return parse_run_date(run.date, run.timezone)
    return run_date_at(datetime.now(UTC), run.timezone, "started")


def resolve_job(job: S, date_of: DateOf = date_of_run_now) -> Resolved[S]:
    """Replace the patterns of a job by what they become on the date of its run.

    A job without patterns has a date only if `run.date` is given: then its output is of that date.
    """
    run: Run = job.run  # type: ignore[attr-defined]
    written = {place: text for place, text in texts_of(job).items() if "{" in text or "}" in text}
    if not written and run.date is None:
        return Resolved(job, None, {})
    run_date = date_of(run)
    values = {place: resolve_patterns(text, run_date, place) for place, text in written.items()}
    resolved = {place: (text, values[place]) for place, text in written.items() if is_pattern(text)}
    if not resolved and run.date is None:  # only doubled braces, which stand for braces: the job has no date
        return Resolved(_replace_texts(job, values), None, written)
    return Resolved(_replace_texts(job, values), Dated(run_date, resolved), written)


def with_patterns(data: JsonObject, patterns: Mapping[str, str]) -> JsonObject:
    """Put texts back at their places in the plain values of a job, as the job's author wrote them; return a copy.

    >>> with_patterns({"source": {"path": ["a", "b"]}}, {"source.path[1]": "{date}"})
    {'source': {'path': ['a', '{date}']}}
    """
    data = dict(data)
    for place, pattern in patterns.items():
        path, bracket, index = place.partition("[")
        *sections, key = path.split(".")
        section = data
        for name in sections:
            copy = dict(section[name])
            section[name] = copy
            section = copy
        if bracket:
            section[key] = list(section[key])
            section[key][int(index[:-1])] = pattern
        else:
            section[key] = pattern
    return data


def texts_of(job: object) -> dict[str, str]:
    """Collect the texts of a job, as a model or as plain values, that may hold a date, by their places."""
    texts: dict[str, str] = {}
    for path in PLACES:
        value = job
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        place = ".".join(path)
        if isinstance(value, str):
            texts[place] = value
        elif isinstance(value, list):
            texts |= {f"{place}[{index}]": text for index, text in enumerate(value)}
    return texts


def _replace_texts(job: S, values: Mapping[str, str]) -> S:
    """Return the job with other texts at some places."""
    for path in PLACES:
        place = ".".join(path)
        replacements = {key: text for key, text in values.items() if key.partition("[")[0] == place}
        if not replacements:
            continue
        is_of_job = len(path) == 1  # `fitted` and `base` are in no section
        section: Any = job if is_of_job else getattr(job, path[0])
        value: Any = replacements.get(place)
        if value is None:
            texts = getattr(section, path[-1])
            value = [replacements.get(f"{place}[{index}]", text) for index, text in enumerate(texts)]
        section = section.model_copy(update={path[-1]: value})
        job = section if is_of_job else job.model_copy(update={path[0]: section})
    return job
