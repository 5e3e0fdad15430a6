"""The rows of a partition and the rules of its source: each rule is a mask over the rows that are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tasks.core.plan import Partition
from tasks.core.schema import ROW, Schema
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.expression.interpreter import true_mask
from tasks.engines.expression.nodes import UnreadError
from tasks.engines.expression.syntax import Expression
from tasks.errors import DataError
from tasks.graph.failed_casts import FailedCasts
from tasks.ops.base import Array, Columns
from tasks.sources.row_places import row_place


@dataclass(frozen=True)
class PartitionRows:
    """Rows of a partition of a source.

    columns: by name.
    numbers: the number of each row in its source, uint64.
    order: the order numbers; None if these are the row numbers.
    own: which rows belong to the split of the pass, the others being their past; None if all do.
    left_out: how many rows the rules have left out, by reason.
    """

    columns: Columns
    numbers: Any
    order: Any = None
    own: Any = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    def take_rows(self, places: Array, names: Sequence[str], engine: Kernels) -> PartitionRows:
        """Take the rows at these places, with these columns."""
        columns = engine.take({name: self.columns[name] for name in names}, places) if names else {}
        order, own = (None if array is None else array.take(places) for array in (self.order, self.own))
        return PartitionRows(columns, self.numbers.take(places), order, own, self.left_out)


@dataclass(frozen=True)
class MaskResult:
    """The answer of a rule.

    mask: which rows stay; None if all do.
    own: which rows belong to the split of the pass; None if all that stay do.
    columns: columns that the rule makes, of all rows before it.
    left_out: why rows are left out, and how many; {} if they are not counted.
    """

    mask: Any = None
    own: Any = None
    columns: Columns = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


class Mask(Protocol):
    """A rule on rows."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the source that decide."""

    def decide(self, rows: PartitionRows, partition: MaskedPartition) -> MaskResult:
        """Decide which of these rows of a partition stay."""


@dataclass(frozen=True)
class MaskedPartition:
    """A partition to whose rows rules are applied.

    `source` is what the partition is part of, with the columns of `schema`. `strict`: a cast or a parse that fails in a
    condition is an error; else it is null, and counted in `failed`.
    """

    partition: Partition
    source: Any
    schema: Schema
    engine: Kernels
    strict: bool
    failed: FailedCasts

    @property
    def keyed(self) -> bool:
        """Whether the rows have their numbers in a column, so that these do not follow each other."""
        return ROW in self.schema

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return place_of(self.partition)

    def true(self, condition: Expression, title: str, rows: PartitionRows) -> Any:
        """Return the rows for which a condition of the section `source` is true."""
        failed = Counter[str]()
        try:
            mask = true_mask(condition, rows.columns, failed, self.strict)
        except DataError as error:
            named: DataError = error
            if isinstance(error, UnreadError):
                named = error.in_row(row_place(self.source, int(rows.numbers[error.row])))
            raise DataError(named.what, where=f"{title}, {self.place}", why=named.why, do=named.do) from None
        for text, count in failed.items():
            self.failed[title, text] = count
        return mask

    def rows(self, columns: Columns, renumbered: bool) -> PartitionRows:
        """Return all rows of the partition; `renumbered`: operators see other numbers than those in the source."""
        numbers = self.engine.row_numbers(self.partition.first_row, self.partition.rows)
        if not self.keyed:
            return PartitionRows(columns, numbers, numbers if renumbered else None)
        return PartitionRows(columns, self.engine.numbers(columns[ROW])[0].astype(self.engine.xp.uint64), numbers)

    def apply_masks(self, rows: PartitionRows, masks: Sequence[Mask], names: Sequence[str]) -> PartitionRows:
        """Return the rows, with these columns, that stay under all rules, which are applied one after another."""
        for number, mask in enumerate(masks, 1):
            result = mask.decide(rows, self)
            own = rows.own if result.own is None else result.own
            columns = {**rows.columns, **result.columns}
            left_out = {**rows.left_out, **result.left_out}
            rows = replace(rows, columns=columns, own=own, left_out=left_out)
            if result.mask is not None:
                needed = [*names, *(column for later in masks[number:] for column in later.columns)]
                known = [name for name in dict.fromkeys(needed) if name in rows.columns]
                rows = rows.take_rows(self.engine.xp.flatnonzero(result.mask), known, self.engine)
        return rows


def place_of(partition: Partition) -> str:
    """Describe where a partition is, for messages."""
    return f"partition {partition.number} (rows from {partition.first_row:,})"
