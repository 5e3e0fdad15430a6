"""The rows of a partition read by all cores of the process at once.

A GPU's partitions are large and few: where the host reads them, the thread of each leaves most cores idle.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pyarrow as pa

from tasks.dataset import read
from tasks.formats import FORMATS
from tasks.plan import Block, Partition, Plan, runs_of

SMALLEST = 32 * 2**20  # decoded bytes that are worth a step of their own


@cache
def _readers() -> ThreadPoolExecutor:
    """Threads of the process for it, one for each core."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="millrace-read")


def read_side_by_side(source: Any, partition: Partition, columns: Sequence[str], smallest: int = SMALLEST) -> pa.Table:
    """`tasks.dataset.read`, by runs of blocks: each is a chunk or several, of a dictionary of its own.

    A row group, which is decoded whole, is in one run.
    """
    if not isinstance(source, Plan):
        return read(source, partition, columns)
    size = max(smallest, partition.nbytes // (2 * len(os.sched_getaffinity(0))))
    ranged = FORMATS[source.format].ranged
    runs = runs_of(partition.blocks, size, lambda last, block: not ranged and _group(last, -1) == _group(block, 0))
    if len(runs) < 2:
        return read(source, partition, columns)
    parts = [Partition(partition.number, tuple(run)) for run in runs]
    return pa.concat_tables(_readers().map(lambda part: read(source, part, columns), parts))


def _group(block: Block, place: int) -> tuple[int, int]:
    """The file and row group of a piece."""
    return block.pieces[place].file, block.pieces[place].group
