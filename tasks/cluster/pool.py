"""The interface of pools, which run functions over partitions, and merging along a tree on a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pickle import PicklingError
from typing import Any, Protocol

from tasks.errors import JobError

FAN_IN = 8  # partials that one merge takes
Done = Callable[[int, Any], None]


def count_pickled_bytes(value: object) -> int:
    """Count the bytes of the pickled value, buffers included; copies no buffer. A JobError for one that cannot be
    pickled."""
    from distributed.protocol import pickle

    buffers: list[Any] = []
    try:
        head = pickle.dumps(value, buffer_callback=buffers.append)
    except (PicklingError, TypeError, AttributeError, NotImplementedError) as error:
        raise JobError(
            "the work cannot be sent to the workers of the cluster",
            why=f"a function, an operator or a value of it holds what only this process has: {error}",
            do="open files, locks and connections inside of the function, or work without the Dask client",
        ) from error
    return len(head) + sum(memoryview(buffer).nbytes for buffer in buffers)


class Pool(Protocol):
    """Runs `function(shared, item)` over items; sends `shared` to each worker once, not with every item."""

    threads: int
    workers: Sequence[str]
    memory: int  # bytes of host memory that all workers together may use
    smallest_memory: int  # bytes that the smallest of them may use

    @property
    def planned_for(self) -> Pool:
        """The workers that partitions are planned for: in ingest those that operators run on."""
        ...

    @property
    def works_here(self) -> bool:
        """Whether this process is a worker of the pool, so that it may use the GPU that workers of its host use."""
        ...

    @property
    def device_memory(self) -> int:
        """Bytes that all workers together may allocate on their GPUs; 0 without."""
        ...

    @property
    def smallest_device_memory(self) -> int:
        """Bytes that the worker with the smallest GPU may allocate there; 0 without."""
        ...

    def map(
        self, function: Callable[[Any, Any], Any], shared: object, items: Sequence[Any], done: Done | None = None
    ) -> list[Any]:
        """Return results in the order of the items; calls `done(number, result)` for each. The first error ends the
        rest."""
        ...

    def gather(
        self,
        function: Callable[[Any, Any], Any],
        merge: Callable[[list[Any]], Any],
        shared: object,
        items: Sequence[Any],
        done: Done | None = None,
    ) -> list[Any]:
        """Return handles of the results, merged FAN_IN at a time as they come; calls `done(number, None)` for each
        result."""
        ...

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], here: bool = False) -> list[Any]:
        """Return handles of function(*arguments); handles and lists of handles among the arguments become their values.

        `here`: preferably in the process of the caller, if that is a worker.
        """
        ...

    def on_workers(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Worker -> function(*arguments) in its process, at once: not queued behind tasks.

        Workers that are lost meanwhile are missing.
        """
        ...

    def values(self, handles: Sequence[Any]) -> list[Any]:
        """Return the values of the handles."""
        ...

    def arriving(self, handles: list[Any]) -> Iterator[tuple[int, Any]]:
        """Yield (number of the handle, its value), one after another as they are done; empties the list."""
        ...


def merge_groups(pool: Pool, merge: Callable[[list[Any]], Any], groups: Sequence[Sequence[Any]]) -> list[Any]:
    """Merge each group of handles to one, FAN_IN at a time; the merges of groups run side by side."""
    levels = [list(group) for group in groups]
    while any(len(level) > 1 for level in levels):
        cuts = [[level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)] for level in levels]
        merges = iter(pool.call(merge, [(cut,) for level in cuts for cut in level if len(cut) > 1]))
        levels = [[next(merges) if len(cut) > 1 else cut[0] for cut in level] for level in cuts]
    return [level[0] for level in levels]
