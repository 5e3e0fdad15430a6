"""rowmill and its peers on the recipe toy or criteo, interleaved; medians and ratios into a JSON file.

    python -m tests.bench.compare --rows 20000000 --repeats 5 --folder /dev/shm/rowmill-bench --out
    tests/bench/results/NAME.json
    python -m tests.bench.compare --recipe criteo --format tsv --rows 5000000 --repeats 3 --folder
    /dev/shm/rowmill-bench --out tests/bench/results/NAME.json

Input and outputs lie in `--folder` (use a tmpfs). Every contender is one process per run and prints one JSON line;
its time goes from the first look at the input to the last file (rowmill: from ingest to the committed manifest;
starts of cluster and server are left out). Memory is the largest sum of the resident sets of all its processes,
servers included, sampled every 50 ms. A run during which other processes used more than a tenth of the machine is
measured again. A `--variant` is rowmill with some changes to its job, beside rowmill as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from flows.sample import criteo

HERE = Path(__file__).parent
PEERS = {
    "toy": {
        "polars-streaming": ["peer_polars.py", "--mode", "streaming"],
        "polars-gather": ["peer_polars.py", "--mode", "gather"],
        "duckdb": ["peer_duckdb.py"],
        "arrow-numpy": ["peer_arrow_numpy.py"],
        "pyarrow": ["peer_pyarrow.py"],
        "dask-pandas": ["peer_dask_pandas.py"],
    },
    "criteo": {"polars-streaming": ["peer_polars_criteo.py"]},
}
FORMATS = {"toy": ["parquet"], "criteo": ["parquet", "tsv"]}
PACKAGES = ("prefect", "dask", "distributed", "pandas", "pyarrow", "numpy", "polars", "duckdb")
BUSY = 0.1


def script_command(script: list[str], source: Path, target: Path, files: int) -> list[str]:
    """The process that runs a peer's script, with its options, once."""
    name, *options = script
    where = [str(HERE / "peers" / name), *options]
    return [sys.executable, *where, "--input", str(source), "--output", str(target), "--files", str(files)]


@dataclass(frozen=True)
class Workload:
    """What all contenders do: a recipe on the files of a folder."""

    recipe: str
    format: str
    source: Path
    files: int

    def make_command(self, name: str, target: Path, variants: dict[str, list[str]]) -> list[str]:
        """Make the command that runs one contender once."""
        where = ["--input", str(self.source), "--output", str(target), "--files", str(self.files)]
        peers = PEERS[self.recipe]
        if name in peers:
            suffix = ["--suffix", self.format] if self.recipe == "criteo" else []
            return script_command([*peers[name], *suffix], self.source, target, self.files)
        changes = [*self.list_source_changes(), *variants.get(name, [])]
        return [sys.executable, "-m", "tests.bench.rowmill_run", "--recipe", self.recipe, *where, "--set", *changes]

    def list_source_changes(self) -> list[str]:
        """List the changes to the job that name the format of the files."""
        if self.format == "parquet":
            return []
        return ["source.format=tsv", "source.header=false", f"source.columns=[{', '.join(criteo.NAMES)}]"]


def measured(call: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The JSON line of one run, with the peak of the resident memory of all its processes."""
    process = subprocess.Popen(call, stdout=subprocess.PIPE, text=True, env=environment)
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            peak[0] = max(peak[0], resident(process.pid) + servers())

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate(timeout=1800)
    stop.set()
    watcher.join()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise SystemExit(f"{' '.join(call)} failed with status {process.returncode}")
    return {**json.loads(lines[-1]), "peak_memory_gb": round(peak[0] / 1e9, 2)}


def own_environment() -> dict[str, str]:
    """The variables of a process that imports the benchmarks."""
    return {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}


def resident(pid: int) -> int:
    """Bytes resident in a process and its children."""
    total = 0
    try:
        family = [psutil.Process(pid)]
        family += family[0].children(recursive=True)
    except psutil.Error:
        return 0
    for member in family:
        try:
            total += member.memory_info().rss
        except psutil.Error:
            continue
    return total


def servers() -> int:
    """Bytes resident in the benchmark's own Prefect server, which every run of rowmill reports to."""
    note = Path(os.environ.get("PREFECT_HOME", ""), "rowmill-server.json")
    return resident(json.loads(note.read_text())["pid"]) if note.is_file() else 0


def machine() -> dict[str, Any]:
    from tests.cost import cpu_model

    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {p: version(p) for p in PACKAGES},
    }


