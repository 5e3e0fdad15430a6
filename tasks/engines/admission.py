"""Who may work on the GPU of a process at once: a number of threads, and no more bytes than fit."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tasks.core.memory_budget import COPIES_ON_GPU, COPIES_WRITTEN, WORK_SHARE_OF_GPU, work_limit

MOST = 8  # partitions that compute at once on one GPU; more only wait for the interpreter's lock
PLANNED = 2  # partitions that a GPU works on at once, or a multiple: their number costs, not their size
EACH = 10 << 30  # bytes of GPU memory for which there is one such place; there are two at least


def places(device_memory: int) -> int:
    """How many partitions compute at once on a GPU with so many bytes.

    >>> places(141 * 10**9), places(40 * 10**9), places(8 * 10**9)
    (8, 3, 2)
    """
    return min(MOST, max(2, device_memory // EACH))


def fitting_partition(device_memory: int) -> int:
    """Bytes of a partition of which as many as are planned for a GPU fit.

    >>> fitting_partition(8 * 10**9), fitting_partition(128 * 10**9)
    (500000000, 8000000000)
    """
    return work_limit(device_memory) // (COPIES_ON_GPU * PLANNED)


def file_runs(device_memory: int, nbytes: int) -> int:
    """Runs of rows of a file so that `MOST` of such files are written at once.

    >>> file_runs(139 * 10**9, 10**9), file_runs(8 * 10**9, 10**9)
    (1, 5)
    """
    return max(1, math.ceil(COPIES_WRITTEN * MOST * nbytes / max(WORK_SHARE_OF_GPU * device_memory, 1)))


class Places:
    """Threads of this process that work on its GPU; whoever comes when it is full waits."""

    def __init__(self, memory: Callable[[], int]) -> None:
        self._memory, self._changed = memory, threading.Condition()
        self._computing = self._bytes = 0

    @contextmanager
    def taken(self, nbytes: int, computing: bool = True, share: float = WORK_SHARE_OF_GPU) -> Iterator[None]:
        """A place for work that needs so many bytes; what needs more than there are works alone.

        `computing`: it is one of the few that hold the interpreter's lock much of the time. `share` is the part of the
        GPU's memory that all work in progress may fill.
        """
        memory = self._memory()
        limit, most = share * memory, places(memory)
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    not self._bytes or (self._bytes + nbytes <= limit and not (computing and self._computing >= most))
                )
            )
            self._bytes += nbytes
            self._computing += computing
        try:
            yield
        finally:
            with self._changed:
                self._bytes -= nbytes
                self._computing -= computing
                self._changed.notify_all()
