"""How the files of a source can be read, by their first bytes; and a sample of their rows."""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.draft.written_values import NULL_TEXTS, NUMBER, TIME
from tasks.core.plan import File, Partition
from tasks.dataset import Dataset
from tasks.engines.convert import libraries
from tasks.errors import DataError, NoInputError
from tasks.sources.bad_lines import bad_lines_of
from tasks.sources.formats import format_by_suffix
from tasks.sources.reader import read
from tasks.sources.uniting import ABSENT
from tasks.storage.files import expand, is_remote, read_all

SAMPLE_ROWS = 20_000
LABELS = (
    "label", "target", "is_click", "clicked", "click", "is_purchase", "purchased", "converted", "conversion",
    "rating", "stars", "y",
)  # fmt: skip
LOOKED_AT, HEAD_LINES = 1 << 16, 200  # bytes and lines of the first file of text
COMMA, POINT = re.compile(r'"?[+-]?[0-9]+,[0-9]+"?'), re.compile(r'"?[+-]?[0-9]+\.[0-9]+"?')


@dataclass(frozen=True)
class OtherTable:
    """Files beside the main table of a source. `keys` are the columns that both have, by which they can be joined."""

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Readable:
    """A data set, the settings with which its files can be read, and files beside them that are another table."""

    data: Dataset
    layout: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[OtherTable, ...] = ()


def readable(source: Any) -> Readable:
    """What can be read of a source, and how: the layout of its text, null for columns that only some files have, and
    that lines are left out which cannot be read, where there are any. Files that are another table are set apart."""
    data = Dataset(source)
    if data.as_source() is None:
        return Readable(data)
    whole = _tried(source, _layout(data))
    path, others = _main_table(whole.data, source)
    return replace(_tried(path, _layout(Dataset(path))), others=others) if others else whole


def _tried(source: Any, layout: Mapping[str, Any]) -> Readable:
    """A source as it can be read: with the layout, with null for missing columns, and without bad lines if need be."""
    try:
        return _sampled_with(source, layout)
    except DataError:
        if (layout.get("format") or format_by_suffix(_files(Dataset(source))[0].path)) not in ("csv", "tsv", "jsonl"):
            raise
        without = _sampled_with(source, {**layout, "bad_lines": "skip"})
        if not bad_lines_of(without.data.plan):
            raise
        return without


def _sampled_with(source: Any, layout: Mapping[str, Any]) -> Readable:
    data = Dataset(source, **layout)
    if ABSENT in data.plan.options:
        layout = {**layout, "missing": "null"}
        data = Dataset(source, **layout)
    sampled(data)
    return Readable(data, layout)


def _files(data: Dataset) -> list[File]:
    return expand((data.as_source() or {})["path"])


# tables


def _main_table(data: Dataset, source: Any) -> tuple[Any, tuple[OtherTable, ...]]:
    """What names the files of the main table of a data set, and the other tables in it.

    Files of the same columns are a table. The main one is the largest, of tables with a label if any has one; another
    is one of its own if the two share less than half of the columns of either.
    """
    absent = data.plan.options.get(ABSENT, {})
    tables: dict[tuple[str, ...], list[File]] = {}
    for number, file in enumerate(data.plan.files):
        gone = {*absent.get(str(number), ())}
        tables.setdefault(tuple(name for name in data.schema if name not in gone), []).append(file)

    def worth(columns: tuple[str, ...]) -> tuple[bool, int]:
        return any(name.lower() in LABELS for name in columns), sum(file.size for file in tables[columns])

    main = max(tables, key=worth)
    apart = [c for c in tables if 2 * len({*c} & {*main}) < min(len(c), len(main))]
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


def _naming(files: Sequence[File], source: Any) -> str | list[str]:
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


def _layout(data: Dataset) -> dict[str, Any]:
    """The settings with which the first file of text can be read, where those by default do not fit it: format,
    encoding, delimiter, lines before the header, columns where there is none, decimal comma, by its first 64 KiB."""
    files = _files(data)
    formats = {format_by_suffix(file.path) for file in files}
    if not formats <= {"csv", "tsv"} and formats != {None}:
        return {}
    start = read_all(files[0], length=LOOKED_AT)
    layout: dict[str, Any] = {}
    encoding = _encoding(start)
    text = start.decode(encoding or "utf-8", errors="replace").removeprefix("\ufeff")
    lines = text.splitlines()[: -1 if len(start) == LOOKED_AT else None][:HEAD_LINES]
    usual = "\t" if formats == {"tsv"} else ","
    delimiter = usual if usual == "\t" else max(_signs(lines), key=lambda sign: _regular(lines, sign))
    if formats == {None}:
        if lines and _is_json(lines[0]):
            return {"format": "jsonl"}
        if "\0" in text or not _regular(lines, delimiter):
            return {}
        layout["format"] = "tsv" if delimiter == "\t" else "csv"
        usual = "\t" if delimiter == "\t" else ","
    if encoding:
        layout["encoding"] = encoding
    if delimiter != usual:
        layout["delimiter"] = delimiter
    before = _lines_before_header(lines, delimiter)
    if before:
        layout["skip_rows"] = before
    if columns := _names_without_header(lines[before:], delimiter):
        layout |= {"header": False, "columns": columns}
    fields = [value for line in lines[before + 1 :] for value in line.split(delimiter)] if delimiter != "," else []
    if any(COMMA.fullmatch(value) for value in fields) and not any(POINT.fullmatch(value) for value in fields):
        layout["decimal"] = ","
    return layout


def _signs(lines: Sequence[str]) -> str:
    """The signs that may stand between values; of two colons one, behind which an empty column stands."""
    return ",;\t|" + (":" if lines and all("::" in line for line in lines if line) else "")


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _names_without_header(lines: Sequence[str], delimiter: str) -> list[str]:
    """Names for the columns of text whose first line has values; none where it names the columns.

    A number or a time in the first line is a value, unless a column has a text there and such values below.

    >>> _names_without_header(["7,x", "8,y"], ","), _names_without_header(["id,2026", "8,5"], ",")
    (['column_1', 'column_2'], [])
    """
    first, *rows = [row for row in csv.reader(lines, delimiter=delimiter) if row] or [[]]
    if not rows or not any(_is_value(text) for text in first):
        return []
    for place, text in enumerate(first):
        below = [row[place] for row in rows if place < len(row) and row[place] and row[place] not in NULL_TEXTS]
        if text and not _is_value(text) and below and all(map(_is_value, below)):
            return []
    return [f"column_{number}" for number in range(1, len(first) + 1)]


def _is_value(text: str) -> bool:
    return bool(re.match(NUMBER, text) or re.match(TIME, text))


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


def sampled(data: Dataset) -> pa.Table:
    """All rows if they are few, else as many of the first, the middle and the last block."""
    blocks = data.plan.blocks
    if data.num_rows > SAMPLE_ROWS:
        blocks = tuple(blocks[i] for i in sorted({0, len(blocks) // 2, len(blocks) - 1}))
        most = SAMPLE_ROWS // len(blocks)
        parts = [read(data.handle, Partition(0, (block,))).slice(0, most) for block in blocks]
        return pa.concat_tables([libraries.decoded(part) for part in parts])
    return libraries.decoded(read(data.handle, Partition(0, blocks)))
