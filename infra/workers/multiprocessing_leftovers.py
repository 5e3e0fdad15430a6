"""Removes the folders of sockets and the semaphores that killed processes of Python's multiprocessing leave."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SEMAPHORES = Path("/dev/shm")
DAY = 86_400.0  # seconds for which a semaphore that no process here uses may be one of another container


def remove_leftovers(temporary: Path | None = None, semaphores: Path = SEMAPHORES) -> list[Path]:
    """Remove this user's folders `pymp-*` on whose sockets no process listens, and semaphores `sem.mp-*` of yesterday
    or before that no process has mapped; what was removed."""
    temporary = temporary or Path(tempfile.gettempdir())
    return [*_folders(temporary), *_semaphores(semaphores)]


def _folders(temporary: Path) -> Iterator[Path]:
    for folder in temporary.glob("pymp-*"):
        with suppress(OSError):
            if folder.lstat().st_uid != os.getuid() or not stat.S_ISDIR(folder.lstat().st_mode):
                continue
            inside = list(folder.iterdir())
            young = time.time() - folder.lstat().st_mtime < 60  # its socket may be about to be made
            if young or not all(stat.S_ISSOCK(path.lstat().st_mode) and _is_dead(path) for path in inside):
                continue
            for path in inside:
                path.unlink()
            folder.rmdir()
            yield folder


def _is_dead(path: Path) -> bool:
    """True if no process listens on a socket. A socket of another kind asks: whoever listens is not disturbed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        return asking.connect_ex(str(path)) == errno.ECONNREFUSED


def _semaphores(folder: Path) -> Iterator[Path]:
    old = [path for path in folder.glob("sem.mp-*") if _is_old(path)]
    if not old:
        return
    mapped = _mapped()
    for path in old:
        if str(path) not in mapped:
            with suppress(OSError):
                path.unlink()
                yield path


def _is_old(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and time.time() - max(status.st_mtime, status.st_atime) > DAY


def _mapped() -> set[str]:
    """The semaphores that processes of this user have in use."""
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            lines = maps.read_text(errors="replace").splitlines()
            mapped |= {line.split(maxsplit=5)[-1] for line in lines if "/sem.mp-" in line}
    return mapped
