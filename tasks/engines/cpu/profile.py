"""Sketches of columns, on the CPU: one pass over values that lie in the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

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
COUNTED = 1 << 17  # values whose bins are counted at once
LONG = 1 << 18  # the same, of small integers


def sketch_column(
    column: Column, starts: Sequence[int], blocks: Sequence[int], known: Sequence[Moments] | None = None
) -> Sketch:
    """The sketch of a column that is no list, whose rows [starts[i], starts[i + 1]) are those of the block blocks[i].

    `known` are the moments of each block, if an operator has computed them already.
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
    if kind == "float":
        return _floats(raw(arrow), valid, starts, blocks, known)
    values = raw(arrow) if valid is None else _present(raw(arrow), valid)
    if kind == "time":
        values = canonical_bits(values, dtype, np).view(np.int64)
        return _times(values, arrow.null_count, valid, starts, blocks)
    return _integers(kind, values, arrow.null_count)


def sketch_leaves(
    column: Column, starts: Sequence[int], blocks: Sequence[int], known: Sequence[Moments] | None = None
) -> Sketch:
    """The sketch of a column, of lists that of their elements; a null list counts as a null element.

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


def _integers(kind: str, values: np.ndarray, nulls: int) -> Sketch:
    if not len(values):
        return sketches.empty(kind, nulls, nulls)
    low, high = int(values.min()), int(values.max())
    if kind == "integer" and high - low < sketches.SPAN:
        narrow = values.view(np.uint8) if values.dtype.itemsize == 1 else None
        if narrow is not None:
            counts = _counted(narrow, 256)
            places = np.flatnonzero(counts)
            numbers = places.astype(np.uint8).view(values.dtype)
        else:
            wide = np.uint64 if values.dtype == np.uint64 else np.int64
            first = 0 if low >= 0 and high < sketches.SPAN else low
            counts = _counted(values.astype(wide) - wide(first) if first else values, high - first + 1)
            places = np.flatnonzero(counts)
            numbers = (places.astype(wide) + wide(first)).astype(values.dtype)
        return sketches.of_counts(kind, pa.array(numbers), counts[places], nulls)
    out = Sketch(kind, len(values) + nulls, nulls, low=low, high=high)
    many, total, squares = _Values(), 0, 0
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK]
        many.add(part.astype(np.float64), sketches.integer_bits(part, np))
        here = sketches.integer_sums(part, int(part.min()), int(part.max()), np)
        total, squares = total + here[0], squares + here[1]
    out.bins, out.least, out.sums = many.bins(), many.hashes.settle(), (total, squares)
    return out


def _times(
    values: np.ndarray, nulls: int, valid: np.ndarray | None, starts: Sequence[int], blocks: Sequence[int]
) -> Sketch:  # fmt: skip
    """The sketch of times, as integers without the null ones; `starts` counts those, too."""
    if not len(values):
        return sketches.empty("time", nulls, nulls)
    out = Sketch("time", len(values) + nulls, nulls, low=int(values.min()), high=int(values.max()))
    edges = starts if valid is None else [int(np.count_nonzero(valid[:start])) for start in starts]
    many = _Values()
    for i, block in enumerate(blocks):
        moments: Moments = (0, 0.0, 0.0, 0.0, 0.0)
        for start in range(edges[i], edges[i + 1], CHUNK):
            part = values[start : min(start + CHUNK, edges[i + 1])]
            numbers = part.astype(np.float64)
            moments = joined(moments, _chunk(numbers)[1])
            many.add(numbers, part.view(np.uint64))
        if moments[0]:
            out.tree[0, block] = moments
    out.bins, out.least = many.bins(), many.hashes.settle()
    return out


class _Values:
    """The histogram and the least hashes of many values, which come by chunks."""

    def __init__(self) -> None:
        self.hashes = LeastHashes()
        self.counts = np.zeros(sketches.BINS, dtype=np.int64)
        self.codes, self.end = np.empty(COUNTED, np.uint64), 0
        self.hash, self.spare = np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint64)
        self.small = np.empty(CHUNK, bool)

    def add(self, numbers: np.ndarray, bits: np.ndarray) -> None:
        """Add at most a chunk of float64 numbers, and the uint64 by which the values differ."""
        rows = len(numbers)
        if self.end + rows > COUNTED:
            self._count()
        np.right_shift(numbers.view(np.uint64), np.uint64(48), out=self.codes[self.end : self.end + rows])
        self.end += rows
        hashes, spare = self.hash[:rows], self.spare[:rows]
        np.right_shift(bits, np.uint64(29), out=spare)
        np.bitwise_xor(bits, spare, out=hashes)
        np.multiply(hashes, np.uint64(sketches.FACTOR), out=hashes)
        if self.hashes.limit is None:
            self.hashes.add(hashes.copy())
            return
        small = np.less(hashes, self.hashes.limit, out=self.small[:rows])
        if small.any():
            self.hashes.add(hashes[np.flatnonzero(small)])

    def _count(self) -> None:
        self.counts += np.bincount(self.codes[: self.end].view(np.int64), minlength=sketches.BINS)
        self.end = 0

    def least(self) -> np.ndarray:
        known = self.hashes.settle()
        if len(known) < sketches.LEAST:  # both zeros are one number
            known = sketches.unique(np.where(known == MINUS_ZERO, np.uint64(0), known))
        return known

    def bins(self) -> sketches.Bins:
        self._count()
        return sketches.ordered_bins(self.counts)


def _counted(codes: np.ndarray, size: int) -> np.ndarray:
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(codes), LONG):
        counts += np.bincount(codes[start : start + LONG], minlength=size)
    return counts


def _floats(
    values: np.ndarray, valid: np.ndarray | None, starts: Sequence[int], blocks: Sequence[int],
    known: Sequence[Moments] | None,
) -> Sketch:  # fmt: skip
    out = sketches.empty("float", len(values), 0)
    many, extremes, nulls = _Values(), [], len(values)
    for i, block in enumerate(blocks):
        moments: Moments = (0, 0.0, 0.0, 0.0, 0.0)
        is_known = known is not None and all(map(math.isfinite, known[i]))
        for start in range(starts[i], starts[i + 1], CHUNK):
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
            many.add(part, part.view(np.uint64))
        if is_known and known is not None:
            moments = known[i]
        if moments[0]:
            out.tree[0, block] = moments
            extremes += [moments[3], moments[4]]
    out.nulls = nulls
    out.low, out.high = (min(extremes), max(extremes)) if extremes else (None, None)
    out.bins, out.least = many.bins(), many.least()
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
    power = power_of(low, high)
    data = np.ldexp(finite, -power) if power else finite
    n = len(data)
    mean = float(np.add.reduce(data)) / n
    deviations = data - mean
    shift = float(np.add.reduce(deviations)) / n
    np.multiply(deviations, deviations, out=deviations)
    squares = max(float(np.add.reduce(deviations)) - n * shift * shift, 0.0)
    return part, (n, within(mean + shift, power, low, high), squares, low, high), len(part) - n
