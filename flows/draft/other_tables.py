"""Files beside the main table of a source that hold another one, and the columns by which the two are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import kind_of
from tasks.core.plan import Partition
from tasks.dataset import Dataset
from tasks.engines.convert import libraries
from tasks.errors import RowmillError
from tasks.sources.reader import read

MOST_ROWS = 5_000_000  # of a table that is read for its keys
MOST_SHARED = 8  # columns, of which all sets are tried


@dataclass(frozen=True)
class OtherTable:
    """Files beside the main table of a source.

    `shared` are the columns that both have, `layout` the settings with which the files can be read. `keys` are the
    fewest of the shared columns of which every row of the other table has other values, and `matched` is the share of
    the rows of the main table that have their values in it.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    shared: tuple[str, ...] = ()
    layout: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    matched: float = 0.0


def with_keys(other: OtherTable, rows: pa.Table, storage_options: str | dict[str, Any] | None = None) -> OtherTable:
    """Return the table with the columns by which it is joined to the rows of the main table, if there are any."""
    shared = [name for name in other.shared if name in rows.column_names][:MOST_SHARED]
    if not shared or len(other.paths) > 1 or not rows.num_rows:
        return other
    try:
        data = Dataset(other.paths[0], storage_options=storage_options, **other.layout)
        if data.num_rows > MOST_ROWS:
            return other
        table = libraries.decode_dictionaries(read(data.handle, Partition(0, data.plan.blocks), shared))
    except RowmillError:  # the draft of this file says what is wrong with it
        return other
    comparable = [n for n in shared if kind_of(table.schema.field(n).type) == kind_of(rows.schema.field(n).type)]
    for size in range(1, len(comparable) + 1):
        unique = [keys for keys in combinations(comparable, size) if _is_key(table, keys)]
        matched = {keys: _measure_match(table, rows, keys) for keys in unique}
        if any(matched.values()):
            keys = max(unique, key=lambda keys: matched[keys])
            return replace(other, keys=keys, matched=matched[keys])
    return other


def are_keys(columns: Sequence[str], main: Sequence[str]) -> bool:
    """Tell whether a table has nothing but a few columns of another one, such as the ids of users to be predicted."""
    return {*columns} < {*main} and 2 * len(columns) <= len(main)


def _is_key(table: pa.Table, keys: Sequence[str]) -> bool:
    return bool(table.num_rows) and table.group_by([*keys]).aggregate([]).num_rows == table.num_rows


def _measure_match(table: pa.Table, rows: pa.Table, keys: Sequence[str]) -> float:
    """Return the share of the rows whose keys are in a table."""
    sought = rows.select([*keys])
    try:
        known = table.select([*keys]).cast(sought.schema)
    except pa.ArrowException:
        return 0.0
    return sought.join(known, keys=[*keys], join_type="left semi").num_rows / rows.num_rows
