"""Operators that learn a table of distinct keys, which may be too large for one task."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks import engines
from tasks.core.strict_json import JsonObject
from tasks.engines.algorithms.arrow_arrays import one_array, raw
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import any_true, on_host
from tasks.engines.types import Array, CountTable, Lookup
from tasks.errors import DataError
from tasks.ops.base import Grown, Learned, RefitDate, Unit
from tasks.ops.fitted_values import FittedValues

MIN_PART_ROWS = {"pandas": 1 << 19, "cudf": 1 << 25}  # rows of a base that are looked up at once
KEYS_PER_ROW = 8  # keys of the lookup per row of a part, at most: larger parts pay for sorting the keys once


class Keyed(Learned):
    """An operator whose partial is one table with each key once, and whose fitted values are such a table in order.

    Where merging is exact in any order, a large partial is split by the hash of its keys
    (`tasks.learning.large_tables`): `arrange` is called for each part, `finish` with the summed numbers and all rows
    in order. A small partial is one part, so both learn the same.
    """

    def key_names(self, partial: CountTable) -> list[str]:
        """Return the names of the key columns, which come first in the table."""
        raise TypeError(f"{type(self).__name__} does not define key_names")

    def arrange(self, partial: CountTable, unit: Unit) -> tuple[Any, dict[str, Any]]:
        """Return (the table as it is saved, rows in order; numbers that are summed over all parts of a large table)."""
        raise TypeError(f"{type(self).__name__} does not define arrange")

    def in_order(self, tables: Sequence[Any]) -> CountTable:
        """Merge arranged tables, which have no key in common, and keep their order."""
        raise TypeError(f"{type(self).__name__} does not define in_order")

    def place(self, row: JsonObject) -> tuple[Any, ...]:
        """Make the sort key of a row of an arranged table: these tuples compare as the rows are ordered."""
        raise TypeError(f"{type(self).__name__} does not define place")

    def finish(self, table: pa.Table, sums: Mapping[str, Any], unit: Unit) -> FittedValues:
        """Make the learned values from all rows in order, in host memory, and the summed numbers."""
        raise TypeError(f"{type(self).__name__} does not define finish")

    def split(self, partial: CountTable, parts: int) -> list[Any]:
        """Split a partial into `parts` partials without a common key, by the first bits of the keys' hash."""
        return engines.engine_of(partial).split_table(partial, self.key_names(partial), parts)

    def finalize_unit(self, partial: CountTable, unit: Unit) -> FittedValues:
        table, sums = self.arrange(partial, unit)
        return self.finish(engines.engine_of(table).host_table(table), sums, unit)

    def kept_partial(self, partial: object, fitted: FittedValues) -> FittedValues:
        """Keep nothing: the fitted table holds every key, and all that a refit needs."""
        return {}

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> pa.Table:
        """Restore the table of `arrange` for all rows that were learned so far."""
        raise TypeError(f"{type(self).__name__} does not define restored")

    def add_tables(self, a: pa.Table, b: pa.Table) -> pa.Table:
        """Add two tables of `arrange` row by row; both have the same keys in the same order."""
        raise TypeError(f"{type(self).__name__} does not define add_tables")

    def sums(self, table: pa.Table) -> dict[str, Any]:
        """Compute the numbers that `arrange` returns in addition to the table."""
        return {}

    def grown(
        self, partial: CountTable, fitted: FittedValues, saved: FittedValues, unit: Unit, refit: RefitDate
    ) -> Grown | tuple[FittedValues, FittedValues]:
        """Learn from all rows; also return how many groups are new or changed.

        The keys of the base are looked up among those of the refit, part by part. So only the refit's keys are put into
        a hash table, and the base is neither grouped nor sorted again: new keys are inserted by bisection.
        """
        engine = engines.engine_of(partial)
        new = engine.host_table(self.arrange(partial, unit)[0])
        keys = self.key_names(new)
        old = self.restored(fitted, saved, unit)
        new = in_types(new, old, keys, unit)
        old = old.select(new.column_names).cast(new.schema) if len(old) else new.slice(0, 0)
        old_rows, new_rows = find_matches(old.select(keys), new.select(keys), engine)
        is_added = np.ones(len(new), dtype=bool)
        is_added[new_rows] = False
        added = new.filter(pa.array(is_added))
        changed = self.add_tables(old.take(pa.array(old_rows)), new.take(pa.array(new_rows)))
        # `order` are rows of the three tables one after another: changed rows take the place of the old ones.
        order = np.arange(len(old))
        order[old_rows] = len(old) + np.arange(len(changed))
        places = find_places_before(old, added, keys)
        order = np.insert(order, places, len(old) + len(changed) + np.arange(len(added)))
        several = pa.concat_tables([old, changed.cast(old.schema), added])
        table = engines.engine("pandas").table_rows(several, order).replace_schema_metadata(new.schema.metadata)
        learned = self.finish(table, self.sums(table), unit)
        change = self.change(fitted, learned, unit)
        return learned, change | {"groups": {"old": len(old), "new": len(table), "changed": len(old_rows)}}


