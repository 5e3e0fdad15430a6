"""How long a loaded workflow takes for the frame of a request, by recipe, in process, on one core.

    python -m tests.bench.serving --out tests/bench/results/serving-cpu.json
    python -m tests.bench.serving --recipes criteo                                  # instead of ecommerce and criteo
    python -m tests.bench.serving --before FOLDER --rounds 5 --out serving.json     # in turns with another checkout
    python -m tests.bench.serving --vocabulary 50000000 --processes 4 --out tests/bench/results/serving-mapped-cpu.json

The workflow of a recipe is learned from 100,000 rows of its sample and saved and loaded again; the frames are other
rows, with the columns that the workflow needs. Times are wall seconds of `workflow.transform(frame)`. Each round is a
process of its own for each checkout and recipe; figures are the medians of the rounds.

With `--vocabulary`, processes load a workflow of that many distinct numbers at the same time, each with a copy of its
own (`--copies` of them at once) and with `mapped=`, and look up the same 1,000 rows. What they hold is the sum of their
proportional set sizes (PSS) less that of as many processes that have loaded a small workflow; pages of mapped files
count once. `--folder` is best on a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.versions import versions
from tasks.workflow import Workflow
from tests.bench.record import write_record
from tests.cost import cpu_model

TARGETS = {1: 0.0005, 1_000: 0.020}  # rows -> seconds
RECIPES = ("ecommerce", "criteo")
ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=600, help="calls of each kind of frame in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="another checkout, measured in turns with this one"
    )
    parser.add_argument("--vocabulary", type=int, help="distinct numbers of a large vocabulary")
    parser.add_argument("--processes", type=int, default=4, help="that map the vocabulary at once")
    parser.add_argument("--copies", type=int, default=1, help="processes at once with a copy of their own each")
    parser.add_argument("--folder", type=Path, help="for the large vocabulary")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--round", type=Path, metavar="FITTED", help="measure once, with what this folder holds")
    parser.add_argument("--hold", nargs=2, type=Path, metavar=("FITTED", "MAPPED"), help="load it, say so, and wait")
    options = parser.parse_args(arguments)
    if options.round:
        print(json.dumps(measure_round(options.round, options.times)))
        return
    if options.hold:
        hold(*options.hold)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.vocabulary:
            measured = measure_sharing(Path(folder), options)
        else:
            measured = measure_checkouts(Path(folder), options)
    record = {
        "what": (__doc__ or "").partition("\n")[0],
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m tests.bench.serving " + " ".join(sys.argv[1:] if arguments is None else arguments),
        "machine": {
            "cpu": cpu_model(),
            "cores used": 1,
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "system": platform.platform(),
        },
        "versions": {"python": platform.python_version(), **versions()},
        **measured,
    }
    write_record(record, options.out)


# how long a request takes


def measure_checkouts(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure this checkout, in turns with another one if it is named."""
    trees = {"now": ROOT}
    if options.before:
        trees["before"] = options.before.resolve()
    rounds = {recipe: measure_recipe(recipe, folder / recipe, trees, options) for recipe in options.recipes}
    return {
        "calls in a round": options.times,
        "target seconds": {f"{rows} rows": seconds for rows, seconds in TARGETS.items()},
        "seconds": {
            recipe: {name: take_medians(runs) for name, runs in by_tree.items()} for recipe, by_tree in rounds.items()
        },
        "runs": rounds,
    }


