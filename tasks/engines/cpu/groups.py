"""Hashes, counts and sums by value, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms import exact_sums, short_strings
from tasks.engines.algorithms.arrow_arrays import build, find_valid_rows, raw
from tasks.engines.algorithms.host_tables import factorize, group_rows
from tasks.engines.algorithms.reductions import refuse_wrapped
from tasks.engines.convert.type_widening import widest
from tasks.engines.cpu.columns import Column, array
from tasks.engines.hashing import murmur3

DENSE = 1 << 22  # integers of a range up to this are counted in a table with a place per integer
SAMPLE = 1 << 14  # values that show whether most values are distinct


def hash_columns(columns: Sequence[Column], seed: int = 0, whole: bool = False) -> np.ndarray:
    """MurmurHash3_x86_32 of each row as uint32; for several columns the hash of their hashes. With `whole`, whole
    floats hash as integers."""
    hashes = [murmur3.hash_array(array(c), seed, whole) for c in columns]
    return hashes[0] if len(hashes) == 1 else murmur3.hash_words(hashes, seed, np)


def to_key_bits(values: pa.Array) -> np.ndarray:
    """int64 keys that are equal for equal values; any key for a null."""
    if pa.types.is_floating(values.type):
        return (raw(values).astype(np.float64) + 0.0).view(np.int64)
    return raw(values).astype(np.int64, copy=False)


def count_values(columns: Sequence[Column], names: Sequence[str]) -> pa.Table:
    """The distinct rows of the columns, nulls included, and the number of each: columns `names` and `count` (int64)."""
    arrays = [array(c) for c in columns]
    if len(arrays) == 1:
        values, counts = _count_one(arrays[0])
        return pa.table([values, pa.array(counts)], [names[0], "count"])
    codes, uniques = group_rows(arrays)
    counts = np.bincount(codes, minlength=len(uniques[0]))
    return pa.table([*uniques, pa.array(counts.astype(np.int64))], [*names, "count"])


def _count_one(arrow: pa.Array) -> tuple[pa.Array, np.ndarray]:
    if pa.types.is_integer(arrow.type) and len(arrow) > arrow.null_count:
        low, high = pc.min_max(arrow).values()
        low, span = low.as_py(), high.as_py() - low.as_py() + 1
        if span <= max(DENSE, 2 * len(arrow)):
            numbers = raw(arrow.drop_null() if arrow.null_count else arrow)
            wide = np.uint64 if numbers.dtype.kind == "u" else np.int64
            counts = np.bincount(
                (numbers.astype(wide, copy=False) - wide(low)).astype(np.int64, copy=False), minlength=span
            )
            present = np.flatnonzero(counts)
            values = build((present.astype(wide) + wide(low)).astype(numbers.dtype), dtype=arrow.type)
            return _with_null(values, counts[present].astype(np.int64), arrow.null_count)
        if arrow.null_count == 0 and _mostly_distinct(raw(arrow)):
            numbers, counts = _count_numbers(raw(arrow))
            return build(numbers, dtype=arrow.type), counts
    if width := short_strings.measure_width(arrow):
        numbers, counts = _count_numbers(short_strings.to_numbers(arrow, width))
        return _with_null(short_strings.to_strings(numbers, width), counts, arrow.null_count)
    codes, values = factorize(arrow)
    counts = np.bincount(codes, minlength=len(values)).astype(np.int64)
    present = np.flatnonzero(counts)
    return values.take(pa.array(present)), counts[present]


def _mostly_distinct(values: np.ndarray) -> bool:
    """Say whether there are many values and most of a sample are distinct: sorting them is then faster than hashing."""
    sample = values[:: max(len(values) // SAMPLE, 1)]
    return len(values) >= SAMPLE and 2 * len(np.unique(sample)) > len(sample)


def _count_numbers(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the distinct numbers, ascending; how often each occurs)."""
    numbers = np.sort(numbers)
    first = _find_changes(numbers)
    return numbers[first], np.diff(first, append=len(numbers))


def _find_changes(numbers: np.ndarray) -> np.ndarray:
    """Find the places, among sorted numbers, where another number begins."""
    changes = np.empty(len(numbers), dtype=bool)
    changes[:1] = True
    np.not_equal(numbers[1:], numbers[:-1], out=changes[1:])
    return np.flatnonzero(changes)


def _with_null(values: pa.Array, counts: np.ndarray, nulls: int) -> tuple[pa.Array, np.ndarray]:
    """Add a null and how often it occurs to distinct values and their counts, if it occurs."""
    if not nulls:
        return values, counts
    return pa.concat_arrays([values, pa.nulls(1, values.type)]), np.append(counts, nulls)


