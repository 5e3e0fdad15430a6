"""Rows by group, on the CPU: the group of each row, sums and extremes of each group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tasks.engines.algorithms import exact_sums
from tasks.engines.algorithms.host_tables import group_rows, host_table
from tasks.engines.cpu.columns import Column, array


def group_codes(keys: Sequence[Column], names: Sequence[str]) -> tuple[np.ndarray, pa.Table]:
    """(the group of each row, int64; the keys of the groups as an Arrow table). A null is a key like any other."""
    codes, distinct = group_rows([array(k) for k in keys])
    return codes.astype(np.int64, copy=False), host_table(pa.table(list(distinct), list(names)))


def sum_by(codes: np.ndarray, groups: int, values: np.ndarray) -> np.ndarray:
    """Sums by group: float64 in row order, integers exactly modulo 2^64 in int64 or uint64."""
    if values.dtype.kind == "f":
        return np.bincount(codes, weights=values, minlength=groups).astype(np.float64, copy=False)  # of none: int64
    sums = np.zeros(groups, dtype=np.uint64 if values.dtype.kind == "u" else np.int64)
    np.add.at(sums, codes, values.astype(sums.dtype, copy=False))
    return sums


def exact_sums_by(codes: np.ndarray, groups: int, values: np.ndarray, most_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (sum, rest) by group of float64 values, as `tasks.engines.algorithms.exact_sums.sums` computes them.

    No group has more than `most_rows` rows.
    """
    return exact_sums.sums(
        values, lambda layer: np.bincount(codes, weights=layer, minlength=groups) + 0.0, most_rows, np
    )


def extremes_by(codes: np.ndarray, groups: int, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (least, greatest) value by group, in the type of the values, 0.0 for -0.0; 0 for a group without rows."""
    values = values + values.dtype.type(0) if values.dtype.kind == "f" else values
    low = np.zeros(groups, dtype=values.dtype)
    high = np.zeros(groups, dtype=values.dtype)
    low[codes] = values  # any value of the group, to begin with
    high[codes] = values
    np.minimum.at(low, codes, values)
    np.maximum.at(high, codes, values)
    return low, high
