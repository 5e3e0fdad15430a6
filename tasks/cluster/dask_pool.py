"""Runs functions over partitions on a Dask cluster; stages see the same interface as that of threads."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from tasks import engines
from tasks.cluster.pool import FAN_IN, Done, count_pickled_bytes
from tasks.cluster.shared_argument import WithShared
from tasks.core.plan import Partition

if TYPE_CHECKING:
    from distributed import Client

LARGE = 4 << 20  # bytes: larger shared arguments do not go into the graph, which the scheduler keeps in memory
BATCH = 5_000  # tasks in one message to the scheduler
ANSWER_SECONDS = 60.0  # for a scheduler that may have gone with the thread that it runs in


class Workers(Protocol):
    """The size of a pool: every pool has it; a preview, which starts no pool, has that of the pool that would start."""

    @property
    def threads(self) -> int: ...
    @property
    def workers(self) -> Sequence[str]: ...
    @property
    def memory(self) -> int: ...
    @property
    def device_memory(self) -> int: ...
    @property
    def smallest_memory(self) -> int: ...
    @property
    def smallest_device_memory(self) -> int: ...


def workers_at(client: Any) -> dict[str, Any]:
    """Return the workers of a client's cluster by their addresses, as the scheduler knows them now.

    {} if it does not answer within `ANSWER_SECONDS`.

    `Client.scheduler_info` has none at times: every two seconds a thread replaces it by one without workers.
    """
    with suppress(OSError):
        scheduler = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_SECONDS)
        return dict(scheduler["workers"])
    return {}


def select_offering(workers: Mapping[str, Any], resources: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the workers that offer the resources."""
    taken = (resources or {}).items()
    return {a: w for a, w in workers.items() if all((w["resources"] or {}).get(name, 0) >= n for name, n in taken)}


