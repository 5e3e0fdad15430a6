"""Rows whose key another row has: only keys, times and row numbers move, and come back as a file of bits.

The rows stay where they are. Key hashes are cut into ranges of about a million rows each; the pieces wait in memory or,
where that is short, on disk. All rows of one key are in one range, so they have to fit into the memory of a worker.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
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
from tasks.core.schema import HIDDEN, ROW, Column, Schema, check_ordered
from tasks.core.settings import Unique
from tasks.engines.algorithms.key_runs import Runs, find_runs
from tasks.errors import JobError, near
from tasks.graph.node import Node
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import RowSet
from tasks.shuffle.choice import choose, make_exchange
from tasks.shuffle.group_by_keys import key_blocks
from tasks.shuffle.order import RANGES_PER_FILE, Order
from tasks.shuffle.parts import Part
from tasks.shuffle.pieces import Cutting, PartitionPieces
from tasks.storage.atomic import no_space
from tasks.storage.checksum import digest


@dataclass(frozen=True)
class Finding:
    """What every range of key hashes shares: where the numbers of its repeated rows go, and the rows' columns."""

    folder: str
    engine: str
    order: Order
    schema: Schema
    unique: Unique


def check_unique(schema: Schema, unique: Unique) -> None:
    """A JobError for a column that does not exist, or that has no order."""
    names = [*unique.keys, *([unique.by] if unique.by else [])]
    for name in names:
        if name not in schema:
            raise JobError(f"there is no column {name!r}", where="source.unique", do=near(name, schema))
    check_ordered(schema, names, "source.unique")


def exchange_of(plan: Plan, unique: Unique, exchange: str, workers: Workers, engine: str) -> tuple[str, int]:
    """(memory or disk, about how many bytes wait there) for the pieces of a plan: the columns twice, as they are and to
    sort by."""
    schema = _columns(plan.schema, unique)
    choice = choose(exchange, 2 * plan.rows, schema, workers, engine)
    need = plan.rows * (2 * row_bytes(schema) - POSITION)
    return ("disk" if choice.on_host else choice.kind), need


def _columns(schema: Schema, unique: Unique) -> Schema:
    """Keys, `by` and the row number."""
    names = dict.fromkeys([*unique.keys, *([unique.by] if unique.by else [])])
    return Schema([*(schema[name] for name in names), Column(ROW, pa.uint64())])


def repeated_rows(source: Any, plan: Plan, unique: Unique, filter: str | None, engine: str, pool: Pool, path: Path,
                  exchange: str = "auto", floor: int = 0) -> tuple[RowSet, int]:  # fmt: skip
    """(the rows that go, as bits in the file `path`, their number): all but one of the rows with equal keys that the
    filter keeps.

    Nulls are equal to each other. With `by` the row with the least (first) or greatest (last) value stays, and a null
    loses to any value; among equals the row with the least or greatest number. The result depends on the rows alone.
    """
    check_unique(plan.schema, unique)
    schema = _columns(plan.schema, unique)
    names = tuple(name for name in schema if name != ROW)
    blocks, sort_by = key_blocks(plan.rows), (unique.by,) if unique.by else ()
    ranges = RANGES_PER_FILE * blocks
    order = Order("key", 0, plan.rows, (0,), 1, ranges, tuple(unique.keys), sort_by, keep_row=True)
    work = Work(source, Node("pick", selection=names, name="source"), plan.schema, engine, filter=filter)
    kind, need = exchange_of(plan, unique, exchange, pool, engine)
    folder = path.with_suffix(".scratch")
    with no_space(folder):
        shutil.rmtree(folder, ignore_errors=True)  # what a run left that was cut off here
        folder.mkdir(parents=True)
    pieces = make_exchange(kind, pool, f"millrace-{uuid.uuid4().hex[:12]}", folder, need)
    try:
        pieces.fill(Cutting(work, order, floor, stage="ingest"), plan.partitions, None)
        parts = [Part(b, b * RANGES_PER_FILE, (b + 1) * RANGES_PER_FILE, 0, 0) for b in range(blocks)]
        finding = Finding(str(folder), engine, order, schema, unique)
        files = pieces.deliver(repeated_of_part, finding, parts, lambda p: (p.first, p.last), None)
        bits = np.zeros(max(1, -(-plan.rows // 8)), dtype=np.uint8)
        count = 0
        for file in files:
            rows = np.load(file)
            np.bitwise_or.at(bits, rows // 8, np.left_shift(1, rows % 8).astype(np.uint8))
            count += len(rows)
        partial = path.with_suffix(".tmp")
        with no_space(path):
            bits.tofile(partial)
            partial.replace(path)
    finally:
        pieces.close()
        shutil.rmtree(folder, ignore_errors=True)
    return RowSet(str(path), digest(path)), count


def repeated_of_part(finding: Finding, part: Part, cuts: Sequence[PartitionPieces]) -> str:
    """The file with the numbers of the repeated rows of one range of key hashes."""
    gpu_setup.prepare(finding.engine)
    kernels = engines.engine(finding.engine)
    pieces = [piece for cut in cuts for piece in cut.ranges(part.first, part.last)]
    block = kernels.assemble_sorted(pieces, finding.order, HIDDEN)
    table = kernels.host_columns(block, finding.schema)
    path = Path(finding.folder) / f"rows-{part.number:05d}.npy"
    with no_space(path):
        np.save(path, _repeated(table, finding.unique))
    return str(path)


def _repeated(table: Any, unique: Unique) -> np.ndarray:
    """The numbers of the rows that go, of a table that is sorted by keys, `by` and row number."""
    host = engines.engine("pandas")
    frame = host.from_arrow(table)
    rows = host.numbers(frame[ROW])[0].astype(np.int64)
    if not len(rows):
        return rows
    runs = find_runs([frame[name] for name in unique.keys], host)
    rows = rows if runs.order is None else rows[runs.order]
    gone = np.ones(len(rows), dtype=bool)
    gone[_staying(runs, frame, unique)] = False
    return rows[gone]


def _staying(runs: Runs, frame: Any, unique: Unique) -> np.ndarray:
    """The place of the row that stays of each run; the rows of a run are sorted by `by` and row number."""
    starts, last = runs.starts[:-1], runs.starts[1:] - 1
    null = engines.engine("pandas").null_rows([runs.placed(frame[unique.by])]) if unique.by else None
    if null is None:
        return starts if unique.keep == "first" else last
    places = np.arange(runs.rows)
    if unique.keep == "first":
        first = np.minimum.reduceat(np.where(null, runs.rows, places), starts)
        return np.where(first == runs.rows, starts, first)
    latest = np.maximum.reduceat(np.where(null, -1, places), starts)
    return np.where(latest < 0, last, latest)
