"""What an escape costs, and null texts with one (`\\N` of MySQL, Hive, ClickHouse), where text is planned and read.

Each way in turn, repeated: the medians of CPU seconds, and their ratio to plain text. No value has a quote.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tasks.core.settings import Source
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tests.bench.record import write_record

NULLS = ["", r"\N"]
WAYS: dict[str, tuple[str, dict[str, Any]]] = {  # the text of a null, and the settings of the source
    "plain": ("", {}),
    "escape": ("", {"escape": "\\"}),
    "null_values": (r"\N", {"null_values": NULLS}),
    "escape and null_values": (r"\N", {"escape": "\\", "null_values": NULLS}),
}


def write(path: Path, rows: int, null: str) -> None:
    """A file of five columns, a tenth of whose values are null."""
    draws = np.random.default_rng(1)
    columns = [
        draws.integers(0, 10**6, rows).astype(str),
        np.char.add("colour", draws.integers(0, 999, rows).astype(str)),
        (draws.integers(0, 10**5, rows) / 1000).astype(str),
        draws.integers(0, 9, rows).astype(str),
        np.char.add("words of a title ", draws.integers(0, 10**4, rows).astype(str)),
    ]
    columns = [np.where(draws.random(rows) < 0.1, null, column) for column in columns]
    lines = [",".join(row) for row in zip(*columns, strict=True)]
    path.write_text("\n".join(["a,b,c,d,e", *lines, ""]))


def seconds_of(path: Path, settings: dict[str, Any]) -> tuple[float, int]:
    """(the CPU seconds in which a file is planned and read, its nulls in the first column)."""
    start = time.process_time()
    plan = make_plan(Source(path=str(path), **settings))
    tables = [read(plan, number) for number in range(len(plan.partitions))]
    seconds = time.process_time() - start
    return seconds, sum(table["a"].null_count for table in tables)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="the JSON file; without it the result is printed")
    options = parser.parse_args(arguments)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    nulls = set[int]()
    with tempfile.TemporaryDirectory() as folder:
        paths = {null: Path(folder, f"{number}.csv") for number, null in enumerate(("", r"\N"))}
        for null, path in paths.items():
            write(path, options.rows, null)
        for _ in range(options.repeats):
            for name, (null, settings) in WAYS.items():
                taken, found = seconds_of(paths[null], settings)
                seconds[name].append(taken)
                nulls.add(found)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    summary = {
        "command": "python -m tests.bench.escapes",
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "cores": psutil.cpu_count(),
        "versions": {name: version(name) for name in ("numpy", "pyarrow")},
        "python": platform.python_version(),
        "rows": options.rows,
        "repeats": options.repeats,
        "nulls": sorted(nulls),
        "cpu_seconds": {name: round(median, 3) for name, median in medians.items()},
        "of_plain": {name: round(median / medians["plain"], 2) for name, median in medians.items()},
    }
    write_record(summary, options.out)


if __name__ == "__main__":
    main()
