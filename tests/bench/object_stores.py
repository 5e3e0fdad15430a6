"""obstore, s3fs and pyarrow.fs on one S3 server (moto's), through the proxy of the tests: what reading Parquet, small
reads, listings, conditional puts and uploads cost, and what each does when requests fail.

The server and the proxy run in this process; each piece of work runs in a process of its own, whose seconds and CPU
seconds are recorded next to the requests and bytes that the proxy counts.

What was chosen, and why (results/object-stores-cpu.json):

- obstore for s3, gs and abfs. It is one wheel for all three clouds, and the only library of the three that has a
  conditional put on each of them. It takes `If-Match` with a range, so that a read itself notices a changed object. It
  survives each kind of failure that was tried, and fetches the rest of a body that was cut off. It needs a quarter of
  the CPU time of s3fs for ranges, and a thirtieth for a listing.
- fsspec for every other protocol (http, sftp, memory, ..).
- pyarrow.fs for nothing. It has no conditional put, asks for the size of each file with a request of its own, and gives
  up on failures of 20 % of small reads.

A client's own retry of a put whose answer was lost says that the object exists, with obstore as with s3fs: who puts has
to compare.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.record import write_record
from tests.object_store import Fault, ObjectStore, Request, fail_next, fail_share

COLUMNS, GROUPS, ROWS = 12, 8, 100_000
WANTED = ("c1", "c2", "c7")
SMALL, OBJECTS, UPLOAD, PART = 200, 10_000, 64 * 2**20, 8 * 2**20
AT_ONCE = 16
Ranges = list[tuple[int, int]]


class Obstore:
    """obstore, a file's ranges by `get_ranges`."""

    def __init__(self, url: str) -> None:
        import obstore
        from obstore.store import S3Store

        self.obs = obstore
        self.store = S3Store(
            "shop",
            endpoint=url,
            access_key_id="testing",
            secret_access_key="testing",
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def read(self, key: str, ranges: Ranges) -> int:
        starts, ends = zip(*ranges, strict=True)
        return sum(map(len, self.obs.get_ranges(self.store, key, starts=starts, ends=ends, coalesce=0)))

    def tail(self, key: str, nbytes: int) -> int:
        return len(self.obs.get(self.store, key, options={"range": {"suffix": nbytes}}).bytes())

    def list(self, prefix: str) -> int:
        return sum(map(len, self.obs.list(self.store, prefix)))

    def create(self, key: str) -> str:
        return _outcome(lambda: self.obs.put(self.store, key, b"x", mode="create"))

    def replace(self, key: str, etag: str) -> str:
        return _outcome(lambda: self.obs.put(self.store, key, b"y", mode={"e_tag": etag}))

    def upload(self, key: str, path: str) -> None:
        self.obs.put(self.store, key, Path(path), chunk_size=PART, use_multipart=True)


class S3fs:
    """s3fs, a file's ranges by `cat_ranges`."""

    def __init__(self, url: str) -> None:
        import s3fs

        self.fs = s3fs.S3FileSystem(key="testing", secret="testing", client_kwargs={"endpoint_url": url})

    def read(self, key: str, ranges: Ranges) -> int:
        starts, ends = zip(*ranges, strict=True)
        parts = self.fs.cat_ranges([f"shop/{key}"] * len(starts), list(starts), list(ends), on_error="raise")
        return sum(map(len, parts))

    def tail(self, key: str, nbytes: int) -> int:
        return len(self.fs.cat_file(f"shop/{key}", start=-nbytes))

    def list(self, prefix: str) -> int:
        return len(self.fs.find(f"shop/{prefix}", detail=True))

    def create(self, key: str) -> str:
        return _outcome(lambda: self.fs.pipe_file(f"shop/{key}", b"x", mode="create"))

    def replace(self, key: str, etag: str) -> str:
        return _outcome(
            lambda: self.fs.call_s3("put_object", Bucket="shop", Key=key, Body=b"y", IfMatch=etag)  # not of fsspec
        )

    def upload(self, key: str, path: str) -> None:
        self.fs.put_file(path, f"shop/{key}", chunksize=PART)


class ArrowFs:
    """pyarrow.fs, a file's ranges one by one by threads (its own coalescing reads whole Parquet files alone)."""

    def __init__(self, url: str) -> None:
        from pyarrow import fs

        self.select = fs.FileSelector
        self.fs = fs.S3FileSystem(
            access_key="testing",
            secret_key="testing",
            endpoint_override=url.removeprefix("http://"),
            scheme="http",
            region="us-east-1",
        )

    def read(self, key: str, ranges: Ranges) -> int:
        with self.fs.open_input_file(f"shop/{key}") as file, ThreadPoolExecutor(10) as threads:
            return sum(threads.map(lambda one: len(file.read_at(one[1] - one[0], one[0])), ranges))

    def tail(self, key: str, nbytes: int) -> int:
        with self.fs.open_input_file(f"shop/{key}") as file:
            return len(file.read_at(nbytes, file.size() - nbytes))

    def list(self, prefix: str) -> int:
        return len(self.fs.get_file_info(self.select(f"shop/{prefix}", recursive=True)))

    def create(self, key: str) -> str:
        return "not offered"

    def replace(self, key: str, etag: str) -> str:
        return "not offered"

    def upload(self, key: str, path: str) -> None:
        with Path(path).open("rb") as source, self.fs.open_output_stream(f"shop/{key}", buffer_size=PART) as sink:
            while part := source.read(PART):
                sink.write(part)


LIBRARIES = {"obstore": Obstore, "s3fs": S3fs, "pyarrow.fs": ArrowFs}


def _outcome(put: Callable[[], Any]) -> str:
    try:
        put()
    except Exception as error:
        return type(error).__name__
    return "done"


def work_of(name: str, client: Any, task: dict[str, Any]) -> Any:
    """Do one piece of work; what comes back is recorded."""
    if name == "chunks":
        return client.read("wide.parquet", [tuple(one) for one in task["ranges"]])
    if name == "small":
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return sum(threads.map(lambda i: client.tail(f"small/{i}", 65_536), range(SMALL)))
    if name == "list":
        return client.list("many")
    if name == "create":
        return [client.create(task["key"]), client.create(task["key"])]
    if name == "replace":
        return [client.replace("pointer", '"other"'), client.replace("pointer", task["etag"])]
    return client.upload("uploaded", task["path"])


def in_own_process(library: str, work: str, url: str, task: dict[str, Any], limit: float) -> dict[str, Any]:
    """Run one piece of work in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.object_stores", "--client", library, work, url, json.dumps(task)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"still at it after {limit:.0f} s"}
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else done.returncode}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def be_client(library: str, work: str, url: str, task: str) -> None:
    """What the process of one piece of work does."""
    client = LIBRARIES[library](url)
    started, cpu = time.perf_counter(), time.process_time()
    result = work_of(work, client, json.loads(task))
    figures = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu, "result": result}
    print(json.dumps(figures))


def wide_table() -> bytes:
    draws = np.random.default_rng(0)
    table = pa.table({f"c{i}": draws.integers(0, 2**62, GROUPS * ROWS) for i in range(COLUMNS)})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=ROWS, use_dictionary=False, compression="none")
    return sink.getvalue()


def chunks_of(content: bytes) -> Ranges:
    """Where the wanted columns lie, one range a chunk, neighbours joined."""
    footer = pq.read_metadata(pa.BufferReader(content))
    ranges: Ranges = []
    for group in range(footer.num_row_groups):
        for i in range(footer.num_columns):
            column = footer.row_group(group).column(i)
            if column.path_in_schema in WANTED:
                start = column.data_page_offset
                stop = start + column.total_compressed_size
                if ranges and ranges[-1][1] == start:
                    ranges[-1] = (ranges[-1][0], stop)
                else:
                    ranges.append((start, stop))
    return ranges


FAULTS: dict[str, Callable[[], Callable[[Request], Fault | None]]] = {
    "20 % answer 503": lambda: fail_share(0.2, 1, 503),
    "20 % answer 429": lambda: fail_share(0.2, 1, 429),
    "20 % are cut before the server": lambda: fail_share(0.2, 1, "cut"),
    "20 % are cut in the body": lambda: fail_share(0.2, 1, "half"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one piece of work")
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        be_client(*args.client)
        return
    store = ObjectStore()
    proxy = store.proxy
    content = wide_table()
    store.put("wide.parquet", content)
    for i in range(SMALL):
        store.put(f"small/{i}", bytes(100_000))
    for i in range(OBJECTS):
        store.put(f"many/day={i % 100:02}/part-{i:05}", b"x")
    upload = Path(f"/dev/shm/rowmill-upload-{os.getpid()}")
    upload.write_bytes(os.urandom(UPLOAD))
    ranges = chunks_of(content)
    runs: list[dict[str, Any]] = []
    number = 0
    try:
        for latency, bandwidth in ((0.0, None), (0.03, 100e6)):
            proxy.latency, proxy.bandwidth = latency, bandwidth
            for work in ("chunks", "small", "list", "create", "replace", "upload"):
                for turn in range(args.repeat if work in ("chunks", "small", "list", "upload") else 1):
                    for library in LIBRARIES:
                        number += 1
                        store.put("pointer", b"x")
                        etag = store.backend.get_object("shop", "pointer").etag
                        task = {"ranges": ranges, "key": f"new-{number}", "etag": etag, "path": str(upload)}
                        with proxy.counting() as traffic:
                            run = in_own_process(library, work, proxy.url, task, args.limit)
                        key = {
                            "latency": latency,
                            "bandwidth": bandwidth,
                            "work": work,
                            "library": library,
                            "turn": turn,
                        }
                        counts = {"requests": traffic.by_kind, "fetched": traffic.fetched, "sent": traffic.sent}
                        runs.append(key | run | counts)
                        print(runs[-1], file=sys.stderr)
        proxy.latency, proxy.bandwidth = 0.0, None
        cases = {**FAULTS, "the answer to a put that creates is lost": lambda: fail_next("put if", "lost")}
        for fault, choose in cases.items():
            for library in LIBRARIES:
                works = ("create",) if fault not in FAULTS else ("chunks", "small")
                for work in works:
                    number += 1
                    task = {"ranges": ranges, "key": f"new-{number}"}
                    with proxy.counting() as traffic, proxy.failing(choose()):
                        run = in_own_process(library, work, proxy.url, task, args.limit)
                    runs.append(
                        {"fault": fault, "work": work, "library": library} | run | {"requests": traffic.by_kind}
                    )
                    print(runs[-1], file=sys.stderr)
    finally:
        upload.unlink()
        store.close()
    record = {
        "command": "python -m tests.bench.object_stores " + " ".join(a for a in sys.argv[1:] if "=" not in a),
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("obstore", "s3fs", "aiobotocore", "pyarrow", "moto")},
        "file": {"bytes": len(content), "needed": sum(stop - start for start, stop in ranges), "ranges": len(ranges)},
        "runs": runs,
    }
    write_record(record, args.out)


if __name__ == "__main__":
    main()
