"""Delimited text and JSON lines share this: heads of files, counting in ranges, joining the counts to units."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.core.dtypes import dtype_name, is_list
from tasks.core.plan import File, Limits, Piece, ReadOptions, Unit
from tasks.engines.algorithms.written_numbers import Written
from tasks.errors import DataError
from tasks.sources.formats.bounds import block_limit, check_lines, make_block_error, record_limit, record_too_long
from tasks.sources.formats.readable_lines import (
    BOM,
    HEADER_AGAIN,
    Bad,
    BadLines,
    DelimitedSieve,
    Sieve,
    becomes_utf8,
    complete,
    line_ends,
    settings_that_read,
)
from tasks.sources.formats.readable_lines import first_record as first_in_order
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
from tasks.storage.files import compression, open_text, read_all, read_members, read_text_range

EDGE = 64 * 2**10
SAMPLE = 16 * 2**20  # bytes of the first file that its columns' types are inferred from
# how many other files show their types, and in how many bytes each
OTHER_FILES = 16
OTHER_BYTES = 2**20
LEAVE_OUT = "leave such lines out, source.bad_lines: skip"
BAD = "bad"  # in a plan's options: path -> bad lines of the file
RANGE = 64 * 2**20  # bytes that are read at once of a file that is followed in order
SEP_LINE = re.compile(rb"(?:\xef\xbb\xbf)?sep=([^\r\n\"]{1,8})\r?\n", re.IGNORECASE)


@dataclass(frozen=True)
class Head:
    """A text file's digest (of its first and last 64 KiB), the first record's bytes, where its rows begin, how many
    lines end before them, and the empty lines before a first record that is a row."""

    file: File
    first: bytes
    start: int
    lines: int = 0
    blanks: bytes = b""

    def with_blanks(self) -> Head:
        """The same with rows from the empty lines on that are before the first record."""
        start = self.start - len(self.blanks)
        lines = self.lines - line_ends(self.blanks)
        return replace(self, start=start, lines=lines, blanks=b"")


@dataclass(frozen=True)
class Range:
    """Bytes [start, stop) of a text file, and the sieve for its records, if any."""

    file: File
    start: int
    stop: int
    sieve: Sieve | None = None


def head(options: ReadOptions, dialect: Dialect, header: bool, file: File) -> Head:
    """The digest and the first record of one file."""
    ends = [read_text_range(file, 0, min(EDGE, file.size), options)]
    ends.append(read_text_range(file, max(0, file.size - EDGE), file.size, options))
    digest = hashlib.sha256(repr((file.size, file.mtime)).encode() + b"".join(ends)).hexdigest()
    length = EDGE
    most = record_limit(options)
    while True:
        data, whole = beginning(file, length, options)
        place = _begin(data, options)
        begin = len(data) - len(data[place:].lstrip(b"\r\n"))
        if (named := parse_sep_line(data)) and dialect.quoted and named != dialect.delimiter:
            raise DataError(
                f"a text file names the delimiter {named!r}, and {dialect.delimiter!r} is expected",
                where=f"{file.path}, line 1",
                why="its first line, sep=.., is the one in which Excel names the delimiter",
                do=f"set source.delimiter to {named!r}, or remove this line; files with other delimiters are sources "
                "of their own",
            )
        if dialect.in_order:
            start, stop = first_in_order(data, begin, dialect, whole)
        else:
            start, stop = first_record(data, cut_text(data, begin, dialect, 2**62), dialect)
        if stop < len(data) or whole:
            if stop - start > most:
                raise record_too_long(file.path, most)
            rows = stop if header else start
            if header and dialect.quoted:
                check_records(file, data, start, stop, DelimitedSieve(dialect, None), options)
            blanks = b"" if header else data[place:start]
            return Head(replace(file, digest=digest), data[start:stop], rows, line_ends(data[:rows]), blanks)
        if length > most:
            raise record_too_long(file.path, most)
        length = min(8 * length, most + EDGE)


def check_records(file: File, data: bytes, start: int, stop: int, sieve: DelimitedSieve, options: ReadOptions) -> None:
    """A DataError for the first of the records in data[start:stop], the beginning of a file, which a parser would read
    as other rows."""
    bad = sieve.sift(data[start:stop]).bad
    if bad:
        place = start + bad[0].start
        raise make_bad_line_error(file.path, line_ends(data[:place]) + 1, bad[0], data[place:stop], sieve, options)


def make_bad_line_error(
    path: str, line: int, bad: Bad, data: bytes, sieve: DelimitedSieve, options: ReadOptions
) -> DataError:
    """The error for a record that a parser would read as other rows; `data` begins with it."""
    where = f"{path}, line {line:,}"
    if bad.error == HEADER_AGAIN:
        why = "its values are the names of the columns, as in files that were joined"
        other = ""
        if options.get("columns"):
            other = f"if it is the header, source.skip_rows: {line}; else "
        elif any(map(_is_number, sieve.names)):
            other = "if the first line is a row as well, set source.header: false; else "
        return DataError(bad.error, where=where, why=why, do=f"{other}remove the line; or {LEAVE_OUT}")
    advice = advice_of(settings_that_read(data, 0, sieve.dialect, len(sieve.names) or None))
    if advice:
        do = f"{advice}; or {LEAVE_OUT}"
    else:
        do = "close the quote in this line; or leave all of these lines out, source.bad_lines: skip"
    return DataError(bad.error, where=where, why=bad.why, do=do)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def advice_of(settings: Mapping[str, str]) -> str:
    """How a line can be read, by the settings that read it; "" for none."""
    if "escape" in settings:
        return 'set source.escape: "\\\\", if a backslash makes the sign behind it a letter'
    if settings.get("quote"):
        return f"set source.quote: {json.dumps(settings['quote'])}, if it is around values"
    return 'set source.quote: "", if quotes are letters like others' if settings else ""


def parse_sep_line(data: bytes) -> str | None:
    r"""The delimiter that the first line of a text names, as Excel writes and reads it.

    >>> parse_sep_line(b"\xef\xbb\xbfsep=;\r\na;b\r\n"), parse_sep_line(b"sep,a\n")
    (';', None)
    """
    match = SEP_LINE.match(data)
    return match[1].decode(errors="replace") if match else None


def _begin(data: bytes, options: ReadOptions) -> int:
    """Where the text begins: behind a byte-order mark, and behind skipped lines or one that names the delimiter."""
    place = len(BOM) if data.startswith(BOM) else 0
    for _ in range(options.get("skip_rows", 0) or int(bool(parse_sep_line(data)))):
        place = data.find(b"\n", place) + 1
        if not place:
            return len(data)
    return place


def beginning(file: File, length: int, options: ReadOptions) -> tuple[bytes, bool]:
    """The first `length` bytes (decompressed, as UTF-8) and whether that is the whole file."""
    storage = options.get("storage_options")
    codec = compression(file, options)
    if codec == "zip":  # of several files the header is read once
        data = decompress_file(file, options)
        return data[:length], len(data) <= length
    if becomes_utf8(options):
        data = read_all(file, storage, 4 * length + 4, open_text(file, options))
        return _as_utf8(data, file.path, options, whole := len(data) < 4 * length + 4), whole
    if codec:
        data = read_all(file, storage, length, open_text(file, options))
        return data, len(data) < length
    return read_text_range(file, 0, min(length, file.size), options), length >= file.size


def is_whole(file: File, options: ReadOptions) -> bool:
    """Whether a text file can only be read from its beginning: a compressed one, and one that becomes UTF-8 first."""
    return becomes_utf8(options) or bool(compression(file, options))


def _as_utf8(data: bytes, path: str, options: ReadOptions, final: bool) -> bytes:
    """Text of an encoding that is read as a whole, as UTF-8; unless `final` a letter may be cut off at the end. UTF-16
    is little-endian without a byte-order mark."""
    if not becomes_utf8(options):
        return data
    encoding = options["encoding"]
    marked = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    try:
        codec = "utf-16-le" if encoding == "utf-16" and not marked else encoding
        return codecs.getincrementaldecoder(codec)().decode(data, final).encode()
    except UnicodeError as error:
        raise DataError(
            f"a text file is not {encoding.upper()}",
            where=path,
            why=str(error),
            do="fix the file, or say its encoding in source.encoding",
        ) from None


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
        inside = ends.inside
        closed = ends.closed
        begin = begin if inside else high
        low = high
    return begin, len(data)


def sample(file: File, start: int, length: int, dialect: Dialect, options: ReadOptions) -> bytes:
    """Whole records from the beginning of a file's rows, about `length` bytes of them."""
    data, whole = beginning(file, start + length, options)
    data = data[start : start + length] if whole and len(data) > start + length else data[start:]
    if whole and len(data) < length:
        return data
    if dialect.in_order:
        return data[: complete(data, dialect) or len(data)]
    cuts = cut_text(data, 0, dialect, max(1, len(data) - 2**20, len(data) // 2))  # in two or three ranges
    return data[: cuts[-1].start] if len(cuts) > 1 else data


def has_rows(options: ReadOptions, head: Head) -> bool:
    """Whether a file goes on behind its header."""
    if is_whole(head.file, options):
        return len(beginning(head.file, head.start + 1, options)[0]) > head.start
    return head.start < head.file.size


class ColumnTypes(NamedTuple):
    """types: the columns by name; grown: a sentence for each whose type grew in another file than the first;
    number_texts: a sentence for each whose numbers stay text."""

    types: dict[str, pa.DataType]
    grown: dict[str, str]
    number_texts: dict[str, str]


def types_of(
    heads: Sequence[Head],
    infer: Callable[[tuple[Head, int]], Mapping[str, pa.DataType | Written]],
    parallel_map: Callable[..., Any],
    also: Sequence[Head] = (),
) -> ColumnTypes:
    """The columns of the first file, as `infer((head, bytes))` returns their types, or how their numbers are written.

    Up to `OTHER_FILES` of the other files, and those of `also`, are looked at too, in fewer bytes: a column takes the
    wider type, and columns that the first file lacks are added.
    """
    if not heads:
        return ColumnTypes({}, {}, {})
    others = heads[1:]
    step = max(1, -(-len(others) // OTHER_FILES))
    some = list(dict.fromkeys([*others[::step], *also]))
    first, *others_types = parallel_map(infer, [(heads[0], SAMPLE), *((h, OTHER_BYTES) for h in some)])
    types = dict[str, pa.DataType]()
    origin = dict.fromkeys(first, heads[0].file.path)
    grown = dict[str, str]()
    numbers: dict[str, Written] = {}
    for other, more in zip([heads[0], *some], [first, *others_types], strict=True):
        for name, shown in more.items():
            known = types.get(name, pa.null())
            here = numbers.get(name)
            dtype = shown.dtype if isinstance(shown, Written) else shown
            both = wider(known, dtype)
            if isinstance(shown, Written) and (here or not _is_known(known)):
                numbers[name] = here | shown if here else shown
                both = numbers[name].dtype
            types[name] = both
            if both == known:
                continue
            if _is_known(known) and both != pa.string():
                grown[name] = (
                    f"column {name!r} is {dtype_name(dtype)} in {other.file.path}, {dtype_name(known)} in "
                    f"{origin[name]}: read as {dtype_name(both)}"
                )
            origin[name] = other.file.path
    return ColumnTypes(types, grown, {n: how.sentence(n) for n, how in numbers.items() if how.is_text})


def _is_known(dtype: pa.DataType) -> bool:
    """Whether values have shown a type; structs may get more fields, which changes no value."""
    while is_list(dtype):
        dtype = dtype.value_type
    return not pa.types.is_null(dtype) and not pa.types.is_struct(dtype)


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


@dataclass(frozen=True)
class Tally:
    """Bytes [start, stop) of a text file: `rows` that are read, `bad` records that cannot be, where `lines` lines end;
    the first bad one is in line `first` of these (counted from 0), for the reason `why`."""

    start: int
    stop: int
    rows: int
    bad: int = 0
    lines: int = 0
    first: int = 0
    why: str = ""


@dataclass(frozen=True)
class CountedLines:
    """The units of a file, and its lines that are left out, since they cannot be read."""

    units: tuple[Unit, ...]
    bad: BadLines | None = None


def count(
    heads: Sequence[Head],
    options: ReadOptions,
    dialect: Dialect,
    limits: Limits,
    parallel_map: Callable[..., Any],
    sieves: Sequence[Sieve | None],
) -> list[CountedLines]:
    """The units of each file, all ranges of all files counted by one parallel pass; by a second one what the sieves of
    the files leave, if they leave out anything. A file whose records can only be followed in order is counted from its
    beginning by one task."""
    tallies: dict[int, list[Tally]] = {}
    items = list(zip(heads, sieves, strict=True))
    alone = [n for n, h in enumerate(heads) if dialect.in_order or is_whole(h.file, options)]
    in_order = partial(_in_order, options, dialect, limits.range_bytes)
    tallies |= zip(alone, parallel_map(in_order, [items[n] for n in alone]), strict=True)
    others = [n for n in range(len(heads)) if n not in tallies]
    cuts = _cuts(options, dialect, limits.range_bytes, [items[n] for n in others], parallel_map)
    tallies |= zip(others, cuts, strict=True)
    sifted = {n: _without_gaps(*items[n], tallies[n]) for n in others} if leaves_out(options) else {}
    if sifted:
        left = iter(parallel_map(partial(_sift_range, options), [item for items in sifted.values() for item in items]))
        tallies |= {n: [next(left) for _ in items] for n, items in sifted.items()}
    return [_sum_tallies(head, tallies[n]) for n, head in enumerate(heads)]


def _cuts(
    options: ReadOptions,
    dialect: Dialect,
    range_bytes: int,
    items: Sequence[tuple[Head, Sieve | None]],
    parallel_map: Callable[..., Any],
) -> list[list[Tally]]:
    """The records of each file in ranges that are counted side by side."""
    ranges = [
        [Range(head.file, *r, sieve) for r in range_list(head.start, head.file.size, range_bytes)]
        if head.start < head.file.size
        else []
        for head, sieve in items
    ]
    batches = _batches([r for file in ranges for r in file], range_bytes)
    scans = iter([s for batch in parallel_map(partial(_scan_batch, options, dialect), batches) for s in batch])
    return [
        _tally_ranges(head, [next(scans) for _ in file], file, options, dialect)
        for (head, _), file in zip(items, ranges, strict=True)
    ]


def leaves_out(options: ReadOptions) -> bool:
    """Whether lines of text files may be left out: comments, and lines that cannot be read."""
    return bool(options.get("bad_lines") or options.get("comment"))


def _without_gaps(head: Head, sieve: Sieve | None, tallies: Sequence[Tally]) -> list[Range]:
    """The ranges of a file with the empty lines before each, so that all of its lines are counted."""
    edges = [head.start, *(tally.stop for tally in tallies)]
    return [Range(head.file, start, stop, sieve) for start, stop in pairwise(edges)]


def _sum_tallies(head: Head, tallies: Sequence[Tally]) -> CountedLines:
    units = tuple(Unit(Piece(0, t.start, t.stop), t.rows, t.stop - t.start) for t in tallies if t.rows)
    line = head.lines
    for tally in tallies:
        if tally.bad:
            return CountedLines(units, BadLines(sum(t.bad for t in tallies), line + tally.first + 1, tally.why))
        line += tally.lines
    return CountedLines(units)


def _line(file: File, place: int, options: ReadOptions) -> int:
    """The number of the line in which a byte of a file is, from 1."""
    return line_ends(beginning(file, place, options)[0][:place]) + 1


def _tally(file: File, data: bytes, start: int, sieve: Sieve, options: ReadOptions) -> Tally:
    """What a sieve leaves of a text of whole records, which begins at `start` of its file. A DataError for a bad record
    that is longer than any may be: quotes that nothing closes would leave out the rest of a file."""
    sifted = sieve.sift(data)
    most = record_limit(options)
    if sifted.bad and not options.get("bad_lines"):
        assert isinstance(sieve, DelimitedSieve)  # lines of JSON are errors when they are parsed
        bad = sifted.bad[0]
        line = _line(file, start + bad.start, options)
        raise make_bad_line_error(file.path, line, bad, data[bad.start :], sieve, options)
    if any(bad.stop - bad.start > most for bad in sifted.bad):
        raise record_too_long(file.path, most)
    first = sifted.bad[0] if sifted.bad else None
    return Tally(
        start,
        start + len(data),
        sifted.rows,
        len(sifted.bad),
        line_ends(data),
        line_ends(data[: first.start]) if first else 0,
        first.why if first else "",
    )


def _sift_range(options: ReadOptions, cut: Range) -> Tally:
    assert cut.sieve
    data = piece_bytes(cut.file, Piece(0, cut.start, cut.stop), options)
    return _tally(cut.file, data, cut.start, cut.sieve, options)


def _in_order(options: ReadOptions, dialect: Dialect, range_bytes: int, item: tuple[Head, Sieve | None]) -> list[Tally]:
    """A file that is followed from its beginning; a compressed one, which is read as a whole, is one unit."""
    head, sieve = item
    if sieve is None or not (dialect.in_order or leaves_out(options)):
        return _whole(options, dialect, range_bytes, head, sieve)
    runs = records_in_order(head, options, dialect, range_bytes)
    return [_tally(head.file, data, start, sieve, options) for start, data in runs]


def records_in_order(
    head: Head, options: ReadOptions, dialect: Dialect, range_bytes: int = RANGE
) -> Iterator[tuple[int, bytes]]:
    """Whole records from the beginning of a file's rows on, about `range_bytes` at a time, with where they begin."""
    if is_whole(head.file, options):
        data = decompress_file(head.file, options)
        check_lines(data, head.file.path, options)
        if head.start < len(data):
            yield head.start, data[head.start :]
        return
    start = head.start
    rest = b""
    stop = head.start
    most = record_limit(options)
    while stop < head.file.size:
        begin = stop
        stop = min(stop + range_bytes, head.file.size)
        part = read_text_range(head.file, begin, stop, options)
        if len(part) < stop - begin:
            raise _shrank(head.file.path)
        rest += part
        end = len(rest) if stop == head.file.size else complete(rest, dialect)
        if not end and len(rest) > most + range_bytes:
            raise record_too_long(head.file.path, most)
        if end:
            check_lines(rest[:end], head.file.path, options)
            yield start, rest[:end]
            start = start + end
            rest = rest[end:]


def bad_lines(head: Head, options: ReadOptions, dialect: Dialect, sieve: Sieve) -> Iterator[tuple[int, str, bytes]]:
    """(line, counted from 1; why; bytes) of the records of a file that cannot be read, in their order."""
    line = head.lines + 1
    for _, data in records_in_order(head, options, dialect):
        seen = 0
        for bad in sieve.sift(data).bad:
            line += line_ends(data[seen : bad.start])
            seen = bad.start
            yield line, bad.why, data[bad.start : bad.stop]
        line += line_ends(data[seen:])


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


class ScannedRange(NamedTuple):
    """The counts of a range, its last byte, and whether the header may be there again, begun in the range."""

    ends: Scan
    last: bytes
    may_have_header: bool


def _scan_batch(options: ReadOptions, dialect: Dialect, ranges: Sequence[Range]) -> list[ScannedRange]:
    return [_scan_range(options, dialect, item) for item in ranges]


def _with_margins(item: Range, options: ReadOptions, behind: int = 1) -> tuple[bytes, int, int]:
    begin = max(0, item.start - 2)
    data = read_text_range(item.file, begin, min(item.stop + behind, item.file.size), options)
    return data, item.start - begin, item.stop - begin


def _scan_range(options: ReadOptions, dialect: Dialect, item: Range) -> ScannedRange:
    sieve = item.sieve if isinstance(item.sieve, DelimitedSieve) else DelimitedSieve(dialect, None)
    longest = max(map(len, sieve.headers), default=1)  # a header that begins in the range may end behind it
    data, low, high = _with_margins(item, options, longest)
    if len(data) < high:
        raise _shrank(item.file.path)
    check_lines(data, item.file.path, options)
    has_header = sieve.may_have_header(data, low, high + longest - 1)
    return ScannedRange(scan(data, low, high, dialect), data[high - 1 : high], has_header)


def _shrank(path: str) -> DataError:
    return DataError("a file shrank while it was read", where=path, do="start again when it is complete")


def _tally_ranges(
    head: Head, scans: Sequence[ScannedRange], ranges: Sequence[Range], options: ReadOptions, dialect: Dialect
) -> list[Tally]:
    if not ranges:
        return []

    def exactly(number: int, inside: bool, closed: bool) -> Ends:
        return scan_exactly(*_with_margins(ranges[number], options), dialect, inside, closed)

    edges = [(r.start, r.stop) for r in ranges]
    most = record_limit(options)
    longest = max(stop - start for start, stop in edges)
    suspects = [scanned.may_have_header for scanned in scans]
    cuts = join(edges, [scanned.ends for scanned in scans], exactly, is_open(scans[-1].last, dialect), suspects)
    if any(cut.stop - cut.start > 2 * longest + most for cut in cuts):  # ranges in which no record ends
        raise record_too_long(head.file.path, most)
    for cut in cuts:
        if cut.suspicious and not options.get("bad_lines"):
            _sift_range(options, Range(head.file, cut.start, cut.stop, ranges[0].sieve))
    return [Tally(cut.start, cut.stop, cut.records) for cut in cuts]


def _whole(options: ReadOptions, dialect: Dialect, range_bytes: int, head: Head, sieve: Sieve | None) -> list[Tally]:
    """The one unit of a compressed file, which can only be read from its beginning."""
    data = decompress_file(head.file, options)
    check_lines(data, head.file.path, options)
    cuts = cut_text(data, head.start, dialect, range_bytes)
    if isinstance(sieve, DelimitedSieve):
        for cut in cuts:
            if cut.suspicious or sieve.may_have_header(data, cut.start, cut.stop):
                check_records(head.file, data, cut.start, cut.stop, sieve, options)
    records = sum(cut.records for cut in cuts)
    return [Tally(head.start, len(data), records)] if records else []


def records_before(
    file: File, start: int, stop: int, dialect: Dialect, options: ReadOptions, sieve: Sieve | None = None
) -> int:
    """How many records of bytes [start, stop) of a file are read, by its sieve: for messages that name a row."""
    data = beginning(file, stop, options)[0][:stop]
    if sieve:
        return sieve.sift(data[start:]).rows
    return sum(cut.records for cut in cut_text(data, start, dialect, 2**26))


def merge_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces with neighbouring bytes of one file put together again."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and (last.file, last.stop) == (piece.file, piece.start) and last.stop - last.start < 2**29:
            joined[-1] = replace(last, stop=piece.stop)
        else:
            joined.append(piece)
    return joined


def is_sifted(file: File, options: ReadOptions) -> bool:
    """Whether records of a file are left out when it is read; where none of its lines is bad, its bytes stay."""
    return leaves_out(options) and (bool(options.get("comment")) or BAD not in options or file.path in options[BAD])


def piece_bytes(file: File, piece: Piece, options: ReadOptions) -> bytes:
    """The records of a piece as they stand in the file, decompressed."""
    if is_whole(file, options):
        data = decompress_file(file, options)[piece.start : piece.stop]
    else:
        data = read_text_range(file, piece.start, piece.stop, options)
    check_lines(data, file.path, options)
    return data


def decompress_file(file: File, options: ReadOptions) -> bytes:
    """The content of a compressed file, as UTF-8; a DataError where it is more than `source.max_block_bytes`."""
    most = block_limit(options)
    try:
        members = read_members(file, options.get("storage_options"), most=most, opened=open_text(file, options))
    except OverflowError:
        raise make_block_error(file.path, "a compressed text file is read as a whole", most) from None
    texts = [(name, _as_utf8(data, file.path, options, True)) for name, data in members]
    return texts[0][1] if len(texts) == 1 else _one_text(texts, file.path, options)


def _one_text(texts: Sequence[tuple[str, bytes]], path: str, options: ReadOptions) -> bytes:
    """The texts of a zip file one after another, with the lines before the rows once; a DataError for other headers."""
    rows = list[bytes]()
    heads = list[bytes]()
    for _, text in texts:
        begin = _begin(text, options)
        end = begin + len(next(iter(text[begin:].splitlines(keepends=True)), b"")) if options["header"] else begin
        heads.append(text[begin:end].rstrip(b"\r\n"))
        rows.append(text[end if rows else 0 :].rstrip(b"\r\n") + b"\n")
    for (name, _), head in zip(texts, heads, strict=True):
        if head != heads[0]:
            shown = [line[:200].decode(errors="replace") for line in (heads[0], head)]
            raise DataError(
                "the files in a zip file have different headers",
                where=f"{path}, {name}",
                why=f"{shown[1]!r} here, {shown[0]!r} in {texts[0][0]}",
                do="unpack it: files of a folder are united by the names of their columns",
            )
    return b"".join(rows)
