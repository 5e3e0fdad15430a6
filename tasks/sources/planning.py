"""Stage 1, ingest: from a source to its plan: files, schema, blocks, partitions and row numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.core.dtypes import dtype_name, is_nested, kind_of, parse_dtype, plain_type
from tasks.core.plan import (
    FIELDS,
    LIMITS,
    MADE,
    NO_SIZING,
    OPTION,
    SELF,
    Block,
    File,
    Limits,
    Plan,
    ReadOptions,
    Sizing,
    Unit,
    cut_blocks,
    cut_partitions,
)
from tasks.core.schema import Column, Schema, check_storable
from tasks.core.settings import Source
from tasks.engines.expression.interpreter import true_mask
from tasks.engines.expression.syntax import Expression, parse
from tasks.engines.expression.typing import dtype_of
from tasks.errors import DataError, JobError
from tasks.sources.element_counts import with_element_rows
from tasks.sources.exploded import as_elements, with_elements
from tasks.sources.formats import FORMATS, TEXTS, check_settings, format_of, read_options, with_recognised
from tasks.sources.formats.bounds import check_columns, check_depth
from tasks.sources.formats.survey import FILTERED, NUMBER_TEXTS, TYPES, Inspected, line_types
from tasks.sources.formats.text_ranges import BAD
from tasks.sources.reading_rules import Fit, reading_of, with_layout
from tasks.sources.row_group_filter import LEFT_OUT, leave_out_row_groups
from tasks.sources.table_files import CONSTANTS, SourceFiles, TableFiles, list_source_files
from tasks.sources.uniting import FILTER_NOTE, RECOGNISED, United, unite_files
from tasks.storage import hive
from tasks.storage.files import is_remote, local_path

OUTSIDE = "/"  # instead of a value in the name of a folder: no name has it
PARTITION = 10**9  # bytes, decoded
MOST_PARTITIONS = 1000  # of those that are fastest: more would cost Dask's scheduler longer than they save


class NoRowsError(DataError):
    """The files of the source have no rows."""


class NoValidationRowsError(NoRowsError):
    """No file is at `source.valid`, or the files have no rows."""


@dataclass(frozen=True)
class ListedSource:
    """A source with its files and the settings by which they are read, before they are inspected.

    source: with the layout of the fit and the settings that the first file shows; its `schema_` has types alone.
    schema: `source.schema` with its expressions.
    expressions: the entries of `schema` that are not types.
    optional: the columns of `schema` that files may lack: only the fit names them, or names of folders hold them.
    options: what the readers of the format take.
    recognised: a sentence for each setting that the first file shows.
    table: what the metadata of a lake table says; None for a source of paths.
    """

    source: Source
    schema: Mapping[str, str] | None
    files: Sequence[File]
    format: str
    expressions: Mapping[str, Expression]
    optional: frozenset[str]
    options: ReadOptions
    recognised: Sequence[str]
    table: TableFiles | None = None

    @property
    def types(self) -> Mapping[str, str]:
        """The types that `source.schema` gives to columns."""
        return self.source.schema_ or {}

    @property
    def described(self) -> list[str]:
        """The columns that `source.schema` has a type or an expression for."""
        return [*self.types, *self.expressions]


@dataclass(frozen=True)
class InspectedFiles:
    """What the inspection of all files of a source gives.

    full: the files with rows, at least one.
    closed: paths of files that were not opened, since the filter leaves out all of their rows.
    skipped: paths of all files without rows; `closed` are among them.
    bad_lines: by path of a file, how many lines cannot be read, the number of the first, why, and the file.
    """

    full: Sequence[Inspected]
    closed: Sequence[str]
    skipped: tuple[str, ...]
    bad_lines: Mapping[str, tuple[int, int, str, list[Any]]]

    @property
    def paths(self) -> list[str]:
        """The paths of the files that have a say in the columns of the source."""
        return [*(item.file.path for item in self.full), *self.closed]


@dataclass(frozen=True)
class ReadTypes:
    """The types in which columns of files are read, where they are not those of the files.

    declared: by column of the files, the type of `source.schema`; columns that files may lack only if one has them.
    of_fields: the same for fields of structs.
    texts: columns of text that are read in the type of the fit, or as texts, since an expression takes nothing else.
    number_texts: a sentence for each column whose numbers stay text.
    fields: the fields of structs that are columns of the source.
    """

    declared: Mapping[str, str]
    of_fields: Mapping[str, str]
    texts: Mapping[str, Any]
    number_texts: Mapping[str, str]
    fields: Sequence[str]


@dataclass(frozen=True)
class SourceColumns:
    """The columns of a source, from its files, the names of folders and the expressions of `source.schema`.

    uniting: the columns of the files, with what these disagree about.
    computed: by column, its expression and the column as it is read.
    """

    schema: Schema
    uniting: United
    computed: Mapping[str, tuple[Expression, Column]]


def make_plan(
    source: Source,
    *,
    parallel_map: Callable[..., Any] = map,
    sizing: Sizing = NO_SIZING,
    limits: Limits = LIMITS,
    null_types: Mapping[str, pa.DataType] | None = None,
    fit: Fit | None = None,
    notes: str | None = None,
    listed_files: SourceFiles | None = None,
) -> Plan:
    """Inspect every file of the source once; the plan says which rows are where.

    `parallel_map(function, items)` gives the results in order; functions and items can be pickled. `notes` is a folder
    in which processes note what they read (`tasks.storage.files_being_read`). `listed_files` are those of the source,
    where they are listed already. `null_types` are those of columns that
    hold nothing but nulls (string if not named).
    Files without rows are skipped and named in `plan.skipped`, and so are those that the filter leaves out by the names
    of their folders: they stay closed. Text is laid out as that of `fit` was, where the format is the same.
    """
    listed = _list_source(source, listed_files or list_source_files(source), fit, notes, parallel_map)
    source = listed.source
    files = _inspect_files(listed, limits, parallel_map)
    folders = _folders(files.full, source)
    for item in files.full:
        check_columns(len(item.schema), item.file.path)
        check_depth(item.schema, item.file.path)
        check_storable(item.schema, item.file.path)
    written = {n: t for n, t in listed.types.items() if n not in folders}
    # From here on the type of the column that `source.explode` names is that of its elements.
    read_as, known = _take_elements(listed, files.full, written, fit) if source.explode else (files.full, written)
    types = _find_column_types(listed, read_as, known, folders, fit)
    columns = _unite_columns(listed, replace(files, full=read_as), types, folders, null_types or {})
    options = _make_options(listed, read_as, types, columns, folders, known)
    if options.get("bad_lines"):  # a line is bad by the types of what stands in it: by those of lists, not of elements
        stored = {field.name: field.type for item in files.full for field in item.schema}
        options |= {BAD: files.bad_lines, TYPES: line_types(stored, {n: written[n] for n in types.declared})}
    # Columns that names of folders or expressions make are not those of the files.
    in_files = Schema(one for one in columns.schema.columns if one.name not in {*folders, *columns.computed})
    read_as, left_out = leave_out_row_groups(read_as, source.filter, in_files)
    if left_out:
        options |= {LEFT_OUT: left_out, FILTER_NOTE: [_left_out_text(left_out, read_as)]}
    units = _units(read_as)
    plan = Plan(
        files=tuple(item.file for item in read_as),
        format=listed.format,
        schema=columns.schema,
        blocks=() if source.explode else _blocks(units, FORMATS[listed.format].ranged, limits),
        partitions=(),
        skipped=files.skipped,
        options=options,
        reading=reading_of(
            source.model_copy(update={"schema_": listed.schema}),
            listed.format,
            listed.files,
            {n: dtype_name(columns.schema[n].dtype) for n in types.number_texts},
        ),
    )
    if source.explode:
        plan = with_element_rows(plan, source.explode, units, limits, parallel_map)
        _check_elements(plan, source.explode)
    size = partition_size(source, plan.nbytes, sizing)
    return replace(plan, partitions=cut_partitions(plan.blocks, size, even=_by_limit(source, sizing.limit)))


def _left_out_text(left_out: Mapping[str, Sequence[Sequence[int]]], files: Sequence[Inspected]) -> str:
    groups = [rows for of_file in left_out.values() for _, rows in of_file]
    count = len(groups) + sum(len(item.units) for item in files)
    return (
        f"source.filter leaves out {len(groups):,} of {count:,} row groups by the statistics of their columns: "
        f"{sum(groups):,} rows are not read"
    )


def _list_source(
    source: Source, listed: SourceFiles, fit: Fit | None, notes: str | None, parallel_map: Callable[..., Any]
) -> ListedSource:
    """Settle the format of the files of a source, and the settings by which they are read.

    Of the files only the beginning of the first with bytes is read. A JobError for settings that the format does not
    take, and for expressions of `source.schema` that use other columns.
    """
    files = listed.files
    source = with_layout(source, fit, files) if fit else source
    schema = source.schema_
    expressions = expressions_of(schema or {})
    types = {n: t for n, t in (schema or {}).items() if n not in expressions}
    source = source.model_copy(update={"schema_": types})
    options = read_options(source)
    if notes:
        options |= {OPTION: notes}
    in_folders = _parse_folder_values([file.path for file in files], source).keys()
    optional = {*(fit.optional if fit else ()), *(in_folders & {*types, *expressions})}
    if optional:
        options["optional"] = sorted(optional)
    format = "parquet" if listed.table else format_of(files, source.format)
    check_settings(source, format, inherited=fit is not None and "null_values" not in fit.own)
    source, recognised = with_recognised(source, format, files, parallel_map)
    options |= read_options(source)  # again, with the settings that the first file shows
    options["header"] = "header" in FORMATS[format].layout and bool(options["header"])
    if listed.table:
        options |= listed.table.options()
    return ListedSource(
        source, schema, files, format, expressions, frozenset(optional), options, recognised, listed.table
    )


def _inspect_files(listed: ListedSource, limits: Limits, parallel_map: Callable[..., Any]) -> InspectedFiles:
    """Inspect the files that have bytes, but for those that stay closed; a NoRowsError if none has a row."""
    source = listed.source
    format = listed.format
    with_bytes = [file for file in listed.files if file.size]

    compared = parse(source.filter).columns if source.filter and not source.explode else ()
    options = {**listed.options, FILTERED: sorted(compared)} if compared else listed.options

    def survey(files: Sequence[File]) -> list[Inspected]:
        return FORMATS[format].survey(files, options, limits, parallel_map)

    inspected, closed = _survey_matching_files(with_bytes, source, survey)
    full = [item for item in inspected if item.rows]
    bad_lines: dict[str, tuple[int, int, str, list[Any]]] = {
        item.file.path: (item.bad.count, item.bad.line, item.bad.why, item.file.to_json())
        for item in inspected
        if item.bad
    }
    if not full:
        raise NoRowsError(
            "the input has no rows at all",
            where=_some(listed.files[0].path, len(listed.files)),
            why=_no_line_is_read(bad_lines),
            do=_rows_hint(source, format, with_bytes),
        )
    without_bytes = [file.path for file in listed.files if file.size == 0]
    without_rows = [item.file.path for item in inspected if not item.rows]
    return InspectedFiles(full, closed, (*without_bytes, *closed, *without_rows), bad_lines)


def _take_elements(
    listed: ListedSource, files: Sequence[Inspected], written: Mapping[str, str], fit: Fit | None
) -> tuple[list[Inspected], dict[str, str]]:
    """(the files, the types of `source.schema`), both with the type of the elements in place of that of the lists of
    `source.explode`; a JobError if the column has no lists."""
    column = listed.source.explode
    assert column is not None
    _check_explode(column, listed.expressions)
    inherited = fit is not None and fit.explodes
    known = {**written}
    if column in known:
        elements = as_elements(parse_dtype(known[column]), column, files[0].file.path, inherited)
        known[column] = dtype_name(elements)
    return with_elements(files, column, written.get(column), inherited), known


def _find_column_types(
    listed: ListedSource,
    files: Sequence[Inspected],
    known: Mapping[str, str],
    folders: Collection[str],
    fit: Fit | None,
) -> ReadTypes:
    """Find the types in which columns are read; `known` are those of `source.schema` that are not in `folders`."""
    there = {name for item in files for name in item.schema.names}
    fields = _find_fields_of_structs([name for name in listed.described if name not in there], files)
    of_fields = {n: known[n] for n in fields if n in known}
    of_columns = {n: t for n, t in known.items() if n not in of_fields}
    declared = {n: t for n, t in of_columns.items() if n in there or n not in listed.optional}
    number_texts = {n: text for n, text in files[0].number_texts.items() if n not in of_columns and n not in folders}
    texts: dict[str, Any] = {}
    if listed.format in TEXTS:
        of_fit = fit.number_texts.items() if fit else ()
        texts = {n: t for n, t in of_fit if n in there and n not in of_columns and n not in listed.expressions}
        number_texts |= _explain_numbers_as_text(texts, files)
        texts |= {n: pa.string() for n, e in listed.expressions.items() if n in there and _needs_texts(e, n, files)}
    return ReadTypes(declared, of_fields, texts, number_texts, fields)


def _find_fields_of_structs(names: Sequence[str], files: Sequence[Inspected]) -> list[str]:
    """Find those of the names that are fields of structs in some file: `events.aid`."""
    if not any("." in name for name in names):  # schemas of many files are not worth making for nothing
        return []
    schemas = [Schema.from_arrow(item.schema) for item in files]
    return [name for name in names if any(schema.root(name) for schema in schemas)]


def _explain_numbers_as_text(texts: Collection[str], files: Sequence[Inspected]) -> dict[str, str]:
    """A sentence for each of the columns that is a number here: the fit has read its numbers as text."""
    sentences = {}
    for name in texts:
        here = next(item.schema.field(name).type for item in files if name in item.schema.names)
        if kind_of(here) == "number":
            sentences[name] = f"column {name!r} is {dtype_name(here)} here, and text in the fit: it is read as text"
    return sentences


def _unite_columns(
    listed: ListedSource,
    files: InspectedFiles,
    types: ReadTypes,
    folders: Collection[str],
    null_types: Mapping[str, pa.DataType],
) -> SourceColumns:
    """Unite the columns of all files; those of folders' names follow them, then fields of structs."""
    source = listed.source
    table = listed.table
    declared = {**types.texts, **(table.declared([item.schema for item in files.full]) if table else {})}
    missing = "null" if table else source.missing
    uniting = unite_files(
        files.full, {**declared, **types.declared}, null_types, missing, folders, table.schema if table else None
    )
    named = _folder_columns(_parse_folder_values(files.paths, source), source)
    outside = _find_files_outside(files.paths, source, folders)
    uniting = uniting.with_files_outside_folders(outside, [item.file.path for item in files.full], source.missing)
    schema = Schema([*uniting.schema.columns, *(named[n] for n in folders)])
    fields = [_of_type(schema[n], types.of_fields.get(n)) for n in types.fields]
    schema = Schema([*schema.columns, *fields])
    computed = {n: (e, schema[n]) for n, e in listed.expressions.items() if n in schema or n not in listed.optional}
    schema = Schema(_derive_column(*computed[c.name]) if c.name in computed else c for c in schema.columns)
    return SourceColumns(schema, uniting, computed)


