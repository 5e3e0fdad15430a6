"""JSON lines: one object a line; a missing key is null, a key that is not in the schema an error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from tasks.core.dtypes import is_list, leaf_type, parse_dtype
from tasks.core.plan import File, Limits, Piece
from tasks.errors import DataError
from tasks.sources.formats import record_ends, text_ranges
from tasks.sources.formats.bounds import MOST_DEPTH, check_lines, nested_too_deep
from tasks.sources.formats.conform import conform, infinite_columns
from tasks.sources.formats.record_ends import Dialect
from tasks.sources.formats.survey import Inspected
from tasks.storage.files import compression

LINES = Dialect(None)
# Blank lines and nulls at the beginning: of a null there Arrow's reader ends the process.
LEADING = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t\r]*+(?:null[ \t\r]*+)?(?:\n|\Z))*+")
BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[^\[\]{}"]++', re.DOTALL)  # all else than those outside of texts
NO_TEXT = "a line is no UTF-8"
IDS = re.compile(rb"(?<![.0-9eE-])[0-9]{19,}(?![.0-9eE])")  # numbers that may be beyond int64


def survey(
    files: Sequence[File], options: dict[str, Any], limits: Limits, parallel_map: Callable[..., Any]
) -> list[Inspected]:
    """Line ranges of all files; columns and types of the first 16 MiB of the first file with rows, wider where 16
    others show more of a column. `source.schema` may add columns, but for those that are `optional`.
    """
    heads = list(parallel_map(partial(text_ranges.head, options, LINES, False), files))
    units = text_ranges.count(heads, options, LINES, limits, parallel_map)
    full = [h for h, u in zip(heads, units, strict=True) if u]
    for head in full:
        _check_lines(head)
    types = text_ranges.types_of(full, partial(_infer, options), parallel_map)
    optional = {*options.get("optional", ())} - {*types}
    types.update({name: parse_dtype(t) for name, t in options["schema"].items() if name not in optional})
    return [Inspected(h.file, pa.schema(list(types.items())), u) for h, u in zip(heads, units, strict=True)]


def _infer(options: dict[str, Any], sampled: tuple[text_ranges.Head, int]) -> dict[str, pa.DataType]:
    head, length = sampled
    data = text_ranges.sample(head.file, head.start, length, LINES, options)
    check_lines(data, head.file.path, options)
    _check_depth(data, head.file.path)
    schema = _parse(data, None, head.file, Piece(0, head.start, head.start), options).schema
    types = {f.name: _inferred(f.type) for f in schema}
    if IDS.search(data):  # whole numbers beyond int64 are ids, which a float would change
        floats = {n: _with_leaf(t, pa.uint64()) for n, t in types.items() if leaf_type(t) == pa.float64()}
        types |= {name: dtype for name, dtype in floats.items() if _holds(dtype, name, data)}
    return types


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
        begin, end = data.rfind(b"\n", 0, first) + 1, data.find(b"\n", first)
        if _depth(data[begin : end if end >= 0 else len(data)]) > MOST_DEPTH:
            raise nested_too_deep(path, "a line of JSON")


def _depth(line: bytes) -> int:
    """How deep brackets lie in each other; those in texts do not count."""
    brackets = np.frombuffer(BRACKETS.sub(b"", line), np.uint8)
    steps = np.select([(brackets == c) for c in b"[{]}"], [1, 1, -1, -1], 0)
    return int(np.cumsum(steps).max(initial=0))


def _with_leaf(dtype: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    return pa.list_(_with_leaf(dtype.value_type, leaf)) if is_list(dtype) else leaf


def _holds(dtype: pa.DataType, name: str, data: bytes) -> bool:
    """Whether all values of a column are of this type."""
    try:
        _table(data, pa.schema([(name, dtype)]), "ignore")
    except pa.ArrowException:
        return False
    return True


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


def _inferred(dtype: pa.DataType) -> pa.DataType:
    if is_list(dtype):
        return pa.list_(_inferred(dtype.value_type))
    return pa.timestamp("us", dtype.tz) if pa.types.is_timestamp(dtype) else dtype


def read(files: Sequence[File], pieces: Sequence[Piece], schema: pa.Schema, options: dict[str, Any]) -> pa.Table:
    """The rows of the pieces, in their order, as `schema` says."""
    everything = set(schema.names) == set(options["names"])
    tables = []
    for piece in text_ranges.merged(pieces):
        data = text_ranges.piece_bytes(files[piece.file], piece, options)
        if not schema.names:
            rows = sum(cut.records for cut in record_ends.cut_text(data, 0, LINES, 2**26))
            tables.append(pa.table({"rows": pa.nulls(rows)}).select([]))
            continue
        table = _parse(data, pa.schema(schema, None), files[piece.file], piece, options, strict=everything)
        tables.append(conform(table, schema))
    return tables[0] if len(tables) == 1 else conform(pa.concat_tables(tables), schema)


def _parse(
    data: bytes, schema: pa.Schema | None, file: File, piece: Piece, options: dict[str, Any], strict: bool = False
) -> pa.Table:
    unexpected = "infer" if schema is None else "error" if strict else "ignore"
    try:
        return _table(data, schema, unexpected)
    except pa.ArrowException as error:
        texts = [name for name, dtype in options["schema"].items() if parse_dtype(dtype) == pa.string()]
        dates = schema and pa.schema([(field.name, _with_text_dates(field.type)) for field in schema])
        try:
            if texts or dates != schema:
                return _table(_with_texts(data, texts) if texts else data, dates, unexpected)
        except (pa.ArrowException, ValueError, RecursionError):
            pass  # it is something else
        raise _misfit(str(error).split("\n")[0], data, file, piece, options) from None


def _with_text_dates(dtype: pa.DataType) -> pa.DataType:
    """Texts in the place of dates, which Arrow takes from numbers alone."""
    return _with_leaf(dtype, pa.string()) if pa.types.is_date(leaf_type(dtype)) else dtype


class _Number(str):
    """A number with the digits that it is written with."""


def _with_texts(data: bytes, names: Sequence[str]) -> bytes:
    """The lines with the values under these names as texts, whatever they are: Arrow takes a number for no text."""
    lines = []
    for line in data.removeprefix(text_ranges.BOM).split(b"\n"):
        row = json.loads(line, parse_int=_Number, parse_float=_Number) if line.strip() else None
        if isinstance(row, dict):
            row |= {n: str(_written(row[n])) for n in names if row.get(n) is not None and type(row[n]) is not str}
            line = _written(row).encode()
        lines.append(line)
    return b"\n".join(lines)


def _written(value: Any) -> str:
    """A value as JSON, its numbers digit by digit."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written(key)}: {_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return value if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)


