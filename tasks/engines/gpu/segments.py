"""Rows by group, on the GPU: the group of each row, and sums and extremes of the rows of a group."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import pyarrow as pa
import pylibcudf as plc

from tasks.engines.algorithms import exact_sums
from tasks.engines.gpu.columns import Column, device, host, rebuilt
from tasks.engines.gpu.groups import canonical
from tasks.engines.gpu.kernels.block_reductions import segment_sums
from tasks.engines.gpu.kernels.column_arrays import array_of
from tasks.engines.gpu.kernels.histogram import histogram


def group_codes(keys: Sequence[Column], names: Sequence[str]) -> tuple[cupy.ndarray, pa.Table]:
    """(the group of each row, int64; the groups' keys as a table in host memory). A null is a key like any other."""
    keys = [canonical(k) for k in keys]
    distinct, codes = plc.transform.encode(plc.Table([device(k) for k in keys]))
    columns: list[pa.Array] = [host(rebuilt(c, k)) for c, k in zip(distinct.columns(), keys, strict=True)]
    return array_of(codes).astype(cupy.int64), pa.table(columns, list(names))


def _count_group_rows(codes: cupy.ndarray, groups: int) -> cupy.ndarray:
    """How many rows each group has, int64."""
    return histogram(codes, groups)


def sum_by(codes: cupy.ndarray, groups: int, values: cupy.ndarray) -> cupy.ndarray:
    """Sums by group: float64 along a fixed tree, integers exactly modulo 2^64 in int64 or uint64."""
    order = cupy.argsort(codes)  # a stable radix sort
    if values.dtype.kind == "f":
        return segment_sums(values.astype(cupy.float64)[order], _count_group_rows(codes, groups))
    wide = cupy.uint64 if values.dtype.kind == "u" else cupy.int64
    running = cupy.zeros(len(values) + 1, dtype=wide)
    cupy.cumsum(values[order].astype(wide), out=running[1:])
    edges = cupy.zeros(groups + 1, dtype=cupy.int64)
    cupy.cumsum(_count_group_rows(codes, groups), out=edges[1:])
    return running[edges[1:]] - running[edges[:-1]]


def exact_sums_by(
    codes: cupy.ndarray, groups: int, values: cupy.ndarray, most_rows: int
) -> tuple[cupy.ndarray, cupy.ndarray]:
    """(sum, rest) by group of float64 values: exact, see `tasks.engines.algorithms.exact_sums.sums`; no group has more
    than most_rows."""
    runs = _count_group_rows(codes, groups)
    return exact_sums.sums(values[cupy.argsort(codes)], lambda terms: segment_sums(terms, runs), most_rows, cupy)


def extremes_by(codes: cupy.ndarray, groups: int, values: cupy.ndarray) -> tuple[cupy.ndarray, cupy.ndarray]:
    """(smallest, largest) value by group, in the values' type, 0.0 for -0.0; a group without rows has 0."""
    values = values + values.dtype.type(0) if values.dtype.kind == "f" else values
    low = cupy.zeros(groups, dtype=values.dtype)
    high = cupy.zeros(groups, dtype=values.dtype)
    if not len(values):
        return low, high
    by_value = cupy.argsort(values)
    order = by_value[cupy.argsort(codes[by_value])]
    runs = _count_group_rows(codes, groups)
    ends = cupy.cumsum(runs)
    used = runs > 0
    low[used], high[used] = values[order[(ends - runs)[used]]], values[order[ends[used] - 1]]
    return low, high
