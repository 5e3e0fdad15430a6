"""Each file gathers its pieces, orders them, is written, checked and noted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks import engines
from tasks.cluster import monitor
from tasks.cluster.out_of_memory import in_runs, more_memory, shortage, work_of_a_thread
from tasks.cluster.transfer import gpu_setup
from tasks.core.memory_budget import COPIES_WRITTEN_ON_CPU
from tasks.core.row_sizes import row_bytes
from tasks.core.schema import HIDDEN
from tasks.core.units import amount, most_amount
from tasks.errors import GiveUpError
from tasks.shuffle.file_writer import write_folders, write_folders_of_runs, write_table, write_whole
from tasks.shuffle.host_pieces import join_on_host, on_device
from tasks.shuffle.parts import Part, Writing, divide_into_runs, read_part_records, units_of
from tasks.shuffle.pieces import PartitionPieces
from tasks.shuffle.row_order import PARTLY_NEEDED
from tasks.storage.atomic import write_json


def write_part(writing: Writing, part: Part, cuts: Sequence[PartitionPieces]) -> list[dict[str, Any]]:
    """Write one file whole or not at all, and note it; a file that is noted and there is left as it is.

    With `partition_on` it becomes a file in each of the folders that its rows name.
    """
    gpu_setup.prepare(writing.engine)
    name = part.name(writing.suffix)
    note = Path(writing.notes) / f"{name}.json"
    folder = Path(writing.folder)
    done = read_part_records(note, folder, writing.fingerprint)
    if done is not None:
        return done
    records, halved = in_runs(
        "shuffle_write",
        part.number,
        most_runs(writing, part),
        first_runs(writing, part),
        lambda runs: _attempt(writing, part, cuts, runs),
        lambda error: _make_too_large_error(writing, part, error),
    )
    write_json(note, {"parts": records, "work": writing.fingerprint, "halved": halved})
    monitor.count(part.rows, sum(record["bytes"] for record in records))
    return records


def most_runs(writing: Writing, part: Part) -> int:
    """Compute in how many runs of rows a file may be written: of whole row groups, and of at least `floor` bytes
    each."""
    units = units_of(part.rows, _run_unit(writing))
    return max(1, min(units, part.rows * row_bytes(writing.schema) // max(writing.floor, 1)))


def _run_unit(writing: Writing) -> int:
    """Return the rows that stay together in a run; 0 if a file is written at once. Rows for folders are sorted
    there."""
    return 1 if writing.output.partition_on else engines.engine(writing.engine).run_unit(writing)


def first_runs(writing: Writing, part: Part) -> int:
    """Compute in how many runs a file is written at first.

    More than one if a GPU is small and files are to be written side by side, or if the memory of a CPU worker is small.
    """
    nbytes = part.rows * row_bytes(writing.schema)
    if limit := work_of_a_thread(writing.engine, pieces_in_memory=not writing.on_host):
        work = COPIES_WRITTEN_ON_CPU * nbytes
        beyond = PARTLY_NEEDED * work // max(part.last - part.first, 1)  # of each run, if there are several
        runs = 1 if work <= limit else math.ceil(work / max(limit - beyond, 1))
    else:
        runs = engines.runs_of_a_file(writing.engine, nbytes)
    return min(max(runs, 1), most_runs(writing, part))


def _attempt(writing: Writing, part: Part, cuts: Sequence[PartitionPieces], runs: int) -> list[dict[str, Any]]:
    """Gather and write the rows of a file, in so many runs; its records."""
    engine = engines.engine(writing.engine)
    name = part.name(writing.suffix)
    pieces = join_on_host(pieces_of(part, cuts)) if runs == 1 else []
    with engines.writing(writing.engine, part.rows * row_bytes(writing.schema) // runs, writing.on_host):
        if runs == 1:
            table = gather(writing, part, pieces)
            pieces.clear()  # those that were read from a disk are in memory of their own
            if writing.output.partition_on:
                return write_folders(writing, table, name)
            return [write_table(writing, table, name, part.rows)]
        counts = np.sum([cut.rows_of(part.first, part.last) for cut in cuts], axis=0)
        parts = divide_into_runs(part, counts, _run_unit(writing), runs)
        tables = (gather(writing, run, join_on_host(pieces_of(run, cuts))) for run in parts)
        if writing.output.partition_on:
            return write_folders_of_runs(writing, tables, name)
        return [write_whole(writing, name, part.rows, lambda path: engine.write_runs(tables, path, writing))]


def pieces_of(part: Part, cuts: Sequence[PartitionPieces]) -> list[Any]:
    """List the pieces of a part in all cuts."""
    return [piece for cut in cuts for piece in cut.ranges(part.first, max(part.last, part.first + 1))]


def gather(writing: Writing, part: Part, pieces: Sequence[Any]) -> Any:
    """Gather the rows of a part, in their order, as a table of the engine."""
    engine = engines.engine(writing.engine)
    pieces = on_device(pieces)
    if writing.order.mode != "key":
        return engine.assemble(pieces, part.skip, part.rows)
    table = engine.assemble_sorted(pieces, writing.order, HIDDEN)
    whole = part.skip == 0 and part.rows == len(table)
    return table if whole else engine.slice_table(table, part.skip, part.skip + part.rows)


def _make_too_large_error(writing: Writing, part: Part, error: BaseException) -> GiveUpError:
    """Explain why a file cannot be written in smaller runs of rows, and what to change."""
    unit = _run_unit(writing)
    nbytes = part.rows * row_bytes(writing.schema)
    fewer = "a higher output.files (or fewer rows_per_file)"
    if not unit:
        what = "one file does not fit into memory"
        do = f"set {fewer}"
    elif most_runs(writing, part) == units_of(part.rows, unit) and not writing.output.partition_on:
        what = "one row group of a file does not fit into memory"
        do = f"set output.row_group_size below {min(unit, part.rows):,} rows, or {fewer}"
    else:
        what = "a part of a file as small as run.min_partition_size does not fit into memory"
        do = f"set run.min_partition_size below {most_amount(writing.floor)}, or {fewer}"
    where = f"{part.name(writing.suffix)}: {part.rows:,} rows, about {amount(nbytes)}"
    do = f"{do}, or {more_memory(writing.engine)}"
    return GiveUpError(what, where=where, why=shortage(error, writing.engine), do=do)
