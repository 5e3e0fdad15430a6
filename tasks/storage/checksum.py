"""The digest of a file: of an existing one, or of a new one while it is written."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from tasks.core.strict_json import JsonObject
from tasks.storage.atomic import read_json

PIECE = 1 << 30  # bytes of one call of the system, which takes no more than 2 GiB
READ = 4 << 20  # bytes that are read at once: pages of a mapped file would count as memory of a worker


def digest(path: str | Path) -> str:
    """xxh3-128 of a file's bytes, hexadecimal."""
    with Path(path).open("rb", buffering=0) as file:
        return digest_opened(file)


def digest_opened(file: BinaryIO | io.FileIO, nbytes: int = READ) -> str:
    """xxh3-128 of what is left of an open file, read by so many bytes at once, hexadecimal."""
    of_file = xxhash.xxh3_128()
    content = memoryview(bytearray(nbytes))
    while count := file.readinto(content):  # type: ignore[union-attr]
        of_file.update(content[:count])
    return of_file.hexdigest()


class DigestedFile(io.RawIOBase):
    """A new file that is written from beginning to end; `finish` returns the xxh3-128 of its bytes, hexadecimal.

    Writing releases the interpreter's lock, so that as many files are written at once as there are threads.
    `finish` raises the first failure: a writer in C++ that calls `write` cannot pass on an exception.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._hash = xxhash.xxh3_128()
        self._bytes = 0
        self._failure: OSError | None = None

    def finish(self) -> str:
        """Close the file and return its digest; raises the first OSError of writing."""
        self.close()
        if self._failure:
            raise self._failure
        return self._hash.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        content = memoryview(data).cast("B")
        self._bytes += len(content)
        if self._failure:
            return len(content)
        self._hash.update(content)
        done = 0
        try:
            while done < len(content):
                done += os.write(self._file, content[done : done + PIECE])
        except OSError as failure:
            self._failure = failure
        return len(content)

    def tell(self) -> int:
        return self._bytes

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()


def is_whole(folder: str, note: str) -> bool:
    noted = read_json(Path(note))
    if not isinstance(noted, dict):
        return False
    return all(is_noted(Path(folder) / part["path"], part) for part in noted.get("parts", ()))


def is_noted(path: Path, note: JsonObject) -> bool:
    """True if the file is there with the size and the digest (xxh3-128) of its note."""
    try:
        return path.stat().st_size == note["bytes"] and digest(path) == note["xxh3_128"]
    except OSError:
        return False
