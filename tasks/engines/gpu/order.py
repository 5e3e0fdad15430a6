"""Rows in another order, on the GPU: cutting a partition by position and putting a file together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cudf
import cupy
import numpy as np
import pyarrow as pa
import pylibcudf as plc

from tasks.engines.algorithms.protocol import Name
from tasks.engines.gpu.columns import Column, array, device, dtype, rebuilt, renumber_rows, synchronize, take_values
from tasks.engines.gpu.from_arrow import from_plain_chunks
from tasks.engines.gpu.groups import rows_of
from tasks.engines.gpu.kernels import pinned_copies
from tasks.engines.gpu.kernels.column_arrays import Mark, array_of, gather_columns
from tasks.engines.gpu.tables import make_frame


def take(frame: dict[Name, Column], index: cupy.ndarray) -> dict[Name, Column]:
    index = cupy.asarray(index)
    return {name: take_values(values, index) for name, values in frame.items()}


def slice_rows(frame: dict[str, Column], start: int, stop: int) -> dict[str, Column]:
    return {name: renumber_rows(values.iloc[start:stop]) for name, values in frame.items()}


def concat(frames: Sequence[dict[str, Column]]) -> dict[str, Column]:
    if len(frames) == 1:
        return frames[0]
    columns = {}
    for name, first in frames[0].items():
        columns[name] = rebuilt(plc.concatenate.concatenate([device(f[name]) for f in frames]), first)
    return columns


Marks = dict[str, Mark]


@dataclass(frozen=True)
class Pieces:
    """A partition cut into equal ranges of position: rows sorted by position, `offsets[r]` the first row of range r.

    `whole` has the columns that `marks` names, and the positions behind them; the rows begin at `start` there.
    `buffer` and `metadata` are what libcudf packed `whole` into, where it is a copy that stands for itself.
    """

    whole: plc.Table
    marks: Marks
    offsets: np.ndarray
    width: float  # bytes of a row
    start: int = 0
    buffer: cupy.ndarray | None = None
    metadata: bytes = b""

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def _row_count(self) -> int:
        return int(self.offsets[-1])

    @property
    def nbytes(self) -> int:
        return int(self.width * self._row_count)

    def _slice_own_rows(self) -> plc.Table:
        """Its own rows."""
        if self._row_count == self.whole.num_rows():
            return self.whole
        return plc.copying.slice(self.whole, [self.start, self.start + self._row_count])[0]

    def ranges(self, first: int, last: int) -> Pieces:
        """The rows of ranges [first, last), a view."""
        low = int(self.offsets[first])
        return Pieces(self.whole, self.marks, self.offsets[first : last + 1] - low, self.width, self.start + low)

    def pack_rows(self) -> Pieces:
        """The same rows in one buffer of their own: it can be sent as it is, and the partition can be freed."""
        metadata, buffer = pack(self._slice_own_rows())
        synchronize()
        return unpack_pieces(metadata, buffer, self.marks, self.offsets)


def unpack_pieces(metadata: bytes, buffer: cupy.ndarray, marks: Marks, offsets: np.ndarray) -> Pieces:
    """Pieces in the buffer that `Pieces.pack_rows` made, in this process or another one."""
    table = unpack(metadata, buffer)
    return Pieces(table, marks, offsets, buffer.nbytes / max(int(offsets[-1]), 1), 0, buffer, metadata)


def pack(table: plc.Table) -> tuple[bytes, cupy.ndarray]:
    """(metadata, buffer): a table copied into one buffer, of which it has its own rows alone."""
    metadata, data = plc.contiguous_split.pack(table).release()
    return bytes(metadata), cupy.asarray(data) if data.nbytes else cupy.zeros(1, cupy.uint8)


def unpack(metadata: bytes, buffer: cupy.ndarray) -> plc.Table:
    """The table in the buffer that `pack` made, a view."""
    return plc.contiguous_split.unpack_from_memoryviews(memoryview(metadata), plc.gpumemoryview(buffer))


def marks_of(columns: cudf.DataFrame | dict[str, Column]) -> Marks:
    return {name: Mark(values.dtype, values.name) for name, values in columns.items()}


class OrderedRows(Mapping[str, Column]):
    """The rows of a file as libcudf's columns; makes the Series of a column only when it is read."""

    def __init__(self, columns: Sequence[plc.Column], marks: Marks) -> None:
        self.parts = dict(zip(marks, columns, strict=True))
        self.marks = marks

    def __getitem__(self, name: str) -> Column:
        return rebuilt(self.parts[name], self.marks[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.marks)

    def __len__(self) -> int:
        return len(self.marks)

    def column_of_type(self, name: str, wanted: pa.DataType) -> plc.Column | None:
        """The column if its type is `wanted`, else None."""
        return self.parts[name] if dtype(self.marks[name]) == wanted else None

    def take_rows(self, index: cupy.ndarray) -> OrderedRows:
        """Rows by number."""
        return OrderedRows(gather_columns(list(self.parts.values()), index), self.marks)


def make_marked_table(columns: Sequence[plc.Column], marks: Marks) -> cudf.DataFrame:
    """A table of columns; `marks` has their names and types."""
    return make_frame(list(marks), columns, marks.__getitem__)


def _concat_pieces(pieces: Sequence[Pieces]) -> tuple[list[plc.Column], cupy.ndarray]:
    """(the columns, the positions) of all rows."""
    alone = len(pieces) == 1 and pieces[0]._row_count == pieces[0].whole.num_rows() and pieces[0].buffer is None
    table = pieces[0].whole if alone else plc.concatenate.concatenate([p._slice_own_rows() for p in pieces])
    *columns, positions = table.columns()
    return columns, array_of(positions)


def cut(frame: dict[str, Column], positions: cupy.ndarray, edges: np.ndarray) -> Pieces:
    """The frame's rows by position, those of one position in their order. `edges` are the ranges' first positions."""
    small = cupy.uint32 if int(edges[-1]) <= 1 << 32 else cupy.uint64
    positions = cupy.asarray(positions).astype(small)
    order = cupy.argsort(positions)  # CuPy sorts stably
    positions = positions.take(order)
    if len(positions) < 1 << 31:
        order = order.astype(cupy.int32)
    columns = gather_columns([device(values) for values in frame.values()], order)
    starts = cupy.searchsorted(positions, cupy.asarray(np.asarray(edges[:-1])).astype(small))
    offsets = np.append(cupy.asnumpy(starts).astype(np.int64), len(positions))
    synchronize()
    return make_pieces(columns, marks_of(frame), positions, offsets)


def make_pieces(columns: Sequence[plc.Column], marks: Marks, positions: cupy.ndarray, offsets: np.ndarray) -> Pieces:
    """Pieces of rows that are sorted by position."""
    last = plc.Column.from_cuda_array_interface(cupy.ascontiguousarray(positions))
    nbytes = sum(column.device_buffer_size() for column in columns) + positions.nbytes
    return Pieces(plc.Table([*columns, last]), marks, offsets, nbytes / max(len(positions), 1))


def assemble(pieces: Sequence[Pieces], skip: int, rows: int) -> OrderedRows:
    """Rows `skip` to `skip + rows` of all pieces in the order of (position, order of the pieces)."""
    columns, positions = _concat_pieces([p for p in pieces if p._row_count] or pieces[:1])
    order = cupy.argsort(positions)[skip : skip + rows].astype(cupy.int32)
    return OrderedRows(gather_columns(columns, order), pieces[0].marks)


def table_rows(table: cudf.DataFrame | OrderedRows, index: object) -> cudf.DataFrame | OrderedRows:
    """Rows of a table by number."""
    places = cupy.asarray(index)
    return table.take_rows(places) if isinstance(table, OrderedRows) else rows_of(table, places)


def slice_table(table: cudf.DataFrame | OrderedRows, start: int, stop: int) -> cudf.DataFrame | OrderedRows:
    """Rows [start, stop)."""
    return table_rows(table, cupy.arange(start, stop))


def assemble_sorted(pieces: Sequence[Pieces], order: Any, hidden: str) -> cudf.DataFrame:
    """All rows by (hash of the keys, keys, sort columns, row number); columns named `hidden`.. are dropped."""
    columns, positions = _concat_pieces(pieces)
    table = make_marked_table(columns, pieces[0].marks)
    names = [f"{hidden}{kind}{i}" for kind, n in (("key", order.keys), ("sort", order.sort_by)) for i in range(len(n))]
    hashes = plc.Column.from_cuda_array_interface(positions)
    keys = [hashes, *(device(table[n]) for n in [*names, f"{hidden}row"])]
    ascending = [plc.types.Order.ASCENDING] * len(keys)
    first = [plc.types.NullOrder.BEFORE] * len(keys)
    index = array_of(plc.sorting.stable_sorted_order(plc.Table(keys), ascending, first))
    return rows_of(table[[n for n in table.columns if not n.startswith(hidden)]], index)


def pieces_to_host(pieces: Pieces) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """(table, positions, offsets) in host memory; dates and other types that cuDF lacks as what stands for them."""
    columns, positions = _concat_pieces([pieces])
    frame = make_marked_table(columns, pieces.marks)
    table = pa.table({n: pinned_copies.to_host(frame[n]) for n in frame.columns})
    return table, pinned_copies.array_to_host(positions), pieces.offsets


def pieces_from_host(table: pa.Table, positions: np.ndarray, offsets: np.ndarray) -> Pieces:
    """The pieces that `pieces_to_host` copied to the host, on the GPU again."""
    frame = {n: _from_host(table.column(n)) for n in table.column_names}
    columns = [device(values) for values in frame.values()]
    return make_pieces(columns, marks_of(frame), pinned_copies.array_to_device(positions), offsets)


def _from_host(values: pa.ChunkedArray) -> Column:
    """The values on the GPU: those of a fixed width chunk by chunk."""
    series = from_plain_chunks(values)
    return cudf.Series.from_arrow(array(values)) if series is None else series
