"""How fast runs were on this host: a small file of the user's own, from which the time of the next one is estimated.

It holds no path and nothing of the data: the recipe's name, a hash of the graph, the host's name, rows, bytes, seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tasks.core.settings import STAGES
from tasks.core.versions import stable_json
from tasks.job.request import Request

KEPT = 300  # runs
USED = 5  # of them for one estimate: those nearest in size
log = logging.getLogger("millrace")


def state_folder() -> Path:
    """Where millrace keeps what later runs profit from: $XDG_STATE_HOME/millrace, or ~/.local/state/millrace."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "millrace"


def record(request: Request, summaries: Sequence[Mapping[str, Any]], recipe: str | None = None) -> None:
    """Note the rates of a run that is done. A folder that cannot be written is no reason for a run to fail."""
    ingest = next((s for s in summaries if s["stage"] == "ingest"), None)
    stages = {name: _seconds(summaries, name) for name in STAGES}
    done = {name: seconds for name, seconds in stages.items() if seconds is not None}
    if ingest is None or not done:
        return
    entry = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"), "recipe": recipe, "job": job_key(request),
        "engine": request.engine, "host": socket.gethostname(), "threads": ingest["threads"],
        "rows": ingest["rows"], "bytes": ingest["bytes"], "seconds": done,
    }  # fmt: skip
    try:
        _append(entry)
    except OSError as error:
        log.debug("the rates of this run were not kept: %s", error)


def _seconds(summaries: Sequence[Mapping[str, Any]], stage: str) -> float | None:
    """Seconds of a stage over all splits; None where some of its work was found done."""
    own = [s for s in summaries if s["stage"] == stage]
    if not own or any(s.get("reused") for s in own):
        return None
    return round(sum(float(s["seconds"]) for s in own), 4)


def job_key(request: Request) -> str:
    """Names what a run does with its rows, not which rows they are."""
    source, output = request.source, request.output
    what = [request.graph, request.flow, source.filter, source.keys, output.shuffle, output.format, output.partition_on]
    return hashlib.sha256(stable_json(what).encode()).hexdigest()[:16]


@contextmanager
def _locked() -> Iterator[Path]:
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rates.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / "rates.jsonl"


def _append(entry: Mapping[str, Any]) -> None:
    with _locked() as path:
        kept = [*_entries(path), entry][-KEPT:]
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text("".join(json.dumps(item) + "\n" for item in kept))
        unfinished.replace(path)


def _entries(path: Path) -> list[dict[str, Any]]:
    """The runs that are noted; lines that are damaged are left out."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [entry for entry in map(_entry, lines) if entry]


def _entry(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
        numbers = [found["rows"], found["bytes"], found["threads"], *found["seconds"].values()]
        texts = [found["job"], found["engine"], found["host"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    whole = all(isinstance(n, int | float) and math.isfinite(n) and n >= 0 for n in numbers)
    return found if whole and found["rows"] > 0 and all(isinstance(t, str) for t in texts) else None


@dataclass(frozen=True)
class Guess:
    """Seconds by stage, and which runs say so."""

    seconds: dict[str, float]
    basis: str

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def guess(request: Request, rows: int, nbytes: int, threads: int) -> Guess | None:
    """The time that a run will take, by the nearest ones of this engine and host: of the job, else of any by bytes."""
    here = [e for e in _entries(state_folder() / "rates.jsonl")
            if (e["engine"], e["host"]) == (request.engine, socket.gethostname())]  # fmt: skip
    own = [e for e in here if e["job"] == job_key(request)]
    if own:
        size, unit, what = rows, "rows", "run(s) of this job"
    else:
        own, size, unit, what = here, nbytes, "bytes", "run(s) of other jobs, by bytes"
    near = sorted((e for e in own if e[unit]), key=lambda e: _distance(e, unit, size, threads))[:USED]
    found = {}
    for stage in STAGES:
        rates = [e["seconds"][stage] / e[unit] for e in near if stage in e["seconds"]]
        if rates:
            found[stage] = median(rates) * size
    if not found:
        return None
    sizes = sorted({e["rows"] for e in near})
    counted = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    return Guess(found, f"{len(near)} {what}, of {counted} rows")


def _distance(entry: Mapping[str, Any], unit: str, size: int, threads: int) -> tuple[float, float]:
    """How far a run is from another one: in threads, then in size."""
    return abs(math.log(max(entry["threads"], 1) / max(threads, 1))), abs(math.log(entry[unit] / max(size, 1)))
