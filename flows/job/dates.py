"""The date of a job: which places may hold `{date}` and `{hour}`, and what they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tasks.core.settings import Run, S
from tasks.core.strict_json import JsonObject
from tasks.job.run_date import Dated, RunDate, is_pattern, parse_run_date, resolve_patterns, run_date_at

DateOf = Callable[[Run], RunDate]
PLACES = (
    ("source", "path"),
    ("source", "valid"),
    ("source", "filter"),
    ("source", "bad_lines"),
    ("output", "path"),
    ("fitted",),
    ("base",),
    ("refit", "learn_from"),
)


def date_of_run_now(run: Run) -> RunDate:
    """The date of a run that is typed now: that of `run.date`, else the time of its start."""
    if run.date is not None:
        return parse_run_date(run.date, run.timezone)
    return run_date_at(datetime.now(UTC), run.timezone, "started")


def with_date(job: S, date_of: DateOf = date_of_run_now) -> tuple[S, Dated | None, dict[str, str]]:
    """(the job or application with its patterns resolved, its date, the texts with braces as they were written).

    Braces count in the places of PLACES alone. The date is None for a job without patterns, unless `run.date` is given:
    then its output is of that date.
    """
    run: Run = job.run  # type: ignore[attr-defined]
    texts = {place: text for place, text in texts_of(job).items() if "{" in text or "}" in text}
    if not texts and run.date is None:
        return job, None, {}
    run_date = date_of(run)
    values = {place: resolve_patterns(text, run_date, place) for place, text in texts.items()}
    became = {place: (text, values[place]) for place, text in texts.items() if is_pattern(text)}
    if not became and run.date is None:
        return _replace_texts(job, values), None, texts
    return _replace_texts(job, values), Dated(run_date, became), texts


def with_patterns(data: JsonObject, patterns: Mapping[str, str]) -> JsonObject:
    """The plain values of a job with texts put back at their places, as the job's author wrote them.

    >>> with_patterns({"source": {"path": ["a", "b"]}}, {"source.path[1]": "{date}"})
    {'source': {'path': ['a', '{date}']}}
    """
    for place, pattern in patterns.items():
        path, bracket, index = place.partition("[")
        *sections, key = path.split(".")
        section = data
        for name in sections:
            section[name] = section = dict(section[name])
        if bracket:
            section[key] = list(section[key])
            section[key][int(index[:-1])] = pattern
        else:
            section[key] = pattern
    return data


def texts_of(job: object) -> dict[str, str]:
    """The texts of a job, as a model or as plain values, that may hold a date, by their places."""
    texts: dict[str, str] = {}
    for place in PLACES:
        value = job
        for name in place:
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        name = ".".join(place)
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, list):
            texts |= {f"{name}[{number}]": text for number, text in enumerate(value)}
    return texts


def _replace_texts(job: S, values: Mapping[str, str]) -> S:
    """The job with other texts at some places."""
    for place in PLACES:
        name = ".".join(place)
        own = {key: text for key, text in values.items() if key.partition("[")[0] == name}
        if not own:
            continue
        section: Any = job if len(place) == 1 else getattr(job, place[0])
        value: Any = own.get(name)
        if value is None:
            value = [own.get(f"{name}[{n}]", text) for n, text in enumerate(getattr(section, place[-1]))]
        section = section.model_copy(update={place[-1]: value})
        job = section if len(place) == 1 else job.model_copy(update={place[0]: section})
    return job