def merge_sums(tables: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
    """Tables of keys and numbers as one table with each key once: the sums of the numbers, added in table order."""
    tables = [t for t in tables if len(t)] or list(tables[:1])
    if len(tables) == 1:
        return tables[0]
    joined = pa.concat_tables(tables)
    if joined.column_names == [names[0], "count"]:
        values = array(joined.column(0))
        if width := short_strings.measure_width(values):
            return pa.table(_merge_short_strings(values, width, raw(array(joined["count"]))), joined.column_names)
    codes, keys = group_rows([array(joined.column(n)) for n in names])
    groups = len(keys[0])
    out = dict(zip(names, keys, strict=True))
    for name in joined.column_names[len(names) :]:
        values = raw(array(joined.column(name)))
        if name.endswith("_sum") and values.dtype.kind == "f":
            rest = f"{name[:-4]}_rest"
            parts = [(raw(array(t.column(name))), raw(array(t.column(rest)))) for t in tables]
            out[name], out[rest] = map(build, exact_sums.merge_group_sums(codes, groups, parts))
        elif name not in out:
            out[name] = build(_sum_by(codes, groups, values))
    return pa.table({name: out[name] for name in joined.column_names})


def _merge_short_strings(values: pa.Array, width: int, counts: np.ndarray) -> list[pa.Array]:
    """[distinct strings, the sum of their counts] of strings that tables have in common.

    The sort is a merge: the strings of most tables ascend already.
    """
    nulls = 0
    valid = find_valid_rows(values)
    if valid is not None:
        nulls = int(counts[~valid].sum())
        counts = counts[valid]
    numbers = short_strings.to_numbers(values, width)
    order = np.argsort(numbers, kind="stable")
    numbers = numbers.take(order)
    first = _find_changes(numbers)
    sums = np.add.reduceat(counts.take(order), first)
    merged, sums = _with_null(short_strings.to_strings(numbers[first], width), sums, nulls)
    return [merged, build(sums)]


def _exact_sums(codes: np.ndarray, groups: int, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    return exact_sums.sums(values, lambda layer: np.bincount(codes, weights=layer, minlength=groups) + 0.0, most, np)


def _sum_by(codes: np.ndarray, groups: int, values: np.ndarray) -> np.ndarray:
    """Exact sums of integers by group; DataError if a sum is beyond int64."""
    largest = max(-int(values.min()), int(values.max())) if len(values) else 0
    if largest * len(values) < 1 << 53:
        return np.bincount(codes, weights=values, minlength=groups).astype(np.int64)
    sums = np.zeros(groups, dtype=np.int64)
    np.add.at(sums, codes, values.astype(np.int64))
    if largest * len(values) >= 1 << 63:
        refuse_wrapped(sums, np.bincount(codes, weights=values, minlength=groups))
    return sums


def group_sums(keys: Sequence[Column], names: Sequence[str], values: dict[str, Column]) -> pa.Table:
    """Compute for each distinct key the number of non-null values, `<value>_count`, and their sum, `<value>_sum`.

    The key columns get the names `names`. Integers and booleans are summed in int64; DataError for a sum beyond it.
    Sums of floats are exact: `<value>_sum` and its rounding error, `<value>_rest`.
    """
    codes, uniques = group_rows([array(k) for k in keys])
    groups = len(uniques[0])
    out: dict[str, Any] = dict(zip(names, uniques, strict=True))
    for name, value in values.items():
        arrow = array(value)
        valid_codes = codes
        data = raw(arrow)
        valid = find_valid_rows(arrow)
        if valid is not None:
            valid_codes = codes[valid]
            data = data[valid]
        counts = np.bincount(valid_codes, minlength=groups).astype(np.int64)
        out[f"{name}_count"] = build(counts)
        if data.dtype.kind == "f":
            sums = _exact_sums(valid_codes, groups, data.astype(np.float64), int(counts.max(initial=0)))
            out[f"{name}_sum"], out[f"{name}_rest"] = map(build, sums)
        else:
            out[f"{name}_sum"] = build(_sum_by(valid_codes, groups, data))
    return pa.table(out)


def hash_rows(rows: np.ndarray, seed: int) -> np.ndarray:
    """MurmurHash3_x86_32 of row numbers (as int64), uint32."""
    return murmur3.hash_fixed(rows.view(np.uint64), seed, np)


def null_rows(columns: Sequence[Column]) -> np.ndarray | None:
    """Which rows are null in all columns; None if a column has no nulls."""
    null = None
    for values in columns:
        valid = find_valid_rows(array(values))
        if valid is None:
            return None
        null = ~valid if null is None else null & ~valid
    return null


def same_types(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The count tables of columns that share a vocabulary, all with keys of the widest of their types."""
    types = list(dict.fromkeys(t.schema.types[0] for t in tables))
    if len(types) == 1:
        return list(tables)
    wide = widest(types)
    return [t.set_column(0, t.column_names[0], t.column(0).cast(wide)) for t in tables]


def split_nulls(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, int]:
    """Return (the table without the row whose keys are all null, the count of that row)."""
    null = null_rows([table.column(k) for k in keys]) if len(table) else None
    if null is None:
        return table, 0
    return table.filter(pa.array(~null)), int(raw(array(table.column("count")))[null].sum())


def count_at_least(table: pa.Table, threshold: int) -> int:
    """Count the rows whose count is at least `threshold`."""
    return int((raw(array(table.column("count"))) >= threshold).sum())
