"""Figures of the public texts that the product began with, ours beside them, one command each.

    python -m tests.bench.texts target --engines pandas cudf --folder /dev/shm/texts --out target.json
    python -m tests.bench.texts fits --engines pandas cudf --out fits.json
    python -m tests.bench.texts svd --cluster '{"kind": "cuda"}' --cluster \\
        '{"kind": "cuda", "protocol": "ucx", "unencrypted": true}' --out svd.json
    python -m tests.bench.texts arrays --out arrays.json

target: the recipe ecommerce (target encoding of two keys over a shop's events) on the CPU and on the GPU of the same
machine, ingest to commit. fits: 1,225 regressions of y on two of 50 columns over a million rows, by a function of one's
own (`rowmill.each`) and by PairwiseRegression. svd: u, s, v of rows in Parquet, on clusters whose workers speak TCP or
UCX. arrays: the same of a Dask array of 100 chunks in this process, and by `dask.array.linalg.svd`. The median of the
repeats, after one that does not count; those of `arrays` take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import rowmill

from tests.bench.gate import measured
from tests.bench.vocabulary import machine

REPEATS = 3
SINGULAR_TOLERANCE = 1e-9


def median(work: Callable[[], Any]) -> float:
    """The median seconds of some repeats, after one that does not count."""
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return round(statistics.median(seconds[1:]), 3)


def in_turn(works: Mapping[str, Callable[[], Any]]) -> dict[str, dict[str, float]]:
    """The median seconds of each work, and of the processor's seconds, after one that does not count.

    The works take turns, so that what else the machine does meets all of them.
    """
    wall: dict[str, list[float]] = {name: [] for name in works}
    processor: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS + 1):
        for name, work in works.items():
            start, used = time.perf_counter(), time.process_time()
            work()
            wall[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - used)
    return {
        "seconds": {name: round(statistics.median(values[1:]), 3) for name, values in wall.items()},
        "processor_seconds": {name: round(statistics.median(values[1:]), 3) for name, values in processor.items()},
    }


def target(rows: int, engines: Sequence[str], folder: Path) -> dict[str, Any]:
    from flows.sample import make_sample

    source, cores = folder / f"shop-{rows}", len(os.sched_getaffinity(0))
    if not source.exists():
        make_sample("ecommerce", source, rows, files=16)
    threads = {"pandas": cores, "cudf": 8}
    results = {
        e: median(lambda e=e: measured("ecommerce", source, folder / "out", False, threads[e], e)) for e in engines
    }
    return {"rows": rows, "seconds": results, "threads": {engine: threads[engine] for engine in engines}}


def fits(rows: int, engines: Sequence[str], folder: Path) -> dict[str, Any]:
    from tasks.engines.convert.libraries import to_frame
    from tests.flows.test_each import fit_ols, pairwise_regression

    draw = np.random.default_rng(12)
    table = pa.table({f"x{i}": draw.standard_normal(rows) for i in range(50)} | {"y": draw.standard_normal(rows)})
    pairs, results = list(combinations([f"x{i}" for i in range(50)], 2)), {}
    for engine in engines:
        frame = to_frame(table, engine)
        own = median(lambda: rowmill.each(fit_ols, pairs, broadcast=frame))  # noqa: B023  # called at once
        operator = median(lambda: pairwise_regression(table, engine))  # noqa: B023
        results[engine] = {"own_function": own, "operator": operator}
    return {"rows": rows, "fits": len(pairs), "seconds": results}


def svd(rows: int, clusters: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq
    from distributed import Client

    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    width, files, source = 32, 16, folder / f"matrix-{rows}"
    if not source.exists():
        source.mkdir(parents=True)
        for number in range(files):
            draw = np.random.default_rng(number).standard_normal((rows // files, width))
            pq.write_table(pa.table({f"x{i}": draw[:, i] for i in range(width)}), source / f"{number:02}.parquet")
    results, singular = {}, None
    for keys in clusters:
        engine = "cudf" if keys.get("kind") == "cuda" else "pandas"
        with make_cluster(Cluster(**keys)) as cluster, Client(cluster) as client:
            dataset = rowmill.Dataset(source, engine=engine, client=client)

            def decomposed(dataset: rowmill.Dataset = dataset) -> Any:
                result = rowmill.svd(dataset)
                result.u.map_blocks(lambda block: block[:1]).compute()  # u is made, and stays where it is
                return result

            seconds = median(decomposed)
            known = decomposed().s
        singular = known if singular is None else singular
        results[json.dumps(keys)] = {"seconds": seconds, "equal": bool((known == singular).all())}
        assert np.abs(known - singular).max() < SINGULAR_TOLERANCE * singular[0]
    return {"rows": rows, "columns": width, "clusters": results}


def arrays(rows: int) -> dict[str, Any]:
    import dask
    import dask.array as da

    width, chunks = 100, 100
    matrix = np.random.default_rng(0).standard_normal((rows, width))
    array = da.from_array(matrix, chunks=(rows // chunks, width))

    def rowmills() -> Any:
        result = rowmill.svd(array)
        return result.u.compute(), result.s

    def dasks() -> Any:
        return dask.compute(*da.linalg.svd(array))

    ours, theirs = rowmills()[1], dasks()[1]
    assert np.abs(ours - theirs).max() < SINGULAR_TOLERANCE * ours[0]
    found = in_turn({"rowmill": rowmills, "dask": dasks})
    ratio = {name: round(of["rowmill"] / of["dask"], 2) for name, of in found.items()}
    return {"rows": rows, "columns": width, "chunks": chunks, **found, "ratio": ratio}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", choices=["target", "fits", "svd", "arrays"])
    parser.add_argument("--rows", type=int, default=0, help="target 20 M, fits 1 M, svd 16 M, arrays 100,000")
    parser.add_argument("--engines", nargs="*", choices=["pandas", "cudf"], default=["pandas"])
    parser.add_argument("--cluster", type=json.loads, action="append", help="keys of the section cluster, as JSON")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/texts"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    usual = {"target": 20_000_000, "fits": 1_000_000, "svd": 16_000_000, "arrays": 100_000}
    rows = args.rows or usual[args.text]
    if args.text == "arrays":
        found = arrays(rows)
    elif args.text == "svd":
        found = svd(rows, args.cluster or [{"kind": "cpu"}], args.folder)
    else:
        found = {"target": target, "fits": fits}[args.text](rows, args.engines, args.folder)
    of_gpu = "cudf" in args.engines or any(keys.get("kind") == "cuda" for keys in args.cluster or ())
    command = " ".join(["python -m tests.bench.texts", *(arguments or sys.argv[1:])])
    result = {"command": command, "date": time.strftime("%Y-%m-%d")}
    result |= {"machine": machine("cudf" if of_gpu else "pandas"), args.text: found}
    print(json.dumps(found))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
