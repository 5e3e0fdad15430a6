"""Each file gathers its pieces, orders them, is written, checked and noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.orc as paorc

from tasks import frame, hive, monitor, shuffle
from tasks.commit import flush, no_space, partial_file, read_json, write_json
from tasks.errors import DataError, GiveUpError, JobError
from tasks.memory import in_runs, megabytes, more_memory, shortage
from tasks.on_host import joined_on_host, on_device
from tasks.row_runs import runs_of, units_of
from tasks.row_sizes import row_bytes
from tasks.schema import HIDDEN, Column, Schema, dtype_name
from tasks.settings import Output
from tasks.sink import digest
from tasks.transform import RANGES_PER_FILE, Cut, Order

BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)


def check_types(output: Output, written: Mapping[str, Column]) -> None:
    """Refuse columns that files of the format cannot hold, which Arrow says of a table without rows."""
    write: Any = {"csv": pacsv.write_csv, "orc": paorc.write_table}.get(output.format)
    for column in written.values() if write else ():
        try:
            write(pa.schema([("x", column.dtype)]).empty_table(), pa.BufferOutputStream())
            if output.format == "csv" and any(holds(column.dtype) for holds in BYTES):
                raise pa.ArrowInvalid("bytes are no text, which a table without rows does not show")
        except pa.ArrowException:
            raise JobError(
                f"files of the format {output.format} cannot hold column {column.name!r}",
                where="output.format",
                why=f"it is {dtype_name(column.dtype)}",
                do="write parquet or arrow, cast the column with Lambda(expression='cast(..)'), or leave it out",
            ) from None


@dataclass(frozen=True)
class Part:
    """A file to be written: ranges [first, last) of position, of whose rows `skip` are left out and `rows` taken."""

    number: int
    first: int
    last: int
    skip: int
    rows: int

    def name(self, suffix: str) -> str:
        return f"part-{self.number:05d}.{suffix}"


@dataclass(frozen=True)
class Writing:
    """What every file of the stage shares."""

    folder: str
    notes: str
    engine: str
    output: Output
    order: Order
    schema: Schema
    fingerprint: str = ""
    floor: int = 0  # bytes of rows below which a file is not written in smaller runs when memory is short
    on_host: bool = False  # pieces are not kept on the GPU

    @property
    def suffix(self) -> str:
        return self.output.format

    @cached_property
    def dictionary_columns(self) -> list[str]:
        """Columns that a dictionary makes smaller: strings and categories of few values."""
        few = [
            c for c in self.schema.columns if "categorical" in c.tags and c.properties.get("cardinality", 0) <= 1 << 17
        ]
        return [c.name for c in self.schema.columns if c in few or pa.types.is_string(c.leaf)]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k in self.__dataclass_fields__}


def plan_parts(counts: np.ndarray, output: Output, order: Order, files: int) -> list[Part]:
    """The files, from the rows that are left in every range of position: equal to one row, or all full but the last."""
    ends = np.cumsum(counts)
    rows = int(ends[-1])
    if not rows:
        raise DataError(
            "no row is left to write", why="filters removed every row", do="check source.filter against the data"
        )
    if order.mode == "key":
        each = [(f * RANGES_PER_FILE, (f + 1) * RANGES_PER_FILE) for f in range(files)]
        return [Part(f, low, high, 0, int(counts[low:high].sum())) for f, (low, high) in enumerate(each)]
    if output.rows_per_file:
        size = output.rows_per_file
        ranks = [(low, min(low + size, rows)) for low in range(0, rows, size)]
    else:
        ranks = shuffle.file_ranks(rows, files)
    parts = []
    for number, (low, high) in enumerate(ranks):
        first = int(np.searchsorted(ends, low, side="right"))
        last = int(np.searchsorted(ends, high, side="left")) + 1 if high > low else first
        before = int(ends[first - 1]) if first else 0
        parts.append(
            Part(
                number,
                min(first, len(counts) - 1),
                min(last, len(counts)),
                low - before if high > low else 0,
                high - low,
            )
        )
    return parts


def write_part(writing: Writing, part: Part, cuts: Sequence[Cut]) -> list[dict[str, Any]]:
    """Write one file whole or not at all, and note it; a file that is noted and there is left as it is.

    With `partition_on` it becomes a file in each of the folders that its rows name.
    """
    name = part.name(writing.suffix)
    note, folder = Path(writing.notes) / f"{name}.json", Path(writing.folder)
    done = written(note, folder, writing.fingerprint)
    if done is not None:
        return done
    records, halved = in_runs(
        "shuffle_write",
        part.number,
        most_runs(writing, part),
        first_runs(writing, part),
        lambda runs: _attempt(writing, part, cuts, runs),
        lambda error: _too_large(writing, part, error),
    )
    write_json(note, {"parts": records, "work": writing.fingerprint, "halved": halved})
    monitor.count(part.rows, sum(record["bytes"] for record in records))
    return records


def most_runs(writing: Writing, part: Part) -> int:
    """In how many runs of rows a file may be written: of whole row groups, and of at least `floor` bytes each."""
    units = units_of(part.rows, _run_unit(writing))
    return max(1, min(units, part.rows * row_bytes(writing.schema) // max(writing.floor, 1)))


def _run_unit(writing: Writing) -> int:
    """The rows that stay together in a run; 0 where a file is written at once. Rows for folders are put together
    there."""
    return 1 if writing.output.partition_on else frame.engine(writing.engine).run_unit(writing)


def first_runs(writing: Writing, part: Part) -> int:
    """In how many runs a file is written at first: in more than one where a GPU is small and files shall be written
    side by side."""
    return min(frame.runs_of_a_file(writing.engine, part.rows * row_bytes(writing.schema)), most_runs(writing, part))


def _attempt(writing: Writing, part: Part, cuts: Sequence[Cut], runs: int) -> list[dict[str, Any]]:
    """Gather and write the rows of a file, in so many runs; its records."""
    engine, name = frame.engine(writing.engine), part.name(writing.suffix)
    pieces = joined_on_host(pieces_of(part, cuts)) if runs == 1 else []
    with frame.writing(writing.engine, part.rows * row_bytes(writing.schema) // runs, writing.on_host):
        if runs == 1:
            table = gather(writing, part, pieces)
            if writing.output.partition_on:
                return _write_folders(writing, table, name)
            return [write_table(writing, table, name, part.rows)]
        counts = np.sum([cut.rows_of(part.first, part.last) for cut in cuts], axis=0)
        parts = runs_of(part, counts, _run_unit(writing), runs)
        tables = (gather(writing, run, joined_on_host(pieces_of(run, cuts))) for run in parts)
        if writing.output.partition_on:
            return _write_folders_of_runs(writing, tables, name)
        return [write_whole(writing, name, part.rows, lambda path: engine.write_runs(tables, path, writing))]


def pieces_of(part: Part, cuts: Sequence[Cut]) -> list[Any]:
    """What all cuts have of a part."""
    return [piece for cut in cuts for piece in cut.ranges(part.first, max(part.last, part.first + 1))]


def gather(writing: Writing, part: Part, pieces: Sequence[Any]) -> Any:
    """The rows of a part, in their order, as a table of the engine."""
    engine, pieces = frame.engine(writing.engine), on_device(pieces)
    if writing.order.mode != "key":
        return engine.assemble(pieces, part.skip, part.rows)
    table = engine.assemble_sorted(pieces, writing.order, HIDDEN)
    whole = part.skip == 0 and part.rows == len(table)
    return table if whole else engine.slice_table(table, part.skip, part.skip + part.rows)


def _too_large(writing: Writing, part: Part, error: BaseException) -> GiveUpError:
    """Why a file cannot be written in smaller runs of rows, and what to change."""
    unit = _run_unit(writing)
    nbytes, fewer = part.rows * row_bytes(writing.schema), "a higher output.files (or fewer rows_per_file)"
    if not unit:
        what, do = "one file does not fit into memory", f"set {fewer}"
    elif most_runs(writing, part) == units_of(part.rows, unit) and not writing.output.partition_on:
        what = "one row group of a file does not fit into memory"
        do = f"set output.row_group_size below {min(unit, part.rows):,} rows, or {fewer}"
    else:
        what = "a part of a file as small as run.min_partition_size does not fit into memory"
        do = f"set run.min_partition_size below {megabytes(writing.floor)}, or {fewer}"
    where = f"{part.name(writing.suffix)}: {part.rows:,} rows, about {megabytes(nbytes)}"
    do = f"{do}, or {more_memory(writing.engine)}"
    return GiveUpError(what, where=where, why=shortage(error, writing.engine), do=do)


def _write_folders(writing: Writing, table: Any, name: str) -> list[dict[str, Any]]:
    """The rows of one file in their folders, in each in their order; the columns of the folders' names are left out."""
    engine, inner = frame.engine(writing.engine), _in_folders(writing)
    order, ranges = _folders(writing, table, name)
    table = engine.table_rows(table, order)
    return [
        write_table(inner, engine.slice_table(table, start, stop), f"{folder}/{name}", stop - start)
        for folder, start, stop in ranges
    ]