def measure_recipe(
    recipe: str, folder: Path, trees: dict[str, Path], options: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    """Measure the workflow of a recipe with the code of each checkout, in turns."""
    learn(recipe, folder)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    for _ in range(options.rounds):
        for name, tree in trees.items():
            rounds[name].append(run_round(tree, folder, options.times))
    return rounds


def run_round(tree: Path, folder: Path, times: int) -> dict[str, Any]:
    """Run this program on the code of a checkout."""
    paths = os.pathsep.join([str(tree), str(tree / "flows" / "public")])
    command = [sys.executable, __file__, "--round", str(folder), "--times", str(times)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def take_medians(rounds: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Take the median of each figure over the rounds."""
    return {
        frame: {figure: round(statistics.median(r[frame][figure] for r in rounds), 6) for figure in figures}
        for frame, figures in rounds[0].items()
    }


def learn(recipe: str, folder: Path) -> None:
    """Save the workflow of a recipe that was learned from some rows, and other rows."""
    from flows.job.job import load_job
    from flows.sample import make_sample
    from tasks.dataset import Dataset

    make_sample(recipe, folder / "train", 100_000)
    make_sample(recipe, folder / "new", 20_000, seed=1)
    job = load_job(recipe)
    Workflow(job.graph()).fit(Dataset(str(folder / "train"))).save(folder / "fitted")


def measure_round(folder: Path, times: int) -> dict[str, Any]:
    """Measure each kind of frame, on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    workflow = Workflow.load(folder / "fitted")
    table = pq.read_table(folder / "new").select(list(workflow.input_schema))
    measured = {}
    for rows in TARGETS:
        for kind, frame in make_frames(table.slice(0, rows)).items():
            measured[f"{rows} rows, {kind}"] = measure(workflow.transform, frame, times)
    return measured


def make_frames(table: pa.Table) -> dict[str, Any]:
    """Make of the same rows a pandas frame of numpy columns, one of Arrow columns, and an Arrow table."""
    return {
        "pandas": table.to_pandas(),
        "pandas on Arrow": table.to_pandas(types_mapper=pd.ArrowDtype),
        "Arrow table": table,
    }


def measure(function: Callable[[Any], Any], frame: Any, times: int) -> dict[str, float]:
    """Median, and the time that 99 of 100 calls stay under, after some calls that do not count."""
    seconds = []
    for number in range(times + 20):
        began = time.perf_counter()
        function(frame)
        if number >= 20:
            seconds.append(time.perf_counter() - began)
    return {
        "fastest": round(min(seconds), 6),
        "median": round(statistics.median(seconds), 6),
        "p99": round(statistics.quantiles(seconds, n=100)[-1], 6),
    }


# a vocabulary that processes share


def measure_sharing(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure what processes hold of a large vocabulary: with copies of their own, and mapped."""
    save_vocabulary(folder / "small", 2)
    save_vocabulary(folder / "large", options.vocabulary)
    mapped = folder / "mapped"
    first = hold_at_once(folder / "large", mapped, 1)  # writes the files
    runs = {
        "small": hold_at_once(folder / "small", mapped, options.processes),
        "copies": hold_at_once(folder / "large", Path(), options.copies),
        "mapped": hold_at_once(folder / "large", mapped, options.processes),
    }
    if len({process["ids"] for name in ("copies", "mapped") for process in runs[name]} | {first[0]["ids"]}) > 1:
        raise SystemExit("mapped vocabularies give other ids")
    process_itself = statistics.mean(process["pss"] for process in runs["small"])
    held = {name: round(sum(p["pss"] - process_itself for p in runs[name])) for name in ("copies", "mapped")}
    return {
        "vocabulary": options.vocabulary,
        "bytes of the mapped files": sum(path.stat().st_size for path in mapped.rglob("*") if path.is_file()),
        "bytes of a process without it": round(process_itself),
        "bytes held by processes together": {
            f"{options.copies} with copies": held["copies"],
            f"{options.processes} mapped": held["mapped"],
        },
        "private bytes of each": {
            name: [process["private"] for process in runs[name]] for name in ("small", "copies", "mapped")
        },
        "first": first[0],
        "runs": runs,
    }


def save_vocabulary(folder: Path, size: int) -> None:
    """Save a workflow whose vocabulary has `size` random numbers of 62 bits, without learning them from rows."""
    from tasks.ops.categorify import Categorify

    workflow = Workflow(["id"] >> Categorify()).fit(pa.table({"id": [1, 2]}))
    assert workflow.state is not None
    (step,) = workflow.state.values
    random = np.random.default_rng(0)
    drawn = np.unique(random.integers(0, 1 << 62, size + 1_000))
    ids = random.permutation(drawn)[:size]
    table = pa.table({"v0": ids, "count": np.ones(size, np.int64)})
    workflow.state.values[step] = {"values": table, "size": size, "nulls": 0, "distinct": size, "occurrences": size}
    workflow.save(folder)


def hold_at_once(fitted: Path, mapped: Path, count: int) -> list[dict[str, Any]]:
    """Have processes load a workflow one after the other, and say what each holds once all have it."""
    command = [sys.executable, "-m", "tests.bench.serving", "--hold", str(fitted), str(mapped)]
    with ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = []
        for _ in range(count):
            processes.append(stack.enter_context(subprocess.Popen(command, cwd=ROOT, **pipes)))  # type: ignore[call-overload]
            processes[-1].stdout.readline()
        return [json.loads(process.communicate("\n")[0]) for process in ask_all(processes)]


def ask_all(processes: list[Any]) -> list[Any]:
    """Have all processes look at their memory before the first of them ends."""
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.stdout.readline()
    return processes


def hold(fitted: Path, mapped: Path) -> None:
    """Load a workflow and look up 1,000 rows; then wait for a line, look at the memory, and wait for another."""
    began = time.perf_counter()
    workflow = Workflow.load(fitted, **({} if mapped == Path() else {"mapped": mapped}))
    loaded = time.perf_counter()
    assert workflow.state is not None
    (learned,) = workflow.state.values.values()
    rows = pa.table({"id": learned["values"]["v0"].slice(0, 1_000)})
    ids = workflow.transform(rows)["id"]
    ready = time.perf_counter()
    print("ready", flush=True)
    sys.stdin.readline()
    memory = read_memory()
    print("measured", flush=True)
    sys.stdin.readline()
    seconds = {"load_seconds": round(loaded - began, 3), "first_call_seconds": round(ready - loaded, 3)}
    print(json.dumps({**memory, **seconds, "ids": int(np.asarray(ids).sum())}), flush=True)


def read_memory() -> dict[str, int]:
    """Read the proportional set size of this process and its private part, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {
        "pss": sizes["Pss"],
        "private": sizes["Private_Dirty"] + sizes["Private_Clean"],
        "peak": int(peak.split()[1]) * 1024,
    }


if __name__ == "__main__":
    main()
