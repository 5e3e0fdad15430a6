"""How fast a folder takes and gives bytes without any work on them: what a run on that storage is compared with."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BLOCK = 16 << 20  # bytes that are written or read at once


def write(folder: Path, files: int, nbytes: int, writers: int) -> float:
    """Seconds that so many bytes take in so many new files, `writers` of them at any moment, until all are on disk.

    Random bytes, since a storage may compress. What others have left to be written is waited for first.
    """
    place, block = folder / "plain", os.urandom(BLOCK)
    place.mkdir(parents=True)
    os.sync()
    sizes = [nbytes * (i + 1) // files - nbytes * i // files for i in range(files)]
    try:
        start = time.perf_counter()
        with ThreadPoolExecutor(writers) as threads:
            list(threads.map(lambda i: _write_one(place / str(i), block, sizes[i]), range(files)))
        return time.perf_counter() - start
    finally:
        shutil.rmtree(place)


def _write_one(path: Path, block: bytes, nbytes: int) -> None:
    with path.open("wb", buffering=0) as file:
        while nbytes:
            nbytes -= file.write(memoryview(block)[: min(nbytes, BLOCK)])
        os.fsync(file.fileno())


def read(paths: Sequence[Path], readers: int) -> float:
    """Seconds that reading these files takes, `readers` of them at any moment; from the page cache what is there."""
    start = time.perf_counter()
    with ThreadPoolExecutor(readers) as threads:
        list(threads.map(_read_one, paths))
    return time.perf_counter() - start


def _read_one(path: Path) -> int:
    block, total = bytearray(BLOCK), 0
    with path.open("rb", buffering=0) as file:
        while found := file.readinto(block):
            total += found
    return total
