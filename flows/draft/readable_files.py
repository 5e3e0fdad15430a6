"""How the files of a source can be read, by their first bytes; and a sample of their rows."""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.draft.header import names_without_header
from flows.draft.written_values import null_texts
from tasks.core.plan import Block, File, Partition
from tasks.core.schema import Schema
from tasks.dataset import Dataset
from tasks.engines.convert import libraries
from tasks.errors import DataError, NoInputError
from tasks.report.sampling import beginning_of
from tasks.sources.bad_lines import bad_lines_of
from tasks.sources.formats import format_by_suffix
from tasks.sources.reader import read
from tasks.sources.uniting import ABSENT
from tasks.storage.files import expand, is_remote, read_all, read_range

SAMPLE_ROWS = 20_000
LABELS = (
    "label",
    "target",
    "is_click",
    "clicked",
    "click",
    "is_purchase",
    "purchased",
    "converted",
    "conversion",
    "rating",
    "stars",
    "y",
)
WHOLE_BYTES, MOST_BLOCKS, RANGES = 1 << 28, 64, 64  # of blocks that are read whole; ranges of rows of a sample
LOOKED_AT, HEAD_LINES, PLACES = 1 << 16, 200, 16  # bytes and lines of the first file of text; places further down
QUOTED = re.compile(r'"([^"]|"")*"\s*')
COMMA, POINT = re.compile(r'"?[+-]?[0-9]+,[0-9]+"?'), re.compile(r'"?[+-]?[0-9]+\.[0-9]+"?')


@dataclass(frozen=True)
class OtherTable:
    """Files beside the main table of a source. `keys` are the columns that both have, by which they can be joined."""

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Readable:
    """A data set, the settings with which its files can be read, and files beside them that are another table.

    `nulls` are the texts that mean null, `sample` rows of the data set, and `doubt` is what may be wrong about its
    header.
    """

    data: Dataset
    layout: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[OtherTable, ...] = ()
    nulls: tuple[str, ...] = ()
    sample: pa.Table | None = None
    doubt: str = ""


def readable(source: object) -> Readable:
    """What can be read of a source, and how: the layout of its text, texts that mean null, null for columns that only
    some files have, and that lines are left out which cannot be read, where there are any. Files that are another table
    are set apart before any type is judged. A `Dataset` is read as it says."""
    data = source if isinstance(source, Dataset) else Dataset(source)
    if isinstance(source, Dataset) or data.as_source() is None:
        return _looked_through(Readable(data))
    layout, doubt = _layout(data)
    if len(_files(data)) > 1:
        path, others = _main_table(_tried(source, layout, _planned).data, source)
        if others:
            layout, doubt = _layout(Dataset(path))
            source = path
    else:
        others = ()
    return replace(_tried(source, layout, _as_it_fits), others=others, doubt=doubt)


def _tried(source: object, layout: Mapping[str, Any], look: Callable[[Any, Mapping[str, Any]], Readable]) -> Readable:
    """A source as it can be read: with the layout; else with quotes that are letters, else without bad lines."""
    try:
        return look(source, layout)
    except DataError:
        form = layout.get("format") or format_by_suffix(_files(Dataset(source))[0].path)
        if form not in ("csv", "tsv", "jsonl"):
            raise
        if form != "jsonl" and "quote" not in layout:
            with suppress(DataError):
                letters = look(source, {**layout, "quote": ""})
                if letters.sample is None or not _are_quoted(letters.sample):
                    return letters
        without = look(source, {**layout, "bad_lines": "skip"})
        if not bad_lines_of(without.data.plan):
            raise
        return without


def _planned(source: object, layout: Mapping[str, Any]) -> Readable:
    data = Dataset(source, **layout)
    if ABSENT in data.plan.options:
        layout = {**layout, "missing": "null"}
        data = Dataset(source, **layout)
    return Readable(data, layout)


def _looked_through(seen: Readable) -> Readable:
    """The same data with a sample of its rows. In text, what means null is looked for before types are inferred."""
    data, nulls = _with_nulls(seen.data)
    return replace(seen, data=data, nulls=tuple(nulls), sample=sampled(data))


def _with_nulls(data: Dataset) -> tuple[Dataset, list[str]]:
    if data.plan.format not in ("csv", "tsv"):
        return data, []
    texts = Schema(replace(column, dtype=pa.string()) for column in data.plan.schema.columns)
    nulls = null_texts(data, sampled(data.in_types(replace(data.plan, schema=texts))))
    return (data.with_null_values([*data.null_values, *nulls]) if nulls else data), nulls


def _as_it_fits(source: object, layout: Mapping[str, Any]) -> Readable:
    """A source with a sample; columns of text are strings if values further down do not fit the type of the first."""
    seen = _planned(source, layout)
    try:
        return _looked_through(seen)
    except DataError:
        data, _ = _with_nulls(seen.data)
        misfits = [name for name in data.schema if not _fits(data, name)]
        if data.plan.format not in ("csv", "tsv") or not misfits or len(misfits) == len(data.schema) > 1:
            raise
        return _looked_through(_planned(source, {**seen.layout, "schema": dict.fromkeys(misfits, "string")}))