def _write_folders_of_runs(writing: Writing, tables: Iterator[Any], name: str) -> list[dict[str, Any]]:
    """The same of a file's rows in runs: what goes into one folder is gathered in host memory, and written at once."""
    engine, inner = frame.engine(writing.engine), _in_folders(writing)
    held: dict[str, list[pa.Table]] = {}
    while (table := next(tables, None)) is not None:
        order, ranges = _folders(writing, table, name)
        rows = engine.host_columns(table, inner.schema).take(pa.array(order))
        del table
        for folder, start, stop in ranges:
            held.setdefault(folder, []).append(rows.slice(start, stop - start))
        del rows
    return [
        write_table(inner, frame.table_on(writing.engine, rows), f"{folder}/{name}", len(rows))
        for folder in sorted(held)
        for rows in [pa.concat_tables(held.pop(folder)).combine_chunks()]
    ]


def _folders(writing: Writing, table: Any, name: str) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """`hive.folders` of a table."""
    named = Schema(writing.schema[n] for n in writing.output.partition_on)
    return hive.folders(frame.engine(writing.engine).host_columns(table, named), f"file {name}")


def _in_folders(writing: Writing) -> Writing:
    return replace(writing, schema=hive.stored(writing.schema, writing.output.partition_on))


def write_table(writing: Writing, table: Any, name: str, rows: int) -> dict[str, Any]:
    """All rows of a file at once; its record."""
    write = frame.engine(writing.engine).write_file
    return write_whole(writing, name, rows, lambda path: write(table, path, writing))


