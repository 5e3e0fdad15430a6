"""Reads and writes of a run on one GPU whose files are on an S3 server of the same host: moto's, in its own process.

Beside it the plain download: by obstore to the host's memory, and by KvikIO to the GPU's.

    python -m tests.bench.remote_gpu --folder /dev/shm/remote
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 32
ROWS = 20_000_000
AT_ONCE = 8


def serve(connection: Any) -> None:
    from tests.object_store import ObjectStore

    store = ObjectStore()
    connection.send(store._server.server_port)  # without the proxy, which one core bounds
    connection.recv()


def make_files(folder: Path) -> list[Path]:
    draws = np.random.default_rng(1)
    rows = ROWS // FILES
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"rows-{number:02}.parquet" for number in range(FILES)]
    for path in paths:
        columns = {f"x{number}": draws.random(rows).astype("float32") for number in range(8)}
        pq.write_table(pa.table({"word": draws.integers(0, 50_000, rows).astype("int32"), **columns}), path)
    return paths


def run(source: str, out: str, options: dict[str, Any]) -> list[str]:
    """A fit, a transform and a shuffle; the digests of the parts."""
    from tasks import ops
    from tasks.dataset import Dataset
    from tasks.workflow import Workflow

    features = ["word"] >> ops.Categorify()
    features += [f"x{number}" for number in range(8)] >> ops.Normalize()
    read, written = ({"storage_options": options} if "://" in path else {} for path in (source, out))
    rows = Workflow(features).fit_transform(Dataset(source, engine="cudf", **read))
    manifest = rows.to_parquet(out, files=8, on_existing="replace", **written)
    return [part["xxh3_128"] for part in manifest.parts]


def download_to_device(names: list[str]) -> None:
    import cupy
    import kvikio

    def fetch(name: str) -> None:
        with kvikio.RemoteFile.open_s3("shop", f"in/{name}") as file:
            file.read(cupy.empty(file.nbytes(), "u1"))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(fetch, names))


def measure(work: Callable[[], object], repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(round(time.perf_counter() - began, 2))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    from tasks.storage.stores import open_store

    here, there = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}"
    options = {
        "key": "testing",
        "secret": "testing",
        "client_kwargs": {"endpoint_url": url, "region_name": "us-east-1"},
    }
    variables = {"ACCESS_KEY_ID": "testing", "SECRET_ACCESS_KEY": "testing", "DEFAULT_REGION": "us-east-1"}
    os.environ |= {f"AWS_{name}": value for name, value in variables.items()} | {"AWS_ENDPOINT_URL": url}
    folder = arguments.folder
    paths = make_files(folder / "in")
    store = open_store("s3://shop/in", options)
    with ThreadPoolExecutor(AT_ONCE) as threads:

        def upload() -> None:
            list(threads.map(lambda path: store.upload(path, f"s3://shop/in/{path.name}"), paths))

        uploaded = measure(upload, 1)
        files = [store.stat(f"s3://shop/in/{path.name}") for path in paths]

        def download() -> None:
            list(threads.map(lambda file: store.read_ranges(file, [(0, file.size)]), files))

        results: dict[str, Any] = {
            "bytes": sum(file.size for file in files),
            "upload": uploaded,
            "obstore to the host": measure(download, arguments.repeats),
        }
    names = [path.name for path in paths]
    results["kvikio to the device"] = measure(lambda: download_to_device(names), arguments.repeats)
    local = run(str(folder / "in"), str(folder / "out"), options)
    places = {
        "local to local": (str(folder / "in"), str(folder / "out")),
        "s3 to local": ("s3://shop/in", str(folder / "out")),
        "local to s3": (str(folder / "in"), "s3://shop/out"),
    }
    for name, (source, out) in places.items():
        results[name] = measure(partial(run, source, out, options), arguments.repeats)
    results["equal bytes"] = run("s3://shop/in", "s3://shop/other", options) == local
    print(json.dumps(results, indent=1))
    here.send(None)


if __name__ == "__main__":
    main()
