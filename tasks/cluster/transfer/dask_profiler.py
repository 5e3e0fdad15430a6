"""Dask's profiler, which has to stop where threads compute on a GPU.

Several times a second it takes the frames of a worker's threads, and with them all their variables. What functions have
left when it lets the frames go returns to the GPU's allocator from the profiler's thread, in the order of that thread's
stream: kernels of the thread that computes may still read it, while another thread's next array overwrites it.
"""

from __future__ import annotations

import sys
from typing import Any


def stop() -> None:
    """Stop it in the Dask workers of this process, if there are any."""
    for worker in workers_here():
        worker.loop.add_callback(_stop, worker)


def workers_here() -> list[Any]:
    """The Dask workers of this process; none where nothing has imported Dask's."""
    if "distributed.worker" not in sys.modules:
        return []
    from distributed import Worker

    return list(Worker._instances)


def _stop(worker: Any) -> None:
    profiler = worker.periodic_callbacks.pop("profile", None)
    if profiler is not None:
        profiler.stop()
