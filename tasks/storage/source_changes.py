# Paths may be URLs, and thousands of them are quicker as strings.
# ruff: noqa: PTH116, PTH118, PTH119, PTH120
"""Whether a source file is still the one that the plan was made of: size, times, inode, where its path leads, version.

A file is compared when it is opened, by its descriptor, so that what is compared is what is read, and again when a
stage ends. One with another inode is another file only if its time of change (ctime) or the place that its path leads
to differ as well: some file systems (FUSE) number the same file anew, and a backup by hard links changes the ctime.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from tasks.core.plan import File
from tasks.errors import DataError
from tasks.storage.allowed_roots import check_path, leads_to

VERSIONS = ("ETag", "etag", "version_id", "VersionId", "generation", "md5Hash", "content_md5")


def file_of(path: str) -> File:
    """A local file as it is now."""
    status = os.lstat(path)
    linked = stat.S_ISLNK(status.st_mode)
    if linked:
        status = os.stat(path)
    real = (
        os.path.realpath(path) if linked else os.path.join(_real_folder(os.path.dirname(path)), os.path.basename(path))
    )
    return _make_file(path, status, real)


def _make_file(path: str, status: os.stat_result, real: str) -> File:
    elsewhere = "" if real == path else real
    return File(path, status.st_size, status.st_mtime_ns, "", status.st_ino, status.st_ctime_ns, elsewhere)


def forget_folders() -> None:
    """Before files are looked at anew: links may lead elsewhere by now."""
    _real_folder.cache_clear()


@lru_cache(maxsize=1)
def _real_folder(folder: str) -> str:
    """Files of a folder come one after another: its links are followed once."""
    return os.path.realpath(folder)


def check_opened(file: File, descriptor: int) -> None:
    """A DataError if an open file is not the one that was recorded, a JobError if it lies outside of the allowed roots.

    Files of rowmill's own (scratch files of keys) have no inode recorded and are not compared.
    """
    if not file.inode:
        return
    leads = leads_to(descriptor, file.path)
    check_path(leads, "source.path")
    raise_changed(file, _make_file(file.path, os.fstat(descriptor), leads))


def remote_file(path: str, info: Mapping[str, Any]) -> File:
    """A file of a storage as the storage describes it now."""
    if info.get("size") is None:
        raise ValueError("the storage does not say how large the file is")
    version = next((str(info[key]) for key in VERSIONS if info.get(key)), "")
    return File(path, int(info["size"]), _mtime(info), version=version)


def _mtime(info: Mapping[str, Any]) -> int:
    """Modification time in ns from what a file system says, 0 if it says nothing."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, datetime):
            return int(value.timestamp() * 10**9)
        if isinstance(value, (int, float)):
            return int(value * 10**9)
    return 0


def raise_changed(file: File, now: File) -> None:
    """A DataError that names the file and what is different."""
    if what := difference(file, now):
        raise DataError(
            "a source file changed during the run",
            where=file.path,
            why=what,
            do="run the same job again once nothing writes to the source: it reads all files anew",
        )


def difference(file: File, now: File) -> str:
    """What differs between a file and its state now, in words; "" if nothing does."""
    if file.size != now.size:
        return f"it had {file.size:,} bytes and has {now.size:,} now"
    if file.version and now.version:  # listings and single files may tell times of other precision
        return "" if file.version == now.version else f"its version was {file.version} and is {now.version} now"
    local = bool(file.inode and now.inode)
    if file.mtime and now.mtime and (file.mtime != now.mtime if local else abs(file.mtime - now.mtime) >= 10**9):
        return f"it was written {_time(file.mtime)} and again {_time(now.mtime)}"
    if local and file.inode != now.inode:
        if file.real != now.real:
            return f"its path led to {file.real or file.path} and leads to {now.real or now.path} now"
        if file.ctime != now.ctime:
            return f"another file took its place, {_time(now.ctime)}"
    return ""


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")


def are_same(files: Iterable[File], now: Mapping[str, File]) -> bool:
    """Whether all files are there as they were recorded."""
    return all(file.path in now and not difference(file, now[file.path]) for file in files)
