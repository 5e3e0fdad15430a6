"""Jobs on workers with little memory: does a run complete, or is it refused at ingest, and does the estimate hold?

    python -m tests.bench.memory_limits --folder /tmp/limits --out memory-limits-cpu.json

Each case is the recipe toy on one worker process of one thread: as a job (the stages, as a flow runs them, but without
Prefect), or as calls from Python, whose files have to be the same (`--interfaces job python`; `files_digest`). Every
20 ms the memory of the worker is read: `anonymous` is what it allocated, `resident` also counts pages of mapped files,
and is what Dask's nanny compares with the limit. The peaks of a job stand beside the estimate that ingest has made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

from tests.bench import compare

PARTITION = "20MB"


class WorkerMemory(threading.Thread):
    """The largest resident and anonymous memory of a cluster's worker by stage, and how many processes it had."""

    def __init__(self, cluster: Any) -> None:
        super().__init__(daemon=True)
        self.cluster, self.ended, self.stage = cluster, threading.Event(), "start"
        self.resident: dict[str, int] = {}
        self.anonymous: dict[str, int] = {}
        self.processes: set[int] = set()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            for worker in list(self.cluster.workers.values()):
                if worker.pid:
                    self._read(worker.pid)

    def _read(self, pid: int) -> None:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return
        sizes = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "RssAnon"))}
        if len(sizes) < 2:
            return
        self.processes.add(pid)
        for peaks, size in ((self.resident, sizes["VmRSS"]), (self.anonymous, sizes["RssAnon"])):
            peaks[self.stage] = max(peaks.get(self.stage, 0), int(size) * 1024)


def run_case(
    folder: Path, rows: int, limit: str, files: int, changes: Sequence[str], interface: str = "job"
) -> dict[str, Any]:
    """One job, or the same work called from Python, in this process; how it ended, and its memory."""
    from distributed import Client

    from flows.job.job import load_job
    from infra.clusters.kinds import make_cluster
    from infra.clusters.model import Cluster
    from tasks.errors import RowmillError

    job = load_job("toy", [
        f"source.path={folder / f'toy-{rows}'}", f"output.path={folder / 'out'}", "output.files_per_worker=null",
        f"output.files={files}", "output.on_existing=replace", f"source.partition_size={PARTITION}", *changes,
    ])  # fmt: skip
    case: dict[str, Any] = {"rows": rows, "limit": limit, "files": files, "interface": interface}
    cluster = make_cluster(Cluster(kind="cpu", workers=1, threads_per_worker=1, memory_limit=limit))
    with cluster, Client(cluster) as client:
        memory = WorkerMemory(cluster)
        memory.start()
        client.run(time.sleep, 0.2)
        start = time.perf_counter()
        try:
            INTERFACES[interface](job, client, memory, case)
            case["result"] = "complete"
        except RowmillError as error:
            case |= {"result": "refused", "error": str(error)}
        except Exception as error:
            case |= {"result": "failed", "error": f"{type(error).__name__}: {error}"}
        case["seconds"] = round(time.perf_counter() - start, 1)
        memory.ended.set()
        memory.join()
    case |= {"resident": memory.resident, "anonymous": memory.anonymous, "processes": len(memory.processes)}
    return case


def run_job(job: Any, client: Any, memory: WorkerMemory, case: dict[str, Any]) -> None:
    """Run the stages of a job; `case` gets what is known behind each."""
    from tasks.cluster.dask_pool import DaskPool
    from tasks.stages import shuffle_write, statistics, transform
    from tasks.stages.ingest import ingest

    request, pool, seconds = job.request("pandas"), DaskPool(client), {}
    with request.staging.hold_lock():
        memory.stage = "ingest"
        taken = ingest(request, pool)
        case |= {"estimate": dict(taken.estimate)}
        memory.stage = "statistics"
        statistics.statistics(request, pool)
        for split in request.splits:
            memory.stage = "transform"
            cut = transform.transform(request, split, pool)
            seconds["transform"] = round(cut.seconds, 1)
            case |= {"exchange": cut.exchange}
            memory.stage = "shuffle_write"
            wrote = shuffle_write.shuffle_write(request, split, pool)
            seconds["shuffle_write"] = round(wrote.seconds, 1)
            case |= {"rows_written": wrote.rows, "halved": wrote.halved, "stages": seconds}
            case |= {"files_digest": digest_of(wrote.parts)}


