"""How pieces get from the partition that made them to the file that wants them: in memory, or by files on disk."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tasks.cluster import column_cache
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Done, Pool
from tasks.core.plan import Partition
from tasks.shuffle.cutting import cut_partition
from tasks.shuffle.pieces import Cutting, packed_ranges, shares_of, summary, together

Ranges = Callable[[Any], tuple[int, int]]  # the ranges of position [first, last) that an item wants
MOVING = 10  # priority of what moves pieces: before further partitions, so that both go on at the same time


class LocalMemory:
    """Pieces in the memory of this process."""

    kind = "memory"

    def __init__(self, pool: LocalPool) -> None:
        self.pool, self.cuts = pool, []  # type: ignore[var-annotated]

    def fill(self, cutting: Cutting, partitions: Sequence[Partition], done: Done | None) -> list[dict[str, Any]]:
        """Cut every partition; the summaries in the order of the partitions."""
        self.cuts = self.pool.map(cut_partition, cutting, partitions, done and (lambda i, _: done(i, None)))
        return [summary(cut) for cut in self.cuts]

    def whole(self, partitions: int) -> bool:
        """True if the pieces of all partitions are here."""
        return len(self.cuts) == partitions

    def deliver(
        self, function: Callable[..., Any], shared: Any, items: Sequence[Any], ranges: Ranges, done: Done | None
    ) -> list[Any]:
        """function(shared, item, cuts) for every item, in threads."""
        cuts = self.cuts
        return self.pool.map(lambda _, item: function(shared, item, cuts), None, items, done)

    def close(self) -> None:
        self.cuts = []


@dataclass
class Kept:
    """The pieces on the workers. Ranges of position [bounds[w], bounds[w + 1]) are those of the w-th worker's files;
    `pieces` has a future of them for each (number of the first partition, w), `notes` one of each partition's
    summary."""

    bounds: tuple[int, ...] = (0, 0)
    notes: dict[int, Any] = field(default_factory=dict)
    pieces: dict[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The partitions whose pieces for a worker are one future: together about as large as one partition."""
        return len(self.bounds) - 1

    def owners(self) -> list[int]:
        """The workers that have ranges."""
        return [w for w in range(self.step) if self.bounds[w] < self.bounds[w + 1]]

    def lacks(self, partitions: int) -> list[tuple[int, int]]:
        """Which of the pieces of so many partitions are not there."""
        wanted = [(first, w) for first in range(0, partitions, self.step) for w in self.owners()]
        return [place for place in wanted if place not in self.pieces]


