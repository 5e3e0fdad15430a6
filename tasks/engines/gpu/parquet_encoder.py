"""Encodes tables on the GPU as row groups of Parquet, without a codec and with the same bytes every time.

cuDF's own dictionaries have another order each time, and its delta encodings end in uninitialized memory, so that it
could only write plain values: half as many bytes again as here. All columns go through a kernel together, since
starting one for each takes longer than the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import cupy
import numpy as np
import pylibcudf as plc

from tasks.engines.convert import parquet_layout as layout
from tasks.engines.convert.encodings import DELTA_BLOCK, DELTA_MINIBLOCK, choose_encoding, index_bits
from tasks.engines.convert.parquet_layout import Chunk
from tasks.engines.gpu.kernels.column_arrays import DTYPES, address_of, valid_in
from tasks.engines.gpu.kernels.parquet_pages import KINDS, run_kernel

PAGE_ROWS = 1 << 17  # a megabyte of numbers of 64 bits, which readers decode at once
BOOLEAN = "b1"
BYTES = KINDS.index("u1")
ENCODINGS = {
    "plain": layout.PLAIN,
    "dictionary": layout.RLE_DICTIONARY,
    "delta": layout.DELTA_BINARY_PACKED,
}


@dataclass(frozen=True)
class _Cut:
    """How the rows of all columns are cut into pages: for each page its row group, its first row and its rows."""

    group: np.ndarray
    start: np.ndarray
    rows: np.ndarray
    pages: list[slice]  # of each row group


@dataclass
class _Column:
    """A column, and for each page its first value and the number of values, which are not null.

    `values` and `valid` own the memory at whose addresses the kernels read.
    """

    values: plc.Column
    valid: cupy.ndarray | None
    kind: str  # of numpy
    cut: _Cut
    first: np.ndarray
    count: np.ndarray
    # of each row group; of floats the bits
    low: list[int | None] = field(default_factory=list)
    high: list[int | None] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)
    bits: list[int] = field(default_factory=list)  # of an index into its dictionary; 0 without one

    @property
    def width(self) -> int:
        """Bytes of a value in the encoding PLAIN; of booleans in statistics."""
        return 1 if self.kind == BOOLEAN else max(int(self.kind[1:]), 4)

    def describe_pages(self, chosen: np.ndarray | slice, *properties: np.ndarray | int) -> np.ndarray:
        """Describe some of the pages for the kernels."""
        data = self.values.data()
        kind = BYTES if self.kind == BOOLEAN else KINDS.index(self.kind)
        address = 0 if data is None else data.ptr + self.values.offset() * int(self.kind[1:])
        first = self.first[chosen]
        return _stack(len(first), address, kind, first, self.count[chosen], *properties)

    def describe_levels(self, chosen: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Describe for `write_packed` which rows are not null."""
        assert self.valid is not None
        return _stack(
            len(chosen), address_of(self.valid), BYTES, self.cut.start[chosen], self.cut.rows[chosen], places, 0, 1
        )


@dataclass(frozen=True)
class _DeltaPages:
    """The pages of deltas of each column, the first block of each page, and the number of all blocks at the end."""

    pages: list[np.ndarray]
    edges: np.ndarray

    def split_by_column(self, values: np.ndarray) -> list[np.ndarray]:
        """Split what all pages of deltas have into what those of each column have."""
        return np.split(values, np.cumsum([len(pages) for pages in self.pages])[:-1])

    @property
    def first_blocks(self) -> list[np.ndarray]:
        return self.split_by_column(self.edges[:-1])


@dataclass(frozen=True)
class _Deltas:
    """What `measure_deltas` measured, on the GPU: the least delta of each block, bits of its miniblocks, its bytes."""

    least: cupy.ndarray
    widths: cupy.ndarray
    sizes: cupy.ndarray
    ends: cupy.ndarray


def _stack(pages: int, *properties: np.ndarray | int) -> np.ndarray:
    """Make the matrix of the properties of pages; a number is that of all of them."""
    matrix = np.empty((len(properties), pages), np.int64)
    for row, values in zip(matrix, properties, strict=True):
        row[:] = values
    return matrix


def _join(matrices: Sequence[np.ndarray], properties: int) -> np.ndarray:
    return np.concatenate([np.empty((properties, 0), np.int64), *matrices], axis=1)


