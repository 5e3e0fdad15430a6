"""Runs functions over partitions in threads of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import psutil

from tasks import engines
from tasks.cluster.pool import FAN_IN, Done


class LocalPool:
    """Threads of this process; kernels release the GIL.

    `allocatable` returns the bytes that this process may allocate on its GPU.
    """

    def __init__(self, threads: int | None = None, allocatable: Callable[[], int] = engines.allocatable) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self.workers: Sequence[str] = ("this process",)
        self.memory = self.smallest_memory = psutil.virtual_memory().available
        self.published: dict[str, list[Any]] = {}  # by name: results that outlive the call that made them
        self._allocatable = allocatable

    @property
    def planned_for(self) -> LocalPool:
        return self

    @property
    def works_here(self) -> bool:
        return True

    @property
    def device_memory(self) -> int:
        return self._allocatable()

    @property
    def smallest_device_memory(self) -> int:
        return self.device_memory

    def map(
        self, function: Callable[[Any, Any], Any], shared: object, items: Sequence[Any], done: Done | None = None
    ) -> list[Any]:
        with ThreadPoolExecutor(self.threads, thread_name_prefix="rowmill") as threads:
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

    def gather(
        self,
        function: Callable[[Any, Any], Any],
        merge: Callable[[list[Any]], Any],
        shared: object,
        items: Sequence[Any],
        done: Done | None = None,
    ) -> list[Any]:
        waiting: dict[int, list[Any]] = {}
        lock = threading.Lock()

        def work(shared: object, item: object) -> None:
            partial = function(shared, item)
            level = 0
            while True:
                with lock:
                    group = waiting.setdefault(level, [])
                    group.append(partial)
                    if len(group) < FAN_IN:
                        return
                    waiting[level] = []
                del partial
                partial = merge(group)
                level = level + 1

        self.map(work, shared, items, done)
        return [result for _, group in sorted(waiting.items()) for result in group]

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], here: bool = False) -> list[Any]:
        return self.map(_apply_arguments, function, arguments)

    def on_workers(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return {self.workers[0]: function(*arguments)}

    def values(self, handles: Sequence[Any]) -> list[Any]:
        return list(handles)

    def arriving(self, handles: list[Any]) -> Iterator[tuple[int, Any]]:
        results = list(handles)
        handles.clear()
        return enumerate(results)


def _apply_arguments(function: Callable[..., Any], arguments: tuple[Any, ...]) -> object:
    return function(*arguments)
