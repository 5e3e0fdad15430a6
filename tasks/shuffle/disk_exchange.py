"""Pieces in scratch files, one per partition, read by ranges of position: any size, and there after a crash."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.cluster.pool import Done, Pool
from tasks.core.plan import Partition
from tasks.graph.seen import parse_seen
from tasks.shuffle.cutting import cut_partition
from tasks.shuffle.memory_exchange import Ranges
from tasks.shuffle.pieces import CutSummary, Cutting, summary
from tasks.storage.atomic import no_space, partial_file, read_json, write_json
from tasks.storage.checksum import digest, is_noted

POSITION = "__rowmill_position"
BATCH_BYTES = 64 << 10  # of rows in a record batch: besides the rows of a file, at most two of them are read
COLUMN_BYTES = 1 << 10  # of a column in a record batch: sixteen times what the batch needs to describe the column
MOST_BATCHES = 4096  # of a piece: each reader of the file reads the list of its batches


@dataclass(frozen=True)
class Scratch:
    """What every partition shares: the cutting and where its files go."""

    cutting: Cutting
    folder: str


@dataclass(frozen=True)
class ScratchCut:
    """A partition's pieces on disk; asked for ranges it reads only their rows, and up to two batches around them.

    The rows are read into memory of their own. Pages of a mapped file would count as memory of the worker, which its
    nanny ends for them, and the kernel maps many pages around each that is touched.
    """

    path: str
    offsets: tuple[tuple[int, ...], ...]
    batch_rows: int
    engine: str

    def ranges(self, first: int, last: int) -> list[Any]:
        """Return the rows of ranges [first, last), as the engine's pieces (one for each part of a halved partition)."""
        kernels = engines.engine(self.engine)
        pieces = []
        before = 0  # batches of the pieces that are read already
        with pa.OSFile(self.path) as file:
            reader = pa.ipc.open_file(file)
            for offsets in self.offsets:
                table = _read_rows(reader, before, self.batch_rows, offsets[first], offsets[last])
                before += _count_batches(offsets[-1], self.batch_rows)
                positions = np.asarray(table.column(POSITION).combine_chunks())
                inside = np.array(offsets[first : last + 1], dtype=np.int64) - offsets[first]
                pieces.append(kernels.pieces_from_host(table.drop_columns([POSITION]), positions, inside))
        return pieces

    def rows_of(self, first: int, last: int) -> np.ndarray:
        """Count the rows of each of the ranges [first, last); nothing is read for it."""
        rows = [np.diff(offsets[first : last + 1]) for offsets in self.offsets]
        return np.asarray(np.sum(rows, axis=0, dtype=np.int64))


