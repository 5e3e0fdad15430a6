"""A file of a store as Python's files are: read where a reader asks, or out of what was fetched before."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any, Protocol

from tasks.core.plan import File
from tasks.storage.ranges import FetchedBytes, Range


class Ranges(Protocol):
    """What reads ranges of files: a store, or a cache of one."""

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[memoryview]: ...


class RangeFile(io.RawIOBase):
    """A seekable file. Each read fetches exactly its own bytes, unless they are among those fetched before."""

    def __init__(self, store: Ranges, file: File, fetched: FetchedBytes | None = None) -> None:
        super().__init__()
        self._store = store
        self._file = file
        self._fetched = fetched
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._file.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        part = self._take(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def read(self, size: int | None = -1) -> Any:
        """Bytes, or a view of those that were fetched before: nothing is copied for Arrow."""
        if size is None or size < 0:
            size = self._file.size - self._place
        part = self._take(size)
        return part if self._fetched else bytes(part)

    def readall(self) -> bytes:
        return bytes(self.read())

    def _take(self, size: int) -> memoryview:
        start = self._place
        stop = max(start, min(start + size, self._file.size))
        part = self._fetched.take(start, stop) if self._fetched else None
        if part is None:
            (part,) = self._store.read_ranges(self._file, [(start, stop)])
        self._place += len(part)
        return part
