"""Parquet footers, each read once in a process; of files behind URLs exactly the column chunks that are needed,
of several files at once, as much as may be on its way."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import tee
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.plan import File
from tasks.errors import DataError
from tasks.storage.files import read_range
from tasks.storage.range_file import RangeFile
from tasks.storage.ranges import FetchedBytes, InFlight, Range, in_flight
from tasks.storage.stores import open_store

TAIL = 64 * 2**10
FILES_AHEAD = 8
FOOTER_BYTES = 64 * 2**20  # of footers that a process keeps, as written; in memory they take several times that


@dataclass
class Footers:
    """Footers that were read last, by file. Threads share them."""

    limit: int = FOOTER_BYTES
    _known: OrderedDict[tuple[Any, ...], tuple[pq.FileMetaData, int]] = field(default_factory=OrderedDict)
    _nbytes: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def find(self, file: File) -> pq.FileMetaData | None:
        with self._lock:
            entry = self._known.get(_key(file))
            if entry is None:
                return None
            self._known.move_to_end(_key(file))
            return entry[0]

    def forget(self) -> None:
        """Forget all footers."""
        with self._lock:
            self._known.clear()
            self._nbytes = 0

    def keep(self, file: File, footer: pq.FileMetaData, nbytes: int) -> None:
        with self._lock:
            if _key(file) in self._known:
                return
            self._known[_key(file)] = footer, nbytes
            self._nbytes += nbytes
            while self._nbytes > self.limit:
                self._nbytes -= self._known.popitem(last=False)[1][1]

    def begin_fork(self) -> None:
        """In a forked process: a thread of its parent may have had the lock."""
        self._lock = threading.Lock()


footers = Footers()
os.register_at_fork(after_in_child=footers.begin_fork)


def _key(file: File) -> tuple[Any, ...]:
    return file.path, file.size, file.mtime, file.version, file.inode, file.ctime


def read_footer(file: File, storage: Mapping[str, Any] | None) -> bytes:
    """The end of a Parquet file from its footer on, most often with one read; a DataError for another file."""
    if file.size == 0:
        raise make_broken_file_error(file.path, "the file is empty (0 bytes)")
    tail = read_range(file, max(0, file.size - TAIL), file.size, storage)
    if tail[-4:] != b"PAR1" or len(tail) < 12:
        raise make_broken_file_error(
            file.path, "it does not end in PAR1, as whole Parquet files do: it was cut off, or it is another format"
        )
    footer = int.from_bytes(tail[-8:-4], "little") + 8
    if footer > len(tail):
        tail = read_range(file, max(0, file.size - footer), file.size, storage)
    return tail[-footer:]


def footer_of(file: File, storage: Mapping[str, Any] | None) -> pq.FileMetaData:
    """The footer of a file, read once in this process."""
    footer = footers.find(file)
    if footer is None:
        tail = read_footer(file, storage)
        try:
            footer = pq.read_metadata(pa.BufferReader(tail))
        except (pa.ArrowException, OSError) as error:
            raise make_broken_file_error(file.path, str(error)) from None
        footers.keep(file, footer, len(tail))
    return footer


def chunk_ranges(footer: pq.FileMetaData, groups: Collection[int], names: Collection[str]) -> list[Range]:
    """Where the chunks of these columns lie, with the fields of nested ones."""
    wanted = set(names)
    paths = [footer.schema.column(i).path for i in range(len(footer.schema))]
    columns = [i for i, path in enumerate(paths) if not wanted.isdisjoint(_list_prefixes(path))]
    ranges: list[Range] = []
    for group in sorted(groups):
        described = footer.row_group(group)
        for i in columns:
            chunk = described.column(i)
            start = chunk.data_page_offset
            if chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            ranges.append((start, start + chunk.total_compressed_size))
    return ranges


def _list_prefixes(path: str) -> Iterator[str]:
    """The names of which a column of the file may be a field, and its own: names may have dots, too.

    >>> [*_list_prefixes("events.list.element")]
    ['events', 'events.list', 'events.list.element']
    """
    parts = path.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


@dataclass(frozen=True)
class _Coming:
    """A file whose chunks are on their way."""

    file: File
    footer: pq.FileMetaData
    ranges: Sequence[Range]
    nbytes: int
    parts: Future[list[memoryview]]


def read_footers(files: Iterable[File], storage: Mapping[str, Any] | None) -> Iterator[pq.FileMetaData]:
    """The footers of files, in their order; several are fetched at once."""
    ahead: deque[tuple[File, Future[pq.FileMetaData]]] = deque()
    for file in files:
        if not ahead:
            open_store(file.path, storage)  # what cannot be used is refused before threads wait for it
        coming = next((footer for other, footer in ahead if other == file), None)
        ahead.append((file, coming or _threads().submit(footer_of, file, storage)))
        if len(ahead) == FILES_AHEAD:
            yield ahead.popleft()[1].result()
    while ahead:
        yield ahead.popleft()[1].result()


def open_ahead(
    files: Iterable[tuple[File, Collection[int]]],
    names: Callable[[File, pq.FileMetaData], Mapping[str, str]],
    storage: Mapping[str, Any] | None,
    room: InFlight | None = None,
) -> Iterator[tuple[RangeFile, pq.FileMetaData]]:
    """Each file with the chunks of its row groups, in order, as a source from which Arrow reads. The next files are
    fetched meanwhile, while there is room for what is on its way. To be closed. `names` gives the columns that are
    wanted of a file, with their names there.

    A reader that pauses between files needs a `room` of its own: others would wait for what it has.
    """
    room = room or in_flight
    waiting: deque[_Coming] = deque()
    files, of_footers = tee(files)
    try:
        for (file, groups), footer in zip(files, read_footers((file for file, _ in of_footers), storage), strict=True):
            ranges = chunk_ranges(footer, groups, [*names(file, footer).values()])
            nbytes = sum(stop - start for start, stop in ranges)
            # Whoever waits for room has none himself: nothing waits for what waits for it.
            has_room = False
            while waiting and not has_room:
                has_room = len(waiting) < FILES_AHEAD and room.take_if_free(nbytes)
                if not has_room:
                    yield from _take_first(waiting, storage, room)
            if not has_room:
                room.take(nbytes)
            store = open_store(file.path, storage)
            parts = _threads().submit(store.read_ranges, file, ranges)
            waiting.append(_Coming(file, footer, ranges, nbytes, parts))
        while waiting:
            yield from _take_first(waiting, storage, room)
    finally:
        for coming in waiting:
            coming.parts.cancel()
            room.give_back(coming.nbytes)


def _take_first(
    waiting: deque[_Coming], storage: Mapping[str, Any] | None, room: InFlight
) -> Iterator[tuple[RangeFile, pq.FileMetaData]]:
    """The first file that is waited for; its bytes are given back once it is decoded."""
    coming = waiting[0]
    fetched = FetchedBytes(coming.ranges, coming.parts.result())
    yield RangeFile(open_store(coming.file.path, storage), coming.file, fetched), coming.footer
    waiting.popleft()
    room.give_back(coming.nbytes)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(FILES_AHEAD, thread_name_prefix="rowmill-chunks")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has no threads


def make_broken_file_error(path: str, why: str) -> DataError:
    return DataError(
        "this is not a whole Parquet file",
        where=path,
        why=why.split("\n")[0],
        do="write it again, leave it out of source.path, or say its format in source.format",
    )
