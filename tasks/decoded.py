"""Decoded columns that a pass leaves in the memory of its process, so that a later pass does not read them again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa

if TYPE_CHECKING:
    from tasks.plan import Partition
    from tasks.pool import Pool

FREE = 0.25  # of the host's memory, which stays free
Read = Callable[[Sequence[str]], pa.Table]
Place = tuple[int, int, int]  # number, first row and rows of a partition: those of a run may be cut anew in the next


@dataclass(frozen=True)
class Keeping:
    """What the passes over some rows leave for each other, under the name of these rows.

    `columns` are those that a later pass reads, of which a process holds `limit` bytes at most; with a limit of 0 a
    pass only takes what is there. `together`: the format parses whole records, so that more columns of them at once
    cost less than reading them twice.
    """

    name: str
    columns: tuple[str, ...] = ()
    limit: int = 0
    together: bool = False


class _Store:
    """Tables by their partition, all of rows of one name."""

    def __init__(self) -> None:
        self.name, self.tables, self.nbytes, self.closed = "", dict[Place, pa.Table](), 0, False
        self.lock = threading.Lock()

    def take(self, name: str, place: Place) -> pa.Table | None:
        with self.lock:
            table = self.tables.pop(place, None) if name == self.name else None
            self.nbytes -= table.get_total_buffer_size() if table is not None else 0
            return table

    def put(self, name: str, place: Place, table: pa.Table, limit: int) -> None:
        with self.lock:
            if name != self.name:  # of a run that has ended
                self.name = name
                self._drop()
            size = table.get_total_buffer_size()
            if not self.closed and self.nbytes + size <= limit and _memory_is_free():
                self.tables[place] = table
                self.nbytes += size

    def room(self, name: str, nbytes: int, limit: int) -> bool:
        with self.lock:
            used = self.nbytes if name == self.name else 0
            return not self.closed and used + nbytes <= limit

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self._drop()

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
    return bool(host.available > FREE * host.total)


_store = _Store()


def read(keeping: Keeping, partition: Partition, names: Sequence[str], reader: Read) -> pa.Table:
    """The columns `names` of a whole partition: what an earlier pass left here, the others by `reader(names)`. What a
    later pass needs is kept."""
    place = (partition.number, partition.first_row, partition.rows)
    there = _store.take(keeping.name, place)
    known = there.column_names if there is not None else []
    missing = [name for name in names if name not in known]
    if missing and keeping.together and _store.room(keeping.name, partition.nbytes, keeping.limit):
        missing += [name for name in keeping.columns if name not in {*known, *missing}]
    made = there if there is not None and not missing else reader(missing)
    if there is not None and missing:
        for name in known:
            made = made.append_column(there.schema.field(name), there.column(name))
    kept = [name for name in keeping.columns if name in made.column_names]
    if kept and keeping.limit:
        _store.put(keeping.name, place, made.select(kept), keeping.limit)
    return made.select(list(names))


def held(name: str) -> tuple[list[int], int]:
    """(the partitions of which this process holds columns, their bytes)."""
    with _store.lock:
        return ([number for number, _, _ in _store.tables], _store.nbytes) if name == _store.name else ([], 0)


def nbytes_held(pool: Pool, keeping: Keeping | None) -> int:
    """The bytes of columns that all workers hold."""
    return sum(nbytes for _, nbytes in pool.on_workers(held, keeping.name).values()) if keeping else 0


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


def give_up() -> None:
    """Let go of everything, and keep nothing more until the next release: memory is short."""
    _store.close()
