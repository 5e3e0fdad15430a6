"""Clusters whose workers load what those of a run load, and clusters that are threads of the test's own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dask.config
import pytest
from distributed import Client, Nanny, Scheduler, SpecCluster, Worker
from distributed.core import Status
from distributed.utils import in_async_call

from flows.run.worker_imports import worker_imports
from infra.clusters import kinds
from infra.clusters.model import Cluster
from infra.workers import forkserver

IMPORTS = worker_imports("flows.preprocess")
ON_LOOPBACK = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}


def make_cluster(cluster: Cluster | None = None) -> Any:
    return kinds.make_cluster(cluster, IMPORTS)


class ThreadWorker(Worker):
    """A worker in the process of the test. The client of its tasks is not this process's default, which the next flow
    of this process would take for the cluster that it is meant to use."""

    def _get_client(self, timeout: float | None = None) -> Client:
        if not self._client:
            options = {"set_as_default": False, "direct_to_workers": True, "name": "worker", "timeout": timeout or 60}
            self._client = Client(self.scheduler, loop=self.loop, asynchronous=in_async_call(self.loop), **options)
        return self._client

    async def close(self, *args: Any, **options: Any) -> Any:
        if self._client:
            await self._client._close()
        return await super().close(*args, **options)


class ForkingNanny(Nanny):
    """A nanny whose workers are forks of the workers' fork server: they begin at once, where a new Python imports for
    seconds what they need. With variables that the server cannot stand for, those of GPUs, each is a new Python."""

    def __init__(self, *arguments: Any, env: Mapping[str, str] | None = None, **options: Any) -> None:
        forked = forkserver.use(IMPORTS.tasks).get("env", {})
        self.method = "forkserver" if forked else "spawn"
        super().__init__(*arguments, env={**forked, **(env or {})}, **options)

    async def instantiate(self) -> Status:
        """Dask's own leaves variables in this process, which every later cluster of it would have."""
        with pytest.MonkeyPatch.context() as before, dask.config.set({forkserver.METHOD: self.method}):
            for name, value in self.pre_spawn_env.items():
                before.setenv(name, value)
            return await super().instantiate()


@contextmanager
def start_threads(offers: Sequence[Mapping[str, float]], **more: dict[str, Any]) -> Iterator[Any]:
    """A cluster that knows nothing of rowmill: a scheduler, and a worker of one thread for each of `offers`, the
    resources that it has. All are threads of this process and speak TCP on the loopback. `more` are further workers by
    their names, each a `cls` and its `options`."""
    workers = {
        f"worker-{number}": {"cls": ThreadWorker, "options": {**ON_LOOPBACK, "nthreads": 1, "resources": dict(offer)}}
        for number, offer in enumerate(offers)
    }
    workers |= more
    scheduler = {"cls": Scheduler, "options": ON_LOOPBACK}
    # What a cluster of an earlier test has set in this process is for processes.
    with dask.config.set({"distributed.worker.preload": [], "distributed.scheduler.preload": []}):
        cluster = SpecCluster(workers=workers, scheduler=scheduler)
    with cluster:
        with Client(cluster, set_as_default=False) as client:
            client.wait_for_workers(len(workers), timeout=240)
        yield cluster
