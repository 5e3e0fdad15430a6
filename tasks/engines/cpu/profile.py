"""Sketches of columns, on the CPU: one pass over values that lie in the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms import column_sketch as sketches
from tasks.engines.algorithms.arrow_arrays import raw
from tasks.engines.algorithms.column_sketch import LeastHashes, Sketch
from tasks.engines.algorithms.moments import Moments, joined, power_of, within
from tasks.engines.cpu.columns import Column, array, decode
from tasks.engines.cpu.groups import count_values
from tasks.engines.hashing import murmur3
from tasks.engines.hashing.canonical import canonical_bits

CHUNK = 1 << 14  # values that stay in the first levels of cache with what is computed of them
LONG = 1 << 18  # values that are counted at once


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
    return _integers(kind, values, arrow.null_count)


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
    hashes, codes, total, squares = LeastHashes(), np.empty(len(values), np.uint16), 0, 0
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK]
        codes[start : start + CHUNK] = part.astype(np.float64).view(np.uint16)[3::4]
        hashes.add(sketches.hashed(sketches.integer_bits(part, np), np))
        here = sketches.integer_sums(part, int(part.min()), int(part.max()), np)
        total, squares = total + here[0], squares + here[1]
    out.bins, out.least, out.sums = sketches.ordered_bins(_counted(codes)), hashes.settle(), (total, squares)
    return out


def _counted(codes: np.ndarray, size: int = sketches.BINS) -> np.ndarray:
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(codes), LONG):
        counts += np.bincount(codes[start : start + LONG], minlength=size)
    return counts


def _floats(
    values: np.ndarray, valid: np.ndarray | None, starts: Sequence[int], blocks: Sequence[int],
    known: Sequence[Moments] | None,
) -> Sketch:  # fmt: skip
    out = sketches.empty("float", len(values), 0)
    hashes, codes, end, extremes = LeastHashes(), np.empty(len(values), np.uint16), 0, []
    for i, block in enumerate(blocks):
        moments: Moments = (0, 0.0, 0.0, 0.0, 0.0)
        is_known = known is not None and all(map(math.isfinite, known[i]))
        for start in range(starts[i], starts[i + 1], CHUNK):
            here = slice(start, min(start + CHUNK, starts[i + 1]))
            part = np.add(values[here] if valid is None else values[here][valid[here]], 0.0, dtype=np.float64)
            if not len(part):
                continue
            if not is_known:
                part, of_chunk, infinite = _chunk(part)
                moments = joined(moments, of_chunk)
                out.infinite += infinite
            codes[end : end + len(part)] = part.view(np.uint16)[3::4]
            end += len(part)
            hashes.add(sketches.hashed(part.view(np.uint64), np))
        if is_known and known is not None:
            moments = known[i]
        if moments[0]:
            out.tree[0, block] = moments
            extremes += [moments[3], moments[4]]
    out.nulls = len(values) - end
    out.low, out.high = (min(extremes), max(extremes)) if extremes else (None, None)
    out.bins, out.least = sketches.ordered_bins(_counted(codes[:end])), hashes.settle()
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
