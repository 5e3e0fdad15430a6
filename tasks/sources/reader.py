"""From a plan to tables: the rows of a partition, read by one thread, or by all cores of the process side by side.

A GPU's partitions are large and few: where the host reads them, the thread of each leaves most cores idle.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import groupby

import pyarrow as pa

from tasks import engines
from tasks.core.dtypes import dtype_name, parse_dtype
from tasks.core.plan import (
    ADVICE,
    EXPLODED,
    MADE,
    RETYPED,
    SELF,
    Block,
    Partition,
    Piece,
    Plan,
    find_root_columns,
    runs_of,
)
from tasks.core.schema import ROW, Schema
from tasks.core.unforeseen_errors import at
from tasks.engines.algorithms.exploded_lists import explode
from tasks.engines.expression import verbs_arrow
from tasks.engines.expression.interpreter import evaluate
from tasks.engines.expression.nodes import UnreadError
from tasks.engines.expression.syntax import parse
from tasks.errors import DataError, RowmillError, near
from tasks.sources.exploded import as_stored, to_stored_runs
from tasks.sources.formats import FORMATS, rows_of_piece
from tasks.sources.formats.conform import MisfitError, conform, conform_column, first_fraction, with_fields
from tasks.sources.frames import Frames
from tasks.sources.parsed_text import is_parsed, read_parsed
from tasks.sources.row_group_filter import LEFT_OUT
from tasks.sources.table_files import CONSTANTS, constant
from tasks.sources.uniting import ABSENT, APART, check_together
from tasks.storage import hive
from tasks.storage.files_being_read import format_files, note_activity

SMALLEST = 32 * 2**20  # decoded bytes from which on a run of blocks gets its own thread


class FramePlan:
    """A plan over frames, with the frames: it can be read by partition like a plan over files.

    Errors say that a row is one of the source, or of what the frames are `called`.
    """

    def __init__(self, plan: Plan, frames: Frames, called: str = "source") -> None:
        self.plan = plan
        self.frames = frames
        self.called = called


def read(
    source: Plan | FramePlan,
    partition: int | Partition,
    columns: Sequence[str] | None = None,
    plain: Collection[str] = (),
) -> pa.Table:
    """The rows of a partition (its number, or itself: halves too) as a table, in the plan's order and types.

    Strings are dictionary<int32, string>, with one dictionary per column; those of the columns `plain` may be plain,
    where that is quicker. Floats hold no NaN. A DataError if the rows are not as many as when they were counted.
    """
    plan = source if isinstance(source, Plan) else source.plan
    if isinstance(partition, int):
        partition = plan.partitions[partition]
    names = resolve_columns(plan, columns)
    pieces = [piece for block in partition.blocks for piece in block.pieces]
    try:
        if isinstance(source, Plan) and is_parsed(source, names):
            return read_parsed(source, partition, names)
        computed = {n: how for n, how in plan.options.get(MADE, {}).items() if n in names}
        if isinstance(source, Plan) and computed:
            stored = {n: replace(source.schema[n], dtype=parse_dtype(dtype)) for n, (_, dtype) in computed.items()}
            as_read = replace(source, schema=Schema(stored.get(n, c) for n, c in source.schema.items()))
            table = _read_partition_rows(as_read, partition, names, [n for n in plain if n not in computed])
            table = _with_made(table, source, computed, partition.first_row, pieces)
        else:
            table = _read_partition_rows(source, partition, names, plain)
    except MisfitError as error:
        raise _first_fraction(source, partition, error) or error from None
    if names and table.num_rows != partition.rows:
        files = sorted({plan.files[p.file].path for p in pieces}) if plan.files else ["frame"]
        raise DataError(
            f"{table.num_rows} rows were read where {partition.rows} had been counted",
            where=", ".join(files[:3]),
            do="possible causes: the files changed since they were counted (run again when nothing writes to them), "
            "quotes in them do not match, a line of JSON lines has two objects",
        )
    return table


def _read_partition_rows(
    source: Plan | FramePlan, partition: Partition, names: Sequence[str], plain: Collection[str]
) -> pa.Table:
    """The rows of a partition; fields of structs are taken out of these."""
    pieces = [piece for block in partition.blocks for piece in block.pieces]
    if isinstance(source, Plan):
        return read_pieces(source, pieces, names, plain)
    plan = source.plan
    return _with_fields(plan, source.frames.read(pieces, find_root_columns(plan, names), partition.inputs), names)


def _with_fields(plan: Plan, table: pa.Table, names: Sequence[str]) -> pa.Table:
    """These columns out of a table that has the columns of structs in place of their fields."""
    fields = [name for name in names if name not in table.column_names]
    if not fields:
        return table
    types = pa.schema([(name, plan.schema[name].dtype) for name in fields])
    taken = conform(with_fields(table, fields), types)
    return pa.table({name: taken[name] if name in fields else table[name] for name in names})


def _with_made(
    table: pa.Table, plan: Plan, computed: Mapping[str, Sequence[str]], first_row: int, pieces: Sequence[Piece]
) -> pa.Table:
    """The table with the columns that expressions of `source.schema` make; a DataError for a value that one cannot
    read."""
    for name, (text, _) in computed.items():
        kernels = engines.engine("pandas")
        column = kernels.decode(kernels.from_arrow(table.select([name]))[name])
        try:
            made_column = verbs_arrow.array(evaluate(parse(text), {SELF: column}, strict=True))
        except UnreadError as error:
            what = error.what.replace(f"column {SELF!r}", f"column {name!r}")
            paths = format_files(list(dict.fromkeys(plan.files[p.file].path for p in pieces)))
            where = f"{paths}, row {first_row + error.row + 1:,} of the source"
            why = f"source.schema.{name} is {text}"
            do = "correct the value, or give it a fallback: coalesce(.., ..) takes the first value that can be read"
            raise DataError(what, where=where, why=why, do=do) from None
        chunks = conform_column(pa.chunked_array([made_column]), plan.schema[name].dtype)
        table = table.set_column(table.column_names.index(name), name, chunks)
    return table


def _first_fraction(source: Plan | FramePlan, partition: Partition, error: MisfitError) -> DataError | None:
    """The error with the first value that a type of integers does not hold, and its row; None for other types."""
    plan = source if isinstance(source, Plan) else source.plan
    name = error.column
    if name not in plan.schema:
        return None
    dtype = plan.schema[name].dtype
    if not pa.types.is_integer(dtype):
        return None
    here = replace(plan.schema[name], dtype=parse_dtype(plan.options.get(RETYPED, {}).get(name, "float64")))
    schema = Schema(here if column.name == name else column for column in plan.schema.columns)
    loose = replace(plan, schema=schema)
    frames = None if isinstance(source, Plan) else source.frames
    in_own_type = FramePlan(loose, replace(frames, schema=schema)) if frames else loose
    try:
        first = first_fraction(read(in_own_type, partition, [name]).column(name), dtype)
    except DataError:
        return None
    if first is None:
        return None
    row = partition.first_row + first[0]
    what = "element" if EXPLODED in plan.options else "row"
    path = "the given frame"
    do = f"give it one type: frame.astype({{{name!r}: 'float64'}})"
    if not frames:
        do = error.do
        place = file_of(loose, row)
        path, row = place or ("the source", row)
    return DataError(
        f"column {name!r} has a value that is not of type {dtype_name(dtype)}: {first[1]}",
        where=f"{path}, column {name}, {what} {row + 1:,}",
        why=error.why,
        do=plan.options.get(ADVICE, {}).get(name, do),
    )


def read_pieces(plan: Plan, pieces: Sequence[Piece], columns: Sequence[str], plain: Collection[str] = ()) -> pa.Table:
    """Read pieces of files as one table, in the types of the plan; columns may be fields of structs."""
    if (stored := find_root_columns(plan, columns)) != [*columns]:
        return _with_fields(plan, read_pieces(plan, pieces, stored, plain), columns)
    if EXPLODED in plan.options:
        return _read_elements(plan, pieces, columns)
    folders = plan.options.get("folders", {})
    check_together(plan, columns)
    if not folders.keys().isdisjoint(columns):
        return _with_folders(plan, pieces, columns, folders)
    absent = plan.options.get(ABSENT, {})
    if absent and any(not {*columns}.isdisjoint(absent.get(str(number), ())) for number in {p.file for p in pieces}):
        return _with_nulls(plan, pieces, columns, absent)
    schema = pa.schema([(name, plan.schema[name].dtype) for name in columns])
    options = {**plan.options, "plain": plain} if plain else plan.options
    paths = list(dict.fromkeys(plan.files[p.file].path for p in pieces))
    try:
        with note_activity(options, *paths), at(f"reading {format_files(paths)}"):
            return FORMATS[plan.format].read(plan.files, pieces, schema, options)
    except DataError as error:
        files = ", ".join(sorted({plan.files[p.file].path for p in pieces})[:3])
        if error.where:
            raise
        located = type(error)(error.what, where=files, why=error.why, do=error.do)
        located.__dict__ |= {"column": getattr(error, "column", "")}
        raise located from None


def _read_elements(plan: Plan, pieces: Sequence[Piece], columns: Sequence[str]) -> pa.Table:
    """Pieces of a plan whose rows are the elements of lists. Strings of all columns are dictionaries."""
    name = plan.options[EXPLODED]["column"]
    stored = as_stored(plan)
    tables = []
    for run in to_stored_runs(pieces):
        lists = read_pieces(stored, run.pieces, list(dict.fromkeys([*columns, name])))
        tables.append(explode(lists, name, run.skip, run.left))
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()
    if name in columns:
        elements = conform(table.select([name]), pa.schema([(name, plan.schema[name].dtype)]))
        table = table.set_column(table.column_names.index(name), name, elements[name])
    return table.select(list(columns))


def file_of(plan: Plan, row: int) -> tuple[str, int] | None:
    """The path of the file that has a row of the plan, and the number of the row in this file, from 0.

    A block of several small files of text is read once more, since it does not say how many rows each has. None where
    no file is known: for frames, and for files that cannot be read any more.
    """
    if not plan.files or not 0 <= row < plan.rows:
        return None
    number = bisect_right([block.first_row for block in plan.blocks], row) - 1
    block = plan.blocks[number]
    rest = row - block.first_row
    try:
        here = [(piece, _rows_in(plan, block, piece)) for piece in block.pieces]
        place = 0
        while rest >= here[place][1]:
            rest -= here[place][1]
            place += 1
        file = here[place][0].file
        rest += sum(rows for piece, rows in here[:place] if piece.file == file)
        left_out = plan.options.get(LEFT_OUT, {}).get(str(file), ())
        rest += sum(rows for group, rows in left_out if group < here[place][0].group)
        for earlier in plan.blocks[:number]:
            rest += sum(_rows_in(plan, earlier, piece) for piece in earlier.pieces if piece.file == file)
    except (RowmillError, OSError):
        return None
    return plan.files[file].path, rest


def _rows_in(plan: Plan, block: Block, piece: Piece) -> int:
    """The number of rows of a piece of a block."""
    known = rows_of_piece(plan.format, piece)
    if known is not None:
        return known
    if len(block.pieces) == 1:
        return block.rows
    in_files = [name for name in plan.schema if name not in plan.options.get("folders", {})]
    return read_pieces(plan, [piece], [next(n for n in in_files if n not in plan.options.get(APART, ()))]).num_rows


def _with_folders(
    plan: Plan, pieces: Sequence[Piece], columns: Sequence[str], folders: dict[str, list[str | None]]
) -> pa.Table:
    """Pieces with the columns that their files' folders name: one value for all rows of a file."""
    inside = [n for n in columns if n not in folders]
    if not inside and FORMATS[plan.format].ranged:  # the pieces do not say how many rows they are
        inside = [next(n for n in plan.schema if n not in folders and n not in plan.options.get(APART, ()))]
    tables = []
    for number, of_file in groupby(pieces, key=lambda piece: piece.file):
        same_file = list(of_file)
        by_name = dict(zip(inside, read_pieces(plan, same_file, inside).columns, strict=True)) if inside else {}
        rows = len(by_name[inside[0]]) if inside else sum(piece.stop - piece.start for piece in same_file)
        for name in (n for n in columns if n in folders):
            values = hive.constant(
                folders[name][number], plan.schema[name].dtype, rows, name in plan.options.get("schema", ())
            )
            by_name[name] = conform_column(pa.chunked_array([values]), values.type)
        tables.append(pa.table({name: by_name[name] for name in columns}))
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()


