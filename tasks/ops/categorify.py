"""Values to ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import model_validator

from tasks import engines
from tasks.core.dtypes import dtype_name, is_list, kind_of
from tasks.core.schema import Column, Schema, Tags
from tasks.core.strict_json import JsonObject
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import any_true, total
from tasks.engines.types import CountTable, Lookup, Series
from tasks.errors import DataError, JobError, near
from tasks.ops import fixed_vocabulary, vocabulary_growth
from tasks.ops.base import Columns, Context, Entry, Grown, RefitDate, Unit
from tasks.ops.fitted_values import FittedValues
from tasks.ops.keyed import Keyed, RefitLookup, ascending_place, names_of

PADDING = 0
NULL = 1
FIRST = 2


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

    In list columns, the elements are coded: a null element is 1, a null list stays null. An all-null column
    is all 1. An infinity is a value like any other: it has an id.

    The schema has the number of ids (`cardinality`) and the size of the embedding: one row per id; the dimension is
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

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> CountTable:
        """A table of the distinct values (v0, ..) and their `count`, nulls included."""
        engine = context.engine
        if self.look_up_vocabs(unit) is not None:
            columns = engine.slice_rows(columns, 0, 0)
        if self.combo and len(unit) > 1:
            return engine.count_values([columns[n] for n in unit], [f"v{i}" for i in range(len(unit))])
        parts = [engine.leaves(columns[n]) if engine.is_list(columns[n]) else columns[n] for n in unit]
        tables = [engine.count_values([part], ["v0"]) for part in parts]
        if len(tables) == 1:
            return tables[0]
        return engine.merge_sums(engine.same_types(tables), ["v0"])

    def merge(self, a: CountTable, b: CountTable) -> CountTable:
        return self.merge_all([a, b])

    def merge_all(self, partials: Sequence[Any]) -> CountTable:
        return engines.engine_of(partials[0]).merge_sums(partials, self.key_names(partials[0]))

    def arrange(self, partial: object, unit: Unit) -> tuple[Any, dict[str, Any]]:
        """The values that are not null, in vocabulary order; how often null occurs, and how many are frequent
        enough."""
        engine = engines.engine_of(partial)
        table, nulls = engine.split_nulls(partial, self.key_names(partial))
        frequent = engine.count_at_least(table, max(self.limit(self.freq_threshold, unit), 1))
        return self.in_order([table]), {"nulls": int(nulls), "kept": int(frequent)}

    def finish(self, table: pa.Table, sums: Mapping[str, Any], unit: Unit) -> FittedValues:
        """`values`: the vocabulary with the counts, `size` values in order; `rest`: the values without an id.

        `distinct` and `occurrences` are the numbers of both together; nulls are counted apart.
        """
        vocabulary = self.look_up_vocabs(unit)
        if vocabulary is not None:
            return fixed_vocabulary.make_learned_values(vocabulary, table.schema.types[:-1], "_".join(unit))
        limit = self.limit(self.max_size, unit)
        size = sums["kept"]
        if limit:
            size = min(size, limit - self.first_id)
        known = {"distinct": len(table), "occurrences": pc.sum(table["count"]).as_py() or 0}
        values = table.slice(0, size)
        if 2 * size < len(table):  # a slice would keep, and take along, the memory of all
            values = values.take(pa.array(np.arange(size)))
        rest = {"rest": table.slice(size)} if size < len(table) else {}
        return {"values": values, "size": size, "nulls": sums["nulls"], **known, **rest}

    def prepare(self, fitted: FittedValues, engine: Kernels) -> Lookup:
        table = fitted["values"].slice(0, fitted["size"])
        return engine.Lookup([table.column(n).combine_chunks() for n in table.column_names[:-1]])

    def apply(self, columns: Columns, unit: Unit, fitted: Lookup, context: Context) -> Columns:
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

    def _ids(self, columns: list[Any], lookup: Lookup, context: Context) -> Series:
        """The ids of the rows' values; the kernel `vocabulary_ids` assigns them to the codes of the lookup."""
        engine = context.engine
        codes = lookup.find_places(columns)
        xp = engine.xp
        first = self.first_id
        wide = self.dtype == "int64" or lookup.size + first > 2**31 - 1
        outside: Any = FIRST
        if self.num_buckets > 1 and any_true(codes < 0):
            outside = FIRST + (context.hashes(columns) % xp.uint32(self.num_buckets)).astype(xp.int64)
        null = engine.null_rows(columns)
        dtype = xp.int64 if wide else xp.int32
        counted = context.met is not None
        ids, absent = engine.vocabulary_ids(codes, null, first, outside, NULL, dtype, counted)
        if context.met is not None:
            unknown = absent - (0 if null is None else total(null))
            context.met.update(rows=len(codes), out_of_vocabulary=unknown)
        return engine.from_numbers(ids)

    # ids back to values

    def inverse(self, ids: pa.Array, fitted: FittedValues) -> list[pa.Array]:
        """The values of ids, one array per vocabulary column; padding, null and out-of-vocabulary ids give null.

        A list of ids gives a list of values.
        """
        if is_list(ids.type):
            engine = engines.engine("pandas")
            (values,) = self.inverse(ids.flatten(), fitted)
            return [engine.host(engine.with_leaves(engine.column(ids), engine.column(values)))]
        table = fitted["values"].slice(0, fitted["size"])
        places = np.asarray(ids.cast(pa.int64()).fill_null(PADDING)) - self.first_id
        index = pa.array(places, mask=(places < 0) | (places >= len(table)))
        return [table.column(n).combine_chunks().take(index) for n in table.column_names[:-1]]

    # the table of values, in the order of a vocabulary

    def key_names(self, partial: object) -> list[str]:
        return names_of(partial)[:-1]

    def in_order(self, tables: Sequence[Any]) -> CountTable:
        engine = engines.engine_of(tables[0])
        return engine.sort_counts(engine.join_tables(tables), self.key_names(tables[0]))

    def place(self, row: JsonObject) -> tuple[Any, ...]:
        return (-row["count"], *ascending_place(row, [name for name in row if name != "count"]))

    # columns and types

    @model_validator(mode="after")
    def _check_parameters(self) -> Categorify:
        if self.num_buckets < 1:
            raise ValueError("num_buckets is at least 1: values out of the vocabulary need an id")
        if self.num_buckets >= 1 << 32:
            raise ValueError("num_buckets is below 2^32, the number of hashes")
        for threshold in (
            self.freq_threshold.values() if isinstance(self.freq_threshold, dict) else [self.freq_threshold]
        ):
            if threshold < 0:
                raise ValueError(f"freq_threshold {threshold} is negative")
        fixed_vocabulary.check_values(self.vocabs)
        for size in self.max_size.values() if isinstance(self.max_size, dict) else [self.max_size]:
            if size < 0 or 0 < size <= self.first_id:
                raise ValueError(
                    f"max_size {size} leaves no id for the vocabulary: at least {self.first_id + 1}, or 0 for no limit"
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
        vocabulary = self.look_up_vocabs(unit)
        if vocabulary is not None:
            leaves = [schema[n].leaf for n in unit]
            for types in [leaves] if self.combo else [[leaf] for leaf in leaves]:
                fixed_vocabulary.to_typed_columns(vocabulary, types, "_".join(unit))
        kinds = {kind_of(schema[n].leaf) for n in unit if not pa.types.is_null(schema[n].leaf)}
        if len(unit) > 1 and not self.combo and len(kinds) > 1:
            raise DataError(
                f"columns {', '.join(unit)} cannot share a vocabulary",
                why="their types differ: " + ", ".join(dtype_name(schema[n].dtype) for n in unit),
                do="give each its own vocabulary, or set combo: true to code the tuple",
            )
        if self.combo and any(is_list(schema[n].dtype) for n in unit):
            raise DataError(f"combo does not take list columns ({', '.join(unit)})", do="code the lists on their own")

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        vocabulary = self.look_up_vocabs(unit)
        size = len(vocabulary) if vocabulary is not None else None if fitted is None else int(fitted["size"])
        rows = None if size is None else size + self.first_id
        wide = self.dtype == "int64" or (rows or self.first_id) > 2**31 - 1
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

    def counts_values(self, unit: Unit) -> bool:
        """Whether it counts the values of a unit: it does not where `vocabs` gives the vocabulary."""
        return self.look_up_vocabs(unit) is None

    # a refit

    def refit_of(self, unit: Unit) -> tuple[Literal["merged", "appended", "frozen"], str]:
        if self.look_up_vocabs(unit) is not None:
            return "frozen", "the job gives the vocabulary (vocabs)"
        return self.on_refit, self.frozen_why

    def check_retuned(self, fitted: FittedValues, unit: Unit) -> None:
        limit = self.limit(self.max_size, unit)
        rows = int(fitted["size"]) + self.first_id
        if 0 < limit < rows:
            raise JobError(
                f"Categorify of {'+'.join(unit)!r}: max_size {limit:,} is less than the {rows:,} ids of the base",
                why="an id is never taken away",
                do=f"give max_size: {rows} or more, or 0 for no limit; or begin anew: base: none",
            )

    def grown(self, partial: object, fitted: FittedValues, saved: FittedValues, unit: Unit, refit: RefitDate) -> Grown:
        """The vocabulary with new values behind it (`tasks.ops.vocabulary_growth`); the dimension stays."""
        dimension = embedding_size(self.first_id + int(fitted["size"]))["dimension"]
        threshold = self.limit(self.freq_threshold, unit)
        limit = self.limit(self.max_size, unit)
        rule = vocabulary_growth.Admission(self.first_id, threshold, limit)
        return vocabulary_growth.grow(partial, {"dimension": dimension, **fitted}, saved, unit, refit, rule)

    def prepare_refit(
        self, refit_table: pa.Table, fitted: FittedValues, whole: Callable[[], Any], engine: Kernels
    ) -> RefitLookup:
        return RefitLookup(refit_table, fitted["size"], whole, engine)

    # parameters by unit

    def look_up_vocabs(self, unit: Unit) -> list[Any] | None:
        """The vocabulary that `vocabs` gives for a unit, in place of a learned one."""
        if isinstance(self.vocabs, dict):
            return next((self.vocabs[n] for n in (*unit, self.name_sep.join(unit)) if n in self.vocabs), None)
        return self.vocabs

    def limit(self, value: int | dict[str, int], unit: Unit) -> int:
        """The number of `freq_threshold` or `max_size` that holds for a unit; 0 sets none."""
        if isinstance(value, dict):
            return max((value.get(n, 0) for n in (*unit, self.name_sep.join(unit))), default=0)
        return value

    @property
    def first_id(self) -> int:
        """The id of the first value of the vocabulary."""
        return FIRST + self.num_buckets