def _find_files_outside(paths: Sequence[str], source: Source, folders: Collection[str]) -> dict[str, list[str]]:
    """Find, by column of `folders`, the files that are in no folder that names it."""
    return {
        name: [path for path, value in zip(paths, values, strict=True) if value == OUTSIDE]
        for name, values in _parse_folder_values(paths, source, OUTSIDE).items()
        if name in folders
    }


def _make_options(
    listed: ListedSource,
    files: Sequence[Inspected],
    types: ReadTypes,
    columns: SourceColumns,
    folders: Mapping[str, Sequence[str | None]],
    known: Collection[str],
) -> dict[str, Any]:
    """Make the plan's options: those of the readers, and what there is to say about columns."""
    on_host = {name for item in files for name in item.on_host} | columns.uniting.on_host
    on_host |= {*columns.computed, *types.fields}
    on_host |= {*(listed.table.declared([item.schema for item in files]) if listed.table else ())}
    parsed = {field.name for item in files for field in item.schema if _is_parsed(field, known, columns.schema)}
    of_columns = {
        "folders": folders,
        "on_host": [*sorted(on_host), *sorted(parsed - on_host)],
        **columns.uniting.options(),
        FIELDS: types.fields,
        MADE: {n: [e.text, dtype_name(c.dtype)] for n, (e, c) in columns.computed.items()},
        RECOGNISED: listed.recognised,
        NUMBER_TEXTS: types.number_texts,
        CONSTANTS: _place_constants(listed, files),
    }
    names = _list_column_names(files) if FORMATS[listed.format].ranged else {}
    return {**listed.options, **names, **{name: value for name, value in of_columns.items() if value}}


