"""Where partitions are worked on: the threads of this process, or a Dask cluster. Stages see one interface."""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any, Protocol

import psutil

from tasks import frame
from tasks.given import Given

FAN_IN = 8  # partials that one merge takes
LARGE = 4 << 20  # bytes in a graph from which what its tasks share is kept out of it: the scheduler holds every graph
BATCH = 5_000  # tasks that are handed in at once
Done = Callable[[int, Any], None]


def pickled_bytes(value: Any) -> int:
    """How many bytes the value takes on its way to a worker; buffers are counted, not copied."""
    from distributed.protocol import pickle

    buffers: list[Any] = []
    head = pickle.dumps(value, buffer_callback=buffers.append)
    return len(head) + sum(memoryview(buffer).nbytes for buffer in buffers)


class Workers(Protocol):
    """Where the work is done: a Pool is one; a preview, which starts none, says what there would be."""

    @property
    def threads(self) -> int: ...
    @property
    def workers(self) -> Sequence[str]: ...
    @property
    def memory(self) -> int: ...
    @property
    def device_memory(self) -> int: ...


class Pool(Protocol):
    """`function(shared, item)` over items. `shared` is sent to a worker once, not with every item."""

    threads: int
    workers: Sequence[str]
    memory: int  # bytes of host memory that all workers together may use

    @property
    def device_memory(self) -> int:
        """Bytes that all workers together may allocate on their GPUs; 0 without."""
        ...

    def map(
        self, function: Callable[[Any, Any], Any], shared: Any, items: Sequence[Any], done: Done | None = None
    ) -> list[Any]:
        """Results in the order of the items; `done(number, result)` as they come. The first error ends the rest."""
        ...

    def gather(self, function: Callable[[Any, Any], Any], merge: Callable[[list[Any]], Any], shared: Any,
               items: Sequence[Any], done: Done | None = None) -> list[Any]:  # fmt: skip
        """Handles of the results, merged FAN_IN at a time as they come; `done(number, None)` for each result."""
        ...

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], here: bool = False) -> list[Any]:
        """Handles of function(*arguments), where a handle, or a list of handles, stands for what it is a handle of.

        `here`: in the process that asks, if that is one of the workers.
        """
        ...

    def on_workers(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Worker -> function(*arguments) in its process, at once: not in its turn among the tasks.

        A worker that is lost meanwhile is left out.
        """
        ...

    def values(self, handles: Sequence[Any]) -> list[Any]:
        """What the handles are handles of."""
        ...

    def arriving(self, handles: list[Any]) -> Iterator[tuple[int, Any]]:
        """(number of the handle, what it is a handle of), one after another as they are done; the list loses them."""
        ...


def merged(pool: Pool, merge: Callable[[list[Any]], Any], groups: Sequence[Sequence[Any]]) -> list[Any]:
    """For each group of handles one of all merged, FAN_IN at a time; the groups' merges run side by side."""
    levels = [list(group) for group in groups]
    while any(len(level) > 1 for level in levels):
        cuts = [[level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)] for level in levels]
        made = iter(pool.call(merge, [(cut,) for level in cuts for cut in level if len(cut) > 1]))
        levels = [[next(made) if len(cut) > 1 else cut[0] for cut in level] for level in cuts]
    return [level[0] for level in levels]


