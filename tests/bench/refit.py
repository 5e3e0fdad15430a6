"""Benchmark of a night: refit on top of a base, beside `apply` on the same rows and a fit of all rows.

    python -m tests.bench.refit --folder /dev/shm/refit --nights 31 --rows 2400000 --new-ids 0.7 --out shop.json
    python -m tests.bench.refit --folder /dev/shm/refit --engine cudf --ids 500000000 --rows 100000000 \
        --cluster '{"visible_devices": "0"}' --out tests/bench/results/refit-h200.json

With `--nights` the source is that of `rowmill sample ecommerce --nights`: the base is a fit of all nights but the
last; 0.7 new users per row make 50 M ids of 74 M rows. With `--ids` it is one column of int64, made on the device where
the engine is cudf: the base has each of so many values once, the night has `--rows` rows, of which every fifth has a
value that the base does not have.

Every run goes from ingest to what is committed, without a Prefect server: on the threads of this process or, with
`--engine cudf` or `--cluster`, in a worker of a cluster that rowmill makes, as the stages of a job do. Refit and apply
run in turns, `--repeats` times after a first time that does not count; `--repeats 0` counts the first. CPU seconds are
those of the process of the stages: all of the run without a cluster. The fits commit a fitted workflow, refit and apply
an output. A refit must not move an id of the base, which is checked;
`moved_by_a_fit` is the share of them that have another id in the fit of all rows (of five million at most, evenly from
all). Memory is the largest resident size of all processes; of GPUs what RMM had given out.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.bench.memory import recorded
from tests.bench.on_cluster import connected
from tests.bench.vocabulary import machine
from tests.stages import report_of

MOST_COMPARED = 5_000_000
ROWS_OF_FILE, BLOCK = 25_000_000, 1 << 24
NEW = 5  # every fifth row of the night of `--ids` has a new value
MULTIPLY = 0x9E3779B97F4A7C15  # odd: distinct numbers stay distinct modulo 2^64
SHOP = [
    {"columns": ["user_id"], "ops": [{"op": "Categorify"}]},
    {"columns": ["product_id", "category_id"], "ops": [{"op": "Categorify"}]},
    {"columns": ["event_type", "category_code", "brand"], "ops": [{"op": "Categorify"}]},
    {"columns": ["price"], "ops": [{"op": "FillMissing", "fill_value": 0}, {"op": "Normalize"}]},
]
IDS = [{"columns": ["id"], "ops": [{"op": "Categorify"}]}]


def make_ids(folder: Path, first: int, distinct: int, rows: int, xp: Any) -> None:
    """Files of one int64 column in which every fifth row has a value of its own from number `first` on, and the others
    one of the numbers below; without rows each of `distinct` values once."""
    folder.mkdir(parents=True)
    total = rows or distinct
    for part, start in enumerate(range(0, total, ROWS_OF_FILE)):
        schema = pa.schema([("id", pa.int64())])
        with pq.ParquetWriter(
            folder / f"part-{part:05d}.parquet", schema, compression="none", use_dictionary=False
        ) as file:
            stop = min(start + ROWS_OF_FILE, total)
            for begin in range(start, stop, BLOCK):
                row = xp.arange(begin, min(begin + BLOCK, stop), dtype=xp.uint64)
                number = row
                if rows:
                    old = (row * xp.uint64(MULTIPLY) >> xp.uint64(11)) % xp.uint64(first)
                    number = xp.where(row % xp.uint64(NEW) == 0, xp.uint64(first) + row // xp.uint64(NEW), old)
                values = (number * xp.uint64(MULTIPLY)).view(xp.int64)
                host = values.get() if hasattr(values, "get") else values
                file.write_table(pa.table({"id": pa.array(host)}), row_group_size=1 << 20)


def sources(args: argparse.Namespace) -> tuple[list[str], str, list[dict[str, Any]]]:
    """Folders of the base, that of the night, and the features."""
    if args.ids:
        xp: Any = np
        if args.engine == "cudf":
            import cupy as xp
        for name, rows in (("base", 0), ("night", args.rows)):
            if not (args.folder / name).exists():
                make_ids(args.folder / name, args.ids, args.ids, rows, xp)
        return [str(args.folder / "base")], str(args.folder / "night"), IDS
    from flows.sample import make_batches

    shop = args.folder / "shop"
    make_batches(shop, args.nights, args.rows, new_ids=args.new_ids)
    days = sorted(str(day) for day in shop.iterdir())
    return days[:-1], days[-1], SHOP


def stages_of(request: Any, pool: Any, commit: str = "output") -> dict[str, Any]:
    """The stages of a request without a Prefect server: seconds of each, and of all. commit: output, fitted, none."""
    from tasks.stages import commit as committing
    from tasks.stages import ingest, shuffle_write, statistics, transform

    start, used = time.perf_counter(), time.process_time()
    with request.staging.hold_lock():
        results: list[Any] = [ingest.ingest(request, pool)]
        before = time.process_time()
        if not request.fitted:
            results.append(statistics.statistics(request, pool))
        learned = time.process_time() - before
        if commit == "output":
            with committing.CommitPreparation(request, report_of(request)) as closing:
                for split in request.splits:
                    results.append(transform.transform(request, split, pool))
                    results.append(shuffle_write.shuffle_write(request, split, pool))
                committing.commit(request, results, closing=closing)
        elif commit == "fitted":
            committing.commit_fitted(request)
    stages = {one.stage: round(one.seconds, 3) for one in results}
    cpu = round(time.process_time() - used, 3)
    return {
        "rows": results[0].rows, "total": round(time.perf_counter() - start, 3), "cpu": cpu, "stages": stages,
        "statistics_cpu": round(learned, 3),
    }  # fmt: skip


class Night:
    """The runs that are compared, each into a folder of its own."""

    pool: Any = None

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.base_days, self.night, self.features = sources(args)
        self.fitted = args.folder / "fitted"

    def job(self, source: Any, out: Path) -> dict[str, Any]:
        """A job over a source; removes what an earlier run has left."""
        for old in (out, out.with_name(f".{out.name}.rowmill")):
            shutil.rmtree(old, ignore_errors=True)
        size = {"partition_size": self.args.partition_size} if self.args.partition_size else {}
        output = {"path": str(out), "files": self.args.files, "shuffle": "full"}
        run = {"report": False}
        return {"source": {"path": source, **size}, "features": self.features, "output": output, "run": run}

    def fit(self, source: Sequence[str], out: Path, commit: str) -> dict[str, Any]:
        from flows.job.job import make_job

        request = make_job(self.job(list(source), out)).request(self.args.engine)
        return stages_of(replace(request, flow="fit"), self.pool, commit)

    def base(self) -> dict[str, Any]:
        return self.fit(self.base_days, self.fitted, "fitted")

    def full(self) -> dict[str, Any]:
        return self.fit([*self.base_days, self.night], self.args.folder / "full", "fitted")

    def refit(self) -> dict[str, Any]:
        from flows.job.job import make_job
        from tasks.job.base_version import find_newest_good

        data = self.job(self.night, self.args.folder / "refit") | {"base": str(self.fitted)}
        start = time.perf_counter()
        base = find_newest_good(self.fitted).version
        checked = time.perf_counter() - start
        done = stages_of(make_job(data).request(self.args.engine, base), self.pool)
        return done | {"total": round(done["total"] + checked, 3), "base_verified": round(checked, 3)}

    def apply(self) -> dict[str, Any]:
        from flows.job.job import make_application

        data = self.job(self.night, self.args.folder / "applied") | {"fitted": str(self.fitted)}
        del data["features"]
        return stages_of(make_application(data).request(self.args.engine), self.pool)


def vocabularies(path: Path) -> dict[str, Any]:
    """The first column of each vocabulary of a fitted workflow, in the order of ids."""
    from tasks.graph.saved_workflow import find_fitted_folder
    from tasks.graph.state import State

    state = State.load(find_fitted_folder(path), partials=False)
    learned = {key: values for key, values in state.values.items() if "size" in values}
    return {key: values["values"].slice(0, values["size"])["v0"] for key, values in learned.items()}


def id_churn(before: Path, after: Path) -> dict[str, Any]:
    """By vocabulary: its sizes, and the share of the values before that have another id after."""
    found, theirs = {}, vocabularies(after)
    for key, ours in vocabularies(before).items():
        now = theirs[key]
        moved = 0.0
        if not now.slice(0, len(ours)).equals(ours):
            step = max(1, len(ours) // MOST_COMPARED)
            some = pa.array(np.arange(0, len(ours), step))
            place = pc.index_in(now, value_set=ours.take(some).combine_chunks())  # of each value now, among those
            same = np.asarray(place.drop_null()).astype(np.int64) * step == np.flatnonzero(place.is_valid())
            moved = 1 - float(np.count_nonzero(same)) / len(some)
        found[key] = {"before": len(ours), "after": len(now), "moved": moved}
    return found


def run_here(night: Night, name: str) -> dict[str, Any]:
    """A run of the night in this process: a worker of a cluster, as a stage is, or one without a cluster."""
    from distributed import get_client, get_worker, secede

    from tasks.cluster.dask_pool import DaskPool
    from tasks.cluster.local_pool import LocalPool
    from tasks.cluster.transfer import gpu_setup

    gc.collect()
    pa.default_memory_pool().release_unused()
    try:
        get_worker()
    except ValueError:
        night.pool = LocalPool()
    else:
        secede()
        night.pool = DaskPool(get_client(), None, gpu_setup.allocatable)
    return getattr(night, name)()  # type: ignore[no-any-return]


def measured(night: Night, name: str, client: Any) -> dict[str, Any]:
    """The figures of a run, which are printed as soon as they are known, with the memory of all processes."""
    with recorded(client) as memory:
        done = client.submit(run_here, night, name, pure=False).result() if client else run_here(night, name)
    done |= {key: value for key, value in memory.items() if key != "seconds"}
    print(name, json.dumps(done), file=sys.stderr, flush=True)
    return done


def measure(args: argparse.Namespace, client: Any) -> dict[str, Any]:
    """All runs; refit and apply in turns, so that both meet the same host."""
    night = Night(args)
    found: dict[str, Any] = {"base": [measured(night, "base", client)], "refit": [], "apply": [], "full": []}
    for number in range(args.repeats + 1):
        for name in ("refit", "apply"):
            done = measured(night, name, client)
            if number or not args.repeats:
                found[name].append(done)
    found["full"] = [measured(night, "full", client) for _ in range(args.fits)]
    found["id_churn"] = {
        name: id_churn(night.fitted, args.folder / folder) for name, folder in (("refit", "refit"), ("fit", "full"))
    }
    if moved := [key for key, one in found["id_churn"]["refit"].items() if one["moved"]]:
        raise SystemExit(f"ids moved in the refit: {moved}")
    return found


def summary(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the issue asks for: the night beside the two others."""
    seconds = {}
    for name in ("base", "refit", "apply", "full"):
        runs = found[name]
        gpu = [nbytes or 0 for run in runs for nbytes in run.get("allocated_peak_bytes", [])]
        seconds[name] = {
            "rows": runs[0]["rows"],
            "statistics": statistics.median(run["stages"].get("statistics", 0.0) for run in runs),
            "statistics_cpu": statistics.median(run["statistics_cpu"] for run in runs),
            "total": statistics.median(run["total"] for run in runs),
            "cpu": statistics.median(run["cpu"] for run in runs),
            "host_gb": round(max(run["host_peak_bytes"] for run in runs) / 1e9, 2),
            "gpu_gb": round(max(gpu, default=0) / 1e9, 2),
        }
    return {
        "runs": seconds,
        "refit_statistics_of_full": round(seconds["refit"]["statistics"] / seconds["full"]["statistics"], 4),
        "refit_statistics_of_full_in_cpu_seconds": round(
            seconds["refit"]["statistics_cpu"] / seconds["full"]["statistics_cpu"], 4
        ),
        "refit_cpu_of_apply": round(seconds["refit"]["cpu"] / seconds["apply"]["cpu"], 4),
        "refit_total_of_apply": round(seconds["refit"]["total"] / seconds["apply"]["total"], 4),
        "ids": {key: (one["before"], one["after"]) for key, one in found["id_churn"]["refit"].items()},
        "moved_by_a_fit": {key: round(one["moved"], 4) for key, one in found["id_churn"]["fit"].items()},
    }


