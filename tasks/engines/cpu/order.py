"""Reorders rows, on the CPU: cuts a partition by position, and assembles the rows of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms.arrow_arrays import build, find_valid_rows, raw
from tasks.engines.algorithms.protocol import Name
from tasks.engines.cpu.columns import Column, array, column

CACHED_ROWS = 1 << 16  # rows whose ranges are computed at once, in the cache
PADDING = 256  # spare bytes per column that do not count as memory of other rows


def take(frame: dict[Name, Column], index: np.ndarray) -> dict[Name, Column]:
    """Take rows of a frame by number."""
    return {name: column(_take(array(values), index)) for name, values in frame.items()}


def slice_rows(frame: dict[str, Column], start: int, stop: int) -> dict[str, Column]:
    """Return rows [start, stop) of a frame, as a view."""
    return {name: column(array(values).slice(start, stop - start)) for name, values in frame.items()}


def concat(frames: Sequence[dict[str, Column]]) -> dict[str, Column]:
    """Concatenate frames of the same columns."""
    if len(frames) == 1:
        return frames[0]
    return {name: column(_join([array(f[name]) for f in frames])) for name in frames[0]}


@dataclass(frozen=True)
class Pieces:
    """The rows of a partition sorted by equal ranges of position; `offsets[r]` is the first row of range r."""

    table: pa.Table
    positions: np.ndarray
    offsets: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes + self.positions.nbytes)

    def ranges(self, first: int, last: int) -> Pieces:
        """Return the rows of ranges [first, last), as a view."""
        low = int(self.offsets[first])
        high = int(self.offsets[last])
        table = self.table.slice(low, high - low)
        return Pieces(table, self.positions[low:high], self.offsets[first : last + 1] - low)

    def pack_rows(self) -> Pieces:
        """Return the same rows in buffers of their own (copied if necessary), so that the partition can be freed."""
        if self._are_alone():
            return self
        columns = [
            pa.concat_arrays([c.chunk(0).slice(0, 0), c.chunk(0)]) if c.num_chunks else c for c in self.table.columns
        ]
        return Pieces(pa.table(columns, schema=self.table.schema), self.positions.copy(), self.offsets)

    def _are_alone(self) -> bool:
        """Say whether the buffers hold hardly more than these rows: bitmaps and buffer ends may have padding."""
        base = self.positions.base if isinstance(self.positions.base, np.ndarray) else self.positions
        buffer_bytes = self.table.get_total_buffer_size() + base.nbytes
        return buffer_bytes <= self.nbytes + PADDING * (1 + self.table.num_columns)


def cut(frame: dict[str, Column], positions: np.ndarray, edges: np.ndarray) -> Pieces:
    """Group the rows of a frame by range of position; inside a range they keep their order.

    `edges` are the first positions of the ranges, then the number of positions.
    """
    ranges = len(edges) - 1
    place = _range_of(positions, edges)
    order = np.argsort(place, kind="stable")
    offsets = np.zeros(ranges + 1, dtype=np.int64)
    np.cumsum(np.bincount(place, minlength=ranges), out=offsets[1:])
    small = np.uint32 if int(edges[-1]) < 1 << 32 else np.uint64
    names = list(frame)
    columns = [_take(array(values), order) for values in frame.values()]
    return Pieces(pa.table(columns, names), positions.astype(small).take(order), offsets)


def _range_of(positions: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Find the range of each position by a division by the nearly equal width of ranges, corrected by at most one."""
    ranges = len(edges) - 1
    total = int(edges[-1])
    small: type = np.uint16 if ranges < 1 << 16 else np.uint32
    if total * ranges >= 1 << 63 or total == 0:
        return (np.searchsorted(edges, positions.astype(np.int64), side="right") - 1).astype(small)
    ends = edges[1:].astype(np.uint64)
    place: np.ndarray = np.empty(len(positions), small)
    for start in range(0, len(positions), CACHED_ROWS):
        part = positions[start : start + CACHED_ROWS].astype(np.uint64, copy=False)
        quotient = part * np.uint64(ranges)
        quotient //= np.uint64(total)
        quotient += ends.take(quotient.view(np.int64)) <= part
        place[start : start + CACHED_ROWS] = quotient
    return place


