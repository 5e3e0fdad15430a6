"""Several columns as one matrix, on the GPU."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np
import pyarrow as pa

from tasks.engines.algorithms import factors
from tasks.engines.gpu.columns import Column, dtype, from_numbers, numbers
from tasks.engines.gpu.kernels.block_reductions import row_sums

CELLS = 1 << 25  # numbers of a matrix at a time: 256 MiB


def _as_numbers(columns: Sequence[Column]) -> list[factors.Numbers]:
    """The raw numbers of each column; one of nothing but nulls has no type to take them from."""
    nothing = cupy.zeros(len(columns[0]))
    return [(nothing, nothing > 0) if pa.types.is_null(dtype(c)) else numbers(c) for c in columns]


def factorize_columns(columns: Sequence[Column]) -> factors.Factor:
    """Number, mean and triangular factor of the rows without a null, in chunks that only the width decides."""
    chunk = max(CELLS // len(columns), 2 * len(columns))
    return factors.factor(_as_numbers(columns), len(columns[0]), cupy, chunk, row_sums)


def project(columns: Sequence[Column], mean: np.ndarray, axes: np.ndarray) -> list[Column]:
    """The centred rows' coordinates along each of the axes (p, k), float64; a row with a null gives nulls."""
    tile = max(CELLS // max(axes.shape), 1)
    scores, valid = factors.project(_as_numbers(columns), len(columns[0]), mean, cupy.asarray(axes), cupy, tile)
    return [from_numbers(score, valid) for score in scores]
