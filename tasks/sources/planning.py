"""Stage 1, ingest: from a source to its plan: files, schema, blocks, partitions and row numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.core.plan import LIMITS, OPTION, Block, File, Limits, Plan, Unit, cut_blocks, cut_partitions
from tasks.core.schema import Column, Schema
from tasks.core.settings import Source
from tasks.engines.expression.evaluation import true_mask
from tasks.engines.expression.syntax import Expression, parse
from tasks.errors import DataError, JobError, near
from tasks.sources.formats import DELIMITED, FORMATS, format_of
from tasks.sources.formats.bounds import check_columns, check_depth
from tasks.sources.formats.survey import Inspected
from tasks.sources.formats.text_ranges import BAD
from tasks.sources.reading_rules import TEXTS, Fit, reading_of, with_layout
from tasks.sources.uniting import check_together, united
from tasks.storage import hive
from tasks.storage.credentials import storage
from tasks.storage.files import expand, is_remote, local_path

SIGNS = ("quote", "escape", "comment")  # settings of text files that are one character
PARTITION, SMALLEST = 10**9, 16 * 2**20  # bytes
BOUNDS = ("max_record_bytes", "max_block_bytes")  # limits of readers; they change no row


class NoRowsError(DataError):
    """The files of the source have no rows."""


class NoValidationRowsError(NoRowsError):
    """No file is at `source.valid`, or the files have no rows."""


def make_plan(
    source: Source,
    *,
    parallel_map: Callable[..., Any] = map,
    threads: int | None = None,
    min_partition_size: int = SMALLEST,
    needed: Sequence[str] | None = None,
    memory: int | None = None,
    limits: Limits = LIMITS,
    null_types: Mapping[str, pa.DataType] | None = None,
    limit: int | None = None,
    fit: Fit | None = None,
    notes: str | None = None,
) -> Plan:
    """Inspect every file of the source once; the plan says which rows are where.

    `parallel_map(function, items)` gives the results in order; functions and items can be pickled. `threads` of the
    cluster make partitions small enough that each thread gets about four; `memory` of a worker is what
    `part_mem_fraction` is a share of; no partition of several blocks has more than `limit` bytes.
    `notes` is a folder in which processes note what they read (`tasks.storage.files_being_read`).
    `needed` columns must exist; `null_types` are those of columns that hold nothing but nulls (string if not named).
    Files without rows are skipped and named in `plan.skipped`, and so are those that the filter leaves out by the names
    of their folders: they stay closed. Text is laid out as that of `fit` was, where the format is the same.
    """
    listed = expand(source.path, read_options(source)["storage_options"])
    source = with_layout(source, fit, listed) if fit else source
    options, optional = read_options(source) | ({OPTION: notes} if notes else {}), fit.optional if fit else set()
    if optional:
        options["optional"] = sorted(optional)
    name = format_of(listed, source.format)
    check_delimiter(source, name, fit)
    empty = [f.path for f in listed if f.size == 0]
    inspected, left = _inspected(
        [f for f in listed if f.size], source, lambda files: FORMATS[name].survey(files, options, limits, parallel_map)
    )
    full = [item for item in inspected if item.rows]
    bad_lines: dict[str, tuple[int, int, str, list[Any]]] = {
        item.file.path: (item.bad.count, item.bad.line, item.bad.why, item.file.to_json())
        for item in inspected if item.bad
    }  # fmt: skip
    if not full:
        raise NoRowsError(
            "the input has no rows at all",
            where=_some(listed[0].path, len(listed)),
            why=f"none of {sum(bad[0] for bad in bad_lines.values()):,} lines can be read" if bad_lines else "",
            do="check source.path and how the files were written",
        )
    skipped = (*empty, *left, *(item.file.path for item in inspected if not item.rows))
    folders = _folders(full, source)
    for item in full:
        check_columns(len(item.schema), item.file.path)
        check_depth(item.schema, item.file.path)
    there = {name for item in full for name in item.schema.names}
    known = {n: t for n, t in (source.schema_ or {}).items() if n not in folders}
    declared = {n: t for n, t in known.items() if n in there or n not in optional}
    whole = united(full, declared, null_types or {}, source.missing, folders)
    named = _folder_columns(_named([*(item.file.path for item in full), *left], source), source)
    schema = Schema([*whole.schema.columns, *(named[n] for n in folders)])
    check_needed(schema, needed or ())
    on_host = sorted({n for item in full for n in item.on_host} | whole.on_host)
    blocks = _blocks(full, FORMATS[name].ranged, limits)
    size = partition_size(source, sum(b.nbytes for b in blocks), threads, min_partition_size, memory, limit)
    plan = Plan(
        files=tuple(item.file for item in full),
        format=name,
        schema=schema,
        blocks=blocks,
        partitions=cut_partitions(blocks, size, even=_by_limit(source, limit)),
        skipped=skipped,
        options={
            **options,
            **(_names(full) if FORMATS[name].ranged else {}),
            **({"folders": folders} if folders else {}),
            **({"on_host": on_host} if on_host else {}),
            **whole.options(),
            **({BAD: bad_lines} if options.get("bad_lines") else {}),
        },
        reading=reading_of(source, name, listed),
    )
    check_together(plan, needed or ())
    return plan


def _folders(inspected: Sequence[Inspected], source: Source) -> dict[str, list[str | None]]:
    """The columns that only the names of folders below the source hold (`country=DE/`), with their value for each
    file."""
    named = _named([item.file.path for item in inspected], source)
    return {name: values for name, values in named.items() if name not in inspected[0].schema.names}


def _named(paths: Sequence[str], source: Source) -> dict[str, list[str | None]]:
    """The values in the names of folders below the source (`country=DE/`): column -> one value for each file."""
    sources = [source.path] if isinstance(source.path, str) else source.path
    return hive.named_columns(paths, [path if is_remote(path) else local_path(path) for path in sources])


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
    typed = {n: hive.typed(values[n], column.dtype) for n, column in columns.items()}
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


def check_delimiter(source: Source, name: str, fit: Fit | None = None) -> None:
    """Refuse the settings of text with delimiters for formats without them; a fit may have been of another format."""
    if source.bad_lines != "error" and FORMATS[name].bad_lines is None:
        raise JobError(
            f"files of the format {name} have no lines",
            where="source.bad_lines",
            do="leave it out: it is for csv, tsv and jsonl",
        )
    if name in TEXTS:
        _check_signs(source, name)
        return
    others = {
        "decimal": source.decimal, "encoding": source.encoding != "utf-8", "skip_rows": source.skip_rows,
        "quote": source.quote is not None, "escape": source.escape, "comment": source.comment,
        "header": not source.header, "columns": source.columns is not None,
        "null_values": source.null_values != [""] and (fit is None or "null_values" in fit.own),
    }  # fmt: skip
    for key, is_set in others.items():
        if is_set:
            raise JobError(
                f"files of the format {name} have no {key} of their own",
                where=f"source.{key}",
                do="leave it out: it is for csv and tsv",
            )
    if source.delimiter is not None:
        raise JobError(
            f"files of the format {name} have no delimiter",
            where="source.delimiter",
            do="leave it out, or set source.format to csv if they are text with values between delimiters",
        )


def _check_signs(source: Source, name: str) -> None:
    """A JobError where one character is two signs of a text file."""
    quote = DELIMITED[name].quote if source.quote is None else source.quote
    signs = {"delimiter": source.delimiter or DELIMITED[name].delimiter, "quote": quote,
             "escape": source.escape, "comment": source.comment}  # fmt: skip
    keys: dict[str, str] = {}
    for key, sign in signs.items():
        if not sign:
            continue
        if sign in keys:
            raise JobError(
                f"{sign!r} is the {keys[sign]} and the {key} of a text file",
                where=f"source.{key}",
                do="give another character, or leave it out: two quotes stand for one without an escape",
            )
        keys[sign] = key


def read_options(source: Source) -> dict[str, Any]:
    """The options of readers, as plain values."""
    return {
        "header": source.header and source.columns is None,
        "columns": source.columns,
        "null_values": list(source.null_values),
        "delimiter": source.delimiter,
        **({} if source.decimal is None else {"decimal": source.decimal}),
        **({"skip_rows": source.skip_rows} if source.skip_rows else {}),
        **{name: sign for name in SIGNS if (sign := getattr(source, name)) is not None},
        **({} if source.bad_lines == "error" else {"bad_lines": True}),
        **({} if source.encoding == "utf-8" else {"encoding": source.encoding}),
        "schema": dict(source.schema_ or {}),
        **{name: size for name in BOUNDS if (size := getattr(source, name)) is not None},
        "storage_options": storage(source.storage_options),
    }


def largest_partition(source: Source, limit: int | None = None, memory: int | None = None) -> int:
    """The most decoded bytes of a partition: of the source's settings, else `limit`, else `PARTITION`. `memory` of one
    worker is what `part_mem_fraction` is a share of."""
    if source.part_mem_fraction is not None and memory:
        return max(1, int(source.part_mem_fraction * memory))
    if source.partition_size is None:
        return limit or PARTITION
    return min(source.partition_size, limit or source.partition_size)


def partition_size(
    source: Source, total: int, threads: int | None, smallest: int, memory: int | None = None, limit: int | None = None
) -> int:
    """Decoded bytes per partition: as the source says, less if the threads would otherwise get under four
    partitions each, and never more than `limit`, which a GPU's memory sets and is taken where the source says nothing:
    each thread then gets two, four, six ..., since every column of a partition costs a GPU's process the same time.
    """
    largest = largest_partition(source, limit, memory)
    if threads is not None and _by_limit(source, limit):
        rounds = max(1, -(-total // (2 * threads * largest)))
        return max(-(-total // (2 * threads * rounds)), smallest)
    return largest if threads is None else shared_out(total, threads, smallest, largest)


def _by_limit(source: Source, limit: int | None) -> bool:
    """Whether nothing but a GPU's memory says how large a partition is."""
    return limit is not None and source.partition_size is None and source.part_mem_fraction is None


def shared_out(total: int, threads: int, smallest: int = SMALLEST, largest: int = PARTITION) -> int:
    """Bytes of a partition such that each thread gets about four, between the smallest and the largest."""
    return min(max(total // (4 * threads), smallest), largest)


def _blocks(inspected: Sequence[Inspected], ranged: bool, limits: Limits) -> tuple[Block, ...]:
    units = [
        Unit(replace(unit.piece, file=number), unit.rows, unit.nbytes)
        for number, item in enumerate(inspected)
        for unit in item.units
    ]
    if ranged:  # their units are cut by bytes already; many rows in one are no reason to cut again
        return cut_blocks(units, limits.join_below, 2**62, join_bytes=limits.range_bytes)
    return cut_blocks(units, limits.join_below, limits.cut_above, join_bytes=limits.range_bytes)


def check_needed(schema: Schema, needed: Sequence[str]) -> None:
    """A DataError for the first needed column that is not there, with near names."""
    for name in needed:
        if name not in schema:
            raise DataError(f"there is no column {name!r} in the source", where="source", do=near(name, schema))


def _some(path: str, count: int) -> str:
    return path if count == 1 else f"{path} and {count - 1} more"
