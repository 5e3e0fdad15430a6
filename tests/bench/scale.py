"""What 1 TB and 100 TB mean for the task graph, the scheduler and the storage; one JSON file of results.

    nice python -m tests.bench.scale --tasks 1000 100000 --square 100 1000 --out tests/bench/results/scale.json

Three parts. `objects`: the real plan of that many rows, cut by the real rules, weighed as it is sent to workers.
`counted`: the real pool and exchange against a client that only counts, which gives the number of tasks and of
dependencies between them. `scheduler`: a real Dask scheduler and two workers, each a process of its own, that run the
same submissions with partitions that do nothing; memory is sampled every 50 ms, and processor seconds are told beside
wall time, since they say more on a machine that others use. `needs` puts them together with the rate of one GPU that
tests/bench/results holds. infra/scale.md says what follows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import pyarrow as pa

from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.pool import count_pickled_bytes, merge_groups
from tasks.core.plan import LIMITS, File, Partition, Piece, Plan, Unit, cut_blocks, cut_partitions
from tasks.core.schema import Column, Schema
from tasks.core.settings import Output
from tasks.graph.node import as_node
from tasks.graph.partition_work import StateFolder, Work
from tasks.shuffle import memory_exchange
from tasks.shuffle.pieces import Cutting, PartitionPieces
from tasks.shuffle.row_order import RANGES_PER_FILE, make_order

TOY = {"decoded": 41.2, "file in": 23.8, "file out": 20.4}  # bytes per row of the toy workload
PARTITION = 1_000_000_000
FILE = 1_000_000_000  # decoded bytes that an output file gets
SIZES = {"1 TB": 10**12, "10 TB": 10**13, "100 TB": 10**14}
RESULTS = Path(__file__).parent / "results"


# ---- objects: what is sent


def plan_of(nbytes: int) -> Plan:
    """The plan of so many decoded bytes of the toy workload: files of one partition each, row groups of 4 Mi rows."""
    rows = LIMITS.cut_above
    group = int(rows * TOY["decoded"])
    per_file = max(1, PARTITION // group)
    units = (Unit(Piece(i // per_file, 0, rows, i % per_file), rows, group) for i in range(nbytes // group))
    blocks = cut_blocks(units, LIMITS.join_below, LIMITS.cut_above)
    size = int(per_file * rows * TOY["file in"])
    count = blocks[-1].pieces[0].file + 1
    files = tuple(File(f"/data/events/part-{i:06d}.parquet", size, 10**18, "0" * 16) for i in range(count))
    types = {"timestamp": pa.int64(), "id": pa.int64(), "name": pa.string(), "x": pa.float64(), "y": pa.float64()}
    schema = Schema(Column(name, dtype) for name, dtype in types.items())
    return Plan(files, "parquet", schema, blocks, cut_partitions(blocks, PARTITION))


def objects(nbytes: int) -> dict[str, Any]:
    """How large the plan is, as a file, for all tasks of a stage, and for one."""
    plan = plan_of(nbytes)
    output = Output(path="x", files=max(1, nbytes // FILE))
    work = Work(plan, as_node(list(plan.schema)), plan.schema, "cudf", StateFolder("/scratch/state", "0" * 64))
    cutting = Cutting(work, make_order(output, plan, output.files or 1))
    partition = plan.partitions[len(plan.partitions) // 2]
    pieces = len(plan.partitions) * cutting.order.ranges
    return {
        "rows": plan.rows, "source_files": len(plan.files), "blocks": len(plan.blocks),
        "partitions": len(plan.partitions), "output_files": output.files, "pieces": pieces,
        "bytes_per_piece": round(nbytes / pieces),
        "plan_json_mb": round(len(json.dumps(plan.to_json())) / 1e6, 2),
        "shared_by_the_tasks_of_a_stage_mb": round(count_pickled_bytes(cutting) / 1e6, 2),
        "bytes_of_one_partitions_description": count_pickled_bytes(partition),
        "offsets_of_the_disk_exchange": len(plan.partitions) * (cutting.order.ranges + 1),
    }  # fmt: skip


# ---- counted: what is submitted


class Promise:
    """A future that never comes."""

    status = "finished"

    def __init__(self, key: str) -> None:
        self.key = key


class CountingClient:
    """Takes what the pool submits, and counts tasks and the dependencies between them."""

    def __init__(self, workers: int) -> None:
        self.tasks = self.dependencies = 0
        self.scheduler = SimpleNamespace(identity=None)
        self.info = {"workers": {f"tcp://{i}": {"nthreads": 1, "memory_limit": 2**30} for i in range(workers)}}
        self.kept: dict[str, Any] = {}

    def sync(self, _identity: Any, n_workers: int) -> dict[str, Any]:
        return self.info

    def submit(self, function: Any, *args: Any, key: str, **_: Any) -> Promise:
        self.tasks += 1
        for argument in args:
            many = argument if isinstance(argument, list) else [argument]
            self.dependencies += sum(isinstance(a, Promise) for a in many)
        return Promise(key)

    def map(self, function: Any, *items: Any, key: list[str], **_: Any) -> list[Promise]:
        return [self.submit(function, *args, key=k) for k, *args in zip(key, *items, strict=True)]

    def publish_dataset(self, futures: Any, name: str) -> None:
        self.kept[name] = futures

    def unpublish_dataset(self, name: str) -> None:
        self.kept.pop(name, None)

    def who_has(self, futures: list[Promise]) -> dict[str, list[str]]:
        return {}

    def scatter(self, values: list[Any], **_: Any) -> list[Promise]:
        return [Promise("scattered") for _ in values]

    def get_dataset(self, name: str, default: Any = None) -> Any:
        return self.kept.get(name, default)


class CountingPool(DaskPool):
    """The real pool, but nothing is waited for."""

    def finish(self, futures: Any, done: Any = None, results: bool = True) -> list[Any]:
        return [None] * len(futures)


class Completed(list[Promise]):
    """Stands in for `distributed.as_completed`."""

    def batches(self) -> Iterator[list[Promise]]:
        yield list(self)


def counted(partitions: int, files: int, workers: int) -> dict[str, dict[str, int]]:
    """{step: tasks, dependencies} of the statistics, of the transform and of the writing through memory."""
    client = CountingClient(workers)
    pool, found = CountingPool(client), dict[str, dict[str, int]]()

    def lap(name: str) -> None:
        found[name] = {"tasks": client.tasks, "dependencies": client.dependencies}
        client.tasks = client.dependencies = 0

    with mock.patch("distributed.as_completed", Completed):
        merge_groups(pool, len, [pool.gather(no_work, len, None, range(partitions))])
    lap("statistics, a phase")
    memory = memory_exchange.DaskMemory(pool, "x")  # type: ignore[arg-type]
    memory.fill(cutting_for(files), range(partitions), None)  # type: ignore[arg-type]
    lap("transform")
    memory.deliver(no_work, None, range(files), ranges_of, None)
    lap("shuffle_write, memory")
    pool.map(no_work, None, range(files))
    lap("shuffle_write, disk")
    return found


def cutting_for(files: int) -> Any:
    """As much of a `Cutting` as the exchange looks at."""
    return SimpleNamespace(order=SimpleNamespace(ranges=RANGES_PER_FILE * files, of_file=RANGES_PER_FILE))


def ranges_of(file: int) -> tuple[int, int]:
    return file * RANGES_PER_FILE, (file + 1) * RANGES_PER_FILE


# ---- scheduler: what it sees


def no_work(shared: Any, item: Any) -> None:
    """A partition that is done."""


def no_cut(cutting: Any, partition: Any) -> PartitionPieces:
    """A partition without pieces."""
    return PartitionPieces()


def no_summary(cut: PartitionPieces) -> dict[str, Any]:
    return {}


def no_write(shared: Any, item: Any, cuts: Any) -> int:
    """A file to which nothing is written."""
    return len(cuts)


@contextlib.contextmanager
def running(workers: int) -> Iterator[tuple[Any, psutil.Process]]:
    """(a client, the scheduler's process) of a scheduler and workers, each a process of its own."""
    from distributed import Client

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        file = f"{folder}/scheduler.json"
        common = ["--host", "127.0.0.1", "--scheduler-file", file]
        calls = [["dask_scheduler", *common, "--port", "0", "--no-dashboard"]]
        calls += [["dask_worker", *common, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0",
                   "--local-directory", folder]] * workers  # fmt: skip
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
        started = []
        for name, *options in calls:
            call = [sys.executable, "-m", f"distributed.cli.{name}", *options]
            process = subprocess.Popen(call, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            started.append(process)
        with Client(scheduler_file=file, timeout=60) as client:
            client.wait_for_workers(workers, timeout=60)
            DaskPool(client).map(no_work, None, range(10))  # everybody has imported what this takes
            yield client, psutil.Process(started[0].pid)


class Watched:
    """Memory and processor time of the scheduler, and wall time, while the block runs."""

    def __init__(self, process: psutil.Process) -> None:
        self.process, self.stop = process, threading.Event()

    def __enter__(self) -> Watched:
        self.before = self.peak = self.process.memory_info().rss
        self.used, self.start, self.client_cpu = self.process.cpu_times(), time.perf_counter(), -time.process_time()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.start
        self.stop.set()
        self.thread.join()
        now = self.process.cpu_times()
        self.client_cpu += time.process_time()
        self.cpu = now.user + now.system - self.used.user - self.used.system

    def _watch(self) -> None:
        while not self.stop.wait(0.05):
            self.peak = max(self.peak, self.process.memory_info().rss)

    def told(self, tasks: int, dependencies: int) -> dict[str, Any]:
        grown = self.peak - self.before
        return {
            "tasks": tasks, "dependencies": dependencies, "seconds": round(self.seconds, 2),
            "tasks_per_second": round(tasks / self.seconds), "scheduler_cpu_seconds": round(self.cpu, 2),
            "client_cpu_seconds": round(self.client_cpu, 2), "scheduler_mb_before": round(self.before / 1e6),
            "scheduler_mb_peak": round(self.peak / 1e6), "scheduler_mb_grown": round(grown / 1e6),
        }  # fmt: skip


def mapped(tasks: int) -> dict[str, Any]:
    """`pool.map` over so many real partitions: the statistics, or the writing through the disk."""
    partitions = plan_of(tasks * PARTITION).partitions
    items = [partitions[i % len(partitions)] for i in range(tasks)]
    with running(2) as (client, scheduler), Watched(scheduler) as watched:
        DaskPool(client).map(no_work, None, items)
    return watched.told(tasks, 0)


def squared(side: int) -> dict[str, Any]:
    """The memory exchange with so many partitions and as many files: every file depends on every partition."""
    partitions = [Partition(i, ()) for i in range(side)]
    with contextlib.ExitStack() as stack:
        for name, stand_in in (("cut_partition", no_cut), ("summary", no_summary)):
            stack.enter_context(mock.patch.object(memory_exchange, name, stand_in))
        client, scheduler = stack.enter_context(running(2))
        with Watched(scheduler) as watched:
            memory = memory_exchange.DaskMemory(DaskPool(client), "scale")
            memory.fill(cutting_for(side), partitions, None)
            memory.deliver(no_write, None, list(range(side)), ranges_of, None)
            memory.close()
    counts = counted(side, side, 2)
    steps = [counts["transform"], counts["shuffle_write, memory"]]
    return watched.told(sum(s["tasks"] for s in steps), sum(s["dependencies"] for s in steps))


# ---- needs: how many GPUs, what of the storage


def rate_of_a_gpu() -> dict[str, float]:
    """Rows per second of one GPU, from the recorded run of the toy workload at full size."""
    data = json.loads((RESULTS / "toy-788m-h200.json").read_text())
    seconds = data["medians"]["rowmill"]
    seconds = seconds["seconds"]["median"] if isinstance(seconds, dict) else seconds
    return {"rows": data["rows"], "seconds": round(seconds, 2), "rows_per_second": round(data["rows"] / seconds)}


def needs(nbytes: int, gpus: int, rows_per_second: float) -> dict[str, Any]:
    """Time, storage and network of so many GPUs at the rate of one, all of them busy all the time."""
    rows = nbytes / TOY["decoded"]
    seconds = rows / rows_per_second / gpus
    read = rows * TOY["file in"] * 1.8  # the transform reads all columns, the statistics four of five of them
    return {"gpus": gpus, "minutes": round(seconds / 60, 1), "read_gb_per_s": round(read / seconds / 1e9, 1),
            "write_gb_per_s": round(rows * TOY["file out"] / seconds / 1e9, 1),
            "network_gb_per_s_and_gpu": round(nbytes / seconds / gpus / 1e9, 1),
            "pieces_gb_per_gpu": math.ceil(nbytes / gpus / 1e9)}  # fmt: skip


def machine() -> dict[str, Any]:
    from tasks.core.versions import versions

    return {"cores": len(os.sched_getaffinity(0)), "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
            "load_before": round(os.getloadavg()[0], 2), "nice": os.nice(0), "python": sys.version.split()[0],
            "versions": versions(("dask", "distributed", "pyarrow"))}  # fmt: skip


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with this
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="*", default=[1_000, 10_000], help="lengths of pool.map")
    parser.add_argument("--square", type=int, nargs="*", default=[100, 300], help="partitions, and as many files")
    parser.add_argument("--workers", type=int, default=8, help="for the counts")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    command = " ".join(["python -m tests.bench.scale", *sys.argv[1:]])
    found: dict[str, Any] = {"command": command, "date": time.strftime("%Y-%m-%d"), "machine": machine(),
                             "partition_bytes": PARTITION, "bytes_per_row": TOY}  # fmt: skip
    found["one_gpu"] = rate_of_a_gpu()
    rate = found["one_gpu"]["rows_per_second"]
    found["needs"] = {name: [needs(size, n, rate) for n in (8, 64, 512)] for name, size in SIZES.items()}
    found["objects"] = {name: objects(size) for name, size in SIZES.items()}
    counts = counted(1_000, 1_000, args.workers)
    found["counted"] = {"partitions": 1_000, "files": 1_000, "workers": args.workers, **counts}
    found["scheduler"] = {"map": [], "memory_exchange": []}
    for kind, function, sizes in (("map", mapped, args.tasks), ("memory_exchange", squared, args.square)):
        for size in sizes:
            found["scheduler"][kind].append({"size": size, **function(size)})
            print(kind, found["scheduler"][kind][-1], flush=True)
            if args.out:  # after each one: the longest take minutes
                args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
