"""A whole run whose source is on an object store behind the proxy of the tests, at 30 ms and 100 MB/s, next to the same
run on local files while the same server streams as many bytes to nowhere.

The server (the double of Google Cloud Storage: moto's copies an object for each range of it) and the proxy run in a
process of their own; their CPU seconds are recorded, and so are those of the run. What counts is the ratio of a remote
run to the longer of the local run beside the stream and of bytes / bandwidth.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from tests.bench.record import write_record

FILES, GROUPS = 8, 4
LATENCY, BANDWIDTH = 0.03, 100e6
WORDS = 5_000


def make_table(number: int, rows: int) -> pa.Table:
    """Rows of one file; a third of its columns is read."""
    draws = np.random.default_rng(number)
    columns: dict[str, Any] = {f"c{i}": draws.integers(0, 2**62, rows) for i in range(6)}
    columns["word"] = draws.integers(0, WORDS, rows).astype(str)
    columns["price"] = draws.random(rows)
    return pa.table(columns)


def encode(table: pa.Table, name: str) -> bytes:
    sink = io.BytesIO()
    if name == "parquet":
        pq.write_table(table, sink, row_group_size=-(-table.num_rows // GROUPS))
    else:
        pacsv.write_csv(table, sink)
    return sink.getvalue()


def be_server(folder: str) -> None:
    """Serve the files of a folder, below gs://shop/<format>; answer lines of stdin by lines of figures."""
    from tests.gcs_double import GcsDouble

    store = GcsDouble()
    for path in sorted(Path(folder).rglob("part-*")):
        store.put(f"{path.parent.name}/{path.name}", path.read_bytes())
    print(json.dumps(store.options), flush=True)
    for line in sys.stdin:
        settings = json.loads(line)
        store.proxy.latency, store.proxy.bandwidth = settings["latency"], settings["bandwidth"]
        seen = store.proxy.requests
        fetched = sum(request.received for request in seen if request.kind == "get")
        kinds = sorted({request.kind for request in seen})
        counts = {kind: sum(request.kind == kind for request in seen) for kind in kinds}
        print(json.dumps({"fetched": fetched, "requests": counts, "cpu": time.process_time()}), flush=True)
        store.proxy.requests = []
    store.close()


def be_run(job: str, threads: str) -> None:
    """Run a job on threads of this process; print seconds, CPU seconds and digests."""
    from flows.job.job import make_job
    from tests.stages import run_stages

    wanted = json.loads(job)
    request = make_job(wanted).request("pandas")
    stages = {}
    began, cpu = time.perf_counter(), time.process_time()
    for result in run_stages(request, threads=int(threads)):
        stages[result.title] = round(result.seconds, 3)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    out = Path(wanted["output"]["path"])
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.glob("*.parquet"))}
    print(json.dumps({"seconds": seconds, "cpu_seconds": used, "stages": stages, "digests": digests}))


class Server:
    """The server's process."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.bench.remote_run", "--server", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.options = json.loads(self._read())

    def set(self, latency: float, bandwidth: float | None) -> dict[str, Any]:
        """Set the proxy; return the figures since the last call."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"latency": latency, "bandwidth": bandwidth}) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._read()))

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


class Stream:
    """Reads objects of the server to nowhere, as fast as the proxy lets it, as long as the block lasts."""

    def __init__(self, server: Server, name: str, nbytes: int) -> None:
        from tasks.storage.stores import open_store

        self._store = open_store("gs://shop", server.options)
        self._files = [file for page in self._store.list_pages(f"gs://shop/{name}") for file in page]
        self._left = nbytes  # as many as the remote run has fetched
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> None:
        self._thread.start()

    def measure(self) -> float:
        """The seconds that the stream takes alone."""
        began = time.perf_counter()
        self._thread.start()
        self._thread.join()
        return time.perf_counter() - began

    def _read(self) -> None:
        while self._left > 0:
            for file in self._files:
                if self._left <= 0:
                    return
                step = 2**20
                ranges = [(start, min(start + step, file.size)) for start in range(0, file.size, 2 * step)]
                self._left -= sum(map(len, self._store.read_ranges(file, ranges)))

    def __exit__(self, *error: object) -> None:
        self._left = 0
        self._thread.join()


def run_in_own_process(job: dict[str, Any], threads: int, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.remote_run", "--run", json.dumps(job), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return dict(json.loads(done.stdout.splitlines()[-1]))


def make_job(path: str, out: Path, remote: bool) -> dict[str, Any]:
    features = [
        {"columns": ["word"], "ops": [{"op": "Categorify"}]},
        {"columns": ["c1", "price"], "ops": [{"op": "FillMissing"}, {"op": "Normalize"}]},
    ]
    source = {"path": path, **({"storage_options": "bench"} if remote else {})}
    return {"source": source, "features": features, "output": {"path": str(out), "files": 4}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each of the 8 files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--formats", default="parquet,csv")
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.server:
        be_server(args.server)
        return
    if args.run:
        be_run(*args.run)
        return
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="rowmill-bench-") as folder:
        place = Path(folder)
        sizes = {}
        for name in args.formats.split(","):
            (place / "in" / name).mkdir(parents=True)
            for number in range(FILES):
                content = encode(make_table(number, args.rows if name == "parquet" else args.rows // 4), name)
                (place / "in" / name / f"part-{number}.{name}").write_bytes(content)
                sizes[name] = sizes.get(name, 0) + len(content)
        server = Server(place / "in")
        environment = {"ROWMILL_STORAGE_BENCH": json.dumps(server.options)}
        try:
            for name in sizes:
                for turn in range(args.repeat):
                    before = server.set(LATENCY, BANDWIDTH)
                    job = make_job(f"gs://shop/{name}", place / f"out-{name}-{turn}", True)
                    remote = run_in_own_process(job, args.threads, environment)
                    counts = server.set(LATENCY, BANDWIDTH)
                    job = make_job(str(place / "in" / name), place / f"local-{name}-{turn}", False)
                    alone = run_in_own_process(job, args.threads, environment)
                    server.set(LATENCY, BANDWIDTH)
                    job = make_job(str(place / "in" / name), place / f"beside-{name}-{turn}", False)
                    with Stream(server, name, counts["fetched"]):
                        beside = run_in_own_process(job, args.threads, environment)
                    stream = Stream(server, name, counts["fetched"]).measure()
                    bound = max(beside["seconds"], counts["fetched"] / BANDWIDTH)
                    figures = {
                        "format": name, "turn": turn, "remote": remote, "alone": alone, "beside": beside,
                        "requests": counts["requests"], "fetched": counts["fetched"],
                        "proxy_cpu_seconds": counts["cpu"] - before["cpu"], "stream_seconds": stream,
                        "bytes_over_bandwidth": counts["fetched"] / BANDWIDTH, "ratio": remote["seconds"] / bound,
                        "same_files": remote["digests"] == alone["digests"] == beside["digests"],
                    }  # fmt: skip
                    for one in (remote, alone, beside):
                        del one["digests"]
                    runs.append(figures)
                    print(figures, file=sys.stderr)
        finally:
            server.close()
    record = {
        "command": "python -m tests.bench.remote_run " + " ".join(a for a in sys.argv[1:] if "=" not in a),
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("obstore", "pyarrow")},
        "proxy": {"latency": LATENCY, "bandwidth": BANDWIDTH},
        "files": {"number": FILES, "bytes": sizes},
        "runs": runs,
    }
    write_record(record, args.out)


if __name__ == "__main__":
    main()
