"""Any other storage that fsspec knows (http, sftp, hdfs, memory, ..) as a store that is read."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from tasks.core import storage_traffic
from tasks.core.plan import File
from tasks.errors import JobError, RowmillError, TransientError
from tasks.storage.credentials import mask_secrets
from tasks.storage.option_errors import explain_refusal
from tasks.storage.ranges import Range, Span, cut_ranges, join_ranges
from tasks.storage.source_changes import raise_changed, remote_file
from tasks.storage.store import NO_CONDITION, PAGE, make_conflict_error, make_missing_error, make_writing_error

NO_CREATION = "its client cannot create a file only where none is"


class CountedFile(io.RawIOBase):
    """An open file of fsspec, whose reads are counted: without read-ahead each is a request."""

    def __init__(self, opened: Any) -> None:
        super().__init__()
        self._opened = opened

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._opened.seekable())

    def tell(self) -> int:
        return int(self._opened.tell())

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._opened.seek(offset, whence))

    def read(self, size: int | None = -1) -> Any:
        part = self._opened.read(-1 if size is None else size)
        storage_traffic.count("get", nbytes=len(part))
        return part

    def readall(self) -> bytes:
        return bytes(self.read())

    def readinto(self, buffer: Any) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._opened.close()
        super().close()


class FsspecStore:
    """A file system of fsspec. It can be read; of writing it can do no more than its client does safely."""

    is_local = False
    publishes = False
    lists_versions = False

    def __init__(self, fs: Any, options: Mapping[str, Any]) -> None:
        self.fs = fs
        self._options = options

    def _ask(self, verb: str, name: str | list[str], *arguments: Any, **more: Any) -> Any:
        """Call a method of the file system; a JobError for an option that its client refuses.

        Most clients are made with the first request.
        """
        try:
            return getattr(self.fs, verb)(name, *arguments, **more)
        except (TypeError, FileNotFoundError) as error:
            url = self.fs.unstrip_protocol(name if isinstance(name, str) else name[0])
            refused = explain_refusal(error, url, self._options, type(self.fs))
            if refused is None:
                raise
        raise refused

    def list_pages(self, path: str) -> Iterator[list[File]]:
        self.fs.invalidate_cache()  # drops earlier listings of this process
        folder = self.fs._strip_protocol(path)
        storage_traffic.count("list")
        infos = self._ask("find", folder, detail=True) if self._ask("exists", folder) else {}
        files = [self._file(name, info) for name, info in infos.items() if name != folder]
        for first in range(0, len(files), PAGE):
            yield files[first : first + PAGE]

    def list_folder(self, path: str) -> tuple[list[File], list[str]]:
        self.fs.invalidate_cache()
        folder = self.fs._strip_protocol(path)
        storage_traffic.count("list")
        infos = self._ask("ls", folder, detail=True) if self._ask("isdir", folder) else []
        inside = [info for info in infos if info["name"].rstrip("/") != folder.rstrip("/")]
        files = [self._file(info["name"], info) for info in inside if info["type"] != "directory"]
        folders = [info["name"] for info in inside if info["type"] == "directory"]
        return files, [self.fs.unstrip_protocol(name).rstrip("/") for name in folders]

    def full_path(self, path: str) -> str:
        return str(self.fs.unstrip_protocol(self.fs._strip_protocol(path)))

    def open(self, path: str, file: File | None = None) -> BinaryIO:
        name = self.fs._strip_protocol(path)
        self.fs.invalidate_cache()
        opened = self._open(name)
        if file is not None:
            raise_changed(file, self._as_opened(name, opened))
        return cast("BinaryIO", CountedFile(opened))

    def _open(self, name: str) -> Any:
        """Open a file without fsspec's read-ahead, which fetches up to 50 MiB around each read."""
        try:
            return self._ask("open", name, "rb", cache_type="none")
        except TypeError:  # a file system that takes none of these options
            return self._ask("open", name, "rb")

    def _as_opened(self, name: str, opened: object) -> File:
        """The storage's description of a file when it was opened; fetched again if that names no version."""
        details = getattr(opened, "details", None)
        known = self._file(name, details) if isinstance(details, dict) and "size" in details else None
        return known if known and known.version else self._file(name, self._info(name))

    def _info(self, name: str) -> Mapping[str, Any]:
        storage_traffic.count("head")
        info: Mapping[str, Any] = self._ask("info", name)
        return info

    def _file(self, name: str, info: Mapping[str, Any]) -> File:
        return remote_file(self.fs.unstrip_protocol(name), info)

    def stat(self, path: str) -> File:
        self.fs.invalidate_cache()
        try:
            info = self._info(self.fs._strip_protocol(path))
        except FileNotFoundError:
            raise make_missing_error(path) from None
        if info.get("type") == "directory":
            raise make_missing_error(path)
        return self._file(self.fs._strip_protocol(path), info)

    def read(self, path: str) -> tuple[File, bytes]:
        file = self.stat(path)
        content: bytes = self._ask("cat_file", self.fs._strip_protocol(path))
        raise_changed(file, self.stat(path))
        return file, content

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[memoryview]:
        raise_changed(file, self.stat(file.path))
        name = self.fs._strip_protocol(file.path)
        inside = [(min(start, file.size), min(stop, file.size)) for start, stop in ranges]
        spans: list[Span] = join_ranges(inside)
        starts, stops = [span.start for span in spans], [span.stop for span in spans]
        fetched = self._ask("cat_ranges", [name] * len(spans), starts, stops, on_error="raise") if spans else []
        storage_traffic.count("get", len(spans), sum(map(len, fetched)))
        return cut_ranges(inside, spans, [memoryview(part) for part in fetched])

    def put_if_absent(self, path: str, content: bytes) -> File:
        storage_traffic.count("put", nbytes=len(content))
        try:
            self._ask("pipe_file", self.fs._strip_protocol(path), content, mode="create")
        except FileExistsError:
            if self._ask("cat_file", self.fs._strip_protocol(path)) != content:
                raise make_conflict_error(path, "the file exists") from None
        except (NotImplementedError, ValueError, TypeError):
            raise make_writing_error(path, NO_CREATION) from None
        except RowmillError:
            raise
        except Exception as error:  # every storage has errors of its own
            why = mask_secrets(f"{type(error).__name__}: {error}", self._options)
            raise TransientError("the storage cannot be written", where=path, why=why, do="run the job again") from None
        return self.stat(path)

    def put_if_unchanged(self, path: str, content: bytes, version: str) -> File:
        raise self._refusal(path)

    def upload(self, source: Path, path: str) -> File:
        raise self._refusal(path)

    def copy(self, source: str, path: str) -> File:
        raise self._refusal(path)

    def delete(self, paths: Iterable[str]) -> NoReturn:
        raise self._refusal(next(iter(paths), ""))

    def _refusal(self, path: str) -> JobError:
        return make_writing_error(path, NO_CONDITION)