class DaskPool:
    """The workers of a Dask cluster that offer the resources which tasks take.

    `allocatable`, run on a worker, returns the bytes that it may allocate on its GPU. `planned_for` is the pool that
    partitions are planned for, if another one.
    """

    def __init__(
        self,
        client: Client,
        resources: dict[str, float] | None = None,
        allocatable: Callable[[], int] = engines.allocatable,
        planned_for: DaskPool | None = None,
    ) -> None:
        self.client = client
        self._allocatable = allocatable
        self.planned_for = planned_for or self
        self.options = {"resources": resources} if resources else {}
        there = workers_at(client)
        info = select_offering(there, resources)
        self.threads = max(sum(w["nthreads"] for w in info.values()), 1)
        self.workers: Sequence[str] = tuple(sorted(info))
        each = [w["memory_limit"] or psutil.virtual_memory().total for w in info.values()]
        self.memory = sum(each)
        self.smallest_memory = min(each, default=0)
        self.anywhere = len(info) == len(there)
        self.submitted: weakref.WeakSet[Any] = weakref.WeakSet()

    def waiting(self) -> list[Any]:
        """List the futures that were submitted, are still referenced, and have not ended."""
        return [future for future in list(self.submitted) if future.status == "pending"]

    def preferring(self, worker: str | None) -> dict[str, Any]:
        """Return the arguments of `submit` that make Dask prefer a worker, and use others if it is busy or gone.

        Empty where some workers lack the resources that tasks of this pool take: Dask would drop that restriction
        together with the preference, send the task to such a worker, and fail there again and again without a message.
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

    @property
    def works_here(self) -> bool:
        return self.here is not None

    @cached_property
    def _device_memories(self) -> list[int]:
        only = None if self.anywhere else list(self.workers)  # others may have no GPU
        return list(self.client.run(self._allocatable, workers=only).values())

    @property
    def device_memory(self) -> int:
        return sum(self._device_memories)

    @property
    def smallest_device_memory(self) -> int:
        return min(self._device_memories, default=0)

    def on_workers(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        answers = self.client.run(function, *arguments, on_error="return")
        there = {worker: value for worker, value in answers.items() if not isinstance(value, OSError)}
        for value in there.values():
            if isinstance(value, Exception):
                raise value
        return there

    def with_shared(
        self, function: Callable[..., Any], shared: object, tasks: int
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return (function, first arguments) for tasks of `function` that all have `shared` as the first argument.

        A small value goes along with every task. A large one is copied to every worker past the scheduler, which cannot
        compute it again; on one worker alone it would draw nearly all tasks there.
        """
        if count_pickled_bytes(shared) * tasks > LARGE:
            return function, [self.everywhere(shared)]
        return WithShared(function, shared), []

    def everywhere(self, value: object) -> Any:
        """Send a value to every worker; return its future."""
        return self.client.scatter([value], broadcast=True, hash=False)[0]  # a tuple alone would be scattered in parts

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        settings = {"key": _key(function.__name__), "pure": False, **self.options, **options}
        future = self.client.submit(function, *args, **settings)
        self.submitted.add(future)
        return future

    def start(
        self,
        function: Callable[[Any, Any], Any],
        shared: object,
        items: Iterable[Any],
        places: Mapping[int, str] | None = None,
    ) -> list[Any]:
        """Submit function(shared, item) for each item; return the futures.

        `places` maps numbers of items to the workers that have their data: these are preferred.
        """
        items = list(items)
        function, first = self.with_shared(function, shared, len(items))
        run = uuid.uuid4().hex[:8]
        if any(getattr(item, "inputs", ()) for item in items):
            calls = over_frames(function, first, items, f"{function.__name__}-{run}", self.client)
            computed: list[Any] = self.client.compute(calls, **self.options)
            self.submitted.update(computed)
            return computed
        groups: dict[str | None, list[int]] = {}
        for i in range(len(items)):
            groups.setdefault(places.get(i) if places else None, []).append(i)
        futures: list[Any] = [None] * len(items)
        for place, numbers in groups.items():
            arguments = [*([handle] * len(numbers) for handle in first), [items[i] for i in numbers]]
            keys = [f"{function.__name__}-{run}-{i:06d}" for i in numbers]
            mapped = self._map_to_futures(function, *arguments, key=keys, **self.preferring(place))
            for i, future in zip(numbers, mapped, strict=True):
                futures[i] = future
        return futures

    def each(self, function: Callable[..., Any], *items: Sequence[Any], priority: int = 0) -> list[Any]:
        """Submit function(item, ..) over values or futures; return the futures."""
        run = uuid.uuid4().hex[:8]
        keys = [f"{function.__name__}-{run}-{i:06d}" for i in range(len(items[0]))]
        return self._map_to_futures(function, *items, key=keys, priority=priority)

    def _map_to_futures(
        self, function: Callable[..., Any], *items: Sequence[Any], key: list[str], priority: int = 0, **where: Any
    ) -> list[Any]:
        """Submit function(item, ..) in batches, so that the first tasks run while others are being sent."""
        options = {"batch_size": BATCH, "pure": False, "priority": priority, **self.options, **where}
        futures = self.client.map(function, *items, key=key, **options)
        self.submitted.update(futures)
        return futures

    def finish(self, futures: Sequence[Any], done: Done | None = None, results: bool = True) -> list[Any]:
        """Wait for all; the first error cancels the rest and is raised."""
        from distributed import as_completed

        number = {future.key: i for i, future in enumerate(futures)}
        values: list[Any] = [None] * len(futures)
        try:
            for batch in as_completed(futures, self.client.loop, results, raise_errors=True).batches():
                for entry in batch:
                    future, result = entry if results else (entry, None)
                    if future.status in ("error", "cancelled"):  # as_completed itself raises only the first of a batch
                        future.result()
                    values[number[future.key]] = result
                    if done:
                        done(number[future.key], result)
        except BaseException:
            self.client.cancel(list(futures), force=True)
            raise
        return values

    def map(
        self, function: Callable[[Any, Any], Any], shared: object, items: Sequence[Any], done: Done | None = None
    ) -> list[Any]:
        return self.finish(self.start(function, shared, items), done)

    def gather(
        self,
        function: Callable[[Any, Any], Any],
        merge: Callable[[list[Any]], Any],
        shared: object,
        items: Sequence[Any],
        done: Done | None = None,
    ) -> list[Any]:
        from distributed import as_completed

        observed = self.start(function, shared, items)
        number = {future.key: i for i, future in enumerate(observed)}
        waiting = as_completed(observed, self.client.loop)
        observed.clear()  # a result is let go as soon as it is merged
        groups: list[Any] = []
        unmerged: dict[str, list[Any]] = {}  # by the worker that has them: results are merged where they are
        try:
            for batch in waiting.batches():
                for worker, future in self._locate_results(list(batch)):
                    group = unmerged.setdefault(worker, [])
                    group.append(future)
                    if len(group) == FAN_IN:
                        groups += self.call(merge, [(unmerged.pop(worker),)])
                    if done:
                        done(number[future.key], None)
                del batch, future, group
            return groups + self.call(merge, [(group,) for _, group in sorted(unmerged.items())])
        except BaseException:
            unmerged_futures = [future for group in unmerged.values() for future in group]
            self.client.cancel([*waiting.futures, *groups, *unmerged_futures], force=True)
            raise

    def _locate_results(self, futures: list[Any]) -> list[tuple[str, Any]]:
        """Find (a worker that has it, future) of results; the first error is raised."""
        _raise_first(futures)
        if len(self.workers) == 1:
            return [(self.workers[0], future) for future in futures]
        where = self.client.who_has(futures)
        return [(min(where.get(future.key) or [""]), future) for future in futures]

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], here: bool = False) -> list[Any]:
        place = self.preferring(self.here if here else None)
        return [self.submit(function, *args, **place) for args in arguments]

    def values(self, handles: Sequence[Any]) -> list[Any]:
        """Return the values of the handles. Do not change them: those on the worker that runs this task are not
        copies."""
        self.finish(handles, results=False)
        return list(self.client.gather(list(handles)))

    def arriving(self, handles: list[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the values as they arrive; those that are done at the same time are fetched together."""
        from distributed import as_completed

        number = {future.key: i for i, future in enumerate(handles)}
        waiting = as_completed(handles, self.client.loop)
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


class _OnFrames:
    """`function` of a partition whose frames reach the task as arguments."""

    def __init__(self, function: Callable[..., Any], partition: Partition) -> None:
        self.function = function
        self.partition = partition

    def __call__(self, frames: Sequence[Any], first: Sequence[Any]) -> Any:
        return self.function(*first, self.partition.with_frames(frames))


def over_frames(
    function: Callable[..., Any], first: Sequence[Any], partitions: Sequence[Partition], name: str, client: Any = None
) -> list[Any]:
    """Make a Delayed of function(*first, partition) for each partition.

    The scheduler computes a frame where its data are, prefers that worker for the task, and lets go of the frame
    behind the last task that takes it. A frame of this process is copied to one worker, by the transport of Dask.
    """
    import dask

    frames = {one.number: one.frame for partition in partitions for one in partition.inputs}
    here = {number: frame for number, frame in frames.items() if not dask.is_dask_collection(frame)}
    if here and client is not None:
        frames |= dict(zip(here, client.scatter(list(here.values()), hash=False), strict=True))
    calls = []
    for i, partition in enumerate(partitions):
        call = dask.delayed(_OnFrames(function, partition), pure=False, traverse=False)
        own = [frames[one.number] for one in partition.inputs]
        calls.append(call(own, list(first), dask_key_name=f"{name}-{i:06d}"))
    return calls


def _raise_first(futures: Iterable[Any]) -> None:
    """Raise the first error among futures that are done, if any."""
    for future in futures:
        if future.status in ("error", "cancelled"):
            future.result()


def _key(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:12]}"
