"""What a worker process on a GPU does first: dask-cuda, which runs no preloads but its own, imports it."""

from __future__ import annotations

from distributed import Worker

from infra.workers.preload import dask_setup

for _worker in list(Worker._instances):
    dask_setup(_worker)
