"""Rows of equal keys, on the CPU: codes of keys, the order inside a run, sums of runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms.arrow_arrays import raw
from tasks.engines.algorithms.host_tables import group_rows, plain
from tasks.engines.cpu.columns import Column, array


def run_codes(keys: Sequence[Column]) -> np.ndarray:
    """Give each row a code (0, 1, ..), equal for equal keys; a null is a key like any other."""
    return group_rows([array(k) for k in keys])[0].astype(np.int64, copy=False)


def sort_within(codes: np.ndarray, columns: Sequence[Column], ascending: bool = True) -> np.ndarray:
    """Sort row numbers by (code, columns), stable, nulls first; codes ascend also if `ascending` is False."""
    sort: dict[str, pa.Array] = {"code": pa.array(codes)}
    for i, values in enumerate(columns):
        arrow = plain(array(values))
        sort[str(i)] = arrow.cast(pa.uint8()) if pa.types.is_boolean(arrow.type) else arrow
    way = "ascending" if ascending else "descending"
    keys = [(name, "ascending" if name == "code" else way, "at_start") for name in sort]
    return raw(pc.sort_indices(pa.table(sort), sort_keys=keys)).astype(np.int64)


def run_sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Compute the pairwise sum of each run of float64 values; no run is empty."""
    return np.add.reduceat(values, starts[:-1]) if len(values) else np.zeros(0)
