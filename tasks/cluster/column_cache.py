"""Decoded columns that a pass leaves in the memory of its process, or of its GPU, so that a later pass does not read
them again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from tasks.cluster.pool import Pool
from tasks.core.memory_budget import FREE_SHARE_OF_HOST
from tasks.core.plan import Partition
from tasks.engines.convert.frame_sizes import nbytes

Rows = Any  # an Arrow table in host memory, or a dict of columns on a GPU
Place = tuple[int, int, int]  # number, first row and rows of a partition: those of a run may be cut anew in the next


@dataclass(frozen=True)
class CacheKey:
    """Which columns the passes over some rows cache for each other; `name` is a fingerprint of these rows.

    `columns` are those that a later pass reads, of which a process caches `limit` bytes at most; with a limit of 0 a
    pass only takes what is cached. `together`: it costs less to read more columns at once than to read twice, as
    where a format parses whole records. `on_device`: they stay in the GPU's memory.
    """

    name: str
    columns: tuple[str, ...] = ()
    limit: int = 0
    together: bool = False
    on_device: bool = False


class _Store:
    """Cached tables by partition, all of the rows of one fingerprint (`name`)."""

    def __init__(self) -> None:
        self.name = ""
        self.tables = dict[Place, Rows]()
        self.nbytes = 0
        self.closed = False
        self.lock = threading.Lock()

    def is_on_device(self, name: str, place: Place) -> bool:
        with self.lock:
            return name == self.name and isinstance(self.tables.get(place), dict)

    def take(self, name: str, place: Place) -> Rows | None:
        with self.lock:
            table = self.tables.pop(place, None) if name == self.name else None
            self.nbytes -= _size(table) if table is not None else 0
            return table

    def put(self, name: str, place: Place, table: Rows, limit: int) -> None:
        with self.lock:
            if name != self.name:  # of a run that has ended
                self.name = name
                self._drop()
            size = _size(table)
            if not self.closed and self.nbytes + size <= limit and (isinstance(table, dict) or _memory_is_free()):
                self.tables[place] = table
                self.nbytes += size

    def room(self, name: str, nbytes: int, limit: int) -> bool:
        with self.lock:
            used = self.nbytes if name == self.name else 0
            return not self.closed and used + nbytes <= limit

    def close(self) -> bool:
        with self.lock:
            had_tables = bool(self.tables)
            self.closed = True
            self._drop()
            return had_tables

    def release(self, name: str) -> None:
        with self.lock:
            self.closed = False
            if name == self.name:
                self._drop()

    def _drop(self) -> None:
        self.tables = {}
        self.nbytes = 0


def _memory_is_free() -> bool:
    """Return whether other programs leave enough of the host's memory: the cache only saves time."""
    host = psutil.virtual_memory()
    return bool(host.available > FREE_SHARE_OF_HOST * host.total)


_store = _Store()


def is_on_device(key: CacheKey, partition: Partition) -> bool:
    """Return whether columns of a partition are cached in the GPU's memory, or are going to be."""
    return key.on_device or _store.is_on_device(key.name, _to_place(partition))


@dataclass(frozen=True)
class Taken:
    """Cached columns of a partition: `rows` (None without any), and the names of the columns that must be `read`."""

    rows: Rows | None
    missing: list[str]

    @property
    def complete(self) -> bool:
        return self.rows is not None and not self.missing


def take(key: CacheKey, partition: Partition, names: Sequence[str]) -> Taken:
    """Take the cached columns of a whole partition out of the cache.

    `missing` are those of `names` that are not cached, and where a format parses whole records also the columns that
    later passes need.
    """
    rows = _store.take(key.name, _to_place(partition))
    cached = _list_cached_names(rows) if rows is not None else []
    missing = [name for name in names if name not in cached]
    if missing and key.together and _store.room(key.name, partition.nbytes, key.limit):
        missing += [name for name in key.columns if name not in {*cached, *missing}]
    return Taken(rows, missing)


def put(key: CacheKey, partition: Partition, taken: Taken, read: Rows | None) -> Rows:
    """Return all columns of a partition: those that were `taken` and those that were `read` (None if the cache had
    all).

    What a later pass needs goes into the cache, as far as it has room.
    """
    rows = taken.rows if read is None else read if taken.rows is None else _join_columns(read, taken.rows)
    later = [name for name in key.columns if name in _list_cached_names(rows)]
    if later and key.limit:
        _store.put(key.name, _to_place(partition), select_columns(rows, later), key.limit)
    return rows


def _to_place(partition: Partition) -> Place:
    return partition.number, partition.first_row, partition.rows


def _list_cached_names(rows: Rows) -> list[str]:
    return list(rows) if isinstance(rows, dict) else list(rows.column_names)


def select_columns(rows: Rows, names: Sequence[str]) -> Rows:
    return {name: rows[name] for name in names} if isinstance(rows, dict) else rows.select(list(names))


def _join_columns(rows: Rows, more: Rows) -> Rows:
    if isinstance(rows, dict):
        return rows | more
    for name in more.column_names:
        rows = rows.append_column(more.schema.field(name), more.column(name))
    return rows


def _size(rows: Rows) -> int:
    return nbytes(rows) if isinstance(rows, dict) else int(rows.get_total_buffer_size())


def measure_cache(name: str) -> tuple[list[int], int]:
    """Measure the cache of this process: (its partitions, their bytes)."""
    with _store.lock:
        return ([number for number, _, _ in _store.tables], _store.nbytes) if name == _store.name else ([], 0)


def sum_cached_bytes(pool: Pool, key: CacheKey | None) -> int:
    """Sum the bytes of columns that all workers cache."""
    return sum(size for _, size in pool.on_workers(measure_cache, key.name).values()) if key else 0


def workers_of(pool: Pool, key: CacheKey | None) -> dict[int, str]:
    """Partition -> the worker that caches columns of it; {} where there is one worker only."""
    if key is None or len(pool.workers) == 1:
        return {}
    by_worker = pool.on_workers(measure_cache, key.name)
    return {number: worker for worker, (numbers, _) in by_worker.items() for number in numbers}


def release(pool: Pool, key: CacheKey | None) -> None:
    """Empty the cache of a key on all workers that can be reached."""
    if key is not None:
        with suppress(Exception):
            pool.on_workers(_release, key.name)


def _release(name: str) -> None:
    _store.release(name)


def give_up() -> bool:
    """Empty the cache, because memory is short, and cache nothing until the next release; True if it had columns."""
    return _store.close()
