"""What a worker process on a GPU does first. dask-cuda, which runs no preloads but its own, imports it (`pre_import`).

What fails here fails the start of the worker.
"""

from __future__ import annotations

import dask.config
from distributed import Worker

from infra.worker import dask_setup
from tasks import gpu_pool


def set_up() -> None:
    """As on the CPU, and allocate as the cluster's settings say."""
    for worker in list(Worker._instances):
        dask_setup(worker)
        if pool := dask.config.get("millrace.gpu-pool", None):
            gpu_pool.prepare(worker, **pool)


set_up()
