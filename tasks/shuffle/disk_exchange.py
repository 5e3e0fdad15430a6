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
from tasks.graph.seen import unpacked
from tasks.shuffle.cutting import cut_partition
from tasks.shuffle.memory_exchange import Ranges
from tasks.shuffle.pieces import CutSummary, Cutting, summary
from tasks.storage.atomic import no_space, partial_file, read_json, write_json
from tasks.storage.checksum import digest, is_noted

POSITION = "__rowmill_position"


@dataclass(frozen=True)
class Scratch:
    """What every partition shares: the cutting and where its files go."""

    cutting: Cutting
    folder: str


@dataclass(frozen=True)
class ScratchCut:
    """A partition's pieces on disk; asked for ranges it reads only their bytes."""

    path: str
    offsets: tuple[tuple[int, ...], ...]
    engine: str

    def ranges(self, first: int, last: int) -> list[Any]:
        """The rows of ranges [first, last), as the engine's pieces (one for each part of a halved partition)."""
        kernels, pieces = engines.engine(self.engine), []
        reader = pa.ipc.open_file(pa.memory_map(self.path))
        for number, offsets in enumerate(self.offsets):
            low, high = offsets[first], offsets[last]
            table = pa.Table.from_batches([reader.get_batch(number).slice(low, high - low)])
            positions = np.asarray(table.column(POSITION).combine_chunks())
            inside = np.array(offsets[first : last + 1], dtype=np.int64) - low
            pieces.append(kernels.pieces_from_host(table.drop_columns([POSITION]), positions, inside, mapped=True))
        return pieces

    def rows_of(self, first: int, last: int) -> np.ndarray:
        """The rows of each of the ranges [first, last); nothing is read for it."""
        rows = [np.diff(offsets[first : last + 1]) for offsets in self.offsets]
        return np.asarray(np.sum(rows, axis=0, dtype=np.int64))


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
        offsets = write_scratch(partial, [kernels.pieces_to_host(p) for p in cut.pieces])
        of_cut = summary(cut)
        content = {
            **of_cut.to_json(),
            "seen": of_cut.seen.packed(),
            "offsets": offsets,
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


def write_scratch(path: Path, pieces: Sequence[tuple[pa.Table, np.ndarray, np.ndarray]]) -> list[list[int]]:
    """One record batch per piece, uncompressed, so that a range is a slice of mapped bytes; the ranges' offsets."""
    tables = [table.append_column(POSITION, pa.array(positions)) for table, positions, _ in pieces]
    # A file has one dictionary for a column; the parts of a halved partition come with one each.
    whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()
    first = 0
    with pa.ipc.new_file(str(path), whole.schema) as file:
        for table in tables:
            batch = whole.slice(first, table.num_rows).combine_chunks()
            empty = pa.RecordBatch.from_pylist([], schema=whole.schema)
            file.write_batch(batch.to_batches()[0] if batch.num_rows else empty)
            first += table.num_rows
    return [[int(o) for o in offsets] for _, _, offsets in pieces]


class DiskExchange:
    """Pieces in one scratch file per partition, under a folder that all workers share."""

    kind = "disk"

    def __init__(self, pool: Pool, folder: Path) -> None:
        self.pool, self.folder = pool, folder

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
        """function(shared, item, cuts) for every item, on any worker."""
        cuts = getattr(self, "cuts", None) or self._noted(shared.engine)
        return self.pool.map(_deliver, (function, shared, cuts), items, done)

    def _noted(self, engine: str) -> list[ScratchCut]:
        return [cut_of(read_json(note), engine) for note in sorted(self.folder.glob("partition-*.json"))]

    def whole(self, partitions: int) -> bool:
        """True if the files of all partitions are there, unchanged since they were written or reused."""
        notes = list(self.folder.glob("partition-*.json"))
        return len(notes) == partitions and all(is_untouched(str(note)) for note in notes)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def summary_of(note: dict[str, Any]) -> CutSummary:
    """The summary that the note of a partition's file has."""
    return CutSummary.from_json(note, unpacked(note["seen"]))


def cut_of(note: dict[str, Any], engine: str) -> ScratchCut:
    return ScratchCut(note["path"], tuple(tuple(o) for o in note["offsets"]), engine)


def _deliver(shared: tuple[Callable[..., Any], Any, Sequence[ScratchCut]], item: object) -> object:
    function, inner, cuts = shared
    return function(inner, item, cuts)
