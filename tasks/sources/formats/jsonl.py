"""JSON lines: one object a line; a missing key is null, a key that is not in the schema an error.

Of a struct whose type `source.schema` or a fit says, fields that the type lacks are left out, as in all formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from tasks.core.dtypes import is_list, kind_of, leaf_type, parse_dtype, schema_advice
from tasks.core.plan import ADVICE, AS_IN_FIT, File, Limits, Piece, ReadOptions
from tasks.core.schema import Column, Schema
from tasks.engines.algorithms.written_numbers import Written, is_large, of_tokens, whole_numbers
from tasks.errors import DataError
from tasks.sources.formats import record_ends, text_ranges
from tasks.sources.formats.bounds import MOST_DEPTH, check_lines, make_depth_error
from tasks.sources.formats.conform import NoListError, conform, infinite_columns, lists_in
from tasks.sources.formats.readable_lines import JsonSieve, any_number, depth
from tasks.sources.formats.record_ends import Dialect
from tasks.sources.formats.survey import NUMBER_TEXTS, TYPES, Inspected, line_types

LINES = Dialect(None)
NOTHING = [("", pa.bool_())]  # a schema for which Arrow reads lines and takes nothing of them
KEYS_BYTES = 2**20  # of a file that are read at once to see which keys it has
# Blank lines and nulls at the beginning: of a null there Arrow's reader ends the process.
LEADING = re.compile(rb"(?:\xef\xbb\xbf)?" + any_number(rb"[ \t\r]*+(?:null[ \t\r]*+)?(?:\n|\Z)"))
NO_TEXT = "a line is not UTF-8"
PLACE = re.compile(r"Column\(/(.*?)\)(?: (?:changed|has|was) |:)")  # in a message of Arrow; keys may have brackets
TWICE = "was specified twice"  # in a message of Arrow
UNEXPECTED = "unexpected field"  # in a message of Arrow, which names neither the field nor the row
# Whole numbers that floats may not hold, and exponents, which may be another way to write a whole number.
INEXACT = re.compile(rb"(?:^|[:\[,\s])-?(?:[0-9]{16,}|[0-9]+[eE]\+?[0-9]+)(?=[\s,\]}]|$)")


def survey(
    files: Sequence[File], options: ReadOptions, limits: Limits, parallel_map: Callable[..., Any]
) -> list[Inspected]:
    """Line ranges of all files; columns and types of the first 16 MiB of the first file with rows, wider where 16
    others show more of a column. `source.schema` may add columns, but for those that are `optional`.
    """
    heads = list(parallel_map(partial(text_ranges.head, options, LINES, False), files))
    seen = None
    if options.get("bad_lines"):  # values that do not fit make lines bad, so that types come before the counts
        there = [h for h in heads if text_ranges.has_rows(options, h)]
        seen = text_ranges.types_of(there, partial(_infer, options), parallel_map)
        options = {**options, TYPES: line_types(seen.types, options["schema"]), NUMBER_TEXTS: seen.number_texts}
    sieves = [_sieve(options)] * len(heads)
    counted = text_ranges.count(heads, options, LINES, limits, parallel_map, sieves)
    full = [h for h, c in zip(heads, counted, strict=True) if c.units]
    if not options.get("bad_lines"):
        for head in full:
            _check_lines(head)
    types, grown, number_texts = seen or text_ranges.types_of(full, partial(_infer, options), parallel_map)
    types.update(_parse_declared_types(types, options))
    keys = [name for name in types if name not in options["schema"]] if len(full) > 1 else []
    lacking = dict(zip(full, parallel_map(partial(_lacking, options, keys), full), strict=True)) if keys else {}
    return [
        Inspected(
            h.file,
            pa.schema([(n, t) for n, t in types.items() if n not in lacking.get(h, ())]),
            c.units,
            grown=grown,
            bad=c.bad,
            number_texts=number_texts,
        )
        for h, c in zip(heads, counted, strict=True)
    ]


def _parse_declared_types(types: Mapping[str, pa.DataType], options: ReadOptions) -> dict[str, pa.DataType]:
    """The types of `source.schema`, but for those of fields of structs, and of optional columns that no file has."""
    left_out = {*options.get("optional", ())} - {*types}
    inferred = Schema(Column(name, dtype) for name, dtype in types.items())
    left_out |= {name for name in options["schema"] if name not in types and inferred.root(name)}
    return {name: parse_dtype(t) for name, t in options["schema"].items() if name not in left_out}


def _sieve(options: ReadOptions) -> JsonSieve | None:
    if not options.get("bad_lines"):
        return None
    types = options.get(TYPES, {})
    return JsonSieve(partial(_takes, pa.schema([(n, parse_dtype(t)) for n, t in types.items()] or NOTHING), options))


def _takes(schema: pa.Schema, options: ReadOptions, data: bytes) -> bool:
    """Whether the reader takes all of some lines."""
    try:
        _fitting(data, schema, options, "ignore")
    except (pa.ArrowException, ValueError, RecursionError):
        return False
    return True


def bad_lines(file: File, options: ReadOptions) -> Iterator[tuple[int, str, bytes]]:
    """(line, why, bytes) of the lines of a file that cannot be read, in their order."""
    sieve = _sieve(options)
    assert sieve is not None
    return text_ranges.bad_lines(text_ranges.head(options, LINES, False, file), options, LINES, sieve)


def _lacking(options: ReadOptions, keys: Sequence[str], head: text_ranges.Head) -> frozenset[str]:
    """The keys that no row of a file has: it is read until each was seen.

    A key counts as seen where its text stands between quotes, also as a value or deeper inside, and all do where a
    letter is written by its number, as a key may be.
    """
    left = {name: json.dumps(name, ensure_ascii=False).encode() for name in keys}
    left = {name: text for name, text in left.items() if text not in head.first}
    if left:
        for _, data in text_ranges.records_in_order(head, options, LINES, KEYS_BYTES):
            left = {name: text for name, text in left.items() if text not in data and b"\\u" not in data}
            if not left:
                break
    return frozenset(left)


def _infer(options: ReadOptions, sampled: tuple[text_ranges.Head, int]) -> dict[str, pa.DataType | Written]:
    head, length = sampled
    data = text_ranges.sample(head.file, head.start, length, LINES, options)
    if sieve := _sieve(options):
        data = sieve.sift(data).data
    check_lines(data, head.file.path, options)
    _check_depth(data, head.file.path)
    table = _parse(data, None, head.file, Piece(0, head.start, head.start), options)
    path = head.file.path
    types: dict[str, pa.DataType | Written] = {f.name: _refine_type(f.type) for f in table.schema}
    rows = _parse_rows(data) if INEXACT.search(data) else []  # else no number becomes another one
    for field in table.schema:
        if rows and _has_floats(field.type):
            how = _infer_number_form(field.type, [row.get(field.name) for row in rows], path)
            if isinstance(how, Written) or how != types[field.name]:
                types[field.name] = how if isinstance(how, Written) else Written(path, nested=how)
        elif field.type == pa.float64():
            types[field.name] = Written(path, point=True)
        elif field.type == pa.int64():
            bounds = pc.min_max(table[field.name]).as_py()
            types[field.name] = Written(path, bounds["min"] or 0, bounds["max"] or 0)
    return types


def _has_floats(dtype: pa.DataType) -> bool:
    if pa.types.is_struct(dtype):
        return any(_has_floats(field.type) for field in dtype)
    return leaf_type(dtype) == pa.float64() or (is_list(dtype) and _has_floats(dtype.value_type))


def _parse_rows(data: bytes) -> list[dict[str, Any]]:
    """The objects of lines, their numbers as texts."""
    lines = data.removeprefix(text_ranges.BOM).split(b"\n")
    rows = (json.loads(line, parse_int=_Number, parse_float=_Number) for line in lines if line.strip())
    return [row if isinstance(row, dict) else {} for row in rows]


def _infer_number_form(dtype: pa.DataType, values: Sequence[Any], path: str) -> Written | pa.DataType:
    """How the numbers of a column are written; of lists and structs the type in which none becomes another one."""
    there = [value for value in values if value is not None]
    if is_list(dtype):
        leaf = _infer_number_form(dtype.value_type, [value for row in there for value in row], path)
        return pa.list_(leaf.dtype if isinstance(leaf, Written) else leaf)
    if pa.types.is_struct(dtype):
        leaves = {f.name: _infer_number_form(f.type, [row.get(f.name) for row in there], path) for f in dtype}
        return pa.struct([(name, t.dtype if isinstance(t, Written) else t) for name, t in leaves.items()])
    return of_tokens(there, path) if dtype == pa.float64() else _refine_type(dtype)


def _check_exact(table: pa.Table, data: bytes, declared: Collection[str]) -> None:
    """pa.ArrowInvalid for a whole number that a column of floats would change, unless its type is declared."""
    types = {f.name: f.type for f in table.schema if f.name not in declared and _has_floats(f.type)}
    types = {n: t for n, t in types.items() if leaf_type(t) != pa.float64() or is_large(_leaves(table[n]))}
    if types and INEXACT.search(data):
        for number, row in enumerate(_parse_rows(data)):
            for name, dtype in types.items():
                if token := _inexact(row.get(name), dtype):
                    raise pa.ArrowInvalid(
                        f"Column(/{name}) has {token}, and floating-point numbers are exact up to "
                        f"2^53 only, in row {number}"
                    )


def _inexact(value: object, dtype: pa.DataType) -> str:
    """The first whole number in a value that a float does not hold; "" for none."""
    if isinstance(value, list):
        return next((token for one in value if (token := _inexact(one, dtype.value_type))), "")
    if isinstance(value, dict):
        fields = [(value.get(field.name), field.type) for field in dtype]
        return next((token for one, inner in fields if (token := _inexact(one, inner))), "")
    number = isinstance(value, _Number) and pa.types.is_floating(dtype) and not of_tokens([value], "").is_exact
    return str(value) if number else ""


def _leaves(column: pa.ChunkedArray) -> pa.ChunkedArray:
    while is_list(column.type):
        column = pc.list_flatten(column)
    return column


def _check_depth(data: bytes, path: str) -> None:
    """A DataError for a line with so many brackets that values may lie deeper in each other than `MOST_DEPTH`, if they
    do: Arrow makes types of them by a recursion that has no end but that of the process."""
    array = np.frombuffer(data, np.uint8)
    opened = np.flatnonzero((array == ord("[")) | (array == ord("{")))
    if len(opened) <= MOST_DEPTH:
        return
    lines = np.searchsorted(np.flatnonzero(array == ord("\n")), opened)
    for number in np.flatnonzero(np.bincount(lines) > MOST_DEPTH):
        first = int(opened[np.searchsorted(lines, number)])
        begin = data.rfind(b"\n", 0, first) + 1
        end = data.find(b"\n", first)
        if depth(data[begin : end if end >= 0 else len(data)]) > MOST_DEPTH:
            raise make_depth_error(path, "a line of JSON")


def _with_leaf(dtype: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    return pa.list_(_with_leaf(dtype.value_type, leaf)) if is_list(dtype) else leaf


def _check_lines(head: text_ranges.Head) -> None:
    """A DataError where the first line begins an array, or an object that goes on in the next line, or holds two."""
    line = head.first.strip()
    what = ""
    if line.startswith(b"["):
        what = "an array"
    elif line.startswith(b"{") and not line.endswith(b"}"):
        what = "an object over several lines"
    elif line.startswith(b"{") and _holds_two(line):
        what = "two objects on one line"
    if what:
        raise DataError(
            "a JSON file has no object on each line",
            where=f"{head.file.path}, row 1",
            why=f"it begins with {what}: {line[:40].decode(errors='replace')}",
            do="write every object on a line of its own, without brackets and commas around them",
        )


def _holds_two(line: bytes) -> bool:
    try:
        return json.JSONDecoder().raw_decode(line.decode())[1] < len(line.decode())
    except (ValueError, RecursionError):
        return False  # Arrow's reader says what is wrong


def _refine_type(dtype: pa.DataType) -> pa.DataType:
    if is_list(dtype):
        return pa.list_(_refine_type(dtype.value_type))
    return pa.timestamp("us", dtype.tz) if pa.types.is_timestamp(dtype) else dtype


def read(files: Sequence[File], pieces: Sequence[Piece], schema: pa.Schema, options: ReadOptions) -> pa.Table:
    """The rows of the pieces, in their order, as `schema` says."""
    tables = []
    sieve = _sieve(options)
    for piece in text_ranges.merge_pieces(pieces):
        names = options["other_names"].get(str(piece.file), options["names"])
        everything = set(schema.names) == set(names)
        data = text_ranges.piece_bytes(files[piece.file], piece, options)
        if not schema.names:
            if sieve:  # which counts no line of blanks
                rows = sieve.sift(data).rows
            else:
                rows = sum(cut.records for cut in record_ends.cut_text(data, 0, LINES, 2**26))
            tables.append(pa.table({"rows": pa.nulls(rows)}).select([]))
            continue
        if sieve and text_ranges.is_sifted(files[piece.file], options):
            data = sieve.sift(data).data
        table = _parse(data, pa.schema(schema, None), files[piece.file], piece, options, strict=everything)
        tables.append(conform(table, schema))
    return tables[0] if len(tables) == 1 else conform(pa.concat_tables(tables), schema)


def _parse(
    data: bytes, schema: pa.Schema | None, file: File, piece: Piece, options: ReadOptions, strict: bool = False
) -> pa.Table:
    unexpected = "infer" if schema is None else "error" if strict else "ignore"
    try:
        return _fitting(data, schema, options, unexpected)
    except pa.ArrowException as error:
        raise _misfit(str(error).split("\n")[0], data, file, piece, options) from None


def _fitting(data: bytes, schema: pa.Schema | None, options: ReadOptions, unexpected: str) -> pa.Table:
    """The lines as a table; pa.ArrowException where one does not fit."""
    declared = {name: parse_dtype(dtype) for name, dtype in options["schema"].items()}
    partial_columns = {*declared, *options.get(AS_IN_FIT, ())}
    try:
        table = _read_json_table(data, schema, unexpected, partial_columns)
        if schema is not None:
            _check_exact(table, data, options["schema"])
        return table
    except pa.ArrowException as first:
        reported = first
        lists = {n: t for n, t in declared.items() if is_list(t) and kind_of(t.value_type) == "number"}
        texts = {n: pa.string() for n, t in declared.items() if t == pa.string() or n in lists}
        texts |= {n: schema.field(n).type for n in options.get(NUMBER_TEXTS, ()) if schema and n in schema.names}
        dates = schema and pa.schema(
            [(field.name, pa.string() if field.name in lists else _with_text_dates(field.type)) for field in schema]
        )
        whole = {f.name: f.type for f in schema or () if pa.types.is_integer(f.type)}
        name = ""
        try:
            if texts or dates != schema:
                lines = _with_texts(data, texts) if texts else data
                table = _read_json_table(lines, dates, unexpected, partial_columns)
                _check_exact(table, data, options["schema"])
                for name in (n for n in lists if n in table.column_names):
                    lists_in(table[name].cast(pa.string()), lists[name])
                return table
        except NoListError as wrong:
            raise pa.ArrowInvalid(f"Column(/{name}): {wrong}, in row {wrong.row}") from None
        except ValueError as later:  # pa.ArrowInvalid is one, too
            if _column_of(_parse_place(str(first)), texts):  # it takes any value: what is wrong is something else
                reported = pa.ArrowInvalid(str(later))
        except (pa.ArrowException, RecursionError):
            pass  # it is something else
        try:
            if whole:  # written as 7.0
                lines = _with_texts(data, texts, [*whole])
                table = _with_whole_numbers(lines, dates, whole, unexpected, partial_columns)
                _check_exact(table, data, options["schema"])
                return table
        except pa.ArrowException:
            raise
        except (ValueError, RecursionError):
            pass  # it is something else
        raise reported from None


def _with_whole_numbers(
    data: bytes, schema: pa.Schema, whole: dict[str, pa.DataType], unexpected: str, partial_columns: Collection[str]
) -> pa.Table:
    """The table of lines in which whole numbers, some written as 7.0, are texts."""
    fields = [field.with_type(pa.string()) if field.name in whole else field for field in schema]
    table = _read_json_table(data, pa.schema(fields), unexpected, partial_columns)
    for name, dtype in whole.items():
        table = table.set_column(table.column_names.index(name), name, whole_numbers(table.column(name), dtype, name))
    return table


def _with_text_dates(dtype: pa.DataType) -> pa.DataType:
    """Texts in the place of dates, which Arrow takes from numbers alone."""
    return _with_leaf(dtype, pa.string()) if pa.types.is_date(leaf_type(dtype)) else dtype


class _Number(str):
    """A number with the digits that it is written with."""


def _with_texts(data: bytes, types: Mapping[str, pa.DataType], numbers: Sequence[str] = ()) -> bytes:
    """The lines with values under these names as texts where their types say so: Arrow takes a number for no text.
    Those of `numbers`, too; a ValueError where one is a text already, and for a line that is not JSON."""
    lines = list[bytes]()
    rows = 0
    for line in data.removeprefix(text_ranges.BOM).split(b"\n"):
        row = None
        if line.strip():
            row = _exact_row(line, rows)
            rows += 1
        if isinstance(row, dict):
            if any(type(row.get(n)) is str for n in numbers):
                raise ValueError("a text is not a number")
            every = {**types, **dict.fromkeys(numbers, pa.string())}
            row |= {n: _as_texts(row[n], dtype) for n, dtype in every.items() if n in row}
            line = _to_json(row).encode()
        lines.append(line)
    return b"\n".join(lines)


def _exact_row(line: bytes, number: int) -> Any:
    """What a line says, numbers with their digits; a ValueError that names the row where it is not JSON."""
    digits: Any = {"parse_int": _Number, "parse_float": _Number}
    try:
        return json.loads(line, object_pairs_hook=_refuse_repeated_keys, **digits)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg}, at letter {error.colno}, in row {number}") from None
    except ValueError as error:
        raise ValueError(f"{error}, in row {number}") from None


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; ValueError for a key that is there twice: of two values one would be lost."""
    if len(row := dict(pairs)) < len(pairs):
        raise ValueError(f"a key {TWICE}")
    return row


