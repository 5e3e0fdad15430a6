"""The exchange of pieces in memory: from the partition that made them to the file that needs them."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tasks.cluster import column_cache
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Done, Pool
from tasks.core.plan import Partition
from tasks.errors import TransientError
from tasks.shuffle.cutting import cut_partition
from tasks.shuffle.pieces import CutSummary, Cutting, PartitionPieces, join_cuts, pack_ranges, shares_of, summary

if TYPE_CHECKING:
    from distributed import Client

Ranges = Callable[[Any], tuple[int, int]]  # the ranges of position [first, last) that an item wants
MOVING = 10  # the priority of tasks that move pieces: above partitions, so that both run at the same time


class LocalMemory:
    """Pieces in the memory of this process, published in the pool under a name until the commit."""

    kind = "memory"

    def __init__(self, pool: LocalPool, name: str = "pieces") -> None:
        self.pool = pool
        self.name = name

    @property
    def cuts(self) -> list[PartitionPieces]:
        """The pieces of each partition; none before `fill`."""
        return self.pool.published.get(self.name, [])

    def fill(self, cutting: Cutting, partitions: Sequence[Partition], done: Done | None) -> list[CutSummary]:
        """Cut every partition; return the summaries in the order of the partitions."""
        cuts = self.pool.map(cut_partition, cutting, partitions, done and (lambda i, _: done(i, None)))
        self.pool.published[self.name] = cuts
        return [summary(cut) for cut in cuts]

    def whole(self, partitions: int) -> bool:
        """Return whether the pieces of all partitions are here."""
        return len(self.cuts) == partitions

    def deliver(
        self, function: Callable[..., Any], shared: object, items: Sequence[Any], ranges: Ranges, done: Done | None
    ) -> list[Any]:
        """Call function(shared, item, cuts) for every item, in threads."""
        cuts = self.cuts
        return self.pool.map(lambda _, item: function(shared, item, cuts), None, items, done)

    def close(self) -> None:
        self.pool.published.pop(self.name, None)


@dataclass
class PublishedPieces:
    """Futures of the pieces on the workers.

    Ranges of position [bounds[w], bounds[w + 1]) are those of the w-th worker's files; `pieces` has a future of them
    for each (number of the first partition, w), `notes` has one of each partition's summary.
    """

    bounds: tuple[int, ...] = (0, 0)
    notes: dict[int, Any] = field(default_factory=dict)
    pieces: dict[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The partitions whose pieces for a worker are one future: together about as large as one partition."""
        return len(self.bounds) - 1

    def owners(self) -> list[int]:
        """Return the workers that have ranges."""
        return [w for w in range(self.step) if self.bounds[w] < self.bounds[w + 1]]

    def lacks(self, partitions: int) -> list[tuple[int, int]]:
        """Return which of the pieces of so many partitions are missing."""
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
        self.pool = pool
        self.name = name or f"rowmill-{uuid.uuid4().hex[:12]}"

    def fill(self, cutting: Cutting, partitions: Sequence[Partition], done: Done | None) -> list[CutSummary]:
        """Cut every partition, and move the pieces to where they will be written; the summaries in the order of the
        partitions."""
        if not self.pool.workers:
            raise TransientError(
                "no worker is left for the shuffle",
                why="the Dask cluster has none at this moment",
                do="start workers, or wait until some have come, then run it again",
            )
        published = self._there()
        if not published.pieces:
            published = PublishedPieces(shares_of(cutting.order, len(self.pool.workers)))
        count = len(partitions)
        lacking = published.lacks(count)
        groups = {first: range(first, min(first + published.step, count)) for first, _ in lacking}
        numbers = sorted({i for group in groups.values() for i in group} | {*range(count)} - {*published.notes})
        holders = column_cache.workers_of(self.pool, cutting.work.cache)
        places = {place: holders[i] for place, i in enumerate(numbers) if i in holders}
        cutting = replace(cutting, shares=published.bounds)
        cuts = self.pool.start(cut_partition, cutting, [partitions[i] for i in numbers], places)
        published.notes |= dict(zip(numbers, self.pool.each(summary, cuts, priority=MOVING), strict=True))
        cut_of = dict(zip(numbers, cuts, strict=True))
        if published.step == 1:
            published.pieces |= {(i, 0): cut_of[i] for i in groups}
        elif lacking:
            cuts_of = {place: [cut_of[i] for i in groups[place[0]]] for place in lacking}
            published.pieces |= self._move_pieces(published.bounds, cuts_of)
            del cuts_of
        del cut_of, cuts  # what has moved is let go
        self.pool.client.unpublish_dataset(self.name)  # publishing over a name would keep the old futures
        self.pool.client.publish_dataset(published.__dict__, name=self.name)
        summaries = self.pool.finish([published.notes[i] for i in range(count)], done)
        self.pool.finish([published.pieces[place] for place in lacking], results=False)
        return summaries

    def _move_pieces(self, bounds: Sequence[int], cuts: dict[tuple[int, int], list[Any]]) -> dict[tuple[int, int], Any]:
        """Move the pieces of some partitions to a worker; return their futures on that worker."""
        ranges = [(cut, bounds[w], bounds[w + 1]) for (_, w), group in cuts.items() for cut in group]
        packed = iter(self.pool.each(pack_ranges, *map(list, zip(*ranges, strict=True)), priority=MOVING))
        return {
            (first, w): self.pool.submit(
                join_cuts, [next(packed) for _ in group], priority=MOVING, **self.pool.preferring(self._worker(w))
            )
            for (first, w), group in cuts.items()
        }

    def _worker(self, number: int) -> str:
        return self.pool.workers[number % len(self.pool.workers)]

    def _there(self) -> PublishedPieces:
        """Return what is published and held by a worker at this moment, without what is lost or failed."""
        published = PublishedPieces(**(self.pool.client.get_dataset(self.name, default=None) or {}))
        futures = [*published.notes.values(), *published.pieces.values()]
        holders = self.pool.client.who_has(futures) if futures else {}
        published.notes = {i: future for i, future in published.notes.items() if holders.get(future.key)}
        published.pieces = {place: future for place, future in published.pieces.items() if holders.get(future.key)}
        return published

    def whole(self, partitions: int) -> bool:
        """True if the pieces of all partitions are there."""
        published = self._there()
        return bool(published.pieces) and not published.lacks(partitions)

    def deliver(
        self, function: Callable[..., Any], shared: object, items: Sequence[Any], ranges: Ranges, done: Done | None
    ) -> list[Any]:
        """Call function(shared, item, cuts) for every item, where its pieces are."""
        if not items:
            return []
        published = PublishedPieces(**self.pool.client.get_dataset(self.name))
        (call, arguments), futures = self.pool.with_shared(function, shared, len(items)), []
        for item in items:
            first, last = ranges(item)
            last = max(last, first + 1)
            owner = bisect_right(published.bounds, first) - 1
            where = self.pool.preferring(self._worker(owner) if published.step > 1 else None)
            parts = list(self._collect_futures(published, owner, first, last))
            futures.append(self.pool.submit(call, *arguments, item, parts, **where))
        return self.pool.finish(futures, done)

    def _collect_futures(self, published: PublishedPieces, owner: int, first: int, last: int) -> Iterator[Any]:
        """Collect the futures of what holds ranges [first, last); from other workers than the owner only these move."""
        for place in sorted(published.pieces):
            w = place[1]
            low = max(first, published.bounds[w])
            high = min(last, published.bounds[w + 1])
            if low < high:
                future = published.pieces[place]
                yield future if w == owner else self.pool.submit(pack_ranges, future, low, high, priority=MOVING)

    def close(self) -> None:
        release(self.pool.client, self.name)


def release(client: Client, prefix: str) -> None:
    """Forget the pieces on a scheduler that are published under names that begin with `prefix`."""
    for name in client.list_datasets():
        if name.startswith(prefix):
            client.unpublish_dataset(name)


def memory_exchange(pool: Pool, name: str | None = None) -> LocalMemory | DaskMemory:
    return DaskMemory(pool, name) if isinstance(pool, DaskPool) else LocalMemory(pool, name or "pieces")  # type: ignore[arg-type]
