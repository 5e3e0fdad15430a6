"""One vocabulary over many rows: ids made partition by partition on the threads of a pool, and counted where they are.

The pool is what a workflow uses: the workers of the current Dask client, or the threads of this process. As in a run of
the flow, workers of a cluster load what was learned from a folder.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tasks import engines
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.pool import Pool
from tasks.core.plan import Partition
from tasks.dataset import Dataset
from tasks.graph.partition_work import Work
from tasks.graph.saved_workflow import FittedOrigin, save_fitted
from tasks.stages.without_prefect import prepare_for_workers
from tasks.workflow import Workflow
from tasks.workflow.partitions import transform_partition

FIRST = 3  # id of the first value: padding, null and one bucket for what is not known stand before it
RANGES = 64  # that the ids are checked in
MOST = 255  # occurrences up to which they are told apart


def saved(workflow: Workflow, pool: Pool, folder: Path) -> float:
    """Save what was learned where the workers of a cluster load it from; seconds. Threads of a process need nothing."""
    start = time.perf_counter()
    if isinstance(pool, DaskPool):
        assert workflow.schema is not None
        save_fitted(workflow.final, workflow.schema, workflow._require_state(), folder, FittedOrigin())
    return round(time.perf_counter() - start, 3)


def work_of(workflow: Workflow, data: Dataset, engine: str, pool: Pool, folder: Path) -> Work:
    """What the tasks over a data set share."""
    work = Work(data.handle, workflow.final, data.schema, engine, workflow._require_state())
    return prepare_for_workers(work, folder, pool)


def encode(pool: Pool, work: Work, partitions: list[Partition]) -> int:
    """Make the ids of all partitions, each of which is let go as soon as it is made; the number of rows."""
    return sum(pool.map(_encoded, work, partitions))


def _encoded(work: Work, partition: Partition) -> int:
    with engines.computing(work.engine, partition.nbytes):
        rows = work.kernels.length(transform_partition(work, partition))
        engines.synchronize()
        return rows


class _Counts:
    """How often each id was seen in this process, on the engine's device."""

    def __init__(self, size: int, xp: Any) -> None:
        self.xp, self.lock = xp, threading.Lock()
        self.seen = xp.zeros(size, dtype=xp.uint32)
        engines.synchronize()

    def add(self, ids: Any) -> None:
        if self.xp is np:
            found, times = np.unique(ids, return_counts=True)
            with self.lock:
                self.seen[found] += times.astype(np.uint32)
        else:
            once = self.xp.ones(len(ids), dtype=self.xp.uint32)
            self.xp.add.at(self.seen, ids, once)  # atomic: any number of threads at once


_counts: dict[str, _Counts] = {}
_making = threading.Lock()


def counted(pool: Pool, work: Work, partitions: list[Partition], size: int, folder: Path) -> dict[str, Any]:
    """How often the ids occur over all partitions.

    `rows`, `seen` (different ids), `least` and `most` (the fewest and the most often that an id of the vocabulary of
    `size` values occurs, at most 255), `others` (ids below the first of the vocabulary). Every process counts for
    itself; ranges of the counts are then added up and looked at in parallel.
    """
    run = uuid.uuid4().hex
    folder.mkdir()
    rows = sum(pool.map(_counted, (work, run, size + FIRST), partitions))
    _in_each_process(pool, _put_down, run, folder)
    edges = np.linspace(FIRST, size + FIRST, RANGES + 1).astype(np.int64).tolist()
    ranges = [(0, FIRST), *itertools.pairwise(edges)]
    below, *found = pool.map(_looked_at, folder, [r for r in ranges if r[1] > r[0]])
    return {"rows": rows, "seen": sum(f[0] for f in found), "least": min(f[1] for f in found),
            "most": max(f[2] for f in found), "others": below[0]}  # fmt: skip


def _in_each_process(pool: Pool, function: Callable[..., Any], *arguments: Any) -> None:
    if isinstance(pool, DaskPool):
        pool.client.run(function, *arguments)
    else:
        function(*arguments)


def _counted(shared: tuple[Work, str, int], partition: Partition) -> int:
    work, run, size = shared
    with engines.computing(work.engine, partition.nbytes):
        made = transform_partition(work, partition)
        ids, valid = work.kernels.numbers(made["c"])
        assert valid is None, "an id is null"
        assert 0 <= int(ids.min()) <= int(ids.max()) < size, "an id is outside of the vocabulary"
        with _making:
            if run not in _counts:
                _counts[run] = _Counts(size, work.kernels.xp)
        _counts[run].add(ids)
        engines.synchronize()
        return len(ids)


def _put_down(run: str, folder: Path) -> None:
    """The counts of this process as a file of bytes; nothing where it had no partition."""
    counts = _counts.pop(run, None)
    if counts is not None:
        seen = counts.xp.minimum(counts.seen, MOST).astype(np.uint8)
        (seen if counts.xp is np else seen.get()).tofile(folder / f"{uuid.uuid4().hex}.counts")


def _looked_at(folder: Path, ids: tuple[int, int]) -> tuple[int, int, int]:
    """(how many of the ids were seen, the fewest, the most often that one was), over all processes."""
    start, stop = ids
    times = np.zeros(stop - start, dtype=np.uint16)
    for path in sorted(folder.glob("*.counts")):
        times += np.memmap(path, np.uint8, "r")[start:stop]
    return int(np.count_nonzero(times)), int(times.min()), int(times.max())