def _place_constants(listed: ListedSource, files: Sequence[Inspected]) -> dict[str, dict[str, str]]:
    """By column of a table, by number of a file without it, the value that the metadata has for all of its rows."""
    if listed.table is None:
        return {}
    places = {file.path: number for number, file in enumerate(listed.files)}
    constants = {}
    for name, values in listed.table.constants.items():
        of_files = {
            str(number): text
            for number, item in enumerate(files)
            if name not in item.schema.names and (text := values[places[item.file.path]]) is not None
        }
        constants[name] = of_files
    return {name: of_files for name, of_files in constants.items() if of_files}


def _check_explode(name: str, expressions: Collection[str]) -> None:
    """A JobError for a column of lists that an expression would change before its elements become rows."""
    if name in expressions:
        what = f"the elements of {name!r} become rows, and source.schema has an expression of it"
        do = "give it a type there, or none; a Lambda computes with the elements"
        raise JobError(what, where=f"source.schema.{name}", do=do)


def _check_elements(plan: Plan, name: str) -> None:
    """A NoRowsError where all lists are empty or null."""
    if not plan.blocks:
        raise NoRowsError(
            f"no list in column {name!r} has an element",
            where=_some(plan.files[0].path, len(plan.files)),
            why="source.explode makes a row of each element, and none of an empty or null list",
            do="name another column, or leave source.explode out",
        )


