"""Reduces an array of numpy or CuPy to one value; checks that sums of integers fit 64 bits.

CuPy reduces an array to one value with a single block of threads: about 20 ms for 26 million values. In two steps, the
first of which returns many values, the whole GPU works.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.engines.types import Array
from tasks.errors import DataError

PARTS = 1024  # values after the first step, about


def on_host(array: Array) -> np.ndarray:
    """Return an array of NumPy or CuPy in host memory."""
    return array.get() if hasattr(array, "get") else array


def any_true(flags: Array) -> bool:
    """Whether any of the flags is true; False for no flags."""
    return bool(_reduce_parts(flags, "any").any()) if flags.size else False


def all_true(flags: Array) -> bool:
    """Whether all flags are true; True for no flags."""
    return bool(_reduce_parts(flags, "all").all()) if flags.size else True


def extremes(values: Any) -> tuple[Any, Any]:
    """(least, greatest) of at least one value, as Python numbers; 0.0 for -0.0, of which a reduction takes either."""
    low = _reduce_parts(values, "min").min()
    high = _reduce_parts(values, "max").max()
    if isinstance(values, np.ndarray):
        low = low.item()
        high = high.item()
    else:  # a GPU is waited for once
        ends = values.ravel()[:1].repeat(2)
        ends[0], ends[1] = low, high
        low, high = ends.tolist()
    return (low + 0.0, high + 0.0) if isinstance(low, float) else (low, high)


def total(values: Array) -> int:
    """The sum of integers or flags, which fits 64 bits.

    >>> total(np.array([True, False, True])), total(np.array([3, -5], dtype=np.int8))
    (2, -2)
    """
    return int(sum_on_device(values)[0])


def sum_on_device(values: Any) -> Array:
    """The sum of numbers or flags, in an array of one value on their device."""
    values = values.ravel()
    width = -(-values.size // PARTS)
    if isinstance(values, np.ndarray) or width < 64:
        return values.sum(keepdims=True)
    whole = values.size - values.size % width
    parts = values[:whole].reshape(-1, width).sum(axis=1)
    return parts.sum(keepdims=True) + values[whole:].sum(keepdims=True)


def exact_sum(values: Array) -> int:
    """The sum of integers as a Python integer of any size, from the sums of their upper and lower halves."""
    values = values.astype("int64") if values.dtype.kind == "i" else values.astype("uint64")
    return (total(values >> 32) << 32) + total(values & 0xFFFFFFFF)


def sums_fit(values: Array, terms: int) -> bool:
    """Whether every sum of `terms` of these integers fits int64."""
    if (values.dtype.itemsize <= 4 and terms <= 1 << 31) or not values.size:
        return True
    low, high = extremes(values)
    return max(-int(low), int(high)) * terms < 1 << 63


def refuse_wrapped(sums: Array, rough: Array, values: str = "integers") -> None:
    """DataError if a sum has wrapped around at 64 bits: if it is far from `rough`, the same sum in float64."""
    wrapped = abs(sums.astype("float64") - rough) > 2.0**62
    if any_true(wrapped):
        raise DataError(
            f"a sum of {values} is beyond 64 bits",
            why=f"it is about {float(rough[wrapped][0]):.4g}",
            do="convert the column before: Lambda(expression=\"cast(_, 'float64')\")",
        )


def _reduce_parts(values: Any, how: str) -> Array:
    """Fewer values with the same reduction `how`: one value for each of about `PARTS` parts of a CuPy array."""
    width = -(-values.size // PARTS)
    if isinstance(values, np.ndarray) or values.ndim != 1 or width < 64:
        return values
    rows = len(values) // width
    answers = values[:PARTS].astype(values.dtype)  # room for the answers of the first step, which overwrite the values
    answers[:rows] = getattr(values[: rows * width].reshape(rows, width), how)(axis=1)
    answers[rows : rows + 1] = getattr(values[-width:], how)()
    return answers[: rows + 1]
