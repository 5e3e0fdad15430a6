"""Delimited text and JSON lines share this: heads of files, counting in ranges, joining the counts to units."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import is_list
from tasks.core.plan import File, Limits, Piece, Unit
from tasks.errors import DataError
from tasks.sources.formats.bounds import block_limit, check_lines, record_limit, record_too_long, too_large
from tasks.sources.formats.record_ends import (
    Cut,
    Dialect,
    Ends,
    Scan,
    cut_text,
    is_open,
    join,
    range_list,
    scan,
    scan_exactly,
)
from tasks.storage.files import compression, read_all, read_range

EDGE = 64 * 2**10
SAMPLE = 16 * 2**20  # bytes of the first file that its columns' types are inferred from
OTHER_FILES, OTHER_BYTES = 16, 2**20  # how many other files show their types, and in how many bytes each
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Head:
    """A text file's digest (of its first and last 64 KiB), the first record's bytes, and where its rows begin."""

    file: File
    first: bytes
    start: int


@dataclass(frozen=True)
class Range:
    """Bytes [start, stop) of a text file."""

    file: File
    start: int
    stop: int


def head(options: dict[str, Any], dialect: Dialect, header: bool, file: File) -> Head:
    """The digest and the first record of one file."""
    storage = options.get("storage_options")
    ends = [read_range(file, 0, min(EDGE, file.size), storage)]
    ends.append(read_range(file, max(0, file.size - EDGE), file.size, storage))
    digest = hashlib.sha256(repr((file.size, file.mtime)).encode() + b"".join(ends)).hexdigest()
    length, most = EDGE, record_limit(options)
    while True:
        data, whole = beginning(file, length, options)
        cuts = cut_text(data, _begin(data, options.get("skip_rows", 0)), dialect, 2**62)
        start, stop = first_record(data, cuts, dialect)
        if stop < len(data) or whole:
            if stop - start > most:
                raise record_too_long(file.path, most)
            return Head(replace(file, digest=digest), data[start:stop], stop if header else start)
        if length > most:
            raise record_too_long(file.path, most)
        length = min(8 * length, most + EDGE)


def _begin(data: bytes, skipped: int) -> int:
    """Where the text begins: behind a byte-order mark and skipped lines, and behind empty lines after them."""
    place = len(BOM) if data.startswith(BOM) else 0
    for _ in range(skipped):
        place = data.find(b"\n", place) + 1
        if not place:
            return len(data)
    return len(data) - len(data[place:].lstrip(b"\r\n")) if place else 0


def beginning(file: File, length: int, options: dict[str, Any]) -> tuple[bytes, bool]:
    """The first `length` bytes (decompressed, as UTF-8) and whether that is the whole file."""
    if _is_utf16(options):
        data = read_all(file, options.get("storage_options"), 2 * length + 2)
        return _from_utf16(data, file.path, whole := len(data) < 2 * length + 2), whole
    if compression(file.path):
        data = read_all(file, options.get("storage_options"), length)
        return data, len(data) < length
    return read_range(file, 0, min(length, file.size), options.get("storage_options")), length >= file.size


def _is_utf16(options: dict[str, Any]) -> bool:
    return options.get("encoding") == "utf-16"


def is_whole(file: File, options: dict[str, Any]) -> bool:
    """Whether a text file can only be read from its beginning: a compressed one, and one that becomes UTF-8 first."""
    return bool(compression(file.path)) or _is_utf16(options)


def _from_utf16(data: bytes, path: str, final: bool) -> bytes:
    """UTF-16, little-endian without a byte-order mark, as UTF-8; unless `final` a letter may be cut off at the end."""
    marked = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    try:
        text = codecs.getincrementaldecoder("utf-16" if marked else "utf-16-le")().decode(data, final)
        return text.encode()
    except UnicodeError as error:
        raise DataError(
            "a text file is no UTF-16", where=path, why=str(error),
            do="mend the file, or say its encoding in source.encoding",
        ) from None  # fmt: skip


def first_record(data: bytes, cuts: Sequence[Cut], dialect: Dialect) -> tuple[int, int]:
    """The bytes of the first record that is not empty, its line end included."""
    if not cuts:
        return len(data), len(data)
    begin = low = cuts[0].start
    inside = closed = False
    while low < len(data):  # line by line: the first record is near
        high = data.find(b"\n", low) + 1 or len(data)
        ends = scan_exactly(data, low, high, dialect, inside, closed)
        if ends.records:
            return begin, low + ends.first
        if high == len(data) and not data.endswith(b"\n"):  # the last record needs no line end
            break
        inside, closed = ends.inside, ends.closed
        begin = begin if inside else high
        low = high
    return begin, len(data)


def sample(file: File, start: int, length: int, dialect: Dialect, options: dict[str, Any]) -> bytes:
    """Whole records from the beginning of a file's rows, about `length` bytes of them."""
    data, whole = beginning(file, start + length, options)
    data = data[start : start + length] if whole and len(data) > start + length else data[start:]
    if whole and len(data) < length:
        return data
    cuts = cut_text(data, 0, dialect, max(1, len(data) - 2**20, len(data) // 2))  # in two or three ranges
    return data[: cuts[-1].start] if len(cuts) > 1 else data


def types_of(
    heads: Sequence[Head], infer: Callable[[tuple[Head, int]], Mapping[str, pa.DataType]],
    parallel_map: Callable[..., Any], also: Sequence[Head] = (),
) -> dict[str, pa.DataType]:  # fmt: skip
    """The columns (name -> type) of the first file, as `infer((head, bytes))` returns them.

    Up to `OTHER_FILES` of the other files, and those of `also`, are looked at too, in fewer bytes: a column takes the
    wider type, and columns that the first file lacks are added.
    """
    if not heads:
        return {}
    others = heads[1:]
    step = max(1, -(-len(others) // OTHER_FILES))
    some = list(dict.fromkeys([*others[::step], *also]))
    first, *others_types = parallel_map(infer, [(heads[0], SAMPLE), *((h, OTHER_BYTES) for h in some)])
    types = dict(first)
    for more in others_types:
        types |= {name: wider(types.get(name, pa.null()), dtype) for name, dtype in more.items()}
    return types


def wider(known: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the `known` type of a column and the type in another file; `known` if no type holds both.

    >>> wider(pa.int64(), pa.float64()), wider(pa.list_(pa.null()), pa.list_(pa.bool_())), wider(pa.bool_(), pa.int64())
    (DataType(double), ListType(list<item: bool>), DataType(bool))
    """
    if pa.types.is_null(known):
        return other
    if is_list(known) and is_list(other):
        return pa.list_(wider(known.value_type, other.value_type))
    if pa.types.is_struct(known) and pa.types.is_struct(other):
        fields = {f.name: f.type for f in other}
        fields |= {f.name: wider(f.type, fields.get(f.name, f.type)) for f in known}
        return pa.struct([(name, fields[name]) for name in dict.fromkeys([f.name for f in (*known, *other)])])
    holds_both = (
        (pa.types.is_integer(known) and pa.types.is_floating(other))
        or (known == pa.int64() and other == pa.uint64())
        or (pa.types.is_date(known) and pa.types.is_timestamp(other))
    )
    return other if holds_both else known


def count(
    heads: Sequence[Head], options: dict[str, Any], dialect: Dialect, limits: Limits, parallel_map: Callable[..., Any]
) -> list[tuple[Unit, ...]]:
    """The units of each file, all ranges of all files counted by one parallel pass."""
    plain = [h for h in heads if not is_whole(h.file, options)]
    ranges = [
        [Range(h.file, *r) for r in range_list(h.start, h.file.size, limits.range_bytes)]
        if h.start < h.file.size
        else []
        for h in plain
    ]
    batches = _batches([r for file in ranges for r in file], limits.range_bytes)
    scans = iter([s for batch in parallel_map(partial(_scan_batch, options, dialect), batches) for s in batch])
    units = {
        h.file: _joined(h, [next(scans) for _ in file], file, options, dialect)
        for h, file in zip(plain, ranges, strict=True)
    }
    packed = [h for h in heads if is_whole(h.file, options)]
    units.update(
        zip(
            (h.file for h in packed),
            parallel_map(partial(_whole, options, dialect, limits.range_bytes), packed),
            strict=True,
        )
    )
    return [units[h.file] for h in heads]


def _batches(ranges: Sequence[Range], size: int) -> list[tuple[Range, ...]]:
    """Ranges in runs of about `size` bytes, so that many small files make few tasks."""
    batches: list[list[Range]] = []
    used = size
    for item in ranges:
        if used + item.stop - item.start > size or len(batches[-1]) >= 1000:
            batches.append([])
            used = 0
        batches[-1].append(item)
        used += item.stop - item.start
    return [tuple(b) for b in batches]


def _scan_batch(options: dict[str, Any], dialect: Dialect, ranges: Sequence[Range]) -> list[tuple[Scan, bytes]]:
    return [_scan_range(options, dialect, item) for item in ranges]


def _with_margins(item: Range, options: dict[str, Any]) -> tuple[bytes, int, int]:
    begin = max(0, item.start - 2)
    data = read_range(item.file, begin, min(item.stop + 1, item.file.size), options.get("storage_options"))
    return data, item.start - begin, item.stop - begin


def _scan_range(options: dict[str, Any], dialect: Dialect, item: Range) -> tuple[Scan, bytes]:
    """The counts of one range, and its last byte."""
    data, low, high = _with_margins(item, options)
    if len(data) < high:
        raise DataError("a file shrank while it was read", where=item.file.path, do="start again when it is complete")
    check_lines(data, item.file.path, options)
    return scan(data, low, high, dialect), data[high - 1 : high]


def _joined(
    head: Head, scans: Sequence[tuple[Scan, bytes]], ranges: Sequence[Range], options: dict[str, Any], dialect: Dialect
) -> tuple[Unit, ...]:
    if not ranges:
        return ()

    def exactly(number: int, inside: bool, closed: bool) -> Ends:
        return scan_exactly(*_with_margins(ranges[number], options), dialect, inside, closed)

    edges, most = [(r.start, r.stop) for r in ranges], record_limit(options)
    longest = max(stop - start for start, stop in edges)
    cuts = join(edges, [s for s, _ in scans], exactly, is_open(scans[-1][1], dialect))
    if any(cut.stop - cut.start > 2 * longest + most for cut in cuts):  # ranges in which no record ends
        raise record_too_long(head.file.path, most)
    return tuple(_unit(cut) for cut in cuts)


def _unit(cut: Cut) -> Unit:
    return Unit(Piece(0, cut.start, cut.stop), cut.records, cut.stop - cut.start)


def _whole(options: dict[str, Any], dialect: Dialect, range_bytes: int, head: Head) -> tuple[Unit, ...]:
    """The one unit of a compressed file, which can only be read from its beginning."""
    data = decompressed(head.file, options)
    check_lines(data, head.file.path, options)
    records = sum(cut.records for cut in cut_text(data, head.start, dialect, range_bytes))
    return (_unit(Cut(head.start, len(data), records)),) if records else ()


def records_before(file: File, start: int, stop: int, dialect: Dialect, options: dict[str, Any]) -> int:
    """How many records bytes [start, stop) of a file hold: for messages that name a row."""
    data = beginning(file, stop, options)[0][:stop]
    return sum(cut.records for cut in cut_text(data, start, dialect, 2**26))


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces with neighbouring bytes of one file put together again."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and (last.file, last.stop) == (piece.file, piece.start) and last.stop - last.start < 2**29:
            joined[-1] = replace(last, stop=piece.stop)
        else:
            joined.append(piece)
    return joined


def piece_bytes(file: File, piece: Piece, options: dict[str, Any]) -> bytes:
    """The records of a piece as they stand in the file, decompressed."""
    storage = options.get("storage_options")
    if is_whole(file, options):
        data = decompressed(file, options)[piece.start : piece.stop]
    else:
        data = read_range(file, piece.start, piece.stop, storage)
    check_lines(data, file.path, options)
    return data


def decompressed(file: File, options: dict[str, Any]) -> bytes:
    """The content of a compressed file, as UTF-8; a DataError where it is more than `source.max_block_bytes`."""
    most = block_limit(options)
    try:
        data = read_all(file, options.get("storage_options"), most=most)
        return _from_utf16(data, file.path, True) if _is_utf16(options) else data
    except OverflowError:
        raise too_large(file.path, "a compressed text file is read as a whole", most) from None
