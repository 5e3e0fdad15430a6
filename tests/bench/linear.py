"""PCA and PairwiseRegression through Workflow.fit, beside numpy and scikit-learn on the same Parquet files.

    python -m tests.bench.linear --folder /dev/shm/rowmill-linear --repeats 3 --out tests/bench/results/linear-cpu.json
    python -m tests.bench.linear --folder /dev/shm/rowmill-linear --engine cudf --work pca-1000 pairs-50 --check \
        --cluster '{"visible_devices": "0", "rmm_pool_size": "1.5GB", "device_memory_limit": "1GB"}' \
        --out tests/bench/results/linear-h200.json

Every run is a process of its own and prints one JSON line; its time goes from the first look at the files to the
result, imports left out, reading included for all. Memory is the largest resident set of the process. `differences` is
the largest relative difference between what rowmill and the other found.

With `--engine cudf` or `--cluster` rowmill alone is measured, on a cluster that it makes, after one run that compiles
kernels and does not count; the source has row groups of 32 MiB, so that little memory is enough. `--check` compares it
with numpy's singular values and axes, or least squares, and fails where they differ: numpy needs all data in memory and
its time, so that `--rows` makes the matrices smaller where that is too long.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"pca-200": (300_000, 200), "pca-1000": (300_000, 1_000), "pairs-50": (1_000_000, 50)}
RUNS = {
    "pca-200": ("rowmill", "numpy-svd", "scikit-learn"),
    "pca-1000": ("rowmill", "numpy-svd"),
    "pairs-50": ("rowmill", "numpy-lstsq"),
}
COMPONENTS = 10
SAMPLED = 25  # pairs that are fitted one by one


def names_of(work: str) -> list[str]:
    return [f"x{j:04d}" for j in range(SIZES[work][1])]


def rowmill(work: str, folder: Path, engine: str = "pandas", partition_size: str = "256MB") -> dict[str, Any]:
    """One fit; singular values, or the sampled pairs."""
    fitted = learned(work, folder, engine, partition_size)
    return singular(fitted) if work.startswith("pca") else fits(work, fitted)


def learned(work: str, folder: Path, engine: str, partition_size: str) -> dict[str, Any]:
    """What is learned of the work's columns, in the current pool."""
    from tasks import ops
    from tasks.dataset import Dataset
    from tasks.workflow import Workflow

    op = ops.PCA(COMPONENTS) if work.startswith("pca") else ops.PairwiseRegression("y")  # type: ignore[attr-defined]
    source = Dataset(str(folder), partition_size=partition_size, engine=engine)
    (fitted,) = Workflow(names_of(work) >> op).fit(source).state.values.values()
    return fitted


def singular(fitted: dict[str, Any]) -> dict[str, Any]:
    return {"found": fitted["components"]["singular_value"].to_pylist(), "fits": 1}


def fits(work: str, fitted: dict[str, Any]) -> dict[str, Any]:
    rows = {(row["first"], row["second"]): row for row in fitted["pairs"].to_pylist()}
    kept = [rows[pair] for pair in sampled(names_of(work))]
    return {"found": [[row["first_coefficient"], row["second_coefficient"]] for row in kept], "fits": len(rows)}


def sampled(names: list[str]) -> list[tuple[str, str]]:
    """Pairs spread over all."""
    pairs = list(itertools.combinations(names, 2))
    return pairs[:: len(pairs) // SAMPLED][:SAMPLED]


def matrix_of(folder: Path, names: list[str]) -> np.ndarray:
    import pyarrow.parquet as pq

    parts = [pq.ParquetFile(path) for path in sorted(folder.glob("part-*.parquet"))]
    matrix = np.empty((sum(part.metadata.num_rows for part in parts), len(names)), order="F")
    start = 0
    for part in parts:
        for group in range(part.num_row_groups):
            table = part.read_row_group(group, columns=names)
            for j, name in enumerate(names):
                matrix[start : start + len(table), j] = table[name].to_numpy()
            start += len(table)
    return matrix


def numpy_svd(work: str, folder: Path) -> dict[str, Any]:
    matrix = matrix_of(folder, names_of(work))
    matrix -= matrix.mean(axis=0)
    return {"found": np.linalg.svd(matrix, compute_uv=False)[:COMPONENTS].tolist(), "fits": 1}


def scikit_learn(work: str, folder: Path) -> dict[str, Any]:
    from sklearn.decomposition import PCA

    found = PCA(COMPONENTS, svd_solver="full", copy=False).fit(matrix_of(folder, names_of(work)))
    return {"found": found.singular_values_.tolist(), "fits": 1}


def numpy_lstsq(work: str, folder: Path) -> dict[str, Any]:
    """The sampled pairs one by one, on data that are in memory and centred once for all."""
    names = names_of(work)
    matrix = matrix_of(folder, [*names, "y"])
    matrix -= matrix.mean(axis=0)
    place = {name: j for j, name in enumerate(names)}
    found = [np.linalg.lstsq(matrix[:, [place[a], place[b]]], matrix[:, -1])[0].tolist() for a, b in sampled(names)]
    return {"found": found, "fits": len(found)}


def numpy_svd_axes(work: str, folder: Path) -> dict[str, Any]:
    from tests.bench.linear_cluster import with_axes

    return with_axes(work, folder)


CONTENDERS: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "rowmill": rowmill, "numpy-svd": numpy_svd, "scikit-learn": scikit_learn, "numpy-lstsq": numpy_lstsq,
    "numpy-svd-axes": numpy_svd_axes,
}  # fmt: skip


