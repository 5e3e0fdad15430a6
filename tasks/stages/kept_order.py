"""Files of rows that keep their order: each file is made of its own blocks, and no row waits for it elsewhere.

A block at the border of two files is computed for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.cluster.parallelism import threads_of_each
from tasks.cluster.pool import Done, Pool
from tasks.core.memory_budget import COPIES_WRITTEN_ON_CPU, host_work_limit
from tasks.core.plan import Input, Partition, Plan
from tasks.core.row_sizes import row_bytes
from tasks.graph.binding import SOURCE
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import ALL_ROWS
from tasks.shuffle.cutting import cut_partition
from tasks.shuffle.memory_exchange import Ranges
from tasks.shuffle.parts import Part
from tasks.shuffle.pieces import CutSummary, Cutting, summary
from tasks.shuffle.row_order import RANGES_PER_FILE


@dataclass(frozen=True)
class FileBlocks:
    """A file, and the blocks that have its rows, in their partitions; the first `before` of these have the blocks that
    begin in an earlier file."""

    part: Part
    partitions: tuple[Partition, ...]
    before: int

    @property
    def inputs(self) -> tuple[Input, ...]:
        return _list_inputs(self.partitions)

    def with_frames(self, frames: Sequence[Any]) -> FileBlocks:
        """Replace the frames in its inputs."""
        frame_of = dict(zip((one.number for one in self.inputs), frames, strict=True))
        filled = [p.with_frames([frame_of[one.number] for one in p.inputs]) for p in self.partitions]
        return replace(self, partitions=tuple(filled))


class KeptOrder:
    """Cuts nothing before a file asks for it. For rows of which none is left out: only then are the rows of each file
    known before they are computed."""

    kind = "none"

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.summaries: list[CutSummary] = []

    def fill(self, cutting: Cutting, partitions: Sequence[Partition], done: Done | None) -> list[CutSummary]:
        """Nothing but the number of rows in each range of position; what is known of the rows is in `summaries` after
        `deliver`."""
        self.cutting = cutting
        self.partitions = partitions
        rows = cutting.order.rows
        return [CutSummary(np.diff(cutting.order.edges), rows, rows, 0, 0, [])]

    def deliver(
        self, function: Callable[..., Any], shared: object, items: Sequence[Part], ranges: Ranges, done: Done | None
    ) -> list[Any]:
        """Call function(shared, file, cuts) for every file; its pieces are cut in the same task."""
        starts = np.array([partition.first_row for partition in self.partitions])
        files = [self._list_blocks(part, starts) for part in items]
        results = self.pool.map(_cut_and_write, (function, shared, self.cutting), files, done)
        self.summaries = [of_cut for _, of_file in results for of_cut in of_file]
        return [records for records, _ in results]

    def _list_blocks(self, part: Part, starts: np.ndarray) -> FileBlocks:
        """Return the blocks of the ranges of a file up to its last row, at least one; `starts` are the first rows of
        all partitions."""
        begin = int(self.cutting.order.edges[part.first])
        first = begin + part.skip
        end = max(first + part.rows, begin + 1)
        low = int(np.searchsorted(starts, begin, side="right")) - 1
        high = int(np.searchsorted(starts, end, side="left"))
        before = list[Partition]()
        own = list[Partition]()
        for partition in self.partitions[low:high]:
            blocks = [b for b in partition.by_block() if b.first_row < end and b.first_row + b.rows > begin]
            if of_earlier := [block for block in blocks if block.first_row < first]:
                before.append(_join(partition.number, of_earlier))
            if of_this := [block for block in blocks if block.first_row >= first]:
                own.append(_join(partition.number, of_this))
        return FileBlocks(part, (*before, *own), len(before))

    def close(self) -> None:
        return


def _join(number: int, blocks: Sequence[Partition]) -> Partition:
    """Join partitions of one block each."""
    return Partition(number, tuple(block.blocks[0] for block in blocks), _list_inputs(blocks))


def _list_inputs(partitions: Sequence[Partition]) -> tuple[Input, ...]:
    """List the frames that have the rows of partitions, each once."""
    return tuple({one.number: one for partition in partitions for one in partition.inputs}.values())


def _cut_and_write(task: tuple[Callable[..., Any], Any, Cutting], file: FileBlocks) -> tuple[object, list[CutSummary]]:
    """Cut the pieces of a file and write it; return its result, and the summaries of the blocks that begin in it."""
    function, shared, cutting = task
    cuts = [cut_partition(cutting, partition) for partition in file.partitions]
    return function(shared, file.part, cuts), [summary(cut) for cut in cuts[file.before :]]


def keeps_order(work: Work, plan: Plan, mode: str) -> bool:
    """Return whether the rows of the output are those of the plan, all of them and in their order."""
    leaves_out = work.filters or work.filter is not None or work.rules != ALL_ROWS
    is_whole = work.bound.space == SOURCE and not leaves_out
    return mode == "none" and work.engine == "pandas" and is_whole and not plan.options.get("keyed")


def fits(work: Work, rows: int, files: int, pool: Pool) -> bool:
    """Return whether each file has rows enough for its ranges of position, and each thread memory for the rows of a
    file.

    With fewer rows than ranges only the cut itself tells which of the empty ranges around a row has it.
    """
    if rows < RANGES_PER_FILE * files:
        return False
    limit = host_work_limit(pool.smallest_memory, threads_of_each(pool), pieces_in_memory=False)
    return COPIES_WRITTEN_ON_CPU * rows // files * row_bytes(work.bound.output) <= limit
