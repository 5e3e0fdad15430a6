"""Columns as a matrix, on the CPU: mean and triangular factor, and coordinates along axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tasks.engines.algorithms import factors
from tasks.engines.cpu.columns import Column, dtype, from_numbers, numbers

# at most in one tile: 1 MiB of scores, which stay in the cache, 64 MiB of rows
SCORES = 1 << 17
CELLS = 1 << 23


def _as_numbers(columns: Sequence[Column]) -> list[factors.Numbers]:
    """Return the numbers of each column; zeros for a column of type null, which has no numbers."""
    nothing = np.zeros(len(columns[0]))
    return [(nothing, nothing > 0) if pa.types.is_null(dtype(c)) else numbers(c) for c in columns]


def factorize_columns(columns: Sequence[Column]) -> factors.Factor:
    """Compute the Factor of the rows without a null, in chunks whose size depends only on the number of columns."""
    chunk = max(8192, 8 * len(columns))
    return factors.factor(_as_numbers(columns), len(columns[0]), np, chunk)


def project(columns: Sequence[Column], mean: np.ndarray, axes: np.ndarray) -> list[Column]:
    """Project the centred rows on each of the axes (p, k): float64 coordinates; null for a row with a null."""
    tile = max(min(SCORES // axes.shape[1], CELLS // len(columns)), 256)
    scores, valid = factors.project(_as_numbers(columns), len(columns[0]), mean, axes, np, tile)
    return [from_numbers(score, valid) for score in scores]
