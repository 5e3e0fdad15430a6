"""Finds out how the files of a source can be read, by their first bytes; and takes a sample of their rows.

In this order: the attempts to read a source (`readable`), which of its files are one table, the layout of a file of
text (`_guess_layout`), and the sample of rows.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.draft.dialect import (
    QUOTED_VALUE,
    count_regular,
    find_delimiter,
    has_escaped_null,
    has_escapes,
    has_one_name_too_few,
    has_single_quotes,
    quotes_are_letters,
)
from flows.draft.header import is_value, names_without_header
from flows.draft.names import is_label_name
from flows.draft.other_tables import OtherTable, are_keys, with_keys
from flows.draft.written_values import null_texts
from tasks.core.dtypes import is_list, schema_advice
from tasks.core.plan import EXPLODED, Block, File, Partition
from tasks.core.schema import Schema
from tasks.core.strict_json import JsonObject
from tasks.dataset import Dataset
from tasks.engines.convert import libraries
from tasks.errors import DataError, NoInputError
from tasks.sources.bad_lines import bad_lines_of
from tasks.sources.formats import format_by_suffix
from tasks.sources.planning import NoRowsError
from tasks.sources.reader import read
from tasks.sources.sampling import beginning_of
from tasks.sources.uniting import ABSENT
from tasks.storage.credentials import StorageOptions, storage
from tasks.storage.files import expand, is_remote, read_all, read_range

SAMPLE_ROWS = 20_000
WHOLE_BYTES = 1 << 28  # of blocks of a sample that are read whole
MOST_BLOCKS = 64  # of a sample
MOST_RANGES = 64  # of rows of a sample
# at the beginning of a text file, from which its layout is guessed
HEAD_BYTES = 1 << 16
MOST_HEAD_LINES = 200
# places behind these bytes at which further lines are read
SAMPLED_PLACES = 16
# lines before a header that have the delimiter, too
MOST_BEFORE = 20
# lines behind a header
FEWEST_BEHIND = 3
# name of the first column of R's files, which have none for it
ROW_NAME_COLUMN = "row_name"
MOST_LAYOUTS = 50  # files of a source whose layouts are compared
SEPARATOR_STAND_IN = "\x1f"  # for a delimiter of several characters: ASCII's separator of values
COLUMN_OF_ERROR = re.compile(r", column (.+?)(?:, row [\d,]+.*)?$")  # as errors of JSON lines name it
DECIMAL_COMMA = re.compile(r'"?[+-]?[0-9]+,[0-9]+"?')
DECIMAL_POINT = re.compile(r'"?[+-]?[0-9]+\.[0-9]+"?')


@dataclass(frozen=True)
class TextLayout:
    """The settings with which a file of text can be read, where the defaults do not fit it."""

    settings: JsonObject = field(default_factory=dict)
    doubt: str = ""  # about its header
    names: tuple[str, ...] = ()  # of its columns
    line: str = ""  # the first line, whether or not it names the columns

    @property
    def grouping_key(self) -> tuple[Any, ...]:
        """The settings in which files must agree that are read together; the names of a header may differ."""
        settings = self.settings
        return settings.get("format"), settings.get("delimiter"), len(settings.get("columns", ()))


@dataclass(frozen=True)
class NamedFiles:
    """What names the files of a source, as a Dataset takes it, and the options of their storage, or their name."""

    source: Any
    storage_options: str | dict[str, Any] | None = None

    @property
    def options(self) -> StorageOptions:
        return storage(self.storage_options)

    def read_as(self, layout: JsonObject) -> Dataset:
        return Dataset(self.source, storage_options=self.storage_options, **layout)

    def list_files(self) -> list[File]:
        return expand((self.read_as({}).as_source() or {})["path"], self.options)


@dataclass(frozen=True)
class Readable:
    """A data set, the settings with which its files can be read, and files beside them that are another table.

    `nulls` are the texts that mean null, `sample` rows of the data set, and `doubt` is what may be wrong about its
    header. `refused` is what reading says if no line is left out; None if all lines can be read.
    """

    data: Dataset
    layout: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[OtherTable, ...] = ()
    nulls: tuple[str, ...] = ()
    sample: pa.Table | None = None
    doubt: str = ""
    refused: DataError | None = None

    @property
    def columns(self) -> list[str]:
        """The columns of the rows; of structs that were elements of lists their fields."""
        plan = self.data.plan
        root = plan.options.get(EXPLODED, {}).get("column")
        fields = plan.schema[root].dtype if root else pa.null()
        if not pa.types.is_struct(fields):
            return list(plan.schema)
        paths = [f"{root}.{field.name}" for field in fields]
        return list(dict.fromkeys([*(name for name in plan.schema if name != root), *paths]))


def readable(source: object, storage_options: str | dict[str, Any] | None = None) -> Readable:
    """Find out what can be read of a source, and how.

    That is the layout of its text, texts that mean null, columns that only some files have, and the lines that cannot
    be read. Files that are another table are set apart before any type is judged. A `Dataset` is read as it says.
    """
    if isinstance(source, Dataset):
        return _add_sample(Readable(source))
    files = NamedFiles(source, storage_options)
    data = files.read_as({})
    if data.as_source() is None:
        return _add_sample(Readable(data))
    files, layout, others = _select_files_of_main_layout(files)
    if len(files.list_files()) > 1:
        data = _try_layouts(files, layout.settings, _plan_source).data
        main_files, other_tables = _select_main_table(data, files)
        if other_tables:
            others = (*others, *other_tables)
            files = main_files
            layout = _guess_layout(files.list_files(), files.options)
    seen = _try_layouts(files, layout.settings, _read_as_types_fit)
    assert seen.sample is not None
    keyed = tuple(with_keys(other, seen.sample, storage_options) for other in others)
    return replace(seen, others=keyed, doubt=layout.doubt)


def _try_layouts(
    files: NamedFiles, layout: JsonObject, read_as: Callable[[NamedFiles, JsonObject], Readable]
) -> Readable:
    """Read files with the layout; if that fails, with quotes as ordinary characters; if that fails, without bad
    lines."""
    try:
        return read_as(files, layout)
    except DataError as error:
        refused = error
    format_name = _format_of(files, layout)
    if format_name not in ("csv", "tsv", "jsonl"):
        raise refused
    if format_name != "jsonl" and not {"quote", "escape"} & {*layout}:
        with suppress(DataError):
            unquoted = read_as(files, {**layout, "quote": ""})
            if unquoted.sample is None or not _are_quoted(unquoted.sample):
                return unquoted
    try:
        without = read_as(files, {**layout, "bad_lines": "skip"})
    except DataError:  # no line is left, which says less than what is wrong with the first one
        raise refused from None
    if not bad_lines_of(without.data.plan):
        raise refused
    return replace(without, refused=refused)


def _format_of(files: NamedFiles, layout: JsonObject) -> str | None:
    return layout.get("format") or format_by_suffix(files.list_files()[0].path)


def _plan_source(files: NamedFiles, layout: JsonObject) -> Readable:
    data = files.read_as(layout)
    if ABSENT in data.plan.options:
        layout = {**layout, "missing": "null"}
        data = files.read_as(layout)
    return Readable(data, layout)


def _add_sample(seen: Readable) -> Readable:
    """Add a sample of the rows. In text, what means null is looked for before types are inferred."""
    data, nulls = _with_nulls(seen.data)
    seen = replace(seen, data=data, nulls=tuple(nulls))
    return replace(seen, sample=sample_rows(data, list(dict.fromkeys([*data.schema, *seen.columns]))))


def _with_elements(files: NamedFiles, seen: Readable) -> Readable:
    """Take the elements of lists as rows, if exactly one column has lists of structs, and any list has elements."""
    lists = [c.name for c in seen.data.schema.columns if is_list(c.dtype) and pa.types.is_struct(c.dtype.value_type)]
    if len(lists) != 1:
        return seen
    try:
        return _plan_source(files, {**seen.layout, "explode": lists[0]})
    except NoRowsError:
        return seen


def _with_nulls(data: Dataset) -> tuple[Dataset, list[str]]:
    if data.plan.format not in ("csv", "tsv"):
        return data, []
    texts = Schema(replace(column, dtype=pa.string()) for column in data.plan.schema.columns)
    nulls = null_texts(data, sample_rows(data.in_types(replace(data.plan, schema=texts))))
    return (data.with_null_values([*data.null_values, *nulls]) if nulls else data), nulls


def _read_as_types_fit(files: NamedFiles, layout: JsonObject) -> Readable:
    """Read files with a sample, with types that fit all of it.

    Columns of text are strings if values further down do not fit the type of the first, and keys of JSON lines are if
    their values are of several kinds.
    """
    types: dict[str, str] = {}
    while True:
        settings = {**layout, "schema": types} if types else layout
        try:
            return _add_sample(_with_elements(files, _plan_source(files, settings)))
        except DataError as error:
            misfits = [name for name in _find_misfits(files, settings, error) if name not in types]
            if not misfits:
                raise
            types |= dict.fromkeys(misfits, "string")


def _find_misfits(files: NamedFiles, layout: JsonObject, error: DataError) -> list[str]:
    """Find the columns whose values do not fit the type of the first ones, if they can be read as texts."""
    format_name = _format_of(files, layout)
    if format_name == "jsonl":
        name = _find_advised_key(error)
        if not name:
            return []
        # all keys at once: each further error would cost a pass over all files
        return [name, *_find_mixed_keys(files.list_files()[0], files.options)]
    if format_name not in ("csv", "tsv"):
        return []
    data, _ = _with_nulls(_plan_source(files, layout).data)
    misfits = [name for name in data.schema if not _fits(data, name)]
    # If every column misfits, the layout is wrong, not the types.
    return [] if len(misfits) == len(data.schema) > 1 else misfits


def _find_advised_key(error: DataError) -> str:
    """Find the key of JSON lines that an error advises to read as text; "" for none."""
    place = COLUMN_OF_ERROR.search(error.where)
    parts = place[1].split("/") if place else []
    names = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]  # a key may have a slash itself
    return next((name for name in names if schema_advice(name, pa.string()) in error.do), "")


def _find_mixed_keys(file: File, options: StorageOptions) -> list[str]:
    """Find the keys with values of several kinds in the first JSON lines of a file."""
    kinds: dict[str, set[str]] = {}
    for line in read_all(file, options, length=HEAD_BYTES).splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # the last one may be cut off
            continue
        for key, value in row.items() if isinstance(row, dict) else ():
            if value is not None:
                kinds.setdefault(key, set()).add(_name_kind(value))
    return [key for key, several in kinds.items() if len(several) > 1]


def _name_kind(value: object) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


def _fits(data: Dataset, name: str) -> bool:
    try:
        sample_rows(data, [name])
    except DataError:
        return False
    return True


# tables


def _select_files_of_main_layout(named: NamedFiles) -> tuple[NamedFiles, TextLayout, tuple[OtherTable, ...]]:
    """Select the files that can be read together; return what names them, the layout of the first, and the
    others as other tables.

    Others are text of another delimiter, or without a header and of another number of columns. The largest group of
    alike files is selected; if files of some groups have a label column, the largest of those groups.
    """
    files = named.list_files()
    options = named.options
    are_texts = {format_by_suffix(file.path) for file in files} <= {"csv", "tsv", None}
    if not are_texts or not 1 < len(files) <= MOST_LAYOUTS:
        return named, _guess_layout(files, options), ()
    layouts = {file: layout for file in files if (layout := _guess_layout([file], options)).names}
    groups: dict[tuple[Any, ...], list[File]] = {}
    for file, layout in layouts.items():
        groups.setdefault(layout.grouping_key, []).append(file)
    if not groups:
        return named, _guess_layout(files, options), ()

    def worth(group: Sequence[File]) -> tuple[bool, int]:
        return _rank_table((name for file in group for name in layouts[file].names), group)

    main = max(groups.values(), key=worth)
    layout = layouts[main[0]]
    for other in main:  # what one file has may be missing at the beginning of the first
        settings = layouts[other].settings
        quoting: JsonObject = {key: settings[key] for key in ("quote", "escape") if key in settings}
        layout = replace(layout, settings={**quoting, **layout.settings})
    # Without numbers in it, a header may look like values: files that begin with the same line are alike.
    alike = {*main, *(file for file in layouts if layouts[file].line == layout.line)}
    alike |= {file for file in files if file not in layouts and (not file.size or format_by_suffix(file.path))}
    apart = {file: layouts.get(file, TextLayout()) for file in files if file not in alike}
    if not apart:
        return named, layout, ()
    others = tuple(
        OtherTable((_spell_path(file.path, named.source),), own.names, layout=own.settings)
        for file, own in apart.items()
    )
    return _name_files([file for file in files if file in alike], named), layout, others


def _rank_table(columns: Iterable[str], files: Iterable[File]) -> tuple[bool, int]:
    """Rank files as the main table of a source: those with a label column first, then the larger ones."""
    return any(map(is_label_name, columns)), sum(file.size for file in files)


def _select_main_table(data: Dataset, named: NamedFiles) -> tuple[NamedFiles, tuple[OtherTable, ...]]:
    """Select the files of the main table of a data set; return what names them, and the other tables in it.

    Files of the same columns are a table. The main one is the largest; if some have a label column, the largest of
    those. Another table is set apart if it shares at most half of the columns of the smaller of the two with the main
    one, or if it has nothing but keys of the main one.
    """
    absent = data.plan.options.get(ABSENT, {})
    tables: dict[tuple[str, ...], list[File]] = {}
    for number, file in enumerate(data.plan.files):
        gone = {*absent.get(str(number), ())}
        tables.setdefault(tuple(name for name in data.schema if name not in gone), []).append(file)

    def is_apart(columns: tuple[str, ...]) -> bool:
        share_few_columns = 2 * len({*columns} & {*main}) <= min(len(columns), len(main))
        return columns != main and (share_few_columns or are_keys(columns, main))

    main = max(tables, key=lambda columns: _rank_table(columns, tables[columns]))
    apart = [columns for columns in tables if is_apart(columns)]
    if not apart:
        return named, ()
    shared = {name for columns in tables if columns not in apart for name in columns}
    left_out = {file.path for columns in apart for file in tables[columns]}
    others = tuple(
        OtherTable(
            tuple(_spell_path(file.path, named.source) for file in tables[columns]),
            columns,
            tuple(name for name in columns if name in shared),
            _guess_layout(tables[columns], named.options).settings,
        )
        for columns in apart
    )
    return _name_files([file for file in data.plan.files if file.path not in left_out], named), others


def _spell_path(path: str, source: Any) -> str:
    """Return the path of a file as the source writes paths: from the current folder, or from the root."""
    named = [source] if isinstance(source, str | os.PathLike) else source
    whole = is_remote(path) or any(Path(name).is_absolute() for name in named)
    return path if whole else os.path.relpath(path)


def _name_files(files: Sequence[File], named: NamedFiles) -> NamedFiles:
    """Name these files and no other: by the one, their folder, a pattern, or a list."""
    names = [_spell_path(file.path, named.source) for file in files]
    if len(names) == 1:
        return replace(named, source=names[0])
    start = os.path.commonprefix(names)  # noqa: RUF071 - letters that begin all names
    end = os.path.commonprefix([name[::-1] for name in names])[::-1]  # noqa: RUF071
    for shorter in (start.rpartition("/")[0], f"{start}*{end}"):
        try:
            if shorter and [file.path for file in expand(shorter, named.options)] == [file.path for file in files]:
                return replace(named, source=shorter)
        except NoInputError:  # a name has a character that means something in patterns
            continue
    return replace(named, source=names)


# text


def _guess_layout(files: Sequence[File], options: StorageOptions) -> TextLayout:
    """Guess the layout of the first file of text.

    Format, delimiter and the lines before the header are those of the first lines (`lines`). Encoding, escapes, quotes,
    column names of a file without a header, and the decimal comma also depend on samples further down (`every`).
    """
    formats = {format_by_suffix(file.path) for file in files}
    if not formats <= {"csv", "tsv"} and formats != {None}:
        return TextLayout()
    start = read_all(files[0], options, length=HEAD_BYTES)
    settings: dict[str, Any] = {}
    further = _read_further_lines(files[0], start, options)
    encoding = _guess_encoding(start if not further else start[: start.rfind(b"\n") + 1] + further)
    text = start.decode(encoding or "utf-8", errors="replace").removeprefix("\ufeff")
    every = text.splitlines()[: -1 if len(start) == HEAD_BYTES else None]
    lines = every[:MOST_HEAD_LINES]
    every += further.decode(encoding or "utf-8", errors="replace").splitlines()
    usual = "\t" if formats == {"tsv"} else ","
    named = re.fullmatch('"?sep=(.)"?', lines[0]) if lines else None  # Excel's own line
    delimiter = usual if usual == "\t" else find_delimiter(lines)
    delimiter = named[1] if named else delimiter
    if formats == {None}:
        if lines and _is_json(lines[0]):
            return TextLayout({"format": "jsonl"})
        if "\0" in text or not count_regular(lines, delimiter):
            return TextLayout()
        settings["format"] = "tsv" if delimiter == "\t" else "csv"
        usual = "\t" if delimiter == "\t" else ","
    if encoding:
        settings["encoding"] = encoding
    if delimiter != usual:
        settings["delimiter"] = delimiter
    if len(delimiter) > 1:  # Python's reader takes one character only
        lines = [line.replace(delimiter, SEPARATOR_STAND_IN) for line in lines]
        every = [line.replace(delimiter, SEPARATOR_STAND_IN) for line in every]
        delimiter = SEPARATOR_STAND_IN
    if has_escapes(every, delimiter):
        settings["escape"] = "\\"
        if has_escaped_null(every, delimiter):
            settings["null_values"] = ["\\N"]
    elif has_single_quotes(lines, delimiter):
        settings["quote"] = "'"
    elif quotes_are_letters(every, delimiter):
        settings["quote"] = ""
    before = 1 if named else _count_lines_before_header(lines, delimiter, settings)
    if before:
        settings["skip_rows"] = before
    every = every[before:]
    rows = _split_lines(every, delimiter, settings)
    columns, doubt = names_without_header(rows)
    first = tuple(rows[0]) if rows else ()
    if has_one_name_too_few(rows):
        columns = [ROW_NAME_COLUMN, *first]
        doubt = ""
        settings["skip_rows"] = before + 1
    if columns:
        settings |= {"header": False, "columns": columns}
    fields = [value for line in every[1:] for value in line.split(delimiter)] if delimiter != "," else []
    if any(DECIMAL_COMMA.fullmatch(value) for value in fields) and not any(
        DECIMAL_POINT.fullmatch(value) for value in fields
    ):
        settings["decimal"] = ","
    return TextLayout(settings, doubt, tuple(columns) or first, every[0] if every else "")


def _split_lines(lines: Sequence[str], delimiter: str, settings: Mapping[str, Any]) -> list[list[str]]:
    """Split lines of text into their values, without empty lines."""
    quote = settings.get("quote", '"') or None
    read = csv.reader(lines, delimiter=delimiter, quotechar=quote, escapechar=settings.get("escape"))
    rows: list[list[str]] = []
    with suppress(csv.Error):  # a quote that is never closed makes one value of many lines
        rows += filter(None, read)
    return rows


def _read_further_lines(file: File, start: bytes, options: StorageOptions) -> bytes:
    """Read whole lines at `SAMPLED_PLACES` places behind the start of a file of text.

    Empty for a file that has no more bytes, or whose bytes are not those of the text, such as a compressed one.
    """
    if len(start) < HEAD_BYTES or b"\0" in start or read_range(file, 0, HEAD_BYTES, options) != start:
        return b""
    step = max((file.size - HEAD_BYTES) // SAMPLED_PLACES, 1)
    parts = [read_range(file, at, at + min(step, HEAD_BYTES), options) for at in range(HEAD_BYTES, file.size, step)]
    return b"".join(part[part.find(b"\n") + 1 : part.rfind(b"\n") + 1] for part in parts)


def _are_quoted(sample: pa.Table) -> bool:
    """Tell whether half of the texts that begin with a quote, or more, are quoted as a whole."""
    texts = [column for column in sample.columns if pa.types.is_string(column.type)]
    begun = [column.filter(pc.starts_with(column, '"')) for column in texts]
    whole = sum(pc.sum(pc.match_substring_regex(some, f"^{QUOTED_VALUE.pattern}$")).as_py() or 0 for some in begun)
    return bool(whole and 2 * whole >= sum(map(len, begun)))


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _guess_encoding(start: bytes) -> str | None:
    """Guess the encoding of a file by its first bytes; None for UTF-8."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # the last character may be cut off
    except UnicodeDecodeError:
        return "windows-1252" if any(0x80 <= byte < 0xA0 for byte in start) else "latin-1"
    return None


