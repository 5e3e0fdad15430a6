"""Sketches of all values of a column: counts, extremes, moments, distinct values; merged in any order.

The values of a column that has few distinct ones are counted one by one (`Sketch.table`). For other columns of texts or
integers, the sketch holds the least hashes of the values, which estimate how many are distinct (Bar-Yossef and others,
"Counting distinct elements in a data stream", 2002), and for texts a histogram by hash. Distributions of numbers come
from a sample of the rows (`tasks.graph.row_sample`).

The same rows make the same sketch, in whatever parts and order they are read: whether values are counted depends on all
rows together, moments of floats are merged along one tree over blocks, and sums of integers are exact.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import kind_of
from tasks.engines.algorithms import exact_sums
from tasks.engines.algorithms.moments import Moments, merge_moments
from tasks.engines.algorithms.reductions import extremes, sum_on_device, total
from tasks.engines.hashing import murmur3
from tasks.engines.types import Array

TABLE = 4096  # distinct values up to this number are counted one by one ..
SPAN = 1 << 17  # .. if they are texts, or integers of a range up to this
LEAST = 2048  # hashes that estimate the number of distinct values: two standard errors are 4.4 %
BUCKETS = 1024
TOP = 100
BINS = 1 << 16
FACTOR = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: Knuth's multiplicative hash

Bins = tuple[np.ndarray, np.ndarray]  # (bins, ascending; how many values each has)
Tree = dict[tuple[int, int], Moments]  # (level, index) -> moments of the blocks [index 2^level, (index + 1) 2^level)


def kind(dtype: pa.DataType) -> str:
    """Say how values of a type are sketched: as text, bytes, integer, time, float, or other (not at all)."""
    if pa.types.is_null(dtype):
        return "other"
    if pa.types.is_integer(dtype) or pa.types.is_boolean(dtype):
        return "integer"
    if pa.types.is_binary(dtype) or pa.types.is_fixed_size_binary(dtype):
        return "bytes"
    return {"number": "float", "string": "text", "time": "time"}.get(kind_of(dtype), "other")


@dataclass
class Sketch:
    """Counts, extremes and hashes of the values of some rows of a column, as plain values and NumPy arrays.

    `low` and `high` are of finite values. A sketch of texts or integers has their distinct values in one of these ways:

    - `table` has the count of each value;
    - `distinct` is their exact number, `top` the most frequent ones and `bins` the histogram of numbers: so for a table
      of counts whose values are in no other sketch;
    - `least` are the least hashes of the values.

    Floats and times have the second, or none of them.
    """

    kind: str
    rows: int
    nulls: int
    infinite: int = 0
    low: Any = None
    high: Any = None
    sums: tuple[int, int] | None = None  # of integers, and of their squares
    tree: Tree = field(default_factory=dict)
    bins: Bins | None = None
    buckets: np.ndarray | None = None
    least: np.ndarray | None = None
    table: tuple[list[Any], np.ndarray] | None = None
    distinct: int | None = None
    top: list[tuple[Any, int]] = field(default_factory=list)


def empty(kind: str, rows: int, nulls: int) -> Sketch:
    """Make the sketch of rows without values: only nulls, or values of the kind other."""
    out = Sketch(kind, rows, nulls)
    if kind in ("text", "integer"):
        out.table = [], np.empty(0, np.int64)
    if kind == "bytes":
        out.buckets = np.zeros(BUCKETS, np.int64)
    if kind == "integer":
        out.sums = 0, 0
    if kind == "bytes":
        out.least = np.empty(0, np.uint64)
    return out


def complete(kind: str, rows: int, nulls: int, distinct: int) -> Sketch:
    """Make the sketch of distinct values that no other sketch has; the caller adds histograms to it."""
    out = Sketch(kind, rows, nulls, distinct=distinct)
    if kind in ("float", "time", "integer"):
        out.bins = np.empty(0, np.uint16), np.empty(0, np.int64)
    return out


def of_counts(kind: str, values: pa.Array, counts: np.ndarray, nulls: int) -> Sketch:
    """Make the sketch of distinct texts, bytes or integers (none null) from how often each occurs."""
    rows = int(counts.sum()) + nulls
    sketch = Sketch(kind, rows, nulls)
    if kind == "integer":
        numbers = np.asarray(values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values)
        sketch.sums = weighted_sums(numbers, counts)
        sketch.low, sketch.high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (None, None)
        plain: list[Any] = numbers.tolist() if len(numbers) <= TABLE else []
    elif kind == "text":
        if len(values):
            sketch.low, sketch.high = _text_extremes(values)
        plain = values.to_pylist() if len(values) <= TABLE else []
    if kind != "bytes" and len(values) <= TABLE and _narrow(sketch):
        order = sorted(range(len(plain)), key=plain.__getitem__)  # a GPU counts in any order
        sketch.table = [plain[place] for place in order], counts.astype(np.int64)[order]
        return sketch
    _spread(sketch, values, counts)
    return sketch


def _narrow(sketch: Sketch) -> bool:
    return sketch.kind == "text" or sketch.low is None or int(sketch.high) - int(sketch.low) < SPAN


def _text_extremes(values: pa.Array) -> tuple[str, str]:
    low, high = pc.min_max(values).values()
    return low.as_py(), high.as_py()


def _spread(sketch: Sketch, values: pa.Array, counts: np.ndarray) -> None:
    """Replace the table of a sketch by the least hashes of its distinct values, and for texts a histogram by hash."""
    sketch.table = None
    if sketch.kind == "integer":
        numbers = np.asarray(values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values)
        sketch.least = least(hash_bits(integer_bits(numbers, np), np))
        return
    hashes = value_hashes(values)
    places = (hashes >> np.uint64(32)).astype(np.int64) & (BUCKETS - 1)
    sketch.buckets = np.bincount(places, weights=counts, minlength=BUCKETS).astype(np.int64)
    sketch.least = least(hashes)


def expand_table(sketch: Sketch) -> Sketch:
    """Return the same sketch with hashes in place of its table."""
    if sketch.table is None:
        return sketch
    out = replace(sketch, table=None)
    _spread(out, *table_of(sketch.kind, sketch.table))
    return out


def table_of(kind: str, table: tuple[list[Any], np.ndarray]) -> tuple[pa.Array, np.ndarray]:
    """Return the values of a sketch's table as an array, and their counts."""
    values, counts = table
    if kind == "text":
        return pa.array(values, pa.string()), counts
    return pa.array(values, pa.uint64() if values and max(values) >= 1 << 63 else pa.int64()), counts


