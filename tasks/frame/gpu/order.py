"""Rows in another order, on the GPU: cutting a partition by position and putting a file together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cudf
import cupy
import numpy as np
import pyarrow as pa
import pylibcudf as plc

from tasks.frame.gpu.columns import (
    Column,
    device,
    from_pylibcudf,
    in_own_memory,
    rebuilt,
    renumbered,
    synchronize,
    taken,
)
from tasks.frame.gpu.groups import rows_of


def take(frame: dict[str, Column], index: cupy.ndarray) -> dict[str, Column]:
    index = cupy.asarray(index)
    return {name: taken(values, index) for name, values in frame.items()}


def slice_rows(frame: dict[str, Column], start: int, stop: int) -> dict[str, Column]:
    return {name: renumbered(values.iloc[start:stop]) for name, values in frame.items()}


def concat(frames: Sequence[dict[str, Column]]) -> dict[str, Column]:
    if len(frames) == 1:
        return frames[0]
    made = {}
    for name, first in frames[0].items():
        made[name] = rebuilt(plc.concatenate.concatenate([device(f[name]) for f in frames]), first)
    return made


@dataclass(frozen=True)
class Pieces:
    """A partition cut into equal ranges of position: rows sorted by position, `offsets[r]` the first row of range r.

    Some ranges of it are a view: `whole` is what they are of and `start` their first row there; `table` is then all
    of it.
    """

    table: cudf.DataFrame
    positions: cupy.ndarray
    offsets: np.ndarray
    whole: Pieces | None = None
    start: int = 0

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.offsets)

    @cached_property
    def nbytes(self) -> int:
        width = sum(self.table[n].memory_usage(index=False) for n in self.table.columns) / max(len(self.table), 1)
        return int(width * len(self.positions) + self.positions.nbytes)

    @cached_property
    def _held(self) -> plc.Table:
        """The columns of `table`, taken out of cuDF once: a file asks every partition for its ranges."""
        return plc.Table([device(self.table[n]) for n in self.table.columns])

    def _rows(self) -> plc.Table:
        """Its own rows."""
        if self.whole is None:
            return self._held
        return plc.copying.slice(self.whole._held, [self.start, self.start + len(self.positions)])[0]

    def ranges(self, first: int, last: int) -> Pieces:
        """The rows of ranges [first, last), a view."""
        low, high = int(self.offsets[first]), int(self.offsets[last])
        inside = self.offsets[first : last + 1] - low
        return Pieces(self.table, self.positions[low:high], inside, self.whole or self, self.start + low)

    def packed(self) -> Pieces:
        """The same rows in buffers of their own, so that the partition can be let go."""
        packed = Pieces(
            _framed([c.copy() for c in self._rows().columns()], self.table), self.positions.copy(), self.offsets
        )
        synchronize()
        return packed


def _framed(columns: Sequence[plc.Column], like: cudf.DataFrame) -> cudf.DataFrame:
    return cudf.DataFrame({n: rebuilt(c, like[n]) for n, c in zip(like.columns, columns, strict=True)})


def _all_rows(pieces: Sequence[Pieces]) -> plc.Table:
    return plc.concatenate.concatenate([p._rows() for p in pieces]) if len(pieces) > 1 else pieces[0]._rows()


def cut(frame: dict[str, Column], positions: cupy.ndarray, edges: np.ndarray) -> Pieces:
    """The frame's rows by position, those of one position in their order. `edges` are the ranges' first positions."""
    small = cupy.uint32 if int(edges[-1]) <= 1 << 32 else cupy.uint64
    positions = cupy.asarray(positions).astype(small)
    order = cupy.argsort(positions)  # CuPy sorts stably
    positions = positions.take(order)
    if len(positions) < 1 << 31:
        order = order.astype(cupy.int32)
    table = rows_of(cudf.DataFrame({n: renumbered(c) for n, c in frame.items()}), order)
    starts = cupy.searchsorted(positions, cupy.asarray(np.asarray(edges[:-1])).astype(small))
    offsets = np.append(cupy.asnumpy(starts).astype(np.int64), len(positions))
    synchronize()
    return Pieces(table, positions, offsets)


def assemble(pieces: Sequence[Pieces], skip: int, rows: int) -> cudf.DataFrame:
    """Rows `skip` to `skip + rows` of all pieces in the order of (position, order of the pieces)."""
    pieces = [p for p in pieces if len(p.positions)] or list(pieces[:1])
    order = cupy.argsort(cupy.concatenate([p.positions for p in pieces]))[skip : skip + rows].astype(cupy.int32)
    places = plc.Column.from_cuda_array_interface(cupy.ascontiguousarray(order))
    made = plc.copying.gather(_all_rows(pieces), places, plc.copying.OutOfBoundsPolicy.DONT_CHECK)
    return _framed(made.columns(), pieces[0].table)


def table_rows(table: cudf.DataFrame, index: np.ndarray) -> cudf.DataFrame:
    """Rows of a table by number."""
    return rows_of(table, cupy.asarray(index))


def assemble_sorted(pieces: Sequence[Pieces], order: Any, hidden: str) -> cudf.DataFrame:
    """All rows by (hash of the keys, keys, sort columns, row number); columns named `hidden`.. are dropped."""
    table = _framed(_all_rows(pieces).columns(), pieces[0].table)
    hashes = plc.Column.from_cuda_array_interface(cupy.concatenate([p.positions for p in pieces]))
    names = [f"{hidden}{kind}{i}" for kind, n in (("key", order.keys), ("sort", order.sort_by)) for i in range(len(n))]
    keys = [hashes, *(device(table[n]) for n in [*names, f"{hidden}row"])]
    ascending, first = [plc.types.Order.ASCENDING] * len(keys), [plc.types.NullOrder.BEFORE] * len(keys)
    index = from_pylibcudf(plc.sorting.stable_sorted_order(plc.Table(keys), ascending, first)).values
    return rows_of(table[[n for n in table.columns if not n.startswith(hidden)]], index)


def pieces_to_host(pieces: Pieces) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """(table, positions, offsets) in host memory; dates and other types that cuDF lacks as what stands for them."""
    frame = _framed(pieces._rows().columns(), pieces.table)
    table = pa.table({n: frame[n].to_arrow() for n in frame.columns})
    return table, cupy.asnumpy(pieces.positions), pieces.offsets


def pieces_from_host(table: pa.Table, positions: np.ndarray, offsets: np.ndarray) -> Pieces:
    own = pa.table([in_own_memory(c) for c in table.columns], table.column_names)
    return Pieces(cudf.DataFrame.from_arrow(own), cupy.asarray(positions), offsets)
