"""How pieces get from the partition that made them to the file that wants them: in memory, or by files on disk."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from tasks.plan import Partition
from tasks.pool import DaskPool, LocalPool, Pool
from tasks.transform import Cut, Cutting, cut_partition, summary


class LocalMemory:
    """Pieces in the memory of this process."""

    kind = "memory"

    def __init__(self, pool: LocalPool) -> None:
        self.pool, self.cuts = pool, []  # type: ignore[var-annotated]

    def fill(
        self, cutting: Cutting, partitions: Sequence[Partition], done: Callable[[int, Any], None] | None
    ) -> list[dict[str, Any]]:
        """Cut every partition; the summaries in the order of the partitions."""
        self.cuts = self.pool.map(cut_partition, cutting, partitions, done and (lambda i, _: done(i, None)))
        return [summary(cut) for cut in self.cuts]

    def whole(self, partitions: int) -> bool:
        """True if the pieces of all partitions are here."""
        return len(self.cuts) == partitions

    def deliver(
        self,
        function: Callable[..., Any],
        shared: Any,
        items: Sequence[Any],
        ranges: Callable[[Any], tuple[int, int]],
        done: Callable[[int, Any], None] | None,
    ) -> list[Any]:
        """function(shared, item, cuts) for every item, in threads."""
        cuts = self.cuts
        return self.pool.map(lambda _, item: function(shared, item, cuts), None, items, done)

    def close(self) -> None:
        self.cuts = []


class DaskMemory:
    """Pieces as Dask futures with lineage, published under a name until the commit: they outlive the stage that made
    them.

    A lost worker's pieces are made again by the scheduler, or by the next attempt of the stage.
    """

    kind = "memory"

    def __init__(self, pool: DaskPool, name: str | None = None) -> None:
        self.pool, self.name = pool, name or f"millrace-{uuid.uuid4().hex[:12]}"

    def fill(
        self, cutting: Cutting, partitions: Sequence[Partition], done: Callable[[int, Any], None] | None
    ) -> list[dict[str, Any]]:
        usable = self._there()
        missing = [i for i in range(len(partitions)) if i not in usable]
        made = self.pool.start(cut_partition, cutting, [partitions[i] for i in missing])
        futures = usable | dict(zip(missing, made, strict=True))
        self.pool.client.publish_dataset(futures, name=self.name, override=True)
        ordered = [futures[i] for i in range(len(partitions))]
        return self.pool.finish(self.pool.each(summary, ordered), done)

    def _there(self) -> dict[int, Any]:
        """The published pieces that a worker holds at this moment, by partition; what is lost or failed is not among
        them."""
        kept = self.pool.client.get_dataset(self.name, default=None) or {}
        held = self.pool.client.who_has(list(kept.values())) if kept else {}
        return {i: future for i, future in kept.items() if held.get(future.key)}

    def whole(self, partitions: int) -> bool:
        """True if the pieces of all partitions are there."""
        return len(self._there()) == partitions

    def deliver(
        self,
        function: Callable[..., Any],
        shared: Any,
        items: Sequence[Any],
        ranges: Callable[[Any], tuple[int, int]],
        done: Callable[[int, Any], None] | None,
    ) -> list[Any]:
        """function(shared, item, cuts) for every item; items are spread over the workers, and only their ranges
        move."""
        if not items:
            return []
        kept = self.pool.client.get_dataset(self.name)
        cuts = [kept[i] for i in sorted(kept)]
        handle, workers = self.pool.share(shared), self.pool.workers
        futures: list[Any] = [None] * len(items)
        for w, worker in enumerate(workers):
            mine = [i for i in range(len(items)) if i * len(workers) // len(items) == w]
            if not mine:
                continue
            where = {"workers": [worker], "allow_other_workers": True} if len(workers) > 1 else {}
            if len(workers) > 1:
                first, last = ranges(items[mine[0]])[0], ranges(items[mine[-1]])[1]
                parts = [self.pool.submit(packed_ranges, cut, first, last) for cut in cuts]
            else:
                parts = cuts
            for i in mine:
                futures[i] = self.pool.submit(function, handle, items[i], parts, **where)
        return self.pool.finish(futures, done)

    def close(self) -> None:
        release(self.pool.client, self.name)


def release(client: Any, prefix: str) -> None:
    """Forget the pieces on a scheduler that are published under names that begin with `prefix`."""
    for name in client.list_datasets():
        if name.startswith(prefix):
            client.unpublish_dataset(name)


class Packed(Cut):
    """Some ranges of a cut in buffers of their own; asked for by the numbers that they have in the whole."""

    first: int = 0

    def ranges(self, first: int, last: int) -> list[Any]:
        return [p.ranges(first - self.first, last - self.first) for p in self.pieces]


def packed_ranges(cut: Cut, first: int, last: int) -> Packed:
    packed = Packed([p.packed() for p in cut.ranges(first, last)])
    packed.first = first
    return packed


def memory_exchange(pool: Pool, name: str | None = None) -> LocalMemory | DaskMemory:
    return DaskMemory(pool, name) if isinstance(pool, DaskPool) else LocalMemory(pool)  # type: ignore[arg-type]