class RefitLookup:
    """Finds the places of a refit's values in the vocabulary that it has made larger; has the methods of a `Lookup`.

    `values` are the few values of the refit's rows, as columns; the last column is their `place` in the vocabulary of
    `size` values, -1 for a value without one. `whole` makes the `Lookup` of the whole vocabulary, and is called when
    the first row has another value. Any thread may use it.
    """

    def __init__(self, values: pa.Table, size: int, whole: Callable[[], Lookup], engine: Kernels) -> None:
        *keys, places = (one_array(column) for column in values.columns)
        self.lookup = engine.Lookup(keys)
        self.places = engine.xp.asarray(raw(places))
        self.size = size
        self.engine = engine
        self._whole: Lookup | None = None
        self._make = whole
        self._lock = threading.Lock()

    def find_places(self, columns: Sequence[Any]) -> Array:
        """Find the place of each row in the vocabulary, int64; -1 for a row that is not in the vocabulary."""
        if self._whole is None:
            xp = self.engine.xp
            rows = self.lookup.find_places(columns)  # of `values`
            absent = rows < 0
            if not any_true(absent):
                return self.places.take(rows)
            null = self.engine.null_rows(columns)
            if null is not None and not any_true(absent & ~null):
                return xp.where(absent, -1, self.places.take(xp.maximum(rows, 0)))
        return self._get_whole_lookup().find_places(columns)

    def _get_whole_lookup(self) -> Lookup:
        with self._lock:
            if self._whole is None:
                self._whole = self._make()
                engines.synchronize()
            return self._whole


def ascending_place(row: JsonObject, names: Sequence[str]) -> tuple[Any, ...]:
    """Make a sort key: values in their own order, strings by code points (as their UTF-8 bytes sort), nulls first."""
    return tuple((row[name] is not None, row[name]) for name in names)


def names_of(table: CountTable) -> list[str]:
    return list(table.column_names if isinstance(table, pa.Table) else table.columns)


def in_types(table: pa.Table, base: pa.Table, keys: Sequence[str], unit: Unit) -> pa.Table:
    """Cast the keys of a refit's table to the types of the base; DataError for a key that does not fit."""
    for name in keys:
        place = table.column_names.index(name)
        dtype = base.schema.field(name).type
        if table.column(place).type == dtype or pa.types.is_null(dtype):
            continue
        try:
            values = one_array(table.column(place)).cast(dtype)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"values of {'+'.join(unit)!r} do not fit the type {dtype} in which the base learned them",
                why=str(error).partition("\n")[0],
                do="give the column the base's type in source.schema, or fit all rows again",
            ) from None
        table = table.set_column(place, name, values)
    return table


def find_matches(base: pa.Table, wanted: pa.Table, engine: Kernels) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows of the base whose key is in `wanted`, ascending; the row of `wanted` for each).

    Both tables consist of the key columns, and have each key once. The lookup is made of `wanted`, which is smaller;
    the base is read in parts.
    """
    if not len(base) or not len(wanted):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    lookup = engine.Lookup([one_array(c) for c in wanted.columns])
    by_start: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    each_match(base, lookup, engine, lambda start, rows, places: by_start.update({start: (rows + start, places)}))
    base_rows, wanted_rows = zip(*(by_start[start] for start in sorted(by_start)), strict=True)
    return np.concatenate(base_rows), np.concatenate(wanted_rows)


def each_match(
    base: pa.Table, lookup: Lookup, engine: Kernels, met: Callable[[int, np.ndarray, np.ndarray], None]
) -> None:
    """Call met(start, rows, places) for each part of the base: `rows` of the part, ascending, have a key of the lookup.

    The part begins at row `start` of the base; `places` are the places of the keys in the lookup. Threads call `met`
    for several parts at once; each key of the lookup is met at most once. A GPU looks up one part after another.
    """
    step = max(MIN_PART_ROWS[engine.NAME], lookup.size // KEYS_PER_ROW)

    def probe_part(start: int) -> tuple[np.ndarray, np.ndarray]:
        part = engine.from_arrow(one_chunk(base.slice(start, step)))
        places = lookup.find_places(list(part.values()))
        rows = engine.xp.flatnonzero(places >= 0)
        return on_host(rows), on_host(places[rows]).astype(np.int64, copy=False)

    starts = range(0, len(base), step)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="rowmill-probe") as threads:
        if engine.NAME == "pandas":
            futures = [threads.submit(lambda start: met(start, *probe_part(start)), start) for start in starts]
        else:
            futures = [threads.submit(met, start, *probe_part(start)) for start in starts]
        for future in futures:
            future.result()


def one_chunk(table: pa.Table) -> pa.Table:
    return pa.table([one_array(c) for c in table.columns], table.column_names)


def find_places_before(base: pa.Table, wanted: pa.Table, keys: Sequence[str]) -> np.ndarray:
    """Find for each row of `wanted` the first row of the base that does not come before it in the order of the keys.

    All rows are bisected at the same time: the number of steps is the logarithm of the base's rows.
    """
    low = np.zeros(len(wanted), dtype=np.int64)
    high = np.full(len(wanted), len(base), dtype=np.int64)
    columns = [(one_array(base.column(name)), one_array(wanted.column(name))) for name in keys]
    while len(rows := np.flatnonzero(low < high)):
        middle = (low[rows] + high[rows]) // 2
        before = _is_before([(b.take(pa.array(middle)), w.take(pa.array(rows))) for b, w in columns])
        low[rows[before]] = middle[before] + 1
        high[rows[~before]] = middle[~before]
    return low


def _is_before(columns: Sequence[tuple[pa.Array, pa.Array]]) -> np.ndarray:
    """Say for each row whether the first key is smaller than the second: column by column, nulls first."""
    before = np.zeros(len(columns[0][0]), dtype=bool)
    open_rows = np.ones(len(columns[0][0]), dtype=bool)
    for a, b in columns:
        null_a, null_b = (np.asarray(x.is_null()).astype(bool) for x in (a, b))
        less = np.asarray(pc.fill_null(pc.less(a, b), False)).astype(bool) | (null_a & ~null_b)
        same = np.asarray(pc.fill_null(pc.equal(a, b), False)).astype(bool) | (null_a & null_b)
        before |= open_rows & less
        open_rows &= same
    return before