def _as_texts(value: object, dtype: pa.DataType) -> object:
    """A value with texts where its type has them; all else stays."""
    if is_list(dtype) and isinstance(value, list):
        return [_as_texts(one, dtype.value_type) for one in value]
    if pa.types.is_struct(dtype) and isinstance(value, dict):
        types = {field.name: field.type for field in dtype}
        return {name: _as_texts(one, types[name]) if name in types else one for name, one in value.items()}
    as_text = pa.types.is_string(dtype) and value is not None and type(value) is not str
    return str(_to_json(value)) if as_text else value


def _to_json(value: object) -> str:
    """A value as JSON, its numbers digit by digit."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_to_json(key)}: {_to_json(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_to_json, value)) + "]"
    return value if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)


def _read_json_table(
    data: bytes, schema: pa.Schema | None, unexpected: str, partial_columns: Collection[str] = ()
) -> pa.Table:
    """Read lines. Where `unexpected` is `error`, structs of `partial_columns` may have further fields, which are left
    out: Arrow has one rule for all levels."""
    _check_utf8(data)
    leading = LEADING.match(data)
    if leading and b"null" in leading.group():
        data = leading.group().replace(b"null", b"{}") + data[leading.end() :]
    reading = pajson.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parsing = pajson.ParseOptions(schema, unexpected_field_behavior=unexpected)
    try:
        table = pajson.read_json(pa.BufferReader(data), reading, parsing)
    except pa.ArrowInvalid as error:
        if schema is None or UNEXPECTED not in str(error):
            raise
        _check_keys(data, schema, partial_columns)
        parsing.unexpected_field_behavior = "ignore"
        table = pajson.read_json(pa.BufferReader(data), reading, parsing)
    for name in infinite_columns(table):  # which no JSON can say
        dtype = leaf_type(table.schema.field(name).type)
        raise pa.ArrowInvalid(f"Column(/{name}) has a number beyond {dtype} in row {_infinite_row(table[name])}")
    return table


def _check_keys(data: bytes, schema: pa.Schema, partial_columns: Collection[str]) -> None:
    """pa.ArrowInvalid for the first key that the schema lacks, but for those inside of the `partial_columns`."""
    wanted = pa.struct([pa.field(f.name, pa.null() if f.name in partial_columns else f.type) for f in schema])
    lines = (line for line in data.removeprefix(text_ranges.BOM).split(b"\n") if line.strip())
    for number, line in enumerate(lines):
        try:
            place = _find_unexpected_key(json.loads(line), wanted)
        except (ValueError, RecursionError):  # Arrow's reader says what is wrong
            continue
        if place:
            raise pa.ArrowInvalid(f"Column(/{place}) was not there in the lines that show the types, in row {number}")


def _find_unexpected_key(value: object, dtype: pa.DataType) -> str:
    """The place of the first key of an object, or of the objects in it, that a type lacks; "" for none. A null type
    takes all."""
    if isinstance(value, list) and is_list(dtype):
        return next((place for one in value if (place := _find_unexpected_key(one, dtype.value_type))), "")
    if not isinstance(value, dict) or not pa.types.is_struct(dtype):
        return ""
    types = {field.name: field.type for field in dtype}
    for name, inner in value.items():
        if name not in types:
            return name
        if place := _find_unexpected_key(inner, types[name]):
            return f"{name}/{place}"
    return ""


def _check_utf8(data: bytes) -> None:
    """pa.ArrowInvalid for bytes that are not text, which Arrow's reader of JSON takes as they are."""
    try:
        if not data.isascii():
            data.decode()
    except UnicodeDecodeError as error:
        row = sum(bool(line.strip()) for line in data[: error.start].split(b"\n")[:-1])
        raise pa.ArrowInvalid(f"{NO_TEXT}, byte 0x{data[error.start]:02x}, in row {row}") from None


