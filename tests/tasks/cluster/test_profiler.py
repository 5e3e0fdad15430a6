"""Dask's profiler where threads compute on a GPU."""

from __future__ import annotations

import time
from typing import Any

import pytest
from distributed import Client, LocalCluster

from tasks.cluster.transfer import dask_profiler
from tests.infra.elsewhere import eventually


def running(dask_worker: Any) -> bool:
    return "profile" in dask_worker.periodic_callbacks


def busy() -> None:
    time.sleep(0.3)


def looks(dask_worker: Any) -> int:
    """How often the profiler saw a thread that computes."""
    seen = [dask_worker.profile_recent, *(found for _, found in dask_worker.profile_history)]
    return sum(found["count"] for found in seen)


@pytest.mark.system
def test_it_stops_for_good() -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        assert client.run(running) == dict.fromkeys(client.run(running), True)
        client.submit(busy, pure=False).result()
        client.submit(dask_profiler.stop, pure=False).result()
        assert eventually(lambda: not any(client.run(running).values()))
        (before,) = client.run(looks).values()
        assert before > 0
        client.submit(busy, pure=False).result()
        assert client.run(looks) == dict.fromkeys(client.run(looks), before)


def test_without_a_worker_there_is_nothing_to_stop() -> None:
    dask_profiler.stop()
