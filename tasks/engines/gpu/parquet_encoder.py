"""Encodes tables on the GPU as row groups of Parquet, without a codec and with the same bytes every time.

cuDF's own dictionaries have another order each time, and its delta encodings end in uninitialized memory, so that it
could only write plain values: half as many bytes again as here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import cupy
import numpy as np
import pyarrow as pa
import pylibcudf as plc

from tasks.engines.convert import parquet_layout as layout
from tasks.engines.convert.encodings import DELTA_BLOCK, DELTA_MINIBLOCK, choose_encoding, index_bits
from tasks.engines.convert.parquet_layout import Chunk
from tasks.engines.gpu.kernels.column_arrays import array_of, valid_in
from tasks.engines.gpu.kernels.parquet_pages import KINDS, run_kernel

PAGE_ROWS = 1 << 17  # a megabyte of numbers of 64 bits, which readers decode at once
BOOLEAN = "?"
ENCODINGS = {
    "plain": layout.PLAIN,
    "dictionary": layout.RLE_DICTIONARY,
    "delta": layout.DELTA_BINARY_PACKED,
}


def is_encodable(dtype: pa.DataType) -> bool:
    """Say whether columns of the type are encoded here: numbers, booleans, times and dates."""
    return (
        pa.types.is_integer(dtype)
        or pa.types.is_float32(dtype)
        or pa.types.is_float64(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_timestamp(dtype)
        or pa.types.is_date32(dtype)
    )


@dataclass
class _Pages:
    """The pages of a column in all row groups: for each page its row group, rows, and the values that are not null."""

    kind: str  # of numpy
    width: int  # bytes of a value in the encoding PLAIN; 0 of booleans
    group: np.ndarray
    start: np.ndarray
    rows: np.ndarray
    valid: cupy.ndarray | None
    values: plc.Column
    first: np.ndarray
    count: np.ndarray
    low: list[int | None] = field(default_factory=list)  # of each row group; of floats the bits
    high: list[int | None] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)  # of each row group
    deltas: _Deltas | None = None

    @property
    def data(self) -> object:
        """The values as kernels take them."""
        return array_of(self.values)

    @property
    def kind_number(self) -> np.int32:
        return np.int32(KINDS.index("u1" if self.kind == BOOLEAN else self.kind))

    @property
    def is_whole_number(self) -> bool:
        return self.kind[0] in "iu"


@dataclass(frozen=True)
class _Deltas:
    """What `measure_deltas` found of the pages `chosen`: by block of deltas, and on the host by page."""

    chosen: np.ndarray
    first_block: np.ndarray
    least: cupy.ndarray
    widths: cupy.ndarray
    sizes: cupy.ndarray
    ends: cupy.ndarray
    heads: cupy.ndarray


@dataclass
class _Placed:
    """Where what is not values goes to in the file: pieces of bytes, and ranges of numbers that are dictionaries."""

    places: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)

    def put(self, place: int, piece: bytes) -> int:
        """Put a piece at a place; return the place behind it."""
        self.places.append(place)
        self.pieces.append(piece)
        return place + len(piece)


def encode_table(table: plc.Table, rows_of_group: int) -> tuple[cupy.ndarray, list[list[Chunk]]]:
    """Encode a table as row groups; return their bytes, and their chunks with places that count from the first byte."""
    if not table.num_rows():
        return cupy.empty(0, np.uint8), []
    edges = list(range(0, table.num_rows(), rows_of_group))
    stops = [*edges[1:], table.num_rows()]
    columns = [_cut_into_pages(column, edges, stops) for column in table.columns()]
    _find_extremes(columns, len(edges))
    for column in columns:
        _choose_encodings(column, np.subtract(stops, edges))
    _measure_deltas(columns)
    return _write_row_groups(columns, len(edges))


def _cut_into_pages(column: plc.Column, edges: list[int], stops: list[int]) -> _Pages:
    if column.type().id() == plc.TypeId.TIMESTAMP_SECONDS:  # which Parquet lacks
        column = plc.unary.cast(column, plc.DataType(plc.TypeId.TIMESTAMP_MILLISECONDS))
    starts = [np.arange(low, high, PAGE_ROWS) for low, high in zip(edges, stops, strict=True)]
    group = np.repeat(np.arange(len(edges)), [len(pages) for pages in starts])
    start = np.concatenate(starts)
    rows = np.minimum(start + PAGE_ROWS, np.asarray(stops)[group]) - start
    valid = valid_in(column)
    values = column
    first = start
    count = rows
    if valid is not None:
        ends = cupy.concatenate([cupy.zeros(1, np.int64), cupy.cumsum(valid, dtype=np.int64)])
        first = cupy.asnumpy(ends[cupy.asarray(start)])
        count = cupy.asnumpy(ends[cupy.asarray(start + rows)]) - first
        (values,) = plc.stream_compaction.drop_nulls(plc.Table([column]), [0], 1).columns()
    kind = _kind_of(values)
    width = 0 if kind == BOOLEAN else max(int(kind[1:]), 4)
    return _Pages(kind, width, group, start, rows, valid, values, first, count)


def _kind_of(values: plc.Column) -> str:
    """Name the type of the stored values: a letter and bytes, BOOLEAN for booleans."""
    dtype = array_of(values).dtype
    return BOOLEAN if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"


def _find_extremes(columns: Sequence[_Pages], groups: int) -> None:
    """Find the least and the greatest value of each row group of each column of numbers."""
    bounds = cupy.empty((2, len(columns), groups), np.int64)
    bounds[0] = np.iinfo(np.int64).max
    bounds[1] = np.iinfo(np.int64).min
    for number, pages in enumerate(columns):
        properties = [pages.first, pages.count, pages.group]
        low = bounds[0, number]
        high = bounds[1, number]
        run_kernel("find_extremes", properties, pages.data, pages.kind_number, ..., low, high)
    lows, highs = cupy.asnumpy(bounds)
    for pages, low_of, high_of in zip(columns, lows.tolist(), highs.tolist(), strict=True):
        has_values = [low <= high for low, high in zip(low_of, high_of, strict=True)]
        pages.low = [_undo_rank(x, pages.kind) if any_ else None for x, any_ in zip(low_of, has_values, strict=True)]
        pages.high = [_undo_rank(x, pages.kind) if any_ else None for x, any_ in zip(high_of, has_values, strict=True)]


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


def _choose_encodings(pages: _Pages, rows: np.ndarray) -> None:
    nulls_of = rows - np.bincount(pages.group, weights=pages.count, minlength=len(rows)).astype(np.int64)
    for group, (low, high) in enumerate(zip(pages.low, pages.high, strict=True)):
        encoding = "plain"
        if pages.is_whole_number and low is not None and high is not None:
            encoding = choose_encoding(int(rows[group] - nulls_of[group]), low, high, pages.width)
        pages.encodings.append(encoding)


def _measure_deltas(columns: Sequence[_Pages]) -> None:
    """Measure the bytes of the values of each page."""
    for pages in columns:
        is_delta = np.array([encoding == "delta" for encoding in pages.encodings])[pages.group]
        if not is_delta.any():
            continue
        chosen = np.flatnonzero(is_delta)
        count = pages.count[chosen]
        blocks = np.maximum(count - 1 + DELTA_BLOCK - 1, 0) // DELTA_BLOCK
        first_block = np.cumsum(blocks) - blocks
        total = int(blocks.sum())
        least = cupy.empty(total, np.int64)
        widths = cupy.zeros(total * (DELTA_BLOCK // DELTA_MINIBLOCK), np.uint8)
        sizes = cupy.empty(total, np.int64)
        heads = cupy.empty(len(chosen), np.int64)
        properties = [pages.first[chosen], count, first_block]
        outputs = (least, widths, sizes, heads)
        run_kernel("measure_deltas", properties, pages.data, pages.kind_number, ..., *outputs)
        ends = cupy.cumsum(sizes)
        pages.deltas = _Deltas(chosen, first_block, least, widths, sizes, ends, heads)


def _measure_bodies(pages: _Pages) -> np.ndarray:
    """Compute the bytes of the values of each page, without what stands before them."""
    eights = (pages.count + 7) // 8
    if pages.kind == BOOLEAN:
        return eights  # the last byte of a page is filled with zeros
    bits = np.array([_bits_of(pages, group) for group in range(len(pages.encodings))])[pages.group]
    is_packed = np.array([encoding == "dictionary" for encoding in pages.encodings])[pages.group]
    body = np.where(is_packed, eights * bits, pages.count * pages.width)
    deltas = pages.deltas
    if deltas is not None:
        ends = cupy.concatenate([cupy.zeros(1, np.int64), deltas.ends])
        edges_of = np.append(deltas.first_block, len(deltas.sizes))
        at_edges = cupy.asnumpy(ends[cupy.asarray(edges_of)])
        body[deltas.chosen] = cupy.asnumpy(deltas.heads) + np.diff(at_edges)
    return body


def _bits_of(pages: _Pages, group: int) -> int:
    """Return the bits of an index into the dictionary of a row group; 0 without one."""
    low = pages.low[group]
    high = pages.high[group]
    if pages.encodings[group] != "dictionary" or low is None or high is None:
        return 0
    return index_bits(low, high)


def _wrap(number: int) -> int:
    """Return the signed number of 64 bits that has the same lower 64 bits.

    >>> _wrap((1 << 64) - 1), _wrap(7)
    (-1, 7)
    """
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _write_row_groups(columns: Sequence[_Pages], groups: int) -> tuple[cupy.ndarray, list[list[Chunk]]]:
    """Place all pages, and write them into one buffer."""
    placed = _Placed()
    dictionaries: list[tuple[int, int, int, int]] = []  # place, values, the first one, bytes of each
    chunks: list[list[Chunk]] = [[] for _ in range(groups)]
    bounds = [_describe_bounds(pages) for pages in columns]
    bodies = [_measure_bodies(pages) for pages in columns]
    level_places = [np.zeros(len(pages.rows), np.int64) for pages in columns]
    value_places = [np.zeros(len(pages.rows), np.int64) for pages in columns]
    pages_of = [np.searchsorted(pages.group, np.arange(groups + 1)) for pages in columns]
    place = 0
    for group in range(groups):
        for number, pages in enumerate(columns):
            start = place
            encoding = pages.encodings[group]
            prefix_bits = _bits_of(pages, group)
            if prefix_bits:
                low = pages.low[group]
                values = pages.high[group] - low + 1
                place = placed.put(place, layout.make_dictionary_page_header(values * pages.width, values))
                dictionaries.append((place, values, _wrap(low), pages.width))
                place += values * pages.width
            data_start = place
            low_page, high_page = pages_of[number][group : group + 2]
            for page in range(low_page, high_page):
                rows = int(pages.rows[page])
                count = int(pages.count[page])
                body = int(bodies[number][page])
                prefix = bytes([prefix_bits]) + layout.make_packed_run_head(count) if prefix_bits else b""
                if count == rows:
                    levels = layout.make_full_levels(rows)
                    level_bytes = 0
                else:
                    levels = layout.make_packed_levels_head(rows)
                    level_bytes = layout.packed_bytes(rows, 1)
                nbytes = len(levels) + level_bytes + len(prefix) + body
                head = layout.make_data_page_header(nbytes, rows, ENCODINGS[encoding]) + levels
                if not level_bytes:
                    place = placed.put(place, head + prefix)
                else:
                    place = placed.put(place, head)
                    level_places[number][page] = place
                    place = placed.put(place + level_bytes, prefix)
                value_places[number][page] = place
                place += body
            of_group = slice(low_page, high_page)
            total_rows = int(pages.rows[of_group].sum())
            nulls = total_rows - int(pages.count[of_group].sum())
            least, greatest = bounds[number][group]
            nbytes = place - start
            chunks[group].append(
                Chunk(ENCODINGS[encoding], start, data_start, nbytes, total_rows, nulls, least, greatest)
            )
    buffer = cupy.empty(place, np.uint8)
    _scatter(placed, buffer)
    _write_dictionaries(dictionaries, buffer)
    for pages, levels_at, values_at in zip(columns, level_places, value_places, strict=True):
        _write_levels(pages, levels_at, buffer)
        _write_values(pages, values_at, buffer)
    return buffer, chunks


def _describe_bounds(pages: _Pages) -> list[tuple[bytes | None, bytes | None]]:
    """Describe the least and the greatest value of each row group as Parquet's statistics have them."""
    return [
        (None, None) if low is None or high is None else (_to_bound(low, pages, True), _to_bound(high, pages, False))
        for low, high in zip(pages.low, pages.high, strict=True)
    ]


