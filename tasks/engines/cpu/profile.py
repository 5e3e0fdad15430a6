"""Sketches of columns, on the CPU: one pass over values that lie in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms import column_sketch as sketches
from tasks.engines.algorithms.arrow_arrays import raw
from tasks.engines.algorithms.column_sketch import LeastHashes, Sketch
from tasks.engines.algorithms.moments import Moments, joined, power_of, within
from tasks.engines.cpu.columns import Column, array, decode, is_list, leaves
from tasks.engines.cpu.groups import count_values, null_rows
from tasks.engines.hashing import murmur3
from tasks.engines.hashing.canonical import canonical_bits

CHUNK = 1 << 14  # values that stay in the first levels of cache with what is computed of them
MINUS_ZERO = sketches.hashed(np.array([-0.0]).view(np.uint64), np)[0]
TIMES = 1 << 16  # times whose moments are taken at once: fewer, longer steps, which threads disturb less
COUNTED = 8  # chunks whose bins are counted at once
LONG = 1 << 18  # small integers that are counted at once
FEW = 8  # bytes of all integers of a range in which each is counted by a comparison, which is faster than a table


def sketch_column(
    column: Column, starts: Sequence[int], blocks: Sequence[int], known: Sequence[Moments] | None = None,
    sample: bool = True, places: Any = None,
) -> Sketch:  # fmt: skip
    """The sketch of a column without lists, whose rows [starts[i], starts[i + 1]) are those of the block blocks[i].

    `known` are the moments of each block, if an operator has computed them already. Without `sample` all rows are in
    the histogram of numbers. `places` are the `sampled_places`, for who has them already.
    """
    arrow = array(column)
    dtype = arrow.type.value_type if pa.types.is_dictionary(arrow.type) else arrow.type
    kind = sketches.kind(dtype)
    if kind == "other" or not len(arrow):
        return sketches.empty(kind, len(arrow), arrow.null_count)
    if kind in ("text", "bytes"):
        return sketch_counts(count_values([column], ["v0"]), whole=False)
    arrow = array(decode(column))
    valid = None if arrow.null_count == 0 else arrow.is_valid().to_numpy(zero_copy_only=False)
    stored = raw(arrow)
    if kind == "time":
        stored = canonical_bits(stored, dtype, np).view(np.int64)
    every = not sample or len(arrow) <= sketches.WHOLE
    if kind == "float":
        out = _floats(stored, valid, starts, blocks, known, every)
    else:
        values = stored if valid is None else _present(stored, valid)
        if kind == "time":
            out = _times(values, arrow.null_count, valid, starts, blocks, every)
        else:
            out = _integers(kind, values, arrow.null_count, every)
    if sample and not sketches.always_counted(dtype):
        places = sketches.sampled_places(starts, np) if places is None else places
        chosen = sketches.sampled_values(stored, valid, places, np)
        out.sample = sketches.number_bins(chosen)
        if kind in ("float", "time"):
            out.sample_least = sketches.least(sketches.hashed(chosen.view(np.uint64), np))
    if not every:
        out.bins, out.least = None, out.least if kind == "integer" else None
    return out


def sketch_leaves(
    column: Column, starts: Sequence[int], blocks: Sequence[int], known: Sequence[Moments] | None = None,
    places: Any = None,
) -> Sketch:  # fmt: skip
    """The sketch of a column, of lists that of their elements; a null list counts as a null element.

    The elements of all blocks count as those of the first one.
    """
    if not is_list(column):
        return sketch_column(column, starts, blocks, known, places=places)
    null = null_rows([column])
    while is_list(column):
        column = leaves(column)
    out = sketch_column(column, [0, len(column)], blocks[:1], sample=False)
    nulls = 0 if null is None else int(null.sum())
    return replace(out, rows=out.rows + nulls, nulls=out.nulls + nulls, sample=None, sample_least=None)


def sketch_counts(counts: pa.Table, whole: bool) -> Sketch:
    """The sketch of a table of distinct values and their `count`, nulls among them.

    `whole`: no other table has any of its values, so that their number is exact.
    """
    values, numbers = array(counts.column(0)), raw(array(counts.column("count")))
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind, nulls = sketches.kind(values.type), 0
    if values.null_count:
        null = values.is_null().to_numpy(zero_copy_only=False)
        nulls = int(numbers[null].sum())
        values, numbers = values.drop_null(), numbers[~null]
    if not whole:
        return sketches.of_counts(kind, values, numbers, nulls)
    return _complete(kind, values, numbers, nulls)


def _complete(kind: str, values: pa.Array, counts: np.ndarray, nulls: int) -> Sketch:
    out = sketches.empty(kind, int(counts.sum()) + nulls, nulls)
    out.table, out.least, out.sums, out.distinct = None, None, None, len(values)
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
        out.low, out.high = low.as_py(), high.as_py()
    if kind in ("integer", "time", "float") and len(values):
        stored = raw(values)
        stored = canonical_bits(stored, values.type, np).view(np.int64) if kind == "time" else stored
        numbers = stored.astype(np.float64) + 0.0
        out.bins = sketches.number_bins(numbers, counts)
        finite = np.isfinite(numbers)
        if not finite.all():
            out.infinite = int(counts[~finite].sum())
            stored, numbers, counts = stored[finite], numbers[finite], counts[finite]
        if len(numbers):
            out.low, out.high = stored.min().item(), stored.max().item()
            out.tree = {(-1, 0): sketches.weighted_moments(numbers, counts, np)}
    return out


def _present(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The values that are not null; by runs that stay in the cache."""
    out, end = np.empty(int(np.count_nonzero(valid)), values.dtype), 0
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK][valid[start : start + CHUNK]]
        out[end : end + len(part)] = part
        end += len(part)
    return out


