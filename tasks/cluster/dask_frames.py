"""Results of partitions as a Dask frame, for what users do with Dask afterwards."""

from __future__ import annotations

import logging
from collections import UserDict
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


class _Graph(UserDict[Any, Any]):
    """A graph that Dask tells from others by its keys: some have a random part, and its data need not be hashed."""

    def __dask_tokenize__(self) -> list[str]:
        return list(map(str, self))


def dask_frame(
    read: Callable[[Any, Partition], Any], handle: object, partitions: Sequence[Partition], empty: pa.Table, engine: str
) -> Any:
    """Make a Dask frame whose partitions are the results of `read(handle, partition)`.

    On GPUs, frames are shuffled by tasks where the user has not chosen: Dask's default on a cluster is made for pandas.
    """
    import dask
    import dask.dataframe as dd

    if engine == "cudf" and current_client() is not None and dask.config.get(SHUFFLE_METHOD, None) is None:
        dask.config.set({SHUFFLE_METHOD: "tasks"})
        log.info("Dask's %s is set to tasks in this process, as frames of cuDF need it", SHUFFLE_METHOD)
    parts = delay_parts(partial(_compute_partition, read), handle, partitions, "frame")
    # Not from_delayed: it compares types of cuDF that differ for the same values, and without that loses dependencies.
    layer = _Graph({key: task for part in parts for key, task in part.dask.items()})
    divisions = (None,) * (len(parts) + 1)
    return dd.from_graph(layer, to_frame(empty, engine), divisions, [part.key for part in parts], "rows")


def delay_parts(function: Callable[..., Any], handle: object, partitions: Sequence[Partition], name: str) -> list[Any]:
    """Make a Delayed of function(handle, partition) for each partition."""
    shared = graph_share(handle, len(partitions))
    function, first = (partial(function, handle), []) if shared is None else (function, [shared])
    return over_frames(function, first, partitions, f"{name}-{uuid4().hex[:8]}", current_client())


def _compute_partition(read: Callable[[Any, Partition], Any], handle: object, partition: Partition) -> object:
    """Read a partition completely, so that tasks in other threads may use it."""
    frame = read(handle, partition)
    synchronize()
    return frame
