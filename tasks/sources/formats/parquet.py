"""Parquet: row groups from footers, strings decoded to dictionaries where that is not dearer than plain ones."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.dtypes import is_uuid, leaf_type, plain_type
from tasks.core.plan import File, Piece, ReadOptions, Unit, rows_together
from tasks.errors import DataError
from tasks.sources.formats import julian_days, parquet_int96
from tasks.sources.formats.bounds import MOST_ROWS, readable, validate_table
from tasks.sources.formats.conform import conform
from tasks.sources.formats.parquet_bounds import bounds_of
from tasks.sources.formats.parquet_chunks import footer_of, footers, make_broken_file_error, open_ahead, read_footer
from tasks.sources.formats.parquet_fields import find_columns, names_in_file, with_columns_of_table
from tasks.sources.formats.survey import FILTERED, Inspected
from tasks.storage.files import is_remote, open_binary, open_planned_path

DESCRIPTOR = re.compile(r"/proc/self/fd/\d+")
PLAIN_BYTES = 2**30  # of a column, at most: an array of plain strings holds less than twice as many


def inspect(file: File, options: ReadOptions) -> Inspected:
    """Schema and row groups of one file, from one read of its end; the digest is the footer's sha256."""
    tail = read_footer(file, options.get("storage_options"))
    try:
        opened = pq.ParquetFile(pa.BufferReader(tail))
        metadata = opened.metadata
        schema = readable(opened.schema_arrow)
        units = tuple(_units(metadata, schema))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise make_broken_file_error(file.path, str(error)) from None
    footers.keep(file, metadata, len(tail))
    on_host = {f.name for f in schema if is_uuid(leaf_type(f.type))} | {*parquet_int96.columns_of(metadata.schema)}
    on_host |= {*julian_days.columns_of(metadata)}
    file = replace(file, digest=hashlib.sha256(tail).hexdigest())
    filtered = options.get(FILTERED, ())
    columns = find_columns(schema, options, file.path)
    if columns is None:
        bounds = bounds_of(metadata, schema, {*filtered} - on_host)
        return Inspected(file, schema, units, tuple(sorted(on_host)), bounds)
    bounds = bounds_of(metadata, schema, {columns[name] for name in filtered if name in columns} - on_host)
    renamed = {name for name, here in columns.items() if name != here or here in on_host}
    bounds = {name: bounds[here] for name, here in columns.items() if here in bounds}
    return Inspected(file, with_columns_of_table(schema, columns), units, tuple(sorted(renamed)), bounds)


def _units(metadata: pq.FileMetaData, schema: pa.Schema) -> list[Unit]:
    """Row groups with their decoded size: widths of fixed types; of others what the footer says, decompressed."""
    widths = {f.name: _measure_fixed_width(f.type) for f in schema}
    width = sum(widths.values())
    varying = []
    if not all(widths.values()):
        paths = [metadata.schema.column(i).path.split(".")[0] for i in range(metadata.num_columns)]
        varying = [i for i, name in enumerate(paths) if not widths.get(name, 0)]
    units = []
    for group in range(metadata.num_row_groups):
        described = metadata.row_group(group)
        rows = described.num_rows
        if not 0 <= rows < MOST_ROWS:
            raise pa.ArrowInvalid(f"row group {group} has {rows:,} rows")
        nbytes = rows * width + sum(4 * rows + max(0, described.column(i).total_uncompressed_size) for i in varying)
        units.append(Unit(Piece(0, 0, rows, group), rows, nbytes))
    return units