def _count_batches(rows: int, batch_rows: int) -> int:
    """Count the batches of a piece of so many rows.

    >>> _count_batches(0, 100), _count_batches(100, 100), _count_batches(101, 100)
    (0, 1, 2)
    """
    return -(-rows // batch_rows)


def _read_rows(reader: pa.RecordBatchFileReader, before: int, batch_rows: int, low: int, high: int) -> pa.Table:
    """Read rows [low, high) of a piece, after the `before` batches of other pieces, in one chunk for each column."""
    if low == high:
        return reader.schema.empty_table()
    first = low // batch_rows
    last = _count_batches(high, batch_rows)
    table = pa.Table.from_batches([reader.get_batch(before + number) for number in range(first, last)])
    return table.slice(low - first * batch_rows, high - low).combine_chunks()


def rows_of_batch(rows: int, columns: int, nbytes: int) -> int:
    """Choose the rows of each record batch of a piece.

    Few, so that little is read besides the rows that a file needs, but enough to outweigh the cost of a batch.

    >>> rows_of_batch(900_000, 6, 41 * 900_000), rows_of_batch(16_000, 1_000, 8_000 * 16_000), rows_of_batch(0, 6, 0)
    (1598, 128, 65536)
    """
    each = max(nbytes // max(rows, 1), 1)
    return max(max(BATCH_BYTES, COLUMN_BYTES * columns) // each, -(-rows // MOST_BATCHES), 1)


def scratch_partition(scratch: Scratch, partition: Partition) -> dict[str, Any]:
    """Cut a partition into its file, unless the note of a former attempt says that the file is there and whole."""
    path = Path(scratch.folder) / f"partition-{partition.number:06d}.arrow"
    note = path.with_suffix(".json")
    done = read_json(note)
    if isinstance(done, dict) and is_noted(path, done):
        return done
    cut = cut_partition(scratch.cutting, partition)
    kernels = scratch.cutting.work.kernels
    with no_space(path), partial_file(path) as partial:
        offsets, batch_rows = write_scratch(partial, [kernels.pieces_to_host(p) for p in cut.pieces])
        of_cut = summary(cut)
        content = {
            **of_cut.to_json(),
            "seen": of_cut.seen.to_text(),
            "offsets": offsets,
            "batch_rows": batch_rows,
            "bytes": partial.stat().st_size,
            "xxh3_128": digest(partial),
            "path": str(path),
        }
    write_json(note, {**content, "mtime": path.stat().st_mtime_ns})
    return content


def is_untouched(note: str) -> bool:
    """True if the file of a note is there as it was written; its bytes are read only where its time says that it
    changed."""
    content = read_json(Path(note))
    if not isinstance(content, dict):
        return False
    path = Path(content["path"])
    try:
        stat = path.stat()
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (content["bytes"], content["mtime"]) or is_noted(path, content)


def write_scratch(path: Path, pieces: Sequence[tuple[pa.Table, np.ndarray, np.ndarray]]) -> tuple[list[list[int]], int]:
    """Write the pieces one after another, uncompressed, in record batches of equally many rows; a piece begins with a
    batch. Return the offsets of the ranges of each piece, and the rows of a batch."""
    tables = [table.append_column(POSITION, pa.array(positions)) for table, positions, _ in pieces]
    # A file has one dictionary for a column; the parts of a halved partition come with one each.
    whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()
    batch_rows = rows_of_batch(whole.num_rows, whole.num_columns, whole.nbytes)
    first = 0
    with pa.ipc.new_file(str(path), whole.schema) as file:
        for table in tables:
            rows = whole.slice(first, table.num_rows).combine_chunks()
            for batch in rows.to_batches(max_chunksize=batch_rows):
                file.write_batch(batch)
            first += table.num_rows
    return [[int(o) for o in offsets] for _, _, offsets in pieces], batch_rows


class DiskExchange:
    """Pieces in one scratch file per partition, under a folder that all workers share."""

    kind = "disk"

    def __init__(self, pool: Pool, folder: Path) -> None:
        self.pool = pool
        self.folder = folder

    def fill(self, cutting: Cutting, partitions: Sequence[Partition], done: Done | None) -> list[CutSummary]:
        """Cut every partition into its file; the summaries in the order of the partitions."""
        with no_space(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        notes = self.pool.map(scratch_partition, Scratch(cutting, str(self.folder)), partitions, done)
        self.cuts = [cut_of(note, cutting.work.engine) for note in notes]
        return [summary_of(note) for note in notes]

    def deliver(
        self, function: Callable[..., Any], shared: Any, items: Sequence[Any], ranges: Ranges, done: Done | None
    ) -> list[Any]:
        """Call function(shared, item, cuts) for every item, on any worker."""
        cuts = getattr(self, "cuts", None) or self._read_cut_notes(shared.engine)
        return self.pool.map(_deliver, (function, shared, cuts), items, done)

    def _read_cut_notes(self, engine: str) -> list[ScratchCut]:
        return [cut_of(read_json(note), engine) for note in sorted(self.folder.glob("partition-*.json"))]

    def whole(self, partitions: int) -> bool:
        """True if the files of all partitions are there, unchanged since they were written or reused."""
        notes = list(self.folder.glob("partition-*.json"))
        return len(notes) == partitions and all(is_untouched(str(note)) for note in notes)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def summary_of(note: dict[str, Any]) -> CutSummary:
    """Read the summary in the note of a partition's file."""
    return CutSummary.from_json(note, parse_seen(note["seen"]))


def cut_of(note: dict[str, Any], engine: str) -> ScratchCut:
    return ScratchCut(note["path"], tuple(tuple(o) for o in note["offsets"]), note["batch_rows"], engine)


def _deliver(shared: tuple[Callable[..., Any], Any, Sequence[ScratchCut]], item: object) -> object:
    function, inner, cuts = shared
    return function(inner, item, cuts)
