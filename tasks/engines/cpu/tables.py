"""Tables of distinct keys and numbers, on the CPU: split by hash, joined, sliced, sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.schema import Schema
from tasks.engines.algorithms import short_strings
from tasks.engines.algorithms.arrow_arrays import build, raw
from tasks.engines.algorithms.host_tables import ascending, sortable
from tasks.engines.convert import host_files
from tasks.engines.cpu.columns import array
from tasks.engines.cpu.groups import hash_columns

SMALL = 1 << 16  # tables with fewer rows are sorted by Arrow
COMMON = 255  # the largest count that one byte holds; few values have larger counts


def split_table(table: pa.Table, keys: Sequence[str], parts: int) -> list[pa.Table]:
    """The rows in `parts` tables (a power of two up to 256), by the first bits of the hash of the keys; copies."""
    bits = parts.bit_length() - 1
    place = (hash_columns([table.column(k) for k in keys]).astype(np.uint64) << np.uint64(bits)) >> np.uint64(32)
    place = place.astype(np.uint8)
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place, minlength=parts))
    return [table.take(pa.array(order[end - n : end])) for end, n in zip(ends, np.diff(ends, prepend=0), strict=True)]


def join_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables of the same columns."""
    return pa.concat_tables(tables)


def table_from_host(table: pa.Table) -> pa.Table:
    """Make the engine's table of keys and numbers from one in host memory."""
    return table


def slice_table(table: pa.Table, start: int, stop: int) -> pa.Table:
    """Return rows [start, stop)."""
    return table.slice(start, stop - start)


def sort_counts(counts: pa.Table, names: Sequence[str]) -> pa.Table:
    """Sort rows by count descending, then by value ascending: strings by bytes, false before true, nulls first."""
    if len(counts) >= SMALL and len(names) == 1 and not counts.column(0).null_count:
        values = array(counts.column(0))
        if _has_fixed_width(values.type) or pa.types.is_string(values.type):
            return _sort_by_counting(values, raw(array(counts.column("count"))), counts)
    order = pc.sort_indices(sortable(counts, names), sort_keys=[("count", "descending"), *ascending(names)])
    return counts.take(order)


def _has_fixed_width(dtype: pa.DataType) -> bool:
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_temporal(dtype)


def _sort_by_counting(values: pa.Array, counts: np.ndarray, table: pa.Table) -> pa.Table:
    """Sort rows by count descending, then value: one stable sort by count, then a sort of the values of each count."""
    names = table.column_names
    common = np.where(counts <= COMMON, COMMON - counts, 0).astype(np.uint8)
    frequent = np.flatnonzero(counts > COMMON)
    keys = [("count", "descending"), *ascending(names[:1])]
    head = table.take(pa.array(frequent))
    head = head.take(pc.sort_indices(head, sort_keys=keys))
    order = np.argsort(common, kind="stable")
    if len(frequent):
        order = order[counts[order] <= COMMON]
    sizes = np.bincount(common[order], minlength=COMMON)
    runs = [(end - n, end) for end, n in zip(np.cumsum(sizes), sizes, strict=True) if n]
    width = short_strings.measure_width(values)
    if pa.types.is_string(values.type) and not width:
        for start, stop in runs:
            order[start:stop] = order[start:stop][order_of_strings(values.take(pa.array(order[start:stop])))]
        tail = values.take(pa.array(order))
    else:
        numbers = short_strings.to_numbers(values, width) if width else raw(values)
        numbers = numbers[order]
        for start, stop in runs:
            numbers[start:stop].sort()
        tail = short_strings.to_strings(numbers, width) if width else build(numbers, dtype=values.type)
    rest = pa.table([tail, pa.array(counts[order])], schema=table.schema)
    return pa.concat_tables([head, rest]) if len(head) else rest


def order_of_strings(values: pa.Array) -> np.ndarray:
    """Sort the places of non-null strings by their bytes: by the first 8 bytes, then the ties by all bytes."""
    if len(values) < 1 << 10:
        return raw(pc.sort_indices(values)).astype(np.int64)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)[values.offset : values.offset + len(values) + 1]
    prefix = _prefixes(offsets.astype(np.int64), values.buffers()[2])
    order = np.argsort(prefix)
    prefix = prefix[order]
    same = prefix[1:] == prefix[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    if len(tied) > len(values) // 2:
        return raw(pc.sort_indices(values)).astype(np.int64)
    if len(tied):
        rows = order[tied]
        groups = pa.table({"prefix": prefix[tied], "value": values.take(pa.array(rows))})
        by = pc.sort_indices(groups, sort_keys=[("prefix", "ascending"), ("value", "ascending")])
        order[tied] = rows[raw(by)]
    return order


def _prefixes(offsets: np.ndarray, buffer: pa.Buffer | None) -> np.ndarray:
    """Return the first 8 bytes of each string as a number that sorts like them; shorter strings padded with zeros."""
    first = int(offsets[0])
    last = int(offsets[-1])
    data = np.zeros(last - first + 8, dtype=np.uint8)
    if buffer is not None:
        data[: last - first] = np.frombuffer(buffer, dtype=np.uint8)[first:last]
    word_at = np.ndarray(last - first + 1, np.dtype(">u8"), data, strides=(1,))
    words = word_at[offsets[:-1] - first].astype(np.uint64)
    short = np.maximum(8 - np.diff(offsets), 0).astype(np.uint64) * np.uint64(8)
    mask = np.where(short >= 64, np.uint64(0), ~np.uint64(0) << np.minimum(short, np.uint64(63)))
    return words & mask


def host_columns(table: pa.Table | dict[str, Any], schema: Schema) -> pa.Table:
    """Copy the columns of the schema to host memory, in its types."""
    columns = {name: array(table[name]) if isinstance(table, dict) else table.column(name) for name in schema}
    return host_files.conform(pa.table(columns), schema)
