"""Whether the gate stops faults that only whole rows show, in nights of many rows: profiles that runs make, judged.

    python -m tests.bench.gate_rows --engine cudf --rows 100000000 --folder /dev/shm/nights --out gate-rows.json

The nights and the faults are those of tests/tasks/gate/test_faults.py; a fault is planted in each of the files.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pyarrow.parquet as pq

from tasks.gate.decide import judge
from tasks.gate.earlier_outputs import Past
from tests.bench.vocabulary import machine
from tests.tasks.gate.simulated import FIRST
from tests.tasks.gate.test_faults import STOP, TOGETHER, events, profile_of_files

PART = 5_000_000  # rows of a file
GOOD = 8  # nights before


def write(folder: Path, night: int, rows: int, fault: str, part: int) -> None:
    """Write one file of a night."""
    table = events(min(PART, rows - part * PART), night, part)
    pq.write_table(TOGETHER[fault][0](table) if fault else table, folder / f"{part:04d}.parquet")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--engine", choices=["pandas", "cudf"], default="pandas")
    parser.add_argument("--folder", type=Path, required=True, help="where nights lie; a tmpfs")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)

    cores, past, found = len(os.sched_getaffinity(0)), [], {}
    with ProcessPoolExecutor(cores, get_context("spawn")) as processes:
        for night, fault in [*((night, "") for night in range(GOOD + 1)), *((GOOD, fault) for fault in TOGETHER)]:
            folder = args.folder / f"{night}-{fault.replace(' ', '-')}"
            (folder / "in").mkdir(parents=True)
            list(processes.map(partial(write, folder / "in", night, args.rows, fault), range(-(-args.rows // PART))))
            start = time.perf_counter()
            profile = profile_of_files(folder, args.engine, cores)
            seconds = round(time.perf_counter() - start, 2)
            if night < GOOD:
                past.insert(0, Past(f"v{night + 1:04d}", FIRST + timedelta(days=night), profile))
                continue
            verdict = judge(profile, past, None, STOP, FIRST + timedelta(days=night))
            found[fault or "a plain night"] = {
                "verdict": verdict.verdict, "rows": profile.rows, "seconds": seconds,
                "findings": [finding.text for finding in verdict.findings],
                "named": not fault or TOGETHER[fault][1:] in {(one.check, one.column) for one in verdict.findings},
            }  # fmt: skip
            print(fault or "a plain night", json.dumps(found[fault or "a plain night"]), flush=True)
    result = {
        "command": " ".join(["python -m tests.bench.gate_rows", *(arguments or sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"), "machine": machine(args.engine), "rows": args.rows, "nights": found,
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
