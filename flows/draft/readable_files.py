"""How the files of a source can be read, by their first bytes; and a sample of their rows."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa

from tasks.core.plan import Partition
from tasks.dataset import Dataset
from tasks.engines.convert import libraries
from tasks.errors import DataError
from tasks.sources.bad_lines import bad_lines_of
from tasks.sources.formats import format_of as format_of_files
from tasks.sources.reader import read
from tasks.sources.uniting import ABSENT
from tasks.storage.files import expand, open_binary

SAMPLE_ROWS = 20_000
TEXT_FORMATS = ("csv", "tsv")
LOOKED_AT, HEAD_LINES = 1 << 16, 200  # bytes and lines of the first file of text
COMMA, POINT = re.compile(r'"?[+-]?[0-9]+,[0-9]+"?'), re.compile(r'"?[+-]?[0-9]+\.[0-9]+"?')


def readable(source: Any) -> tuple[Dataset, dict[str, Any]]:
    """The data set of a source, and the settings with which its files can be read: their layout, null for columns that
    only some files have, and that lines are left out which cannot be read, where there are any."""
    data = Dataset(source)
    if data.as_source() is None:
        return data, {}
    if layout := _layout(data):
        data = Dataset(source, **layout)
    try:
        if ABSENT in data.plan.options:
            layout["missing"] = "null"
            data = Dataset(source, **layout)
        sampled(data)
    except DataError:
        if format_of_files(expand(data.as_source()["path"])) not in (*TEXT_FORMATS, "jsonl"):  # type: ignore[index]
            raise
        without = Dataset(source, **layout, bad_lines="skip")
        if ABSENT in without.plan.options and "missing" not in layout:
            layout["missing"] = "null"
            without = Dataset(source, **layout, bad_lines="skip")
        if not bad_lines_of(without.plan):
            raise
        return without, {**layout, "bad_lines": "skip"}
    return data, layout


def _layout(data: Dataset) -> dict[str, Any]:
    """The settings with which the first file of CSV or TSV can be read, where those by default do not fit it: encoding,
    delimiter, lines before the header, decimal comma, by its first 64 KiB."""
    source = data.as_source()
    if source is None:
        return {}
    first = expand(source["path"])[0]
    if not first.path.lower().endswith((".csv", ".tsv")):
        return {}
    with open_binary(first) as file:
        start = file.read(LOOKED_AT)
    layout: dict[str, Any] = {}
    if encoding := _encoding(start):
        layout["encoding"] = encoding
    text = start.decode(encoding or "utf-8", errors="replace")
    lines = text.splitlines()[: -1 if len(start) == LOOKED_AT else None][:HEAD_LINES]
    usual = "\t" if first.path.lower().endswith(".tsv") else ","
    delimiter = usual if usual == "\t" else max(",;\t|", key=lambda sign: _regular(lines, sign))
    if delimiter != usual:
        layout["delimiter"] = delimiter
    if before := _lines_before_header(lines, delimiter):
        layout["skip_rows"] = before
    fields = [field for line in lines[before + 1 :] for field in line.split(delimiter)] if delimiter != "," else []
    if any(COMMA.fullmatch(field) for field in fields) and not any(POINT.fullmatch(field) for field in fields):
        layout["decimal"] = ","
    return layout


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
