"""The pool that fits where this process runs: threads, or the Dask cluster of the current client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from tasks.cluster.dask_pool import LARGE, DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool, pickled_bytes
from tasks.errors import JobError

if TYPE_CHECKING:
    from distributed import Client, Future


def using(client: Client | None) -> AbstractContextManager[Any]:
    """A block in which this Dask client is the current one; None leaves the current one, if any. A JobError for a
    client that does not run."""
    if client is None:
        return nullcontext()
    if getattr(client, "status", "") != "running":
        what, do = f"client={client!r} is not a running Dask client", "give distributed.Client(..), and leave it open"
        raise JobError(what, where="client", do=do)
    return client.as_current()


def graph_share(value: object, tasks: int) -> Future | None:
    """A future of what so many tasks of a Dask graph share, where it is large and there is a current client; else None.

    A graph that is made for a client's workers must be computed there.
    """
    client = current_client()
    if client is None or pickled_bytes(value) * tasks <= LARGE:
        return None
    return DaskPool(client).everywhere(value)


def current_client() -> Client | None:
    """The current `distributed.Client` of this process; None without one."""
    import sys

    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    with suppress(ValueError):
        return default_client()
    return None


def current_pool(allocatable: Callable[[], int], prepare: Callable[[Any], None]) -> Pool:
    """The current `distributed.Client` of this process if there is one, else threads. Starts nothing.

    `allocatable` returns the bytes that a process may allocate on its GPU; `prepare` makes a client's workers ready.
    """
    if (client := current_client()) is None:
        return LocalPool(allocatable=allocatable)
    prepare(client)
    return DaskPool(client, allocatable=allocatable)
