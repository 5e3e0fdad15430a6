"""Which rows of a source a pass looks at beyond `source.filter`: one of each key, and a part of some training rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from tasks.core.pickled_fields import PickledFields
from tasks.engines.expression.syntax import Expression, parse

HASHES = 1 << 32


@dataclass(frozen=True)
class RowSet:
    """A set of row numbers as a file with a bit for each row of a plan, which all workers can read."""

    path: str
    digest: str

    def members(self, first: int, rows: int) -> np.ndarray:
        """Which of the rows [first, first + rows) are in the set; nothing else of the file is read."""
        low, high = first // 8, -(-(first + rows) // 8)
        bits = np.fromfile(self.path, dtype=np.uint8, count=high - low, offset=low)
        flags = np.unpackbits(bits, bitorder="little").view(bool)
        return flags[first - 8 * low : first - 8 * low + rows]


@dataclass(frozen=True)
class Downsampling(PickledFields):
    """A row for which `where` is true stays with the probability `fraction`; a hash of seed and row number decides.

    `weight` is the column of 1 / fraction for these rows and of 1 for others; None without one.
    """

    where: str
    fraction: float
    weight: str | None = None
    seed: int = 0

    @cached_property
    def condition(self) -> Expression:
        return parse(self.where)

    @property
    def hash_seed(self) -> int:
        """32 bits of the seed, apart from those of folds, which are hashes of row numbers too."""
        return int.from_bytes(hashlib.sha256(f"downsample {self.seed}".encode()).digest()[:4], "little")

    def stay(self, rows: Any, engine: ModuleType) -> Any:
        """Which of these row numbers stay where `where` is true.

        >>> from tasks import engines
        >>> Downsampling("x > 0", 0.5).stay(np.arange(8, dtype=np.uint64), engines.engine("pandas")).tolist()
        [True, False, True, True, False, False, True, False]
        """
        xp = engine.xp
        return engine.hash_rows(rows, self.hash_seed).astype(xp.uint64) < xp.uint64(round(self.fraction * HASHES))


@dataclass(frozen=True)
class RowRules:
    """What a pass over the source leaves out beyond `source.filter`: rows whose key another row has, and a part of some
    training rows."""

    repeated: RowSet | None = None
    downsampling: Downsampling | None = None


ALL_ROWS = RowRules()
