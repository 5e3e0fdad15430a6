"""Stops Dask's profiler, which is not safe where threads compute on a GPU.

Several times a second the profiler takes the frames of a worker's threads, and with them all their variables. If a
function returns meanwhile, the profiler drops the last reference to its arrays: their memory then returns to the GPU's
allocator in the order of the profiler's stream. Kernels of the computing thread may still read that memory while the
next array of another thread overwrites it.
"""

from __future__ import annotations

import sys
from typing import Any


def stop() -> None:
    """Stop the profiler in the Dask workers of this process, if any."""
    for worker in workers_here():
        worker.loop.add_callback(_stop, worker)


def workers_here() -> list[Any]:
    """List the Dask workers of this process; none if Dask's were not imported."""
    if "distributed.worker" not in sys.modules:
        return []
    from distributed import Worker

    return list(Worker._instances)


def _stop(worker: Any) -> None:
    profiler = worker.periodic_callbacks.pop("profile", None)
    if profiler is not None:
        profiler.stop()
