"""Wide rows of float columns: a few hidden factors seen through every column, noise, and a target of two of them."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
import pyarrow as pa

from flows.sample import draws
from flows.sample.sample_columns import numbers

FULL_ROWS = 300_000
FULL_COLUMNS = 1_000
COLUMNS = 100
MOST_COLUMNS = 10_000
FACTORS = 8
LOADING = 32  # loadings are whole numbers from -32 to 31, halved from factor to factor after every second one
NOISE = 4  # noise is a 16-bit draw with that many binary digits appended


def block(start: int, stop: int, rows: int, seed: int, xp: ModuleType = np, columns: int = COLUMNS) -> pa.Table:
    """Rows start .. stop - 1; `rows`, the size of the whole, changes nothing here.

    x0000, x0001, ..: float64, offset + 8 hidden factors (each a sum of four uniform draws) times the column's loadings
    + uniform noise; a column does not depend on how many there are. y: float64, 3 first factor - 2 second + noise.
    No nulls. All sums are of whole numbers below 2^53, so that no order of adding, no block cut and no engine changes a
    bit; the last step divides by a power of two.
    """
    row = xp.arange(start, stop, dtype=np.uint64)
    factors = xp.stack([_factor(k, row, seed) for k in range(FACTORS)])
    values = {}
    for j in range(columns):
        if j % 4 == 0:
            bits = draws.draw(draws.stream("wide", "noise", j // 4, seed), row)
        noise = (draws.field(bits, j % 4).astype(np.float64) - 32768) * 2.0**NOISE
        total = noise + offset(j)
        for k, loading in enumerate(loadings(j)):
            total += factors[k] * loading
        values[f"x{j:04d}"] = numbers(total * 2.0**-20)
    noise = draws.field(draws.draw(draws.stream("wide", "y", seed), row), 0).astype(np.float64) - 32768
    values["y"] = numbers((factors[0] * 3 - factors[1] * 2 + noise) * 2.0**-16)
    return pa.table(values)


def _factor(number: int, row: draws.Array, seed: int) -> draws.Array:
    """A hidden factor: the sum of four 16-bit draws about 0, so nearly normal, as float64 that holds whole numbers."""
    bits = draws.draw(draws.stream("wide", "factor", number, seed), row)
    total = draws.field(bits, 0).astype(np.float64)
    for part in (1, 2, 3):
        total += draws.field(bits, part)
    return total - 131_070


@cache
def loadings(column: int) -> tuple[float, ...]:
    """How a column sees the factors: whole numbers, smaller for later factors. The same for every seed."""
    bits = draws.draw(draws.stream("wide", "loadings", column), np.arange(FACTORS, dtype=np.uint64))
    return tuple(
        float(value - LOADING) // 2 ** (k // 2) for k, value in enumerate(draws.below(bits, 2 * LOADING).tolist())
    )


def offset(column: int) -> float:
    """What is added to a column before it is scaled: a whole number of at most 2^27."""
    return float(draws.below(draws.draw(draws.stream("wide", "offset"), np.array([column], np.uint64)), 1 << 27)[0])
