"""How many partitions are worked on at once, and how large one may be for it."""

from __future__ import annotations

from tasks.cluster.dask_pool import Workers
from tasks.core.plan import SMALLEST, Sizing
from tasks.engines import admission

SMALLER = 3  # times as many partitions on the CPU: a small one costs nothing more there
# Decoded bytes of a partition on the CPU. The columns of larger ones leave a core's cache while rows are put in order,
# and each of their steps takes more memory that the system has to clear first: 8 GB of the recipe toy take a third more
# CPU time in partitions of 313 MB.
FASTEST_ON_CPU = 64 * 10**6


def computing_threads(engine: str, workers: Workers) -> int:
    """Count the partitions that are computed at once."""
    if engine != "cudf":
        return workers.threads
    return min(workers.threads, admission.places(_each_gpu(workers)) * len(workers.workers))


def partition_limit(engine: str, workers: Workers) -> int | None:
    """Return the bytes of a partition of which a GPU takes as many as are planned for it; None without GPUs, or if
    unknown yet."""
    return admission.fitting_partition(_each_gpu(workers)) if engine == "cudf" and workers.device_memory else None


def worker_memory(engine: str, workers: Workers) -> int:
    """Return the bytes of which `part_mem_fraction` is a share: the memory of the smallest worker, with cuDF of its
    GPU.

    0 if it is unknown yet.
    """
    return workers.smallest_device_memory if engine == "cudf" else workers.smallest_memory


def make_sizing(engine: str, workers: Workers, smallest: int = SMALLEST) -> Sizing:
    """Return the limits of the partitions of a source that these workers read."""
    limit = partition_limit(engine, workers)
    fastest = fastest_partition(engine)
    return Sizing(dividing_threads(engine, workers), smallest, worker_memory(engine, workers), limit, fastest)


def fastest_partition(engine: str) -> int | None:
    """Return the bytes up to which partitions are fastest; None on GPUs, where large ones are."""
    return None if engine == "cudf" else FASTEST_ON_CPU


def threads_of_each(workers: Workers) -> int:
    """Return the threads of each worker, at least one."""
    return max(workers.threads // max(len(workers.workers), 1), 1)


def _each_gpu(workers: Workers) -> int:
    return workers.device_memory // max(len(workers.workers), 1)


def dividing_threads(engine: str, workers: Workers) -> int:
    """Count the threads that a source is divided for.

    On the CPU three times as many as there are: what a partition makes on its way is memory that the system has to
    clear first, and of twelve small partitions a thread needs a third of what four take. On GPUs one for each: it gets
    two partitions, or a multiple, whose columns cost the interpreter the same time whatever their size.
    """
    if engine == "cudf":
        return max(len(workers.workers), 1)
    return SMALLER * computing_threads(engine, workers)