class DaskMemory:
    """Pieces as Dask futures with lineage, published under a name until the commit: they outlive the stage that made
    them.

    With several workers each partition's pieces move to the workers that will write them while later partitions are
    still read. A lost worker's pieces are made again by the scheduler, or by the next attempt of the stage.
    """

    kind = "memory"

    def __init__(self, pool: DaskPool, name: str | None = None) -> None:
        self.pool, self.name = pool, name or f"millrace-{uuid.uuid4().hex[:12]}"

    def fill(self, cutting: Cutting, partitions: Sequence[Partition], done: Done | None) -> list[dict[str, Any]]:
        """Cut every partition, and move the pieces to where they will be written; the summaries in the order of the
        partitions."""
        kept = self._there()
        if not kept.pieces:
            kept = Kept(shares_of(cutting.order.ranges, len(self.pool.workers)))
        count = len(partitions)
        lacking = kept.lacks(count)
        groups = {first: range(first, min(first + kept.step, count)) for first, _ in lacking}
        numbers = sorted({i for group in groups.values() for i in group} | {*range(count)} - {*kept.notes})
        held = column_cache.held_by(self.pool, cutting.work.keeping)
        places = {place: held[i] for place, i in enumerate(numbers) if i in held}
        cutting = replace(cutting, shares=kept.bounds)
        cuts = self.pool.start(cut_partition, cutting, [partitions[i] for i in numbers], places)
        kept.notes |= dict(zip(numbers, self.pool.each(summary, cuts, priority=MOVING), strict=True))
        made = dict(zip(numbers, cuts, strict=True))
        if kept.step == 1:
            kept.pieces |= {(i, 0): made[i] for i in groups}
        elif lacking:
            kept.pieces |= self._moved(kept.bounds, {place: [made[i] for i in groups[place[0]]] for place in lacking})
        del made, cuts  # what has moved is let go
        self.pool.client.unpublish_dataset(self.name)  # put in its place, a name would hold what it stood for before
        self.pool.client.publish_dataset(kept.__dict__, name=self.name)
        found = self.pool.finish([kept.notes[i] for i in range(count)], done)
        self.pool.finish([kept.pieces[place] for place in lacking], results=False)
        return found

    def _moved(self, bounds: Sequence[int], cuts: dict[tuple[int, int], list[Any]]) -> dict[tuple[int, int], Any]:
        """Futures of the pieces of some partitions for a worker, on that worker."""
        ranges = [(cut, bounds[w], bounds[w + 1]) for (_, w), group in cuts.items() for cut in group]
        packed = iter(self.pool.each(packed_ranges, *map(list, zip(*ranges, strict=True)), priority=MOVING))
        return {
            (first, w): self.pool.submit(
                together, [next(packed) for _ in group], priority=MOVING, **self.pool.first_asked(self._worker(w))
            )
            for (first, w), group in cuts.items()
        }  # fmt: skip

    def _worker(self, number: int) -> str:
        return self.pool.workers[number % len(self.pool.workers)]

    def _there(self) -> Kept:
        """What is published and a worker holds at this moment; what is lost or failed is not in it."""
        kept = Kept(**(self.pool.client.get_dataset(self.name, default=None) or {}))
        futures = [*kept.notes.values(), *kept.pieces.values()]
        held = self.pool.client.who_has(futures) if futures else {}
        kept.notes = {i: future for i, future in kept.notes.items() if held.get(future.key)}
        kept.pieces = {place: future for place, future in kept.pieces.items() if held.get(future.key)}
        return kept

    def whole(self, partitions: int) -> bool:
        """True if the pieces of all partitions are there."""
        kept = self._there()
        return bool(kept.pieces) and not kept.lacks(partitions)

    def deliver(
        self, function: Callable[..., Any], shared: Any, items: Sequence[Any], ranges: Ranges, done: Done | None
    ) -> list[Any]:
        """function(shared, item, cuts) for every item, where its pieces are."""
        if not items:
            return []
        kept = Kept(**self.pool.client.get_dataset(self.name))
        (call, given), futures = self.pool.given(function, shared, len(items)), []
        for item in items:
            first, last = ranges(item)
            last = max(last, first + 1)
            owner = bisect_right(kept.bounds, first) - 1
            where = self.pool.first_asked(self._worker(owner) if kept.step > 1 else None)
            parts = list(self._parts(kept, owner, first, last))
            futures.append(self.pool.submit(call, *given, item, parts, **where))
        return self.pool.finish(futures, done)

    def _parts(self, kept: Kept, owner: int, first: int, last: int) -> Iterator[Any]:
        """Futures of what holds ranges [first, last); of what another worker than the owner has only these move."""
        for place in sorted(kept.pieces):
            w = place[1]
            low, high = max(first, kept.bounds[w]), min(last, kept.bounds[w + 1])
            if low < high:
                future = kept.pieces[place]
                yield future if w == owner else self.pool.submit(packed_ranges, future, low, high, priority=MOVING)

    def close(self) -> None:
        release(self.pool.client, self.name)


def release(client: Any, prefix: str) -> None:
    """Forget the pieces on a scheduler that are published under names that begin with `prefix`."""
    for name in client.list_datasets():
        if name.startswith(prefix):
            client.unpublish_dataset(name)


def memory_exchange(pool: Pool, name: str | None = None) -> LocalMemory | DaskMemory:
    return DaskMemory(pool, name) if isinstance(pool, DaskPool) else LocalMemory(pool)  # type: ignore[arg-type]
