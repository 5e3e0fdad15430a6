"""Random draws that are pure functions of (seed, column, row number).

A draw is 64 random bits made from a row number by integer arithmetic, so any range of rows can be made on its own, in
any order. Distributions are tables built once on the host in integers; on the device there are only shifts,
multiplications, comparisons and look-ups, so numpy and CuPy give the same bits. `xp` is the array module everywhere.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

Array = Any

_FRACTION_BITS = 24
_WITHIN_BITS = 26
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)


def stream(*names: object) -> np.uint64:
    """Return the key of one stream of draws: a digest of its names, such as ("toy", "x", seed)."""
    digest = hashlib.blake2b("/".join(map(str, names)).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def draw(key: np.uint64, counter: Array) -> Array:
    """64 random bits per element of a uint64 array of counters (splitmix64: Steele, Lea, Flood, OOPSLA 2014)."""
    bits = counter * _STEP
    bits += key
    bits ^= bits >> np.uint64(30)
    bits *= _MULTIPLY_1
    bits ^= bits >> np.uint64(27)
    bits *= _MULTIPLY_2
    bits ^= bits >> np.uint64(31)
    return bits


def below(bits: Array, limit: int) -> Array:
    """Return a whole number in [0, limit), limit up to 2^32, from the upper half of each draw, as int64."""
    return (((bits >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)).view(np.int64)


def field(bits: Array, number: int) -> Array:
    """One of the four 16-bit fields of each draw, as uint16: independent of the other three."""
    return (bits >> np.uint64(16 * number)).astype(np.uint16)


def rate(probability: float) -> np.uint16:
    """Return the limit under which a 16-bit field falls with this probability, to 1/65536."""
    return np.uint16(round(probability * 65536))


def scramble(values: Array, bits: int, key: np.uint64) -> Array:
    """A bijection of [0, 2^bits) onto itself, uint64 in and out: distinct values stay distinct, their order is lost.

    Three rounds of add, multiply by an odd number and xor-shift, each of them a bijection modulo 2^bits.
    """
    mask = np.uint64((1 << bits) - 1)
    shift = np.uint64(bits // 2)
    for turn, odd in enumerate((0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB)):
        values = ((values + (key >> np.uint64(8 * turn))) * np.uint64(odd)) & mask
        values ^= values >> shift
    return values


@cache
def on_device(table: TableDraw, xp: ModuleType) -> tuple[Array, ...]:
    """Return the arrays of a host table in the memory of `xp`, copied once per process."""
    return tuple(xp.asarray(array) for array in table.arrays)


@dataclass(frozen=True, eq=False)
class TableDraw:
    """Arrays built once on the host for look-ups; identity is equality, so a table can key a cache."""

    arrays: tuple[Array, ...]

    def look_up(self, xp: ModuleType, index: Array) -> tuple[Array, ...]:
        """Look up every array of the table at `index`."""
        return tuple(array[index] for array in on_device(self, xp))


@dataclass(frozen=True, eq=False)
class ChoiceDraw:
    """Picks index i with probability weights[i] / sum(weights), by Walker's alias method in integers.

    The table has 2^bits cells of 2^24 each: a draw picks a cell with its top bits and, with the next 24, the cell's own
    index or its alias. The lowest 40 - bits bits of the draw stay unused. Probabilities are exact to 2^-(24 + bits).
    """

    bits: int
    cells: TableDraw

    @classmethod
    def of(cls, weights: np.ndarray) -> ChoiceDraw:
        bits = max(1, math.ceil(math.log2(len(weights))))
        whole = share_out(weights, 1 << (bits + _FRACTION_BITS))
        return cls(bits, TableDraw((_alias_cells(whole, bits),)))

    def pick(self, xp: ModuleType, bits: Array) -> Array:
        """One index per draw, as int64."""
        cell = (bits >> np.uint64(64 - self.bits)).view(np.int64)
        fraction = (bits >> np.uint64(64 - self.bits - _FRACTION_BITS)) & np.uint64((1 << _FRACTION_BITS) - 1)
        (packed,) = self.cells.look_up(xp, cell)
        alias = (packed & np.uint64(0xFFFFFFFF)).view(np.int64)
        return xp.where(fraction < (packed >> np.uint64(32)), cell, alias)


@dataclass(frozen=True, eq=False)
class Bands:
    """A distribution over whole numbers given as bands [start, start + width) with weights; even inside a band.

    Narrow bands follow any smooth distribution closely, and the table stays small however many values there are.
    """

    choice: ChoiceDraw
    bands: TableDraw

    @classmethod
    def of(cls, start: np.ndarray, width: np.ndarray, weights: np.ndarray) -> Bands:
        return cls(ChoiceDraw.of(weights), TableDraw((start.astype(np.int64), width.astype(np.uint64))))

    def pick(self, xp: ModuleType, bits: Array) -> Array:
        """One value per draw, as int64."""
        start, width = self.bands.look_up(xp, self.choice.pick(xp, bits))
        within = bits & np.uint64((1 << _WITHIN_BITS) - 1)
        return start + ((within * width) >> np.uint64(_WITHIN_BITS)).view(np.int64)


def share_out(weights: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in proportion to the weights that add up to `total`; what rounding leaves goes to the largest."""
    whole = np.rint(weights * (total / weights.sum())).astype(np.int64)
    whole[np.argmax(whole)] += total - whole.sum()
    return whole


