"""Text from storages is fetched once: what passes read again comes from a folder of this host.

Each version of an object has a sparse file of its bytes, and one of marks, a byte for each block that is there. Bytes
are written before their mark, so that processes and threads share a folder without locks: two may fetch the same block,
and write the same bytes.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path

from tasks.core.plan import File
from tasks.storage.ranges import MOST_SPAN, Range
from tasks.storage.store import Store

FOLDER = "fetched"  # in a run's staging folder
BLOCK = 256 * 2**10  # bytes: beginnings and ends that are looked at several times are smaller
FREE = 0.2  # of the disk stays free
# Bytes of a request. A stream of one request is slower than the network; two of these are longer than a span, so that
# they are not joined.
PIECE = MOST_SPAN // 2 + BLOCK
THERE = b"\1"


class FetchCache:
    """Blocks of objects in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, store: Store, file: File, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of an object, fewer at its end; all of the version that the `File` names.

        A DataError if they have to be fetched and it is not the `File` any more. What is there is not looked at again:
        whether the object has changed meanwhile is asked once, at the end of a run.
        """
        stop = min(stop, file.size)
        if stop <= start:
            return b""
        first, last = start // BLOCK, (stop - 1) // BLOCK
        with self._open(file) as (content, marks):
            there = [] if marks is None else [mark == THERE[0] for mark in os.pread(marks, last - first + 1, first)]
            there += [False] * (last - first + 1 - len(there))
            if content is not None and all(there):
                return os.pread(content, stop - start, start)
            runs = _runs_of_missing(there, first, file.size)
            parts = dict(zip(runs, store.read_ranges(file, runs), strict=True))
            self._keep(parts, content, marks)
            return _join(parts, content, start, stop)

    @contextmanager
    def _open(self, file: File) -> Iterator[tuple[int | None, int | None]]:
        """Descriptors of the bytes and the marks of an object; None where nothing can be kept."""
        name = hashlib.sha256(f"{file.path}\0{file.size}\0{file.version}".encode()).hexdigest()[:32]
        opened: list[int] = []
        try:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                for path in (self._folder / name, self._folder / f"{name}.marks"):
                    opened.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            except OSError:
                yield None, None
                return
            yield opened[0], opened[1]
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _keep(self, parts: dict[Range, memoryview], content: int | None, marks: int | None) -> None:
        if content is None or marks is None:
            return
        try:
            for (start, _), part in parts.items():
                disk = os.fstatvfs(content)
                if disk.f_bavail * disk.f_frsize - len(part) < FREE * disk.f_blocks * disk.f_frsize:
                    return
                if _write(content, part, start):
                    _write(marks, memoryview(THERE * -(-len(part) // BLOCK)), start // BLOCK)
        except OSError:  # the disk is full, or a quota: it is fetched again
            return


class KeptReads:
    """Reads of a store's objects through a cache."""

    def __init__(self, cache: FetchCache, store: Store) -> None:
        self._cache = cache
        self._store = store

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[memoryview]:
        return [memoryview(self._cache.read(self._store, file, start, stop)) for start, stop in ranges]


def _runs_of_missing(there: list[bool], first: int, size: int) -> list[Range]:
    """Ranges of neighbouring blocks that are not there, in pieces that are fetched side by side."""
    runs: list[Range] = []
    block = first
    for is_there, group in groupby(there):
        count = len(list(group))
        stop = min((block + count) * BLOCK, size)
        if not is_there:
            runs += [(start, min(start + PIECE, stop)) for start in range(block * BLOCK, stop, PIECE)]
        block += count
    return runs


def _join(parts: dict[Range, memoryview], content: int | None, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of what was fetched now, and of what was there."""
    joined: list[bytes | memoryview] = []
    place = start
    for (low, high), part in sorted(parts.items(), key=lambda pair: pair[0]):
        if place < low and content is not None:
            joined.append(os.pread(content, low - place, place))
            place = low
        joined.append(part[place - low : min(stop, high) - low])
        place = min(stop, high)
    if place < stop and content is not None:
        joined.append(os.pread(content, stop - place, place))
    return b"".join(joined)


def _write(descriptor: int, part: memoryview, start: int) -> bool:
    """Whether all bytes were written."""
    while len(part):
        count = os.pwrite(descriptor, part, start)
        if not count:
            return False
        part = part[count:]
        start += count
    return True


@lru_cache(maxsize=64)
def cache_beside(notes: str | None) -> FetchCache:
    """The cache of a run, in the staging folder that has these notes; without them that of this process, which ends
    with it."""
    return FetchCache(Path(notes).parent / FOLDER if notes else _own_folder())


@cache
def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rowmill-fetched-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
