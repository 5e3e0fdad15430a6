"""CSV and TSV: types inferred from the first 16 MiB of the first file with rows, values parsed by Arrow.

Inferred are int64, uint64, float64, bool, date32 and timestamp[us] (ISO 8601, also followed by " UTC"), else string.
Numbers are inferred where no two texts become one (`written_numbers`), and later values are held to that.
Where the beginnings of 16 other files show more of a column (any value at all, fractions), it takes a type that holds
both, string where none has a value; `source.schema` replaces what is inferred.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from tasks.core.dtypes import dtype_name, is_list, kind_of, parse_dtype, schema_advice
from tasks.core.plan import ADVICE, File, Limits, Piece, ReadOptions
from tasks.core.schema import names_in_file, own_names
from tasks.engines.algorithms.text_casts import times_of
from tasks.engines.algorithms.written_numbers import (
    Written,
    describe_notation,
    find_padded_row,
    is_large,
    long_row,
    may_be_padded,
    number_signs,
    same_number_advice,
    whole_numbers,
)
from tasks.errors import DataError
from tasks.sources.formats import text_ranges
from tasks.sources.formats.bounds import check_columns, record_limit, record_too_long
from tasks.sources.formats.conform import STRINGS, NoListError, conform, lists_in, to_carried_type
from tasks.sources.formats.readable_lines import (
    DelimitedSieve,
    complete,
    encoding_of,
    find_refused_items,
    has_initial_spaces,
    line_ends,
    no_letters,
    settings_that_read,
    with_one_null,
    with_one_sign,
)
from tasks.sources.formats.record_ends import Dialect
from tasks.sources.formats.survey import TYPES, Apart, Inspected, line_types, make_repeated_name_errors

WHOLE = "^(0|[1-9][0-9]{0,17})$"
PLAIN = {pa.int64(): WHOLE, pa.uint64(): WHOLE, pa.float64(): "^[0-9]{1,15}([.][0-9]+)?$"}  # texts that surely fit

TO_UTF8 = "write the file as UTF-8, or name its encoding: source.encoding: latin-1"
FIX_LINE = "fix the line: it needs one value per column, and quotes around values with line ends"

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
        self, files: Sequence[File], options: ReadOptions, limits: Limits, parallel_map: Callable[..., Any]
    ) -> list[Inspected]:
        """Names, types and record ranges of all files."""
        return self.of(options)._survey(files, options, limits, parallel_map)

    def of(self, options: ReadOptions) -> Delimited:
        """The same with the signs that a source names."""
        quote = options.get("quote", self.quote)
        return Delimited(
            options.get("delimiter") or self.delimiter,
            quote,
            options.get("escape"),
            options.get("comment"),
            bool(options.get("skip_initial_space")),
        )

    def of_columns(self, columns: int) -> Delimited:
        """The same for so many columns: an empty line is a null of the only one, else it is not a row."""
        return replace(self, blank=columns == 1)

    def recognise_settings(self, file: File, options: ReadOptions) -> dict[str, Any]:
        """What the beginning of a file says of settings that its source leaves out: `delimiter`, by the line `sep=;`
        that Excel writes, and `skip_initial_space`, where each delimiter has a space behind it."""
        data, whole = text_ranges.beginning(file, RECOGNISED, options)
        named = text_ranges.parse_sep_line(data)
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

    def _sieve(self, names: Sequence[str], options: ReadOptions) -> DelimitedSieve:
        """The sieve by which text with these columns is counted and read; if nothing is left out, it finds the lines
        that a parser would read as other rows."""
        misfits = partial(self._misfits, names, options) if options.get("bad_lines") and options.get(TYPES) else None
        columns = len(names) if options.get("bad_lines") else None
        return DelimitedSieve(self.dialect, columns, encoding_of(options), misfits, tuple(names_in_file(names)))

    def bad_lines(self, file: File, options: ReadOptions) -> Iterator[tuple[int, str, bytes]]:
        """(line, why, bytes) of the records of a file that cannot be read, in their order."""
        parser = self.of(options)
        head = parser._head(options, file)
        parser = parser.of_columns(len(names := parser._read_column_names(head, options)))
        head = parser._with_blank_rows(head, options)
        sieve = parser._sieve(names, options)
        return text_ranges.bad_lines(head, options, parser.dialect, sieve)

    def _survey(
        self, files: Sequence[File], options: ReadOptions, limits: Limits, parallel_map: Callable[..., Any]
    ) -> list[Inspected]:
        heads = list(parallel_map(partial(self._head, options), files))
        names = [self._read_column_names(h, options) for h in heads]
        heads = [self.of_columns(len(n))._with_blank_rows(h, options) for h, n in zip(heads, names, strict=True)]

        def infer_types(full: list[bool]) -> text_ranges.ColumnTypes:
            others: dict[tuple[str, ...], text_ranges.Head] = {}  # the first file with each row of names
            for h, n, is_full in zip(heads, names, full, strict=True):
                if is_full:
                    others.setdefault(tuple(n), h)
            also = list(others.values())[1:]
            chosen = [h for h, is_full in zip(heads, full, strict=True) if is_full]
            return text_ranges.types_of(chosen, partial(self._infer, options), parallel_map, also)

        seen = None
        if options.get("bad_lines"):  # values that do not fit make lines bad, so that types come before the counts
            seen = infer_types(list(parallel_map(partial(text_ranges.has_rows, options), heads)))
            options = {**options, TYPES: line_types(seen.types, options["schema"])}
        counted = self._count_lines(heads, names, options, limits, parallel_map)
        types, grown, number_texts = seen or infer_types([bool(c.units) for c in counted])
        return [
            Inspected(
                h.file,
                pa.schema([(n, types.get(n, pa.null())) for n in names[i]]),
                counted[i].units,
                grown=grown,
                bad=counted[i].bad,
                number_texts=number_texts,
                repeated={} if options["columns"] else _find_repeated_names(names[i], h),
            )
            for i, h in enumerate(heads)
        ]

    def _count_lines(
        self,
        heads: Sequence[text_ranges.Head],
        names: Sequence[list[str]],
        options: ReadOptions,
        limits: Limits,
        parallel_map: Callable[..., Any],
    ) -> list[text_ranges.CountedLines]:
        """Count the lines of each file; files with as many columns are counted together, by the parser for them."""
        counted = [text_ranges.CountedLines(())] * len(heads)
        for parser in dict.fromkeys(self.of_columns(len(n)) for n in names):
            its = [i for i, n in enumerate(names) if self.of_columns(len(n)) == parser]
            sieves = [parser._sieve(names[i], options) for i in its]
            some = text_ranges.count([heads[i] for i in its], options, parser.dialect, limits, parallel_map, sieves)
            for i, count in zip(its, some, strict=True):
                counted[i] = count
        return counted

    def _head(self, options: ReadOptions, file: File) -> text_ranges.Head:
        return text_ranges.head(options, replace(self.dialect, blank=False), options["header"], file)

    def _with_blank_rows(self, head: text_ranges.Head, options: ReadOptions) -> text_ranges.Head:
        """The head with rows from the first one on: of one column, empty lines are rows."""
        return head.with_blanks() if self.blank else head

    def _read_column_names(self, head: text_ranges.Head, options: ReadOptions) -> list[str]:
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
        return own_names(line) if options["header"] else [f"f{i}" for i in range(len(line))]

    def _reader(self, text: str, delimiter: str) -> Iterator[list[str]]:
        return csv.reader(
            io.StringIO(text, newline=""),
            delimiter=delimiter,
            quotechar=self.quote or None,
            escapechar=self.escape,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
        )

    def _infer(self, options: ReadOptions, sampled: tuple[text_ranges.Head, int]) -> dict[str, pa.DataType | Written]:
        names = self._read_column_names(sampled[0], options)
        return self.of_columns(len(names))._types(options, names, *sampled)

    def _types(
        self, options: ReadOptions, names: Sequence[str], head: text_ranges.Head, length: int
    ) -> dict[str, pa.DataType | Written]:
        data = text_ranges.sample(head.file, head.start, length, self.dialect, options)
        piece = Piece(0, head.start, head.start + len(data))
        if text_ranges.leaves_out(options):
            data = self._sieve(names, options).sift(data).data
        wanted = [name for name in names if name not in options["schema"]]
        if not wanted or (not data.strip(b"\r\n") and not self.blank):  # none of its lines can be read
            return {}
        table = self._parse(data, names, dict.fromkeys(wanted), options, head.file, piece)
        types: dict[str, pa.DataType | Written] = {name: _refine_type(table[name]) for name in table.column_names}
        numbers = [n for n, t in types.items() if t in (pa.int64(), pa.float64())]
        if numbers:
            texts = self._parse(data, names, dict.fromkeys(numbers, pa.string()), options, head.file, piece)
            point = options.get("decimal") or "."
            types |= {n: describe_notation(texts[n], table[n], head.file.path, point) for n in numbers}
        return types

    def read(self, files: Sequence[File], pieces: Sequence[Piece], schema: pa.Schema, options: ReadOptions) -> pa.Table:
        """The rows of the pieces, in their order, as `schema` says."""
        tables = []
        parser = self.of(options)
        for piece in text_ranges.merge_pieces(pieces):
            file = files[piece.file]
            names = options["other_names"].get(str(piece.file), options["names"])
            types = {f.name: STRINGS if is_list(f.type) else to_carried_type(f.type) for f in schema}
            types = types or {names[0]: pa.string()}
            parser = parser.of_columns(len(names))
            data = text_ranges.piece_bytes(file, piece, options)
            if text_ranges.is_sifted(file, options):
                data = parser._sieve(names, options).sift(data).data
            table = parser._parse(data, names, types, options, file, piece)
            for field in (f for f in schema if is_list(f.type) and kind_of(f.type.value_type) == "number"):
                try:
                    lists_in(table[field.name].cast(pa.string()), field.type)
                except NoListError as error:
                    misfit = _Misfit(field.name, error.row, error.text, str(error))
                    before = parser._before(file, piece, options)
                    raise _no_value(misfit, field.type, file, before, options) from None
            tables.append(table)
        return conform(pa.concat_tables(tables), schema).combine_chunks()  # once, instead of at each use of a column

    def _parse(
        self,
        data: bytes,
        names: Sequence[str],
        types: Mapping[str, pa.DataType | None],
        options: ReadOptions,
        file: File,
        piece: Piece,
    ) -> pa.Table:
        """The columns of `types`, which the text has among `names`; a type of None is inferred."""
        try:
            return self._parse_table(data, names, _set(types), [*types], options)
        except _Straddling:
            raise record_too_long(file.path, record_limit(options)) from None
        except pa.ArrowException as error:
            raise self._misfit(error, data, names, types, options, file, piece) from None
        except _Misfit as misfit:
            before = self._before(file, piece, options)
            raise _no_value(misfit, types[misfit.name], file, before, options) from None

    def _parse_table(
        self,
        data: bytes,
        names: Sequence[str],
        types: dict[str, pa.DataType],
        wanted: list[str],
        options: ReadOptions,
    ) -> pa.Table:
        """The table; pa.ArrowException or `_Misfit` for a value that does not fit."""
        try:
            return self._convert_columns(data, names, types, wanted, options)
        except pa.ArrowException:
            times = [n for n in wanted if n in types and pa.types.is_timestamp(types[n])]
            signed = [n for n in wanted if n in types and pa.types.is_integer(types[n])]
            with suppress(*([pa.ArrowException] if times else [])):
                if times or signed:
                    return self._convert_columns(data, names, types, wanted, options, [*times, *signed])
            raise

    def _convert_columns(
        self,
        data: bytes,
        names: Sequence[str],
        types: dict[str, pa.DataType],
        wanted: list[str],
        options: ReadOptions,
        by_texts: Sequence[str] = (),
    ) -> pa.Table:
        """The table. Numbers of columns whose types are inferred are checked: none may have become another one's.

        The columns `by_texts` are read as texts first: of times where texts say an offset and the type has no zone, or
        the other way round, and of whole numbers as +5 or 7.0.
        """
        checked = {n for n in wanted if n in types and n not in options.get("schema", ())}
        whole = [n for n in wanted if n in checked and pa.types.is_integer(types[n])]
        signs = "".join(filter(None, (self.delimiter, self.quote, self.escape)))
        texts = {*by_texts, *(whole if whole and may_be_padded(data, signs, signed=False) else ())}
        table = parse(data, self.dialect, names, types | dict.fromkeys(texts, pa.string()), wanted, options)
        columns = {n: table.column(n) for n in wanted}
        negative = [n for n in whole if n not in texts and (pc.min(columns[n]).as_py() or 0) < 0]
        if negative and may_be_padded(data, signs, signed=True):
            columns |= self._texts(data, names, negative, options)
            texts |= {*negative}
        for name in texts:
            row = find_padded_row(columns[name]) if name in whole else None
            if row is not None:
                raise _Misfit(
                    name,
                    row,
                    columns[name][row].as_py(),
                    "as a number it would be the same as another text",
                    same_number_advice(name, types[name]),
                )
            columns[name] = _of_texts(columns[name], types[name], name, options.get("decimal") or ".")
        for name in types:
            if pa.types.is_floating(types[name]) and name in columns and is_large(columns[name]):
                self._check_large(name, columns[name], name in checked, data, names, options)
        return pa.table(columns)

    def _texts(
        self, data: bytes, names: Sequence[str], wanted: list[str], options: ReadOptions
    ) -> dict[str, pa.ChunkedArray]:
        table = parse(data, self.dialect, names, dict.fromkeys(wanted, pa.string()), wanted, options)
        return dict(zip(wanted, table.columns, strict=True))

    def _check_large(
        self,
        name: str,
        values: pa.ChunkedArray,
        exact: bool,
        data: bytes,
        names: Sequence[str],
        options: ReadOptions,
    ) -> None:
        """Refuse numbers that floats do not hold: those beyond their range, and whole numbers where all must be
        `exact`."""
        texts = self._texts(data, names, [name], options)[name].combine_chunks()
        named = pc.match_substring_regex(texts, r"^[ \t]*[+-]?inf(inity)?[ \t]*$", ignore_case=True)
        row = pc.index(pc.and_not(pc.is_inf(values), named), pa.scalar(True)).as_py()
        if row >= 0:
            raise _Misfit(name, row, texts[row].as_py(), "it is beyond the range of the type")
        if exact and (place := long_row(texts, values)) is not None:
            raise _Misfit(
                name,
                place,
                texts[place].as_py(),
                "floating-point numbers are exact up to 2^53 only",
                same_number_advice(name, values.type),
            )

    def _misfits(self, names: Sequence[str], options: ReadOptions, data: bytes) -> dict[int, str]:
        """The rows of a text of whole records with a value that does not fit the type of its column, and why."""
        types = {n: parse_dtype(t) for n, t in options[TYPES].items() if n in names}
        types = {n: t for n, t in types.items() if kind_of(t) in ("number", "bool", "time")}
        if not types or self._takes(data, names, types, options):
            return {}
        unfit: dict[int, str] = {}
        for name, texts in self._texts(data, names, [*types], options).items():
            distinct = texts.unique().drop_null()
            if plain := PLAIN.get(types[name], "").replace(".", options.get("decimal") or "."):
                distinct = distinct.filter(pc.invert(pc.match_substring_regex(distinct, plain)))
            bad = find_refused_items(distinct, partial(_takes_values, name, types, options))
            for row in pc.indices_nonzero(pc.is_in(texts, value_set=pa.array(bad, pa.string()))).to_pylist():
                text = f"{texts[row].as_py()[:200]!r} does not fit column {name!r}, which is {dtype_name(types[name])}"
                unfit.setdefault(row, text)
        return unfit

    def _takes(self, data: bytes, names: Sequence[str], types: dict[str, pa.DataType], options: ReadOptions) -> bool:
        """Whether all values of a text of whole records fit these types."""
        try:
            self._parse_table(data, names, types, [*types], options)
        except (_Misfit, _Straddling, pa.ArrowException):
            return False
        return True

    def _before(self, file: File, piece: Piece, options: ReadOptions) -> int:
        """The records of the file before a piece."""
        head = self._with_blank_rows(self._head(options, file), options)
        is_sifted = self.dialect.in_order or text_ranges.leaves_out(options)
        sieve = self._sieve(self._read_column_names(head, options), options) if is_sifted else None
        return text_ranges.records_before(file, head.start, piece.start, self.dialect, options, sieve)

    def _bad_line(
        self, file: File, piece: Piece, names: Sequence[str], options: ReadOptions, of_text: bool
    ) -> tuple[int, str] | None:
        """(number; what to do) of the first line of a piece that is not text, or that has other values than columns."""
        data = text_ranges.piece_bytes(file, piece, options)
        bad_lines = DelimitedSieve(self.dialect, len(names), encoding_of(options)).sift(data).bad
        first = next((bad for bad in bad_lines if bad.why.startswith("byte") == of_text), None)
        if first is None:
            return None
        before = text_ranges.beginning(file, piece.start, options)[0][: piece.start] if piece.start else b""
        line = line_ends(before) + line_ends(data[: first.start]) + 1
        if of_text:
            return line, TO_UTF8
        if advice := self._name_too_few(file, names, options):
            return line, advice
        advice = text_ranges.advice_of(settings_that_read(data, first.start, self.dialect, len(names)))
        return line, f"{advice or FIX_LINE}; or {text_ranges.LEAVE_OUT}"

    def _name_too_few(self, file: File, names: Sequence[str], options: ReadOptions) -> str:
        """How a file is read whose header has a name less than each of its first rows has values; "" for others."""
        if not options["header"]:
            return ""
        head = self._head(options, file)
        data, whole = text_ranges.beginning(file, head.start + RECOGNISED, options)
        rows = data[head.start :]
        rows = rows if whole else rows[: complete(rows, self.dialect)]
        bad = DelimitedSieve(self.dialect, len(names) + 1).sift(rows).bad
        if bad or settings_that_read(rows, 0, self.dialect, len(names)):
            return ""
        first, _, _ = rows.partition(b"\n")
        if first.rstrip(b"\r").endswith(self.delimiter.encode()):
            what = "a delimiter is at the end of each row"
            own = [*names, "_end"]
        else:
            what = "the header has no name for the first column, as R writes names of rows"
            own = ["row", *names]
        return f"{what}: {_settings_that_name(own, head.lines)}"

    def _misfit(
        self,
        error: Exception,
        data: bytes,
        names: Sequence[str],
        types: Mapping[str, pa.DataType | None],
        options: ReadOptions,
        file: File,
        piece: Piece,
    ) -> DataError:
        """The error with column, value and row in the file, found by parsing column by column."""
        message = str(error).split("\n")[0]
        try:
            before = self._before(file, piece, options)
            strings = parse(data, self.dialect, names, {n: pa.string() for n in names}, [*types], options)
        except pa.ArrowException:
            row = re.search(r"Row #(\d+)", message)
            where = f"{file.path}, row {before + int(row[1])}" if row else file.path
            no_text = "UTF8" in message or "is not a letter of" in message
            do = TO_UTF8 if no_text else f"{FIX_LINE}; or {text_ranges.LEAVE_OUT}"
            if bad_line := self._bad_line(file, piece, names, options, of_text=no_text):
                line, do = bad_line
                where += f" (line {line:,} of the file)" if row else f", line {line:,}"
            return DataError("a text file cannot be parsed", where=where, why=message, do=do)
        for name, dtype in types.items():
            try:
                self._parse_table(data, names, _set({name: dtype}), [name], options)
            except _Misfit as unfit:
                return _no_value(unfit, dtype or pa.string(), file, before, options)
            except pa.ArrowException as failed:
                match = re.search(r"(?:invalid value|string:|has|converting) '(.*)'", str(failed), re.DOTALL)
                row = re.search(r"Row #(\d+)", str(failed))
                texts = strings.column(name)
                value = match[1] if match else None
                index = pc.index(texts, pa.scalar(value, pa.string())).as_py() if match else -1
                if row and not match:  # of some casts Arrow says the row alone
                    index = int(row[1]) - 1
                    value = texts[index].as_py()
                why = re.sub(r"^Column.* has '.*', which is (.*), in row .*$", r"it is \1", str(failed).split("\n")[0])
                misfit = _Misfit(name, index if index >= 0 else None, value, why)
                return _no_value(misfit, dtype or pa.string(), file, before, options)
        return DataError("a text file cannot be parsed", where=file.path, why=message, do="fix the file")


def _set(types: Mapping[str, pa.DataType | None]) -> dict[str, pa.DataType]:
    return {name: dtype for name, dtype in types.items() if dtype is not None}


def _find_repeated_names(own: Sequence[str], head: text_ranges.Head) -> dict[str, Apart]:
    """The errors for columns whose name is in the header twice."""
    names = names_in_file(own)
    if len({*names}) == len(names):
        return {}
    settings = _settings_that_name(_number_repeated_names(names), head.lines)
    return make_repeated_name_errors(names, head.file.path, f"name the columns and skip the header: {settings}")


def _number_repeated_names(names: Sequence[str]) -> list[str]:
    """Names in which each further column of one name has a number behind it."""
    seen = {*names}
    taken = set[str]()
    own = list[str]()
    counts = Counter[str]()  # so that a name which is there a thousand times is not tried a million times
    for name in names:
        chosen = name
        while chosen in taken or (chosen != name and chosen in seen):
            counts[name] += 1
            chosen = f"{name}_{counts[name] + 1}"
        taken.add(chosen)
        own.append(chosen)
    return own


def _settings_that_name(names: Sequence[str], lines: int) -> str:
    """The settings that name the columns and skip the header, in so many lines with those before it."""
    listed = json.dumps(names, ensure_ascii=False) if len(names) <= 100 else "[.., a name for each]"
    return f"source.columns: {listed} and source.skip_rows: {lines}"


def _no_value(misfit: _Misfit, dtype: pa.DataType, file: File, before: int, options: ReadOptions) -> DataError:
    """A DataError for a value of a text, in a block behind `before` rows of the file."""
    name = misfit.name
    value = misfit.value
    row = misfit.row
    dtype = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    value = value if value is None or len(value) <= 200 else value[:200] + ".."
    row_text = "" if row is None else f", row {before + row + 1} (the header not counted)"
    other = (
        "correct the value, add it to source.null_values if it means null, or give the column another type, "
        f"{schema_advice(name, pa.string())}"
    )
    return DataError(
        f"column {name!r} has a value that is not of type {dtype_name(dtype)}: {value!r}",
        where=f"{file.path}, column {name}{row_text}",
        why=misfit.why,
        do=misfit.do or _as_number(name, value, dtype, options) or options.get(ADVICE, {}).get(name) or other,
    )


def _as_number(name: str, value: str | None, dtype: pa.DataType, options: ReadOptions) -> str | None:
    """How a column of numbers is read where a value has other signs than the settings say; None for other values."""
    signs = number_signs(value, options.get("decimal", ".")) if value and kind_of(dtype) == "number" else None
    if signs is None or signs[1] is None:
        return None
    advice = schema_advice(name, f"parse_number(_, {', '.join(map(repr, signs))})")
    return f"read its digits in groups: {advice}, or correct the value"


def _takes_values(name: str, types: dict[str, pa.DataType], options: ReadOptions, values: pa.Array) -> bool:
    target = pa.BufferOutputStream()
    writing = pacsv.WriteOptions(include_header=False, quoting_style="all_valid")
    pacsv.write_csv(pa.table({name: values}), target, writing)
    escape = options.get("escape")  # of a text that is not null, the escape was taken away
    nulls = [text for text in options["null_values"] if not escape or escape not in text]
    options = {**options, "encoding": "utf-8", "null_values": nulls}
    return CSV._takes(target.getvalue().to_pybytes(), [name], {name: types[name]}, options)


def as_utf8(data: bytes, options: ReadOptions) -> bytes:
    """The text as UTF-8; pa.ArrowInvalid for bytes that are not letters. Quotes, delimiters and line ends are the same
    bytes in each of these encodings; of others `text_ranges` has made UTF-8 already."""
    encoding = encoding_of(options)
    if encoding == "utf-8" or data.isascii():
        return data
    try:
        return data.decode(encoding).encode()
    except UnicodeDecodeError:
        raise pa.ArrowInvalid(no_letters(data, encoding)) from None


def _encoding_of(first: bytes) -> str:
    """The encoding that a text which is not UTF-8 may have."""
    return "utf-16" if first.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in first else "latin-1"


class _Straddling(Exception):
    """A record is longer than any may be."""


@dataclass(eq=False)
class _Misfit(Exception):
    """A value does not fit the type of its column; `row` counts from 0 in its block, None if unknown."""

    name: str
    row: int | None
    value: str | None
    why: str
    do: str = ""


def _of_texts(texts: pa.ChunkedArray, dtype: pa.DataType, name: str, point: str) -> pa.ChunkedArray:
    if pa.types.is_timestamp(dtype):
        return pa.chunked_array([times_of(texts.combine_chunks(), dtype)], dtype)
    return whole_numbers(texts, dtype, name, point)


def parse(
    data: bytes,
    dialect: Dialect,
    names: Sequence[str],
    types: dict[str, pa.DataType],
    wanted: list[str],
    options: ReadOptions,
) -> pa.Table:
    """Text without a header as a table with the wanted columns; types that are not given are inferred."""
    data, delimiter = with_one_sign(as_utf8(data, options), dialect)
    signs = replace(dialect, delimiter=delimiter, skip_space=False)
    data, nulls = with_one_null(data, signs, options["null_values"])
    convert = pacsv.ConvertOptions(
        decimal_point=options.get("decimal") or ".",
        column_types=types,
        include_columns=wanted,
        null_values=nulls,
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


def _refine_type(column: pa.ChunkedArray) -> pa.DataType:
    """The type of a column from the type that Arrow infers: times in microseconds, unless they have nanoseconds."""
    dtype = column.type
    if pa.types.is_timestamp(dtype):
        finer = dtype.unit == "ns" and any(
            (chunk.view(pa.int64()).drop_null().to_numpy() % 1000).any() for chunk in column.chunks
        )
        return dtype if finer else pa.timestamp("us", dtype.tz)
    as_they_are = (pa.null(), pa.int64(), pa.float64(), pa.bool_(), pa.date32())
    return dtype if dtype in as_they_are else pa.string()


CSV = Delimited(",")
TSV = Delimited("\t")
