"""Rows of equal keys, on the GPU: their codes, their order inside a run, and sums of runs."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import pylibcudf as plc

from tasks.engines.gpu.columns import Column, device
from tasks.engines.gpu.groups import canonical
from tasks.engines.gpu.kernels.block_reductions import segment_sums
from tasks.engines.gpu.kernels.column_arrays import array_of


def run_codes(keys: Sequence[Column]) -> cupy.ndarray:
    """0, 1, .. for every row, the same number for the same keys; a null is a key like any other."""
    if not len(keys[0]):
        return cupy.zeros(0, dtype=cupy.int64)
    _, codes = plc.transform.encode(plc.Table([device(canonical(k)) for k in keys]))
    return array_of(codes).astype(cupy.int64)


def sort_within(codes: cupy.ndarray, columns: Sequence[Column], ascending: bool = True) -> cupy.ndarray:
    """The rows by (code, columns), rows that are equal in all of them in the order they had; nulls stand first."""
    order = plc.types.Order
    nulls = plc.types.NullOrder
    keys = [plc.Column.from_cuda_array_interface(cupy.ascontiguousarray(codes)), *(device(c) for c in columns)]
    ways = [order.ASCENDING, *[order.ASCENDING if ascending else order.DESCENDING] * len(columns)]
    # libcudf turns the place of nulls round with the order
    places = [nulls.BEFORE, *[nulls.BEFORE if ascending else nulls.AFTER] * len(columns)]
    index = plc.sorting.stable_sorted_order(plc.Table(keys), ways, places)
    return array_of(index).astype(cupy.int64)


def run_sums(values: cupy.ndarray, starts: cupy.ndarray) -> cupy.ndarray:
    """The sum of every run of float64 values; no run is empty. A fixed tree inside a run."""
    return segment_sums(values, starts[1:] - starts[:-1])
