"""Ranges of bytes that are fetched from a storage: joined where that costs little, and bounded in memory."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

Range = tuple[int, int]  # bytes [start, stop)
MOST_SPAN = 16 * 2**20  # bytes: larger spans leave nothing to fetch side by side
WIDEST_GAP = 256 * 2**10  # bytes: about what arrives while another request waits for its first byte
# Of what is needed, for gaps between ranges. A tenth is what may be fetched in vain altogether, footers included.
WASTE = 0.05
SHARE_IN_FLIGHT = 0.1  # of the host's memory
MOST_IN_FLIGHT = 2**30


@dataclass(frozen=True)
class Span:
    """Bytes [start, stop) that one request fetches, and the ranges in them, by their places."""

    start: int
    stop: int
    ranges: tuple[int, ...]


def join_ranges(ranges: Sequence[Range], waste: float = WASTE, gap: int = WIDEST_GAP) -> list[Span]:
    """Spans that cover all ranges, in the order of their bytes. Neighbours are joined if the gap between them is small
    and the gaps altogether are at most a share of what is needed.

    >>> [(span.start, span.stop) for span in join_ranges([(0, 100), (100, 180), (190, 400), (1000, 1400)])]
    [(0, 400), (1000, 1400)]
    """
    order = sorted((i for i in range(len(ranges)) if ranges[i][1] > ranges[i][0]), key=lambda i: ranges[i])
    left = waste * sum(ranges[i][1] - ranges[i][0] for i in order)
    spans: list[Span] = []
    for i in order:
        start, stop = ranges[i]
        if spans:
            last = spans[-1]
            between = max(0, start - last.stop)
            fits = max(stop, last.stop) - last.start <= MOST_SPAN or start < last.stop
            if fits and between <= min(gap, left):
                left -= between
                spans[-1] = Span(last.start, max(stop, last.stop), (*last.ranges, i))
                continue
        spans.append(Span(start, stop, (i,)))
    return spans


def cut_ranges(ranges: Sequence[Range], spans: Sequence[Span], fetched: Sequence[memoryview]) -> list[memoryview]:
    """What each range holds, without a copy."""
    parts = [memoryview(b"")] * len(ranges)
    for span, content in zip(spans, fetched, strict=True):
        for i in span.ranges:
            start, stop = ranges[i]
            parts[i] = content[start - span.start : stop - span.start]
    return parts


class FetchedBytes:
    """What was fetched of a file, by where it lies there."""

    def __init__(self, ranges: Sequence[Range], parts: Sequence[memoryview]) -> None:
        pairs = sorted(zip(ranges, parts, strict=True), key=lambda pair: pair[0])
        self._starts = [start for (start, _), _ in pairs]
        self._parts = [part for _, part in pairs]

    def take(self, start: int, stop: int) -> memoryview | None:
        """Bytes [start, stop); None where they were not fetched."""
        i = bisect_right(self._starts, start) - 1
        if i < 0:
            return None
        low = start - self._starts[i]
        part = self._parts[i][low : low + stop - start]
        return part if len(part) == stop - start else None


class InFlight:
    """Bytes that may be on their way, or wait to be decoded, in this process at once.

    What is larger than all waits to be alone. Whoever waits in `take` holds nothing, so that nobody waits for itself.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.begin()

    def begin(self) -> None:
        """Begin with nothing on its way, as in a forked process: what its parent fetches does not come here."""
        self.most = 0  # that were taken at once, for tests
        self._taken = 0
        self._changed = threading.Condition()

    def take(self, nbytes: int) -> None:
        """Take room for so many bytes, once there is room."""
        with self._changed:
            self._changed.wait_for(lambda: self._fits(nbytes))
            self._count(nbytes)

    def take_if_free(self, nbytes: int) -> bool:
        """Whether there is room for so many bytes now; it is taken then."""
        with self._changed:
            fits = self._fits(nbytes)
            if fits:
                self._count(nbytes)
            return fits

    def give_back(self, nbytes: int) -> None:
        with self._changed:
            self._taken -= min(nbytes, self.limit)
            self._changed.notify_all()

    def _fits(self, nbytes: int) -> bool:
        return self._taken + min(nbytes, self.limit) <= self.limit

    def _count(self, nbytes: int) -> None:
        self._taken += min(nbytes, self.limit)
        self.most = max(self.most, self._taken)


in_flight = InFlight(min(MOST_IN_FLIGHT, int(SHARE_IN_FLIGHT * psutil.virtual_memory().total)))
os.register_at_fork(after_in_child=in_flight.begin)