def write_whole(writing: Writing, name: str, rows: int, write: Callable[[str], str | None]) -> dict[str, Any]:
    """One file that `write(path)` writes, whole or not at all, and digests where that is cheap; its record."""
    path = Path(writing.folder) / name
    with no_space(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial_file(path) as unfinished:
            known = write(str(unfinished)) or digest(unfinished)
            record = {"path": name, "rows": rows, "bytes": unfinished.stat().st_size, "xxh3_128": known}
            flush(unfinished)
            check_footer(unfinished, rows, writing.suffix)
    return record


def written(note: Path, folder: Path, fingerprint: str) -> list[dict[str, Any]] | None:
    """The records of what this very work wrote of a file and what is there, else None."""
    found = read_json(note)
    if not isinstance(found, dict) or found.get("work") != fingerprint:
        return None
    records: list[dict[str, Any]] = found["parts"]
    paths = [folder / record["path"] for record in records]
    whole = all(p.is_file() and p.stat().st_size == r["bytes"] for p, r in zip(paths, records, strict=True))
    return records if whole else None


def check_footer(path: Path, rows: int, suffix: str) -> None:
    import pyarrow.parquet as pq

    if suffix == "parquet":
        found = pq.read_metadata(path).num_rows
        if found != rows:
            raise DataError(
                f"{path.name} holds {found:,} rows instead of {rows:,}",
                why="the file was not written whole",
                do="run the job again",
            )
