"""Results of partitions as a Dask frame, for what users do with Dask afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa

from tasks.cluster.current import current_client, graph_share
from tasks.cluster.dask_pool import over_frames
from tasks.core.plan import Partition
from tasks.engines import synchronize
from tasks.engines.convert.libraries import text_types, to_frame

log = logging.getLogger("rowmill")
SHUFFLE_METHOD = "dataframe.shuffle.method"
CONVERT_STRING = "dataframe.convert-string"


def dask_frame(
    read: Callable[[Any, Partition], Any], handle: object, partitions: Sequence[Partition], empty: pa.Table, engine: str
) -> Any:
    """A Dask frame whose partitions are the results of `read(handle, partition)`.

    On GPUs, frames are shuffled by tasks where the user has not chosen: Dask's default on a cluster is made for pandas.
    """
    import dask
    import dask.dataframe as dd

    if engine == "cudf" and current_client() is not None and dask.config.get(SHUFFLE_METHOD, None) is None:
        dask.config.set({SHUFFLE_METHOD: "tasks"})
        log.info("Dask's %s is set to tasks in this process, as frames of cuDF need it", SHUFFLE_METHOD)
    meta = to_frame(empty, engine)
    parts = delayed_parts(partial(_computed, read, text_types(meta)), handle, partitions, "frame")
    convert = dask.config.get(CONVERT_STRING, None) if engine == "pandas" else False  # it takes lists of cuDF for texts
    with dask.config.set({CONVERT_STRING: convert}):
        return dd.from_delayed(parts, meta=meta)


def delayed_parts(
    function: Callable[..., Any],
    handle: object,
    partitions: Sequence[Partition],
    name: str,
    more: Sequence[Sequence[Any]] = (),
) -> list[Any]:
    """A Delayed of function(handle, partition) for each partition, or of function(handle, partition, *more[i])."""
    shared = graph_share(handle, len(partitions))
    function, first = (partial(function, handle), []) if shared is None else (function, [shared])
    return over_frames(function, first, partitions, f"{name}-{uuid4().hex[:8]}", current_client(), more)


def _computed(
    read: Callable[[Any, Partition], Any], texts: Mapping[str, Any], handle: object, partition: Partition
) -> object:
    """A partition, read completely, so that tasks in other threads may use it, with these types of its texts."""
    frame = read(handle, partition)
    if other := {name: dtype for name, dtype in texts.items() if frame[name].dtype != dtype}:
        frame = frame.astype(other)
    synchronize()
    return frame