class LocalPool:
    """Threads of this process; kernels release the GIL."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self.workers: Sequence[str] = ("this process",)
        self.memory = psutil.virtual_memory().available

    @property
    def device_memory(self) -> int:
        return frame.allocatable()

    def map(
        self, function: Callable[[Any, Any], Any], shared: Any, items: Sequence[Any], done: Done | None = None
    ) -> list[Any]:
        with ThreadPoolExecutor(self.threads, thread_name_prefix="millrace") as threads:
            futures = [threads.submit(function, shared, item) for item in items]
            number = {future: i for i, future in enumerate(futures)}
            if done:
                for future in futures:
                    future.add_done_callback(
                        lambda f: None if f.cancelled() or f.exception() else done(number[f], f.result())
                    )
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                future.cancel()
            return [future.result() for future in sorted(futures, key=lambda f: f.cancelled())]

    def gather(self, function: Callable[[Any, Any], Any], merge: Callable[[list[Any]], Any], shared: Any,
               items: Sequence[Any], done: Done | None = None) -> list[Any]:  # fmt: skip
        waiting: dict[int, list[Any]] = {}
        lock = threading.Lock()

        def work(shared: Any, item: Any) -> None:
            made, level = function(shared, item), 0
            while True:
                with lock:
                    group = waiting.setdefault(level, [])
                    group.append(made)
                    if len(group) < FAN_IN:
                        return
                    waiting[level] = []
                del made
                made, level = merge(group), level + 1

        self.map(work, shared, items, done)
        return [result for _, group in sorted(waiting.items()) for result in group]

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], here: bool = False) -> list[Any]:
        return self.map(_applied, function, arguments)

    def on_workers(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return {self.workers[0]: function(*arguments)}

    def values(self, handles: Sequence[Any]) -> list[Any]:
        return list(handles)

    def arriving(self, handles: list[Any]) -> Iterator[tuple[int, Any]]:
        found = list(handles)
        handles.clear()
        return enumerate(found)


def _applied(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


class DaskPool:
    """The workers of a Dask cluster."""

    def __init__(self, client: Any, resources: dict[str, float] | None = None) -> None:
        self.client = client
        self.options = {"resources": resources} if resources else {}
        info = client.scheduler_info(n_workers=-1)["workers"]
        self.threads = max(sum(w["nthreads"] for w in info.values()), 1)
        self.workers: Sequence[str] = tuple(sorted(info))
        self.memory = sum(w["memory_limit"] or psutil.virtual_memory().total for w in info.values())
        taken = resources or {}
        self.anywhere = all(w["resources"].get(name, 0) >= n for w in info.values() for name, n in taken.items())

        self.submitted: weakref.WeakSet[Any] = weakref.WeakSet()

    def waiting(self) -> list[Any]:
        """What was submitted, is still wanted, and has not ended."""
        return [future for future in list(self.submitted) if future.status == "pending"]

    def first_asked(self, worker: str | None) -> dict[str, Any]:
        """Arguments of `submit` by which Dask asks a worker first for a task, others if that one is busy or gone.

        None where some of the workers do not offer what the tasks of this pool take: Dask forgets such a restriction
        together with the place, gives the task to one of these and fails there, without a word and for ever.
        """
        return {"workers": [worker], "allow_other_workers": True} if worker and self.anywhere else {}

    @cached_property
    def here(self) -> str | None:
        """The worker of which this is a thread, if it is one of this cluster's."""
        from distributed import get_worker

        try:
            address = str(get_worker().address)
        except ValueError:
            return None
        return address if address in self.workers else None

    @cached_property
    def device_memory(self) -> int:
        return sum(self.client.run(frame.allocatable).values())

    def on_workers(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        found = self.client.run(function, *arguments, on_error="return")
        there = {worker: value for worker, value in found.items() if not isinstance(value, OSError)}
        for value in there.values():
            if isinstance(value, Exception):
                raise value
        return there

    def given(self, function: Callable[..., Any], shared: Any, tasks: int) -> tuple[Callable[..., Any], list[Any]]:
        """(a function for so many tasks, its first arguments) that stand for `function` with `shared` as the first one.

        What is small goes along with every task; a large value is put on every worker past the scheduler, and has no
        lineage. On one worker alone it would draw nearly all tasks there.
        """
        if pickled_bytes(shared) * tasks > LARGE:
            return function, [self.everywhere(shared)]
        return Given(function, shared), []

    def everywhere(self, value: Any) -> Any:
        """A future of the value, which is on every worker."""
        return self.client.scatter([value], broadcast=True, hash=False)[0]  # a tuple alone would be scattered in parts

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        given = {"key": _key(function.__name__), "pure": False, **self.options, **options}
        future = self.client.submit(function, *args, **given)
        self.submitted.add(future)
        return future

    def start(self, function: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any],
              places: Mapping[int, str] | None = None) -> list[Any]:  # fmt: skip
        """Futures of function(shared, item). `places` names the workers that have what some of the items (by their
        place) need: they are asked first."""
        items = list(items)
        function, first = self.given(function, shared, len(items))
        run = uuid.uuid4().hex[:8]
        groups: dict[str | None, list[int]] = {}
        for i in range(len(items)):
            groups.setdefault(places.get(i) if places else None, []).append(i)
        futures: list[Any] = [None] * len(items)
        for place, numbers in groups.items():
            where = self.first_asked(place)
            made = self._mapped(function, *([handle] * len(numbers) for handle in first), [items[i] for i in numbers],
                                key=[f"{function.__name__}-{run}-{i:06d}" for i in numbers], **where)  # fmt: skip
            for i, future in zip(numbers, made, strict=True):
                futures[i] = future
        return futures

    def each(self, function: Callable[..., Any], *items: Sequence[Any], priority: int = 0) -> list[Any]:
        """Futures of function(item, ..) over values or futures."""
        run = uuid.uuid4().hex[:8]
        keys = [f"{function.__name__}-{run}-{i:06d}" for i in range(len(items[0]))]
        return self._mapped(function, *items, key=keys, priority=priority)

    def _mapped(
        self, function: Callable[..., Any], *items: Sequence[Any], key: list[str], priority: int = 0, **where: Any
    ) -> list[Any]:
        """In messages of so many tasks that the first ones run while the others are still on their way."""
        options = {"batch_size": BATCH, "pure": False, "priority": priority, **self.options, **where}
        futures = self.client.map(function, *items, key=key, **options)
        self.submitted.update(futures)
        return futures

    def finish(self, futures: Sequence[Any], done: Done | None = None, results: bool = True) -> list[Any]:
        """Wait for all; the first error cancels the rest and is raised."""
        from distributed import as_completed

        number = {future.key: i for i, future in enumerate(futures)}
        found: list[Any] = [None] * len(futures)
        try:
            for batch in as_completed(futures, with_results=results, raise_errors=True).batches():
                for entry in batch:
                    future, result = entry if results else (entry, None)
                    if future.status in ("error", "cancelled"):  # as_completed itself raises only the first of a batch
                        future.result()
                    found[number[future.key]] = result
                    if done:
                        done(number[future.key], result)
        except BaseException:
            self.client.cancel(list(futures), force=True)
            raise
        return found

    def map(
        self, function: Callable[[Any, Any], Any], shared: Any, items: Sequence[Any], done: Done | None = None
    ) -> list[Any]:
        return self.finish(self.start(function, shared, items), done)

    def gather(self, function: Callable[[Any, Any], Any], merge: Callable[[list[Any]], Any], shared: Any,
               items: Sequence[Any], done: Done | None = None) -> list[Any]:  # fmt: skip
        from distributed import as_completed

        observed = self.start(function, shared, items)
        number = {future.key: i for i, future in enumerate(observed)}
        waiting = as_completed(observed)
        observed.clear()  # a result is let go as soon as it is merged
        groups: list[Any] = []
        unmerged: dict[str, list[Any]] = {}  # by the worker that has them: results are merged where they are
        try:
            for batch in waiting.batches():
                for worker, future in self._placed(list(batch)):
                    group = unmerged.setdefault(worker, [])
                    group.append(future)
                    if len(group) == FAN_IN:
                        groups += self.call(merge, [(unmerged.pop(worker),)])
                    if done:
                        done(number[future.key], None)
                del batch, future, group
            return groups + self.call(merge, [(group,) for _, group in sorted(unmerged.items())])
        except BaseException:
            left = [future for group in unmerged.values() for future in group]
            self.client.cancel([*waiting.futures, *groups, *left], force=True)
            raise

    def _placed(self, futures: list[Any]) -> list[tuple[str, Any]]:
        """(a worker that has it, future) of results; the first error is raised."""
        _raise_first(futures)
        if len(self.workers) == 1:
            return [(self.workers[0], future) for future in futures]
        where = self.client.who_has(futures)
        return [(min(where.get(future.key) or [""]), future) for future in futures]

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], here: bool = False) -> list[Any]:
        place = self.first_asked(self.here if here else None)
        return [self.submit(function, *given, **place) for given in arguments]

    def values(self, handles: Sequence[Any]) -> list[Any]:
        """What is on the worker that runs this very task is taken as it is: it is neither copied nor to be changed."""
        self.finish(handles, results=False)
        return list(self.client.gather(list(handles)))

    def arriving(self, handles: list[Any]) -> Iterator[tuple[int, Any]]:
        """As `values`; several that are done at the same time come together."""
        from distributed import as_completed

        number = {future.key: i for i, future in enumerate(handles)}
        waiting = as_completed(handles)
        handles.clear()
        try:
            for batch in waiting.batches():
                done = list(batch)
                _raise_first(done)
                yield from zip((number[future.key] for future in done), self.client.gather(done), strict=True)
                del batch, done
        except BaseException:
            self.client.cancel(list(waiting.futures), force=True)
            raise


def _raise_first(futures: Iterable[Any]) -> None:
    """The first error among futures that are done, if there is one."""
    for future in futures:
        if future.status in ("error", "cancelled"):
            future.result()


def _key(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:12]}"


def graph_share(value: Any, tasks: int) -> Any:
    """A future of what so many tasks of a Dask graph share, where it is large and there is a current client; else None.

    A graph that is made for a client's workers must be computed there.
    """
    pool = current_pool()
    if not isinstance(pool, DaskPool) or pickled_bytes(value) * tasks <= LARGE:
        return None
    return pool.everywhere(value)


def current_pool() -> Pool:
    """The current `distributed.Client` of this process if there is one, else threads. Starts nothing."""
    import sys

    if "distributed" in sys.modules:
        from distributed import default_client

        try:
            return DaskPool(default_client())
        except ValueError:
            pass
    return LocalPool()
