"""Moments: number, mean, sum of squared deviations, least and greatest of values; merges those of two parts.

The squared deviations are those of the values divided by 2^`power_of`(least, greatest), so that they stay within
float64 for values of any size. The power is 0, no division, except for very small and very large values.
"""

from __future__ import annotations

import math

from tasks.engines.algorithms.exact_sums import FAR

Moments = tuple[int, float, float, float, float]  # n, mean, sum of squared deviations, smallest, largest


def power_of(low: float, high: float) -> int:
    """Return the power of two by which values from `low` to `high` are divided before they are squared.

    >>> power_of(-3.0, 1e9), power_of(0.0, 0.0), power_of(1.0, 2.0**1000), power_of(-(2.0**-1000), 0.0)
    (0, 0, 1001, -999)
    """
    most = max(abs(low), abs(high))
    if not most or 2.0**-FAR <= most <= 2.0**FAR or not math.isfinite(most):
        return 0
    return math.frexp(most)[1]


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Merge the moments of two parts by the formula of Chan, Golub and LeVeque."""
    if not a[0] or not b[0]:
        return b if not a[0] else a
    n = a[0] + b[0]
    low = min(a[3], b[3])
    high = max(a[4], b[4])
    power = power_of(low, high)
    mean = math.ldexp(a[1], -power)
    other = math.ldexp(b[1], -power)
    squares = sum(math.ldexp(part[2], 2 * (power_of(part[3], part[4]) - power)) for part in (a, b))
    delta = other - mean
    squares += delta * delta * (a[0] * b[0] / n)
    return n, within(mean + delta * (b[0] / n), power, low, high), squares, low, high


def within(mean: float, power: int, low: float, high: float) -> float:
    """Scale a mean of values divided by 2^power back; it is clipped to [low, high] against rounding."""
    return math.ldexp(min(max(mean, math.ldexp(low, -power)), math.ldexp(high, -power)), power)


def deviation(moments: Moments) -> float:
    """Compute the standard deviation (ddof 1) of two values or more; infinite if it is beyond float64."""
    n, _, squares, low, high = moments
    if low == high:
        return 0.0
    try:
        return math.ldexp(math.sqrt(squares / (n - 1)), power_of(low, high))
    except OverflowError:
        return math.inf
