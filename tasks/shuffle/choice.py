"""Which exchange a run takes: memory when the estimate fits, else disk; both with the figures that say why."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from tasks.cluster.dask_pool import Workers
from tasks.cluster.pool import Pool
from tasks.core.row_sizes import row_bytes
from tasks.core.schema import Schema
from tasks.core.units import amount
from tasks.errors import GiveUpError
from tasks.shuffle.disk_exchange import DiskExchange
from tasks.shuffle.memory_exchange import DaskMemory, LocalMemory, memory_exchange
from tasks.storage.atomic import existing

SHARE = 0.5  # of the workers' memory that pieces may fill; the rest is for partitions and files at work
KEPT = 0.25  # of the GPUs' memory that columns may fill which are only held so that they are not read again


class Choice(NamedTuple):
    """The exchange that a run takes and why. `on_host`: pieces leave the GPUs, which are too small for them."""

    kind: str
    because: str
    on_host: bool = False


def choose(asked: str, rows: int, schema: Schema, pool: Workers, engine: str = "pandas") -> Choice:
    """The exchange for this many rows of the output schema."""
    need, allowed = rows * row_bytes(schema), int(SHARE * pool.memory)
    figures = f"about {need / 1e9:,.2f} GB of pieces, {allowed / 1e9:,.2f} GB allowed in the workers' memory"
    on_host = False
    if engine == "cudf" and asked != "disk" and pool.device_memory:  # 0: nobody knows yet
        device = int(SHARE * pool.device_memory)
        figures, on_host = f"{figures}, {device / 1e9:,.2f} GB on their GPUs", need > device
        allowed = max(allowed, device)
        figures += ": they are kept in host memory" if on_host and need <= allowed else ""
    if asked != "auto":
        return Choice(asked, f"run.exchange is {asked}; {figures}", on_host)
    return Choice("memory", figures, on_host) if need <= allowed else Choice("disk", figures)


def spare(asked: str, rows: int, schema: Schema, pool: Workers, engine: str = "pandas") -> int:
    """Bytes of each worker's host memory that pieces leave of their share. None where they go to the disk: memory is
    short there."""
    chosen = choose(asked, rows, schema, pool, engine)
    pieces = 0 if engine == "cudf" and not chosen.on_host else rows * row_bytes(schema)
    left = 0 if chosen.kind == "disk" else int(SHARE * pool.memory) - pieces
    return max(left, 0) // max(len(pool.workers), 1)


def spare_on_device(asked: str, rows: int, schema: Schema, pool: Workers) -> int:
    """Bytes of each worker's GPU that pieces leave of their share, at most `KEPT` of all. None where they do not stay
    there."""
    chosen = choose(asked, rows, schema, pool, "cudf")
    if chosen.kind == "disk" or chosen.on_host:
        return 0
    left = min(int(SHARE * pool.device_memory) - rows * row_bytes(schema), int(KEPT * pool.device_memory))
    return max(left, 0) // max(len(pool.workers), 1)


def make_exchange(kind: str, pool: Pool, name: str, folder: Path, need: int) -> LocalMemory | DaskMemory | DiskExchange:
    """The exchange of one split; GiveUpError where the disk cannot hold the pieces."""
    if kind == "memory":
        return memory_exchange(pool, name)
    place = folder / name
    held = sum(f.stat().st_size for f in place.glob("*.arrow")) if place.exists() else 0
    free = shutil.disk_usage(existing(folder)).free
    if need - held > free:
        raise GiveUpError("the scratch disk is too small for the exchange", where=str(folder),
                          why=f"about {amount(need)} are needed, {amount(free)} are free",
                          do="set run.scratch to a larger disk that all workers share")  # fmt: skip
    return DiskExchange(pool, place)