def _parse_place(message: str) -> str:
    """The place in a row that a message of Arrow names: `KEY`, or inside it `KEY/KEY` and `KEY/[]`; "" for none."""
    place = PLACE.search(message)
    return place[1] if place else ""


def _column_of(place: str, names: Iterable[str]) -> str:
    """The one of these columns that a place is in; "" for none. A name may have a slash itself."""
    return max((name for name in names if f"{place}/".startswith(f"{name}/")), key=len, default="")


def _infinite_row(column: pa.ChunkedArray) -> int:
    values = column.combine_chunks()
    rows = np.arange(len(values))
    while is_list(values.type):
        rows = rows[pc.list_parent_indices(values)]
        values = pc.list_flatten(values)
    return int(rows[pc.index(pc.is_inf(values), pa.scalar(True)).as_py()])


def _misfit(message: str, data: bytes, file: File, piece: Piece, options: ReadOptions) -> DataError:
    before = 0
    if not text_ranges.is_whole(file, options):
        before = text_ranges.records_before(file, 0, piece.start, LINES, options, _sieve(options))
    row = re.search(r"row (\d+)", message.rpartition(" in ")[2])
    place = _parse_place(message)
    where = file.path + (f", column {place}" if place else "")
    value = ""
    name = place.split("/")[0]
    if row:
        lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
        where += f", row {before + int(row[1]) + 1}"
        if int(row[1]) < len(lines):
            number, line = lines[int(row[1])]
            value = line[:200].decode(errors="replace")
            name = _column_of(place, _keys(line)) or name
            if not (place or options.get("bad_lines")):
                ended = text_ranges.beginning(file, piece.start, options)[0][: piece.start].count(b"\n")
                where += f" (line {ended + number:,} of the file)"
    return DataError(
        "a line of JSON does not fit",
        where=where,
        why=message + (f" in {value}" if value else ""),
        do="write the file as UTF-8"
        if message.startswith(NO_TEXT)
        else "fix the line: each key of an object is there once"
        if TWICE in message
        else advice
        if (advice := options.get(ADVICE, {}).get(name))
        else f"fix the line, or give another type: {schema_advice(name, pa.string())} takes any value as text"
        if place
        else "fix the line, or leave such lines out: source.bad_lines: skip",
    )


def _keys(line: bytes) -> list[str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return [*row] if isinstance(row, dict) else []