def _no_line_is_read(bad_lines: Mapping[str, tuple[int, int, str, list[Any]]]) -> str:
    """How many lines cannot be read, and why the first cannot; "" where there are none."""
    if not bad_lines:
        return ""
    _, line, why, _ = next(iter(bad_lines.values()))
    total = sum(bad[0] for bad in bad_lines.values())
    return f"none of {total:,} lines can be read; the first is line {line:,}: {why}"


def _rows_hint(source: Source, name: str, files: Sequence[File]) -> str:
    """What may make rows of files that have none."""
    hints = [
        "set source.header: false, if the first line has values" if source.header and not source.columns else "",
        "lower source.skip_rows" if source.skip_rows else "",
        "leave out source.comment" if source.comment else "",
        "set source.bad_lines: error, which says what is wrong with a line" if source.bad_lines != "error" else "",
    ]
    known = [hint for hint in hints if hint] if files and "header" in FORMATS[name].layout else []
    return "; ".join(known) or "check source.path and how the files were written"


def expressions_of(types: Mapping[str, str]) -> dict[str, Expression]:
    """The entries of `source.schema` that are not types, but expressions of the column as it is read, `_`."""
    texts = {name: text for name, text in types.items() if re.search(r"\b_\b", text) and not is_nested(text)}
    parsed = {name: parse(text) for name, text in texts.items()}
    for name, expression in parsed.items():
        if expression.columns != (SELF,):
            what = f"an expression in source.schema can only use its own column, which it calls {SELF}"
            raise JobError(what, where=f"source.schema.{name}: {expression.text}", do="use Lambda for other columns")
    return parsed


