"""Stage 4, shuffle_write: each file collects its pieces, puts its rows in order, and is written and noted.

In: the pieces of a split and their note. Out: the files of the split in `new/` of the staging folder, and a note with
the records of each (`parts/`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tasks.cluster.pool import Pool
from tasks.core.row_sizes import row_width
from tasks.core.settings import Output
from tasks.core.stage_results import PartRecord, WriteResult
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError
from tasks.job.request import Request, SavedPlans
from tasks.shuffle.choice import Exchange
from tasks.shuffle.parts import Part, Writing, read_part_records
from tasks.shuffle.row_order import describe_choice
from tasks.shuffle.rows_to_files import write_files
from tasks.stages.progress import Progress, RowCounter, no_progress
from tasks.stages.reuse import (
    PiecesNote,
    Prepared,
    drop_damaged,
    exchange_of,
    halvings,
    missing_parts,
    prepare_split,
    read_pieces_note,
)
from tasks.stages.transform import cut_split
from tasks.storage import hive
from tasks.storage.atomic import no_space
from tasks.storage.files import check_unchanged


def shuffle_write(request: Request, split: str, pool: Pool, progress: Progress = no_progress) -> WriteResult:
    """Write the files of a split that are not there yet. Pieces that were lost meanwhile are made again."""
    start = time.perf_counter()
    ready = prepare_split(request, split)
    staging = request.staging
    output = request.output
    folder = staging.new / split
    notes = staging.notes / split
    drop_damaged(folder, notes, pool)
    note, exchange = _prepare_pieces(request, split, ready, pool)
    parts, missing = missing_parts(request, split, ready, note)
    for path in (folder, notes):
        with no_space(path):
            path.mkdir(parents=True, exist_ok=True)
    writing = ready.shuffle.writing(folder, notes, ready.fingerprint, note.choice.off_device)
    counter = RowCounter(progress, sum(part.rows for part in parts))
    counter.add(sum(part.rows for part in parts) - sum(part.rows for part in missing))
    write_files(exchange, writing, missing, lambda i, _: counter.add(missing[i].rows))
    exchange.close()
    check_unchanged(*SavedPlans(request).sources(split))
    records = _read_records(parts, writing)
    chosen = describe_choice(note.summary.rows_out, row_width(ready.shuffle.schema)) if output.chooses_files else ""
    return WriteResult(
        split=split,
        rows=sum(record["rows"] for record in records),
        nbytes=sum(record["bytes"] for record in records),
        seconds=time.perf_counter() - start,
        reused=not missing,
        halved=halvings(notes),
        files=len(parts),
        rows_in=note.summary.rows_in,
        rows_out=note.summary.rows_out,
        chosen_files=chosen,
        parts=records,
        **_describe_folders(records, len(parts), output),
    )


def _prepare_pieces(request: Request, split: str, ready: Prepared, pool: Pool) -> tuple[PiecesNote, Exchange]:
    """Return the note of the split's pieces and the exchange that has them; pieces that a file lacks are made again."""
    note = read_pieces_note(request, split, ready)
    if note is not None:
        exchange = exchange_of(request, ready, pool, note.choice.kind)
        if not missing_parts(request, split, ready, note)[1] or exchange.whole(len(ready.plan.partitions)):
            return note, exchange
    return cut_split(request, split, ready, pool)


def _describe_folders(records: Sequence[PartRecord], files: int, output: Output) -> JsonObject:
    """Return the figures of Hive folders; none without them."""
    if not output.partition_on:
        return {}
    folders = {record["path"].rpartition("/")[0] for record in records}
    advice = hive.advice([dict(record) for record in records], files)
    return {"folders": len(folders), "folder_files": len(records), "advice": advice}


def _read_records(parts: Sequence[Part], writing: Writing) -> list[JsonObject]:
    """Read the records of all parts; a DataError if a file went away meanwhile."""
    records: list[JsonObject] = []
    for name in (part.name(writing.suffix) for part in parts):
        of_part = read_part_records(Path(writing.notes) / f"{name}.json", Path(writing.folder), writing.fingerprint)
        if of_part is None:
            raise DataError(
                "a file that was written is gone",
                where=str(Path(writing.folder) / name),
                why="something else removed or changed it",
                do="run the same job again",
            )
        records += of_part
    return records