def _fits(data: Dataset, name: str) -> bool:
    try:
        sampled(data, [name])
    except DataError:
        return False
    return True


def _files(data: Dataset) -> list[File]:
    return expand((data.as_source() or {})["path"])


# tables


def _main_table(data: Dataset, source: object) -> tuple[Any, tuple[OtherTable, ...]]:
    """What names the files of the main table of a data set, and the other tables in it.

    Files of the same columns are a table. The main one is the largest, of tables with a label if any has one; another
    is one of its own if the two share half of the columns of either, or less.
    """
    absent = data.plan.options.get(ABSENT, {})
    tables: dict[tuple[str, ...], list[File]] = {}
    for number, file in enumerate(data.plan.files):
        gone = {*absent.get(str(number), ())}
        tables.setdefault(tuple(name for name in data.schema if name not in gone), []).append(file)

    def worth(columns: tuple[str, ...]) -> tuple[bool, int]:
        return any(name.lower() in LABELS for name in columns), sum(file.size for file in tables[columns])

    main = max(tables, key=worth)
    apart = [c for c in tables if c != main and 2 * len({*c} & {*main}) <= min(len(c), len(main))]
    if not apart:
        return source, ()
    shared = {name for columns in tables if columns not in apart for name in columns}
    left_out = {file.path for columns in apart for file in tables[columns]}
    others = tuple(
        OtherTable(tuple(_relative(f.path, source) for f in tables[c]), c, tuple(name for name in c if name in shared))
        for c in apart
    )
    return _naming([file for file in data.plan.files if file.path not in left_out], source), others


def _relative(path: str, source: Any) -> str:
    """The path of a file as the source writes paths: from the current folder, or from the root."""
    named = [source] if isinstance(source, str | os.PathLike) else source
    whole = is_remote(path) or any(Path(name).is_absolute() for name in named)
    return path if whole else os.path.relpath(path)


def _naming(files: Sequence[File], source: object) -> str | list[str]:
    """What names these files and no other: the one, their folder, a pattern, or a list."""
    names = [_relative(file.path, source) for file in files]
    if len(names) == 1:
        return names[0]
    start = os.path.commonprefix(names)  # noqa: RUF071 - letters that begin all names
    end = os.path.commonprefix([name[::-1] for name in names])[::-1]  # noqa: RUF071
    for shorter in (start.rpartition("/")[0], f"{start}*{end}"):
        try:
            if shorter and [file.path for file in expand(shorter)] == [file.path for file in files]:
                return shorter
        except NoInputError:  # a name with a letter that has a meaning in patterns
            continue
    return names


# text


def _layout(data: Dataset) -> tuple[dict[str, Any], str]:
    """The settings with which the first file of text can be read, where those by default do not fit it, and what is
    doubtful about its header: format, encoding, delimiter, lines before the header, columns where there is none and
    decimal comma by its first 64 KiB; encoding, values of the first line, decimal comma and quotes also by more of
    it."""
    files = _files(data)
    formats = {format_by_suffix(file.path) for file in files}
    if not formats <= {"csv", "tsv"} and formats != {None}:
        return {}, ""
    start = read_all(files[0], length=LOOKED_AT)
    layout: dict[str, Any] = {}
    further = _further(files[0], start)
    encoding = _encoding(start if not further else start[: start.rfind(b"\n") + 1] + further)
    text = start.decode(encoding or "utf-8", errors="replace").removeprefix("\ufeff")
    every = text.splitlines()[: -1 if len(start) == LOOKED_AT else None]
    lines = every[:HEAD_LINES]
    every += further.decode(encoding or "utf-8", errors="replace").splitlines()
    usual = "\t" if formats == {"tsv"} else ","
    named = re.fullmatch('"?sep=(.)"?', lines[0]) if lines else None  # Excel's own line
    delimiter = usual if usual == "\t" else max(_signs(lines), key=lambda sign: _regular(lines, sign))
    delimiter = named[1] if named else delimiter
    if formats == {None}:
        if lines and _is_json(lines[0]):
            return {"format": "jsonl"}, ""
        if "\0" in text or not _regular(lines, delimiter):
            return {}, ""
        layout["format"] = "tsv" if delimiter == "\t" else "csv"
        usual = "\t" if delimiter == "\t" else ","
    if encoding:
        layout["encoding"] = encoding
    if delimiter != usual:
        layout["delimiter"] = delimiter
    before = 1 if named else _lines_before_header(lines, delimiter)
    if before:
        layout["skip_rows"] = before
    every = every[before:]
    if _quotes_are_letters(every, delimiter):
        layout["quote"] = ""
    quoted = csv.reader(every, delimiter=delimiter, quotechar=None if "quote" in layout else '"')
    rows = [row for row in quoted if row]
    columns, doubt = names_without_header(rows)
    if columns:
        layout |= {"header": False, "columns": columns}
    fields = [value for line in every[1:] for value in line.split(delimiter)] if delimiter != "," else []
    if any(COMMA.fullmatch(value) for value in fields) and not any(POINT.fullmatch(value) for value in fields):
        layout["decimal"] = ","
    return layout, doubt


