"""CSV and TSV: types inferred from the first 16 MiB of the first file with rows, values parsed by Arrow.

Inferred are int64, uint64, float64, bool, date32 and timestamp[us] (ISO 8601, also followed by " UTC"), else string.
Where the beginnings of 16 other files show more of a column (any value at all, fractions), it takes a type that holds
both, string where none has a value; `source.schema` replaces what is inferred.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from tasks.core.dtypes import dtype_name
from tasks.core.plan import ADVICE, File, Limits, Piece
from tasks.core.schema import check_names
from tasks.engines.algorithms.text_casts import times_of
from tasks.errors import DataError
from tasks.sources.formats import text_ranges
from tasks.sources.formats.bounds import check_columns, record_limit, record_too_long
from tasks.sources.formats.conform import carried_type, conform, infinite_columns, whole_numbers
from tasks.sources.formats.readable_lines import DelimitedSieve, line_ends, no_letters
from tasks.sources.formats.record_ends import Dialect
from tasks.sources.formats.survey import Inspected


@dataclass(frozen=True)
class Delimited:
    """Text with one record a line and quotes around values that hold delimiters, quotes or line ends.

    The delimiter that a source names goes before that of its format.
    """

    delimiter: str
    quote: str = '"'
    escape: str | None = None
    comment: str | None = None

    @property
    def dialect(self) -> Dialect:
        return Dialect(self.delimiter, self.quote, self.escape, self.comment)

    def survey(
        self, files: Sequence[File], options: dict[str, Any], limits: Limits, parallel_map: Callable[..., Any]
    ) -> list[Inspected]:
        """Names, types and record ranges of all files."""
        return self.of(options)._survey(files, options, limits, parallel_map)

    def of(self, options: dict[str, Any]) -> Delimited:
        """The same with the signs that a source names."""
        quote = options.get("quote", self.quote)
        return Delimited(
            options.get("delimiter") or self.delimiter, quote, options.get("escape"), options.get("comment")
        )

    def _sieve(self, columns: int, options: dict[str, Any]) -> DelimitedSieve | None:
        """The sieve by which text with so many columns is counted and read; None where nothing is left out."""
        if options.get("bad_lines"):
            return DelimitedSieve(self.dialect, columns, options.get("encoding", "utf-8"))
        return DelimitedSieve(self.dialect, None) if self.comment else None

    def bad_lines(self, file: File, options: dict[str, Any]) -> Iterator[tuple[int, str, bytes]]:
        """(line, why, bytes) of the records of a file that cannot be read, in their order."""
        parser = self.of(options)
        head = text_ranges.head(options, parser.dialect, options["header"], file)
        sieve = DelimitedSieve(parser.dialect, len(parser._names(head, options)), options.get("encoding", "utf-8"))
        return text_ranges.bad_lines(head, options, parser.dialect, sieve)

    def _survey(
        self, files: Sequence[File], options: dict[str, Any], limits: Limits, parallel_map: Callable[..., Any]
    ) -> list[Inspected]:
        heads = list(parallel_map(partial(text_ranges.head, options, self.dialect, options["header"]), files))
        names = [self._names(h, options) for h in heads]
        sieves = [self._sieve(len(n), options) for n in names]
        counted = text_ranges.count(heads, options, self.dialect, limits, parallel_map, sieves)
        full = [h for h, c in zip(heads, counted, strict=True) if c.units]
        others: dict[tuple[str, ...], text_ranges.Head] = {}  # the first file with each row of names
        for h, n, c in zip(heads, names, counted, strict=True):
            if c.units:
                others.setdefault(tuple(n), h)
        also = list(others.values())[1:]
        types, grown = text_ranges.types_of(full, partial(self._infer, options), parallel_map, also)
        return [
            Inspected(
                h.file, pa.schema([(n, types.get(n, pa.null())) for n in names[i]]), counted[i].units,
                grown=grown, bad=counted[i].bad,
            )
            for i, h in enumerate(heads)
        ]  # fmt: skip

    def _names(self, head: text_ranges.Head, options: dict[str, Any]) -> list[str]:
        if options["columns"]:
            return list(options["columns"])
        try:
            check_columns(head.first.count(self.delimiter.encode()) + 1, head.file.path)
            first = as_utf8(head.first, options).decode()
            line = next(self._reader(first), [])
        except (UnicodeDecodeError, pa.ArrowInvalid, csv.Error) as error:
            raise DataError(
                "the first line of a text file cannot be read",
                where=head.file.path,
                why=str(error),
                do=f"write the file as UTF-8, say its encoding (source.encoding: {_encoding_of(head.first)}), or its "
                "format in source.format",
            ) from None
        if options["header"]:
            check_names(line, head.file.path)
        return line if options["header"] else [f"f{i}" for i in range(len(line))]

    def _reader(self, text: str) -> Iterator[list[str]]:
        return csv.reader(
            io.StringIO(text, newline=""), delimiter=self.delimiter, quotechar=self.quote or None,
            escapechar=self.escape, quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
        )  # fmt: skip

    def _infer(self, options: dict[str, Any], sampled: tuple[text_ranges.Head, int]) -> dict[str, pa.DataType]:
        head, length = sampled
        names = self._names(head, options)
        data = text_ranges.sample(head.file, head.start, length, self.dialect, options)
        piece = Piece(0, head.start, head.start + len(data))
        if sieve := self._sieve(len(names), options):
            data = sieve.sift(data).data
        table = self._parse(data, names, {}, names, options, head.file, piece)
        types = {name: _inferred(table[name]) for name in table.column_names}
        floats = [n for n, t in types.items() if pa.types.is_floating(t)]
        if floats:  # whole numbers beyond int64 are ids, which a float would change
            strings = self._parse(data, names, {n: pa.string() for n in names}, floats, options, head.file, piece)
            types.update({n: _of_whole_numbers(strings.column(n)) for n in floats})
        return types

    def read(
        self, files: Sequence[File], pieces: Sequence[Piece], schema: pa.Schema, options: dict[str, Any]
    ) -> pa.Table:
        """The rows of the pieces, in their order, as `schema` says."""
        tables, parser = [], self.of(options)
        for piece in text_ranges.merged(pieces):
            file = files[piece.file]
            names = options["other_names"].get(str(piece.file), options["names"])
            wanted = schema.names or names[:1]
            types = {f.name: carried_type(f.type) for f in schema} or {wanted[0]: pa.string()}
            data = text_ranges.piece_bytes(file, piece, options)
            sieve = parser._sieve(len(names), options)
            if sieve and text_ranges.is_sifted(file, options):
                data = sieve.sift(data).data
            tables.append(parser._parse(data, names, types, wanted, options, file, piece))
        return conform(pa.concat_tables(tables), schema).combine_chunks()  # once, instead of at each use of a column

    def _parse(
        self,
        data: bytes,
        names: list[str],
        types: dict[str, pa.DataType],
        wanted: list[str],
        options: dict[str, Any],
        file: File,
        piece: Piece,
    ) -> pa.Table:
        try:
            table = parse(data, self.dialect, names, types, wanted, options)
        except _Straddling:
            raise record_too_long(file.path, record_limit(options)) from None
        except pa.ArrowException as error:
            in_part = self._with_texts(data, names, types, wanted, options)
            if in_part is None:
                raise self._misfit(error, data, names, types, wanted, options, file, piece) from None
            table = in_part
        for name in infinite_columns(table):
            strings = parse(data, self.dialect, names, {name: pa.string()}, [name], options).column(name)
            written = pc.match_substring_regex(strings, r"^[ \t]*[+-]?inf(inity)?[ \t]*$", ignore_case=True)
            index = pc.index(pc.and_not(pc.is_inf(table.column(name)), written), pa.scalar(True)).as_py()
            if index >= 0:
                before = self._before(file, piece, options)
                raise _no_value(name, table.schema.field(name).type, strings[index].as_py(), file, before + index,
                                "it is beyond the range of the type", options)  # fmt: skip
        return table

    def _with_texts(
        self, data: bytes, names: list[str], types: dict[str, pa.DataType], wanted: list[str], options: dict[str, Any]
    ) -> pa.Table | None:
        """The table where texts of times say an offset and the type has no zone, or the other way round, and where
        whole numbers are written as 7.0; else None."""
        times = {name: types[name] for name in wanted if name in types and pa.types.is_timestamp(types[name])}
        whole = {name: types[name] for name in wanted if name in types and pa.types.is_integer(types[name])}
        if not times and not whole:
            return None
        try:
            table = parse(data, self.dialect, names, types | dict.fromkeys(times | whole, pa.string()), wanted, options)
            for name, dtype in (times | whole).items():
                texts = table.column(name).combine_chunks()
                point = options.get("decimal") or "."
                values = whole_numbers(texts, dtype, name, point) if name in whole else times_of(texts, dtype)
                table = table.set_column(table.column_names.index(name), name, values)
        except pa.ArrowException:
            return None
        return table

    def _before(self, file: File, piece: Piece, options: dict[str, Any]) -> int:
        """The records of the file before a piece."""
        head = text_ranges.head(options, self.dialect, options["header"], replace(file))
        sieve = self._sieve(len(self._names(head, options)), options)
        sieve = sieve or (DelimitedSieve(self.dialect, None) if self.dialect.in_order else None)
        return text_ranges.records_before(file, head.start, piece.start, self.dialect, options, sieve)

    def _bad_line(self, file: File, piece: Piece, columns: int, options: dict[str, Any], of_text: bool) -> int | None:
        """The first line of a piece that is no text, or that has other values than columns."""
        data = text_ranges.piece_bytes(file, piece, options)
        bad_lines = DelimitedSieve(self.dialect, columns, options.get("encoding", "utf-8")).sift(data).bad
        first = next((bad.start for bad in bad_lines if bad.why.startswith("byte") == of_text), None)
        if first is None:
            return None
        before = text_ranges.beginning(file, piece.start, options)[0][: piece.start] if piece.start else b""
        return line_ends(before) + line_ends(data[:first]) + 1

    def _misfit(
        self,
        error: Exception,
        data: bytes,
        names: list[str],
        types: dict[str, pa.DataType],
        wanted: list[str],
        options: dict[str, Any],
        file: File,
        piece: Piece,
    ) -> DataError:
        """The error with column, value and row in the file, found by parsing column by column."""
        message = str(error).split("\n")[0]
        try:
            before = self._before(file, piece, options)
            strings = parse(data, self.dialect, names, {n: pa.string() for n in names}, wanted, options)
        except pa.ArrowException:
            row = re.search(r"Row #(\d+)", message)
            where = f"{file.path}, row {before + int(row[1])}" if row else file.path
            no_text = "UTF8" in message or "is no letter of" in message
            if line := self._bad_line(file, piece, len(names), options, of_text=no_text):
                where += f" (line {line:,} of the file)" if row else f", line {line:,}"
            return DataError(
                "a text file does not parse",
                where=where,
                why=message,
                do="write the file as UTF-8, or say what it is: source.encoding: latin-1"
                if no_text
                else "mend the line: it needs one value per column, and quotes around values with line ends; or leave "
                "such lines out, source.bad_lines: skip",
            )
        for name in wanted:
            try:
                parse(data, self.dialect, names, {name: types[name]} if name in types else {}, [name], options)
            except pa.ArrowException:
                if pa.types.is_integer(types[name]):
                    try:
                        whole_numbers(strings.column(name), types[name], name, options.get("decimal") or ".")
                        continue
                    except pa.ArrowException as other:
                        failed = other
                match = re.search(r"(?:invalid value |has )'(.*)'", str(failed), re.DOTALL)
                value = match[1] if match else None
                index = (
                    pc.index(strings.column(name), pa.scalar(value, pa.string())).as_py() if value is not None else -1
                )
                place = before + index if index >= 0 else None
                return _no_value(
                    name, types[name], value, file, place, str(failed).split("\n")[0].partition(", in row")[0], options
                )
        return DataError("a text file does not parse", where=file.path, why=message, do="mend the file")


def _no_value(
    name: str, dtype: pa.DataType, value: str | None, file: File, row: int | None, why: str, options: dict[str, Any]
) -> DataError:
    """A DataError for a value of a text; `row` counts from 0."""
    dtype = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    value = value if value is None or len(value) <= 200 else value[:200] + ".."
    row_text = "" if row is None else f", row {row + 1} (the header not counted)"
    return DataError(
        f"column {name!r} has a value that is no {dtype_name(dtype)}: {value!r}",
        where=f"{file.path}, column {name}{row_text}",
        why=why,
        do=options.get(ADVICE, {}).get(name)
        or f"give the column another type, source.schema: {{{name}: string}}, or mend the value",
    )


def as_utf8(data: bytes, options: dict[str, Any]) -> bytes:
    """The text as UTF-8; pa.ArrowInvalid for bytes that are no letters. Quotes, delimiters and line ends are the same
    bytes in each of these encodings. Of UTF-16, `text_ranges` has made UTF-8 already."""
    encoding = options.get("encoding", "utf-8")
    if encoding in ("utf-8", "utf-16") or data.isascii():
        return data
    try:
        return data.decode(encoding).encode()
    except UnicodeDecodeError:
        raise pa.ArrowInvalid(no_letters(data, encoding)) from None


def _encoding_of(first: bytes) -> str:
    """The encoding that a text which is no UTF-8 may have."""
    return "utf-16" if first.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in first else "latin-1"


class _Straddling(Exception):
    """A record is longer than any may be."""


def parse(
    data: bytes,
    dialect: Dialect,
    names: list[str],
    types: dict[str, pa.DataType],
    wanted: list[str],
    options: dict[str, Any],
) -> pa.Table:
    """Text without a header as a table with the wanted columns; types that are not given are inferred."""
    data = as_utf8(data, options)
    convert = pacsv.ConvertOptions(
        decimal_point=options.get("decimal") or ".",
        column_types=types,
        include_columns=wanted,
        null_values=options["null_values"],
        strings_can_be_null=True,
        timestamp_parsers=[pacsv.ISO8601, "%Y-%m-%d %H:%M:%S UTC"],
    )
    layout = pacsv.ParseOptions(
        delimiter=dialect.delimiter,
        quote_char=dialect.quote or False,
        escape_char=dialect.escape or False,
        newlines_in_values=any(sign and sign.encode() in data for sign in (dialect.quote, dialect.escape)),
    )
    most = min(record_limit(options), len(data)) + 1
    sizes = [len(data) + 1] if not types else sorted({min(4 * 2**20, most), most})
    for size in sizes:
        try:
            reading = pacsv.ReadOptions(use_threads=False, column_names=names, block_size=size)
            return pacsv.read_csv(pa.BufferReader(data), reading, layout, convert)
        except pa.ArrowInvalid as error:
            if "straddling" not in str(error):
                raise
            if size == sizes[-1]:  # a record longer than a block
                raise _Straddling(str(error)) from None
    raise AssertionError("unreachable")


def _inferred(column: pa.ChunkedArray) -> pa.DataType:
    """The type of a column from the type that Arrow infers: times in microseconds, unless they have nanoseconds."""
    dtype = column.type
    if pa.types.is_timestamp(dtype):
        finer = dtype.unit == "ns" and any(
            (chunk.view(pa.int64()).drop_null().to_numpy() % 1000).any() for chunk in column.chunks
        )
        return dtype if finer else pa.timestamp("us", dtype.tz)
    as_they_are = (pa.null(), pa.int64(), pa.float64(), pa.bool_(), pa.date32())
    return dtype if dtype in as_they_are else pa.string()


def _of_whole_numbers(column: pa.ChunkedArray) -> pa.DataType:
    """float64, unless all values are whole numbers beyond int64: uint64, or string beyond that too."""
    if not pc.all(pc.match_substring_regex(column, r"^[+-]?[0-9]+$")).as_py():
        return pa.float64()
    try:
        column.cast(pa.uint64())
        return pa.uint64()
    except pa.ArrowInvalid:
        return pa.string()


CSV, TSV = Delimited(","), Delimited("\t")
