"""Results of partitions as a Dask frame, for what users do with Dask afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa

from tasks.cluster.current import current_client, graph_share
from tasks.cluster.dask_pool import over_frames
from tasks.core.plan import Partition
from tasks.engines import synchronize
from tasks.engines.convert.libraries import to_frame

log = logging.getLogger("rowmill")
SHUFFLE_METHOD = "dataframe.shuffle.method"


def dask_frame(
    read: Callable[[Any, Partition], Any], handle: Any, partitions: Sequence[Partition], empty: pa.Table, engine: str
) -> Any:
    """A Dask frame whose partitions are the results of `read(handle, partition)`."""
    import dask.dataframe as dd

    numbers, meta, client = list(range(len(partitions))), to_frame(empty, engine), current_client()
    if engine == "cudf" and client is not None:
        _shuffle_by_tasks()
    if any(partition.inputs for partition in partitions):
        shared = graph_share(handle, len(numbers))
        function = partial(_computed, read, handle) if shared is None else partial(_computed, read)
        first = [] if shared is None else [shared]
        parts = over_frames(function, first, partitions, f"frame-{uuid4().hex[:8]}", client)
        return dd.from_delayed(parts, meta=meta, verify_meta=False)
    shared = graph_share((handle, partitions), len(numbers))
    if shared is None:
        return dd.from_map(partial(_nth, read, handle=(handle, partitions)), numbers, meta=meta)
    return dd.from_map(partial(_nth, read), numbers, args=(shared,), meta=meta)


def _nth(read: Callable[[Any, Partition], Any], number: int, handle: tuple[Any, Sequence[Partition]]) -> Any:
    return _computed(read, handle[0], handle[1][number])


def _computed(read: Callable[[Any, Partition], Any], handle: Any, partition: Partition) -> Any:
    """A partition, read completely, so that tasks in other threads may use it."""
    frame = read(handle, partition)
    synchronize()
    return frame


def _shuffle_by_tasks() -> None:
    """Have Dask shuffle by tasks where the user has not chosen: its default on a cluster, P2P, is made for pandas."""
    import dask

    if dask.config.get(SHUFFLE_METHOD, None) is None:
        dask.config.set({SHUFFLE_METHOD: "tasks"})
        log.info("Dask's %s is set to tasks in this process, as GPUs need it", SHUFFLE_METHOD)
