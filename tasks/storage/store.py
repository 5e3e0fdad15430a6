"""Where files lie, as one protocol: a local disk, an object store, or another storage that fsspec knows.

| verb | local | object store | other storages |
|---|---|---|---|
| `list_pages`, `list_folder` | walks the folder | 1,000 objects a request | as fsspec lists it |
| `open` | an open file | a request a read, `If-Match` | as fsspec opens it, without its read-ahead |
| `stat`, `read` | one `stat`, an open file | one request | one request, two |
| `read_ranges` | `pread` of the open file | a request a span, several at once, `If-Match` | fsspec's `cat_ranges` |
| `put_if_absent` | hard link of a whole file | `If-None-Match: *` | refused, unless it can create only |
| `put_if_unchanged` | rename under a lock | `If-Match` | refused |
| `upload` | copy, rename | multipart | refused |
| `copy`, `delete` | copy and rename, unlink | by the server | refused |

A file is the `File` of the plan: its `version` changes with each write. Each write is atomic: no reader sees a part of
a file. A read after a write sees it, and so does a listing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from tasks.core.plan import File
from tasks.errors import DataError, JobError, TransientError
from tasks.storage.ranges import Range

PAGE = 1_000  # files of a page
NO_CONDITION = "fsspec offers no put that replaces a file only if it is unchanged"


class MissingFileError(DataError):
    """There is no file at a path."""


class ConflictError(TransientError):
    """Another writer was there first: the file exists, or it is not the version that was expected."""


class Store(Protocol):
    """Files below one root, by their full paths or URLs.

    Errors of all verbs: MissingFileError for a file that is not there, JobError where the storage refuses this user,
    TransientError where it does not answer within the time for retries, DataError for all else that fails.
    """

    is_local: bool
    publishes: bool  # has conditional puts, which an output needs
    lists_versions: bool  # a thousand files a request: quicker than to ask for each

    def list_pages(self, path: str) -> Iterator[list[File]]:
        """All files below a folder or prefix, which ends with a path's segment, in pages and in any order.

        Nothing for a folder that is missing. Objects that stand for folders are left out. Files that are written
        meanwhile may be there or not.
        """
        ...

    def list_folder(self, path: str) -> tuple[list[File], list[str]]:
        """The files directly in a folder, and the full paths of the folders in it; nothing of what is deeper."""
        ...

    def full_path(self, path: str) -> str:
        """The path as listings write it."""
        ...

    def open(self, path: str, file: File | None = None) -> BinaryIO:
        """A seekable file whose reads fetch exactly their own bytes; a DataError if it is not the `File` any more."""
        ...

    def stat(self, path: str) -> File:
        """The file as it is now."""
        ...

    def read(self, path: str) -> tuple[File, bytes]:
        """A small file as it is now, and all its bytes, which are of one version."""
        ...

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[memoryview]:
        """Bytes [start, stop) of each range, fewer at the end of the file.

        A DataError if it is not the file that was listed any more: all bytes are of one version, where the storage
        names versions. Ranges close to each other are fetched together.
        """
        ...

    def put_if_absent(self, path: str, content: bytes) -> File:
        """Write a small file if none is there; a ConflictError if one is.

        Of several writers at once one succeeds. A file with these very bytes counts as this writer's own: a client that
        tries again may meet what it wrote before. Whoever must know its own write puts something unique into it.
        """
        ...

    def put_if_unchanged(self, path: str, content: bytes, version: str) -> File:
        """Replace a small file of this version; a ConflictError if it has another one or is missing.

        Of several writers at once one succeeds. A file with these very bytes counts as this writer's own.
        """
        ...

    def upload(self, source: Path, path: str) -> File:
        """Write a local file of any size, replacing what is there. An upload that is cut off is not visible."""
        ...

    def copy(self, source: str, path: str) -> File:
        """Copy a file within this store, replacing what is there. Object stores do it without moving the bytes."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, many with one request. Those that are missing already are no error."""
        ...


def make_missing_error(path: str) -> MissingFileError:
    return MissingFileError(
        "a file is missing",
        where=path,
        why="the storage has no file of this name",
        do="correct the path, or bring the file back",
    )


def make_no_bucket_error(path: str) -> DataError:
    return DataError(
        "there is no such bucket",
        where=path,
        why="the storage can make no file there",
        do="correct the URL, or make the bucket (the container) first",
    )


def make_conflict_error(path: str, why: str) -> ConflictError:
    return ConflictError(
        "another writer was faster", where=path, why=why, do="let the other run end, then run the same job again"
    )


def make_writing_error(path: str, why: str) -> JobError:
    return JobError(
        "this storage cannot be written safely",
        where=path,
        why=why,
        do="write to a local folder, or to s3://, gs:// or abfs://",
    )
