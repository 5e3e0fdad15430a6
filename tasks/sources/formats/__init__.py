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
from functools import partial
from typing import Any

import pyarrow as pa

from tasks.core.notes import leave_out_empty
from tasks.core.plan import File, Limits, Piece, ReadOptions
from tasks.core.settings import Source
from tasks.errors import JobError, near
from tasks.sources.formats import arrow, avro, jsonl, orc, parquet
from tasks.sources.formats.csv import CSV, TSV, Delimited
from tasks.sources.formats.record_ends import Dialect
from tasks.sources.formats.survey import Inspected, footers
from tasks.storage.credentials import storage
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

    `dialect` says, by the options of readers, where records of text end; None: the files are not text. Values of
    `untyped` text have no type: some stand for null (`source.null_values`), and a fitted workflow reads the others in
    its own types. `layout` names the settings of a source that say how text is laid out: they hold for later data of
    the same format, and formats that do not name them refuse them. `bad_lines` gives (line, why, bytes) of the lines of
    a text file that cannot be read.
    """

    survey: Callable[[Sequence[File], ReadOptions, Limits, ParallelMap], list[Inspected]]
    read: Callable[[Sequence[File], Sequence[Piece], pa.Schema, ReadOptions], pa.Table]
    ranged: bool = False
    dialect: Callable[[ReadOptions], Dialect] | None = None
    untyped: bool = False
    layout: tuple[str, ...] = ()
    bad_lines: Callable[[File, ReadOptions], Iterator[tuple[int, str, bytes]]] | None = None

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings of a source that this format takes and some others refuse."""
        return (*["null_values"] * self.untyped, *self.layout, *(["bad_lines"] if self.bad_lines else []))


def _make_delimited_format(kind: Delimited) -> Format:
    layout = (
        "delimiter",
        "header",
        "columns",
        "skip_rows",
        "skip_initial_space",
        "decimal",
        "encoding",
        "quote",
        "escape",
        "comment",
    )
    return Format(
        kind.survey,
        kind.read,
        ranged=True,
        dialect=lambda options: kind.of(options).dialect,
        untyped=True,
        layout=layout,
        bad_lines=kind.bad_lines,
    )


DELIMITED = {"csv": CSV, "tsv": TSV}
FORMATS = {
    "parquet": Format(footers(parquet.inspect), parquet.read),
    "arrow": Format(footers(arrow.inspect), arrow.read),
    "csv": _make_delimited_format(CSV),
    "tsv": _make_delimited_format(TSV),
    "orc": Format(footers(orc.inspect), orc.read),
    "avro": Format(footers(avro.inspect), avro.read, ranged=True),
    "jsonl": Format(jsonl.survey, jsonl.read, ranged=True, dialect=lambda _: jsonl.LINES, bad_lines=jsonl.bad_lines),
}
TEXTS = frozenset(name for name, one in FORMATS.items() if one.dialect)  # numbers are written as digits there
UNTYPED = frozenset(name for name, one in FORMATS.items() if one.untyped)
LAYOUT = tuple(dict.fromkeys(name for one in FORMATS.values() for name in one.layout))
SETTINGS = tuple(dict.fromkeys(name for one in FORMATS.values() for name in one.settings))


def rows_of_piece(format: str, piece: Piece) -> int | None:
    """The number of rows of a piece; None for a range of bytes, which does not tell it unless elements were counted."""
    if piece.rows is not None:
        return piece.rows
    return None if format in FORMATS and FORMATS[format].ranged else piece.stop - piece.start


def format_of(files: Sequence[File], name: str = "auto") -> str:
    """The format of all files: as named, or by their suffixes (`.csv.gz` is csv); mixed suffixes are a JobError."""
    if name != "auto":
        if name not in FORMATS:
            raise JobError(f"{name!r} is not a format", where="source.format", do=near(name, ["auto", *FORMATS]))
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


# What a source says of its files, as options of readers, and what the files show where it says nothing

SHOWS = {  # how a file shows a setting that its source leaves out
    "delimiter": "names its delimiter in its first line",
    "skip_initial_space": "has a space behind each delimiter, which is left out",
}
BOUNDS = ("max_record_bytes", "max_block_bytes")  # limits of readers; they change no row


def with_recognised(
    source: Source, format: str, files: Sequence[File], parallel_map: Callable[..., Any] = map
) -> tuple[Source, list[str]]:
    """(The source with the settings that the beginning of its first file with bytes shows, a sentence for each)."""
    first = next((file for file in files if file.size), None)
    if format not in DELIMITED or first is None:
        return source, []
    look = partial(DELIMITED[format].recognise_settings, options=read_options(source))
    shown: dict[str, Any] = next(iter(parallel_map(look, [first])))
    notes = [f"{first.path} {SHOWS[name]}: source.{name}: {str(value).lower()}" for name, value in shown.items()]
    return source.model_copy(update=shown), notes


def format_settings(source: Source) -> ReadOptions:
    """The settings of a source that only some formats take, without those that have their default."""
    return {
        name: value for name in SETTINGS if (value := getattr(source, name)) != Source.model_fields[name].get_default()
    }


def check_settings(source: Source, name: str, inherited: bool = False) -> None:
    """Refuse settings that this format does not take; null texts may be `inherited` from a fit on text."""
    for key in format_settings(source):
        if key not in FORMATS[name].settings and not (inherited and key == "null_values"):
            others = " or ".join(other for other, one in FORMATS.items() if key in one.settings)
            raise JobError(
                f"the format {name} takes no {key}",
                where=f"source.{key}",
                do=f"leave it out, or set source.format if the files are {others}",
            )
    if name in DELIMITED:
        _check_signs(source, name)


def _check_signs(source: Source, name: str) -> None:
    """A JobError where one character is two signs of a text file."""
    quote = DELIMITED[name].quote if source.quote is None else source.quote
    signs = {
        "delimiter": source.delimiter or DELIMITED[name].delimiter,
        "quote": quote,
        "escape": source.escape,
        "comment": source.comment,
    }
    keys: dict[str, str] = {}
    for key, sign in signs.items():
        if not sign:
            continue
        if sign in keys:
            raise JobError(
                f"{sign!r} is the {keys[sign]} and the {key} of a text file",
                where=f"source.{key}",
                do="give another character, or leave it out"
                + ("; without an escape, two quotes stand for one" if key == "escape" else ""),
            )
        keys[sign] = key


def read_options(source: Source) -> ReadOptions:
    """The options of readers, as plain values; those of `Format.layout` where they are set."""
    return {
        "columns": source.columns,
        "delimiter": source.delimiter,
        **format_settings(source),
        "header": source.header and source.columns is None,
        "null_values": list(source.null_values),
        **leave_out_empty({"bad_lines": True if source.bad_lines != "error" else None}),
        "schema": dict(source.schema_ or {}),
        **{name: size for name in BOUNDS if (size := getattr(source, name)) is not None},
        "storage_options": storage(source.storage_options, "source.storage_options"),
    }