def _count_lines_before_header(lines: Sequence[str], delimiter: str, settings: Mapping[str, Any]) -> int:
    """Count the lines before the header.

    These are lines without any delimiter before lines that all have some; lines of another number of values before a
    header and lines of one number; or lines of empty values before names.
    """
    rows = [row[0] if (row := _split_lines([line], delimiter, settings)) else [] for line in lines]
    if before := _count_lines_of_another_width(rows):
        return before
    before = len(list(takewhile(lambda line: delimiter not in line, lines)))
    if 0 < before < len(lines) and all(delimiter in line for line in lines[before:] if line):
        return before
    return _count_nearly_empty_lines(rows)


def _count_lines_of_another_width(rows: Sequence[Sequence[str]]) -> int:
    """Count the lines that come before lines of one number of values, and have another."""
    values = len(rows[-1]) if rows else 0
    before = len(list(takewhile(lambda row: len(row) != values, rows)))
    behind = [len(row) for row in rows[before:] if row]
    if not 0 < before <= MOST_BEFORE or len(behind) < max(before, FEWEST_BEHIND) or {*behind} != {values}:
        return 0
    if before == 1 and len(rows[0]) + 1 == values:  # R writes one name too few above the values
        columns, doubt = names_without_header(rows[before:])
        return 0 if columns or doubt else before
    return before


