"""Pieces of partitions: how they are cut, packed, and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from tasks.engines.task_result import PiecesResult
from tasks.graph import seen as rows_seen
from tasks.graph.failed_casts import Record, sum_records
from tasks.graph.partition_work import Work
from tasks.graph.seen import Seen
from tasks.shuffle.row_order import Order


def shares_of(order: Order, workers: int) -> tuple[int, ...]:
    """Divide the ranges of position into equal shares of whole files; return the bounds."""
    files = order.ranges // order.of_file
    return tuple(-(-w * files // workers) * order.of_file for w in range(workers + 1))


@dataclass
class PartitionPieces(PiecesResult):
    """A partition's pieces (several where it had to be halved), with the rows that came in and went out, and those that
    rules of the source left out."""

    pieces: list[Any] = field(default_factory=list)
    rows_in: int = 0
    rows_out: int = 0
    failed: list[list[Record]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    left_out: list[dict[str, int]] = field(default_factory=list)

    @property
    def counts(self) -> np.ndarray:
        return sum((p.counts for p in self.pieces[1:]), self.pieces[0].counts)

    def ranges(self, first: int, last: int) -> list[Any]:
        return [p.ranges(first, last) for p in self.pieces]

    def rows_of(self, first: int, last: int) -> np.ndarray:
        """Return the rows of each of the ranges [first, last)."""
        return np.asarray(np.sum([p.counts for p in self.ranges(first, last)], axis=0, dtype=np.int64))


class PackedPieces(PartitionPieces):
    """Ranges [first, last) of cuts, in buffers of their own; asked for by the numbers that they have in the whole."""

    first: int = 0
    last: int = 0

    def ranges(self, first: int, last: int) -> list[Any]:
        low = max(first, self.first)
        high = min(last, self.last)
        return [p.ranges(low - self.first, high - self.first) for p in self.pieces] if low < high else []

    def rows_of(self, first: int, last: int) -> np.ndarray:
        rows = np.zeros(last - first, dtype=np.int64)
        low = max(first, self.first)
        high = min(last, self.last)
        if low < high:
            rows[low - first : high - first] = super().rows_of(low, high)
        return rows


def pack_ranges(cut: PartitionPieces, first: int, last: int) -> PackedPieces:
    """Copy some ranges of a cut, so that the rest can be freed."""
    packed = PackedPieces([p.pack_rows() for p in cut.ranges(first, last)])
    packed.first = first
    packed.last = last
    return packed


def join_cuts(parts: Sequence[PackedPieces]) -> PackedPieces:
    """Join the same ranges of several cuts."""
    joined = PackedPieces([piece for part in parts for piece in part.pieces])
    joined.first = parts[0].first
    joined.last = parts[0].last
    return joined


@dataclass(frozen=True)
class Cutting:
    """What every partition of the transform stage shares."""

    work: Work
    order: Order
    floor: int = 0
    partition_on: tuple[str, ...] = ()
    stage: str = "transform"
    on_host: bool = False  # pieces leave the GPU
    shares: tuple[int, ...] = ()  # bounds of the ranges that each worker will write


@dataclass(frozen=True)
class CutSummary:
    """What the flow has to know of the pieces of one partition, or of all.

    `counts` are the rows of each range of position; `rows_in` rows were read, `rows_out` are in the pieces; `halved`
    says how often a partition was divided because memory was short. `seen` is what was seen of the rows. `left_out`
    are rows that split and down-sampling left out, by the name of the count.
    """

    counts: np.ndarray
    rows_in: int
    rows_out: int
    nbytes: int
    halved: int
    failed_casts: list[Record]
    seen: Seen = field(default_factory=Seen)
    left_out: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a note; without what was seen of the rows."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "seen"}
        return {**values, "counts": self.counts.tolist()}

    @classmethod
    def from_json(cls, note: Mapping[str, Any], seen: Seen | None = None) -> CutSummary:
        """Read the summary in a note."""
        values = {one.name: note[one.name] for one in fields(cls) if one.name != "seen"}
        return cls(**{**values, "counts": np.array(note["counts"], dtype=np.int64), "seen": seen or Seen()})


def summary(cut: PartitionPieces) -> CutSummary:
    """Summarize one partition's pieces."""
    return CutSummary(
        np.asarray(cut.counts),
        cut.rows_in,
        cut.rows_out,
        cut.nbytes,
        len(cut.pieces) - 1,
        sum_records(cut.failed),
        rows_seen.merge_seen(cut.seen),
        rows_seen.sum_counts(cut.left_out),
    )


def totals(summaries: Sequence[CutSummary]) -> CutSummary:
    """Summarize all partitions."""
    counts = np.asarray(np.sum([s.counts for s in summaries], axis=0, dtype=np.int64))
    return CutSummary(
        counts,
        rows_in=sum(s.rows_in for s in summaries),
        rows_out=int(counts.sum()),
        nbytes=sum(s.nbytes for s in summaries),
        halved=sum(s.halved for s in summaries),
        failed_casts=sum_records(s.failed_casts for s in summaries),
        seen=rows_seen.merge_seen(s.seen for s in summaries),
        left_out=rows_seen.sum_counts(s.left_out for s in summaries),
    )
