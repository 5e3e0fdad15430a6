"""Sketches of columns, on the CPU: one pass over values that lie in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms import column_sketch as sketches
from tasks.engines.algorithms.arrow_arrays import find_valid_rows, raw
from tasks.engines.algorithms.column_sketch import LeastHashes, Sketch
from tasks.engines.algorithms.moments import Moments, merge_moments, power_of, within
from tasks.engines.cpu.columns import Column, array, decode, is_list, leaves
from tasks.engines.cpu.groups import count_values, null_rows
from tasks.engines.hashing import murmur3
from tasks.engines.hashing.canonical import canonical_bits

CHUNK = 1 << 14  # values that stay in the first levels of cache with what is computed of them
TIMES = 1 << 16  # times whose moments are taken at once: fewer, longer steps, which threads disturb less
LONG = 1 << 18  # small integers that are counted at once
FEW = 8  # bytes of all integers of a range in which each is counted by a comparison, which is faster than a table


def sketch_column(
    column: Column, starts: Sequence[int], blocks: Sequence[int], known: Sequence[Moments] | None = None
) -> Sketch:
    """Sketch a column without lists, whose rows [starts[i], starts[i + 1]) are those of the block blocks[i].

    `known`: the moments of each block, if an operator has computed them already.
    """
    arrow = array(column)
    dtype = arrow.type.value_type if pa.types.is_dictionary(arrow.type) else arrow.type
    kind = sketches.kind(dtype)
    if kind == "other" or not len(arrow):
        return sketches.empty(kind, len(arrow), arrow.null_count)
    if kind in ("text", "bytes"):
        return sketch_counts(count_values([column], ["v0"]), whole=False)
    arrow = array(decode(column))
    valid = find_valid_rows(arrow)
    stored = raw(arrow)
    if kind == "time":
        stored = canonical_bits(stored, dtype, np).view(np.int64)
    if kind == "float":
        return _floats(stored, valid, starts, blocks, known)
    values = stored if valid is None else _present(stored, valid)
    if kind == "time":
        return _times(values, arrow.null_count, valid, starts, blocks)
    return _integers(kind, values, arrow.null_count)


def sketch_leaves(
    column: Column, starts: Sequence[int], blocks: Sequence[int], known: Sequence[Moments] | None = None
) -> Sketch:
    """Sketch a column, or the elements of its lists; a null list counts as a null element.

    The elements of all blocks count as those of the first one.
    """
    if not is_list(column):
        return sketch_column(column, starts, blocks, known)
    null = null_rows([column])
    while is_list(column):
        column = leaves(column)
    out = sketch_column(column, [0, len(column)], blocks[:1])
    nulls = 0 if null is None else int(null.sum())
    return replace(out, rows=out.rows + nulls, nulls=out.nulls + nulls)


def sketch_counts(counts: pa.Table, whole: bool) -> Sketch:
    """Sketch a table of distinct values and their `count`, nulls among them.

    `whole`: no other table has any of its values, so that their number is exact.
    """
    values = array(counts.column(0))
    numbers = raw(array(counts.column("count")))
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = sketches.kind(values.type)
    nulls = 0
    if values.null_count:
        null = values.is_null().to_numpy(zero_copy_only=False)
        nulls = int(numbers[null].sum())
        values = values.drop_null()
        numbers = numbers[~null]
    if not whole:
        return sketches.of_counts(kind, values, numbers, nulls)
    return _complete(kind, values, numbers, nulls)


def _complete(kind: str, values: pa.Array, counts: np.ndarray, nulls: int) -> Sketch:
    out = sketches.complete(kind, int(counts.sum()) + nulls, nulls, len(values))
    if kind in ("text", "integer", "bytes"):
        hashes = murmur3.hash_array(values)
        out.buckets = np.bincount(hashes & (sketches.BUCKETS - 1), weights=counts, minlength=sketches.BUCKETS)
        out.buckets = out.buckets.astype(np.int64)
    if kind in ("text", "integer") and len(values):
        plain = values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values
        table = pa.table({"value": plain, "count": counts})
        keys = [("count", "descending"), ("value", "ascending")]
        best = table.take(pc.select_k_unstable(table, min(sketches.TOP, len(table)), keys))
        out.top = list(zip(best["value"].to_pylist(), best["count"].to_pylist(), strict=True))
        low, high = pc.min_max(plain).values()
        out.low = low.as_py()
        out.high = high.as_py()
    if kind in ("integer", "time", "float") and len(values):
        stored = raw(values)
        stored = canonical_bits(stored, values.type, np).view(np.int64) if kind == "time" else stored
        numbers = stored.astype(np.float64) + 0.0
        out.bins = sketches.number_bins(numbers, counts)
        finite = np.isfinite(numbers)
        if not finite.all():
            out.infinite = int(counts[~finite].sum())
            stored = stored[finite]
            numbers = numbers[finite]
            counts = counts[finite]
        if len(numbers):
            out.low = stored.min().item()
            out.high = stored.max().item()
            out.tree = {(-1, 0): sketches.weighted_moments(numbers, counts, np)}
    return out


def _present(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The values that are not null; by runs that stay in the cache."""
    out = np.empty(int(np.count_nonzero(valid)), values.dtype)
    end = 0
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK][valid[start : start + CHUNK]]
        out[end : end + len(part)] = part
        end += len(part)
    return out


