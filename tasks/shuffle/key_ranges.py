"""The shuffle by key: it groups the rows of each key, and hands them to a function.

Key hashes are cut into ranges of about a million rows each; the pieces wait in memory or, if that is short, on disk.
All rows of one key are in one range, so they have to fit into the memory of a worker. `reduce_by_key` leaves the rows
where they are: only keys, a time and row numbers move.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.cluster.dask_pool import Workers
from tasks.cluster.pool import Pool
from tasks.cluster.transfer import gpu_setup
from tasks.core.plan import Plan
from tasks.core.row_sizes import POSITION, row_bytes
from tasks.core.schema import HIDDEN, ROW, Column, Schema
from tasks.engines.algorithms.key_runs import KeyRuns, find_runs
from tasks.engines.algorithms.protocol import Kernels
from tasks.graph.node import Node
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import ALL_ROWS, RowRules, RowSet
from tasks.shuffle.choice import Exchange, choose, make_exchange
from tasks.shuffle.parts import Part
from tasks.shuffle.pieces import Cutting, PartitionPieces
from tasks.shuffle.row_order import RANGES_PER_FILE, Order
from tasks.storage.atomic import no_space
from tasks.storage.checksum import digest

MOST_TRIES = 10  # to read an array

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class KeyRows:
    """All rows of some keys, on the host, sorted by keys, `by` (nulls first) and row number."""

    frame: Mapping[str, Any]
    keys: tuple[str, ...]
    by: str | None

    @property
    def host(self) -> Kernels:
        return engines.engine("pandas")

    @cached_property
    def runs(self) -> KeyRuns:
        """The rows of each key."""
        return find_runs([self.frame[name] for name in self.keys], self.host)

    @cached_property
    def rows(self) -> np.ndarray:
        """The row numbers, key after key."""
        rows = self.host.numbers(self.frame[ROW])[0].astype(np.int64)
        return rows if self.runs.order is None else rows[self.runs.order]

    def take_column(self, name: str) -> Any:
        """Take a column in the order of `rows`."""
        return self.runs.order_by_place(self.frame[name])

    def nulls(self, name: str) -> np.ndarray:
        """Return which rows are null in a column."""
        null = self.host.null_rows([self.take_column(name)])
        return np.zeros(len(self.rows), dtype=bool) if null is None else np.asarray(null)


@dataclass(frozen=True)
class KeyReduction:
    """One function over each range of key hashes: `reduce(rule, rows)` gives arrays by name."""

    reduce: Callable[[Any, KeyRows], Arrays]
    rule: Any
    keys: tuple[str, ...]
    by: str | None

    @property
    def columns(self) -> list[str]:
        """Keys and `by`."""
        return list(dict.fromkeys([*self.keys, *([self.by] if self.by else [])]))

    def write(self, table: pa.Table, path: Path) -> str:
        """Reduce the rows of one range, and return the file with the arrays."""
        rows = KeyRows(engines.engine("pandas").from_arrow(table), self.keys, self.by)
        path = path.with_name(f"rows-{path.name}.npz")
        with no_space(path):
            np.savez(path, **self.reduce(self.rule, rows))  # type: ignore[arg-type]
        return str(path)


@dataclass(frozen=True)
class SourceRows:
    """The rows of a source that filter and rules keep, and the means to pass over them.

    `source` is the plan, or the handle of the frame whose rows the plan numbers.
    """

    source: Any
    plan: Plan
    engine: str
    pool: Pool
    filter: str | None = None
    rules: RowRules = ALL_ROWS
    exchange: str = "auto"  # where pieces wait: in memory, on disk, or as there is room
    floor: int = 0  # bytes of a partition below which it is not halved when memory is short

    def pick_columns(self, names: Sequence[str]) -> Work:
        """Make a pass over some columns."""
        node = Node("pick", selection=tuple(names), name="source")
        return Work(self.source, node, self.plan.schema, self.engine, filter=self.filter, rules=self.rules)


@dataclass(frozen=True)
class KeyRanges:
    """What all ranges of key hashes share: the order of the rows, their columns, and `reduce(table, path)`.

    `table` has the sorted rows of one range; the name of `path`, in `folder`, is the number of the range.
    """

    folder: str
    engine: str
    order: Order
    schema: Schema
    reduce: Callable[[pa.Table, Path], Any]


def key_blocks(rows: int) -> int:
    """Choose the number of ranges: equal ranges of the key hash, a power of two that depends on the number of rows
    alone.

    >>> key_blocks(10), key_blocks(3_000_000)
    (1, 4)
    """
    return 1 << max(0, (max(rows, 1) - 1).bit_length() - 20)


def with_row_number(columns: Sequence[Column]) -> Schema:
    """Return the schema of these columns and the row number."""
    return Schema([*columns, Column(ROW, pa.uint64())])


def key_order(rows: int, keys: Sequence[str], sort_by: Sequence[str]) -> Order:
    """Order rows by hash of the keys, keys, `sort_by` and row number."""
    ranges = RANGES_PER_FILE * key_blocks(rows)
    return Order("key", 0, rows, (0,), 1, ranges, tuple(keys), tuple(sort_by), keep_row=True)


def empty_folder(folder: Path) -> None:
    """Make the folder, without what a run left that was cut off here."""
    with no_space(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def shuffle_by_key(rows: SourceRows, exchange: Exchange, ranges: KeyRanges) -> list[Any]:
    """Return the results of `ranges.reduce`, range after range; the exchange is closed."""
    try:
        names = [name for name in ranges.schema if name != ROW]
        exchange.fill(
            Cutting(rows.pick_columns(names), ranges.order, rows.floor, stage="ingest"), rows.plan.partitions, None
        )
        count = ranges.order.ranges // RANGES_PER_FILE
        parts = [Part(b, b * RANGES_PER_FILE, (b + 1) * RANGES_PER_FILE, 0, 0) for b in range(count)]
        return exchange.deliver(reduce_range, ranges, parts, lambda p: (p.first, p.last), None)
    finally:
        exchange.close()


def reduce_range(ranges: KeyRanges, part: Part, cuts: Sequence[PartitionPieces]) -> object:
    """Reduce the rows of one range of key hashes."""
    gpu_setup.prepare(ranges.engine)
    kernels = engines.engine(ranges.engine)
    pieces = [piece for cut in cuts for piece in cut.ranges(part.first, part.last)]
    table = kernels.host_columns(kernels.assemble_sorted(pieces, ranges.order, HIDDEN), ranges.schema)
    return ranges.reduce(table, Path(ranges.folder) / f"{part.number:05d}")


def exchange_of(plan: Plan, names: Sequence[str], exchange: str, workers: Workers, engine: str) -> tuple[str, int]:
    """Choose the exchange for the pieces of a plan: (memory or disk, about how many bytes wait there).

    The columns wait twice: as they are, and to sort by.
    """
    schema = with_row_number([plan.schema[name] for name in names])
    choice = choose(exchange, 2 * plan.rows, schema, workers, engine)
    need = plan.rows * (2 * row_bytes(schema) - POSITION)
    return ("disk" if choice.on_host else choice.kind), need


@contextmanager
def reduce_by_key(rows: SourceRows, reduction: KeyReduction, folder: Path) -> Iterator[list[str]]:
    """Provide the files with the arrays of all ranges of key hashes; they and `folder` exist while the block runs."""
    plan = rows.plan
    sort_by = (reduction.by,) if reduction.by else ()
    schema = with_row_number([plan.schema[name] for name in reduction.columns])
    order = key_order(plan.rows, reduction.keys, sort_by)
    kind, need = exchange_of(plan, reduction.columns, rows.exchange, rows.pool, rows.engine)
    empty_folder(folder)
    try:
        exchange = make_exchange(kind, rows.pool, f"rowmill-{uuid.uuid4().hex[:12]}", folder, need)
        yield shuffle_by_key(rows, exchange, KeyRanges(str(folder), rows.engine, order, schema, reduction.write))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def array_of(file: str, name: str) -> np.ndarray:
    """Read one of the arrays in a file of `reduce_by_key`.

    NumPy has Python parse the header of an array, and Python 3.11 raises a SystemError now and then where threads parse
    at the same time ("AST constructor recursion depth mismatch"): it is read again then.
    """
    with np.load(file) as content:
        for _ in range(MOST_TRIES - 1):
            with suppress(SystemError):
                return np.asarray(content[name])
        return np.asarray(content[name])


def row_set(files: Sequence[str], name: str, rows: int, path: Path) -> tuple[RowSet, int]:
    """Write the row numbers that the files have under a name as bits in the file `path`, of so many rows.

    Returns the set, and how many they are.
    """
    bits = np.zeros(max(1, -(-rows // 8)), dtype=np.uint8)
    count = 0
    for file in files:
        numbers = array_of(file, name)
        np.bitwise_or.at(bits, numbers // 8, np.left_shift(1, numbers % 8).astype(np.uint8))
        count += len(numbers)
    partial = path.with_suffix(".tmp")
    with no_space(path):
        bits.tofile(partial)
        partial.replace(path)
    return RowSet(str(path), digest(path)), count