def _integers(kind: str, values: np.ndarray, nulls: int, every: bool) -> Sketch:
    if not len(values):
        return sketches.empty(kind, nulls, nulls)
    low, high = int(values.min()), int(values.max())
    if kind == "integer" and high - low < sketches.SPAN:
        return sketches.of_counts(kind, *_counts(values, low, high), nulls)
    out = Sketch(kind, len(values) + nulls, nulls, low=low, high=high)
    many, total, squares = _Values(every), 0, 0
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK]
        many.add(part, sketches.integer_bits(part, np))
        here = sketches.integer_sums(part, int(part.min()), int(part.max()), np)
        total, squares = total + here[0], squares + here[1]
    out.bins, out.least, out.sums = many.bins(), many.hashes.settle(), (total, squares)
    return out


def _counts(values: np.ndarray, low: int, high: int) -> tuple[pa.Array, np.ndarray]:
    """(distinct values, ascending for all but int8; how many each has) of integers of a small range."""
    if (high - low + 1) * values.dtype.itemsize <= FEW:
        each = range(low, high + 1)
        counts = np.array([sum(np.count_nonzero(part == value) for part in _parts(values, LONG)) for value in each])
        numbers = np.array(each, dtype=values.dtype)
        return pa.array(numbers[counts > 0]), counts[counts > 0]
    if values.dtype.itemsize == 1:
        counts = _counted_bytes(values.view(np.uint8))
        places = np.flatnonzero(counts)
        return pa.array(places.astype(np.uint8).view(values.dtype)), counts[places]
    wide = np.uint64 if values.dtype == np.uint64 else np.int64
    first = 0 if low >= 0 and high < sketches.SPAN else low
    counts = np.zeros(high - first + 1, dtype=np.int64)
    for part in _parts(values, LONG):
        counts += np.bincount(part.astype(wide) - wide(first) if first else part, minlength=len(counts))
    places = np.flatnonzero(counts)
    return pa.array((places.astype(wide) + wide(first)).astype(values.dtype)), counts[places]


