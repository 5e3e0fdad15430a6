"""A recipe through the Prefect flow on GPUs, toy beside the plain dask_cudf script; one JSON file of results.

    python -m tests.bench.gpu --rows 157680005 --repeats 3 --folder /dev/shm/rowmill-bench --out
    tests/bench/results/NAME.json
    python -m tests.bench.gpu --recipe pca --columns 1000 --folder /dev/shm/rowmill-bench --out
    tests/bench/results/pca-h200.json

Starts the Prefect server and a LocalCUDACluster with rowmill's own settings, then runs the flow against that
cluster's address `repeats` + 1 times (the first run compiles kernels and does not count), then, with `--peer`, the
script as often on a cluster of its own, both `rounds` times over. `--plain` writes as many bytes in as many files to
the same folder after every round, and reads the source, without any work on them. Times go from ingest to the committed
manifest; input and outputs lie in `--folder` (a tmpfs, or the disk that is asked about). A recipe that has validation
data gets a fifth of the rows, as the recipe itself makes them. `--cluster '{"kind": "cpu"}'` runs the same without a
GPU.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from tasks.core.versions import versions
from tests.bench import plain
from tests.bench.timeline import recorded
from tests.running import section_of

HERE = Path(__file__).parent
SAMPLES = {  # what each recipe reads, and how many rows of it if nothing is said
    "toy": ("toy", 157_680_005),
    "criteo": ("criteo", 20_000_000),
    "ecommerce": ("ecommerce", 20_000_000),
    "sessions": ("ecommerce", 5_000_000),
    "sequences": ("ecommerce", 5_000_000),
    "pca": ("wide", 300_000),
}
SHARED_STAGES = ("ingest", "statistics")  # one of each for training and validation data, in both of their manifests
FILE_ROWS = 31_536_001  # of a file of toy
PACKAGES = ("prefect", "dask", "dask-cuda", "cudf-cu13", "rmm-cu13", "pyarrow", "ucxx-cu13")


def run_flow(
    where: dict[str, Any], recipe: str, changes: list[str], target: Path, trace: Path | None = None
) -> dict[str, Any]:
    """One flow run; the manifest's times, and one digest of all files: the same on any number of GPUs."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.job.job import load_job
    from flows.preprocess import preprocess
    from tasks.manifest import Manifest

    shutil.rmtree(target, ignore_errors=True)
    said = [*changes, f"output.path={target}", *(f"cluster.{key}={json.dumps(value)}" for key, value in where.items())]
    job = load_job(recipe, said).model_dump(mode="json", by_alias=True, exclude_unset=True)
    wall = time.perf_counter()
    # As the command does: the thread of Prefect's heartbeat looks each second whether the run has ended.
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}), recorded(where, trace):
        folders = preprocess(**{k: v for k, v in job.items() if v is not None})
    made = [Manifest.load(folder).data for folder in folders]  # with validation data there are two
    parts = [part for data in made for part in data["parts"]]
    return {
        "seconds": max(data["seconds"] for data in made),
        "flow_wall": round(time.perf_counter() - wall, 3),
        "rows": sum(data["rows"]["out"] for data in made),
        "stages": {name: seconds_of(name, made) for name in made[0]["stages"]},
        "bytes": sum(part["bytes"] for part in parts),
        "files": len(parts),
        "digest": xxhash.xxh3_128("".join(part["xxh3_128"] for part in parts).encode()).hexdigest(),
    }  # fmt: skip


def seconds_of(stage: str, manifests: list[dict[str, Any]]) -> float:
    """The seconds of a stage in a run: of all its splits together, but of those that they share once."""
    each = [data["stages"][stage]["seconds"] for data in manifests if stage in data["stages"]]
    return float(each[0] if stage in SHARED_STAGES else round(sum(each), 3))