def encode_table(table: plc.Table, rows_of_group: int) -> tuple[cupy.ndarray, list[list[Chunk]]]:
    """Encode a table as row groups; return their bytes, and their chunks with places that count from the first byte."""
    rows = table.num_rows()
    if not rows:
        return cupy.empty(0, np.uint8), []
    cut = _cut_into_pages(rows, rows_of_group)
    groups = len(cut.pages)
    columns = [_make_column(column, cut) for column in table.columns()]
    _find_extremes(columns, groups)
    for column in columns:
        _choose_encodings(column)
    bodies = [_compute_bodies(column) for column in columns]
    delta_pages = _place_blocks(columns)
    deltas, nbytes = _measure_deltas(columns, delta_pages)
    for body, pages, measured in zip(bodies, delta_pages.pages, nbytes, strict=True):
        body[pages] = measured
    return _write_row_groups(columns, groups, delta_pages, deltas, bodies)


def _cut_into_pages(rows: int, rows_of_group: int) -> _Cut:
    edges = range(0, rows, rows_of_group)
    starts = [np.arange(edge, min(edge + rows_of_group, rows), PAGE_ROWS) for edge in edges]
    group = np.repeat(np.arange(len(starts)), [len(pages) for pages in starts])
    start = np.concatenate(starts)
    stops = np.minimum(np.asarray(edges)[group] + rows_of_group, rows)
    ends = np.cumsum([len(pages) for pages in starts]).tolist()
    pages = [slice(end - len(of_group), end) for end, of_group in zip(ends, starts, strict=True)]
    return _Cut(group, start, np.minimum(start + PAGE_ROWS, stops) - start, pages)


def _make_column(column: plc.Column, cut: _Cut) -> _Column:
    if column.type().id() == plc.TypeId.TIMESTAMP_SECONDS:  # which Parquet lacks
        column = plc.unary.cast(column, plc.DataType(plc.TypeId.TIMESTAMP_MILLISECONDS))
    dtype = DTYPES[int(column.type().id())]
    kind = f"{dtype.kind}{dtype.itemsize}"
    valid = valid_in(column)
    if valid is None:
        return _Column(column, None, kind, cut, cut.start, cut.rows)
    ends = cupy.concatenate([cupy.zeros(1, np.int64), cupy.cumsum(valid, dtype=np.int64)])
    first, stop = cupy.asnumpy(ends[cupy.asarray(np.stack([cut.start, cut.start + cut.rows]))])
    (values,) = plc.stream_compaction.drop_nulls(plc.Table([column]), [0], 1).columns()
    return _Column(values, valid, kind, cut, first, stop - first)


def _find_extremes(columns: Sequence[_Column], groups: int) -> None:
    """Find the least and the greatest value of each row group of each column."""
    bounds = cupy.empty((2, len(columns), groups), np.int64)
    bounds[0] = np.iinfo(np.int64).max
    bounds[1] = np.iinfo(np.int64).min
    pages = [
        column.describe_pages(slice(None), column.cut.group + number * groups) for number, column in enumerate(columns)
    ]
    run_kernel("find_extremes", _join(pages, 5), bounds[0], bounds[1])
    lows, highs = cupy.asnumpy(bounds).tolist()
    for column, low_of, high_of in zip(columns, lows, highs, strict=True):
        has_values = [low <= high for low, high in zip(low_of, high_of, strict=True)]
        column.low = [_undo_rank(x, column.kind) if any_ else None for x, any_ in zip(low_of, has_values, strict=True)]
        column.high = [
            _undo_rank(x, column.kind) if any_ else None for x, any_ in zip(high_of, has_values, strict=True)
        ]


def _undo_rank(rank: int, kind: str) -> int:
    """Return the whole number, or the bits of the float, that has the rank of `find_extremes`.

    >>> _undo_rank(-(1 << 63), "u8"), hex(_undo_rank(-1, "f4")), _undo_rank(-5, "i4")
    (0, '0x80000000', -5)
    """
    if kind == "u8":
        return rank + (1 << 63)
    if kind == "f4":
        return rank if rank >= 0 else (1 << 31) | (-rank - 1)
    if kind == "f8":
        return rank if rank >= 0 else (rank & (1 << 64) - 1) ^ ((1 << 63) - 1)
    return rank


