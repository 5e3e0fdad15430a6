"""The speed of earlier runs on this host, in a small file of the user: the estimate of the next run's time.

No path and nothing of the data is in it: the recipe's name, a hash of the graph, the host's name, rows, bytes, seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tasks.core.settings import STAGES
from tasks.core.stage_results import IngestResult, StageResult, total_resources
from tasks.core.strict_json import JsonObject
from tasks.core.versions import stable_json
from tasks.job.request import Request

MOST_RUNS = 300  # in the file
NEAREST_RUNS = 5  # that one estimate uses
MEASURED = ("core_seconds", "gpu_seconds", "energy_joules")  # prices may have changed; storages are planned exactly
log = logging.getLogger("rowmill")


def state_folder() -> Path:
    """Return the folder of files that later runs use: $XDG_STATE_HOME/rowmill, or ~/.local/state/rowmill."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "rowmill"


def record(request: Request, results: Sequence[StageResult], recipe: str | None = None, run: str = "") -> None:
    """Add the rates of a finished run to the file; `run` is the id of its flow run. A folder that cannot be written
    does not fail the run."""
    ingest = next((result for result in results if isinstance(result, IngestResult)), None)
    stages = {name: _seconds(results, name) for name in STAGES}
    done = {name: seconds for name, seconds in stages.items() if seconds is not None}
    if ingest is None or not done:
        return
    entry: JsonObject = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "recipe": recipe,
        "job": job_key(request),
        "engine": request.engine,
        "host": socket.gethostname(),
        "threads": ingest.threads,
        "rows": ingest.rows,
        "bytes": ingest.nbytes,
        "seconds": done,
        "resources": total_resources(results),
    }
    if run:
        entry["run"] = run
    try:
        _append(entry)
    except OSError as error:
        log.debug("the rates of this run were not kept: %s", error)


def rates_by_run() -> dict[str, JsonObject]:
    """The recorded figures of this host's runs, by the ids of their flow runs: rows, bytes, seconds of each stage."""
    entries = _entries(state_folder() / "rates.jsonl")
    return {entry["run"]: entry for entry in entries if isinstance(entry.get("run"), str)}


def _seconds(results: Sequence[StageResult], stage: str) -> float | None:
    """Seconds of a stage over all splits; None where an earlier start had done the work."""
    own = [result for result in results if result.stage == stage]
    if not own or any(result.reused for result in own):
        return None
    return round(sum(result.seconds for result in own), 4)


def job_key(request: Request) -> str:
    """Return a fingerprint of what a run does with its rows, whichever rows they are; the same on every date."""
    source = request.source
    output = request.output
    dated = (request.dated.get("became") or {}).get("source.filter")
    filter = dated["pattern"] if dated else source.filter
    what = [request.graph, request.flow, filter, source.keys, output.shuffle, output.format, output.partition_on]
    return hashlib.sha256(stable_json(what).encode()).hexdigest()[:16]


@contextmanager
def _lock_rates() -> Iterator[Path]:
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rates.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / "rates.jsonl"


def _append(entry: JsonObject) -> None:
    with _lock_rates() as path:
        entries = [*_entries(path), entry][-MOST_RUNS:]
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text("".join(json.dumps(item) + "\n" for item in entries))
        unfinished.replace(path)


def _entries(path: Path) -> list[JsonObject]:
    """Return the runs in the file, without damaged lines."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [entry for entry in map(_entry, lines) if entry]


def _entry(line: str) -> JsonObject | None:
    try:
        entry = json.loads(line)
        taken = entry.setdefault("resources", {})  # runs of earlier versions have none
        numbers = [entry["rows"], entry["bytes"], entry["threads"], *entry["seconds"].values(), *taken.values()]
        texts = [entry["job"], entry["engine"], entry["host"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    whole = all(isinstance(n, int | float) and math.isfinite(n) and n >= 0 for n in numbers)
    return entry if whole and entry["rows"] > 0 and all(isinstance(t, str) for t in texts) else None


@dataclass(frozen=True)
class Guess:
    """Seconds by stage, which runs say so, and what the stages take together: names of `RESOURCES`, those known."""

    seconds: dict[str, float]
    basis: str
    resources: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def guess(request: Request, rows: int, nbytes: int, threads: int) -> Guess | None:
    """The time that a run will take, by the nearest ones of this engine and host: of the job, else of any by bytes."""
    here = [
        e
        for e in _entries(state_folder() / "rates.jsonl")
        if (e["engine"], e["host"]) == (request.engine, socket.gethostname())
    ]
    own = [e for e in here if e["job"] == job_key(request)]
    if own:
        size = rows
        unit = "rows"
        what = "run(s) of this job"
    else:
        own = here
        size = nbytes
        unit = "bytes"
        what = "run(s) of other jobs, by bytes"
    near = sorted((e for e in own if e[unit]), key=lambda e: _distance(e, unit, size, threads))[:NEAREST_RUNS]
    seconds = _scale_medians(near, "seconds", STAGES, unit, size)
    taken = _scale_medians(near, "resources", MEASURED, unit, size)
    if (price := request.run.price_per_hour) is not None:
        taken["cost"] = sum(seconds.values()) * price / 3600
    if not seconds:
        return None
    sizes = sorted({e["rows"] for e in near})
    counted = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    return Guess(seconds, f"{len(near)} {what}, of {counted} rows", taken)


def _scale_medians(runs: Sequence[Any], section: str, names: Sequence[str], unit: str, size: int) -> dict[str, float]:
    """Return the medians of the figures of runs per row or byte, times the size; without figures that no run has."""
    rates = {name: [run[section][name] / run[unit] for run in runs if name in run[section]] for name in names}
    return {name: median(of_runs) * size for name, of_runs in rates.items() if of_runs}


def _distance(entry: JsonObject, unit: str, size: int, threads: int) -> tuple[float, float]:
    """Return the distance between two runs: in threads, then in size."""
    return abs(math.log(max(entry["threads"], 1) / max(threads, 1))), abs(math.log(entry[unit] / max(size, 1)))