def _with_nulls(plan: Plan, pieces: Sequence[Piece], columns: Sequence[str], absent: dict[str, list[str]]) -> pa.Table:
    """Pieces with the columns that their files lack: null in all rows of such a file, or the one value that the
    metadata of a table has for it."""
    constants = plan.options.get(CONSTANTS, {})
    tables = []
    for number, of_file in groupby(pieces, key=lambda piece: piece.file):
        same_file = list(of_file)
        lacks = {*absent.get(str(number), ())}
        inside = [name for name in columns if name not in lacks]
        counted = bool(inside) or FORMATS[plan.format].ranged  # else the pieces say how many rows they are
        table = read_pieces(plan, same_file, inside) if counted else None
        rows = sum(piece.stop - piece.start for piece in same_file) if table is None else table.num_rows
        by_name = dict(zip(inside, table.columns, strict=True)) if table is not None else {}
        for name in lacks.intersection(columns):
            dtype = plan.schema[name].dtype
            values = constant(constants.get(name, {}).get(str(number)), dtype, rows)
            by_name[name] = conform_column(pa.chunked_array([values]), dtype)
        tables.append(pa.table({name: by_name[name] for name in columns}))
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()


def resolve_columns(plan: Plan, columns: Sequence[str] | None) -> list[str]:
    """The columns to read, all but the row number where none are named; a DataError for one that the plan lacks."""
    names = [n for n in plan.schema if n != ROW] if columns is None else list(columns)
    for name in names:
        if name not in plan.schema:
            raise DataError(f"there is no column {name!r}", where="source", do=near(name, plan.schema))
    return names