def one(work: str, name: str, folder: Path) -> None:
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import tasks.workflow  # noqa: F401

    if name == "scikit-learn":
        import sklearn.decomposition  # noqa: F401
    start, used = time.perf_counter(), time.process_time()
    found = CONTENDERS[name](work, folder)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        json.dumps(
            {"seconds": round(seconds, 3), "cpu_seconds": round(used, 3), "peak_memory_gb": round(peak, 2), **found}
        )
    )


def measured(work: str, name: str, folder: Path) -> dict[str, Any]:
    call = [sys.executable, "-m", "tests.bench.linear", "--one", work, name, "--folder", str(folder)]
    load = os.getloadavg()[0]
    out = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    return {**json.loads(out.splitlines()[-1]), "load_before": round(load, 2)}


def compared(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians, and the largest relative difference between what rowmill and each of the others found."""
    ours = np.array(runs["rowmill"][0]["found"])
    out: dict[str, Any] = {}
    for name, found in runs.items():
        seconds = [run["seconds"] for run in found]
        out[name] = {"seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
                     "cpu_seconds": statistics.median(run["cpu_seconds"] for run in found), "fits": found[0]["fits"],
                     "peak_memory_gb": max(run["peak_memory_gb"] for run in found)}  # fmt: skip
        if name != "rowmill":
            theirs = np.array(found[0]["found"])
            out[name]["differences"] = float(np.abs(ours / theirs - 1).max())
    return out


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the samples lie; a tmpfs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("WORK", "NAME"), help="one run in this process")
    parser.add_argument("--engine", choices=["pandas", "cudf"], default="pandas")
    parser.add_argument("--cluster", help="rowmill alone, on a cluster: keys of the section cluster, as JSON")
    parser.add_argument("--rows", type=int, help="on a cluster: of every matrix")
    parser.add_argument("--partition-size", help="on a cluster: 256MB, on GPUs 128MB")
    parser.add_argument("--check", action="store_true", help="on a cluster: compare with numpy")
    parser.add_argument("--numpy", type=Path, help="with --check: folder for what numpy found, which takes minutes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    args = options(arguments)
    if args.one:
        one(*args.one, args.folder)
        return
    said = sys.argv[1:] if arguments is None else arguments
    result: dict[str, Any] = {"command": shlex.join(["python", "-m", "tests.bench.linear", *said]),
                              "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    if args.engine == "cudf" or args.cluster is not None:
        from tests.bench.linear_cluster import run
        from tests.bench.vocabulary import machine as described

        result |= {"machine": described(args.engine), "works": run(args)}
    else:
        result |= beside_others(args)
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")


def beside_others(args: argparse.Namespace) -> dict[str, Any]:
    """All works by all contenders in turn, each run in a process of its own."""
    from flows.sample import make_sample
    from tests.bench.compare import machine

    result: dict[str, Any] = {"machine": machine(), "scikit-learn": version("scikit-learn"), "medians": {}}
    for work in args.work:
        rows, columns = SIZES[work]
        folder = args.folder / work
        make_sample("wide", folder, rows, columns=columns)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS[work]}
        for _ in range(args.repeats):
            for name in runs:
                runs[name].append(measured(work, name, folder))
                print(work, name, runs[name][-1]["seconds"], "s", runs[name][-1]["peak_memory_gb"], "GB", flush=True)
        result["medians"][work] = {"rows": rows, "columns": columns, **compared(runs)}
        result.setdefault("load_before", {})[work] = [run["load_before"] for found in runs.values() for run in found]
    return result


if __name__ == "__main__":
    main()
