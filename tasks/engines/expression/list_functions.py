"""The functions of expressions on lists, and on zones, that Arrow computes in host memory: the same on both engines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.hashing.canonical import raw_values


def _ends(lists: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Where the elements of each list begin and end in `lists.values`; null lists have none."""
    offsets = np.asarray(lists.offsets).astype(np.int64)
    first = offsets[:-1]
    stop = offsets[1:]
    if lists.null_count:
        stop = np.where(lists.is_valid().to_numpy(zero_copy_only=False), stop, first)
    return first, stop


def get(lists: pa.Array, index: int) -> pa.Array:
    """The element at a place, negative ones from the end; null without such a place."""
    first, stop = _ends(lists)
    place = (first if index >= 0 else stop) + index
    inside = (place >= first) & (place < stop)
    return lists.values.take(pa.array(np.where(inside, place, 0), mask=~inside))


def slice(lists: pa.Array, start: int, stop: int | None) -> pa.Array:
    """The elements from one place to another, as Python slices."""
    first, end = _ends(lists)
    length = end - first

    def place(index: int) -> np.ndarray:
        return np.minimum(index, length) if index >= 0 else np.maximum(length + index, 0)

    low = place(start)
    lengths = np.maximum((length if stop is None else place(stop)) - low, 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    taken = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(first + low, lengths)
    valid = None if not lists.null_count else lists.is_valid()
    bits = None if valid is None else pa.concat_arrays([valid]).buffers()[1]
    places = pa.array(offsets, pa.int32())
    return pa.ListArray.from_buffers(
        pa.list_(lists.type.value_type),
        len(lists),
        [bits, places.buffers()[1]],
        children=[lists.values.take(pa.array(taken))],
    )


def contains(lists: pa.Array, wanted: object) -> pa.Array:
    """Whether a list has an element that equals a literal; null elements equal nothing."""
    first, stop = _ends(lists)
    values = lists.values
    if isinstance(wanted, str):
        equal = pc.fill_null(pc.equal(values, wanted), False).to_numpy(zero_copy_only=False)
    else:
        numbers = raw_values(values)
        numbers = numbers.astype(np.float64) if numbers.dtype.kind == "f" or isinstance(wanted, float) else numbers
        equal = (numbers == wanted) & values.is_valid().to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(equal)])
    return pa.array(before[stop] > before[first], mask=lists.is_null().to_numpy(zero_copy_only=False))


def sum(lists: pa.Array, dtype: pa.DataType) -> tuple[pa.Array, np.ndarray | None]:
    """(the sums of the elements that are not null, which of them are beyond the type)."""
    first, stop = _ends(lists)
    empty = lists.is_null().to_numpy(zero_copy_only=False)
    values = pc.fill_null(lists.values, False if pa.types.is_boolean(lists.type.value_type) else 0)
    if pa.types.is_floating(dtype):
        elements = np.nan_to_num(np.asarray(values.cast(pa.float64())), nan=0.0, posinf=math.inf, neginf=-math.inf)
        sums = np.array([_sum_exactly(elements[a:b]) for a, b in zip(first, stop, strict=True)], dtype=np.float64)
        return pa.array(sums, mask=empty | np.isnan(sums)), None
    numbers = np.asarray(values.cast(dtype))
    with np.errstate(over="ignore"):
        before = np.concatenate([np.zeros(1, numbers.dtype), np.cumsum(numbers, dtype=numbers.dtype)])
        sums = before[stop] - before[first]  # modulo 2^64: exact wherever the sum is within the type
    sizes = np.concatenate([[0.0], np.cumsum(np.abs(numbers.astype(np.float64)))])
    beyond = np.zeros(len(lists), dtype=bool)
    info = np.iinfo(numbers.dtype)
    for row in np.flatnonzero(sizes[stop] - sizes[first] > 2.0**62):
        total = int(np.sum(numbers[first[row] : stop[row]].astype(object)))
        beyond[row] = not info.min <= total <= info.max
    return pa.array(sums, mask=empty | beyond), beyond if beyond.any() else None


def _sum_exactly(elements: np.ndarray) -> float:
    """The exact sum, rounded once; infinite where it or an element is, NaN between both infinities."""
    try:
        return math.fsum(elements)
    except (OverflowError, ValueError):
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sum(elements))


def local_time(times: pa.Array, zone: str) -> pa.Array:
    """What the clock shows in a zone."""
    moments = times.cast(pa.timestamp(times.type.unit)).cast(pa.timestamp(times.type.unit, "UTC"))
    return pc.local_timestamp(moments.cast(pa.timestamp(times.type.unit, zone)))


ON_HOST: dict[str, Callable[..., Any]] = {
    "get": get,
    "slice": slice,
    "sum": sum,
    "list contains": contains,
    "local_time": local_time,
}
