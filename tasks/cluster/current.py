"""The pool that fits where this process runs: threads, or the Dask cluster of the current client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tasks import engines
from tasks.cluster.dask_pool import LARGE, DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool, pickled_bytes


def graph_share(value: object, tasks: int) -> Any:
    """A future of what so many tasks of a Dask graph share, where it is large and there is a current client; else None.

    A graph that is made for a client's workers must be computed there.
    """
    pool = current_pool(engines.allocatable)
    if not isinstance(pool, DaskPool) or pickled_bytes(value) * tasks <= LARGE:
        return None
    return pool.everywhere(value)


def current_pool(allocatable: Callable[[], int]) -> Pool:
    """The current `distributed.Client` of this process if there is one, else threads. Starts nothing.

    `allocatable` returns the bytes that a process may allocate on its GPU.
    """
    import sys

    if "distributed" in sys.modules:
        from distributed import default_client

        try:
            return DaskPool(default_client(), allocatable=allocatable)
        except ValueError:
            pass
    return LocalPool(allocatable=allocatable)
