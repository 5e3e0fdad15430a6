"""The toy data set: timestamp, id, name, x, y, label; columns that do not depend on each other."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pyarrow as pa

from flows.sample import draws
from flows.sample.sample_columns import numbers, words

FULL_ROWS = 25 * 31_536_001
PART_ROWS = 31_536_001
FIRST_SECOND = 946_684_800  # 2000-01-01 00:00:00 UTC

NAMES = (
    *("Alice", "Bob", "Charlie", "Dan", "Edith", "Frank", "George", "Hannah", "Ingrid", "Jerry", "Kevin", "Laura"),
    *("Michael", "Norbert", "Oliver", "Patricia", "Quinn", "Ray", "Sarah", "Tim", "Ursula", "Victor", "Wendy"),
    *("Xavier", "Yvonne", "Zelda"),
)


def block(start: int, stop: int, rows: int, seed: int, xp: ModuleType = np) -> pa.Table:
    """Rows start .. stop - 1; `rows`, the size of the whole, changes nothing here.

    timestamp: one second apart, over again from 2000-01-01 after every 31,536,001 rows. id: Poisson(1000). name: 26
    names, equally likely. x, y: uniform in [-1, 1), multiples of 2^-52. label: 0 or 1, equally likely. No nulls.
    """
    row = xp.arange(start, stop, dtype=np.uint64)
    second = (row % np.uint64(PART_ROWS)).view(np.int64) + FIRST_SECOND
    person = draws.draw(draws.stream("toy", "name", seed), row)
    columns = {
        "timestamp": numbers(second * 1_000_000, pa.timestamp("us")),
        "id": numbers(draws.poisson(1000).pick(xp, draws.draw(draws.stream("toy", "id", seed), row))),
        "name": words(draws.below(person, len(NAMES)), pa.array(NAMES)),
        "x": numbers(_uniform(draws.draw(draws.stream("toy", "x", seed), row))),
        "y": numbers(_uniform(draws.draw(draws.stream("toy", "y", seed), row))),
        "label": numbers((person & np.uint64(1)).astype(np.uint8)),
    }
    return pa.table(columns)


def _uniform(bits: draws.Array) -> draws.Array:
    """float64 in [-1, 1): every step is exact, so no rounding mode or fused operation can change a bit."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
