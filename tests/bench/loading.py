"""Rows a second that training gets of an output: `Rows` and `loader`, next to Hugging Face datasets and PyArrow.

    python -m tests.bench.loading --out tests/bench/results/loading-cpu.json        # 2 M rows of criteo, on two cores
    python -m tests.bench.loading --engine cudf --device cuda --rows 50000000 --batch 262144 --out loading-h200.json

The recipe criteo (13 floats, 26 ids, a label) makes an output in `--folder`, which is removed at the end. All readers
read its Parquet files, one after the other in each round; the first round does not count, and checks that each reader
gives every row once: it counts the rows and adds up their labels. A reader is stopped after `--seconds`, and its rows
until then count. `tensors of Arrow` are what a user makes who finds `with_format("torch")` slow.

A reader is left out where its packages are missing. With `--device cuda` the readers give arrays of CuPy or tensors in
the memory of the GPU, and `cuDF, whole files` is what decoding alone takes.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tasks.core.versions import versions
from tests.bench.record import write_record
from tests.cost import cpu_model

LABEL = "label"
Batch = Any  # an Arrow table, or a map of columns


@dataclass(frozen=True)
class Reader:
    """A way to the batches of the output's files: `open` begins an epoch; `needs` are the modules that it imports."""

    name: str
    open: Callable[[], Iterator[Batch]]
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        return [module for module in self.needs if find_spec(module) is None]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/rowmill-loading"))
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=65_536, help="rows of a batch")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--engine", choices=("pandas", "cudf"), default="pandas", help="makes the output")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where batches are wanted")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="of a DataLoader, each number in turn")
    parser.add_argument("--readers", nargs="*", help="only the readers whose name contains one of these texts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="after which a reader is stopped")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    try:
        output = make_output(options.folder, options.rows, options.files, options.engine)
        readers = list_readers(output, options)
        measured = measure(readers, output, options)
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    record = {
        "what": (__doc__ or "").partition("\n")[0],
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m tests.bench.loading " + " ".join(sys.argv[1:] if arguments is None else arguments),
        "machine": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform()},
        "versions": {"python": platform.python_version(), **versions(), **list_versions("torch", "datasets")},
        "rows": options.rows,
        "batch": options.batch,
        **measured,
    }
    show(measured)
    write_record(record, options.out)


def make_output(folder: Path, rows: int, files: int, engine: str) -> Path:
    """Make an output of the recipe criteo, as a call from Python makes it; only the output stays."""
    from flows.job.job import load_job
    from flows.sample import make_sample
    from tasks.dataset import Dataset
    from tasks.workflow import Workflow

    make_sample("criteo", folder / "source", rows)
    source = Dataset(str(folder / "source"), engine=engine)
    workflow = Workflow(load_job("criteo").graph()).fit(source)
    workflow.transform(source).to_parquet(str(folder / "out"), files=files)
    shutil.rmtree(folder / "source")
    return folder / "out"


def list_readers(output: Path, options: argparse.Namespace) -> list[Reader]:
    """List the readers for a device, those that were chosen."""
    make = list_gpu_readers if options.device == "cuda" else list_host_readers
    chosen = options.readers or [""]
    return [r for r in make(output, options.batch, options.workers) if any(text in r.name for text in chosen)]


def list_host_readers(output: Path, batch: int, workers: list[int]) -> list[Reader]:
    """List the readers whose batches are in host memory."""
    from tasks.loading import loader

    files = [str(path) for path in sorted(output.glob("*.parquet"))]

    def open_rows(shuffle: bool, count: int = 0) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        from tasks.loading.torch import Rows

        return iter(DataLoader(Rows(output, batch, shuffle=shuffle), batch_size=None, num_workers=count))

    @functools.cache
    def load(streamed: bool) -> Any:
        import datasets

        where = {"streaming": True} if streamed else {"cache_dir": str(output.parent / "datasets")}
        return datasets.load_dataset("parquet", data_files=files, split="train", **where)

    def open_peer(streamed: bool, shuffle: bool = False, count: int = 0) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        read = load(streamed).with_format("torch")
        if shuffle:
            read = read.shuffle(seed=0, **({"buffer_size": batch} if streamed else {}))
        if not streamed:
            return iter(read.iter(batch))
        return iter(DataLoader(read.batch(batch), batch_size=None, num_workers=count))

    def open_peer_arrow(streamed: bool, shuffle: bool = False) -> Iterator[Batch]:
        read = load(streamed).with_format("arrow")
        return map(make_tensors, (read.shuffle(seed=0) if shuffle else read).iter(batch))

    def open_arrow() -> Iterator[Batch]:
        return iter(ds.dataset(files).to_batches(batch_size=batch))

    torch = ("torch",)
    peer = ("torch", "datasets")
    by_workers = [
        *(Reader(f"Rows, shuffled, {n} workers", partial(open_rows, True, n), torch) for n in workers),
        *(
            Reader(f"datasets, streamed, in order, {n} workers", partial(open_peer, True, False, n), peer)
            for n in workers
        ),
    ]
    return [
        Reader("Rows, shuffled", lambda: open_rows(True), torch),
        Reader("Rows, in order", lambda: open_rows(False), torch),
        *by_workers,
        Reader("loader, shuffled, Arrow tables", lambda: iter(loader(output, batch_size=batch))),
        Reader("loader, in order, Arrow tables", lambda: iter(loader(output, batch_size=batch, shuffle=False))),
        Reader("loader, shuffled, arrays", lambda: iter(loader(output, batch_size=batch, device="cpu"))),
        Reader("datasets, a copy in Arrow, in order", lambda: open_peer(False), peer),
        Reader("datasets, a copy in Arrow, shuffled", lambda: open_peer(False, True), peer),
        Reader("datasets, streamed, in order", lambda: open_peer(True), peer),
        Reader("datasets, streamed, a buffer of one batch shuffled", lambda: open_peer(True, True), peer),
        Reader("datasets, a copy in Arrow, in order, tensors of Arrow", lambda: open_peer_arrow(False), peer),
        Reader("datasets, a copy in Arrow, shuffled, tensors of Arrow", lambda: open_peer_arrow(False, True), peer),
        Reader("datasets, streamed, in order, tensors of Arrow", lambda: open_peer_arrow(True), peer),
        Reader("pyarrow.dataset, in order, Arrow batches", open_arrow),
        Reader("pyarrow.dataset, in order, tensors", lambda: map(make_tensors, open_arrow()), torch),
    ]