@cache
def _readers() -> ThreadPoolExecutor:
    """Threads of the process for it, one for each core."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="rowmill-read")


def read_side_by_side(
    source: Plan | FramePlan, partition: Partition, columns: Sequence[str], smallest: int = SMALLEST
) -> pa.Table:
    """`read` by all cores of the process at once, by runs of blocks: each is a chunk or several, of a dictionary of its
    own.

    A row group, which is decoded whole, is in one run, and so are the elements of a range of bytes.
    """
    if not isinstance(source, Plan):
        return read(source, partition, columns)
    size = max(smallest, partition.nbytes // (2 * len(os.sched_getaffinity(0))))
    ranged = FORMATS[source.format].ranged
    runs = runs_of(partition.blocks, size, lambda last, block: _is_read_with(last.pieces[-1], block.pieces[0], ranged))
    if len(runs) < 2:
        return read(source, partition, columns)
    parts = [Partition(partition.number, tuple(run)) for run in runs]
    return pa.concat_tables(_readers().map(lambda part: read(source, part, columns), parts))


def _is_read_with(last: Piece, piece: Piece, ranged: bool) -> bool:
    """Whether a piece is decoded together with the one before it."""
    if ranged:
        return last.stored == piece.stored
    return (last.file, last.group) == (piece.file, piece.group)