def _integers(kind: str, values: np.ndarray, nulls: int) -> Sketch:
    if not len(values):
        return sketches.empty(kind, nulls, nulls)
    low = int(values.min())
    high = int(values.max())
    if kind == "integer" and high - low < sketches.SPAN:
        return sketches.of_counts(kind, *_counts(values, low, high), nulls)
    out = Sketch(kind, len(values) + nulls, nulls, low=low, high=high)
    hashes = LeastHashes()
    total = 0
    squares = 0
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK]
        hashes.add(sketches.hash_bits(sketches.integer_bits(part, np), np))
        here = sketches.integer_sums(part, int(part.min()), int(part.max()), np)
        total = total + here[0]
        squares = squares + here[1]
    out.least = hashes.settle()
    out.sums = (total, squares)
    return out


def _counts(values: np.ndarray, low: int, high: int) -> tuple[pa.Array, np.ndarray]:
    """(distinct values, ascending for all but int8; how many each has) of integers of a small range."""
    if (high - low + 1) * values.dtype.itemsize <= FEW:
        each = range(low, high + 1)
        counts = np.array(
            [sum(np.count_nonzero(part == value) for part in _split_chunks(values, LONG)) for value in each]
        )
        numbers = np.array(each, dtype=values.dtype)
        return pa.array(numbers[counts > 0]), counts[counts > 0]
    if values.dtype.itemsize == 1:
        counts = _count_bytes(values.view(np.uint8))
        places = np.flatnonzero(counts)
        return pa.array(places.astype(np.uint8).view(values.dtype)), counts[places]
    wide = np.uint64 if values.dtype == np.uint64 else np.int64
    first = 0 if low >= 0 and high < sketches.SPAN else low
    counts = np.zeros(high - first + 1, dtype=np.int64)
    for part in _split_chunks(values, LONG):
        counts += np.bincount(part.astype(wide) - wide(first) if first else part, minlength=len(counts))
    places = np.flatnonzero(counts)
    return pa.array((places.astype(wide) + wide(first)).astype(values.dtype)), counts[places]


