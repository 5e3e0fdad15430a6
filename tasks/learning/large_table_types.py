"""What large tables are made of on their way through tasks: splits, chains, slices, and the numbers about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.engines.convert.frame_sizes import nbytes
from tasks.engines.task_result import TaskResult
from tasks.ops.base import Unit
from tasks.ops.keyed import Keyed


class Sizes(NamedTuple):
    """Numbers of rows (and, first, of tables) that decide how tables of keys are divided."""

    splits: int  # tables into which a large table is split, a power of two
    alone: int  # rows from which a step has tasks of its own, beside the other steps
    large: int  # rows from which a table is split
    chain: int  # rows that a chain should have
    one_task: int  # rows up to which one task puts the whole table in order
    range: int  # rows that a range of the order should have


# On a GPU a table costs a millisecond whatever its size, and tens of millions of rows are little.
SIZES = {
    "pandas": Sizes(64, 1_000_000, 1_000_000, 2_000_000, 10_000_000, 4_000_000),
    "cudf": Sizes(16, 1_000_000, 32_000_000, 32_000_000, 64_000_000, 32_000_000),
}


def sizes_of(table: object) -> Sizes:
    """The sizes for the engine of a table."""
    return SIZES[engines.engine_of(table).NAME]


@dataclass(frozen=True)
class Split(TaskResult):
    """A large partial: tables by the hash of the key."""

    tables: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        return nbytes(self.tables)

    def device_parts(self) -> list[Any]:
        return list(self.tables)


@dataclass(frozen=True)
class Chain(TaskResult):
    """The tables of neighbouring splits of a step. Arranged: one table in order, with the operator's `sums`."""

    op: Keyed
    unit: Unit
    tables: Sequence[Any]
    sums: Mapping[str, Any] | None = None

    @property
    def rows(self) -> int:
        return sum(len(t) for t in self.tables)

    @property
    def nbytes(self) -> int:
        return nbytes(list(self.tables))

    def device_parts(self) -> list[Any]:
        return list(self.tables)


@dataclass(frozen=True)
class RowCount:
    """How many rows the partials of a step have, and which engine has them (with a GPU, tables may be on the host).

    The engine is "" for partials that are not tables of keys.
    """

    count: int = 0
    engine: str = ""
    split: bool = False

    def __add__(self, other: RowCount) -> RowCount:
        return RowCount(self.count + other.count, self.engine or other.engine, self.split or other.split)

    @property
    def large(self) -> bool:
        """Whether the tables of the step are split by hash before they are merged."""
        return self.split or (bool(self.engine) and self.count >= SIZES[self.engine].large)


@dataclass(frozen=True)
class Outline:
    """What the caller knows of an arranged chain: its rows, its sums, and the sort keys of evenly spaced rows."""

    op: Keyed
    unit: Unit
    engine: str
    rows: int
    sums: Mapping[str, Any]
    sample: list[tuple[Any, ...]]


@dataclass(frozen=True)
class Slice(TaskResult):
    """The rows of a chain in one range. Pickled without the rest of the table, which Arrow's own slices take along."""

    table: Any

    @property
    def nbytes(self) -> int:
        return nbytes(self.table)

    def device_parts(self) -> list[Any]:
        return [self.table]

    def __getstate__(self) -> dict[str, Any]:
        table = self.table
        return {"table": table.take(pa.array(np.arange(len(table)))) if isinstance(table, pa.Table) else table}
