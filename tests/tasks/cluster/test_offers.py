"""Two workers of which one offers what the tasks take, while the other one holds what they read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import dask
import pytest
from distributed import Client, get_worker

from infra.clusters import reach
from tasks.cluster import dask_pool
from tasks.cluster.dask_pool import DaskPool, workers_at
from tasks.errors import TransientError
from tasks.shuffle.memory_exchange import DaskMemory
from tests.clusters import start_threads

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def mixed() -> Iterator[Client]:
    """Their client."""
    with start_threads([{"GPU": 1}, {}]) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def test_a_scheduler_that_does_not_answer_has_no_workers(mixed: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the thread has gone in which the scheduler of a local cluster runs."""

    async def silent(**_: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(mixed.scheduler, "identity", silent)
    for module in (dask_pool, reach):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
        assert module.workers_at(mixed) == {}


@pytest.mark.parametrize("known", [dask_pool.workers_at, reach.workers_at])
def test_workers_are_known_at_every_moment(mixed: Client, known: Callable[[Any], dict[str, Any]]) -> None:
    """A thread of Dask's client notes the cluster without its workers, here every millisecond: what scheduler_info
    returns in such a moment has none, and a stage would begin with nothing."""
    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}),
        Client(mixed.cluster, set_as_default=False) as client,
    ):
        assert {len(known(client)) for _ in range(1000)} == {2}


def test_a_shuffle_without_workers_says_so(mixed: Client) -> None:
    pool = DaskPool(mixed)
    pool.workers = ()
    with pytest.raises(TransientError, match=r"(?s)no worker is left for the shuffle.*start workers"):
        DaskMemory(pool).fill(cast("Any", None), [], None)


def where(shared: Any, item: int) -> tuple[int, str]:
    return item, str(get_worker().name)


@pytest.mark.promise("runs the work of a stage on workers that offer it")
def test_tasks_run_where_their_resource_is_whoever_holds_their_columns(mixed: Client) -> None:
    """Dask forgets the resource together with the place; KeyError in the scheduler, and the run waits for ever."""
    workers = workers_at(mixed)
    (without,) = [address for address, worker in workers.items() if not worker["resources"]]
    pool = DaskPool(mixed, {"GPU": 1})
    futures = pool.start(where, None, range(4), {1: without, 3: without})
    assert mixed.gather(futures) == [(item, "worker-0") for item in range(4)]


@pytest.mark.promise("Where only some do, columns that others hold decoded are read again")
def test_a_worker_is_asked_first_only_where_all_offer_what_the_tasks_take(mixed: Client) -> None:
    free, bound = DaskPool(mixed), DaskPool(mixed, {"GPU": 1})
    address = free.workers[0]
    assert free.preferring(address) == {"workers": [address], "allow_other_workers": True}
    assert (free.preferring(None), bound.preferring(address)) == ({}, {})
