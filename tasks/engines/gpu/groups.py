"""Counting and summing by value, on the GPU. Tables are cuDF DataFrames: key columns first, then numbers.

On the device, the label of a key column of a type that cuDF lacks (a date) is its name, `:` and the name of the type.
Functions that take the names of the keys therefore use only how many there are: keys come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import cudf
import cupy
import pyarrow as pa
import pylibcudf as plc

from tasks.engines.algorithms import exact_sums
from tasks.engines.algorithms.arrow_arrays import one_array
from tasks.engines.algorithms.reductions import extremes, refuse_wrapped, sums_fit, total
from tasks.engines.convert.type_widening import widest
from tasks.engines.gpu.columns import (
    Column,
    cast,
    column,
    device,
    dtype,
    from_numbers,
    from_pylibcudf,
    host,
    is_mark,
    numbers,
    raw,
    rebuilt,
    synchronize,
    take_values,
)
from tasks.engines.gpu.kernels import canonical_cudf
from tasks.engines.gpu.kernels.block_reductions import segment_sums
from tasks.engines.gpu.kernels.column_arrays import array_of, gather_columns, is_float, valid_in
from tasks.engines.gpu.kernels.histogram import histogram
from tasks.engines.gpu.kernels.string_tables import count_strings, is_text
from tasks.engines.gpu.tables import make_frame, make_frame_like, parts_of
from tasks.engines.hashing import murmur3

DENSE = 1 << 26  # counts of a table this long fit anywhere


def hash_columns(columns: Sequence[Column], seed: int = 0, whole: bool = False) -> cupy.ndarray:
    """MurmurHash3_x86_32 of each row as uint32; several columns: the hash of their hashes. With `whole`, whole floats
    hash as integers."""
    hashes = [canonical_cudf.hash_series(c, seed, dtype(c), whole) for c in columns]
    return hashes[0] if len(hashes) == 1 else murmur3.hash_words(hashes, seed, cupy)


def hash_rows(rows: cupy.ndarray, seed: int) -> cupy.ndarray:
    """MurmurHash3_x86_32 of row numbers as int64, uint32."""
    return murmur3.hash_fixed(rows.view(cupy.uint64), seed, cupy)


def canonical(values: Column) -> Column:
    """The values with 0.0 for -0.0, so that both are one key."""
    if getattr(values.dtype, "kind", "") != "f":
        return values
    data, valid = numbers(values)
    return from_numbers(data + data.dtype.type(0.0), valid)


def _label(name: str, values: Column) -> str:
    return f"{name}:{values.name}" if is_mark(values.name) else name


def key_column(table: cudf.DataFrame, i: int = 0) -> Column:
    """Column `i` of a table as a Series; its name is the mark of its type."""
    label = table.columns[i]
    values = table[label]
    values.name = label.partition(":")[2] or None
    return values


def _make_table(names: Sequence[str], columns: Sequence[Column]) -> cudf.DataFrame:
    synchronize()
    known = {_label(n, c): c for n, c in zip(names, columns, strict=True)}
    return make_frame(list(known), [device(c) for c in columns], known.__getitem__)


def count_values(columns: Sequence[Column], names: Sequence[str]) -> cudf.DataFrame:
    """The distinct rows of the columns, nulls too, and how often each occurs: columns `names` and `count` (int64)."""
    if len(columns) == 1:
        counted = _count_dense(columns[0])
        if counted is None and is_text(columns[0]):
            counted = _count_strings(columns[0])
        if counted is not None:
            return _make_table([names[0], "count"], counted)
    keys = [canonical(c) for c in columns]
    grouped = plc.groupby.GroupBy(plc.Table([device(k) for k in keys]), plc.types.NullPolicy.INCLUDE)
    request = plc.groupby.GroupByRequest(device(keys[0]), [plc.aggregation.count(plc.types.NullPolicy.INCLUDE)])
    distinct, (counts,) = grouped.aggregate([request])
    distinct_keys = [rebuilt(c, k) for c, k in zip(distinct.columns(), keys, strict=True)]
    return _make_table([*names, "count"], [*distinct_keys, from_pylibcudf(counts.columns()[0]).astype("int64")])


def _count_strings(values: Column) -> tuple[Column, Column] | None:
    """Counts of strings by a table; None if too many are distinct."""
    if not len(values):
        return values, from_numbers(cupy.zeros(0, dtype=cupy.int64))
    strings = count_strings(values)
    return strings and (take_values(values, strings[0], nullify=True), from_numbers(strings[1]))


def _count_dense(values: Column) -> tuple[Column, Column] | None:
    """Counts of integers of a small range by a table; None for other columns."""
    if not pa.types.is_integer(dtype(values)) or len(values) == values.null_count:
        return None
    data, valid = numbers(values)
    valid_numbers = data if valid is None else data[valid]
    low, high = extremes(valid_numbers)
    if high - low >= max(DENSE, 2 * len(valid_numbers)):
        return None
    wide = cupy.uint64 if valid_numbers.dtype.kind == "u" else cupy.int64
    counts = histogram(valid_numbers.astype(wide, copy=False) - wide(low), high - low + 1)
    present = cupy.flatnonzero(counts)
    distinct = present.astype(data.dtype) + data.dtype.type(low)
    counts = counts[present]
    if valid is None:
        return from_numbers(distinct), from_numbers(counts)
    mask = cupy.ones(len(present) + 1, dtype=bool)
    mask[-1] = False
    more = cupy.concatenate([counts, cupy.asarray([values.null_count], dtype=cupy.int64)])
    return from_numbers(cupy.concatenate([distinct, cupy.zeros(1, data.dtype)]), mask), from_numbers(more)


def sort_counts(counts: cudf.DataFrame, names: Sequence[str]) -> cudf.DataFrame:
    """By count descending, then by value ascending: strings by bytes, false before true, nulls first."""
    parts = dict(zip(counts, parts_of(counts), strict=True))
    keys = [parts["count"], *list(parts.values())[: len(names)]]
    order = [plc.types.Order.DESCENDING, *[plc.types.Order.ASCENDING] * len(names)]
    nulls = [plc.types.NullOrder.BEFORE] * len(keys)
    return rows_of(counts, array_of(plc.sorting.sorted_order(plc.Table(keys), order, nulls)))


def rows_of(table: cudf.DataFrame, index: cupy.ndarray) -> cudf.DataFrame:
    """Rows of a table by number."""
    return make_frame_like(table, gather_columns(parts_of(table), index))


def concat_rows(tables: Sequence[cudf.DataFrame]) -> cudf.DataFrame:
    """The rows of tables of the same columns, one after another."""
    return tables[0] if len(tables) == 1 else make_frame_like(tables[0], _concat_columns(tables))


def _concat_columns(tables: Sequence[cudf.DataFrame]) -> list[plc.Column]:
    return list(plc.concatenate.concatenate([plc.Table(parts_of(t)) for t in tables]).columns())


def merge_sums(tables: Sequence[cudf.DataFrame], names: Sequence[str]) -> cudf.DataFrame:
    """Tables of keys and numbers as one table with each key once; numbers of equal keys are added in table order."""
    tables = [t for t in tables if len(t)] or list(tables[:1])
    if len(tables) == 1:
        return tables[0]
    if any(is_float(part) for part in parts_of(tables[0])[len(names) :]):
        return _merge_float_sums(tables, len(names))
    return _merge_integer_sums(tables, len(names))


def _merge_float_sums(tables: Sequence[cudf.DataFrame], keys: int) -> cudf.DataFrame:
    """Counts, exact sums of integers, and those of floats as two columns, `<value>_sum` and `<value>_rest`."""
    parts = _concat_columns(tables)
    names = list(tables[0].columns)[keys:]
    distinct, places = plc.transform.encode(plc.Table(parts[:keys]))
    codes = array_of(places).astype(cupy.int32)
    groups = distinct.num_rows()
    values = {name: array_of(part) for name, part in zip(names, parts[keys:], strict=True)}
    out: dict[str, cupy.ndarray] = {}
    for name, data in values.items():
        if name.endswith("_sum") and data.dtype.kind == "f":
            rest = f"{name[:-4]}_rest"
            both = cupy.concatenate([data, values[rest]])
            twice = cupy.concatenate([codes, codes])
            out[name], out[rest] = _exact_sums(twice, groups, both, 2 * len(tables))
        elif name not in out:
            out[name] = _int_sums(codes, groups, data)
    return make_frame_like(tables[0], [*distinct.columns(), *(device(from_numbers(out[name])) for name in names)])


def _exact_sums(
    codes: cupy.ndarray, groups: int, values: cupy.ndarray, most_rows: int
) -> tuple[cupy.ndarray, cupy.ndarray]:
    counts = histogram(codes, groups)
    return exact_sums.sums(values[cupy.argsort(codes)], lambda terms: segment_sums(terms, counts), most_rows, cupy)


def _int_sums(codes: cupy.ndarray, groups: int, data: cupy.ndarray) -> cupy.ndarray:
    """Sums of integers by group, which are refused beyond int64."""
    sums = cupy.zeros(groups, dtype=cupy.uint64)  # wraps as int64 does
    cupy.add.at(sums, codes, data.astype(cupy.int64).view(cupy.uint64))
    sums = sums.view(cupy.int64)
    if not sums_fit(data, len(data)):
        counts = histogram(codes, groups)
        refuse_wrapped(sums, segment_sums(data.astype(cupy.float64)[cupy.argsort(codes)], counts))
    return sums


def _merge_integer_sums(tables: Sequence[cudf.DataFrame], keys: int) -> cudf.DataFrame:
    parts = _concat_columns(tables)
    names = list(tables[0].columns)[keys:]
    numbers_of = parts[keys:]
    sums = [array_of(p) for n, p in zip(names, numbers_of, strict=True) if n.endswith("_sum") and not is_float(p)]
    if not all(sums_fit(values, len(tables)) for values in sums):
        values = dict(enumerate(map(from_pylibcudf, numbers_of)))
        distinct, named_sums = _sums_by_encoding(plc.Table(parts[:keys]), values)
        columns = [device(named_sums[f"{i}_sum"]) for i in range(len(names))]
        return make_frame_like(tables[0], [*distinct.columns(), *columns])
    grouped = plc.groupby.GroupBy(plc.Table(parts[:keys]), plc.types.NullPolicy.INCLUDE)
    requests = [plc.groupby.GroupByRequest(part, [plc.aggregation.sum()]) for part in numbers_of]
    distinct, aggregated = grouped.aggregate(requests)
    synchronize()
    return make_frame_like(tables[0], [*distinct.columns(), *(s.columns()[0] for s in aggregated)])


def group_sums(keys: Sequence[Column], names: Sequence[str], values: dict[str, Column]) -> cudf.DataFrame:
    """Per distinct key: `<value>_count` of non-null values and `<value>_sum`; integers and booleans exactly in int64.

    Key columns are called `names`. A sum beyond int64 is an error. Sums of floats are exact: `<value>_sum` and what
    rounding took of it, `<value>_rest`.
    """
    keys = [canonical(k) for k in keys]
    key_table = plc.Table([device(k) for k in keys])
    if any(raw(v.iloc[:0]).dtype.kind == "f" or not sums_fit(raw(v), len(v)) for v in values.values()):
        distinct, sums = _sums_by_encoding(key_table, values)
    else:
        distinct, sums = _sums_by_hash(key_table, values)
    distinct_keys = [rebuilt(c, k) for c, k in zip(distinct.columns(), keys, strict=True)]
    return _make_table([*names, *sums], [*distinct_keys, *sums.values()])


def _sums_by_hash(keys: plc.Table, values: dict[str, Column]) -> tuple[plc.Table, dict[str, Column]]:
    """Exact sums of integers in any order."""
    wanted = [plc.aggregation.count(plc.types.NullPolicy.EXCLUDE), plc.aggregation.sum()]
    requests = [plc.groupby.GroupByRequest(device(_as_int64(v)), wanted) for v in values.values()]
    distinct, aggregated = plc.groupby.GroupBy(keys, plc.types.NullPolicy.INCLUDE).aggregate(requests)
    out = {}
    for name, table in zip(values, aggregated, strict=True):
        counts, sums = (from_pylibcudf(c) for c in table.columns())
        out[f"{name}_count"] = counts.astype("int64")
        out[f"{name}_sum"] = from_numbers(cupy.where(counts.values > 0, raw(sums), 0))
    return distinct, out


def _as_int64(values: Column) -> Column:
    data, valid = numbers(values)
    return from_numbers(data.astype(cupy.int64), valid)


def _sums_by_encoding(keys: plc.Table, values: Mapping[Any, Column]) -> tuple[plc.Table, dict[str, Column]]:
    """Sums of floats in a fixed order; sums of integers, which are refused beyond int64."""
    distinct, places = plc.transform.encode(keys)
    codes = array_of(places).astype(cupy.int32)
    groups = distinct.num_rows()
    out = {}
    for name, value in values.items():
        data, valid = numbers(value)
        valid_codes = codes if valid is None else codes[valid]
        data = data if valid is None else data[valid]
        counts = histogram(valid_codes, groups)
        out[f"{name}_count"] = from_numbers(counts)
        if data.dtype.kind == "f":
            most_rows = int(counts.max()) if groups else 0
            sums = _exact_sums(valid_codes, groups, data.astype(cupy.float64), most_rows)
            out[f"{name}_sum"], out[f"{name}_rest"] = map(from_numbers, sums)
        else:
            out[f"{name}_sum"] = from_numbers(_int_sums(valid_codes, groups, data))
    return distinct, out


def null_rows(columns: Sequence[Column]) -> cupy.ndarray | None:
    """Which rows are null in all columns; None if no row is."""
    return _null_in([device(values) for values in columns])


def _null_in(columns: Sequence[plc.Column]) -> cupy.ndarray | None:
    masks = []
    for values in columns:
        valid = valid_in(values)
        if valid is None:
            return None
        masks.append(~valid)
    null = masks[0]
    for mask in masks[1:]:
        null = null & mask
    return null


def same_types(tables: Sequence[cudf.DataFrame]) -> list[cudf.DataFrame]:
    """Count tables of columns that share a vocabulary, with the widest of their types."""
    if len(tables) == 1:
        return list(tables)
    columns = [key_column(t) for t in tables]
    types = list(dict.fromkeys(dtype(c) for c in columns))
    if len(types) == 1:
        return list(tables)
    wide = widest(types)
    name = tables[0].columns[0].partition(":")[0]
    return [_make_table([name, "count"], [cast(c, wide), t["count"]]) for c, t in zip(columns, tables, strict=True)]


def split_nulls(table: cudf.DataFrame, keys: Sequence[str]) -> tuple[cudf.DataFrame, int]:
    """(the table without the row in which all keys are null, that row's count)."""
    parts = dict(zip(table, parts_of(table), strict=True))
    null = _null_in(list(parts.values())[: len(keys)]) if len(table) else None
    if null is None:
        return table, 0
    return rows_of(table, cupy.flatnonzero(~null)), int(array_of(parts["count"])[null].sum())


def count_at_least(table: cudf.DataFrame, threshold: int) -> int:
    """How many rows have a count of at least `threshold`."""
    return total(table["count"].values >= threshold) if len(table) else 0


def host_table(table: cudf.DataFrame | Mapping[str, Column]) -> pa.Table:
    """The table in host memory, columns in one chunk each."""
    if isinstance(table, Mapping):  # the rows of a file
        return pa.table({name: host(table[name]) for name in table})
    columns: list[Any] = [host(key_column(table, i)) for i in range(len(table.columns))]
    return pa.table(columns, [label.partition(":")[0] for label in table.columns])


def table_from_host(table: pa.Table) -> cudf.DataFrame:
    """A table of keys and numbers in host memory as a table of the engine."""
    return _make_table(table.column_names, [column(one_array(c)) for c in table.columns])


def split_table(table: cudf.DataFrame, keys: Sequence[str], parts: int) -> list[cudf.DataFrame]:
    """The rows in `parts` tables (a power of two) by the first bits of the keys' hash, each in memory of its own."""
    place = hash_columns([key_column(table, i) for i in range(len(keys))]).astype(cupy.uint64)
    place = ((place * cupy.uint64(parts)) >> cupy.uint64(32)).astype(cupy.int32)
    order = cupy.argsort(place)
    edges = cupy.searchsorted(place[order], cupy.arange(parts + 1, dtype=cupy.int32)).get().tolist()
    return [rows_of(table, order[start:stop]) for start, stop in pairwise(edges)]


def join_tables(tables: Sequence[cudf.DataFrame]) -> cudf.DataFrame:
    """The rows of tables of the same columns, one after another."""
    return concat_rows([t for t in tables if len(t)] or list(tables[:1]))