def _parts(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _counted_bytes(values: np.ndarray) -> np.ndarray:
    """How often each byte is there: two at once are one uint16."""
    even = len(values) & ~1
    pairs = np.zeros(1 << 16, dtype=np.int64)
    for part in _parts(values[:even].view(np.uint16), LONG):
        pairs += np.bincount(part, minlength=1 << 16)
    table = pairs.reshape(256, 256)
    counts: np.ndarray = table.sum(axis=0) + table.sum(axis=1)
    counts[values[even:]] += 1
    return counts


def _times(
    values: np.ndarray, nulls: int, valid: np.ndarray | None, starts: Sequence[int], blocks: Sequence[int],
    every: bool,
) -> Sketch:  # fmt: skip
    """The sketch of times, as integers without the null ones; `starts` counts those, too."""
    if not len(values):
        return sketches.empty("time", nulls, nulls)
    out = Sketch("time", len(values) + nulls, nulls)
    edges = starts if valid is None else [int(np.count_nonzero(valid[:start])) for start in starts]
    many, extremes = _Values() if every else None, []
    ahead, numbers = np.empty(TIMES, np.int64), np.empty(TIMES)
    for i, block in enumerate(blocks):
        moments: Moments = (0, 0.0, 0.0, 0.0, 0.0)
        for part in _parts(values[edges[i] : edges[i + 1]], TIMES):
            low, high = int(part.min()), int(part.max())
            extremes += [low, high]
            moments = joined(moments, _time_moments(part, low, high, ahead, numbers))
            if many is not None:
                for chunk in _parts(part, CHUNK):
                    many.add(chunk, chunk.view(np.uint64))
        if moments[0]:
            out.tree[0, block] = moments
    out.low, out.high = min(extremes), max(extremes)
    out.bins, out.least = (None, None) if many is None else (many.bins(), many.hashes.settle())
    return out


def _time_moments(part: np.ndarray, low: int, high: int, ahead: np.ndarray, numbers: np.ndarray) -> Moments:
    """The moments of a chunk of times between `low` and `high`; `ahead` and `numbers` are room for as many numbers.

    Times are counted from the one in the first row, so that their sum is exact and the sum of their squares loses no
    more than the number of values times the precision of float64: the first row cannot be farther from the mean than
    sqrt(n) standard deviations.
    """
    n, first = len(part), int(part[0])
    if (high - low).bit_length() + TIMES.bit_length() > 64:  # n (high - low) may be 2^63 or more
        return _moments_of(part.astype(np.float64), float(low), float(high))
    ahead, numbers = ahead[:n], numbers[:n]
    np.subtract(part, part[0], out=ahead)
    mean = int(np.add.reduce(ahead)) / n
    numbers[...] = ahead
    squares = max(float(np.einsum("i,i->", numbers, numbers)) - n * mean * mean, 0.0)
    return n, within(first + mean, 0, float(low), float(high)), squares, float(low), float(high)


class _Values:
    """The least hashes of many values, which come by chunks, and their histogram if `every` value is in it."""

    def __init__(self, every: bool = True) -> None:
        self.hashes = LeastHashes()
        self.counts = np.zeros(sketches.BINS, dtype=np.int64) if every else None
        self.codes: list[np.ndarray] = []  # of the bins, which are counted a number of chunks at once
        self.hash, self.spare = np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint64)
        self.small = np.empty(CHUNK, bool)

    def add(self, numbers: np.ndarray, bits: np.ndarray) -> None:
        """Add at most a chunk of numbers, and the uint64 by which the values differ."""
        rows = len(numbers)
        if self.counts is not None:
            self.codes.append(sketches.bin_codes(numbers, np))
            if len(self.codes) == COUNTED:
                self._count()
        hashes, spare = self.hash[:rows], self.spare[:rows]
        np.right_shift(bits, np.uint64(29), out=spare)
        np.bitwise_xor(bits, spare, out=hashes)
        np.multiply(hashes, np.uint64(sketches.FACTOR), out=hashes)
        if self.hashes.limit is None:
            self.hashes.add(hashes.copy())
            return
        (small,) = np.less(hashes, self.hashes.limit, out=self.small[:rows]).nonzero()
        if len(small):
            self.hashes.add(hashes[small])

    def least(self) -> np.ndarray:
        known = self.hashes.settle()
        if len(known) < sketches.LEAST:  # both zeros are one number
            known = sketches.unique(np.where(known == MINUS_ZERO, np.uint64(0), known))
        return known

    def bins(self) -> sketches.Bins | None:
        """The histogram; None unless `every` value is in it."""
        if self.counts is None:
            return None
        self._count()
        return sketches.ordered_bins(self.counts)

    def _count(self) -> None:
        if self.counts is not None and self.codes:
            self.counts += np.bincount(np.concatenate(self.codes), minlength=sketches.BINS)
            self.codes = []


def _floats(
    values: np.ndarray, valid: np.ndarray | None, starts: Sequence[int], blocks: Sequence[int],
    known: Sequence[Moments] | None, every: bool,
) -> Sketch:  # fmt: skip
    out = sketches.empty("float", len(values), 0)
    many, extremes, nulls = _Values() if every else None, [], len(values)
    for i, block in enumerate(blocks):
        moments: Moments = (0, 0.0, 0.0, 0.0, 0.0)
        is_known = known is not None and all(map(math.isfinite, known[i]))
        if is_known and known is not None:
            moments = known[i]
            nulls -= moments[0]
        for start in range(starts[i], starts[i + 1], CHUNK) if every or not is_known else ():
            here = slice(start, min(start + CHUNK, starts[i + 1]))
            part = values[here] if valid is None else values[here][valid[here]]
            part = part.astype(np.float64, copy=False)
            if not len(part):
                continue
            if not is_known:
                part, of_chunk, infinite = _chunk(part)
                moments = joined(moments, of_chunk)
                out.infinite += infinite
                nulls -= len(part)
            if many is not None:
                many.add(part, part.view(np.uint64))
        if moments[0]:
            out.tree[0, block] = moments
            extremes += [moments[3], moments[4]]
    out.nulls = nulls
    out.low, out.high = (min(extremes), max(extremes)) if extremes else (None, None)
    out.bins, out.least = (None, None) if many is None else (many.bins(), many.least())
    return out


def _chunk(part: np.ndarray) -> tuple[np.ndarray, Moments, int]:
    """(the values without NaN, the moments of the finite ones, how many are infinite)."""
    low, high = float(part.min()), float(part.max())
    finite = part
    if not (math.isfinite(low) and math.isfinite(high)):
        part = part[~np.isnan(part)]
        finite = part[np.isfinite(part)]
        if not len(finite):
            return part, (0, 0.0, 0.0, 0.0, 0.0), len(part)
        low, high = float(finite.min()), float(finite.max())
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
