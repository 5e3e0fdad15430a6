"""Which exchange a run takes: memory when the estimate fits, else disk; both with the figures that say why."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from tasks.cluster.dask_pool import Workers
from tasks.cluster.pool import Pool
from tasks.core.memory_budget import CACHE_SHARE_OF_GPU, PIECES_SHARE, host_pieces_limit
from tasks.core.row_sizes import row_bytes
from tasks.core.schema import Schema
from tasks.core.units import amount
from tasks.errors import GiveUpError
from tasks.shuffle.disk_exchange import DiskExchange
from tasks.shuffle.memory_exchange import DaskMemory, LocalMemory, memory_exchange
from tasks.storage.atomic import existing

Exchange = LocalMemory | DaskMemory | DiskExchange


class Choice(NamedTuple):
    """The exchange that a run takes and why. `on_host`: pieces leave the GPUs, which are too small for them."""

    kind: str
    because: str
    on_host: bool = False

    @property
    def off_device(self) -> bool:
        """Whether pieces wait elsewhere than in the memory that partitions use: on disk, or on the host of a GPU."""
        return self.kind == "disk" or self.on_host


def choose(exchange: str, rows: int, schema: Schema, pool: Workers, engine: str = "pandas") -> Choice:
    """Choose the exchange for this many rows of the output schema."""
    need = rows * row_bytes(schema)
    allowed = _compute_pieces_limit(pool, engine)
    figures = f"about {amount(need)} of pieces, {amount(allowed)} allowed in the workers' memory"
    on_host = False
    if engine == "cudf" and exchange != "disk" and pool.device_memory:  # 0: not known yet
        device = int(PIECES_SHARE * pool.device_memory)
        figures = f"{figures}, {amount(device)} on their GPUs"
        on_host = need > device
        allowed = max(allowed, device)
        figures += ": they are kept in host memory" if on_host and need <= allowed else ""
    if exchange != "auto":
        return Choice(exchange, f"run.exchange is {exchange}; {figures}", on_host)
    return Choice("memory", figures, on_host) if need <= allowed else Choice("disk", figures)


def _compute_pieces_limit(pool: Workers, engine: str) -> int:
    """Compute the bytes of the workers' host memory that pieces may fill."""
    return int(PIECES_SHARE * pool.memory) if engine == "cudf" else host_pieces_limit(pool.memory, len(pool.workers))


def spare(exchange: str, rows: int, schema: Schema, pool: Workers, engine: str = "pandas") -> int:
    """Compute the bytes of each worker's host memory that pieces leave of `PIECES_SHARE`.

    0 if pieces go to the disk: memory is short then.
    """
    chosen = choose(exchange, rows, schema, pool, engine)
    if chosen.kind == "disk":
        return 0
    pieces = 0 if engine == "cudf" and not chosen.on_host else rows * row_bytes(schema)
    return _of_each_worker(_compute_pieces_limit(pool, engine) - pieces, pool)


def spare_on_device(exchange: str, rows: int, schema: Schema, pool: Workers) -> int:
    """Compute the bytes of each worker's GPU that pieces leave of `PIECES_SHARE`, at most `CACHE_SHARE_OF_GPU` of the
    GPU.

    0 if pieces leave the GPUs.
    """
    chosen = choose(exchange, rows, schema, pool, "cudf")
    if chosen.kind == "disk" or chosen.on_host:
        return 0
    left = int(PIECES_SHARE * pool.device_memory) - rows * row_bytes(schema)
    return _of_each_worker(min(left, int(CACHE_SHARE_OF_GPU * pool.device_memory)), pool)


def _of_each_worker(nbytes: int, pool: Workers) -> int:
    return max(nbytes, 0) // max(len(pool.workers), 1)


def make_exchange(kind: str, pool: Pool, name: str, folder: Path, need: int) -> Exchange:
    """Make the exchange of one split; GiveUpError where the disk cannot hold the pieces."""
    if kind == "memory":
        return memory_exchange(pool, name)
    place = folder / name
    there = sum(f.stat().st_size for f in place.glob("*.arrow")) if place.exists() else 0
    free = shutil.disk_usage(existing(folder)).free
    if need - there > free:
        raise GiveUpError(
            "the scratch disk is too small for the exchange",
            where=str(folder),
            why=f"about {amount(need)} is needed, {amount(free)} is free",
            do="set run.scratch to a larger disk that all workers share",
        )
    return DiskExchange(pool, place)
