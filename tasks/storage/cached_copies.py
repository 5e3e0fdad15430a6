"""A folder of copies from storages, with a limit in bytes: each is fetched once for all processes of this host.

A copy is used under a shared lock, which ends with its user or the process; whoever fetches one has it alone, and the
others wait. Copies that nobody uses are removed where room is needed, those used longest ago first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tasks.core.plan import File
from tasks.storage.atomic import no_space
from tasks.storage.store import Store

CHUNK = 16 * 2**20  # bytes of a range that is fetched
AT_ONCE = 4  # ranges of a file
PARTIAL = "partial-"
LOCK = ".lock"
ABANDONED_SECONDS = 24 * 3600  # after which a fetch that has not ended was killed


class CopyInUse:
    """A copy, which stays as long as this object is not closed."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.close = weakref.finalize(self, os.close, descriptor)


@dataclass(frozen=True)
class CachedCopies:
    """Copies, files or folders, in a folder of this host. What is in use may exceed the limit."""

    folder: Path
    limit: int

    def fetch(self, key: str, nbytes: int, write: Callable[[Path], None]) -> CopyInUse:
        """The copy of a key; `write` makes it where it is missing, in a folder or file of the path that it is given."""
        with no_space(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / key
        while True:
            descriptor = self._lock(key)
            try:
                if path.exists():
                    os.utime(descriptor)  # for whoever needs room
                    return CopyInUse(path, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink and not path.exists():
                    self._make_room(nbytes)
                    self._write(path, write)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # between a lock of one and of many, somebody may have removed the copy

    def _lock(self, key: str) -> int:
        """Open the lock of a copy, shared with its other users."""
        while True:
            lock = self.folder / f"{key}{LOCK}"
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)  # another process has just removed this copy, its lock included

    def _write(self, path: Path, write: Callable[[Path], None]) -> None:
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=self.folder))
        try:
            with no_space(self.folder):
                write(partial / path.name)
                (partial / path.name).rename(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _make_room(self, nbytes: int) -> None:
        """Remove copies that are not in use until so many bytes fit below the limit."""
        for partial in self.folder.glob(f"{PARTIAL}*"):
            if _find_last_use(partial) < time.time() - ABANDONED_SECONDS:
                shutil.rmtree(partial, ignore_errors=True)
        sizes = {path.name: _measure(path) for path in self.folder.iterdir() if path.suffix != LOCK}
        locks = [path for path in self.folder.glob(f"*{LOCK}") if path.stem in sizes]
        total = sum(sizes.values()) + nbytes
        for lock in sorted(locks, key=_find_last_use):
            if total <= self.limit:
                return
            if self._remove(lock):
                total -= sizes[lock.stem]

    def _remove(self, lock: Path) -> bool:
        """Remove a copy and its lock; False if it is in use."""
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            copy = lock.with_suffix("")
            if copy.is_dir():
                shutil.rmtree(copy, ignore_errors=True)
            else:
                copy.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
            return True
        finally:
            os.close(descriptor)


def find_cache_folder(name: str) -> Path:
    """A folder of this user for copies of one kind."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "rowmill" / name


def make_key(*facts: object) -> str:
    """The name of a copy by what identifies it."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def describe_version(file: File) -> tuple[str, int, str]:
    """What identifies a version of a file: its path, size and ETag."""
    return file.path, file.size, file.version or str(file.mtime)


def copy_file(store: Store, file: File, target: Path) -> str:
    """Fetch a file by ranges, several at once; returns its xxh3-128, hexadecimal."""
    digest = xxhash.xxh3_128()
    step = CHUNK * AT_ONCE
    with target.open("wb") as out:
        for start in range(0, file.size, step):
            for part in store.read_ranges(file, _cut(start, min(start + step, file.size))):
                digest.update(part)
                out.write(part)
    return digest.hexdigest()


def _cut(start: int, stop: int) -> Sequence[tuple[int, int]]:
    return [(first, min(first + CHUNK, stop)) for first in range(start, stop, CHUNK)]


def _measure(path: Path) -> int:
    """The bytes of a file or folder; 0 for one that was removed meanwhile."""
    with suppress(OSError):
        if path.is_dir():
            return sum(inside.stat().st_size for inside in path.rglob("*") if inside.is_file())
        return path.stat().st_size
    return 0


def _find_last_use(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return time.time()