def _choose_encodings(column: _Column) -> None:
    """Choose the encoding of each row group of a column."""
    values = [int(column.count[pages].sum()) for pages in column.cut.pages]
    is_whole_number = column.kind[0] in "iu"
    for count, low, high in zip(values, column.low, column.high, strict=True):
        encoding = "plain"
        bits = 0
        if is_whole_number and low is not None and high is not None:
            encoding = choose_encoding(count, low, high, column.width)
            bits = index_bits(low, high) if encoding == "dictionary" else 0
        column.encodings.append(encoding)
        column.bits.append(bits)


def _pages_in(column: _Column, encoding: str) -> np.ndarray:
    """The numbers of the pages of a column that have an encoding."""
    is_chosen = [chosen == encoding for chosen in column.encodings]
    return np.flatnonzero(np.array(is_chosen)[column.cut.group]) if any(is_chosen) else np.empty(0, np.int64)


def _place_blocks(columns: Sequence[_Column]) -> _DeltaPages:
    """Number the blocks of deltas, those of all columns one after another."""
    pages = [_pages_in(column, "delta") for column in columns]
    values = np.concatenate([column.count[of_column] for column, of_column in zip(columns, pages, strict=True)])
    deltas = np.maximum(values - 1, 0)
    return _DeltaPages(pages, np.append(0, np.cumsum(-(-deltas // DELTA_BLOCK))))


def _measure_deltas(columns: Sequence[_Column], delta_pages: _DeltaPages) -> tuple[_Deltas, list[np.ndarray]]:
    """Measure the blocks of deltas; return them, and the bytes of the pages of deltas of each column."""
    blocks = int(delta_pages.edges[-1])
    least = cupy.empty(blocks, np.int64)
    widths = cupy.zeros(blocks * (DELTA_BLOCK // DELTA_MINIBLOCK), np.uint8)
    sizes = cupy.empty(blocks, np.int64)
    heads = cupy.empty(len(delta_pages.edges) - 1, np.int64)
    described = [
        column.describe_pages(pages, first)
        for column, pages, first in zip(columns, delta_pages.pages, delta_pages.first_blocks, strict=True)
    ]
    run_kernel("measure_deltas", _join(described, 5), least, widths, sizes, heads)
    ends = cupy.cumsum(sizes)
    sums = cupy.concatenate([cupy.zeros(1, np.int64), ends])
    blocks_and_heads = cupy.asnumpy(cupy.stack([cupy.diff(sums[cupy.asarray(delta_pages.edges)]), heads]))
    return _Deltas(least, widths, sizes, ends), delta_pages.split_by_column(blocks_and_heads.sum(axis=0))


def _compute_bodies(column: _Column) -> np.ndarray:
    """Compute the bytes of the values of each page that is not of deltas, without what stands before them."""
    eights = (column.count + 7) // 8
    if column.kind == BOOLEAN:
        return eights  # a bit for each
    bits = np.array(column.bits)[column.cut.group]
    return np.where(bits > 0, eights * bits, column.count * column.width)


@dataclass
class _Placement:
    """Where everything goes to: pieces of bytes, dictionaries as rows of `write_range`, levels and values by page."""

    levels: list[np.ndarray]
    values: list[np.ndarray]
    places: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    dictionaries: list[tuple[int, ...]] = field(default_factory=list)

    def put(self, place: int, piece: bytes) -> int:
        """Put a piece at a place; return the place behind it."""
        self.places.append(place)
        self.pieces.append(piece)
        return place + len(piece)


def _write_row_groups(
    columns: Sequence[_Column], groups: int, delta_pages: _DeltaPages, deltas: _Deltas, bodies: Sequence[np.ndarray]
) -> tuple[cupy.ndarray, list[list[Chunk]]]:
    """Place all pages, and write them into one buffer."""
    placement = _Placement(
        [np.zeros(len(column.count), np.int64) for column in columns],
        [np.zeros(len(column.count), np.int64) for column in columns],
    )
    chunks: list[list[Chunk]] = []
    place = 0
    for group in range(groups):
        of_group = []
        for number in range(len(columns)):
            chunk = _place_chunk(placement, columns[number], number, group, bodies[number], place)
            place += chunk.nbytes
            of_group.append(chunk)
        chunks.append(of_group)
    buffer = cupy.empty(place, np.uint8)
    _write_pieces(placement, buffer)
    _write_values(columns, placement, delta_pages, deltas, buffer)
    return buffer, chunks


def _place_chunk(
    placement: _Placement, column: _Column, number: int, group: int, body_of: np.ndarray, start: int
) -> Chunk:
    """Place the dictionary and the pages of a column in a row group, from `start` on."""
    place = start
    bits = column.bits[group]
    low = column.low[group]
    high = column.high[group]
    if bits:
        assert low is not None
        assert high is not None
        values = high - low + 1
        place = placement.put(place, layout.make_dictionary_page_header(values * column.width, values))
        placement.dictionaries.append((0, 0, 0, values, place, column.width, _wrap(low)))
        place += values * column.width
    data_start = place
    encoding = ENCODINGS[column.encodings[group]]
    of_chunk = column.cut.pages[group]
    rows_of = column.cut.rows[of_chunk].tolist()
    count_of = column.count[of_chunk].tolist()
    values_at = []
    levels_at = []
    for rows, count, body in zip(rows_of, count_of, body_of[of_chunk].tolist(), strict=True):
        head, level_bytes, prefix = layout.make_page_head(body, rows, count, encoding, bits)
        place = placement.put(place, head)
        levels_at.append(place if level_bytes else 0)
        if level_bytes:
            place = placement.put(place + level_bytes, prefix)
        values_at.append(place)
        place += body
    placement.values[number][of_chunk] = values_at
    placement.levels[number][of_chunk] = levels_at
    rows = sum(rows_of)
    least = _to_bound(low, column, is_low=True)
    greatest = _to_bound(high, column, is_low=False)
    return Chunk(encoding, start, data_start, place - start, rows, rows - sum(count_of), least, greatest)


def _wrap(number: int) -> int:
    """Return the signed number of 64 bits that has the same lower 64 bits.

    >>> _wrap((1 << 64) - 1), _wrap(7)
    (-1, 7)
    """
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _to_bound(number: int | None, column: _Column, is_low: bool) -> bytes | None:
    """Encode a bound plainly; zero as a bound of floats stands for both zeros, as Parquet wants it."""
    if number is None:
        return None
    if column.kind[0] == "f":
        minus_zero = 1 << 8 * column.width - 1
        if number in (0, minus_zero):
            number = minus_zero if is_low else 0
    return (number & (1 << 8 * column.width) - 1).to_bytes(column.width, "little")


def _write_pieces(placement: _Placement, buffer: cupy.ndarray) -> None:
    sizes = np.array([len(piece) for piece in placement.pieces], dtype=np.int64)
    pieces = cupy.asarray(np.frombuffer(b"".join(placement.pieces), np.uint8))
    places = np.array(placement.places, dtype=np.int64)
    pages = _stack(len(sizes), address_of(pieces), BYTES, np.cumsum(sizes) - sizes, sizes, places)
    run_kernel("write_bytes", pages, buffer)
    dictionaries = np.array(placement.dictionaries, dtype=np.int64).reshape(-1, 7).T
    run_kernel("write_range", np.ascontiguousarray(dictionaries), buffer)


def _write_values(
    columns: Sequence[_Column], placement: _Placement, delta_pages: _DeltaPages, deltas: _Deltas, buffer: cupy.ndarray
) -> None:
    """Write the values of all columns, and which rows of them are not null."""
    plain = []
    packed = []
    differences = []
    first_blocks = delta_pages.first_blocks
    for number, column in enumerate(columns):
        places = placement.values[number]
        levels = placement.levels[number]
        with_nulls = np.flatnonzero(levels)
        if len(with_nulls):
            packed.append(column.describe_levels(with_nulls, levels[with_nulls]))
        chosen = _pages_in(column, "plain")
        if column.kind == BOOLEAN:
            packed.append(column.describe_pages(chosen, places[chosen], 0, 1))
        elif len(chosen):
            plain.append(column.describe_pages(chosen, places[chosen], column.width))
        chosen = _pages_in(column, "dictionary")
        if len(chosen):
            lows = np.array([_wrap(low or 0) for low in column.low])[column.cut.group[chosen]]
            bits = np.array(column.bits)[column.cut.group[chosen]]
            packed.append(column.describe_pages(chosen, places[chosen], lows, bits))
        chosen = delta_pages.pages[number]
        if len(chosen):
            differences.append(column.describe_pages(chosen, first_blocks[number], places[chosen]))
    run_kernel("write_plain", _join(plain, 6), buffer)
    run_kernel("write_packed", _join(packed, 7), buffer)
    measured = (deltas.least, deltas.widths, deltas.sizes, deltas.ends)
    run_kernel("write_deltas", _join(differences, 6), *measured, buffer)
