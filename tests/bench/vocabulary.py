"""Benchmark of large vocabularies: fit and transform of Categorify over distinct values, and the memory they take.

    python -m tests.bench.vocabulary                # 50 M distinct int64, 20 M distinct strings, one row each
    python -m tests.bench.vocabulary --repeat 2     # every value twice
    python -m tests.bench.vocabulary --kinds int64=10000000 --sizes 10000000 20000000 40000000 \
        --out tests/bench/results/encode-cpu.json   # one vocabulary over more and more rows
    python -m tests.bench.vocabulary --engine cudf --kinds int64=500000000 --repeat 2 --repeats 3 \
        --cluster '{"visible_devices": "0"}' --out tests/bench/results/vocabulary-h200.json

Each case runs over Parquet files in `--folder` (removed at the end): on the threads of a process of its own, or, with
`--engine cudf` or `--cluster`, on a cluster that rowmill makes, several times, of which the first compiles kernels and
does not count. Memory is the largest sum of the resident sizes of all processes of the benchmark; of each GPU, the
most that RMM had given out and the most that was in use. The ids are checked on the workers: as many rows as the source
has, and each id exactly as often as its value.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from tests.bench.distinct import make
from tests.bench.encode import MOST, counted, encode, saved, work_of
from tests.bench.memory import Memory, recorded

RESULTS = Path(__file__).parent / "results" / "vocabulary-cpu.json"
PARTITIONS = {"pandas": "64MB", "cudf": "512MB"}


def measure(folder: Path) -> dict[str, Any]:
    """Fit and transform on the threads of this process, as a user's iteration over the frames does it."""
    from tasks import ops
    from tasks.dataset import Dataset
    from tasks.workflow import Workflow

    memory, out = Memory(), {}
    memory.start()
    workflow = Workflow(["c"] >> ops.Categorify())  # type: ignore[attr-defined]
    source = Dataset(str(folder), partition_size=PARTITIONS["pandas"], engine="pandas")
    start, used = time.perf_counter(), time.process_time()
    workflow.fit(source)
    out["fit_seconds"] = round(time.perf_counter() - start, 2)
    out["fit_cpu_seconds"] = round(time.process_time() - used, 2)
    out["fit_peak_bytes"] = memory.largest
    size = vocabulary_size(workflow)
    seen, rows = np.zeros(size + 3, dtype=bool), 0
    start, used = time.perf_counter(), time.process_time()
    for made in workflow.transform(source).to_iter():
        ids = made["c"].to_numpy()
        seen[ids] = True
        rows += len(ids)
    out["transform_seconds"] = round(time.perf_counter() - start, 2)
    out["transform_cpu_seconds"] = round(time.process_time() - used, 2)
    assert rows == source.num_rows
    assert seen[3:].all()
    assert not seen[:3].any()
    return {"rows": rows, "vocabulary": size, **out, "peak_bytes": memory.stop()}


def measure_on(client: Any, folder: Path, engine: str, repeats: int, partition_size: str) -> dict[str, Any]:
    """Fit and transform on the workers of a client, `repeats` times after one that does not count; ids are checked."""
    from tasks import ops
    from tasks.cluster.dask_pool import DaskPool
    from tasks.dataset import Dataset
    from tasks.workflow import Workflow

    pool, data = DaskPool(client), folder / "data"
    source = Dataset(str(data), partition_size=partition_size, engine=engine)
    partitions = list(source.plan.partitions)
    fits: list[dict[str, Any]] = []
    for _ in range(repeats + 1):
        workflow = None  # what was learned before goes first
        with recorded(client) as found:
            workflow = Workflow(["c"] >> ops.Categorify()).fit(source)  # type: ignore[attr-defined]
        fits.append(found)
        print("fit", json.dumps(found), file=sys.stderr, flush=True)
    assert workflow is not None
    out: dict[str, Any] = {"save_seconds": saved(workflow, pool, folder / "fitted")}
    work = work_of(workflow, source, engine, pool, folder / "fitted")
    size, workflow = vocabulary_size(workflow), None
    with recorded(client) as loading:
        client.gather([client.submit(_loaded, work, workers=[worker], pure=False) for worker in pool.workers])
    transforms: list[dict[str, Any]] = []
    for _ in range(repeats + 1):
        with recorded(client) as found:
            rows = encode(pool, work, partitions)
        assert rows == source.num_rows
        transforms.append(found)
        print("transform", json.dumps(found), file=sys.stderr, flush=True)
    check = checked(counted(pool, work, partitions, size, folder / "counts"), source.num_rows, size)
    return {"rows": source.num_rows, "vocabulary": size, "partitions": len(partitions), "threads": pool.threads,
            "workers": len(pool.workers), "fit_seconds": median(fits), "transform_seconds": median(transforms), **out,
            "load_seconds": loading["seconds"], "ids": check, "fits": fits[1:], "load": loading,
            "transforms": transforms[1:], "first": [fits[0], transforms[0]]}  # fmt: skip


def _loaded(work: Any) -> None:
    """The vocabulary made ready on a worker: read, checked, put into its look-up table."""
    for step in work.bound.learned:
        work.learned.prepare_step(step.key, step.op, work.kernels)