def _alias_cells(whole: np.ndarray, bits: int) -> np.ndarray:
    """Limit (upper half) and alias (lower half) of each cell, from weights that add up to 2^(bits + 24) (Vose 1991)."""
    full = 1 << _FRACTION_BITS
    left = whole.tolist() + [0] * ((1 << bits) - len(whole))
    limit = [full] * len(left)
    alias = list(range(len(left)))
    small = [i for i, amount in enumerate(left) if amount < full]
    large = [i for i, amount in enumerate(left) if amount > full]
    while small:
        i = small.pop()
        j = large[-1]
        limit[i], alias[i] = left[i], j
        left[j] -= full - left[i]
        if left[j] <= full:
            large.pop()
            if left[j] < full:
                small.append(j)
    return (np.array(limit, np.uint64) << np.uint64(32)) | np.array(alias, np.uint64)


@cache
def poisson(mean: int) -> ChoiceDraw:
    """Poisson(mean) over 0 .. about mean + 14 standard deviations, by the recurrence p(k) = p(k - 1) mean / k."""
    mode = mean
    weights = [0.0] * (mean + 14 * math.isqrt(mean) + 16)
    weights[mode] = 1.0
    for k in range(mode + 1, len(weights)):
        weights[k] = weights[k - 1] * mean / k
    for k in range(mode, 0, -1):
        weights[k - 1] = weights[k] * k / mean
    return ChoiceDraw.of(np.array(weights))


@cache
def zipf(count: int, exponent: float) -> Bands:
    """Ranks 0 .. count - 1 with p(rank) ~ (rank + 1)^-exponent: the first 4,096 exact, then bands of 1 % in rank.

    `exponent` must not be 1. Inside a band ranks are equally likely, which is within 1 % of the law.
    """
    head = np.arange(1, min(count, 4096) + 1)
    edges = [len(head)]
    while edges[-1] < count:
        edges.append(min(count, edges[-1] + max(1, edges[-1] // 100)))
    tail = np.array(edges, np.float64) + 0.5
    mass = (tail[:-1] ** (1 - exponent) - tail[1:] ** (1 - exponent)) / (exponent - 1)
    start = np.concatenate([head - 1, np.array(edges[:-1], np.int64)])
    width = np.concatenate([np.ones(len(head), np.int64), np.diff(edges)])
    return Bands.of(start, width, np.concatenate([head**-exponent, mass]))


@cache
def log_normal(median: float, sigma: float, largest: int, minus_one: float, minus_two: float) -> Bands:
    """Counts 0 .. largest, log-normal with this median and sigma of the logarithm; -1 and -2 at rates of their own.

    Values up to 256 are exact, then bands of 2 %.
    """
    edges = list(range(257))
    while edges[-1] <= largest:
        edges.append(min(largest + 1, edges[-1] + edges[-1] // 50))
    scaled = [(math.log(edge) - math.log(median)) / (sigma * math.sqrt(2)) for edge in edges[1:]]
    below_edge = np.array([0.0] + [0.5 * (1 + math.erf(z)) for z in scaled])
    mass = np.diff(below_edge) / below_edge[-1] * (1 - minus_one - minus_two)
    start = np.concatenate([[-2, -1], edges[:-1]])
    width = np.concatenate([[1, 1], np.diff(edges)])
    return Bands.of(start, width, np.concatenate([[minus_two, minus_one], mass]))
