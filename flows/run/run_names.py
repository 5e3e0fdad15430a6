"""The name of a run on the pages of the server: its output and its source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from prefect.runtime import flow_run

GENERATED = re.compile(r"[a-z]+-[a-z]+")  # a name that Prefect has made: beryl-sloth


def run_name() -> str:
    """The name of the current flow run: `out/nightly (toy) beryl-sloth`; a name that somebody has typed stays.

    The end is the name that Prefect generated; logs of workers and of the server use it.
    """
    before = str(flow_run.name or "")
    what = title(flow_run.parameters or {})
    return f"{what} {before}" if what and GENERATED.fullmatch(before) else before or what


def title(parameters: Mapping[str, Any]) -> str:
    """The output and the source of a run, as far as its parameters name them.

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
    """
    output, source = _path(parameters.get("output")), _path(parameters.get("source"))
    origin = next((_short(parameters[key]) for key in ("fitted", "recipe", "job") if parameters.get(key)), source)
    if parameters.get("fitted") and source:
        origin += f" on {source}"
    folder = output or _short(parameters.get("path")) or _short(parameters.get("base"))
    return " ".join(filter(None, [folder, f"({origin})" if origin else ""]))


def _path(section: Any) -> str:
    return _short(section.get("path")) if isinstance(section, Mapping) else ""


def _short(path: Any) -> str:
    """The last two parts of a path, or of the first of several."""
    if isinstance(path, list | tuple):
        return " ".join(filter(None, [_short(path[0]), ".." if len(path) > 1 else ""])) if path else ""
    return "/".join(PurePath(path).parts[-2:]).lstrip("/") if isinstance(path, str) else ""