def _to_bound(number: int, pages: _Pages, is_low: bool) -> bytes:
    """Encode a bound plainly; zero as a bound of floats stands for both zeros, as Parquet wants it."""
    width = pages.width or 1
    if pages.kind[0] == "f":
        minus_zero = 1 << 8 * width - 1
        if number in (0, minus_zero):
            number = minus_zero if is_low else 0
    return (number & (1 << 8 * width) - 1).to_bytes(width, "little")


def _scatter(placed: _Placed, buffer: cupy.ndarray) -> None:
    sizes = np.array([len(piece) for piece in placed.pieces], dtype=np.int64)
    pieces = cupy.asarray(np.frombuffer(b"".join(placed.pieces), np.uint8))
    run_kernel("scatter", [np.cumsum(sizes) - sizes, sizes, np.array(placed.places)], pieces, ..., buffer)


def _write_dictionaries(dictionaries: Sequence[tuple[int, int, int, int]], buffer: cupy.ndarray) -> None:
    for width in sorted({width for *_, width in dictionaries}):
        of_width = np.array([d[:3] for d in dictionaries if d[3] == width], dtype=np.int64)
        places, values, lows = of_width.T
        run_kernel("write_range", [np.zeros_like(places), values, places, lows], np.int32(width), ..., buffer)