def make_source(recipe: str, folder: Path, rows: int, columns: int | None) -> tuple[int, list[str]]:
    """Make what a recipe reads, where it is not there yet; (its bytes, the changes to the job that name it)."""
    from flows.job.job import load_job
    from flows.sample import make_sample

    name, path = SAMPLES[recipe][0], folder / "-".join(map(str, [recipe, rows, *([columns] if columns else [])]))
    files = max(1, rows // FILE_ROWS) if name == "toy" else None
    nbytes = make_sample(name, path, rows, files=files, columns=columns).bytes
    changes = [f"source.path={path}"]
    source = load_job(recipe).source
    if source.valid:
        later = bool(source.sample and source.sample.later)
        valid = path.with_name(f"{path.name}-valid")
        nbytes += make_sample(name, valid, max(1, rows // 5), seed=1, drift=later).bytes
        changes.append(f"source.valid={valid}")
    return nbytes, changes


def gpus() -> list[str]:
    """Name and driver of the GPUs of the host."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    if not shutil.which(query[0]):
        return []
    return subprocess.run(query, capture_output=True, text=True).stdout.strip().splitlines()


@functools.cache
def machine() -> dict[str, Any]:
    return {
        "gpus": gpus(),
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "versions": versions(PACKAGES),
    }


def flow_runs(
    args: argparse.Namespace, changes: list[str], target: Path, trace: Path | None
) -> Iterator[dict[str, Any]]:
    """The flow on a cluster of its own; the first run does not count."""
    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    said = {"kind": "cuda", **({"visible_devices": args.gpus} if args.gpus else {}), **json.loads(args.cluster)}
    start = time.perf_counter()
    with make_cluster(Cluster.model_validate(said)) as cluster:
        where = section_of(cluster)
        print(f"cluster: {time.perf_counter() - start:.1f} s, {cluster}", flush=True)
        for number in range(args.repeats + 1):
            last = trace if number == args.repeats else None
            run = run_flow(where, args.recipe, changes, target, last)
            print(number, json.dumps(run), flush=True)
            if number:
                yield run
    shutil.rmtree(target, ignore_errors=True)


def peer_runs(args: argparse.Namespace, source: str, target: Path) -> Iterator[dict[str, Any]]:
    """The dask_cudf script on a cluster of its own; the first run does not count."""
    call = [sys.executable, str(HERE / "peers" / "peer_dask_cudf.py"), source, str(target), str(args.repeats + 1)]
    chosen = {"CUDA_VISIBLE_DEVICES": args.gpus} if args.gpus else {}
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True, env=os.environ | chosen) as process:
        assert process.stdout
        for number, line in enumerate(line for line in process.stdout if line.startswith("{")):
            print(f"peer {number} {line.rstrip()}", flush=True)
            if number:
                yield json.loads(line)
    if process.returncode:
        sys.exit(f"the script failed with status {process.returncode}")
    shutil.rmtree(target, ignore_errors=True)


def plain_run(folder: Path, source: list[str], run: dict[str, Any]) -> dict[str, float]:
    """Seconds for as many bytes and files as a run has written, and for the files that it has read."""
    at_once = min(run["files"], len(os.sched_getaffinity(0)))
    paths = [path for change in source for path in Path(change.partition("=")[2]).rglob("*.parquet")]
    found = {
        "write": round(plain.write(folder, run["files"], run["bytes"], at_once), 3),
        "read": round(plain.read(paths, at_once), 3),
    }
    print(json.dumps({"plain": found}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="toy", choices=list(SAMPLES))
    parser.add_argument("--rows", type=int, help=", ".join(f"{name} {rows:,}" for name, (_, rows) in SAMPLES.items()))
    parser.add_argument("--columns", type=int, help="of pca, 100 unless given")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1, help="so often all of it, one after the other")
    parser.add_argument("--files", type=int, default=32)
    parser.add_argument("--gpus", help="CUDA_VISIBLE_DEVICES of the workers, all if left out")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--set", nargs="*", default=[], help="changes to the job, as section.key=value")
    parser.add_argument("--cluster", default="{}", help="further keys of the section cluster, as JSON")
    parser.add_argument("--peer", action="store_true", help="run the dask_cudf script too")
    parser.add_argument("--plain", action="store_true", help="write and read the same bytes without any work, too")
    parser.add_argument("--trace", type=Path, help="a file for what every task of the last run did when")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.peer and args.recipe != "toy":
        parser.error("the dask_cudf script is of the recipe toy")
    if args.columns and args.recipe != "pca":
        parser.error("--columns is of the recipe pca")

    from infra.orchestration.server import ensure_server, stop_server

    target, rows = args.folder / "out", args.rows or SAMPLES[args.recipe][1]
    start = time.perf_counter()
    nbytes, source = make_source(args.recipe, args.folder, rows, args.columns)
    print(f"sample: {nbytes / 1e9:.1f} GB in {time.perf_counter() - start:.1f} s", flush=True)
    ensure_server()
    atexit.register(stop_server)  # when Prefect's own threads have told it the last
    changes = [*source, "output.files_per_worker=null", f"output.files={args.files}", *args.set]
    found: dict[str, list[dict[str, Any]]] = {"runs": [], "peers": [], "plain": []}
    for number in range(args.rounds):
        trace = args.trace if number == args.rounds - 1 else None
        for run in flow_runs(args, changes, target, trace):
            found["runs"].append(run)
            write_result(args, rows, **found)
        for peer in peer_runs(args, source[0].removeprefix("source.path="), target) if args.peer else ():
            found["peers"].append(peer)
            write_result(args, rows, **found)
        if args.plain:
            found["plain"].append(plain_run(args.folder, source, found["runs"][-1]))
    print(json.dumps(write_result(args, rows, **found)), flush=True)


def write_result(
    args: argparse.Namespace, rows: int, runs: list[Any], peers: list[Any], plain: list[Any]
) -> dict[str, float]:
    """What was measured so far, in the file of results, should the rest be cut off; the medians."""
    medians = {"rowmill": statistics.median(r["seconds"] for r in runs)}
    if peers:
        medians["dask-cudf"] = statistics.median(p["seconds"] for p in peers)
    if plain:
        medians |= {f"plain {what}": statistics.median(p[what] for p in plain) for what in ("write", "read")}
    result = {
        "workload": args.recipe,
        "rows": rows,
        "files": args.files,
        "command": " ".join(["python -m tests.bench.gpu", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "medians": medians,
        "runs": runs,
        "peers": peers,
        **({"plain": plain} if plain else {}),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return medians


if __name__ == "__main__":
    logging.getLogger("prefect").setLevel(logging.WARNING)  # of this process: a test calls main, too
    main()
