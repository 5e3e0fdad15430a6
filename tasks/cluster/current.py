"""The pool that fits where this process runs: threads, or the Dask cluster of the current client."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from tasks.cluster.dask_pool import LARGE, DaskPool, select_offering, workers_at
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool, count_pickled_bytes
from tasks.errors import JobError

if TYPE_CHECKING:
    from distributed import Client, Future

OFFER_SECONDS = 10.0  # for a worker to come that offers what `dask.annotate(resources=..)` asks for


def using(client: Client | None) -> AbstractContextManager[Any]:
    """Make this Dask client the current one within a block; with None, the current one stays, if any.

    A JobError for a client that does not run.
    """
    if client is None:
        return nullcontext()
    if getattr(client, "status", "") != "running":
        what = f"client={client!r} is not a running Dask client"
        do = "give distributed.Client(..), and leave it open"
        raise JobError(what, where="client", do=do)
    return client.as_current()


def graph_share(value: object, tasks: int) -> Future | None:
    """Return a future of what the tasks of a Dask graph share, if it is large and a client is current; else None.

    A graph that is made for a client's workers must be computed there.
    """
    client = current_client()
    if client is None or count_pickled_bytes(value) * tasks <= LARGE:
        return None
    return DaskPool(client).everywhere(value)


def current_client() -> Client | None:
    """Return the current `distributed.Client` of this process; None without one."""
    import sys

    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    with suppress(ValueError):
        return default_client()
    return None


def current_pool(allocatable: Callable[[], int], prepare: Callable[[Any], None]) -> Pool:
    """Return a pool on the current `distributed.Client` of this process, else on threads; nothing is started.

    `allocatable` returns the bytes that a process may allocate on its GPU; `prepare` makes a client's workers ready.
    In a block of `dask.annotate(resources=..)` the pool has the workers that offer these; a JobError if none does.
    """
    if (client := current_client()) is None:
        return LocalPool(allocatable=allocatable)
    resources = _read_annotated_resources()
    if resources:
        _wait_for_offer(client, resources)
    prepare(client)
    return DaskPool(client, resources, allocatable=allocatable)


def _read_annotated_resources() -> dict[str, float] | None:
    import dask

    resources = dask.get_annotations().get("resources")
    return resources if isinstance(resources, dict) else None  # Dask also takes a function of each task's key


def _wait_for_offer(client: Client, resources: dict[str, float]) -> None:
    """Return as soon as a worker offers the resources; a JobError if none has after `OFFER_SECONDS`: Dask would wait
    for one for ever."""
    until = time.monotonic() + OFFER_SECONDS
    while not select_offering(there := workers_at(client), resources):
        if time.monotonic() > until:
            raise _make_offer_error(there, resources)
        time.sleep(0.1)


def _make_offer_error(workers: dict[str, Any], resources: dict[str, float]) -> JobError:
    wanted = " ".join(f"{name}={amount:g}" for name, amount in resources.items())
    offers = {" ".join(f"{n}={a:g}" for n, a in (worker["resources"] or {}).items()) for worker in workers.values()}
    offered = ", ".join(sorted(offer or "nothing" for offer in offers)) or "nothing: there is none"
    return JobError(
        f"no worker offers {wanted}",
        where="dask.annotate(resources=..)",
        why=f"{len(workers)} worker(s) offer {offered}",
        do=f'start workers with it: dask worker --resources "{wanted}", or LocalCluster(resources={resources!r}); or '
        "annotate with what they offer",
    )
