# Thousands of paths are quicker as strings.
# ruff: noqa: PTH100, PTH108, PTH112
"""The local file system as a store: written whole under a temporary name, then linked or renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from tasks.core.plan import File
from tasks.errors import DataError
from tasks.storage.atomic import flush, no_space
from tasks.storage.ranges import Range
from tasks.storage.source_changes import check_opened, file_of
from tasks.storage.store import PAGE, make_conflict_error, make_missing_error, make_writing_error

PARTIAL = ".tmp"  # the end of a temporary name, which begins with a dot
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


class LocalStore:
    """Files of this host; paths may begin with `file://`."""

    is_local = True
    publishes = True
    lists_versions = False

    def list_pages(self, path: str) -> Iterator[list[File]]:
        page: list[File] = []
        for name in _walk(_local(path)):
            with suppress(FileNotFoundError):  # removed meanwhile
                page.append(_versioned(file_of(name)))
            if len(page) == PAGE:
                yield page
                page = []
        if page:
            yield page

    def list_folder(self, path: str) -> tuple[list[File], list[str]]:
        files: list[File] = []
        folders: list[str] = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(_local(path)) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not _is_partial(entry.name):
                    files.append(_versioned(file_of(entry.path)))
        return files, folders

    def full_path(self, path: str) -> str:
        return os.path.abspath(_local(path))  # links stay as they are

    def open(self, path: str, file: File | None = None) -> BinaryIO:
        opened = Path(_local(path)).open("rb", buffering=0)  # noqa: SIM115
        try:
            if file is not None:
                check_opened(file, opened.fileno())
        except BaseException:
            opened.close()
            raise
        return cast("BinaryIO", opened)

    def stat(self, path: str) -> File:
        local = _local(path)
        with _failures(path):
            if os.path.isdir(local):
                raise make_missing_error(path)
            return _versioned(file_of(local))

    def read(self, path: str) -> tuple[File, bytes]:
        while True:
            file = self.stat(path)
            with _failures(path):
                content = Path(_local(path)).read_bytes()
            if self.stat(path) == file:
                return file, content

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[memoryview]:
        with _failures(file.path), Path(_local(file.path)).open("rb", buffering=0) as opened:
            check_opened(file, opened.fileno())
            return [memoryview(_read(opened.fileno(), start, stop)) for start, stop in ranges]

    def put_if_absent(self, path: str, content: bytes) -> File:
        target = Path(_local(path))

        def link(partial: Path) -> None:
            try:
                os.link(partial, target)
            except FileExistsError:
                if not _holds(target, content):
                    raise make_conflict_error(path, "the file exists") from None
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                why = f"its file system has no hard links ({error.strerror}), by which a file is created only once"
                raise make_writing_error(path, why) from None

        self._write(target, lambda partial: partial.write_bytes(content), link)
        return self.stat(path)

    def put_if_unchanged(self, path: str, content: bytes, version: str) -> File:
        target = Path(_local(path))
        with _failures(path), _locked(target) as now:
            if now != version and not _holds(target, content):
                raise make_conflict_error(path, f"its version was {version} and is {now} now")
            self._write(target, lambda partial: partial.write_bytes(content), lambda partial: partial.replace(target))
        return self.stat(path)

    def upload(self, source: Path, path: str) -> File:
        target = Path(_local(path))
        self._write(target, lambda partial: shutil.copyfile(source, partial), lambda partial: partial.replace(target))
        return self.stat(path)

    def copy(self, source: str, path: str) -> File:
        with _failures(source):
            return self.upload(Path(_local(source)), path)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(_local(path))

    def _write(self, target: Path, write: Callable[[Path], object], publish: Callable[[Path], object]) -> None:
        """Write a temporary file, on disk before it has its name."""
        with no_space(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
            try:
                write(partial)
                flush(partial)
                publish(partial)
            finally:
                partial.unlink(missing_ok=True)
            flush(target.parent)


def _local(path: str) -> str:
    return path.removeprefix("file://")


def _walk(folder: str) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)
            elif not _is_partial(entry.name) and _is_file(entry):
                yield entry.path


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Tell whether a listing has an entry: links to folders are not followed, those in a circle lead nowhere."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_partial(name: str) -> bool:
    """Tell whether a file is one of this store that its writer has not finished; users' own files may end alike."""
    return name.startswith(".") and name.endswith(PARTIAL)


def _versioned(file: File) -> File:
    """With a version: a file that is replaced has another inode, or at least another time."""
    return replace(file, version=f"{file.inode}-{file.mtime}-{file.size}")


def _read(descriptor: int, start: int, stop: int) -> bytes:
    parts: list[bytes] = []
    while start < stop and (part := os.pread(descriptor, stop - start, start)):
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.stat().st_size == len(content) and path.read_bytes() == content
    except OSError:
        return False


@contextmanager
def _locked(path: Path) -> Iterator[str]:
    """The version of a file, which is not replaced by another `put_if_unchanged` until the block ends.

    The file itself is locked. Who waited for a file that was replaced meanwhile sees that the path leads elsewhere, and
    locks what is there.
    """
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                raise make_writing_error(str(path), f"its file system has no locks ({error.strerror})") from None
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                yield _versioned(file_of(str(path))).version
                return
        finally:
            os.close(descriptor)


@contextmanager
def _failures(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise make_missing_error(path) from None
    except PermissionError as error:
        raise DataError(
            "a file cannot be read", where=path, why=error.strerror or str(error), do="give this user access to it"
        ) from None