def _needs_texts(expression: Expression, name: str, inspected: Sequence[Inspected]) -> bool:
    """Whether an expression of a column of text files takes its texts alone, and not the type inferred of some file."""
    inferred = {item.schema.field(name).type for item in inspected if name in item.schema.names}
    return any(not _takes(expression, name, t) for t in inferred) and _takes(expression, name, pa.string())


def _takes(expression: Expression, name: str, dtype: pa.DataType) -> bool:
    try:
        _derive_column(expression, Column(name, plain_type(dtype)))
    except JobError:
        return False
    return True


def _of_type(column: Column, name: str | None) -> Column:
    """The column in a type of this name, if any."""
    return replace(column, dtype=plain_type(parse_dtype(name))) if name else column


def _derive_column(expression: Expression, column: Column) -> Column:
    """The column that an expression of `source.schema` makes of one."""
    dtype = dtype_of(expression, Schema([replace(column, name=SELF)]))
    return replace(column, dtype=dtype)


def _is_parsed(field: pa.Field, declared: Collection[str], schema: Schema) -> bool:
    """Whether a column is nested and read as text, or text and read as lists."""
    nested = pa.types.is_nested(plain_type(field.type))
    return field.name in declared and nested != pa.types.is_nested(schema[field.name].dtype)


def _folders(inspected: Sequence[Inspected], source: Source) -> dict[str, list[str | None]]:
    """The columns that only the names of folders below the source hold (`country=DE/`), with their value for each
    file."""
    named = _parse_folder_values([item.file.path for item in inspected], source)
    return {name: values for name, values in named.items() if name not in inspected[0].schema.names}


