"""PCA and PairwiseRegression on a cluster that rowmill makes, within the memory that it is given; see `linear`."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from flows.sample import make_sample
from tests.bench import linear
from tests.bench.memory import recorded
from tests.bench.on_cluster import connected

CELLS = 1 << 22  # numbers of a row group, 32 MiB: what a partition cannot be smaller than
PARTITIONS = {"pandas": "256MB", "cudf": "128MB"}
ALIKE = {"pca": 1e-10, "pairs": 1e-8}  # relative differences from numpy that are allowed
AXES, AXES_ALIKE = 8, 1e-8  # the sample has so many factors; behind them noise has no axes of its own


def source_of(work: str, rows: int, folder: Path) -> Path:
    """The sample in row groups of at most CELLS numbers, made if it is not there."""
    columns = linear.SIZES[work][1]
    target = folder / f"{work}-{rows}-small-row-groups"
    make_sample("wide", target, rows, files=-(-rows * columns // CELLS), columns=columns)
    return target


def measure_on(client: Any, work: str, source: Path, engine: str, repeats: int, partition_size: str) -> dict[str, Any]:
    """Fits on the workers of a client, `repeats` times after one that does not count; `found` is of the last."""
    runs = []
    for _ in range(repeats + 1):
        with recorded(client) as run:
            fitted = linear.learned(work, source, engine, partition_size)
        runs.append(run)
        print(work, json.dumps(run), file=sys.stderr, flush=True)
    found = linear.singular(fitted) if work.startswith("pca") else linear.fits(work, fitted)
    axes = {"axes": axes_of(fitted).tolist()} if work.startswith("pca") else {}
    return {"seconds": statistics.median(run["seconds"] for run in runs[1:]), "partition_size": partition_size,
            "runs": runs[1:], "first": runs[0], **found, **axes}  # fmt: skip


def axes_of(fitted: dict[str, Any]) -> np.ndarray:
    """The first AXES principal axes, one per row."""
    return np.stack([fitted["loadings"][f"pca_{i}"].to_numpy() for i in range(AXES)])


def checked(work: str, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """The largest relative difference from what numpy found, and that of the projectors; SystemExit if too large."""
    kind = work.partition("-")[0]
    found = {"differences": float(np.abs(np.array(ours["found"]) / np.array(theirs["found"]) - 1).max())}
    allowed = {"differences": ALIKE[kind]}
    if kind == "pca":
        a, b = np.array(ours["axes"]), np.array(theirs["axes"])
        found["projectors"], allowed["projectors"] = float(np.linalg.norm(a.T @ a - b.T @ b, 2)), AXES_ALIKE
    if any(found[name] > allowed[name] for name in found):
        raise SystemExit(f"{work}: too far from numpy: {found}, allowed are {allowed}")
    return found


def with_axes(work: str, folder: Path) -> dict[str, Any]:
    """numpy's singular values, and its axes out of the triangular factor."""
    matrix = linear.matrix_of(folder, linear.names_of(work))
    matrix -= matrix.mean(axis=0)
    _, _, axes = np.linalg.svd(np.linalg.qr(matrix, mode="r"))
    singular = np.linalg.svd(matrix, compute_uv=False)[: linear.COMPONENTS]
    return {"found": singular.tolist(), "fits": 1, "axes": axes[:AXES].tolist()}


def reference(work: str, name: str, source: Path, folder: Path | None) -> dict[str, Any]:
    """What numpy found: in an earlier run, of any host, that left it in the folder, else now."""
    kept = folder / f"{work}.json" if folder else None
    if kept and kept.exists():
        return dict(json.loads(kept.read_text()))
    theirs = linear.measured(work, name, source)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(theirs) + "\n")
    return theirs


def run(args: Any) -> dict[str, Any]:
    """All works of the command line, by name."""
    made: dict[str, Any] = {}
    with connected(args.engine, args.cluster) as client:
        for work in args.work:
            rows = args.rows or linear.SIZES[work][0]
            source = source_of(work, rows, args.folder)
            size = args.partition_size or PARTITIONS[args.engine]
            ours = measure_on(client, work, source, args.engine, args.repeats, size)
            shape = {"rows": rows, "columns": linear.SIZES[work][1], "data_bytes": 8 * rows * linear.SIZES[work][1]}
            made[work] = {**shape, "rowmill": {k: v for k, v in ours.items() if k not in ("found", "axes")}}
            if args.check:
                name = "numpy-svd-axes" if work.startswith("pca") else "numpy-lstsq"
                theirs = reference(work, name, source, args.numpy)
                numbers = {k: v for k, v in theirs.items() if k not in ("found", "axes")}
                made[work][name] = numbers | checked(work, ours, theirs)
            print(work, json.dumps(made[work]), flush=True)
    return made