def _measure_fixed_width(dtype: pa.DataType) -> int:
    """Bytes per row of a type of fixed width (booleans count as one), 0 for the others."""
    dtype = plain_type(dtype)
    if pa.types.is_null(dtype):
        return 1
    return max(1, dtype.bit_width // 8) if pa.types.is_primitive(dtype) or pa.types.is_decimal(dtype) else 0


@dataclass(frozen=True)
class _RowGroupRun:
    """Neighbouring row groups of one file that are read in one call; the rows [start, stop) of them are wanted."""

    file: int
    groups: tuple[int, ...]
    start: int
    stop: int | None


def read(files: Sequence[File], pieces: Sequence[Piece], schema: pa.Schema, options: ReadOptions) -> pa.Table:
    """The rows of the pieces, in their order, as `schema` says.

    Strings of the columns `options["plain"]` come plain where the files hold most of them so: to make a dictionary of
    them takes several times as long as to read them.
    """
    runs = [(files[number], list(run)) for number, run in groupby(rows_together(pieces), key=lambda piece: piece.file)]
    tables = []
    with closing(_open_each(runs, schema.names, options)) as sources:
        for (file, run), (source, footer) in zip(runs, sources, strict=True):
            tables.append(_read_columns(file, run, schema, options, source, footer))
    if len(tables) == 1:
        return tables[0]
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.concat_tables(tables).unify_dictionaries()
    plain = [n for n in options.get("plain", ()) if all(t.schema.field(n).type == pa.string() for t in tables)]
    return pa.concat_tables(conform(t, schema, plain) for t in tables).unify_dictionaries()


def _open_each(
    runs: Sequence[tuple[File, Sequence[Piece]]], names: Collection[str], options: ReadOptions
) -> Generator[tuple[Any, pq.FileMetaData], None, None]:
    """For each file the source from which Arrow reads it, and its footer; to be closed."""
    storage = options.get("storage_options")
    remote = [(file, {piece.group for piece in pieces}) for file, pieces in runs if is_remote(file.path)]
    if len(remote) == len(runs):
        yield from open_ahead(remote, lambda file, footer: names_in_file(footer, names, options, file.path), storage)
        return
    for file, _ in runs:
        with source_of(file, options) as (source, footer):
            yield source, footer


@contextmanager
def source_of(file: File, options: ReadOptions) -> Iterator[tuple[Any, pq.FileMetaData]]:
    """The open source from which Arrow reads a file, after a check that it is the file of the plan, and its footer."""
    if is_remote(file.path):
        storage = options.get("storage_options")
        with open_binary(file, storage) as opened:
            yield opened, footer_of(file, storage)
    else:
        with open_planned_path(file) as name:
            yield name, _find_local_footer(file, name)


def _find_local_footer(file: File, name: str) -> pq.FileMetaData:
    """The footer of an open local file, read once in this process while the file is the one of the plan."""
    is_kept = bool(file.inode)  # not of scratch files, which a run writes again under the same names
    footer = footers.find(file) if is_kept else None
    if footer is None:
        with _named_errors(file.path):
            footer = pq.read_metadata(name)
        if is_kept:
            footers.keep(file, footer, footer.serialized_size)
    return footer


@contextmanager
def _named_errors(path: str) -> Iterator[None]:
    """A DataError that names the file where Arrow cannot read it."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, IndexError) as error:
        raise DataError(
            "a Parquet file cannot be read as its footer promises",
            where=path,
            why=DESCRIPTOR.sub(path, str(error).split("\n")[0]),
            do="write the file again, or leave it out of source.path",
        ) from None


def _read_columns(
    file: File, pieces: list[Piece], schema: pa.Schema, options: ReadOptions, source: Any, footer: pq.FileMetaData
) -> pa.Table:
    """Pieces of one file, whose columns may have other names in the file."""
    names = names_in_file(footer, schema.names, options, file.path)
    if all(name == here for name, here in names.items()):
        return _read_file(file, pieces, schema, options, source, footer)
    stored = pa.schema([field.with_name(names[field.name]) for field in schema])
    plain = [names[name] for name in options.get("plain", ())]
    return _read_file(file, pieces, stored, {**options, "plain": plain}, source, footer).rename_columns(schema.names)


def _read_file(
    file: File,
    pieces: list[Piece],
    schema: pa.Schema,
    options: ReadOptions,
    source: Any,
    footer: pq.FileMetaData,
) -> pa.Table:
    strings = [f.name for f in schema if pa.types.is_string(f.type)]
    path = file.path
    local = isinstance(source, str)
    with _named_errors(path):
        chunks = _chunks(footer, {piece.group for piece in pieces}, strings)
        plain = {name for name in options.get("plain", ()) if _are_plain(chunks.get(name, []))}
        encoded = [name for name in strings if name in chunks and name not in plain and not _are_delta(chunks[name])]
        with pq.ParquetFile(
            source, metadata=footer, read_dictionary=encoded, memory_map=local, pre_buffer=False
        ) as opened:
            table = _read_runs(opened, pieces, schema.names)
        validate_table(table, encoded=True)
        wide = [name for name in parquet_int96.columns_of(footer.schema) if name in schema.names]
        if wide:
            with pq.ParquetFile(source, metadata=footer, coerce_int96_timestamp_unit="us", pre_buffer=False) as opened:
                table = parquet_int96.in_range(table, _read_runs(opened, pieces, wide), schema, path)
        julian = [name for name in julian_days.columns_of(footer) if name in schema.names]
        table = julian_days.of_parquet(table, julian, footer, path)
        return conform(table, schema, plain)


def _chunks(
    footer: pq.FileMetaData, groups: Collection[int], names: Collection[str]
) -> dict[str, list[pq.ColumnChunkMetaData]]:
    """The footer's metadata of these columns in these row groups."""
    columns = footer.schema
    places = {columns.column(i).path: i for i in range(len(columns))}
    described = [footer.row_group(group) for group in groups]
    return {name: [one.column(places[name]) for one in described] for name in names if name in places}


def _are_delta(chunks: Sequence[pq.ColumnChunkMetaData]) -> bool:
    """Whether strings are stored as differences, of which Arrow makes no dictionary."""
    return any(encoding.startswith("DELTA") for chunk in chunks for encoding in chunk.encodings)


def _are_plain(chunks: Sequence[pq.ColumnChunkMetaData]) -> bool:
    """Whether most strings of a column are stored plain, without a dictionary."""
    nbytes = sum(chunk.total_uncompressed_size for chunk in chunks)
    return bool(chunks) and nbytes < PLAIN_BYTES and all(_is_plain(chunk) for chunk in chunks)


def _is_plain(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether a chunk has no dictionary, or one that most of its values did not fit into: it then takes at least half
    of what they take plain, as far as the footer shows how long they are. How long what differs from the value before
    it is once it is whole, no footer says."""
    encodings = set(chunk.encodings)
    if chunk.physical_type != "BYTE_ARRAY":  # numbers that the job wants as texts
        return False
    if encodings.isdisjoint({"PLAIN_DICTIONARY", "RLE_DICTIONARY"}):
        return "DELTA_BYTE_ARRAY" not in encodings
    shown = chunk.statistics
    if shown is None or not shown.has_min_max or len(shown.min_raw) != len(shown.max_raw):
        return False
    return bool(chunk.num_values * (4 + len(shown.max_raw)) <= 2 * chunk.total_uncompressed_size)


def _group_pieces(file: pq.ParquetFile, pieces: list[Piece]) -> list[_RowGroupRun]:
    """Whole row groups are read together, parts of row groups one by one."""
    runs: list[_RowGroupRun] = []
    for piece in pieces:
        whole = piece.start == 0 and piece.stop == file.metadata.row_group(piece.group).num_rows
        if whole and runs and runs[-1].stop is None:
            runs[-1] = replace(runs[-1], groups=(*runs[-1].groups, piece.group))
        elif whole:
            runs.append(_RowGroupRun(piece.file, (piece.group,), 0, None))
        else:
            runs.append(_RowGroupRun(piece.file, (piece.group,), piece.start, piece.stop))
    return runs


def _read_runs(file: pq.ParquetFile, pieces: list[Piece], names: list[str]) -> pa.Table:
    tables = [_read_groups(file, run, names) for run in _group_pieces(file, pieces)]
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def _read_groups(file: pq.ParquetFile, run: _RowGroupRun, names: list[str]) -> pa.Table:
    if run.stop is None:
        return file.read_row_groups(list(run.groups), columns=names, use_threads=False)
    batches = []
    row = 0
    for batch in file.iter_batches(2**18, row_groups=list(run.groups), columns=names, use_threads=False):
        first = max(run.start - row, 0)
        last = min(run.stop - row, batch.num_rows)
        if first < last:
            batches.append(batch.slice(first, last - first))
        row += batch.num_rows
        if row >= run.stop:
            break
    return pa.Table.from_batches(batches)
