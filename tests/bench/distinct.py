"""Sources of distinct values: every value `repeat` times, each time in another order, made by all cores at once."""

from __future__ import annotations

import math
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ("int64", "string")
FILES = 8  # at least
FILE_ROWS = 8_000_000  # at most
ROW_GROUP = 1 << 20


def values(kind: str, numbers: np.ndarray) -> pa.Array:
    """The values of these numbers (uint64): scattered over the whole range, strings as 12 hexadecimal digits."""
    scattered = numbers * np.uint64(0x9E3779B97F4A7C15)
    if kind == "int64":
        return pa.array(scattered.view(np.int64))
    return pa.array([f"{value:012x}" for value in (scattered >> np.uint64(16)).tolist()])


def numbers_of(rows: np.ndarray, distinct: int, again: int) -> np.ndarray:
    """The number of the value in each of these rows, the rows of one occurrence of all values counting from 0.

    Occurrence 0 takes the values in order, later ones in steps that have no factor in common with their number, so that
    neighbours come from all over the first.

    >>> [numbers_of(np.arange(7, dtype=np.uint64), 7, again).tolist() for again in (0, 1)]
    [[0, 1, 2, 3, 4, 5, 6], [1, 6, 4, 2, 0, 5, 3]]
    """
    if not again:
        return rows
    step = int(distinct * 0.618 / again) | 1
    while math.gcd(step, distinct) > 1:
        step += 2
    return (rows * np.uint64(step % distinct) + np.uint64(again)) % np.uint64(distinct)


def make(kind: str, distinct: int, repeat: int, folder: Path) -> int:
    """Write the source into a new folder; returns its bytes. Fewer than 2^32 values: their squares fit into 64 bits."""
    folder.mkdir(parents=True)
    files = max(FILES, -(-distinct // FILE_ROWS))
    cuts = [(distinct * i // files, distinct * (i + 1) // files) for i in range(files)]
    work = [(kind, distinct, again, start, stop, folder) for start, stop in cuts for again in range(repeat)]
    cores = min(len(os.sched_getaffinity(0)), len(work))
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        return sum(pool.map(_write, work))


def _write(work: tuple[str, int, int, int, int, Path]) -> int:
    """One file, named so that the occurrences of a run of rows lie beside each other."""
    kind, distinct, again, start, stop, folder = work
    column = values(kind, numbers_of(np.arange(start, stop, dtype=np.uint64), distinct, again))
    path = folder / f"{start:012d}-{again}.parquet"
    pq.write_table(pa.table({"c": column}), path, row_group_size=ROW_GROUP, use_dictionary=False,
                   compression="none", write_statistics=False)  # fmt: skip
    return path.stat().st_size
