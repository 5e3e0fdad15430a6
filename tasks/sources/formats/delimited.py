"""CSV and TSV: types inferred from the first 16 MiB of the first file with rows, values parsed by Arrow.

Inferred are int64, uint64, float64, bool, date32 and timestamp[us] (ISO 8601, also followed by " UTC"), else string.
Where the beginnings of 16 other files show more of a column (any value at all, fractions), it takes a type that holds
both, string where none has a value; `source.schema` replaces what is inferred.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from tasks.core.dtypes import dtype_name, is_list, kind_of
from tasks.core.plan import File, Limits, Piece
from tasks.core.schema import check_names
from tasks.engines.algorithms.text_casts import times_of
from tasks.errors import DataError
from tasks.sources.formats import text_ranges
from tasks.sources.formats.bounds import check_columns, record_limit, record_too_long
from tasks.sources.formats.conform import STRINGS, NoListError, carried_type, conform, infinite_columns, lists_in
from tasks.sources.formats.readable_lines import (
    DelimitedSieve,
    complete,
    encoding_of,
    has_initial_spaces,
    line_ends,
    no_letters,
    with_one_sign,
)
from tasks.sources.formats.record_ends import Dialect
from tasks.sources.formats.survey import Inspected

RECOGNISED = 2**16  # bytes of the first file in which settings that its source leaves out are looked for


@dataclass(frozen=True)
class Delimited:
    """Text with one record a line and quotes around values that hold delimiters, quotes or line ends.

    The delimiter that a source names goes before that of its format.
    """

    delimiter: str
    quote: str = '"'
    escape: str | None = None
    comment: str | None = None
    skip_space: bool = False
    blank: bool = False

    @property
    def dialect(self) -> Dialect:
        return Dialect(self.delimiter, self.quote, self.escape, self.comment, self.skip_space, self.blank)

    def survey(
        self, files: Sequence[File], options: dict[str, Any], limits: Limits, parallel_map: Callable[..., Any]
    ) -> list[Inspected]:
        """Names, types and record ranges of all files."""
        return self.of(options)._survey(files, options, limits, parallel_map)

    def of(self, options: dict[str, Any]) -> Delimited:
        """The same with the signs that a source names."""
        quote = options.get("quote", self.quote)
        return Delimited(
            options.get("delimiter") or self.delimiter, quote, options.get("escape"), options.get("comment"),
            bool(options.get("skip_initial_space")),
        )  # fmt: skip

    def of_columns(self, columns: int) -> Delimited:
        """The same for so many columns: an empty line is a null of the only one, else it is no row."""
        return replace(self, blank=columns == 1)

    def recognised(self, file: File, options: dict[str, Any]) -> dict[str, Any]:
        """What the beginning of a file says of settings that its source leaves out: `delimiter`, by the line `sep=;`
        that Excel writes, and `skip_initial_space`, where each delimiter has a space behind it."""
        data, whole = text_ranges.beginning(file, RECOGNISED, options)
        named = text_ranges.named_delimiter(data)
        shown: dict[str, Any] = {"delimiter": named} if named and not options.get("delimiter") else {}
        parser = self.of(options | shown)
        spaced = replace(parser, skip_space=True).dialect
        if options.get("skip_initial_space") is None and parser.delimiter != " ":
            head = text_ranges.head(options | shown, spaced, False, file)
            records = data[head.start :] if parser.delimiter.encode() + b" " in head.first else b""
            records = records if whole else records[: complete(records, spaced)]
            if has_initial_spaces(DelimitedSieve(spaced, None).sift(records).data, spaced):
                shown["skip_initial_space"] = True
        return shown

    def _sieve(self, columns: int, options: dict[str, Any]) -> DelimitedSieve | None:
        """The sieve by which text with so many columns is counted and read; None where nothing is left out."""
        if options.get("bad_lines"):
            return DelimitedSieve(self.dialect, columns, encoding_of(options))
        return DelimitedSieve(self.dialect, None) if self.comment else None

    def bad_lines(self, file: File, options: dict[str, Any]) -> Iterator[tuple[int, str, bytes]]:
        """(line, why, bytes) of the records of a file that cannot be read, in their order."""
        parser = self.of(options)
        head = parser._head(options, file)
        parser = parser.of_columns(columns := len(parser._names(head, options)))
        head = parser._rows(head, options)
        sieve = DelimitedSieve(parser.dialect, columns, encoding_of(options))
        return text_ranges.bad_lines(head, options, parser.dialect, sieve)

    def _survey(
        self, files: Sequence[File], options: dict[str, Any], limits: Limits, parallel_map: Callable[..., Any]
    ) -> list[Inspected]:
        heads = list(parallel_map(partial(self._head, options), files))
        names = [self._names(h, options) for h in heads]
        heads = [self.of_columns(len(n))._rows(h, options) for h, n in zip(heads, names, strict=True)]
        counted = [text_ranges.Counted(())] * len(heads)
        for parser in dict.fromkeys(self.of_columns(len(n)) for n in names):
            its = [i for i, n in enumerate(names) if self.of_columns(len(n)) == parser]
            sieves = [parser._sieve(len(names[i]), options) for i in its]
            some = text_ranges.count([heads[i] for i in its], options, parser.dialect, limits, parallel_map, sieves)
            for i, count in zip(its, some, strict=True):
                counted[i] = count
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

    def _head(self, options: dict[str, Any], file: File) -> text_ranges.Head:
        return text_ranges.head(options, replace(self.dialect, blank=False), options["header"], file)

    def _rows(self, head: text_ranges.Head, options: dict[str, Any]) -> text_ranges.Head:
        """The head with rows from the first one on: of one column, empty lines are rows."""
        return head.with_blanks() if self.blank else head

    def _names(self, head: text_ranges.Head, options: dict[str, Any]) -> list[str]:
        if options["columns"]:
            return list(options["columns"])
        try:
            check_columns(head.first.count(self.delimiter.encode()) + 1, head.file.path)
            first, sign = with_one_sign(as_utf8(head.first, options), self.dialect)
            line = next(filter(None, self._reader(first.decode(), sign)), [])
        except (UnicodeDecodeError, pa.ArrowInvalid, csv.Error) as error:
            raise DataError(
                "the first line of a text file cannot be read",
                where=head.file.path,
                why=str(error),
                do=f"write the file as UTF-8, say its encoding (source.encoding: {_encoding_of(head.first)}), or its "
                "format in source.format",
            ) from None
        if options["header"]:
            check_names(line, head.file.path, _own_names(line, head.lines))
        return line if options["header"] else [f"f{i}" for i in range(len(line))]

    def _reader(self, text: str, delimiter: str) -> Iterator[list[str]]:
        return csv.reader(
            io.StringIO(text, newline=""), delimiter=delimiter, quotechar=self.quote or None,
            escapechar=self.escape, quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
        )  # fmt: skip

    def _infer(self, options: dict[str, Any], sampled: tuple[text_ranges.Head, int]) -> dict[str, pa.DataType]:
        names = self._names(sampled[0], options)
        return self.of_columns(len(names))._types(options, names, *sampled)

    def _types(
        self, options: dict[str, Any], names: list[str], head: text_ranges.Head, length: int
    ) -> dict[str, pa.DataType]:
        data = text_ranges.sample(head.file, head.start, length, self.dialect, options)
        piece = Piece(0, head.start, head.start + len(data))
        if sieve := self._sieve(len(names), options):
            data = sieve.sift(data).data
        wanted = [name for name in names if name not in options["schema"]]
        table = self._parse(data, names, {}, wanted, options, head.file, piece) if wanted else pa.table({})
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
            types = {f.name: STRINGS if is_list(f.type) else carried_type(f.type) for f in schema}
            types = types or {wanted[0]: pa.string()}
            parser = parser.of_columns(len(names))
            data = text_ranges.piece_bytes(file, piece, options)
            sieve = parser._sieve(len(names), options)
            if sieve and text_ranges.is_sifted(file, options):
                data = sieve.sift(data).data
            table = parser._parse(data, names, types, wanted, options, file, piece)
            for field in (f for f in schema if is_list(f.type) and kind_of(f.type.value_type) == "number"):
                try:
                    lists_in(table[field.name].cast(pa.string()), field.type)
                except NoListError as error:
                    row = parser._before(file, piece, options) + error.row
                    raise _no_value(field.name, field.type, error.text, file, row, str(error)) from None
            tables.append(table)
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
            with_offsets = self._with_offsets(data, names, types, wanted, options)
            if with_offsets is None:
                raise self._misfit(error, data, names, types, wanted, options, file, piece) from None
            table = with_offsets
        for name in infinite_columns(table):
            strings = parse(data, self.dialect, names, {name: pa.string()}, [name], options).column(name)
            written = pc.match_substring_regex(strings, r"^[ \t]*[+-]?inf(inity)?[ \t]*$", ignore_case=True)
            index = pc.index(pc.and_not(pc.is_inf(table.column(name)), written), pa.scalar(True)).as_py()
            if index >= 0:
                before = self._before(file, piece, options)
                raise _no_value(name, table.schema.field(name).type, strings[index].as_py(), file, before + index,
                                "it is beyond the range of the type")  # fmt: skip
        return table

    def _with_offsets(
        self, data: bytes, names: list[str], types: dict[str, pa.DataType], wanted: list[str], options: dict[str, Any]
    ) -> pa.Table | None:
        """The table where texts of times say an offset and the type has no zone, or the other way round; else None."""
        times = {name: types[name] for name in wanted if name in types and pa.types.is_timestamp(types[name])}
        if not times:
            return None
        try:
            table = parse(data, self.dialect, names, types | dict.fromkeys(times, pa.string()), wanted, options)
            for name, dtype in times.items():
                texts = table.column(name).combine_chunks()
                table = table.set_column(table.column_names.index(name), name, times_of(texts, dtype))
        except pa.ArrowException:
            return None
        return table

    def _before(self, file: File, piece: Piece, options: dict[str, Any]) -> int:
        """The records of the file before a piece."""
        head = self._rows(self._head(options, file), options)
        sieve = self._sieve(len(self._names(head, options)), options)
        sieve = sieve or (DelimitedSieve(self.dialect, None) if self.dialect.in_order else None)
        return text_ranges.records_before(file, head.start, piece.start, self.dialect, options, sieve)

    def _bad_line(self, file: File, piece: Piece, columns: int, options: dict[str, Any], of_text: bool) -> int | None:
        """The first line of a piece that is no text, or that has other values than columns."""
        data = text_ranges.piece_bytes(file, piece, options)
        bad_lines = DelimitedSieve(self.dialect, columns, encoding_of(options)).sift(data).bad
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
            except pa.ArrowException as failed:
                match = re.search(r"invalid value '(.*)'", str(failed), re.DOTALL)
                value = match[1] if match else None
                index = (
                    pc.index(strings.column(name), pa.scalar(value, pa.string())).as_py() if value is not None else -1
                )
                place = before + index if index >= 0 else None
                return _no_value(name, types[name], value, file, place, str(failed).split("\n")[0])
        return DataError("a text file does not parse", where=file.path, why=message, do="mend the file")


def _own_names(names: Sequence[str], lines: int) -> str:
    """Advice for a header in which a name is there twice; its line and those before are so many."""
    seen, own = {*names}, list[str]()
    for name in names:
        own.append(next(n for n in (name, *(f"{name}_{i}" for i in range(2, len(names) + 2))) if n not in own
                        and (n == name or n not in seen)))  # fmt: skip
    listed = json.dumps(own, ensure_ascii=False) if len(own) <= 100 else "[.., a name for each]"
    return f"name the columns and skip the header: source.columns: {listed} and source.skip_rows: {lines}"


def _no_value(name: str, dtype: pa.DataType, value: str | None, file: File, row: int | None, why: str) -> DataError:
    """A DataError for a value of a text; `row` counts from 0."""
    dtype = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    value = value if value is None or len(value) <= 200 else value[:200] + ".."
    row_text = "" if row is None else f", row {row + 1} (the header not counted)"
    return DataError(
        f"column {name!r} has a value that is no {dtype_name(dtype)}: {value!r}",
        where=f"{file.path}, column {name}{row_text}",
        why=why,
        do=f"give the column another type, source.schema: {{{name}: string}}, or mend the value",
    )


def as_utf8(data: bytes, options: dict[str, Any]) -> bytes:
    """The text as UTF-8; pa.ArrowInvalid for bytes that are no letters. Quotes, delimiters and line ends are the same
    bytes in each of these encodings; of others `text_ranges` has made UTF-8 already."""
    encoding = encoding_of(options)
    if encoding == "utf-8" or data.isascii():
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
    data, delimiter = with_one_sign(as_utf8(data, options), dialect)
    convert = pacsv.ConvertOptions(
        decimal_point=options.get("decimal") or ".",
        column_types=types,
        include_columns=wanted,
        null_values=options["null_values"],
        strings_can_be_null=options.get("texts_are_null", True),
        timestamp_parsers=[pacsv.ISO8601, "%Y-%m-%d %H:%M:%S UTC"],
    )
    layout = pacsv.ParseOptions(
        delimiter=delimiter,
        quote_char=dialect.quote or False,
        escape_char=dialect.escape or False,
        ignore_empty_lines=not dialect.blank,
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
                raise pa.ArrowInvalid(str(error).replace(delimiter, dialect.delimiter or "")) from None
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