def assemble(pieces: Sequence[Pieces], skip: int, rows: int) -> pa.Table:
    """Assemble rows [skip, skip + rows) of all pieces, sorted by (position, order of the pieces)."""
    pieces = [p for p in pieces if len(p.positions)] or list(pieces[:1])
    positions = np.concatenate([p.positions for p in pieces])
    order = argsort_positions(positions)[skip : skip + rows]
    columns = []
    for i in range(pieces[0].table.num_columns):
        joined = _join(
            [c for p in pieces for c in p.table.column(i).chunks] or [pa.array([], pieces[0].table.schema.types[i])]
        )
        columns.append(_take(joined, order))
    return pa.table(columns, pieces[0].table.column_names)


def table_rows(table: pa.Table, index: np.ndarray) -> pa.Table:
    """Take rows of a table by number."""
    return pa.table([_take(array(c), index) for c in table.columns], table.column_names)


def argsort_positions(positions: np.ndarray) -> np.ndarray:
    """Return the stable order of positions; dense distinct positions (the usual case) are placed without a sort."""
    if not len(positions):
        return np.zeros(0, dtype=np.int64)
    low = int(positions.min())
    span = int(positions.max()) - low + 1
    if span > 4 * len(positions) + 1024:
        return np.argsort(positions, kind="stable")
    table = np.full(span, -1, dtype=np.int64)
    table[(positions - positions.dtype.type(low)).astype(np.int64)] = np.arange(len(positions))
    order = table if span == len(positions) else table[table >= 0]
    if len(order) < len(positions) or (span == len(positions) and int(order.min()) < 0):
        return np.argsort(positions, kind="stable")
    return order


def _join(arrays: Sequence[pa.Array]) -> pa.Array:
    if len(arrays) == 1:
        return arrays[0]
    if pa.types.is_dictionary(arrays[0].type):
        first = arrays[0].dictionary
        if all(a.dictionary is first or a.dictionary.equals(first) for a in arrays[1:]):
            joined = pa.concat_arrays([a.indices for a in arrays])
            return pa.DictionaryArray.from_arrays(joined, first)
        return pa.chunked_array(arrays).unify_dictionaries().combine_chunks()
    return pa.concat_arrays(list(arrays))


def _take(values: pa.Array, index: np.ndarray) -> pa.Array:
    """Rows by number: fixed-width values with numpy's take, twice as fast as Arrow's, all other values with Arrow's."""
    if pa.types.is_dictionary(values.type):
        return pa.DictionaryArray.from_arrays(_take(values.indices, index), values.dictionary)
    plain = pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_temporal(values.type)
    if not plain or pa.types.is_float16(values.type) or not len(values):
        return values.take(pa.array(index))
    valid = find_valid_rows(values)
    if valid is not None:
        valid = valid.take(index, mode="clip")
    return build(raw(values).take(index, mode="clip"), valid, values.type)


def assemble_sorted(pieces: Sequence[Pieces], order: Any, hidden: str) -> pa.Table:
    """Assemble all rows, sorted by (hash of the keys, keys, sort columns, row number).

    The result lacks the columns whose names begin with `hidden`.
    """
    table = pa.concat_tables([p.table for p in pieces]).unify_dictionaries()
    sort: dict[str, pa.Array] = {"hash": pa.array(np.concatenate([p.positions for p in pieces]))}
    for kind, names in (("key", order.keys), ("sort", order.sort_by)):
        for i in range(len(names)):
            values = array(table.column(f"{hidden}{kind}{i}"))
            values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
            sort[f"{kind}{i}"] = values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values
    sort["row"] = array(table.column(f"{hidden}row"))
    index = pc.sort_indices(pa.table(sort), sort_keys=[(n, "ascending", "at_start") for n in sort])
    visible = [n for n in table.column_names if not n.startswith(hidden)]
    return pa.table([_take(array(table.column(n)), raw(index).astype(np.int64)) for n in visible], visible)


def pieces_to_host(pieces: Pieces) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Return (table, positions, offsets) in host memory."""
    return pieces.table, pieces.positions, pieces.offsets


def pieces_from_host(table: pa.Table, positions: np.ndarray, offsets: np.ndarray) -> Pieces:
    """Make pieces of the values that `pieces_to_host` returns."""
    return Pieces(table, positions, offsets)
