"""The first steps of a worker process on a GPU. dask-cuda imports it, since it runs no preloads but its own."""

from __future__ import annotations

from distributed import Worker

from infra.workers.preload import dask_setup

for _worker in list(Worker._instances):
    dask_setup(_worker)
