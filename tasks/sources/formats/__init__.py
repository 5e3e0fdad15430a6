# ruff: noqa: PTH122
"""Readers by name. A format surveys files (schema, units of rows, digests) and reads pieces of them into tables.

| name | unit | how it is counted |
|---|---|---|
| parquet | row group | footer |
| orc | stripe | footer, and one narrow column |
| arrow | record batch | index at the end of the file |
| avro | run of Avro blocks | block headers |
| csv, tsv | range of bytes cut at record ends | one pass over the bytes |
| jsonl | range of bytes cut at line ends | one pass over the bytes |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.core.plan import File, Limits, Piece
from tasks.errors import JobError, near
from tasks.sources.formats import arrow, avro, jsonl, orc, parquet
from tasks.sources.formats.delimited import CSV, TSV
from tasks.sources.formats.readable_lines import complete
from tasks.sources.formats.survey import Inspected, footers
from tasks.storage.files import COMPRESSIONS

ParallelMap = Callable[..., Any]
SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".parq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".orc": "orc",
    ".avro": "avro",
    ".arrow": "arrow",
    ".feather": "arrow",
}


@dataclass(frozen=True)
class Format:
    """`survey` inspects files, `read` returns rows; units of `ranged` formats are ranges of bytes, not of rows.

    `bad_lines` gives (line, why, bytes) of the lines of a text file that cannot be read.
    """

    survey: Callable[[Sequence[File], dict[str, Any], Limits, ParallelMap], list[Inspected]]
    read: Callable[[Sequence[File], Sequence[Piece], pa.Schema, dict[str, Any]], pa.Table]
    ranged: bool = False
    bad_lines: Callable[[File, dict[str, Any]], Iterator[tuple[int, str, bytes]]] | None = None


DELIMITED = {"csv": CSV, "tsv": TSV}
FORMATS = {
    "parquet": Format(footers(parquet.inspect), parquet.read),
    "arrow": Format(footers(arrow.inspect), arrow.read),
    "csv": Format(CSV.survey, CSV.read, ranged=True, bad_lines=CSV.bad_lines),
    "tsv": Format(TSV.survey, TSV.read, ranged=True, bad_lines=TSV.bad_lines),
    "orc": Format(footers(orc.inspect), orc.read),
    "avro": Format(footers(avro.inspect), avro.read, ranged=True),
    "jsonl": Format(jsonl.survey, jsonl.read, ranged=True, bad_lines=jsonl.bad_lines),
}


def whole_records(data: bytes, name: str, options: dict[str, Any]) -> int:
    """How many bytes at the beginning of a piece of a text file are whole records."""
    return complete(data, DELIMITED[name].of(options).dialect if name in DELIMITED else jsonl.LINES)


def format_of(files: Sequence[File], name: str = "auto") -> str:
    """The format of all files: as named, or by their suffixes (`.csv.gz` is csv); mixed suffixes are a JobError."""
    if name != "auto":
        if name not in FORMATS:
            raise JobError(f"{name!r} is no format", where="source.format", do=near(name, ["auto", *FORMATS]))
        return name
    first: dict[str, str] = {}
    for file in files:
        first.setdefault(_format_by_suffix(file.path), file.path)
    if len(first) > 1:
        raise JobError(
            "the source mixes formats",
            where=", ".join(list(first.values())[:3]),
            why="they are " + ", ".join(sorted(first)),
            do="give one format per job: a narrower source.path",
        )
    return next(iter(first))


def format_by_suffix(path: str) -> str | None:
    """The format that the name of a file tells; None where it tells none.

    >>> format_by_suffix("in/a.csv.gz"), format_by_suffix("in/notes.txt")
    ('csv', None)
    """
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in COMPRESSIONS:
        suffix = os.path.splitext(stem)[1]
    return SUFFIXES.get(suffix.lower())


def _format_by_suffix(path: str) -> str:
    name = format_by_suffix(path)
    if name is None:
        raise JobError(
            "the format cannot be told from the name",
            where=path,
            do="set source.format to one of " + ", ".join(FORMATS) + ", or leave the file out of source.path",
        )
    return name