def _write_levels(pages: _Pages, places: np.ndarray, buffer: cupy.ndarray) -> None:
    """Write which rows are not null, of the pages that have nulls."""
    chosen = np.flatnonzero(places)
    if len(chosen) and pages.valid is not None:
        zeros = np.zeros(len(chosen), np.int64)
        properties = [pages.start[chosen], pages.rows[chosen], places[chosen], zeros, zeros + 1]
        run_kernel("write_packed", properties, pages.valid, np.int32(KINDS.index("u1")), ..., buffer)


def _write_values(pages: _Pages, places: np.ndarray, buffer: cupy.ndarray) -> None:
    """Write the values of a column at their places."""
    if not pages.values.size():
        return
    if pages.kind == BOOLEAN:
        zeros = np.zeros_like(places)
        properties = [pages.first, pages.count, places, zeros, zeros + 1]
        run_kernel("write_packed", properties, pages.data, pages.kind_number, ..., buffer)
        return
    encoding_of = np.array(pages.encodings)[pages.group]
    for encoding in sorted(set(pages.encodings)):
        chosen = np.flatnonzero(encoding_of == encoding)
        properties = [pages.first[chosen], pages.count[chosen], places[chosen]]
        arguments = (pages.data, pages.kind_number)
        if encoding == "plain":
            run_kernel("write_plain", properties, *arguments, np.int32(pages.width), ..., buffer)
        elif encoding == "dictionary":
            lows = np.array([_wrap(low or 0) for low in pages.low])[pages.group[chosen]]
            bits = np.array([_bits_of(pages, group) for group in range(len(pages.encodings))])
            run_kernel("write_packed", [*properties, lows, bits[pages.group[chosen]]], *arguments, ..., buffer)
        else:
            deltas = pages.deltas
            assert deltas is not None
            properties = [pages.first[chosen], pages.count[chosen], deltas.first_block, places[chosen]]
            measured = (deltas.least, deltas.widths, deltas.sizes, deltas.ends)
            run_kernel("write_deltas", properties, *arguments, ..., *measured, buffer)