def _split_chunks(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _count_bytes(values: np.ndarray) -> np.ndarray:
    """Count how often each byte occurs: two at once are one uint16."""
    even = len(values) & ~1
    pairs = np.zeros(1 << 16, dtype=np.int64)
    for part in _split_chunks(values[:even].view(np.uint16), LONG):
        pairs += np.bincount(part, minlength=1 << 16)
    table = pairs.reshape(256, 256)
    counts: np.ndarray = table.sum(axis=0) + table.sum(axis=1)
    counts[values[even:]] += 1
    return counts


def _times(
    values: np.ndarray, nulls: int, valid: np.ndarray | None, starts: Sequence[int], blocks: Sequence[int]
) -> Sketch:
    """Sketch times, given as integers without the null ones; `starts` counts those, too."""
    if not len(values):
        return sketches.empty("time", nulls, nulls)
    out = Sketch("time", len(values) + nulls, nulls)
    edges = starts if valid is None else [int(np.count_nonzero(valid[:start])) for start in starts]
    extremes: list[int] = []
    ahead = np.empty(TIMES, np.int64)
    numbers = np.empty(TIMES)
    for i, block in enumerate(blocks):
        moments: Moments = (0, 0.0, 0.0, 0.0, 0.0)
        for part in _split_chunks(values[edges[i] : edges[i + 1]], TIMES):
            low = int(part.min())
            high = int(part.max())
            extremes += [low, high]
            moments = merge_moments(moments, _time_moments(part, low, high, ahead, numbers))
        if moments[0]:
            out.tree[0, block] = moments
    out.low = min(extremes)
    out.high = max(extremes)
    return out


def _time_moments(part: np.ndarray, low: int, high: int, ahead: np.ndarray, numbers: np.ndarray) -> Moments:
    """Compute the moments of a chunk of times between `low` and `high`; `ahead` and `numbers` are buffers.

    Times are counted from the one in the first row, so that their sum is exact and the sum of their squares loses no
    more than the number of values times the precision of float64: the first row cannot be farther from the mean than
    sqrt(n) standard deviations.
    """
    n = len(part)
    first = int(part[0])
    if (high - low).bit_length() + TIMES.bit_length() > 64:  # n (high - low) may be 2^63 or more
        return _moments_of(part.astype(np.float64), float(low), float(high))
    ahead = ahead[:n]
    numbers = numbers[:n]
    np.subtract(part, part[0], out=ahead)
    mean = int(np.add.reduce(ahead)) / n
    numbers[...] = ahead
    squares = max(float(np.einsum("i,i->", numbers, numbers)) - n * mean * mean, 0.0)
    return n, within(first + mean, 0, float(low), float(high)), squares, float(low), float(high)


def _floats(
    values: np.ndarray,
    valid: np.ndarray | None,
    starts: Sequence[int],
    blocks: Sequence[int],
    known: Sequence[Moments] | None,
) -> Sketch:
    out = sketches.empty("float", len(values), 0)
    extremes = list[float]()
    nulls = len(values)
    for i, block in enumerate(blocks):
        moments: Moments = (0, 0.0, 0.0, 0.0, 0.0)
        is_known = known is not None and all(map(math.isfinite, known[i]))
        if is_known and known is not None:
            moments = known[i]
            nulls -= moments[0]
        for start in range(starts[i], starts[i + 1], CHUNK) if not is_known else ():
            here = slice(start, min(start + CHUNK, starts[i + 1]))
            part = values[here] if valid is None else values[here][valid[here]]
            if not len(part):
                continue
            part, of_chunk, infinite = _chunk(part.astype(np.float64, copy=False))
            moments = merge_moments(moments, of_chunk)
            out.infinite += infinite
            nulls -= len(part)
        if moments[0]:
            out.tree[0, block] = moments
            extremes += [moments[3], moments[4]]
    out.nulls = nulls
    out.low, out.high = (min(extremes), max(extremes)) if extremes else (None, None)
    return out


def _chunk(part: np.ndarray) -> tuple[np.ndarray, Moments, int]:
    """(the values without NaN, the moments of the finite ones, how many are infinite)."""
    low = float(part.min())
    high = float(part.max())
    finite = part
    if not (math.isfinite(low) and math.isfinite(high)):
        part = part[~np.isnan(part)]
        finite = part[np.isfinite(part)]
        if not len(finite):
            return part, (0, 0.0, 0.0, 0.0, 0.0), len(part)
        low = float(finite.min())
        high = float(finite.max())
    return part, _moments_of(finite, low, high), len(part) - len(finite)


def _moments_of(finite: np.ndarray, low: float, high: float) -> Moments:
    power = power_of(low, high)
    data = np.ldexp(finite, -power) if power else finite
    n = len(data)
    mean = float(np.add.reduce(data)) / n
    deviations = data - mean
    shift = float(np.add.reduce(deviations)) / n
    squares = max(float(np.einsum("i,i->", deviations, deviations)) - n * shift * shift, 0.0)
    return n, within(mean + shift, power, low, high), squares, low, high
