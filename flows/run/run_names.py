"""The name of a run on the pages of the server: its output and its source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from prefect import get_client
from prefect.context import FlowRunContext
from prefect.runtime import flow_run

from tasks.job.run_date import Dated
from tasks.stages.progress_artifact import open_prefect_client

GENERATED = re.compile(r"[a-z]+-[a-z]+")  # a name that Prefect has made: beryl-sloth


def run_name() -> str:
    """Return the name of the current flow run: `out/nightly (toy) beryl-sloth`; a name that was typed stays.

    The end is the name that Prefect generated; logs of workers and of the server use it.
    """
    before = str(flow_run.name or "")
    what = title(flow_run.parameters or {})
    return f"{what} {before}" if what and GENERATED.fullmatch(before) else before or what


def show_date(dated: Dated) -> None:
    """Put what the patterns of a job became into the name of the current flow run; a name that was typed
    stays. A server that is away is no reason to fail."""
    context = FlowRunContext.get()
    run: Any = context.flow_run if context else None
    if run is None or not dated.became:
        return
    before = title(run.parameters or {})
    now = title(run.parameters or {}, dated)
    end = str(run.name).removeprefix(before).strip()
    if before == now or not str(run.name).startswith(before) or not GENERATED.fullmatch(end):
        return
    run.name = f"{now} {end}"
    with open_prefect_client(), get_client(sync_client=True) as client:
        client.update_flow_run(run.id, name=run.name)


def title(parameters: Mapping[str, Any], dated: Dated | None = None) -> str:
    """The output and the source of a run, as far as its parameters name them; `dated` says what their patterns became.

    >>> title({"recipe": "toy", "output": {"path": "/data/out/nightly"}})
    'out/nightly (toy)'
    >>> title({"source": {"path": ["in/a.csv", "in/b.csv"]}, "output": {"path": "out"}})
    'out (in/a.csv ..)'
    >>> title({"fitted": "out/nightly", "source": {"path": "new"}, "output": {"path": "out/hourly"}})
    'out/hourly (out/nightly on new)'
    >>> title({"base": "out/nightly", "source": {"path": "logs/today"}})
    'out/nightly (logs/today)'
    >>> title({"recipe": "toy"})
    '(toy)'
    >>> title({"path": "data/incoming"}), title({"output": "x"})
    ('data/incoming', '')
    >>> from tasks.job.run_date import Dated, parse_run_date
    >>> became = {"source.path": ("/logs/{date-1:%Y/%m/%d}/*.csv", "/logs/2026/11/21/*.csv")}
    >>> title({"job": "jobs/nightly.yaml"}, Dated(parse_run_date("2026-11-22", "UTC"), became))
    '(jobs/nightly.yaml on logs/2026/11/21/*.csv)'
    >>> became = {"source.filter": ("day == '{date}'", "day == '2026-11-22'")}
    >>> title({"source": {"path": "in"}, "output": {"path": "out"}}, Dated(parse_run_date("2026-11-22", "UTC"), became))
    'out (in) 2026-11-22'
    """
    became = dated.became if dated else {}
    output = _became(became, "output.path") or _path(parameters.get("output"))
    read = _became(became, "source.path", "source.path[0]")
    source = read or _path(parameters.get("source"))
    fitted = _became(became, "fitted")
    origin = next((_short(parameters[key]) for key in ("fitted", "recipe", "job") if parameters.get(key)), source)
    origin = fitted or origin
    if source and origin != source and (parameters.get("fitted") or read):
        origin += f" on {source}"
    if dated and not any(text for text in (read, fitted, _became(became, "output.path"))):
        return f"{title(parameters)} {dated.run_date.day}".strip()
    folder = output or _short(parameters.get("path")) or _short(parameters.get("base"))
    return " ".join(filter(None, [folder, f"({origin})" if origin else ""]))


def _became(became: Mapping[str, tuple[str, str]], *places: str) -> str:
    """What the first of these places became that has a pattern: from the part in front of the pattern on."""
    for pattern, text in (became[place] for place in places if place in became):
        parts = PurePath(text).parts
        first = len(PurePath(f"{pattern.partition('{')[0]}x").parts) - 2
        return "/".join(parts[max(min(first, len(parts) - 2), 0) :]).lstrip("/")
    return ""


def _path(section: object) -> str:
    return _short(section.get("path")) if isinstance(section, Mapping) else ""


def _short(path: object) -> str:
    """Return the last two parts of a path, or of the first of several."""
    if isinstance(path, list | tuple):
        return " ".join(filter(None, [_short(path[0]), ".." if len(path) > 1 else ""])) if path else ""
    return "/".join(PurePath(path).parts[-2:]).lstrip("/") if isinstance(path, str) else ""