def compare(
    workload: Workload, names: list[str], repeats: int, folder: Path, variants: dict[str, list[str]], busy: float
) -> dict[str, list[dict[str, Any]]]:
    """All contenders in turn, `repeats` times, after one run of each that does not count."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    environment = own_environment()
    for number in range(repeats + 1):
        for name in names:
            for _ in range(4):
                target = folder / f"out-{name}"
                found = measured(workload.make_command(name, target, variants), environment)
                shutil.rmtree(target, ignore_errors=True)
                if found.get("others_cpu_share", 0) <= busy:
                    break
                time.sleep(2)
            if number:
                runs[name].append(found)
            print(number, name, found["seconds"], "s", found["peak_memory_gb"], "GB", flush=True)
    return runs


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians, spread and rowmill's ratio to every peer, pair by pair."""
    out: dict[str, Any] = {}
    for name, found in runs.items():
        seconds = [r["seconds"] for r in found]
        ratios = [ours["seconds"] / r["seconds"] for ours, r in zip(runs["rowmill"], found, strict=True)]
        out[name] = {
            "seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
            "statistics": statistics.median(map(seconds_of_statistics, found)),
            "peak_memory_gb": max(r["peak_memory_gb"] for r in found),
            "rowmill_takes": round(statistics.median(ratios), 3),
            "runs_disturbed": sum(r.get("others_cpu_share", 0) > BUSY for r in found),
        }
    return out


def seconds_of_statistics(run: dict[str, Any]) -> float:
    """The seconds that a run has learned for; those of reading, too, where a peer does that before."""
    if "stages" in run:
        return float(run["stages"]["statistics"]["seconds"])
    return float(run["laps"].get("read", 0) + run["laps"].get("stats", 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="toy", choices=list(PEERS))
    parser.add_argument("--format", default="parquet", choices=sorted({f for of in FORMATS.values() for f in of}))
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--folder", type=Path, required=True, help="where input and outputs lie; a tmpfs")
    parser.add_argument("--peers", nargs="*", help="all of the recipe if left out")
    what = "a name, and changes to rowmill's job that it stands for: disk run.exchange=disk"
    parser.add_argument("--variant", nargs="+", action="append", default=[], metavar="TEXT", help=what)
    what = "share of the machine that others may use during a run; the system's own writing to a disk counts as well"
    parser.add_argument("--busy", type=float, default=BUSY, help=what)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    variants = {name: changes for name, *changes in args.variant}
    peers = list(PEERS[args.recipe]) if args.peers is None else args.peers
    if unknown := {*peers} - {*PEERS[args.recipe]}:
        parser.error(f"{', '.join(unknown)}: the peers of {args.recipe} are {', '.join(PEERS[args.recipe])}")
    if args.format not in FORMATS[args.recipe]:
        parser.error(f"the peers of {args.recipe} read {', '.join(FORMATS[args.recipe])}")

    from flows.sample import make_sample
    from infra.orchestration.server import ensure_server, stop_server

    os.environ.setdefault("PREFECT_HOME", str(args.folder / "prefect"))
    source = args.folder / f"{args.recipe}-{args.rows}-{args.format}"
    names = ["rowmill", *variants, *peers]
    make_sample(args.recipe, source, args.rows, files=8, format=args.format)
    workload = Workload(args.recipe, args.format, source, args.files)
    ensure_server()
    try:
        runs = compare(workload, names, args.repeats, args.folder, variants, args.busy)
    finally:
        stop_server()
    result = {
        "workload": args.recipe,
        "format": args.format,
        "rows": args.rows,
        "files": args.files,
        "command": " ".join(["python -m tests.bench.compare", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "medians": summary(runs),
        "runs": runs,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["medians"], indent=1))


if __name__ == "__main__":
    main()