def median(runs: Sequence[dict[str, Any]]) -> float:
    """Seconds of the runs that count."""
    return statistics.median(run["seconds"] for run in runs[1:])


def checked(ids: dict[str, Any], rows: int, distinct: int) -> dict[str, Any]:
    """What `counted` found, where every value has an id of its own and its rows have that."""
    repeat = min(rows // distinct, MOST)
    expected = {"rows": rows, "seen": distinct, "least": repeat, "most": repeat, "others": 0}
    if ids != expected:
        raise SystemExit(f"the ids are wrong: {ids} instead of {expected}")
    return ids


def vocabulary_size(workflow: Any) -> int:
    (fitted,) = workflow.state.values.values()
    return int(fitted["size"])


def encode_sizes(kind: str, distinct: int, sizes: Sequence[int], folder: Path, repeats: int) -> dict[str, Any]:
    """Seconds of encode over more and more rows by one vocabulary, on the threads of this process.

    Each source holds every value, as often as its rows allow: the first is learned from.
    """
    from tasks import ops
    from tasks.cluster.local_pool import LocalPool
    from tasks.dataset import Dataset
    from tasks.workflow import Workflow

    pool, workflow, found = LocalPool(), None, []
    for rows in sizes:
        if rows % distinct:
            raise SystemExit(f"--sizes {rows}: give multiples of the {distinct} values")
        make(kind, distinct, rows // distinct, folder / str(rows))
        source = Dataset(str(folder / str(rows)), partition_size=PARTITIONS["pandas"], engine="pandas")
        workflow = workflow or Workflow(["c"] >> ops.Categorify()).fit(source)  # type: ignore[attr-defined]
        work, partitions = work_of(workflow, source, "pandas", pool, folder), list(source.plan.partitions)
        runs = []
        for _ in range(repeats + 1):
            start, used = time.perf_counter(), time.process_time()
            assert encode(pool, work, partitions) == rows
            runs.append((time.perf_counter() - start, time.process_time() - used))
        seconds, cpu = (statistics.median(run[i] for run in runs[1:]) for i in (0, 1))
        check = checked(counted(pool, work, partitions, distinct, folder / f"counts-{rows}"), rows, distinct)
        found.append({"rows": rows, "seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3),
                      "rows_per_second": round(rows / seconds), "ids": check})  # fmt: skip
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
        shutil.rmtree(folder / str(rows))
    return {"vocabulary": distinct, "sizes": found}


def machine(engine: str) -> dict[str, Any]:
    from tasks.core.versions import versions
    from tests.bench.gpu import PACKAGES, gpus
    from tests.cost import cpu_model

    return {
        "processor": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_at_start": [round(v, 2) for v in os.getloadavg()],
        **({"gpus": gpus()} if engine == "cudf" else {}),
        "versions": {
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
            "numpy": np.__version__,
            **versions(("pandas", *(PACKAGES if engine == "cudf" else ()))),
        },
    }


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["int64=50000000", "string=20000000"], metavar="KIND=NUMBER")
    parser.add_argument("--repeat", type=int, default=1, help="how often each value occurs")
    parser.add_argument("--sizes", type=int, nargs="+", help="rows to encode by one vocabulary, in turn")
    parser.add_argument("--engine", choices=["pandas", "cudf"], default="pandas")
    parser.add_argument("--cluster", help="run on a cluster: keys of the section cluster, as JSON")
    parser.add_argument("--partition-size", help="64MB, on GPUs 512MB")
    parser.add_argument("--repeats", type=int, default=3, help="runs on a cluster, or of each size, that count")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measured(args: argparse.Namespace, kind: str, distinct: int, folder: Path, client: Any) -> dict[str, Any]:
    """One case in a new folder."""
    if args.sizes:
        return encode_sizes(kind, distinct, args.sizes, folder, args.repeats)
    start = time.perf_counter()
    nbytes = make(kind, distinct, args.repeat, folder / "data")
    source = {"repeat": args.repeat, "source_bytes": nbytes, "make_seconds": round(time.perf_counter() - start, 2)}
    print(json.dumps(source), file=sys.stderr, flush=True)
    if client is not None:
        size = args.partition_size or PARTITIONS[args.engine]
        return source | measure_on(client, folder, args.engine, args.repeats, size)
    command = [sys.executable, "-m", "tests.bench.vocabulary", "--measure", str(folder / "data")]
    return source | json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    args = options(arguments)
    if args.sizes and (args.engine == "cudf" or args.cluster):
        raise SystemExit("--sizes is measured on the threads of this process: leave out --engine and --cluster")
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    from tests.bench.on_cluster import connected

    said = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "tests.bench.vocabulary", *said])
    found = {"command": command, "date": time.strftime("%Y-%m-%d"), **machine(args.engine), "cases": []}
    with connected(args.engine, args.cluster) as client:
        for kind, distinct in (given.split("=") for given in args.kinds):
            folder = Path(tempfile.mkdtemp(prefix="vocabulary-", dir=args.folder))
            try:
                case = {"kind": kind, **measured(args, kind, int(distinct), folder, client)}
            finally:
                shutil.rmtree(folder)
            print(json.dumps(case), flush=True)
            found["cases"].append(case)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