def _parse_folder_values(
    paths: Sequence[str], source: Source, missing: str | None = None
) -> dict[str, list[str | None]]:
    """The values in the names of folders below the source (`country=DE/`): column -> one value for each file, `missing`
    for a file that is in no such folder. Of a table, the metadata says it."""
    if source.table:
        return {}
    sources = [source.path] if isinstance(source.path, str) else source.path
    return hive.parse_folder_columns(
        paths, [path if is_remote(path) else local_path(path) for path in sources], missing
    )


def _folder_columns(named: Mapping[str, Sequence[str | None]], source: Source) -> dict[str, Column]:
    """The columns that the names of folders make; those that the filter leaves out have a say in their types."""
    types = source.schema_ or {}
    return {name: hive.column_of(name, values, types.get(name)) for name, values in named.items()}


def _survey_matching_files(
    files: Sequence[File], source: Source, survey: Callable[[Sequence[File]], list[Inspected]]
) -> tuple[list[Inspected], list[str]]:
    """(the inspected files, the paths of files that stay closed since the filter leaves out all of their rows).

    The names of folders decide (`country=DE/`). Where a file has a column of that name itself, they do not, and all
    files are opened. At least one file is opened, for the schema; if no opened file has a row, all files are opened.
    """
    paths = [file.path for file in files]
    values = _parse_folder_values(paths, source) if source.filter else {}
    parts = parse(source.filter).conjuncts if source.filter and values else []
    conditions = [part for part in parts if part.columns and values.keys() >= {*part.columns}]
    if not conditions:
        return survey(files), []
    engine = engines.engine("pandas")
    columns = _folder_columns(values, source)
    declared = source.schema_ or {}
    typed = {n: hive.convert_folder_values(values[n], column.dtype, n in declared) for n, column in columns.items()}
    folder_values = engine.from_arrow(pa.table(typed))
    chosen = np.logical_and.reduce([_match_files(part, folder_values) for part in conditions])
    chosen[0] |= not chosen.any()
    inspected = survey([file for file, inside in zip(files, chosen, strict=True) if inside])
    theirs = {n for part in conditions for n in part.columns}.isdisjoint(inspected[0].schema.names)
    if chosen.all() or (theirs and any(item.rows for item in inspected)):
        return inspected, [path for path, inside in zip(paths, chosen, strict=True) if not inside]
    return survey(files), []


