"""Exact order statistics of any number of values in bounded memory: radix selection on order-preserving integers.

Each pass counts, by 16 more bits of their keys, the values that can still be one of the wanted ones. The result of a
pass is small for any number of rows: the distinct keys with their counts if there are at most `EXACT` of them, else
counts by the bits of the pass. Which of the two depends on the values alone, not on how they are split into partials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from tasks.engines.algorithms.reductions import on_host
from tasks.engines.types import Array

EXACT = 1 << 16  # the most distinct keys that a result holds whole
BITS = 16  # of a key that one pass looks at
SAMPLE = 1 << 18  # values that show whether few distinct keys are likely


@dataclass(frozen=True)
class SelectionQuestion:
    """What a pass counts: values whose keys begin with one of `prefixes`; `before` values are smaller than each prefix.

    `shift` is the number of low bits of a key that the pass ignores, `total` the number of all values.
    """

    shift: int
    prefixes: tuple[int, ...]
    before: tuple[int, ...]
    total: int


@dataclass(frozen=True)
class Counted:
    """Values counted by key: `whole` keys, or keys without the low bits that the question ignores. Keys ascend."""

    question: SelectionQuestion | None
    whole: bool
    keys: np.ndarray
    counts: np.ndarray

    @property
    def shift(self) -> int:
        return 64 - BITS if self.question is None else self.question.shift

    @property
    def total(self) -> int:
        """The number of all values, which the first pass counted."""
        return int(self.counts.sum()) if self.question is None else self.question.total

    @property
    def answered(self) -> bool:
        """Whether the keys are whole, so that the values of all ranks are known."""
        return self.whole or self.shift == 0


def to_sort_keys(values: Array, xp: ModuleType) -> Array:
    """uint64 keys that ascend with the numbers: integers, or floats as float64 with -0.0 = 0.0."""
    top = xp.uint64(1 << 63)
    if values.dtype.kind == "u":
        return values.astype(xp.uint64)
    if values.dtype.kind == "i":
        return values.astype(xp.int64).view(xp.uint64) ^ top
    bits = (values.astype(xp.float64) + 0.0).view(xp.uint64)
    return xp.where(bits >= top, ~bits, bits | top)


def value_of(key: int, kind: str) -> int | float:
    """The number of a key; `kind` is u, i or f as in numpy, or decimal, whose digits are of kind i."""
    if kind == "u":
        return key
    if kind != "f":
        return key - (1 << 63)
    bits = key ^ (1 << 63) if key >= 1 << 63 else ~key & ((1 << 64) - 1)
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])


def count(values: Array, question: SelectionQuestion | None, xp: ModuleType) -> Counted:
    """Count the values that the question asks for (None: all values). Values of numpy or CuPy without nulls."""
    keys = to_sort_keys(values, xp)
    if question is not None:
        prefixes = xp.asarray(np.array(question.prefixes, dtype=np.uint64))
        top = keys >> xp.uint64(question.shift + BITS)
        place = xp.minimum(xp.searchsorted(prefixes, top), len(prefixes) - 1)
        keys = keys[prefixes[place] == top]
    shift = 64 - BITS if question is None else question.shift
    if len(keys) <= SAMPLE or len(xp.unique(keys[:SAMPLE])) <= EXACT:
        distinct, counts = _unique(keys, xp)
        if len(distinct) <= EXACT:
            return Counted(question, True, distinct, counts)
        return _truncate_keys(question, distinct, counts, shift)
    if question is None:
        table = xp.bincount((keys >> xp.uint64(shift)).astype(xp.int64), minlength=1 << BITS)
        present = xp.flatnonzero(table)
        return Counted(question, False, on_host(present).astype(np.uint64), on_host(table[present]).astype(np.int64))
    return Counted(question, False, *_unique(keys >> xp.uint64(shift), xp))


def _unique(keys: Array, xp: ModuleType) -> tuple[np.ndarray, np.ndarray]:
    distinct, counts = xp.unique(keys, return_counts=True)
    return on_host(distinct), on_host(counts).astype(np.int64)


def _truncate_keys(question: SelectionQuestion | None, keys: np.ndarray, counts: np.ndarray, shift: int) -> Counted:
    return Counted(question, False, *_add_counts(keys >> np.uint64(shift), counts))


def _add_counts(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distinct keys ascending, the sum of the counts of each)."""
    distinct, places = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(sums, places, counts)
    return distinct, sums


def merge(parts: Sequence[Counted]) -> Counted:
    """The counts of all values of several partials of one pass."""
    question = parts[0].question
    shift = parts[0].shift
    if all(p.whole for p in parts):
        keys, counts = _add_counts(np.concatenate([p.keys for p in parts]), np.concatenate([p.counts for p in parts]))
        return (
            Counted(question, True, keys, counts)
            if len(keys) <= EXACT
            else _truncate_keys(question, keys, counts, shift)
        )
    cut = [p.keys >> np.uint64(shift) if p.whole else p.keys for p in parts]
    return Counted(question, False, *_add_counts(np.concatenate(cut), np.concatenate([p.counts for p in parts])))


def _starts(counted: Counted) -> np.ndarray:
    """For each key the number of smaller values among all values."""
    running = np.cumsum(counted.counts) - counted.counts
    if counted.question is None:
        return running
    prefixes = counted.keys >> np.uint64(counted.shift + BITS if counted.whole else BITS)
    wanted = np.array(counted.question.prefixes, dtype=np.uint64)
    group = np.searchsorted(wanted, prefixes)
    first = np.searchsorted(prefixes, wanted)
    base = np.array(counted.question.before, dtype=np.int64) - running[np.minimum(first, len(running) - 1)]
    return running + base[group]


def next_question(counted: Counted, ranks: Sequence[int]) -> SelectionQuestion | None:
    """The question of the next pass, to learn the values of these ranks (from 0); None if they are known."""
    if counted.answered or not counted.total:
        return None
    starts = _starts(counted)
    places = np.unique(np.searchsorted(starts, np.array(ranks), side="right") - 1)
    prefixes = counted.keys[places].tolist()
    before = starts[places].tolist()
    return SelectionQuestion(counted.shift - BITS, tuple(prefixes), tuple(before), counted.total)


def values_at(counted: Counted, ranks: Sequence[int], kind: str) -> list[int | float]:
    """The values of these ranks (from 0, in ascending order of the values) once they are known."""
    places = np.searchsorted(_starts(counted), np.array(ranks, dtype=np.int64), side="right") - 1
    return [value_of(int(counted.keys[place]), kind) for place in places]


def first_ranks(counted: Counted, ranks: Sequence[int]) -> list[int]:
    """For the value of each rank the least rank that has it, once the values are known."""
    starts = _starts(counted)
    return [int(starts[np.searchsorted(starts, rank, side="right") - 1]) for rank in ranks]
