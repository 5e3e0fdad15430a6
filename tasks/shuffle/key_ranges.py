"""Looks at all rows of each key, and leaves the rows where they are: only keys, a time and row numbers move.

Key hashes are cut into ranges of about a million rows each; the pieces wait in memory or, where that is short, on disk.
All rows of one key are in one range, so they have to fit into the memory of a worker.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from tasks.engines.algorithms.key_runs import Runs, find_runs
from tasks.engines.algorithms.protocol import Kernels
from tasks.graph.node import Node
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import RowRules, RowSet
from tasks.shuffle.choice import choose, make_exchange
from tasks.shuffle.group_by_keys import key_blocks
from tasks.shuffle.order import RANGES_PER_FILE, Order
from tasks.shuffle.parts import Part
from tasks.shuffle.pieces import Cutting, PartitionPieces
from tasks.storage.atomic import no_space
from tasks.storage.checksum import digest

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
    def runs(self) -> Runs:
        """The rows of each key."""
        return find_runs([self.frame[name] for name in self.keys], self.host)

    @cached_property
    def rows(self) -> np.ndarray:
        """The row numbers, key after key."""
        rows = self.host.numbers(self.frame[ROW])[0].astype(np.int64)
        return rows if self.runs.order is None else rows[self.runs.order]

    def placed(self, name: str) -> Any:
        """A column in the order of `rows`."""
        return self.runs.placed(self.frame[name])

    def nulls(self, name: str) -> np.ndarray:
        """Which rows are null in a column."""
        null = self.host.null_rows([self.placed(name)])
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


@dataclass(frozen=True)
class ReducingRanges:
    """What every range of key hashes shares: the reduction, the folder for its files, and the rows' columns."""

    folder: str
    engine: str
    order: Order
    schema: Schema
    reduction: KeyReduction


def exchange_of(plan: Plan, names: Sequence[str], exchange: str, workers: Workers, engine: str) -> tuple[str, int]:
    """(memory or disk, about how many bytes wait there) for the pieces of a plan: the columns twice, as they are and to
    sort by."""
    schema = _columns(plan.schema, names)
    choice = choose(exchange, 2 * plan.rows, schema, workers, engine)
    need = plan.rows * (2 * row_bytes(schema) - POSITION)
    return ("disk" if choice.on_host else choice.kind), need


def _columns(schema: Schema, names: Sequence[str]) -> Schema:
    """These columns and the row number."""
    return Schema([*(schema[name] for name in names), Column(ROW, pa.uint64())])


@contextmanager
def reduced_ranges(
    reduction: KeyReduction, source: Any, plan: Plan, rules: RowRules, filter: str | None, engine: str, pool: Pool,
    folder: Path, exchange: str = "auto", floor: int = 0,
) -> Iterator[list[str]]:  # fmt: skip
    """The files with the arrays of all ranges of key hashes, of the rows that filter and rules keep; the files and
    `folder` are there while the block runs."""
    schema = _columns(plan.schema, reduction.columns)
    names = tuple(name for name in schema if name != ROW)
    blocks, sort_by = key_blocks(plan.rows), (reduction.by,) if reduction.by else ()
    order = Order("key", 0, plan.rows, (0,), 1, RANGES_PER_FILE * blocks, reduction.keys, sort_by, keep_row=True)
    work = Work(source, Node("pick", selection=names, name="source"), plan.schema, engine, filter=filter, rules=rules)
    kind, need = exchange_of(plan, reduction.columns, exchange, pool, engine)
    with no_space(folder):
        shutil.rmtree(folder, ignore_errors=True)  # what a run left that was cut off here
        folder.mkdir(parents=True)
    pieces = make_exchange(kind, pool, f"rowmill-{uuid.uuid4().hex[:12]}", folder, need)
    try:
        pieces.fill(Cutting(work, order, floor, stage="ingest"), plan.partitions, None)
        parts = [Part(b, b * RANGES_PER_FILE, (b + 1) * RANGES_PER_FILE, 0, 0) for b in range(blocks)]
        ranges = ReducingRanges(str(folder), engine, order, schema, reduction)
        files = pieces.deliver(reduce_part, ranges, parts, lambda p: (p.first, p.last), None)
        pieces.close()
        yield files
    finally:
        pieces.close()
        shutil.rmtree(folder, ignore_errors=True)


def reduce_part(ranges: ReducingRanges, part: Part, cuts: Sequence[PartitionPieces]) -> str:
    """Reduce one range of key hashes, and return the file with its arrays."""
    gpu_setup.prepare(ranges.engine)
    kernels, reduction = engines.engine(ranges.engine), ranges.reduction
    pieces = [piece for cut in cuts for piece in cut.ranges(part.first, part.last)]
    table = kernels.host_columns(kernels.assemble_sorted(pieces, ranges.order, HIDDEN), ranges.schema)
    rows = KeyRows(engines.engine("pandas").from_arrow(table), reduction.keys, reduction.by)
    path = Path(ranges.folder) / f"rows-{part.number:05d}.npz"
    with no_space(path):
        np.savez(path, **reduction.reduce(reduction.rule, rows))  # type: ignore[arg-type]
    return str(path)


def array_of(file: str, name: str) -> np.ndarray:
    """One of the arrays in a file of `reduced_ranges`."""
    with np.load(file) as content:
        return np.asarray(content[name])


def row_set(files: Sequence[str], name: str, rows: int, path: Path) -> tuple[RowSet, int]:
    """(the row numbers that the files have under a name, as bits in the file `path`; their number), of so many rows."""
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