def _match_files(part: Expression, folder_values: dict[str, Any]) -> np.ndarray:
    """Which files a condition of the filter keeps: one boolean for each file.

    All files where a cast fails in the condition or a number leaves 64 bits: reading their rows counts or refuses that.
    """
    failed = Counter[str]()
    try:
        mask: np.ndarray = true_mask(part, folder_values, failed)
    except DataError:
        failed[part.text] += 1
    return np.ones(len(next(iter(folder_values.values()))), dtype=bool) if failed else mask


def _list_column_names(inspected: Sequence[Inspected]) -> dict[str, Any]:
    """The columns of text files in their order in the file: of the first file, and of files that differ."""
    names = list(inspected[0].schema.names)
    other = {str(i): list(item.schema.names) for i, item in enumerate(inspected) if item.schema.names != names}
    return {"names": names, "other_names": other}


def largest_partition(source: Source, sizing: Sizing) -> int:
    """The most decoded bytes of a partition: of the source's settings, else the limit, else `PARTITION`."""
    limit = sizing.limit
    if source.part_mem_fraction is not None and sizing.memory:
        return max(1, int(source.part_mem_fraction * sizing.memory))
    if source.partition_size is None:
        return limit or PARTITION
    return min(source.partition_size, limit or source.partition_size)


def partition_size(source: Source, total: int, sizing: Sizing) -> int:
    """Decoded bytes per partition: as the source says, less if the threads would otherwise get under four partitions
    each, and never more than the limit, which a GPU's memory sets.

    A source that says nothing gets partitions of that limit on a GPU, where each thread gets two, four, six ..., since
    every column of a partition costs a GPU's process the same time. On the CPU it gets the fastest ones, or a thousand.
    """
    largest = largest_partition(source, sizing)
    threads = sizing.threads
    smallest = sizing.smallest
    if threads is None:
        return largest
    if _by_limit(source, sizing.limit):
        rounds = max(1, -(-total // (2 * threads * largest)))
        return max(-(-total // (2 * threads * rounds)), smallest)
    if sizing.fastest is not None and not _says_size(source):
        largest = min(largest, max(sizing.fastest, -(-total // MOST_PARTITIONS), smallest))
    return compute_partition_bytes(total, threads, smallest, largest)


def _by_limit(source: Source, limit: int | None) -> bool:
    """Whether nothing but a GPU's memory says how large a partition is."""
    return limit is not None and not _says_size(source)


def _says_size(source: Source) -> bool:
    return source.partition_size is not None or source.part_mem_fraction is not None


def compute_partition_bytes(total: int, threads: int, smallest: int, largest: int) -> int:
    """Bytes of a partition such that each thread gets about four, between the smallest and the largest."""
    return min(max(total // (4 * threads), smallest), largest)


def _units(inspected: Sequence[Inspected]) -> list[Unit]:
    """The units of all files, with the numbers of these."""
    return [
        Unit(replace(unit.piece, file=number), unit.rows, unit.nbytes)
        for number, item in enumerate(inspected)
        for unit in item.units
    ]


def _blocks(units: Sequence[Unit], ranged: bool, limits: Limits) -> tuple[Block, ...]:
    if ranged:  # their units are cut by bytes already; many rows in one are no reason to cut again
        return cut_blocks(units, limits.join_below, 2**62, join_bytes=limits.range_bytes)
    return cut_blocks(units, limits.join_below, limits.cut_above, join_bytes=limits.range_bytes)


def _some(path: str, count: int) -> str:
    return path if count == 1 else f"{path} and {count - 1} more"