def _further(file: File, start: bytes) -> bytes:
    """Whole lines of `PLACES` places behind the start of a file of text; none of a file that has no other bytes, or
    whose bytes are not those of the text."""
    if len(start) < LOOKED_AT or b"\0" in start or read_range(file, 0, LOOKED_AT) != start:
        return b""
    step = max((file.size - LOOKED_AT) // PLACES, 1)
    parts = [read_range(file, at, at + min(step, LOOKED_AT)) for at in range(LOOKED_AT, file.size, step)]
    return b"".join(part[part.find(b"\n") + 1 : part.rfind(b"\n") + 1] for part in parts)


def _quotes_are_letters(lines: Sequence[str], delimiter: str) -> bool:
    """Whether every line has as many values as the others if quotes are letters, and one begins but does not end with
    a quote."""
    rows = [line.split(delimiter) for line in lines if line]
    if len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
        return False
    return any(value.startswith('"') and not QUOTED.fullmatch(value) for row in rows for value in row)


def _are_quoted(sample: pa.Table) -> bool:
    """Whether half of the texts that begin with a quote, or more, are quoted as a whole."""
    texts = [column for column in sample.columns if pa.types.is_string(column.type)]
    begun = [column.filter(pc.starts_with(column, '"')) for column in texts]
    whole = sum(pc.sum(pc.match_substring_regex(some, f"^{QUOTED.pattern}$")).as_py() or 0 for some in begun)
    return bool(whole and 2 * whole >= sum(map(len, begun)))


def _signs(lines: Sequence[str]) -> str:
    """The signs that may stand between values; of two colons one, behind which an empty column stands."""
    return ",;\t|" + (":" if lines and all("::" in line for line in lines if line) else "")


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _encoding(start: bytes) -> str | None:
    """The encoding of a file that begins so; None for UTF-8."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # the last letter may be cut off
    except UnicodeDecodeError:
        return "windows-1252" if any(0x80 <= byte < 0xA0 for byte in start) else "latin-1"
    return None


def _regular(lines: Sequence[str], sign: str) -> int:
    """How many of these lines, from the last on, have the sign as often as the last; 0 where it has none."""
    lines = [line for line in lines if line]
    number = lines[-1].count(sign) if lines else 0
    alike = list(takewhile(lambda line: line.count(sign) == number, reversed(lines)))
    return len(alike) if number else 0


def _lines_before_header(lines: Sequence[str], delimiter: str) -> int:
    """How many lines without any delimiter come before lines that all have some."""
    before = len(list(takewhile(lambda line: delimiter not in line, lines)))
    return before if before < len(lines) and all(delimiter in line for line in lines[before:] if line) else 0


def sampled(data: Dataset, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows if they are few, else ranges of rows that are spread over the blocks and within each.

    Blocks are read whole as far as `WHOLE_BYTES` allow, but three at least. Of the others, `MOST_BLOCKS` with them at
    most, the first rows are read.
    """
    plan = data.plan
    names = list(plan.schema if columns is None else columns)
    if plan.rows <= SAMPLE_ROWS:
        return libraries.decoded(read(data.handle, Partition(0, plan.blocks), names))
    blocks = _spread(plan.blocks, MOST_BLOCKS)
    whole = {b.number for b in _spread(blocks, max(3, WHOLE_BYTES // max(b.nbytes for b in blocks)))}
    schema, rows = pa.schema([(name, plan.schema[name].dtype) for name in names]), sum(b.rows for b in blocks)
    tables: list[pa.Table] = []
    for block in blocks:
        most = max(1, SAMPLE_ROWS * block.rows // rows)
        if block.number in whole:
            part = read(data.handle, Partition(0, (block,)), names)
            tables += map(libraries.decoded, _ranges(part, most, max(1, RANGES * block.rows // rows)))
        elif plan.files:
            heads = beginning_of(plan, block, most, schema) or []
            tables += [libraries.decoded(head.slice(0, most)) for head in heads]
    return pa.concat_tables(tables).combine_chunks()


def _spread(blocks: Sequence[Block], most: int) -> list[Block]:
    """As many of the blocks at most, from the first to the last in equal steps."""
    return [blocks[i] for i in np.unique(np.linspace(0, len(blocks) - 1, min(most, len(blocks))).astype(int))]


def _ranges(table: pa.Table, rows: int, number: int) -> list[pa.Table]:
    """About as many rows of a table, in ranges that are spread over it; all if it has no more."""
    if table.num_rows <= rows:
        return [table]
    length = max(1, rows // number)
    starts = np.linspace(0, table.num_rows - length, number).astype(int)
    return [table.slice(start, length) for start in starts]
