"""Sketches of any number of values, mergeable in any order: HyperLogLog (distinct values), DDSketch (quantiles)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.engines.hashing import murmur3

P = 14  # HyperLogLog has 2^14 registers: standard error 1.04 / sqrt(2^14) = 0.8 %
REST = 64 - P
GAMMA = 1.01 / 0.99  # DDSketch's bins: any value of a bin is within 1 % of the bin's own
ZERO_TO_ONE = 1 << 20  # added to the bin's exponent, so that the keys of all positive values are positive


def registers(values: pa.Array) -> np.ndarray:
    """The HyperLogLog registers of the values, uint8; two sets of registers merge by their maximum.

    Source: Flajolet, Fusy, Gandouet, Meunier, "HyperLogLog: the analysis of a near-optimal cardinality estimation
    algorithm", 2007; with 64-bit hashes (two of MurmurHash3_x86_32), which need no correction for large counts.
    """
    high, low = (murmur3.hash_array(values, seed).astype(np.uint64) for seed in (0, 1))
    hashes = high << np.uint64(32) | low
    place = (hashes >> np.uint64(REST)).astype(np.int64)
    rest = (hashes & np.uint64((1 << REST) - 1)).astype(np.float64)  # exact: 50 bits
    rank = (REST + 1 - np.frexp(rest)[1]).astype(np.uint8)
    largest = np.zeros(1 << P, dtype=np.uint8)
    np.maximum.at(largest, place, rank)
    return largest


def distinct_estimate(registers: np.ndarray) -> int:
    """The estimated number of distinct values, from HyperLogLog registers."""
    m = len(registers)
    raw = 0.7213 / (1 + 1.079 / m) * m * m / float(np.exp2(-registers.astype(np.float64)).sum())
    empty = int((registers == 0).sum())
    return round(m * math.log(m / empty) if raw <= 2.5 * m and empty else raw)


def bins(values: Any, xp: Any) -> tuple[np.ndarray, np.ndarray]:
    """(keys, counts) of the DDSketch bins of finite float64 values; keys ascend with the values.

    Source: Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees",
    2019.
    """
    size = xp.abs(values)
    exponent = xp.ceil(xp.log(xp.where(size > 0, size, 1.0)) / math.log(GAMMA)).astype(xp.int64)
    keys = xp.where(size > 0, xp.where(values > 0, 1, -1) * (exponent + ZERO_TO_ONE), 0)
    distinct, counts = xp.unique(keys, return_counts=True)
    if xp is not np:
        distinct, counts = distinct.get(), counts.get()
    return distinct.astype(np.int64), counts.astype(np.int64)


def add_bins(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The bins of the values of all parts."""
    keys, places = np.unique(np.concatenate([k for k, _ in parts]), return_inverse=True)
    counts = np.zeros(len(keys), dtype=np.int64)
    np.add.at(counts, places, np.concatenate([c for _, c in parts]))
    return keys, counts


def bin_values(keys: np.ndarray) -> np.ndarray:
    """The representative value of each bin, within 1 % of all values in it."""
    with np.errstate(over="ignore"):  # the last bin reaches beyond the largest float
        sizes = np.exp((np.abs(keys) - ZERO_TO_ONE) * math.log(GAMMA) + math.log(2 / (GAMMA + 1)))
        sizes = np.minimum(sizes, np.finfo(np.float64).max)
    return np.where(keys == 0, 0.0, np.sign(keys) * np.where(keys == 0, 0.0, sizes))


def quantiles(keys: np.ndarray, counts: np.ndarray, fractions: Sequence[float]) -> list[float]:
    """The quantiles at these fractions, within 1 %."""
    ranks = np.array(fractions) * (int(counts.sum()) - 1)
    places = np.searchsorted(np.cumsum(counts), np.floor(ranks), side="right")
    return [float(v) for v in bin_values(keys)[places]]