def _count_nearly_empty_lines(rows: Sequence[Sequence[str]]) -> int:
    """Count the lines with half of their values or fewer before a line of names: a title, as spreadsheets write it."""
    before = len(list(takewhile(lambda row: 2 * sum(map(bool, row)) <= len(row), rows)))
    if not 0 < before <= MOST_BEFORE or len(rows) - before < max(before, FEWEST_BEHIND):
        return 0
    names = rows[before]
    are_names = all(names) and len({*names}) == len(names) and not any(map(is_value, names))
    return before if are_names and not any(is_value(text) for row in rows[:before] for text in row) else 0


def sample_rows(data: Dataset, columns: Sequence[str] | None = None) -> pa.Table:
    """Take all rows if they are few, else ranges of rows that are spread over the blocks and within each.

    At most `MOST_BLOCKS` blocks are sampled. At least three of them, and as many as `WHOLE_BYTES` allows, are read
    whole; of the others only the first rows.
    """
    plan = data.plan
    names = list(plan.schema if columns is None else columns)
    if plan.rows <= SAMPLE_ROWS:
        return libraries.decode_dictionaries(read(data.handle, Partition(0, plan.blocks), names))
    blocks = _take_evenly(plan.blocks, MOST_BLOCKS)
    whole = {b.number for b in _take_evenly(blocks, max(3, WHOLE_BYTES // max(b.nbytes for b in blocks)))}
    schema = pa.schema([(name, plan.schema[name].dtype) for name in names])
    rows = sum(b.rows for b in blocks)
    tables: list[pa.Table] = []
    for block in blocks:
        most = max(1, SAMPLE_ROWS * block.rows // rows)
        if block.number in whole:
            part = read(data.handle, Partition(0, (block,)), names)
            tables += map(
                libraries.decode_dictionaries, _take_ranges(part, most, max(1, MOST_RANGES * block.rows // rows))
            )
        elif plan.files:
            heads = beginning_of(plan, block, most, schema) or []
            tables += [libraries.decode_dictionaries(head.slice(0, most)) for head in heads]
    return pa.concat_tables(tables).combine_chunks()


def _take_evenly(blocks: Sequence[Block], most: int) -> list[Block]:
    """Take at most `most` of the blocks, from the first to the last in equal steps."""
    return [blocks[i] for i in np.unique(np.linspace(0, len(blocks) - 1, min(most, len(blocks))).astype(int))]


def _take_ranges(table: pa.Table, rows: int, number: int) -> list[pa.Table]:
    """Take about `rows` rows of a table, in `number` ranges that are spread over it; all if it has no more."""
    if table.num_rows <= rows:
        return [table]
    length = max(1, rows // number)
    starts = np.linspace(0, table.num_rows - length, number).astype(int)
    return [table.slice(start, length) for start in starts]
