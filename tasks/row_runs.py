"""A file's rows in runs of whole row groups: what is gathered and written one after another where memory is short."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np


def units_of(rows: int, unit: int) -> int:
    """How many runs are possible: one for each `unit` rows that a file stores together, 1 where unit is 0.

    >>> units_of(10, 4), units_of(8, 4), units_of(0, 4), units_of(10, 0)
    (3, 2, 1, 1)
    """
    return max(1, -(-rows // unit)) if unit else 1


def runs_of(part: Any, counts: np.ndarray, unit: int, runs: int) -> list[Any]:
    """A part (`tasks.shuffle_write.Part`) as that many parts of whole units of rows, in their order.

    `counts` are the rows of each of its ranges of position; each run names only the ranges that it needs.
    """
    units = units_of(part.rows, unit)
    edges = [min(units * r // runs * unit, part.rows) for r in range(runs + 1)]
    ends = np.cumsum(counts)
    made = []
    for low, high in pairwise(edges):
        start, stop = part.skip + low, part.skip + high
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left")) + 1
        before = int(ends[first - 1]) if first else 0
        made.append(
            replace(part, first=part.first + first, last=part.first + last, skip=start - before, rows=high - low)
        )
    return made
