"""How long a loaded workflow takes for the frame of a request: the ecommerce workflow, in process, on one core.

    python -m tests.bench.serving        writes tests/bench/results/serving-cpu.json

The workflow is learned from 100,000 look-alike events and saved and loaded again; the frames are other events, with the
columns that the workflow needs. Times are wall seconds of `workflow.transform(frame)`.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from flows.job.job import load_job
from flows.sample import make_sample
from tasks.core.versions import versions
from tasks.dataset import Dataset
from tasks.workflow import Workflow
from tests.cost import cpu_model

RESULT = Path(__file__).parent / "results" / "serving-cpu.json"
TARGETS = {1: 0.005, 1_000: 0.020}  # rows -> seconds
TIMES = 300


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        workflow, events = learned(Path(folder))
    found = {}
    for rows in TARGETS:
        for kind, frame in frames(events.slice(0, rows)).items():
            found[f"{rows} rows, {kind}"] = measured(workflow.transform, frame)
    result = {
        "what": __doc__.partition("\n")[0] if __doc__ else "",
        "command": "python -m tests.bench.serving",
        "machine": {
            "cpu": cpu_model(),
            "cores used": 1,
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "nice": os.nice(0),
            "system": platform.platform(),
        },
        "versions": {"python": platform.python_version(), **versions()},
        "repetitions": TIMES,
        "target seconds": {f"{rows} rows": seconds for rows, seconds in TARGETS.items()},
        "seconds": found,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def learned(folder: Path) -> tuple[Workflow, pa.Table]:
    make_sample("ecommerce", folder / "train", 100_000)
    make_sample("ecommerce", folder / "new", 20_000, seed=1)
    job = load_job("ecommerce")
    Workflow(job.graph()).fit(Dataset(str(folder / "train"))).save(folder / "fitted")
    workflow = Workflow.load(folder / "fitted")
    return workflow, pq.read_table(folder / "new").select(list(workflow.input_schema))


def frames(events: pa.Table) -> dict[str, Any]:
    """The same rows as a pandas frame of numpy columns, of Arrow columns, and as an Arrow table."""
    return {
        "pandas": events.to_pandas(),
        "pandas on Arrow": events.to_pandas(types_mapper=pd.ArrowDtype),
        "Arrow table": events,
    }


def measured(function: Callable[[Any], Any], frame: Any) -> dict[str, float]:
    """Median, and the time that 99 of 100 calls stay under, after some calls that count for nothing."""
    seconds = []
    for number in range(TIMES + 20):
        began = time.perf_counter()
        function(frame)
        if number >= 20:
            seconds.append(time.perf_counter() - began)
    return {
        "fastest": round(min(seconds), 6),
        "median": round(statistics.median(seconds), 6),
        "p99": round(statistics.quantiles(seconds, n=100)[-1], 6),
    }


if __name__ == "__main__":
    main()
