"""Decoded columns that a pass leaves in the memory of its process, or of its GPU, so that a later pass does not read
them again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from tasks.cluster.pool import Pool
from tasks.core.memory_budget import FREE_SHARE_OF_HOST
from tasks.core.plan import Partition
from tasks.engines.convert.sizes import nbytes

Rows = Any  # an Arrow table in host memory, or a dict of columns on a GPU
Read = Callable[[Sequence[str]], Rows]
Place = tuple[int, int, int]  # number, first row and rows of a partition: those of a run may be cut anew in the next


@dataclass(frozen=True)
class Keeping:
    """What the passes over some rows leave for each other, under the name of these rows.

    `columns` are those that a later pass reads, of which a process holds `limit` bytes at most; with a limit of 0 a
    pass only takes what is there. `together`: more columns of the rows at once cost less than reading twice, as where a
    format parses whole records. `on_device`: they stay in the GPU's memory.
    """

    name: str
    columns: tuple[str, ...] = ()
    limit: int = 0
    together: bool = False
    on_device: bool = False


class _Store:
    """Tables by their partition, all of rows of one name."""

    def __init__(self) -> None:
        self.name, self.tables, self.nbytes, self.closed = "", dict[Place, Rows](), 0, False
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
            held, self.closed = bool(self.tables), True
            self._drop()
            return held

    def release(self, name: str) -> None:
        with self.lock:
            self.closed = False
            if name == self.name:
                self._drop()

    def _drop(self) -> None:
        self.tables, self.nbytes = {}, 0


def _memory_is_free() -> bool:
    """Whether other programs have left enough of the host's memory: what is held only saves time."""
    host = psutil.virtual_memory()
    return bool(host.available > FREE_SHARE_OF_HOST * host.total)


_store = _Store()


def are_on_device(keeping: Keeping, partition: Partition) -> bool:
    """Whether columns of a partition are kept, or to be kept, in the GPU's memory."""
    return keeping.on_device or _store.is_on_device(keeping.name, _place(partition))


def read(keeping: Keeping, partition: Partition, names: Sequence[str], reader: Read) -> Rows:
    """The columns `names` of a whole partition: what an earlier pass left here, the others by `reader(names)`. What a
    later pass needs is kept."""
    place = _place(partition)
    there = _store.take(keeping.name, place)
    known = _names(there) if there is not None else []
    missing = [name for name in names if name not in known]
    if missing and keeping.together and _store.room(keeping.name, partition.nbytes, keeping.limit):
        missing += [name for name in keeping.columns if name not in {*known, *missing}]
    made = there if there is not None and not missing else reader(missing)
    if there is not None and missing:
        made = _joined(made, there)
    kept = [name for name in keeping.columns if name in _names(made)]
    if kept and keeping.limit:
        _store.put(keeping.name, place, _selected(made, kept), keeping.limit)
    return _selected(made, names)


def _place(partition: Partition) -> Place:
    return partition.number, partition.first_row, partition.rows


def _names(rows: Rows) -> list[str]:
    return list(rows) if isinstance(rows, dict) else list(rows.column_names)


def _selected(rows: Rows, names: Sequence[str]) -> Rows:
    return {name: rows[name] for name in names} if isinstance(rows, dict) else rows.select(list(names))


def _joined(rows: Rows, more: Rows) -> Rows:
    if isinstance(rows, dict):
        return rows | more
    for name in more.column_names:
        rows = rows.append_column(more.schema.field(name), more.column(name))
    return rows


def _size(rows: Rows) -> int:
    return nbytes(rows) if isinstance(rows, dict) else int(rows.get_total_buffer_size())


def held(name: str) -> tuple[list[int], int]:
    """(the partitions of which this process holds columns, their bytes)."""
    with _store.lock:
        return ([number for number, _, _ in _store.tables], _store.nbytes) if name == _store.name else ([], 0)


def nbytes_held(pool: Pool, keeping: Keeping | None) -> int:
    """The bytes of columns that all workers hold."""
    return sum(size for _, size in pool.on_workers(held, keeping.name).values()) if keeping else 0


def held_by(pool: Pool, keeping: Keeping | None) -> dict[int, str]:
    """Partition -> the worker that holds columns of it; of one worker nobody has to know."""
    if keeping is None or len(pool.workers) == 1:
        return {}
    found = pool.on_workers(held, keeping.name)
    return {number: worker for worker, (numbers, _) in found.items() for number in numbers}


def release(pool: Pool, keeping: Keeping | None) -> None:
    """Let go of what nobody has taken, as far as the workers can be reached: the next run's columns take its place."""
    if keeping is not None:
        with suppress(Exception):
            pool.on_workers(_release, keeping.name)


def _release(name: str) -> None:
    _store.release(name)


def give_up() -> bool:
    """Let go of everything, and keep nothing more until the next release: memory is short. Whether anything was
    held."""
    return _store.close()
