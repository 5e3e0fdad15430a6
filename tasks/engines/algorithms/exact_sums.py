"""Sums of floats without error to 2^-100, whatever the order: one body for numpy and CuPy.

Values are cut into layers: the leading bits of all of them, then the bits below, and so on. Numbers of a layer are
multiples of one power of two and so few bits long that adding them rounds nothing, so it does not matter who adds them
in which order. A sum is two floats, `sum + rest`: the sum rounded to float64, and what rounding took from it.
Source: extraction of leading bits, Rump, Ogita, Oishi, "Accurate floating-point summation part I: faithful rounding",
2008; two_sum, two_product: Knuth and Dekker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tasks.engines.algorithms.reductions import any_true, extremes
from tasks.engines.types import Array

FAR = 400  # values of 2^-FAR to 2^FAR may be squared, and added up, without leaving float64's range
# values from LARGE on are added up 2^DOWN times smaller
LARGE = 2.0**800
DOWN = 600
NO_VALUE = -5000  # exponent of a group of only zeros: below the exponent of any number
CHUNK = 1 << 15  # values that stay in a core's cache

Add = Callable[[Array], Array]  # values, one per row, to their sums by group


def sums(values: Array, add: Add, most_rows: int, xp: ModuleType) -> tuple[Array, Array]:
    """(sum, rest) by group of float64 values; `add` adds values by group, and no group has more than `most_rows` rows.

    Exact for values of one magnitude; else the error is at most 2^-100 of the sum of absolute values. A sum beyond
    float64, and a sum with an infinite value, is infinite (with both infinities NaN), and its rest is 0.
    """
    most = _most(values)
    if not math.isfinite(most):
        finite = xp.isfinite(values)
        infinite = add(xp.where(finite, 0.0, values))
        total, rest = sums(xp.where(finite, values, 0.0), add, most_rows, xp)
        return xp.where(infinite == 0, total, infinite), xp.where(infinite == 0, rest, 0.0)
    if most >= LARGE:
        large = xp.abs(values) >= LARGE
        total, rest = sums(xp.where(large, 0.0, values), add, most_rows, xp)
        high, low = _sum_layers(xp.where(large, xp.ldexp(values, -DOWN), 0.0), add, most_rows, xp)
        with np.errstate(over="ignore", invalid="ignore"):
            high = xp.ldexp(high, DOWN)
            low = xp.ldexp(low, DOWN)
            infinite = ~xp.isfinite(high + total)
            whole, rest = add_pairs((high, low), (total, rest))
            return xp.where(infinite, high + total, whole), xp.where(infinite, 0.0, rest)
    return _sum_layers(values, add, most_rows, xp)


def _sum_layers(values: Array, add: Add, most_rows: int, xp: ModuleType) -> tuple[Array, Array]:
    """`sums` for finite values whose sums are all finite."""
    bits = max(math.ceil(math.log2(max(most_rows, 1))), 2)
    total = None
    rest = None
    left = values
    most = _most(values)
    while most:
        exponent = math.frexp(most)[1] + bits
        layer = left
        if exponent - 52 > -1074:  # else all values are multiples of the smallest number
            left, layer, most = _split_leading_bits(left, 1.5 * 2.0**exponent, left is values, xp)
        else:
            most = 0.0
        layer_sums = add(layer)
        if total is None:
            total = layer_sums
            rest = xp.zeros_like(layer_sums)
        else:
            total, error = two_sum(total, layer_sums)
            rest = rest + error
    if total is None or rest is None:
        total = add(values)
        return total, xp.zeros_like(total)
    return two_sum(total, rest)


def _split_leading_bits(values: Array, sigma: float, copy: bool, xp: ModuleType) -> tuple[Array, Array, float]:
    """(lower bits, leading bits, the largest absolute value of the lower bits); `copy`: do not overwrite the values."""
    if xp is not np:
        layer = (values + sigma) - sigma
        rest = values - layer
        return rest, layer, _most(rest)
    rest = np.empty_like(values) if copy else values
    layer = np.empty_like(values)
    most = 0.0
    for start in range(0, len(values), CHUNK):
        here = slice(start, start + CHUNK)
        part = layer[here]
        np.add(values[here], sigma, out=part)
        part -= sigma
        np.subtract(values[here], part, out=rest[here])
        most = max(most, float(rest[here].max()), -float(rest[here].min()))
    return rest, layer, most


def _most(values: Array) -> float:
    """The largest absolute value; 0 for no values, NaN if a value is NaN."""
    if not values.size:
        return 0.0
    low, high = extremes(values)
    return max(-low, high) if low == low and high == high else math.nan


def two_sum(a: Array | float, b: Array | float) -> tuple[Any, Any]:
    """(a + b rounded, the rounding error), of arrays or numbers."""
    total = a + b
    there = total - a
    return total, (a - (total - there)) + (b - there)


def two_product(a: Array | float, b: Array | float) -> tuple[Any, Any]:
    """(a b rounded, the rounding error), of arrays or numbers below 2^996."""
    product = a * b
    (high, low), (upper, lower) = _halves(a), _halves(b)
    return product, ((high * upper - product) + high * lower + low * upper) + low * lower


def _halves(a: Array | float) -> tuple[Any, Any]:
    """(high, low): a number of 53 bits as the sum of two numbers of 26 bits."""
    shifted = a * 134217729.0  # 2^27 + 1
    high = shifted - (shifted - a)
    return high, a - high


def add_pairs(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
    """The sum of two (sum, rest) pairs, as such a pair."""
    total, error = two_sum(a[0], b[0])
    return two_sum(total, error + (a[1] + b[1]))


def merge_group_sums(
    codes: np.ndarray, groups: int, parts: Sequence[tuple[np.ndarray, np.ndarray]]
) -> tuple[Array, Array]:
    """(sum, rest) by group of several partials, added in their order.

    `codes` are the groups of the rows of all partials, in this order; a partial has each group at most once.
    """
    total = np.zeros(groups)
    rest = np.zeros(groups)
    start = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for sums_of, rests in parts:
            here = codes[start : start + len(sums_of)]
            start += len(sums_of)
            both, error = add_pairs((total[here], rest[here]), (sums_of, rests))
            if not np.isfinite(both).all():
                plain = total[here] + sums_of
                both = np.where(np.isfinite(plain), both, plain)
                error = np.where(np.isfinite(plain), error, 0.0)
            total[here], rest[here] = both, error
    return total, rest


def divide_pair(total: Array, rest: Array, count: Array, xp: ModuleType) -> Array:
    """(total + rest) / count, rounded once (but for 2^-50 of the last bit), so that a mean lies between its values."""
    count = count.astype(xp.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rough = total / count
        product, error = two_product(rough, count)
        quotient = rough + (((total - product) - error) + rest) / count
    return xp.where(xp.isfinite(quotient), quotient, rough)


def exponents(values: Array, codes: Array, groups: int, engine: Any, squares: bool) -> Array | None:
    """For each group the power of two that divides its values before they are added (and, with `squares`, squared).

    0 for a group of ordinary values, NO_VALUE for a group of only zeros, else the exponent of the largest absolute
    value. None if all groups have ordinary values.
    """
    xp = engine.xp
    least = 2.0**-FAR
    if not values.size:
        return None
    low, high = extremes(values)
    far = not -(2.0**FAR) <= low <= high <= 2.0**FAR
    if not far and not (squares and low < least and any_true((values < least) & (values > -least) & (values != 0))):
        return None
    size = xp.abs(values)
    return exponents_of(engine.extremes_by(codes, groups, xp.where(xp.isfinite(size), size, 0.0))[1], xp)


def exponents_of(size: Array, xp: ModuleType) -> Array:
    """The powers of two of `exponents`, from the largest absolute value of each group."""
    powers = xp.frexp(size)[1].astype(xp.int64)
    powers = xp.where((size > 2.0**FAR) | (size < 2.0**-FAR), powers, 0)
    return xp.where(size == 0, NO_VALUE, powers)


def whole_halves(low: Array, high: Array, xp: ModuleType) -> Array:
    """The means of pairs of integers as float64, rounded once, although a sum may be beyond 64 bits."""
    half = (low & high) + ((low ^ high) >> 1)  # of the mean, rounded down
    odd = ((low ^ high) & 1).astype(xp.float64)
    return (half >> 32).astype(xp.float64) * 2.0**32 + ((half & 0xFFFFFFFF).astype(xp.float64) + odd / 2)


def whole_difference(a: Array, b: Array | int, xp: ModuleType) -> Array:
    """a - b of integers as float64, rounded once; b is an array or a Python integer."""

    def halves(value: Array | int) -> tuple[Any, Any]:
        if isinstance(value, int):
            return value >> 32, value & 0xFFFFFFFF
        value = value if value.dtype.itemsize == 8 else value.astype(xp.int64)
        return (value >> 32).astype(xp.int64), (value & 0xFFFFFFFF).astype(xp.int64)

    (high, low), (upper, lower) = halves(a), halves(b)
    return (high - upper).astype(xp.float64) * 2.0**32 + (low - lower).astype(xp.float64)