def bin_codes(numbers: Array, xp: ModuleType) -> Array:
    """Return the upper 16 bits of numbers as float64, int64; `sort_bins` takes how often each code occurs."""
    return (numbers.astype(xp.float64, copy=False).view(xp.uint64) >> xp.uint64(48)).view(xp.int64)


def number_bins(numbers: np.ndarray, counts: np.ndarray | None = None) -> Bins:
    """Make the bins of numbers, each of which counts `counts` times (once without counts)."""
    return sort_bins(np.bincount(bin_codes(numbers, np), weights=counts, minlength=BINS))


def sort_bins(counts: np.ndarray) -> Bins:
    """Make the bins that have values, in the order of numbers, from the counts by the upper 16 bits of float64.

    Negative numbers nearer to zero than 2^-1026 are put into the bin of zero, also in `counts`.
    """
    counts[0] += counts[BINS // 2]
    counts[BINS // 2] = 0
    present = np.flatnonzero(counts != 0)
    places = np.where(present >= BINS // 2, BINS - 1 - present, present + BINS // 2)
    order = np.argsort(places)
    return places[order].astype(np.uint16), counts[present[order]].astype(np.int64)


def integer_bits(numbers: Array, xp: ModuleType) -> Array:
    """Convert integers to uint64: the same number for the same integer of any width."""
    return numbers if numbers.dtype == xp.uint64 else numbers.astype(xp.int64, copy=False).view(xp.uint64)


def hash_bits(bits: Array, xp: ModuleType) -> Array:
    """Hash uint64 numbers cheaply, spread over all 64 bits."""
    return (bits ^ (bits >> xp.uint64(29))) * xp.uint64(FACTOR)


def value_hashes(values: pa.Array) -> np.ndarray:
    """Hash values to uint64: MurmurHash3 with the seeds 0 (the upper half) and 1."""
    high, low = (murmur3.hash_array(values, seed).astype(np.uint64) for seed in (0, 1))
    hashes: np.ndarray = high << np.uint64(32) | low
    return hashes


def least(hashes: np.ndarray, size: int = LEAST) -> np.ndarray:
    """Return the `size` least of the distinct hashes, ascending."""
    if len(hashes) > 8 * size:  # where most values are distinct, the least hashes are among a small share of all
        few = unique(hashes.take(np.flatnonzero(hashes < np.uint64((2 * size << 64) // len(hashes)))))
        if len(few) >= size:
            return few[:size]
    return unique(hashes)[:size]


def unique(numbers: np.ndarray) -> np.ndarray:
    """Return the distinct numbers, ascending.

    np.unique uses a hash table for integers, which is slower than sorting for some ten thousand numbers.
    """
    numbers = np.sort(numbers)
    return numbers[np.append(True, numbers[1:] != numbers[:-1])] if len(numbers) else numbers


class LeastHashes:
    """Collects the least hashes of many runs of values; most values cost one comparison."""

    def __init__(self) -> None:
        self.limit: np.uint64 | None = None
        self.known = np.empty(0, dtype=np.uint64)
        self.waiting: list[np.ndarray] = []
        self.count = 0
        places = np.arange(1 << 14, dtype=np.uint64)
        self.recent = (places ^ np.uint64(1)) << np.uint64(50)  # by the upper 14 bits, a hash that was collected

    def add(self, hashes: np.ndarray) -> None:
        if self.limit is not None:
            hashes = hashes[hashes < self.limit]
        if len(hashes) > 256:
            hashes = hashes[self.recent[hashes >> np.uint64(50)] != hashes]
            if len(hashes) > 256:
                hashes = unique(hashes)
            self.recent[hashes >> np.uint64(50)] = hashes
        if not len(hashes):
            return
        self.waiting.append(hashes)
        self.count += len(hashes)
        if self.count > 2 * LEAST:
            self.settle()

    def settle(self) -> np.ndarray:
        self.known = least(np.concatenate([self.known, *self.waiting]))
        self.waiting = []
        self.count = 0
        if len(self.known) == LEAST:
            self.limit = self.known[-1]
        return self.known


def weighted_sums(numbers: np.ndarray, counts: np.ndarray) -> tuple[int, int]:
    """Return (sum, sum of squares), exactly, of distinct integers that occur `counts` times."""
    if not len(numbers):
        return 0, 0
    most = max(abs(int(numbers.min())), abs(int(numbers.max())))
    if most * most * int(counts.sum()) < 1 << 63:
        wide = numbers.astype(np.int64) * counts
        return int(wide.sum()), int((wide * numbers.astype(np.int64)).sum())
    pairs = list(zip(numbers.tolist(), counts.tolist(), strict=True))
    return sum(v * n for v, n in pairs), sum(v * v * n for v, n in pairs)


def integer_sums(values: Array, low: int, high: int, xp: ModuleType) -> tuple[int, int]:
    """Return (sum, sum of squares), exactly, of at least one integer between `low` and `high`.

    The integers less `low` are cut into limbs so short that sums of products of two limbs fit 64 bits.
    """
    n = len(values)
    above = integer_bits(values, xp) - xp.uint64(low & 0xFFFFFFFFFFFFFFFF)
    bits = max((high - low).bit_length(), 1)
    parts = -(-bits // ((64 - n.bit_length()) // 2))  # n products of two limbs are summed in 64 bits
    width = -(-bits // parts)
    limbs = [above]
    for _ in range(parts - 1):
        limbs[-1:] = [limbs[-1] & xp.uint64((1 << width) - 1), limbs[-1] >> xp.uint64(width)]
    pairs = [(i, j) for i in range(parts) for j in range(i + 1)]
    sums = [sum_on_device(limb) for limb in limbs] + [sum_on_device(limbs[i] * limbs[j]) for i, j in pairs]
    whole = [int(value) for value in xp.concatenate(sums).tolist()]  # a GPU is waited for once
    once = sum(value << (i * width) for i, value in enumerate(whole[:parts]))
    squares = sum(
        (value << ((i + j) * width)) * (1 if i == j else 2) for (i, j), value in zip(pairs, whole[parts:], strict=True)
    )
    return once + n * low, squares + 2 * low * once + n * low * low


def weighted_moments(values: Array, counts: Array, xp: ModuleType) -> Moments:
    """Compute the moments of finite float64 values (at least one) that occur `counts` times; the same in any order."""
    n, (low, high) = total(counts), extremes(values)
    weights = counts.astype(xp.float64)

    def exactly(terms: Array) -> float:
        (whole,), _ = exact_sums.sums(terms, sum_on_device, len(values), xp)
        return float(whole)

    with np.errstate(over="ignore", invalid="ignore"):
        mean = exactly(values * weights) / n
        deviations = values - mean
        squares = exactly(deviations * deviations * weights)
    return n, min(max(mean, low), high), squares, low, high


def merge(sketches: Sequence[Sketch]) -> Sketch:
    """Merge the sketches of parts into the sketch of all their rows."""
    first = sketches[0]
    if len(sketches) == 1:
        return replace(first, tree=_merge_trees([first.tree]))
    out = Sketch(first.kind, sum(s.rows for s in sketches), sum(s.nulls for s in sketches))
    out.infinite = sum(s.infinite for s in sketches)
    lows = [(s.low, s.high) for s in sketches if s.low is not None]
    if lows:
        out.low = min(low for low, _ in lows)
        out.high = max(high for _, high in lows)
    out.tree = _merge_trees([s.tree for s in sketches])
    if all(s.distinct is not None for s in sketches):
        return _disjoint(out, sketches)
    sums = [s.sums for s in sketches if s.sums is not None]
    if len(sums) == len(sketches):
        out.sums = sum(total for total, _ in sums), sum(squares for _, squares in sums)
    if all(s.table is not None for s in sketches) and _narrow(out):
        counts: dict[Any, int] = {}
        for sketch in sketches:
            for value, count in zip(sketch.table[0], sketch.table[1].tolist(), strict=True):  # type: ignore[index]
                counts[value] = counts.get(value, 0) + count
        if len(counts) <= TABLE:
            values = sorted(counts)
            out.table = values, np.array([counts[value] for value in values], dtype=np.int64)
            return out
    sketches = [expand_table(s) for s in sketches]
    out.buckets = _add_buckets([s.buckets for s in sketches])
    out.least = _least_of([s.least for s in sketches])
    return out


def _least_of(several: Sequence[np.ndarray | None]) -> np.ndarray | None:
    arrays = [hashes for hashes in several if hashes is not None]
    return least(np.concatenate(arrays)) if len(arrays) == len(several) else None


def _disjoint(out: Sketch, sketches: Sequence[Sketch]) -> Sketch:
    out.distinct = sum(s.distinct or 0 for s in sketches)
    out.bins = _add_bins([s.bins for s in sketches])
    out.buckets = _add_buckets([s.buckets for s in sketches])
    out.top = most_frequent([pair for s in sketches for pair in s.top])
    return out


def most_frequent(pairs: Sequence[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Return the `TOP` values with the largest counts; equal counts are sorted by value."""
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:TOP]


def _add_buckets(several: Sequence[np.ndarray | None]) -> np.ndarray | None:
    arrays = [buckets for buckets in several if buckets is not None]
    return np.add.reduce(arrays) if len(arrays) == len(several) else None


def _add_bins(several: Sequence[Bins | None]) -> Bins | None:
    if any(bins is None for bins in several):
        return None
    places = np.concatenate([bins[0] for bins in several if bins])
    counts = np.concatenate([bins[1] for bins in several if bins])
    whole = np.zeros(BINS, dtype=np.int64)
    np.add.at(whole, places, counts)
    present = np.flatnonzero(whole != 0)
    return present.astype(np.uint16), whole[present]


def _merge_trees(trees: Sequence[Tree]) -> Tree:
    tree: Tree = {}
    for part in trees:
        for place, moments in part.items():
            tree[place] = merge_moments(tree[place], moments) if place in tree else moments
    for level in range(64):
        for index in sorted(i for lv, i in tree if lv == level):
            if index % 2 == 0 and (level, index + 1) in tree:
                tree[level + 1, index // 2] = merge_moments(tree.pop((level, index)), tree.pop((level, index + 1)))
        if not any(lv > level for lv, _ in tree):
            break
    return tree


def moments_of(sketch: Sketch) -> Moments | None:
    """Merge the moments of all finite values; None if there are none."""
    whole: Moments | None = None
    for _, moments in sorted(sketch.tree.items(), key=lambda item: item[0][1] << max(item[0][0], 0)):
        whole = moments if whole is None else merge_moments(whole, moments)
    return whole if whole and whole[0] else None


def estimate(hashes: np.ndarray, size: int = LEAST) -> tuple[float, float]:
    """Estimate (the number of distinct values, its relative error: two standard errors) from `size` least hashes."""
    if len(hashes) < size:
        return float(len(hashes)), 0.0
    return float(round((size - 1) * 2.0**64 / float(hashes[-1]))), 2 / math.sqrt(size - 2)


def pack_sketches(sketches: Mapping[str, Sketch]) -> dict[str, Any]:
    """Convert sketches by column to plain values, for notes and results of tasks.

    They are not compressed, since half of the bytes are hashes.
    """
    return {name: {k: _to_plain_value(v) for k, v in sketch.__dict__.items()} for name, sketch in sketches.items()}


def unpack_sketches(plain: Mapping[str, Any]) -> dict[str, Sketch]:
    """Convert the plain values of `pack_sketches` back to sketches."""
    return {name: Sketch(**{k: _from_plain_value(k, v) for k, v in values.items()}) for name, values in plain.items()}


def _to_plain_value(value: object) -> object:
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "data": base64.b64encode(value.tobytes()).decode()}
    if isinstance(value, dict):
        return [[*place, *moments] for place, moments in value.items()]
    return [_to_plain_value(one) for one in value] if isinstance(value, (tuple, list)) else value


def _from_plain_value(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return np.frombuffer(base64.b64decode(value["data"]), dtype=value["dtype"]).copy()
    if name == "tree":
        return {(int(entry[0]), int(entry[1])): tuple(entry[2:]) for entry in value}
    if name in ("bins", "table", "sums") and value is not None:
        return tuple(_from_plain_value("", one) for one in value)
    return [tuple(pair) for pair in value] if name == "top" else value
