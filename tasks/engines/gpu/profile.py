"""Sketches of columns, on the GPU: histograms and hashes there, a few thousand numbers on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import cudf
import cupy
import numpy as np
import pyarrow as pa

from tasks.engines.algorithms import column_sketch as sketches
from tasks.engines.algorithms.column_sketch import Sketch
from tasks.engines.algorithms.moments import Moments
from tasks.engines.algorithms.reductions import extremes, total
from tasks.engines.gpu import columns as gpu_columns
from tasks.engines.gpu.columns import Column, dtype, host, is_list, leaves, numbers
from tasks.engines.gpu.groups import (
    count_values,
    hash_columns,
    host_table,
    key_column,
    null_rows,
    sort_counts,
    split_nulls,
)
from tasks.engines.gpu.kernels.histogram import histogram
from tasks.engines.hashing.canonical import canonical_bits, decimal_floats

FIRST = 1 << 16  # values whose least hashes say which of the others may count


def sketch_column(
    column: Column, starts: Sequence[int], blocks: Sequence[int], known: Sequence[Moments] | None = None
) -> Sketch:
    """The sketch of a column without lists, whose rows [starts[i], starts[i + 1]) are those of the block blocks[i].

    `known`: the moments of each block, if an operator has computed them already.
    """
    stored = dtype(column)
    kind = sketches.kind(stored)
    if kind == "other" or not len(column):
        return sketches.empty(kind, len(column), int(column.null_count))
    if kind in ("text", "bytes"):
        return sketch_counts(count_values([column], ["v0"]), whole=False)
    if pa.types.is_decimal256(stored):  # strings of their bytes stand for them
        column = gpu_columns.column(decimal_floats(host(column)))
    values, valid = numbers(column)
    if kind == "time":
        values = canonical_bits(values, stored, cupy).view(cupy.int64)
        return _times(values, valid, starts, blocks)
    if kind == "float":
        return _floats(column, values, valid, starts, blocks, known)
    present = values if valid is None else values[valid]
    return _integers(kind, present, len(column) - len(present))


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
    nulls = 0 if null is None else total(null)
    return replace(out, rows=out.rows + nulls, nulls=out.nulls + nulls)


def sketch_counts(counts: cudf.DataFrame, whole: bool) -> Sketch:
    """The sketch of a table of distinct values and their `count`, nulls among them.

    `whole`: no other table has any of its values, so that their number is exact.
    """
    name = counts.columns[0]
    table, nulls = split_nulls(counts, [name])
    values = key_column(table)
    weights = numbers(table["count"])[0]
    kind = sketches.kind(dtype(values))
    if not whole and len(table) <= sketches.TABLE:
        return sketches.of_counts(kind, host(values), cupy.asnumpy(weights), int(nulls))
    rows = total(weights) + int(nulls) if len(table) else int(nulls)
    out = sketches.complete(kind, rows, int(nulls), len(table)) if whole else Sketch(kind, rows, int(nulls))
    if kind in ("text", "bytes") or (whole and kind == "integer"):
        high = hash_columns([values]) if len(table) else cupy.zeros(0, cupy.uint32)
        places = (high & cupy.uint32(sketches.BUCKETS - 1)).astype(cupy.int64)
        by_bucket = cupy.bincount(places, weights=weights.astype(cupy.float64), minlength=sketches.BUCKETS)
        out.buckets = cupy.asnumpy(by_bucket).astype(np.int64)
    if not whole:
        low = hash_columns([values], 1)
        out.least = _least(high.astype(cupy.uint64) << cupy.uint64(32) | low.astype(cupy.uint64))
        if kind == "text":
            out.low = values.min()
            out.high = values.max()
        return out
    if kind in ("text", "integer") and len(table):
        best = host_table(_best(table, name, weights))
        plain = best.column(0)
        plain = plain.cast(pa.uint8()) if pa.types.is_boolean(plain.type) else plain
        out.top = sketches.most_frequent(list(zip(plain.to_pylist(), best["count"].to_pylist(), strict=True)))
        if kind == "text":
            out.low = values.min()
            out.high = values.max()
    if kind in ("integer", "time", "float") and len(table):
        stored = numbers(values)[0]
        stored = canonical_bits(stored, dtype(values), cupy).view(cupy.int64) if kind == "time" else stored
        floats = stored.astype(cupy.float64) + 0.0
        codes = sketches.bin_codes(floats, cupy)
        by_bin = cupy.bincount(codes, weights=weights.astype(cupy.float64), minlength=sketches.BINS)
        out.bins = sketches.sort_bins(cupy.asnumpy(by_bin).astype(np.int64))
        finite = cupy.isfinite(floats)
        out.infinite = total(weights[~finite])
        if out.infinite:
            stored = stored[finite]
            floats = floats[finite]
            weights = weights[finite]
        if len(stored):
            out.low, out.high = extremes(stored)
            out.tree = {(-1, 0): sketches.weighted_moments(floats, weights, cupy)}
    return out


def _best(table: cudf.DataFrame, name: str, weights: cupy.ndarray) -> cudf.DataFrame:
    """The rows among which the most frequent values are, in order."""
    if len(table) > sketches.TOP:
        least = cupy.partition(weights, len(weights) - sketches.TOP)[len(weights) - sketches.TOP]
        table = table[cudf.Series(weights >= least, index=table.index)]
    return sort_counts(table.reset_index(drop=True), [name]).head(sketches.TOP)


def _least(hashes: cupy.ndarray) -> np.ndarray:
    """The least distinct hashes, on the host."""
    if len(hashes) > 8 * sketches.LEAST:  # where most values are distinct, few hashes say which the least are
        few = hashes[hashes < np.uint64((2 * sketches.LEAST << 64) // len(hashes))]
        if len(few) < 8 * sketches.LEAST:
            least = sketches.unique(cupy.asnumpy(few))
            if len(least) >= sketches.LEAST:
                return least[: sketches.LEAST]
    if len(hashes) > 4 * FIRST:
        first = cupy.unique(hashes[:FIRST])
        if len(first) >= sketches.LEAST:
            hashes = hashes[hashes <= first[sketches.LEAST - 1]]
    return sketches.least(cupy.asnumpy(cupy.unique(hashes)[: sketches.LEAST]))


def _integers(kind: str, values: cupy.ndarray, nulls: int) -> Sketch:
    if not len(values):
        return sketches.empty(kind, nulls, nulls)
    low, high = (int(value) for value in extremes(values))
    if kind == "integer" and high - low < sketches.SPAN:
        wide = cupy.uint64 if values.dtype.kind == "u" else cupy.int64
        counts = cupy.asnumpy(histogram((values.astype(wide) - wide(low)).astype(cupy.int64), high - low + 1))
        places = np.flatnonzero(counts)
        present = (places.astype(np.dtype(wide)) + np.dtype(wide).type(low)).astype(np.dtype(values.dtype.str))
        return sketches.of_counts(kind, pa.array(present), counts[places], nulls)
    out = Sketch(kind, len(values) + nulls, nulls, low=low, high=high)
    bits = sketches.integer_bits(values, cupy)
    out.least = _least(sketches.hash_bits(bits, cupy))
    out.sums = sketches.integer_sums(values, low, high, cupy)
    return out


def _times(values: cupy.ndarray, valid: cupy.ndarray | None, starts: Sequence[int], blocks: Sequence[int]) -> Sketch:
    present = values if valid is None else values[valid]
    nulls = len(values) - len(present)
    if not len(present):
        return sketches.empty("time", nulls, nulls)
    low, high = (int(value) for value in extremes(present))
    out = Sketch("time", len(values), nulls, low=low, high=high)
    floats = gpu_columns.from_numbers(values.astype(cupy.float64), valid)
    moments_of = gpu_columns.moments(floats, starts)
    out.tree = {(0, block): moments for block, moments in zip(blocks, moments_of, strict=True) if moments[0]}
    return out


def _floats(
    column: Column,
    values: cupy.ndarray,
    valid: object,
    starts: Sequence[int],
    blocks: Sequence[int],
    known: Sequence[Moments] | None,
) -> Sketch:
    out = sketches.empty("float", len(values), 0)
    if known is not None and all(math.isfinite(figure) for moments in known for figure in moments):
        out.nulls = len(values) - sum(moments[0] for moments in known)  # no value is infinite
    else:
        data = values.astype(cupy.float64) + 0.0
        usable = ~cupy.isnan(data) if valid is None else valid & ~cupy.isnan(data)
        finite = usable & cupy.isfinite(data)
        present = total(usable)
        out.nulls = len(values) - present
        out.infinite = present - total(finite)
        known = gpu_columns.moments(gpu_columns.from_numbers(cupy.where(usable, data, 0.0), finite), starts)
    out.tree = {(0, block): moments for block, moments in zip(blocks, known, strict=True) if moments[0]}
    if out.tree:
        out.low = min(moments[3] for moments in out.tree.values())
        out.high = max(moments[4] for moments in out.tree.values())
    return out
