"""Stage 1, ingest: from a source to its plan: files, schema, blocks, partitions and row numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
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
from tasks.sources.formats.survey import NUMBER_TEXTS, TYPES, Inspected, line_types
from tasks.sources.formats.text_ranges import BAD
from tasks.sources.reading_rules import Fit, reading_of, with_layout
from tasks.sources.uniting import RECOGNISED, united
from tasks.storage import hive
from tasks.storage.files import expand, is_remote, local_path

OUTSIDE = "/"  # instead of a value in the name of a folder: no name has it
PARTITION = 10**9  # bytes


class NoRowsError(DataError):
    """The files of the source have no rows."""


class NoValidationRowsError(NoRowsError):
    """No file is at `source.valid`, or the files have no rows."""


def make_plan(
    source: Source,
    *,
    parallel_map: Callable[..., Any] = map,
    sizing: Sizing = NO_SIZING,
    limits: Limits = LIMITS,
    null_types: Mapping[str, pa.DataType] | None = None,
    fit: Fit | None = None,
    notes: str | None = None,
) -> Plan:
    """Inspect every file of the source once; the plan says which rows are where.

    `parallel_map(function, items)` gives the results in order; functions and items can be pickled. `notes` is a folder
    in which processes note what they read (`tasks.storage.files_being_read`). `null_types` are those of columns that
    hold nothing but nulls (string if not named).
    Files without rows are skipped and named in `plan.skipped`, and so are those that the filter leaves out by the names
    of their folders: they stay closed. Text is laid out as that of `fit` was, where the format is the same.
    """
    listed = expand(source.path, read_options(source)["storage_options"])
    source = with_layout(source, fit, listed) if fit else source
    original, expressions = source, expressions_of(source.schema_ or {})
    source = source.model_copy(
        update={"schema_": {n: t for n, t in (source.schema_ or {}).items() if n not in expressions}}
    )
    said_of = [*(source.schema_ or {}), *expressions]
    options = read_options(source) | ({OPTION: notes} if notes else {})
    optional = {*(fit.optional if fit else ()), *(_named([file.path for file in listed], source).keys() & said_of)}
    if optional:
        options["optional"] = sorted(optional)
    name = format_of(listed, source.format)
    check_settings(source, name, inherited=fit is not None and "null_values" not in fit.own)
    source, recognised = with_recognised(source, name, listed, parallel_map)
    options |= read_options(source) | {"header": "header" in FORMATS[name].layout and bool(options["header"])}
    empty = [f.path for f in listed if f.size == 0]
    inspected, left = _inspected(
        [f for f in listed if f.size], source, lambda files: FORMATS[name].survey(files, options, limits, parallel_map)
    )
    full = [item for item in inspected if item.rows]
    bad_lines: dict[str, tuple[int, int, str, list[Any]]] = {
        item.file.path: (item.bad.count, item.bad.line, item.bad.why, item.file.to_json())
        for item in inspected
        if item.bad
    }
    if not full:
        raise NoRowsError(
            "the input has no rows at all",
            where=_some(listed[0].path, len(listed)),
            why=_no_line_is_read(bad_lines),
            do=_rows_hint(source, name, [file for file in listed if file.size]),
        )
    skipped = (*empty, *left, *(item.file.path for item in inspected if not item.rows))
    folders = _folders(full, source)
    for item in full:
        check_columns(len(item.schema), item.file.path)
        check_depth(item.schema, item.file.path)
        check_storable(item.schema, item.file.path)
    of_files, lists = full, dict[str, str]()
    known = {n: t for n, t in (source.schema_ or {}).items() if n not in folders}
    if column := source.explode:  # from here on the type of the column is that of its elements
        _check_explode(column, expressions)
        inherited = fit is not None and fit.explodes
        if column in known:
            lists = {column: known[column]}
            known[column] = dtype_name(as_elements(parse_dtype(known[column]), column, full[0].file.path, inherited))
        full = with_elements(full, column, lists.get(column), inherited)
    there = {name for item in full for name in item.schema.names}
    structs = [Schema.from_arrow(item.schema) for item in full] if any("." in n for n in said_of) else []
    fields = [n for n in said_of if n not in there and any(schema.root(n) for schema in structs)]
    types = {n: known.pop(n) for n in fields if n in known}
    declared = {n: t for n, t in known.items() if n in there or n not in optional}
    number_texts = {n: text for n, text in full[0].number_texts.items() if n not in known and n not in folders}
    of_fit = fit.number_texts if fit and name in TEXTS else {}
    texts = {n: dtype for n, dtype in of_fit.items() if n in there and n not in known and n not in expressions}
    for n in texts:  # numbers that the fit has read as text
        here = next(item.schema.field(n).type for item in full if n in item.schema.names)
        if kind_of(here) == "number":
            number_texts[n] = f"column {n!r} is {dtype_name(here)} here, and text in the fit: it is read as text"
    of_texts = expressions.items() if name in TEXTS else ()
    texts |= {n: pa.string() for n, e in of_texts if n in there and _needs_texts(e, n, full)}
    whole = united(full, {**texts, **declared}, null_types or {}, source.missing, folders)
    paths = [*(item.file.path for item in full), *left]
    named = _folder_columns(_named(paths, source), source)
    outside = {
        name: [path for path, value in zip(paths, values, strict=True) if value == OUTSIDE]
        for name, values in _named(paths, source, OUTSIDE).items()
        if name in folders
    }
    whole = whole.with_outside(outside, [item.file.path for item in full], source.missing)
    schema = Schema([*whole.schema.columns, *(named[n] for n in folders)])
    schema = Schema([*schema.columns, *(_of_type(schema[n], types.get(n)) for n in fields)])
    computed = {n: (e, schema[n]) for n, e in expressions.items() if n in schema or n not in optional}
    schema = Schema(_made(*computed[c.name]) if c.name in computed else c for c in schema.columns)
    of_lines = line_types({f.name: f.type for item in of_files for f in item.schema}, declared | lists)
    on_host = sorted({n for item in full for n in item.on_host} | whole.on_host | {*computed, *fields})
    on_host += sorted({f.name for item in full for f in item.schema if _is_parsed(f, known, schema)} - {*on_host})
    units = _units(full)
    plan = Plan(
        files=tuple(item.file for item in full),
        format=name,
        schema=schema,
        blocks=() if source.explode else _blocks(units, FORMATS[name].ranged, limits),
        partitions=(),
        skipped=skipped,
        options={
            **options,
            **(_names(full) if FORMATS[name].ranged else {}),
            **({"folders": folders} if folders else {}),
            **({"on_host": on_host} if on_host else {}),
            **whole.options(),
            **({FIELDS: fields} if fields else {}),
            **({MADE: {n: [e.text, dtype_name(c.dtype)] for n, (e, c) in computed.items()}} if computed else {}),
            **({RECOGNISED: recognised} if recognised else {}),
            **({NUMBER_TEXTS: number_texts} if number_texts else {}),
            **({BAD: bad_lines, TYPES: of_lines} if options.get("bad_lines") else {}),
        },
        reading=reading_of(
            source.model_copy(update={"schema_": original.schema_}),
            name,
            listed,
            {n: dtype_name(schema[n].dtype) for n in number_texts},
        ),
    )
    if source.explode:
        plan = with_element_rows(plan, source.explode, units, limits, parallel_map)
        _check_elements(plan, source.explode)
    size = partition_size(source, plan.nbytes, sizing)
    return replace(plan, partitions=cut_partitions(plan.blocks, size, even=_by_limit(source, sizing.limit)))


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
        _made(expression, Column(name, plain_type(dtype)))
    except JobError:
        return False
    return True


def _of_type(column: Column, name: str | None) -> Column:
    """The column in a type of this name, if any."""
    return replace(column, dtype=plain_type(parse_dtype(name))) if name else column


def _made(expression: Expression, column: Column) -> Column:
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
    named = _named([item.file.path for item in inspected], source)
    return {name: values for name, values in named.items() if name not in inspected[0].schema.names}


def _named(paths: Sequence[str], source: Source, missing: str | None = None) -> dict[str, list[str | None]]:
    """The values in the names of folders below the source (`country=DE/`): column -> one value for each file, `missing`
    for a file that is in no such folder."""
    sources = [source.path] if isinstance(source.path, str) else source.path
    return hive.named_columns(paths, [path if is_remote(path) else local_path(path) for path in sources], missing)


def _folder_columns(named: Mapping[str, Sequence[str | None]], source: Source) -> dict[str, Column]:
    """The columns that the names of folders make; those that the filter leaves out have a say in their types."""
    types = source.schema_ or {}
    return {name: hive.column_of(name, values, types.get(name)) for name, values in named.items()}


def _inspected(
    files: Sequence[File], source: Source, survey: Callable[[Sequence[File]], list[Inspected]]
) -> tuple[list[Inspected], list[str]]:
    """(the inspected files, the paths of files that stay closed since the filter leaves out all of their rows).

    The names of folders decide (`country=DE/`). Where a file has a column of that name itself, they do not, and all
    files are opened. At least one file is opened, for the schema; if no opened file has a row, all files are opened.
    """
    paths = [file.path for file in files]
    values = _named(paths, source) if source.filter else {}
    parts = parse(source.filter).conjuncts if source.filter and values else []
    conditions = [part for part in parts if part.columns and values.keys() >= {*part.columns}]
    if not conditions:
        return survey(files), []
    engine, columns = engines.engine("pandas"), _folder_columns(values, source)
    declared = source.schema_ or {}
    typed = {n: hive.typed(values[n], column.dtype, n in declared) for n, column in columns.items()}
    folder_values = engine.from_arrow(pa.table(typed))
    chosen = np.logical_and.reduce([_kept_by(part, folder_values) for part in conditions])
    chosen[0] |= not chosen.any()
    inspected = survey([file for file, inside in zip(files, chosen, strict=True) if inside])
    theirs = {n for part in conditions for n in part.columns}.isdisjoint(inspected[0].schema.names)
    if chosen.all() or (theirs and any(item.rows for item in inspected)):
        return inspected, [path for path, inside in zip(paths, chosen, strict=True) if not inside]
    return survey(files), []


def _kept_by(part: Expression, folder_values: dict[str, Any]) -> np.ndarray:
    """Which files a condition of the filter keeps: one boolean for each file.

    All files where a cast fails in the condition or a number leaves 64 bits: reading their rows counts or refuses that.
    """
    failed = Counter[str]()
    try:
        mask: np.ndarray = true_mask(part, folder_values, failed)
    except DataError:
        failed[part.text] += 1
    return np.ones(len(next(iter(folder_values.values()))), dtype=bool) if failed else mask


def _names(inspected: Sequence[Inspected]) -> dict[str, Any]:
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
    each, and never more than the limit, which a GPU's memory sets and is taken where the source says nothing:
    each thread then gets two, four, six ..., since every column of a partition costs a GPU's process the same time.
    """
    largest, threads, smallest = largest_partition(source, sizing), sizing.threads, sizing.smallest
    if threads is not None and _by_limit(source, sizing.limit):
        rounds = max(1, -(-total // (2 * threads * largest)))
        return max(-(-total // (2 * threads * rounds)), smallest)
    return largest if threads is None else shared_out(total, threads, smallest, largest)


def _by_limit(source: Source, limit: int | None) -> bool:
    """Whether nothing but a GPU's memory says how large a partition is."""
    return limit is not None and source.partition_size is None and source.part_mem_fraction is None


def shared_out(total: int, threads: int, smallest: int, largest: int) -> int:
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
