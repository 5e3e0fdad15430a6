"""Tables of keys in host memory: the rows of each key, and the keys in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms.arrow_arrays import one_array, raw


def plain(values: pa.Array) -> pa.Array:
    """The values without dictionary encoding."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def host_table(table: pa.Table) -> pa.Table:
    """The table with each column in one chunk and without dictionary encoding."""
    columns = [plain(one_array(c)) for c in table.columns]
    return pa.table(columns, table.column_names, metadata=table.schema.metadata)


def factorize(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """(code of each row, distinct values): the code is the place of the value. Null is a value of its own, the last."""
    if not pa.types.is_dictionary(array.type):
        array = _with_one_zero(array).dictionary_encode()
    elif array.dictionary.null_count:
        array = array.dictionary_decode().dictionary_encode()
    values = array.dictionary
    codes = raw(array.indices)
    if array.null_count:
        codes = np.where(array.is_valid().to_numpy(zero_copy_only=False), codes, len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return codes, values


def _with_one_zero(values: pa.Array) -> pa.Array:
    """The values with 0.0 for -0.0."""
    if pa.types.is_floating(values.type):
        return pc.add(values, pa.scalar(0.0, values.type))
    return values


def group_rows(arrays: Sequence[pa.Array]) -> tuple[np.ndarray, list[pa.Array]]:
    """(group of each row, distinct keys as one array per column); a null is a key like any other."""
    codes, values = factorize(arrays[0])
    keys = [values]
    codes = codes.astype(np.int64)
    for array in arrays[1:]:
        more, values = factorize(array)
        distinct, codes = np.unique(codes * np.int64(len(values)) + more, return_inverse=True)
        keys = [k.take(pa.array(distinct // len(values))) for k in keys] + [
            values.take(pa.array(distinct % len(values)))
        ]
    if len(arrays) == 1:
        used = np.bincount(codes, minlength=len(values)) > 0
        codes = (np.cumsum(used) - 1)[codes]
        keys = [values.filter(pa.array(used))]
    return codes, keys


def ascending(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Arrow's sort keys for these columns: ascending, nulls first."""
    return [(name, "ascending", "at_start") for name in names]


def sortable(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The table with boolean key columns as uint8, which Arrow sorts."""
    for name in names:
        i = table.column_names.index(name)
        if pa.types.is_boolean(table.column(i).type):
            table = table.set_column(i, name, table.column(i).cast(pa.uint8()))
    return table


def sort_keys(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows sorted by the key columns, ascending: strings by bytes, false before true, nulls first."""
    return table.take(pc.sort_indices(sortable(table, names), sort_keys=ascending(names)))


def sort_groups(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, np.ndarray]:
    """(the distinct keys sorted as by `sort_keys`; for each row of the table the place of its key)."""
    if not len(table):
        return table.select(list(keys)), np.zeros(0, dtype=np.int64)
    codes, uniques = group_rows([one_array(table.column(k)) for k in keys])
    distinct = pa.table(list(uniques), list(keys))
    order = pc.sort_indices(sortable(distinct, keys), sort_keys=ascending(keys))
    rank = np.empty(len(order), dtype=np.int64)
    rank[raw(order).astype(np.int64)] = np.arange(len(order))
    return host_table(distinct.take(order)), rank[codes]
