"""The growth of a vocabulary in a refit: match the new rows' values with the base, admit newcomers, append their ids.

An id never changes. Values that are not frequent enough, or for which there is no room, wait without an id; their
counts over all dates decide later.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks import engines
from tasks.engines.algorithms.arrow_arrays import one_array, raw
from tasks.engines.algorithms.host_tables import ascending, sortable
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import on_host
from tasks.ops.base import Grown, RefitDate, Unit
from tasks.ops.fitted_values import FittedValues
from tasks.ops.keyed import each_match, in_types, names_of, one_chunk


@dataclass(frozen=True)
class Admission:
    """Which values get an id: those that occur `threshold` times or more, until there are `limit` ids (0: no limit).

    `first_id` is the id of the first value of the vocabulary.
    """

    first_id: int
    threshold: int
    limit: int

    def room(self, size: int, candidates: int) -> int:
        """How many of the candidates a vocabulary of `size` values has room for."""
        return max(self.limit - self.first_id - size, 0) if self.limit else candidates


@dataclass(frozen=True)
class NewValues:
    """The distinct values of the new rows with their counts, in host memory and in the types of the base.

    lookup: gives the place of a value in the table; None without a value.
    """

    table: pa.Table
    keys: list[str]
    lookup: Any
    engine: Kernels


@dataclass(frozen=True)
class MatchedValues:
    """All values after the counts of the new rows were added.

    values: those that have an id, in order. waiting: those without one, and the day on which each was `seen` last.
    newcomers: those that the base does not have. places: of each new value the place among `values`, -1 without one.
    forgotten: the number of waiting values that were not seen for too long.
    """

    values: pa.Table
    waiting: pa.Table
    newcomers: pa.Table
    places: np.ndarray
    forgotten: int


@dataclass(frozen=True)
class Admitted:
    """The values that get an id, in order; those that wait without one; how many of these are frequent enough."""

    appended: pa.Table
    waiting: pa.Table
    without_room: int


def grow(
    partial: object, fitted: FittedValues, saved: FittedValues, unit: Unit, refit: RefitDate, rule: Admission
) -> Grown:
    """The vocabulary with the newcomers behind it: values whose count over all dates reaches the threshold.

    Newcomers are ordered by count over all dates, largest first, then by value; the limit takes the first of them that
    have room. Waiting values that were not seen for `refit.forget_days` are dropped. `fitted` has the dimension of the
    base, which stays.
    """
    kernels = engines.engine_of(partial)
    engine = engines.engine(refit.engine)
    table, nulls = kernels.split_nulls(partial, names_of(partial)[:-1])
    values = fitted["values"].slice(0, fitted["size"])
    host = kernels.host_table(table)
    keys = names_of(host)[:-1]  # those of a GPU may have marks of types
    host = in_types(host, values, keys, unit)
    lookup = engine.Lookup([one_array(host[key]) for key in keys]) if len(host) else None
    new = NewValues(host, keys, lookup, engine)
    waiting = waiting_values(saved, values if len(values) else host, refit)
    values = values if len(values) else values.cast(waiting.schema.remove(len(waiting.schema) - 1))

    matched = match(values, waiting, new, refit)
    admitted = admit(matched, keys, refit, rule, engine)
    nulls = int(nulls) + (0 if refit.keep_ids_only else int(fitted["nulls"]))
    return result(matched, admitted, new, rule, nulls, int(fitted["dimension"]))


def waiting_values(saved: FittedValues, like: pa.Table, refit: RefitDate) -> pa.Table:
    """The values without an id, with the day on which each was seen last; none where counts begin anew."""
    rest = None if refit.keep_ids_only else saved.get("rest")
    if rest is None:
        return like.slice(0, 0).append_column("seen", pa.array([], pa.int32()))
    if "seen" in rest.column_names:
        return rest
    return rest.append_column("seen", pa.array(np.full(len(rest), refit.since_number, dtype=np.int32)))


def match(values: pa.Table, waiting: pa.Table, new: NewValues, refit: RefitDate) -> MatchedValues:
    """Add the counts of the new values to those of the base; what the base does not have is a newcomer."""
    counts = raw(one_array(new.table["count"]))
    is_new = np.ones(len(counts), dtype=bool)
    places = np.full(len(counts), -1, dtype=np.int64)
    value_counts = _counts(values, refit.keep_ids_only)
    waiting_counts = _counts(waiting)
    seen = raw(one_array(waiting["seen"])).copy()
    is_forgotten = np.zeros(len(waiting), dtype=bool)
    if refit.forget_days is not None:  # before the new rows count: a value that comes back begins anew
        is_forgotten = refit.number - seen >= refit.forget_days
        waiting_counts[is_forgotten] = 0

    def of_vocabulary(start: int, rows: np.ndarray, of: np.ndarray) -> None:
        value_counts[start:][rows] += counts.take(of)
        is_new[of] = False
        places[of] = start + rows

    def of_waiting(start: int, rows: np.ndarray, of: np.ndarray) -> None:
        waiting_counts[start:][rows] += counts.take(of)
        is_new[of] = False
        seen[start:][rows] = np.maximum(seen[start:][rows], refit.number)  # a refit's rows may come late

    for base, add in ((values, of_vocabulary), (waiting, of_waiting)):
        if len(base) and new.lookup is not None:
            each_match(base.select(new.keys), new.lookup, new.engine, add)
    return MatchedValues(
        values=_with(values, value_counts),
        waiting=_with(waiting, waiting_counts, seen).filter(pa.array(waiting_counts > 0)),
        newcomers=new.table.filter(pa.array(is_new)),
        places=places,
        forgotten=int(is_forgotten.sum()),
    )


def admit(matched: MatchedValues, keys: list[str], refit: RefitDate, rule: Admission, engine: Kernels) -> Admitted:
    """Choose the values that get an id among those that wait and the newcomers."""
    newcomers = matched.newcomers
    if rule.limit or rule.threshold > 1:  # some may stay without an id: in an order that does not depend on partitions
        newcomers = _in_order(newcomers, keys, engine)
    seen_now = pa.array(np.full(len(newcomers), refit.number, dtype=np.int32))
    without_id = [matched.waiting, newcomers.append_column("seen", seen_now)]
    frequent = [raw(one_array(table["count"])) >= max(rule.threshold, 1) for table in without_id]
    rare = [table.filter(pa.array(~often)) for table, often in zip(without_id, frequent, strict=True)]
    candidates = pa.concat_tables(
        [table.filter(pa.array(often)) for table, often in zip(without_id, frequent, strict=True)]
    )
    room = rule.room(len(matched.values), len(candidates))
    appended, without_room = _first(candidates, keys, room, engine)
    return Admitted(appended, pa.concat_tables([*rare, without_room]), len(without_room))


def result(
    matched: MatchedValues, admitted: Admitted, new: NewValues, rule: Admission, nulls: int, dimension: int
) -> Grown:
    """What was learned, what changed, and the places of the new values where these are fewer than all."""
    values = matched.values
    appended = admitted.appended
    waiting = admitted.waiting
    old_size = len(values)
    size = len(values) + len(appended)
    first = rule.first_id
    learned: FittedValues = {
        "values": pa.concat_tables([values, appended]),
        "size": size,
        "nulls": nulls,
        "distinct": size + len(waiting),
        "occurrences": sum(int(raw(one_array(table["count"])).sum()) for table in (values, appended, waiting)),
        "dimension": dimension,
    }
    if len(waiting):
        learned["rest"] = waiting
    ids = pa.array(np.arange(first + old_size, first + size))
    change = {
        "old_size": old_size,
        "new_size": size,
        "first_id": first,
        "old_rows": first + old_size,
        "new_rows": first + size,
        "dimension": dimension,
        "appended": appended.append_column("id", ids),
        "waiting": admitted.without_room,
        "forgotten": matched.forgotten,
    }
    types, of_values = (table.select(new.keys).schema.types for table in (new.table, learned["values"]))
    if new.lookup is None or len(new.table) >= size or types != of_values:
        return Grown(learned, change)
    return Grown(learned, change, _places(matched.places, appended, old_size, new))


def _places(places: np.ndarray, appended: pa.Table, old_size: int, new: NewValues) -> pa.Table:
    """The new values with the `place` of each in the grown vocabulary, -1 without one."""
    codes = new.lookup.find_places(list(new.engine.from_arrow(one_chunk(appended.select(new.keys))).values()))
    of = on_host(codes).astype(np.int64, copy=False)
    places = places.copy()
    places[of[of >= 0]] = old_size + np.flatnonzero(of >= 0)  # others have waited since earlier refits
    return pa.table([*new.table.select(new.keys).columns, pa.array(places)], [*new.keys, "place"])


def _first(candidates: pa.Table, keys: list[str], room: int, engine: Kernels) -> tuple[pa.Table, pa.Table]:
    """(the values that get an id, in order and without `seen`; those for which there is no room)."""
    if room >= len(candidates):
        return _in_order(candidates.select([*keys, "count"]), keys, engine), candidates.slice(0, 0)
    if not room:
        return candidates.slice(0, 0).select([*keys, "count"]), candidates
    order = pc.sort_indices(sortable(candidates, keys), sort_keys=[("count", "descending"), *ascending(keys)])
    return candidates.select([*keys, "count"]).take(order[:room]), candidates.take(order[room:])


def _in_order(counted: pa.Table, keys: Sequence[str], engine: Kernels) -> pa.Table:
    """A table of values and counts in host memory in the order of a vocabulary."""
    table = engine.table_from_host(one_chunk(counted))
    in_order: pa.Table = engine.host_table(engine.sort_counts(table, names_of(table)[: len(keys)]))
    return in_order


def _counts(table: pa.Table, anew: bool = False) -> np.ndarray:
    """The counts of a table, to add to; zeros where they begin anew.

    Of the system's allocator: for huge pages, which NumPy and Arrow's pool ask for, a busy host has to make room, which
    takes longer than to add up all counts.
    """
    if anew or not len(table):
        return np.zeros(len(table), dtype=np.int64)
    counts = np.frombuffer(pa.allocate_buffer(8 * len(table), pa.system_memory_pool()), dtype=np.int64)
    chunks = table["count"].chunks
    ends = np.cumsum([len(chunk) for chunk in chunks])
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="rowmill-counts") as threads:
        list(threads.map(np.copyto, np.split(counts, ends[:-1]), map(raw, chunks)))
    return counts


def _with(table: pa.Table, counts: np.ndarray, seen: np.ndarray | None = None) -> pa.Table:
    """The table with other counts, and other days where it has them."""
    table = table.set_column(table.column_names.index("count"), "count", pa.array(counts))
    return table if seen is None else table.set_column(table.column_names.index("seen"), "seen", pa.array(seen))
