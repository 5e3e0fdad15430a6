"""Which rows of a source a pass looks at beyond `source.filter`: one of each key, and a part of some training rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from tasks.core.pickled_fields import PickledFields
from tasks.engines.expression.syntax import Expression, parse

HASHES = 1 << 32


def seed_of(text: str) -> int:
    """A seed of 32 bits of its own for each purpose: folds are hashes of row numbers, too.

    >>> seed_of("downsample 0") == seed_of("split 0")
    False
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


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
class Splitting(PickledFields):
    """Which rows belong to the split `name`, one of train, valid and test; each row belongs to exactly one.

    By expressions: `conditions` are (split, expression), of which the first that is true counts; train has all other
    rows, also those whose value in `column` is null. By shares: the hash of the `keys` of a row, or of its number where
    there are none, lies below the share of valid, in the share of test behind it, or, of train, behind both.
    """

    name: str
    conditions: tuple[tuple[str, str], ...] = ()
    column: str | None = None
    shares: tuple[tuple[str, float], ...] = ()
    keys: tuple[str, ...] = ()
    seed: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide."""
        return (self.column,) if self.column is not None else self.keys

    @cached_property
    def parsed(self) -> list[tuple[str, Expression]]:
        return [(name, parse(text)) for name, text in self.conditions]

    def of_hashes(self, source: Mapping[str, Any], rows: Any, engine: ModuleType) -> Any:
        """Which rows the hash of their keys, or of their numbers, gives to this split."""
        xp, seed = engine.xp, seed_of(f"split {self.seed}")
        hashes = (
            engine.hash_columns([source[n] for n in self.keys], seed) if self.keys else engine.hash_rows(rows, seed)
        )
        hashes, low = hashes.astype(xp.uint64), 0
        for name, share in self.shares:
            high = low + round(share * HASHES)
            if name == self.name:
                return (hashes >= xp.uint64(low)) & (hashes < xp.uint64(high))
            low = high
        return hashes >= xp.uint64(low)


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

    def stay(self, rows: Any, engine: ModuleType) -> Any:
        """Which of these row numbers stay where `where` is true.

        >>> from tasks import engines
        >>> Downsampling("x > 0", 0.5).stay(np.arange(8, dtype=np.uint64), engines.engine("pandas")).tolist()
        [True, False, True, True, False, True, False, False]
        """
        xp = engine.xp
        return engine.hash_rows(rows, seed_of(f"downsample {self.seed}")).astype(xp.uint64) < xp.uint64(
            round(self.fraction * HASHES)
        )


@dataclass(frozen=True)
class RowRules:
    """What a pass over the source leaves out beyond `source.filter`: rows whose key another row has, rows of other
    splits, and a part of some training rows.

    `strict`: a cast or a parse that fails in filter, split or down-sampling is an error; else it is null and counted.
    """

    repeated: RowSet | None = None
    splitting: Splitting | None = None
    downsampling: Downsampling | None = None
    strict: bool = False


ALL_ROWS = RowRules()