def call_from_python(job: Any, client: Any, memory: WorkerMemory, case: dict[str, Any]) -> None:
    """Fit the job's graph and write its output, both from Python; `case` gets what is known then."""
    import rowmill

    output = job.output
    dataset = rowmill.Dataset(job.source.path, partition_size=PARTITION, engine="pandas", client=client)
    memory.stage = "fit"
    workflow = rowmill.Workflow(job.graph()).fit(dataset)
    memory.stage = "to_parquet"
    written = workflow.transform(dataset).to_parquet(
        output.path, files=output.files, shuffle=output.shuffle, seed=output.seed, on_existing="replace"
    )
    parts = written.data["parts"]
    case |= {"exchange": written.data["exchange"], "rows_written": sum(part["rows"] for part in parts)}
    case |= {"files_digest": digest_of(parts)}


INTERFACES = {"job": run_job, "python": call_from_python}


def digest_of(parts: Iterable[Mapping[str, Any]]) -> str:
    """A digest of the names, rows and checksums of files."""
    lines = sorted(f"{part['path']} {part['rows']} {part['xxh3_128']}" for part in parts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where data are made, once, and outputs are written")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000_000, 40_000_000, 100_000_000])
    parser.add_argument("--limits", nargs="+", default=["500MB", "1GB", "2GB"])
    parser.add_argument("--files", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--interfaces", nargs="+", choices=[*INTERFACES], default=["job"])
    parser.add_argument("--set", nargs="*", default=[], help="further keys of the job")
    parser.add_argument("--out", type=Path, help="the file of results; it gets a case as soon as it is done")
    parser.add_argument("--one", action="store_true", help="one case, in this process, printed as JSON")
    args = parser.parse_args()
    if args.one:
        case = args.rows[0], args.limits[0], args.files[0], args.set, args.interfaces[0]
        print(json.dumps(run_case(args.folder, *case)))
        return
    cases = []
    for rows in args.rows:
        make_source(args.folder, rows)
        for limit, files, interface in product(args.limits, args.files, args.interfaces):
            cases.append(in_own_process(args.folder, rows, limit, files, args.set, interface))
            print(line_of(cases[-1]), flush=True)
            if args.out:
                write_result(args.out, cases)


def write_result(path: Path, cases: list[dict[str, Any]]) -> None:
    """Write the cases that are done."""
    command = " ".join(["python -m tests.bench.memory_limits", *sys.argv[1:]])
    result = {"command": command, "date": f"{date.today()}", "machine": compare.machine(), "cases": cases}
    path.write_text(json.dumps(result, indent=1) + "\n")


def make_source(folder: Path, rows: int) -> None:
    """The toy data set of so many rows, unless it is there."""
    path = folder / f"toy-{rows}"
    if not path.exists():
        command = [sys.executable, "-m", "rowmill", "sample", "toy", "--path", str(path), "--rows", str(rows)]
        subprocess.run(command, check=True)


def in_own_process(
    folder: Path, rows: int, limit: str, files: int, changes: Sequence[str], interface: str
) -> dict[str, Any]:
    """The case in a new process; what it wrote is removed."""
    command = [sys.executable, "-m", "tests.bench.memory_limits", "--one", "--folder", str(folder), "--rows", str(rows)]
    command += ["--limits", limit, "--files", str(files), "--interfaces", interface, "--set", *changes]
    done = subprocess.run(command, capture_output=True, text=True)
    for left in ("out", ".out.rowmill"):
        shutil.rmtree(folder / left, ignore_errors=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        asked = {"rows": rows, "limit": limit, "files": files, "interface": interface}
        return {**asked, "result": "failed", "error": done.stderr[-2000:]}
    case: dict[str, Any] = json.loads(lines[-1])
    return case


def line_of(case: dict[str, Any]) -> str:
    """A case in one line."""
    peak = max(case.get("resident", {"": 0}).values())
    needed = case.get("estimate", {}).get("host_memory_needed", "")
    where = f"{case['rows']:>11,} rows, {case['limit']:>6}, {case['files']:>3} files, {case['interface']}"
    what = f"{where}: {case['result']}"
    return f"{what}, {case.get('seconds', 0)} s, peak {peak / 10**6:,.0f} MB, estimate {needed}"


if __name__ == "__main__":
    main()
