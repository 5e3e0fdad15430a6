"""Limits how many threads of a process work on its GPU at once, and how many bytes they use together."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tasks.core.memory_budget import COPIES_ON_GPU, COPIES_WRITTEN, WORK_SHARE_OF_GPU, work_limit

MOST = 8  # partitions that compute at once on one GPU; further ones would only wait for the interpreter's lock
PLANNED = 2  # partitions per GPU at once that the size of partitions is planned for; few large ones cost least
EACH = 10 << 30  # bytes of GPU memory per place; every GPU has at least two places


def places(device_memory: int) -> int:
    """How many partitions compute at once on a GPU with `device_memory` bytes.

    >>> places(141 * 10**9), places(40 * 10**9), places(8 * 10**9)
    (8, 3, 2)
    """
    return min(MOST, max(2, device_memory // EACH))


def fitting_partition(device_memory: int) -> int:
    """The largest size in bytes of a partition such that `PLANNED` partitions fit on the GPU together.

    >>> fitting_partition(8 * 10**9), fitting_partition(128 * 10**9)
    (500000000, 8000000000)
    """
    return work_limit(device_memory) // (COPIES_ON_GPU * PLANNED)


def file_runs(device_memory: int, nbytes: int) -> int:
    """In how many runs of rows a file is written, so that `MOST` such files are written at once.

    >>> file_runs(139 * 10**9, 10**9), file_runs(8 * 10**9, 10**9)
    (1, 5)
    """
    return max(1, math.ceil(COPIES_WRITTEN * MOST * nbytes / max(WORK_SHARE_OF_GPU * device_memory, 1)))


class Places:
    """Admits threads of this process to its GPU; a thread waits while the GPU is full."""

    def __init__(self, memory: Callable[[], int]) -> None:
        self._memory = memory
        self._changed = threading.Condition()
        self._computing = self._bytes = 0

    @contextmanager
    def take_place(self, nbytes: int, computing: bool = True, share: float = WORK_SHARE_OF_GPU) -> Iterator[None]:
        """Wait for a place for work that needs `nbytes` bytes. Work that needs more than the limit runs alone.

        `computing`: the work holds the interpreter's lock much of the time and counts against `places`. `share` is the
        part of the GPU's memory that all work in progress may use.
        """
        memory = self._memory()
        limit = share * memory
        most = places(memory)
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
