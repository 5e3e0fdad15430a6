"""How many requests and bytes a pass over files of a storage takes, by their footers and sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

from tasks.core.plan import File, Partition, Plan, rows_together
from tasks.core.row_sizes import row_bytes
from tasks.core.schema import Schema
from tasks.sources.formats import FORMATS
from tasks.sources.formats.parquet_chunks import TAIL, chunk_ranges, footer_of
from tasks.storage.files import is_remote
from tasks.storage.ranges import join_ranges
from tasks.storage.store import PAGE

MOST_PARTITIONS = 200  # whose chunks are looked up; the others are like them


@dataclass(frozen=True)
class Reads:
    """Requests, and the bytes that they fetch."""

    requests: int = 0
    nbytes: int = 0

    def __add__(self, other: Reads) -> Reads:
        return Reads(self.requests + other.requests, self.nbytes + other.nbytes)

    def scale(self, factor: float) -> Reads:
        return Reads(round(self.requests * factor), round(self.nbytes * factor))


def estimate_listing(plan: Plan) -> Reads:
    """Estimate the requests that find the files and look at them again at the end of a run."""
    files = sum(is_remote(file.path) for file in plan.files)
    return Reads(2 * (1 + -(-files // PAGE))) if files else Reads()


def estimate_footers(plan: Plan, processes: int) -> Reads:
    """Estimate what planning reads of Parquet, and each process once more; nothing for other formats."""
    remote = [file for file in plan.files if is_remote(file.path)]
    if plan.format != "parquet":
        return Reads()
    return Reads(len(remote), sum(min(file.size, TAIL) for file in remote)).scale(processes)


def estimate_pass(plan: Plan, columns: Collection[str]) -> Reads:
    """Estimate what a pass fetches of these columns; of text, which is fetched once in a run, nothing."""
    if FORMATS[plan.format].ranged or not all(is_remote(file.path) for file in plan.files):
        return Reads()
    if plan.format == "parquet":
        step = -(-len(plan.partitions) // MOST_PARTITIONS)
        some = plan.partitions[::step]
        reads = sum((_estimate_partition(plan, partition, columns) for partition in some), Reads())
        return reads.scale(sum(p.nbytes for p in plan.partitions) / max(sum(p.nbytes for p in some), 1))
    width = {name: row_bytes(Schema([column])) for name, column in plan.schema.items()}
    share = sum(width[name] for name in columns if name in width) / max(sum(width.values()), 1)
    pieces = sum(len(block.pieces) for block in plan.blocks)
    return Reads(pieces * (1 + len(columns)), round(share * sum(file.size for file in plan.files)))


def estimate_text(plan: Plan) -> Reads:
    """Estimate what a run fetches of text: all of it, once, and a look at the file for each later read of a block."""
    remote = [file for file in plan.files if is_remote(file.path)]
    if not FORMATS[plan.format].ranged or not remote:
        return Reads()
    return Reads(len(remote) + len(plan.blocks), sum(file.size for file in remote))


def _estimate_partition(plan: Plan, partition: Partition, columns: Collection[str]) -> Reads:
    pieces = [piece for block in partition.blocks for piece in block.pieces]
    reads = Reads()
    for number, of_file in groupby(rows_together(pieces), key=lambda piece: piece.file):
        file = plan.files[number]
        footer = footer_of(file, plan.options.get("storage_options"))
        spans = join_ranges(chunk_ranges(footer, {piece.group for piece in of_file}, columns))
        reads += Reads(len(spans), sum(span.stop - span.start for span in spans))
    return reads


def name_storages(files: Sequence[File]) -> list[str]:
    """The scheme and bucket of files of storages, each once."""
    return sorted({"/".join(file.path.split("/", 3)[:3]) for file in files})