def _table(data: bytes, schema: pa.Schema | None, unexpected: str) -> pa.Table:
    _check_utf8(data)
    leading = LEADING.match(data)
    if leading and b"null" in leading.group():
        data = leading.group().replace(b"null", b"{}") + data[leading.end() :]
    reading = pajson.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parsing = pajson.ParseOptions(schema, unexpected_field_behavior=unexpected)
    table = pajson.read_json(pa.BufferReader(data), reading, parsing)
    for name in infinite_columns(table):  # which no JSON can say
        dtype = leaf_type(table.schema.field(name).type)
        raise pa.ArrowInvalid(f"Column(/{name}) has a number beyond {dtype} in row {_infinite_row(table[name])}")
    return table


def _check_utf8(data: bytes) -> None:
    """pa.ArrowInvalid for bytes that are no text, which Arrow's reader of JSON takes as they are."""
    try:
        if not data.isascii():
            data.decode()
    except UnicodeDecodeError as error:
        row = sum(bool(line.strip()) for line in data[: error.start].split(b"\n")[:-1])
        raise pa.ArrowInvalid(f"{NO_TEXT}, byte 0x{data[error.start]:02x}, in row {row}") from None


def _infinite_row(column: pa.ChunkedArray) -> int:
    values = column.combine_chunks()
    rows = np.arange(len(values))
    while is_list(values.type):
        rows, values = rows[pc.list_parent_indices(values)], pc.list_flatten(values)
    return int(rows[pc.index(pc.is_inf(values), pa.scalar(True)).as_py()])


def _misfit(message: str, data: bytes, file: File, piece: Piece, options: dict[str, Any]) -> DataError:
    before = 0 if compression(file.path) else text_ranges.records_before(file, 0, piece.start, LINES, options)
    row, column = re.search(r"row (\d+)", message), re.search(r"Column\(/([^)]*)\)", message)
    where = file.path + (f", column {column[1]}" if column else "")
    value, name = "", column[1].split("/")[0] if column else "NAME"
    if row:
        lines = [line for line in data.split(b"\n") if line.strip()]
        where += f", row {before + int(row[1]) + 1}"
        value = lines[int(row[1])][:200].decode(errors="replace") if int(row[1]) < len(lines) else ""
    return DataError(
        "a line of JSON does not fit",
        where=where,
        why=message + (f" in {value}" if value else ""),
        do="write the file as UTF-8"
        if message.startswith(NO_TEXT)
        else f"mend the line, or give another type: source.schema: {{{name}: string}} takes any value as text",
    )
