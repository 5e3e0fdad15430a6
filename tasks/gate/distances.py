"""Distances of two distributions of counts: L-infinity, Jensen-Shannon, population stability index; their noise.

A distribution is an array of counts or shares over the same categories or bins, in the last axis; each is divided by
its own sum first. The distance of a distribution without any count to any other is 0: nothing is known of it. The
module also has the cells into which numbers are counted, and the limit of Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Distance = Array | np.float64  # one for each row of cells, or a single one
EMPTY = 1e-4  # the share that an empty cell of a PSI counts with
CELLS = 16  # quantile bins of numbers


def to_shares(counts: npt.ArrayLike) -> Array:
    """Divide counts by their sum over the last axis; zeros if all counts are 0."""
    numbers = np.asarray(counts, np.float64)
    total = numbers.sum(axis=-1, keepdims=True)
    divided: Array = np.divide(numbers, total, out=np.zeros_like(numbers), where=total > 0)
    return divided


def l_infinity(one: npt.ArrayLike, other: npt.ArrayLike) -> Distance:
    """Compute the largest change of a share, max |p - q|, 0 .. 1 (as `skew_comparator.infinity_norm` of TensorFlow Data
    Validation).

    >>> round(float(l_infinity([90, 10], [70, 30])), 6)
    0.2
    """
    p, q = _to_share_pair(one, other)
    return np.abs(p - q).max(axis=-1, initial=0.0)


def jensen_shannon(one: npt.ArrayLike, other: npt.ArrayLike) -> Distance:
    """Compute the Jensen-Shannon *distance* with logarithms of base 2, 0 (equal) .. 1 (no cell in common).

    sqrt((KL(p, m) + KL(q, m)) / 2), m = (p + q) / 2, KL(p, m) = sum p log2(p / m); the square root of the divergence
    (J. Lin, 1991), as scipy.spatial.distance.jensenshannon(p, q, base=2). Empty cells add nothing.

    >>> float(jensen_shannon([1, 0], [0, 5])), float(jensen_shannon([1, 3], [2, 6]))
    (1.0, 0.0)
    """
    p, q = _to_share_pair(one, other)
    middle = (p + q) / 2
    divergence = (_kullback_leibler(p, middle) + _kullback_leibler(q, middle)) / 2
    return np.sqrt(np.clip(divergence, 0.0, 1.0))


def psi(one: npt.ArrayLike, other: npt.ArrayLike) -> Distance:
    """Compute the population stability index, sum (p - q) ln(p / q): 0 (equal) and up.

    Below 0.1 a distribution is stable, above 0.25 it has changed (Siddiqi, 2006). A cell that is empty on one side
    counts with a share of 0.0001 there; one that is empty on both sides adds nothing.

    >>> round(float(psi([50, 50], [60, 40])), 4)
    0.0405
    """
    p, q = _to_share_pair(one, other)
    occupied = (p > 0) | (q > 0)
    p = np.maximum(p, EMPTY)
    q = np.maximum(q, EMPTY)
    return np.where(occupied, (p - q) * np.log(p / q), 0.0).sum(axis=-1)


def _to_share_pair(one: npt.ArrayLike, other: npt.ArrayLike) -> tuple[Array, Array]:
    """Convert two distributions to shares; both are zeros if one has no count, so that their distance is 0."""
    p, q = np.broadcast_arrays(to_shares(one), to_shares(other))
    known = (p.sum(axis=-1, keepdims=True) > 0) & (q.sum(axis=-1, keepdims=True) > 0)
    return np.where(known, p, 0.0), np.where(known, q, 0.0)


def _kullback_leibler(p: Array, q: Array) -> Array:
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    total: Array = (p * np.log2(ratio)).sum(axis=-1)
    return total


DISTANCES = {"l_infinity": l_infinity, "jensen_shannon": jensen_shannon, "psi": psi}


def noise(name: str, reference: npt.ArrayLike, now: float, before: float, z: float) -> float:
    """Compute the distance that samples of `now` and `before` values of the distribution `reference` exceed by chance.

    The probability of that is the one with which a normal variable exceeds `z` standard deviations.

    With n = 1 / (1 / now + 1 / before) and k cells that are not empty: for L-infinity, the largest of k changes,
    sqrt(z^2 + 2 ln k) sqrt(p (1 - p) / n) of the largest p (1 - p). The PSI is about chi-square(k - 1) / n, the
    Jensen-Shannon divergence about chi-square(k - 1) / (8 n ln 2), each at its mean + z standard deviations + 2 z^2 / 3
    (Wilson and Hilferty's tail).
    """
    if not now or not before:
        return 1.0
    p = to_shares(reference)
    n = 1 / (1 / now + 1 / before)
    k = int(np.count_nonzero(p))
    if name == "l_infinity":
        z = math.sqrt(z * z + 2 * math.log(max(k, 1)))
        return float(min(z * math.sqrt(float((p * (1 - p)).max(initial=0.0)) / n), 1.0))
    chi = max(k - 1, 1) + z * math.sqrt(2 * max(k - 1, 1)) + 2 * z * z / 3
    return chi / n if name == "psi" else math.sqrt(min(chi / (8 * n * math.log(2)), 1.0))


def quantile_cells(past: Sequence[Mapping[int, int]], cells: int = CELLS) -> Array:
    """Choose the bins at which cells end, so that each cell has about 1 / `cells` of the past values.

    They are ascending and at most cells - 1; the values of a bin belong to the cell that it ends. Bins with many values
    are cells of their own.

    >>> quantile_cells([{1: 1, 2: 98, 3: 1}], 4).tolist(), quantile_cells([{n: 1 for n in range(8)}], 4).tolist()
    ([1.0, 2.0], [1.0, 3.0, 5.0])
    """
    numbers = sorted({number for bins in past for number in bins})
    total = to_shares([[bins.get(number, 0) for number in numbers] for bins in past]).sum(axis=0)
    if not len(total) or not total.sum():
        return np.zeros(0)
    passed = np.cumsum(total) / total.sum()
    before = np.concatenate([[0.0], passed[:-1]])
    ends = set()
    for place, share in enumerate(total / total.sum()):
        if share >= 1.5 / cells and place:
            ends.add(place - 1)
        crosses = math.floor(passed[place] * cells + 1e-9) > math.floor(before[place] * cells + 1e-9)
        if share >= 1.5 / cells or crosses:
            ends.add(place)
    return np.array([numbers[place] for place in sorted(ends) if place < len(numbers) - 1], np.float64)


def count_in_cells(bins: Mapping[int, int], ends: Array) -> Array:
    """Sum the counts of bins in the cells that end at `ends`, and in a last cell for all above."""
    counts = np.zeros(len(ends) + 1)
    if bins:
        numbers = np.fromiter(bins.keys(), np.float64, len(bins))
        np.add.at(counts, np.searchsorted(ends, numbers), np.fromiter(bins.values(), np.float64, len(bins)))
    return counts


def t_limit(chance: float, degrees: float) -> float:
    """Compute the value that Student's t exceeds with a probability, on both sides together.

    By G. W. Hill, Algorithm 396 (1970), whose names the variables have; relative error below 1e-3 from 3 degrees of
    freedom on.

    >>> round(t_limit(0.05, 10), 3), round(t_limit(1e-6, 5), 1)
    (2.228, 28.5)
    """
    n = max(degrees, 1.0)
    if n <= 2:
        return math.sqrt(2 / (chance * (2 - chance)) - 2) if n == 2 else 1 / math.tan(chance * math.pi / 2)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    x = d * chance
    y = (d * chance) ** (2 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(chance / 2)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(min(a * y * y, 700.0))
    else:
        series = 1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)
        y = (series * y - 1) * (n + 1) / (n + 2) + 1 / y
    return math.sqrt(n * y)
