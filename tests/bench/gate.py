"""What the profile of all rows costs a run: pairs of runs of a recipe, with and without `run.profile`, in turns.

    python -m tests.bench.gate --recipe toy --rows 20000000 --pairs 5 --folder /dev/shm/gate --out gate-toy.json

Every run goes from ingest to the committed output on the threads of this process, without a Prefect server and without
a report. What counts are the CPU seconds (user and system) of the process, since the wall clock also counts what others
do on the machine; on a GPU (`--engine cudf`), which nobody shares, seconds. A first pair does not count. `cost` is what
the profile adds, as a share of the run without it: the median of the pairs, and that of the least run with it to the
least run without it, which a busy machine disturbs less. `profile_seconds` are the CPU seconds of all threads that the
profile itself says; `its_share` of the least run.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.vocabulary import machine
from tests.stages import run_stages

COUNTS = {"pandas": "cpu_seconds", "cudf": "seconds"}
SETTINGS = ["output.files_per_worker=null", "output.files=8", "output.on_existing=replace", "run.report=false"]


def measured(
    recipe: str, source: Path, target: Path, profile: bool, threads: int, engine: str = "pandas"
) -> dict[str, Any]:
    """One run: its CPU and wall seconds, and the CPU seconds that its profile says."""
    from flows.job.job import load_job

    where = [f"source.path={source}", f"output.path={target}", f"run.profile={str(profile).lower()}"]
    request = load_job(recipe, [*SETTINGS, *where]).request(engine)
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    run_stages(request, threads)
    found = {"cpu_seconds": round(time.process_time() - cpu, 3), "seconds": round(time.perf_counter() - wall, 3)}
    if profile:
        found["profile_seconds"] = json.loads((target / "_profile.json").read_bytes())["seconds"]
    shutil.rmtree(target)
    return found


def pairs(recipe: str, source: Path, folder: Path, count: int, threads: int, engine: str) -> list[dict[str, Any]]:
    """Pairs of runs in turns, each pair in the other order than the one before; the first does not count."""
    found, counts = [], COUNTS[engine]
    for number in range(count + 1):
        order = (False, True) if number % 2 else (True, False)
        pair = {
            "with" if profile else "without": measured(
                recipe, source, folder / f"out-{recipe}", profile, threads, engine
            )
            for profile in order
        }
        pair["cost"] = round(pair["with"][counts] / pair["without"][counts] - 1, 4)
        print(number, json.dumps(pair), flush=True)
        found += [pair] if number else []
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="toy")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engine", choices=[*COUNTS], default="pandas")
    parser.add_argument("--folder", type=Path, required=True, help="where input and outputs lie; a tmpfs")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)

    from flows.sample import make_sample

    source = args.folder / f"{args.recipe}-{args.rows}"
    if not source.exists():
        make_sample(args.recipe, source, args.rows, files=args.files)
    found = pairs(args.recipe, source, args.folder, args.pairs, args.threads, args.engine)
    costs = [pair["cost"] for pair in found]
    least = {name: min(pair[name][COUNTS[args.engine]] for pair in found) for name in ("with", "without")}
    itself = statistics.median(pair["with"]["profile_seconds"] for pair in found)
    result = {
        "workload": args.recipe,
        "rows": args.rows,
        "command": " ".join(["python -m tests.bench.gate", *(arguments or sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(args.engine),
        "cost": {
            "median": round(statistics.median(costs), 4),
            "min": round(min(costs), 4),
            "max": round(max(costs), 4),
            "of_the_least": round(least["with"] / least["without"] - 1, 4),
            "its_share": round(itself / least["without"], 4),
        },
        "pairs": found,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["cost"]))


if __name__ == "__main__":
    main()