def make_tensors(read: pa.Table | pa.RecordBatch) -> Batch:
    """Make tensors of an Arrow batch, as a user writes it who finds the tensors of a library slow."""
    import torch

    columns = zip(read.schema.names, read.columns, strict=True)
    return {name: torch.from_numpy(np.asarray(column).copy()) for name, column in columns}


def list_gpu_readers(output: Path, batch: int, workers: list[int]) -> list[Reader]:
    """List the readers whose batches are in the memory of a GPU."""
    from tasks.loading import loader

    files = [str(path) for path in sorted(output.glob("*.parquet"))]

    def open_loader(shuffle: bool) -> Iterator[Batch]:
        return iter(loader(output, batch_size=batch, shuffle=shuffle, device="cuda"))

    def open_rows(shuffle: bool) -> Iterator[Batch]:
        from tasks.loading.torch import Rows

        return iter(Rows(output, batch, shuffle=shuffle, device="cuda"))

    def open_whole_files() -> Iterator[Batch]:
        import cudf

        for path in files:
            frame = cudf.read_parquet(path)
            yield {name: frame[name].values for name in frame.columns}

    def open_copied() -> Iterator[Batch]:
        import cupy

        for read in ds.dataset(files).to_batches(batch_size=batch):
            columns = zip(read.schema.names, read.columns, strict=True)
            yield {name: cupy.asarray(np.asarray(column)) for name, column in columns}

    torch = ("torch",) if has_cuda_torch() else ("a PyTorch with CUDA",)
    return [
        Reader("loader, shuffled, arrays of CuPy", lambda: open_loader(True)),
        Reader("loader, in order, arrays of CuPy", lambda: open_loader(False)),
        Reader("Rows, shuffled, tensors", lambda: open_rows(True), torch),
        Reader("Rows, in order, tensors", lambda: open_rows(False), torch),
        Reader("cuDF, whole files", open_whole_files),
        Reader("pyarrow.dataset, in order, copied to the GPU", open_copied),
    ]


def has_cuda_torch() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.backends.cuda.is_built())


def measure(readers: list[Reader], output: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the readers one after the other in each round, those whose packages are there."""
    able = [reader for reader in readers if not reader.missing]
    expected = count_rows(sorted(output.glob("*.parquet")))
    for reader in able:
        counted = count(reader, options.seconds)
        if counted not in (None, expected):
            raise SystemExit(f"{reader.name} gives (rows, positive) {counted}, the files have {expected}")
    runs: dict[str, list[float]] = {reader.name: [] for reader in able}
    for _ in range(options.rounds):
        for reader in able:
            runs[reader.name].append(measure_once(reader, options))
    return {
        "rows a second": {name: round(statistics.median(rates)) for name, rates in runs.items()},
        "runs": {name: [round(rate) for rate in rates] for name, rates in runs.items()},
        "missing": {reader.name: reader.missing for reader in readers if reader.missing},
    }


def count_rows(files: list[Path]) -> tuple[int, int]:
    """Count the rows of the files, and those with a positive label, by their footers and one column."""
    labels = ds.dataset([str(path) for path in files]).to_table(columns=[LABEL])[LABEL]
    return len(labels), pc.sum(labels).as_py()


def count(reader: Reader, seconds: float) -> tuple[int, int] | None:
    """Count the rows of a whole epoch, and those among them with a positive label; None if it takes too long."""
    ends = time.perf_counter() + seconds
    counted = positive = 0
    for batch in reader.open():
        labels = batch[LABEL]
        if isinstance(labels, pa.Array | pa.ChunkedArray):
            labels = np.asarray(labels)
        counted += len(labels)
        positive += int(labels.sum())
        if time.perf_counter() > ends:
            return None
    return counted, positive


def measure_once(reader: Reader, options: argparse.Namespace) -> float:
    """Measure rows a second of one epoch, from before its first batch until its last is in place."""
    began = time.perf_counter()
    rows = 0
    for batch in reader.open():
        rows += len(batch[LABEL])
        if time.perf_counter() - began > options.seconds:
            break
    if options.device == "cuda":
        import cupy

        cupy.cuda.runtime.deviceSynchronize()
    return rows / (time.perf_counter() - began)


def list_versions(*modules: str) -> dict[str, str]:
    """List the versions of the modules that are there."""
    from importlib.metadata import version

    return {module: version(module) for module in modules if find_spec(module)}


def show(measured: dict[str, Any]) -> None:
    """Print a line for each reader, the fastest first."""
    rates = measured["rows a second"]
    for name in sorted(rates, key=rates.__getitem__, reverse=True):
        print(f"{rates[name] / 1e6:9.2f} M rows/s  {name}", file=sys.stderr)
    for name, modules in measured["missing"].items():
        print(f"   (needs {', '.join(modules)})  {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
