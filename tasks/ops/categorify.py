"""Values to ids."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import model_validator

from tasks import engines
from tasks.core.dtypes import dtype_name, is_list, kind_of
from tasks.core.schema import Column, Schema, Tags
from tasks.engines.algorithms.arrow_arrays import one_array, raw
from tasks.engines.algorithms.host_tables import ascending, sortable
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import any_true, on_host, total
from tasks.errors import DataError, JobError, near
from tasks.ops.base import Columns, Context, Entry, Grown, RefitDate, Unit
from tasks.ops.continuous import DURATION
from tasks.ops.keyed import Keyed, NightLookup, ascending_place, each_match, in_types, names_of, one_chunk

PADDING, NULL, FIRST = 0, 1, 2


def embedding_size(rows: int) -> dict[str, int]:
    """Rows (all ids) and dimension min(512, max(16, round(1.6 rows^0.56))) of an embedding table.

    >>> [embedding_size(n)["dimension"] for n in (29, 100, 1000)]
    [16, 21, 77]
    """
    return {"rows": rows, "dimension": min(512, max(16, round(1.6 * rows**0.56)))}


class Categorify(Keyed):
    """Code values as ids: 0 padding, 1 null, [2, 2 + num_buckets) out of vocabulary, then the vocabulary by frequency.

    Parameters
    ----------
    freq_threshold : int, or dict of str to int, default 0
        Lowest count with which a value enters the vocabulary; one for all columns, or one per column. A group takes the
        largest of its columns'.
    max_size : int, or dict of str to int, default 0
        Most ids, which leaves max_size - 2 - num_buckets for the most frequent values; 0 sets no limit. Per column and
        of groups as `freq_threshold`.
    num_buckets : int, default 1
        Number of ids for values out of vocabulary, seen or not: 2 + hash mod num_buckets.
    vocabs : list, or dict of str to list, default None
        Vocabulary in order, in place of a learned one: for all columns or per column, of tuples with `combo`. Each
        value occurs once and has the column's type.
    dtype : {"int32", "int64"}, default "int32"
        Type of the ids; int64 anyway when the ids need it.
    name_sep : str, default "_"
        Text between the names in the name of a `combo` column.
    combo : bool, default False
        Code the tuple of a group (nested list) as one value, in the column `a_b`; it is null only if all parts are
        null.

    Notes
    -----
    The vocabulary is ordered by count, largest first, equal counts by value ascending: numbers by value, false before
    true, strings by UTF-8 bytes, tuples column by column with nulls first. `freq_threshold` applies first, then
    `max_size`. Columns of a group (nested list) share one vocabulary, their counts added.

    Of list columns the elements are coded: a null element is 1, a null list stays null. A column of nothing but nulls
    is all 1. An infinity is a value like any other: it has an id.

    The schema has the number of ids (`cardinality`) and the size of the embedding: rows are all ids, dimension is
    min(512, max(16, round(1.6 rows^0.56))). `Workflow.inverse` turns ids into values again.

    Errors: a JobError for parameters out of range and for columns that are not selected; a DataError for `vocabs` that
    do not fit the column, and for columns of different kinds in one group.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"brand": ["b", "a", "b", None, "c"]})
    >>> Workflow(["brand"] >> Categorify(freq_threshold=1)).fit(table).transform(table).to_pydict()
    {'brand': [3, 4, 3, 1, 5]}
    >>> workflow = Workflow([["home", "away"]] >> Categorify()).fit(pa.table({"home": ["x", "x"], "away": ["y", "x"]}))
    >>> workflow.transform(pa.table({"home": ["y", "new"], "away": ["x", None]})).to_pydict()
    {'home': [4, 2], 'away': [3, 1]}
    >>> Categorify(max_size=3)
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: Categorify: max_size 3 leaves no id for the vocabulary: at least 4, or 0 for no limit
    """

    freq_threshold: int | dict[str, int] = 0
    max_size: int | dict[str, int] = 0
    num_buckets: int = 1
    vocabs: dict[str, list[Any]] | list[Any] | None = None
    dtype: Literal["int32", "int64"] = "int32"
    name_sep: str = "_"
    combo: bool = False
    takes = frozenset({"number", "string", "bool", "time"})
    leaves = True
    encoded = plain_too = True
    grouped = True
    on_refit = "appended"
    for_refit = frozenset({"rest"})
    retunable = frozenset({"freq_threshold", "max_size", "dtype", "name_sep"})
    adds_tags = frozenset({Tags.CATEGORICAL.value})

    @model_validator(mode="after")
    def _possible(self) -> Categorify:
        if self.num_buckets < 1:
            raise ValueError("num_buckets is at least 1: values out of the vocabulary need an id")
        if self.num_buckets >= 1 << 32:
            raise ValueError("num_buckets is below 2^32, the number of hashes")
        for threshold in (
            self.freq_threshold.values() if isinstance(self.freq_threshold, dict) else [self.freq_threshold]
        ):
            if threshold < 0:
                raise ValueError(f"freq_threshold {threshold} is negative")
        for values in self.vocabs.values() if isinstance(self.vocabs, dict) else [self.vocabs or []]:
            _each_once([tuple(v) if isinstance(v, list) else v for v in values])
        for size in self.max_size.values() if isinstance(self.max_size, dict) else [self.max_size]:
            if size < 0 or 0 < size <= FIRST + self.num_buckets:
                raise ValueError(
                    f"max_size {size} leaves no id for the vocabulary: at least {FIRST + self.num_buckets + 1}, "
                    "or 0 for no limit"
                )
        return self

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        units = list(dict.fromkeys(super().units(selection)))
        if self.combo and units and all(len(unit) == 1 for unit in units):
            raise JobError("combo needs a group of columns", where="Categorify", do="write a nested list: [[a, b]]")
        known = dict.fromkeys(n for unit in units for n in (*unit, self.name_sep.join(unit)))
        for parameter in ("freq_threshold", "max_size", "vocabs"):
            value = getattr(self, parameter)
            for name in value if isinstance(value, dict) else ():
                if name not in known:
                    raise JobError(
                        f"Categorify: {parameter} names {name!r}, which is not selected", do=near(name, known)
                    )
        return units

    def check(self, unit: Unit, schema: Schema) -> None:
        super().check(unit, schema)
        vocabulary = self._own_vocabulary(unit)
        if vocabulary is not None:
            leaves = [schema[n].leaf for n in unit]
            for types in [leaves] if self.combo else [[leaf] for leaf in leaves]:
                _vocabulary(vocabulary, types, "_".join(unit))
        kinds = {kind_of(schema[n].leaf) for n in unit if not pa.types.is_null(schema[n].leaf)}
        if len(unit) > 1 and not self.combo and len(kinds) > 1:
            raise DataError(
                f"columns {', '.join(unit)} cannot share a vocabulary",
                why="their types differ: " + ", ".join(dtype_name(schema[n].dtype) for n in unit),
                do="give each its own vocabulary, or set combo: true to code the tuple",
            )
        if self.combo and any(is_list(schema[n].dtype) for n in unit):
            raise DataError(f"combo does not take list columns ({', '.join(unit)})", do="code the lists on their own")

    def outputs(self, unit: Unit, schema: Schema, fitted: Mapping[str, Any] | None) -> list[Column]:
        vocabulary = self._own_vocabulary(unit)
        size = len(vocabulary) if vocabulary is not None else None if fitted is None else int(fitted["size"])
        rows = None if size is None else size + FIRST + self.num_buckets
        wide = self.dtype == "int64" or (rows or FIRST + self.num_buckets) > 2**31 - 1
        leaf = pa.int64() if wide else pa.int32()
        properties: dict[str, Any] = {}
        if rows is not None:
            embedding = embedding_size(rows)
            if fitted and "dimension" in fitted:  # of the base, in whose dimension a model was trained
                embedding["dimension"] = int(fitted["dimension"])
            properties = {"cardinality": rows, "embedding": embedding, "domain": {"min": 0, "max": rows - 1}}
        if self.combo and len(unit) > 1:
            return [Column(self.name_sep.join(unit), leaf, self.adds_tags, properties)]
        columns = []
        for name in unit:
            column = schema[name]
            dtype = pa.list_(leaf) if is_list(column.dtype) else leaf
            columns.append(Column(name, dtype, column.tags | self.adds_tags, {**column.properties, **properties}))
        return columns

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        return True

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> Any:
        """A table of the distinct values (v0, ..) and their `count`, nulls included."""
        engine = context.engine
        if self._own_vocabulary(unit) is not None:
            columns = engine.slice_rows(columns, 0, 0)
        if self.combo and len(unit) > 1:
            return engine.count_values([columns[n] for n in unit], _names(len(unit)))
        parts = [engine.leaves(columns[n]) if engine.is_list(columns[n]) else columns[n] for n in unit]
        tables = [engine.count_values([part], ["v0"]) for part in parts]
        if len(tables) == 1:
            return tables[0]
        return engine.merge_sums(engine.same_types(tables), ["v0"])

    def merge(self, a: Any, b: Any) -> Any:
        return self.merge_all([a, b])

    def merge_all(self, partials: Sequence[Any]) -> Any:
        return engines.engine_of(partials[0]).merge_sums(partials, self.key_names(partials[0]))

    def key_names(self, partial: Any) -> list[str]:
        return names_of(partial)[:-1]

    def arrange(self, partial: Any, unit: Unit) -> tuple[Any, dict[str, Any]]:
        """The values that are not null, in vocabulary order; how often null occurs, and how many are frequent
        enough."""
        engine = engines.engine_of(partial)
        table, nulls = engine.split_nulls(partial, self.key_names(partial))
        frequent = engine.count_at_least(table, max(self._per_column(self.freq_threshold, unit), 1))
        return self.in_order([table]), {"nulls": int(nulls), "kept": int(frequent)}

    def in_order(self, tables: Sequence[Any]) -> Any:
        engine = engines.engine_of(tables[0])
        return engine.sort_counts(engine.join_tables(tables), self.key_names(tables[0]))

    def place(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return (-row["count"], *ascending_place(row, [name for name in row if name != "count"]))

    def finish(self, table: pa.Table, sums: Mapping[str, Any], unit: Unit) -> dict[str, Any]:
        """`values`: the vocabulary with the counts, `size` values in order; `rest`: the values that were not kept.

        `distinct` and `occurrences` are the numbers of both together; nulls are counted apart.
        """
        vocabulary = self._own_vocabulary(unit)
        if vocabulary is not None:
            values = _vocabulary(vocabulary, table.schema.types[:-1], "_".join(unit))
            counts = pa.nulls(len(vocabulary), pa.int64())
            table = pa.table([*values, counts], [*_names(len(values)), "count"])
            return {"values": table, "size": len(vocabulary), "nulls": 0}
        limit, size = self._per_column(self.max_size, unit), sums["kept"]
        if limit:
            size = min(size, limit - FIRST - self.num_buckets)
        known = {"distinct": len(table), "occurrences": pc.sum(table["count"]).as_py() or 0}
        values = table.slice(0, size)
        if 2 * size < len(table):  # a slice would keep, and take along, the memory of all
            values = values.take(pa.array(np.arange(size)))
        rest = {"rest": table.slice(size)} if size < len(table) else {}
        return {"values": values, "size": size, "nulls": sums["nulls"], **known, **rest}

    def refit_of(self, unit: Unit) -> tuple[Literal["merged", "appended", "frozen"], str]:
        if self._own_vocabulary(unit) is not None:
            return "frozen", "the job gives the vocabulary (vocabs)"
        return self.on_refit, self.frozen_why

    def check_retuned(self, fitted: Mapping[str, Any], unit: Unit) -> None:
        limit, rows = self._per_column(self.max_size, unit), int(fitted["size"]) + FIRST + self.num_buckets
        if 0 < limit < rows:
            raise JobError(
                f"Categorify of {'+'.join(unit)!r}: max_size {limit:,} is less than the {rows:,} ids of the base",
                why="an id is never taken away",
                do=f"give max_size: {rows} or more, or 0 for no limit; or begin anew: base: none",
            )

    def grown(
        self, partial: Any, fitted: Mapping[str, Any], saved: Mapping[str, Any], unit: Unit, night: RefitDate
    ) -> Grown:
        """The vocabulary with the newcomers behind it: values whose count over all nights is at least `freq_threshold`.

        Newcomers are ordered by count over all nights, largest first, then by value; `max_size` takes the first of
        them that have room, the others wait in `rest`. `rest` says when each value was `seen` last (days since 1970);
        values that were not seen for `night.forget_days` are dropped from it. The dimension stays that of the base.
        """
        kernels, engine = engines.engine_of(partial), engines.engine(night.engine)
        table, nulls = kernels.split_nulls(partial, self.key_names(partial))
        values, of_night = fitted["values"].slice(0, fitted["size"]), kernels.host_table(table)
        keys = self.key_names(of_night)  # those of a GPU may have marks of types
        night_table = in_types(of_night, values, keys, unit)
        counts = raw(one_array(night_table["count"]))
        rest = self._rest(saved, values if len(values) else night_table, night)
        values = values if len(values) else values.cast(rest.schema.remove(len(rest.schema) - 1))

        is_new = np.ones(len(night_table), dtype=bool)
        known = _counted(values, night.keep_ids_only)
        rest_counts, seen = _counted(rest), raw(one_array(rest["seen"])).copy()
        lookup = engine.Lookup([one_array(night_table[key]) for key in keys]) if len(night_table) else None
        places_of_night = np.full(len(night_table), -1, dtype=np.int64)
        is_forgotten = np.zeros(len(rest), dtype=bool)
        if night.forget_days is not None:  # before tonight's rows count: a value that comes back begins anew
            is_forgotten = night.number - seen >= night.forget_days
            rest_counts[is_forgotten] = 0

        def known_again(start: int, rows: np.ndarray, of: np.ndarray) -> None:
            known[start:][rows] += counts.take(of)
            is_new[of] = False
            places_of_night[of] = start + rows

        def waited_again(start: int, rows: np.ndarray, of: np.ndarray) -> None:
            rest_counts[start:][rows] += counts.take(of)
            is_new[of] = False
            seen[start:][rows] = np.maximum(seen[start:][rows], night.number)  # the night may have come late

        for base, met in ((values, known_again), (rest, waited_again)):
            if len(base) and lookup is not None:
                each_match(base.select(keys), lookup, engine, met)
        stays = rest_counts > 0
        limit, threshold = self._per_column(self.max_size, unit), self._per_column(self.freq_threshold, unit)
        newcomers = night_table.filter(pa.array(is_new))
        if limit or threshold > 1:  # some may stay without an id: in an order that does not depend on partitions
            newcomers = _in_order(newcomers, keys, engine)
        seen_now = pa.array(np.full(len(newcomers), night.number, dtype=np.int32))
        without_id = [
            _with(rest, rest_counts, seen).filter(pa.array(stays)),
            newcomers.append_column("seen", seen_now),
        ]
        enough = [raw(one_array(t["count"])) >= max(threshold, 1) for t in without_id]
        frequent = int(sum(e.sum() for e in enough))
        room = max(limit - FIRST - self.num_buckets - len(values), 0) if limit else frequent
        candidates = pa.concat_tables([t.filter(pa.array(e)) for t, e in zip(without_id, enough, strict=True)])
        appended, waiting = self._admitted(candidates, keys, room, engine)
        left = [t.filter(pa.array(~e)) for t, e in zip(without_id, enough, strict=True)]
        rest = pa.concat_tables([*left, waiting])

        old_size, size = len(values), len(values) + len(appended)
        first = FIRST + self.num_buckets
        dimension = int(fitted.get("dimension", embedding_size(old_size + first)["dimension"]))
        learned: dict[str, Any] = {
            "values": pa.concat_tables([_with(values, known), appended]),
            "size": size,
            "nulls": int(nulls) + (0 if night.keep_ids_only else int(fitted["nulls"])),
            "distinct": size + len(rest),
            "occurrences": sum(
                int(t.sum()) for t in (known, raw(one_array(appended["count"])), raw(one_array(rest["count"])))
            ),
            "dimension": dimension,
            **({"rest": rest} if len(rest) else {}),
        }
        ids = pa.array(np.arange(first + old_size, first + size))
        change = {
            "old_size": old_size,
            "new_size": size,
            "first_id": first,
            "old_rows": first + old_size,
            "new_rows": first + size,
            "dimension": dimension,
            "appended": appended.append_column("id", ids),
            "waiting": len(waiting),
            "forgotten": int(is_forgotten.sum()),
        }
        types, of_values = (t.select(keys).schema.types for t in (night_table, learned["values"]))
        if lookup is None or len(night_table) >= size or types != of_values:
            return Grown(learned, change)
        codes = lookup.codes(list(engine.from_arrow(one_chunk(appended.select(keys))).values()))
        of = on_host(codes).astype(np.int64, copy=False)
        places_of_night[of[of >= 0]] = old_size + np.flatnonzero(of >= 0)  # others have waited since nights before
        of_night = pa.table([*night_table.select(keys).columns, pa.array(places_of_night)], [*keys, "place"])
        return Grown(learned, change, of_night)

    def _rest(self, saved: Mapping[str, Any], like: pa.Table, night: RefitDate) -> pa.Table:
        """The values without an id, with the day on which each was seen last; none where counts begin anew."""
        rest = None if night.keep_ids_only else saved.get("rest")
        if rest is None:
            return like.slice(0, 0).append_column("seen", pa.array([], pa.int32()))
        if "seen" in rest.column_names:
            return rest
        return rest.append_column("seen", pa.array(np.full(len(rest), night.since_number, dtype=np.int32)))

    def _admitted(self, candidates: pa.Table, keys: list[str], room: int, engine: Kernels) -> tuple[pa.Table, pa.Table]:
        """(the values that get an id, in order and without `seen`; those for which there is no room)."""
        if room >= len(candidates):
            return _in_order(candidates.select([*keys, "count"]), keys, engine), candidates.slice(0, 0)
        if not room:
            return candidates.slice(0, 0).select([*keys, "count"]), candidates
        ascending_keys = [("count", "descending"), *ascending(keys)]
        order = pc.sort_indices(sortable(candidates, keys), sort_keys=ascending_keys)
        return candidates.select([*keys, "count"]).take(order[:room]), candidates.take(order[room:])

    def prepare(self, fitted: dict[str, Any], engine: Kernels) -> Any:
        table = fitted["values"].slice(0, fitted["size"])
        return engine.Lookup([table.column(n).combine_chunks() for n in table.column_names[:-1]])

    def prepare_night(
        self, of_night: pa.Table, fitted: dict[str, Any], whole: Callable[[], Any], engine: Kernels
    ) -> Any:
        return NightLookup(of_night, fitted["size"], whole, engine)

    def apply(self, columns: Columns, unit: Unit, fitted: Any, context: Context) -> Columns:
        engine = context.engine
        if self.combo and len(unit) > 1:
            return {self.name_sep.join(unit): self._ids([columns[n] for n in unit], fitted, context)}
        out = {}
        for name in unit:
            column = columns[name]
            if engine.is_list(column):
                out[name] = engine.with_leaves(column, self._ids([engine.leaves(column)], fitted, context))
            else:
                out[name] = self._ids([column], fitted, context)
        return out

    def _ids(self, columns: list[Any], lookup: Any, context: Context) -> Any:
        engine, codes = context.engine, lookup.codes(columns)
        xp = engine.xp
        wide = self.dtype == "int64" or lookup.size + FIRST + self.num_buckets > 2**31 - 1
        outside: Any = FIRST
        if self.num_buckets > 1 and any_true(codes < 0):
            outside = FIRST + (context.hashes(columns) % xp.uint32(self.num_buckets)).astype(xp.int64)
        first, null = FIRST + self.num_buckets, engine.null_rows(columns)
        dtype, counted = xp.int64 if wide else xp.int32, context.met is not None
        ids, absent = engine.vocabulary_ids(codes, null, first, outside, NULL, dtype, counted)
        if context.met is not None:
            unknown = absent - (0 if null is None else total(null))
            context.met.update(rows=len(codes), out_of_vocabulary=unknown)
        return engine.from_numbers(ids)

    def inverse(self, ids: pa.Array, fitted: Mapping[str, Any]) -> list[pa.Array]:
        """The values of ids, one array per vocabulary column; padding, null and out-of-vocabulary ids give null.

        A list of ids gives a list of values.
        """
        if is_list(ids.type):
            engine = engines.engine("pandas")
            (values,) = self.inverse(ids.flatten(), fitted)
            return [engine.host(engine.with_leaves(engine.column(ids), engine.column(values)))]
        table = fitted["values"].slice(0, fitted["size"])
        places = np.asarray(ids.cast(pa.int64()).fill_null(PADDING)) - (FIRST + self.num_buckets)
        index = pa.array(places, mask=(places < 0) | (places >= len(table)))
        return [table.column(n).combine_chunks().take(index) for n in table.column_names[:-1]]

    def counts_values(self, unit: Unit) -> bool:
        """Whether it counts the values of a unit: it does not where `vocabs` gives the vocabulary."""
        return self._own_vocabulary(unit) is None

    def _own_vocabulary(self, unit: Unit) -> list[Any] | None:
        if isinstance(self.vocabs, dict):
            return next((self.vocabs[n] for n in (*unit, self.name_sep.join(unit)) if n in self.vocabs), None)
        return self.vocabs

    def _per_column(self, value: int | dict[str, int], unit: Unit) -> int:
        if isinstance(value, dict):
            return max((value.get(n, 0) for n in (*unit, self.name_sep.join(unit))), default=0)
        return value


def _in_order(counted: pa.Table, keys: Sequence[str], engine: Kernels) -> pa.Table:
    """A table of values and counts in host memory in the order of a vocabulary."""
    table = engine.table_from_host(one_chunk(counted))
    in_order: pa.Table = engine.host_table(engine.sort_counts(table, names_of(table)[: len(keys)]))
    return in_order


def _counted(table: pa.Table, anew: bool = False) -> np.ndarray:
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


def _names(n: int) -> list[str]:
    return [f"v{i}" for i in range(n)]


def _each_once(values: Sequence[Any]) -> None:
    """Refuse a vocabulary with a null, or with a value that occurs twice."""
    seen = set()
    for value in values:
        if any(part != part for part in (value if isinstance(value, tuple) else (value,))):
            raise ValueError("vocabs holds NaN, which is read as null: write None in a tuple, and leave it out alone")
        if value is None or (isinstance(value, tuple) and all(v is None for v in value)):
            raise ValueError("vocabs holds a null, which has the id 1 anyway")
        if value in seen:
            raise ValueError(f"vocabs holds {value!r} twice")
        seen.add(value)


def _vocabulary(vocabulary: Sequence[Any], types: Sequence[pa.DataType], name: str) -> list[pa.Array]:
    """The given values as arrays of the columns' types; texts become times and decimals. DataError if they do not
    fit."""
    try:
        if len(types) == 1:
            return [_typed(list(vocabulary), types[0])]
        rows = [tuple(value) for value in vocabulary]
        if any(len(row) != len(types) for row in rows):
            raise ValueError(f"every value is a tuple of {len(types)}")
        return [_typed([row[i] for row in rows], dtype) for i, dtype in enumerate(types)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"Categorify: vocabs does not fit {name!r} of type {', '.join(dtype_name(t) for t in types)}",
            why=str(error),
            do="give values of the column's type",
        ) from None


def _typed(values: list[Any], dtype: pa.DataType) -> pa.Array:
    if any(isinstance(v, str) for v in values) and (pa.types.is_temporal(dtype) or pa.types.is_decimal(dtype)):
        if pa.types.is_duration(dtype):
            return pa.array([v if v is None else DURATION.validate_python(v) for v in values], dtype)
        return pa.array([v if v is None else str(v) for v in values], pa.string()).cast(dtype)
    array = pa.array(values, dtype)
    if not pa.types.is_floating(dtype) and array.to_pylist() != values:
        raise ValueError("a value would change")
    return array
