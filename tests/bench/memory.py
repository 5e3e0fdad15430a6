"""How much memory a benchmark takes: of the host by all of its processes, of GPUs by what each worker allocated."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

from tasks.cluster import monitor


class Memory(threading.Thread):
    """The largest sum of the resident sizes of this process and its children."""

    def __init__(self, every: float = 0.05) -> None:
        super().__init__(daemon=True)
        self.every, self.largest, self.ended = every, 0, threading.Event()

    def run(self) -> None:
        me = psutil.Process()
        while True:
            sizes = []
            for process in [me, *me.children(recursive=True)]:
                try:
                    sizes.append(process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            self.largest = max(self.largest, sum(sizes))
            if self.ended.wait(self.every):
                return

    def stop(self) -> int:
        """The largest sum, in bytes."""
        self.ended.set()
        self.join()
        return self.largest


@contextmanager
def recorded(client: Any) -> Iterator[dict[str, Any]]:
    """Seconds of the block and the memory that it took, put into the yielded dict when the block is done.

    `host_peak_bytes`: of this process and all below it. By worker, in the order of their names:
    `allocated_peak_bytes`: the most that stood allocated through RMM; `device_peak_bytes`: the most that was used of
    the GPU, by whomever, sampled twice a second (NVML); None without a GPU. `spilled_to_host_bytes`,
    `spilled_to_disk_bytes`: the most results that stood there. Without a client: seconds and the host alone.
    """
    found: dict[str, Any] = {}
    if client is None:
        with _host(found):
            yield found
        return
    before = client.run(_begin)
    try:
        with monitor.watch_workers(client, list(before)) as watch, _host(found):
            yield found
    finally:
        peaks = client.run(_end)
    workers = sorted(watch.workers.items(), key=lambda item: str(item[1]["name"]))
    counted = [(before.get(address), peaks.get(address)) for address, _ in workers]
    found["allocated_peak_bytes"] = [None if None in pair else sum(pair) for pair in counted]
    for name, field in (("device_peak_bytes", "device"), ("spilled_to_host_bytes", "to_host"),
                        ("spilled_to_disk_bytes", "to_disk")):  # fmt: skip
        found[name] = [_largest([getattr(s, field) for s in worker["samples"]]) for _, worker in workers]


@contextmanager
def _host(found: dict[str, Any]) -> Iterator[None]:
    memory = Memory(every=0.2)
    memory.start()
    start = time.perf_counter()
    try:
        yield
    finally:
        found["seconds"] = round(time.perf_counter() - start, 3)
        found["host_peak_bytes"] = memory.stop()


def _largest(values: Sequence[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)


def _statistics() -> Any:
    """RMM's statistics of this worker, from its first call on; None where there is no GPU."""
    try:
        import rmm.statistics
    except ImportError:
        return None
    rmm.statistics.enable_statistics()
    return rmm.statistics


def _begin() -> int | None:
    """Bytes that stand allocated now; what comes is counted from here on."""
    statistics = _statistics()
    return int(statistics.push_statistics().current_bytes) if statistics else None


def _end() -> int | None:
    """The most that stood allocated since `_begin`, above what stood then."""
    statistics = _statistics()
    return int(statistics.pop_statistics().peak_bytes) if statistics else None
