"""The tables of keys that do not fit one task: a split, its parts, its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.engines.convert.sizes import nbytes
from tasks.engines.task_result import TaskResult
from tasks.ops.base import Unit
from tasks.ops.keyed import Keyed


class Sizes(NamedTuple):
    """From which numbers of rows on tables are cut, and into what."""

    splits: int  # tables that a large one is cut into, a power of two
    alone: int  # rows from which a step is finished by itself, beside the others
    large: int  # rows from which a table is split
    chain: int  # rows that a chain is meant to have
    one_task: int  # rows up to which one task puts all in order
    range: int  # rows that a range of the order is meant to have


# On a GPU a table costs a millisecond whatever its size, and tens of millions of rows are little.
SIZES = {
    "pandas": Sizes(64, 1_000_000, 1_000_000, 2_000_000, 10_000_000, 4_000_000),
    "cudf": Sizes(16, 1_000_000, 32_000_000, 32_000_000, 64_000_000, 32_000_000),
}


def sizes_of(table: Any) -> Sizes:
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
class Part(TaskResult):
    """Tables of a step that share no key; arranged: one table in order, and the numbers to be summed."""

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
class Rows:
    """How many rows the partials of a step have, and by which sizes: a step's tables may lie in host memory on a GPU.

    Partials that cannot be split have none.
    """

    count: int = 0
    engine: str = ""
    split: bool = False

    def __add__(self, other: Rows) -> Rows:
        return Rows(self.count + other.count, self.engine or other.engine, self.split or other.split)

    @property
    def large(self) -> bool:
        """Whether the step is merged as tables by hash."""
        return self.split or (bool(self.engine) and self.count >= SIZES[self.engine].large)


@dataclass(frozen=True)
class Outline:
    """What is told of an arranged part: its size, its numbers, and what evenly spaced rows are ordered by."""

    op: Keyed
    unit: Unit
    engine: str
    rows: int
    sums: Mapping[str, Any]
    sample: list[tuple[Any, ...]]


@dataclass(frozen=True)
class Piece(TaskResult):
    """A slice of a table that travels without the rest of it (pickle takes an Arrow slice's whole buffers along)."""

    table: Any

    @property
    def nbytes(self) -> int:
        return nbytes(self.table)

    def device_parts(self) -> list[Any]:
        return [self.table]

    def __getstate__(self) -> dict[str, Any]:
        table = self.table
        return {"table": table.take(pa.array(np.arange(len(table)))) if isinstance(table, pa.Table) else table}
