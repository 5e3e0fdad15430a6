"""Operators that learn a table of distinct keys, which may be too large for one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tasks import engines
from tasks.ops.base import Learned, Unit


class Keyed(Learned):
    """An operator whose partial is one table with each key once, and whose fitted values are such a table in order.

    Where merging is exact in any order, a large partial is split by the hash of its keys
    (`tasks.learning.large_tables`): `arrange` is called for each part, `finish` with the summed numbers and all rows
    in order. A small partial is one part, so both learn the same.
    """

    def key_names(self, partial: Any) -> list[str]:
        """The names of the key columns, which come first."""
        raise TypeError(f"{type(self).__name__} does not define key_names")

    def arrange(self, partial: Any, unit: Unit) -> tuple[Any, dict[str, Any]]:
        """(the table as it is saved, its rows in order; numbers that are summed over all parts of a large table)."""
        raise TypeError(f"{type(self).__name__} does not define arrange")

    def in_order(self, tables: Sequence[Any]) -> Any:
        """The rows of arranged tables without a common key, in order."""
        raise TypeError(f"{type(self).__name__} does not define in_order")

    def place(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The sort key of a row of an arranged table: tuples that compare as the rows are ordered."""
        raise TypeError(f"{type(self).__name__} does not define place")

    def finish(self, table: pa.Table, sums: Mapping[str, Any], unit: Unit) -> dict[str, Any]:
        """The learned values, from all rows in order (in host memory) and the summed numbers."""
        raise TypeError(f"{type(self).__name__} does not define finish")

    def split(self, partial: Any, parts: int) -> list[Any]:
        """The partial as `parts` partials without a common key, by the first bits of the keys' hash."""
        return engines.engine_of(partial).split_table(partial, self.key_names(partial), parts)

    def finalize_unit(self, partial: Any, unit: Unit) -> dict[str, Any]:
        table, sums = self.arrange(partial, unit)
        return self.finish(engines.engine_of(table).host_table(table), sums, unit)

    def kept_partial(self, partial: Any, fitted: dict[str, Any]) -> dict[str, Any]:
        """Nothing: the fitted table holds every key, and all that a refit needs."""
        return {}


def ascending_place(row: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    """Values by their own order, strings by code points (which is the order of their UTF-8 bytes), nulls first."""
    return tuple((row[name] is not None, row[name]) for name in names)


def names_of(table: Any) -> list[str]:
    return list(table.column_names if isinstance(table, pa.Table) else table.columns)