def table(short: Mapping[str, Any]) -> str:
    lines = [f"{'':8}{'rows':>14}{'statistics s':>14}{'total s':>10}{'CPU s':>9}{'host GB':>9}{'GPU GB':>8}"]
    for name, run in short["runs"].items():
        lines.append(
            f"{name:8}{run['rows']:>14,}{run['statistics']:>14.2f}{run['total']:>10.2f}"
            f"{run['cpu']:>9.2f}{run['host_gb']:>9.2f}{run['gpu_gb']:>8.2f}"
        )
    lines.append(f"statistics of the refit: {100 * short['refit_statistics_of_full']:.1f} % of a fit of all rows")
    lines.append(f"the refit: {short['refit_total_of_apply']:.2f} x apply")
    of_full, of_apply = short["refit_statistics_of_full_in_cpu_seconds"], short["refit_cpu_of_apply"]
    lines.append(f"in CPU seconds: its statistics {100 * of_full:.1f} % of the fit's, all of it {of_apply:.2f} x apply")
    for key, (before, after) in short["ids"].items():
        moved = 100 * short["moved_by_a_fit"][key]
        lines.append(f"{key}: {before:,} ids, {after:,} now; a fit moves {moved:.1f} % of them, the refit none")
    return "\n".join(lines)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=31)
    parser.add_argument("--rows", type=int, default=2_400_000, help="of a night")
    parser.add_argument("--new-ids", type=float, default=0.7, help="of --nights: new users per row")
    parser.add_argument("--ids", type=int, help="one column of so many int64 values, instead of nights")
    parser.add_argument("--engine", choices=["pandas", "cudf"], default="pandas")
    parser.add_argument("--cluster", help="run on a cluster: keys of the section cluster, as JSON")
    parser.add_argument("--partition-size", help="source.partition_size")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3, help="of refit and apply, in turns")
    parser.add_argument("--fits", type=int, default=1, help="of all rows")
    parser.add_argument("--folder", type=Path, required=True, help="empty, or with the source of an earlier call")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    args = options(arguments)
    with connected(args.engine, args.cluster) as client:
        found = measure(args, client)
    short = summary(found)
    said = [str(word) for word in (arguments if arguments is not None else sys.argv[1:])]
    result = {
        "command": shlex.join(["python", "-m", "tests.bench.refit", *said]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(args.engine),
        **short,
        **found,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(short), flush=True)


if __name__ == "__main__":
    main()
