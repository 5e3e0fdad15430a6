# Paths may be URLs, and thousands of them are quicker as strings.
# ruff: noqa: PTH100, PTH112, PTH113, PTH114, PTH116, PTH118, PTH122, PTH123, PTH206, PTH207
"""Source paths: listed in one order on every machine, opened on local disks and on whatever fsspec knows."""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, BinaryIO

import pyarrow as pa

from tasks.allowed import MAGIC, check_listed, check_path
from tasks.errors import DataError, JobError
from tasks.plan import File
from tasks.secrets import masked

LATEST = "_latest"  # in an output of several versions: the name of the newest one
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4", ".br": "brotli"}


def is_remote(path: str) -> bool:
    return "://" in path and not path.startswith("file://")


def local_path(path: str) -> str:
    return os.path.abspath(path.removeprefix("file://"))


def expand(sources: str | Sequence[str], storage_options: Mapping[str, Any] | None = None) -> list[File]:
    """Files in the order of their rows: a list as given, a glob, folder or prefix by the UTF-8 bytes of the paths.

    Inside folders names that begin with `_` or `.` are ignored, and so they are by a pattern that writes none; of an
    output in versions only the newest is looked at. Nothing found is a JobError, what cannot be read a DataError.
    """
    found: list[File] = []
    for source in [sources] if isinstance(sources, (str, os.PathLike)) else sources:
        source = os.fspath(source)
        check_path(source, "source.path")
        files = (
            _expand_remote(source, storage_options or {}) if is_remote(source) else _expand_local(local_path(source))
        )
        if not files:
            raise _no_input(source)
        check_listed((file.path for file in files), "source.path")
        found.extend(files)
    if not found:
        raise JobError("the list of sources is empty", where="source.path", do="name at least one file, folder or glob")
    return found


def refuse_inside(sources: str | Sequence[str], target: str) -> None:
    """A JobError where what is written to the folder `target` would be among the files of the next run's source."""
    for source in [sources] if isinstance(sources, (str, os.PathLike)) else sources:
        if is_remote(os.fspath(source)) or is_remote(target):
            continue
        path, out = os.path.realpath(local_path(os.fspath(source))), os.path.realpath(local_path(target))
        if not os.path.lexists(path) and MAGIC.search(path):
            inside = _would_match(out, path)
        else:
            inside = (out + os.sep).startswith(path.rstrip(os.sep) + os.sep) and _visible(
                out[len(path) :].strip(os.sep)
            )
        if inside:
            raise JobError(
                "the output lies in its own source",
                where=target,
                why=f"the next run would read it as part of {source}",
                do="choose an output.path beside the source, or one whose name begins with _",
            )


def _would_match(folder: str, pattern: str) -> bool:
    """Whether a pattern matches a folder, one around it, or (with `**`) a file that would be in it."""
    if not _meant(folder, pattern):
        return False
    if "**" in pattern:
        return fnmatch.fnmatchcase(os.path.join(folder, "part-00000.parquet"), pattern)
    names, parts = folder.split(os.sep), pattern.split(os.sep)
    if len(names) == len(parts) - 1:  # a pattern of files, in this folder itself
        return all(map(fnmatch.fnmatchcase, names, parts)) and fnmatch.fnmatchcase("part-00000.parquet", parts[-1])
    return len(names) >= len(parts) and all(map(fnmatch.fnmatchcase, names, parts))


def _no_input(source: str) -> JobError:
    if any(c in source for c in "*?["):
        why = "the pattern matches no file"
    elif not is_remote(source) and os.path.isdir(local_path(source)):
        why = "the folder holds no data file (names beginning with _ or . do not count)"
    else:
        why = "the path does not exist"
    return JobError(
        "there is no input",
        where=source,
        why=why,
        do="correct source.path, or make look-alike data there: millrace sample toy --path DIR",
    )


def _visible(relative: str) -> bool:
    return not any(part.startswith(("_", ".")) for part in relative.replace(os.sep, "/").split("/"))


def _expand_local(path: str) -> list[File]:
    try:
        return [_file(name) for name in sorted(_names(path), key=os.fsencode)]
    except OSError as error:
        raise DataError(
            "the source cannot be listed", where=error.filename or path, why=error.strerror or str(error),
            do="let this user read it, mend or remove a link that leads nowhere, or leave it out of source.path",
        ) from None  # fmt: skip


def _file(name: str) -> File:
    stat = os.stat(name)
    return File(name, stat.st_size, stat.st_mtime_ns)


def _names(path: str) -> Iterator[str]:
    if os.path.isdir(path):
        yield from _walk(path)
    elif os.path.isfile(path):
        yield path
    elif MAGIC.search(path):
        yield from _matches(path)
    elif _there(path):
        os.stat(path)  # a link that leads nowhere, or in a circle


def _there(path: str) -> bool:
    """Whether a path is there at all; an OSError where this user may not even know."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _matches(pattern: str) -> Iterator[str]:
    """Files that a pattern matches, and those in folders that it matches; with `**` it names the files by itself."""
    recursive = "**" in pattern
    _refuse_closed(pattern, recursive)
    for found in glob.glob(pattern, recursive=recursive):
        if not _meant(found, pattern):
            continue
        if os.path.isdir(found):
            if not recursive:
                yield from _walk(found)
        elif os.path.isfile(found) or os.path.islink(found):
            yield found


def _meant(found: str, pattern: str) -> bool:
    """Whether a pattern means what it matches: names with `_` or `.` only if it writes one."""
    magic = MAGIC.search(pattern)
    start = pattern.rfind("/", 0, magic.start() if magic else None) + 1
    return not _visible(pattern[start:]) or _visible(found[start:])


def _refuse_closed(pattern: str, recursive: bool) -> None:
    """A pattern passes over folders that this user may not read: a PermissionError instead."""
    parts = pattern.split(os.sep)
    first = next(i for i, part in enumerate(parts) if MAGIC.search(part))
    for end in range(first, len(parts) + recursive):
        for folder in glob.glob(os.sep.join(parts[:end]) or os.sep, recursive=recursive):
            if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)


def _walk(folder: str) -> Iterator[str]:
    """Files below a folder; of an output in versions those of the one that its `_latest` names."""
    with os.scandir(_newest(folder)) as entries:
        for entry in entries:
            if _visible(entry.name):
                if entry.is_dir():
                    if entry.is_symlink():
                        check_path(entry.path, "source.path")  # before its names are read
                    yield from _walk(entry.path)
                else:
                    yield entry.path


def _newest(folder: str) -> str:
    """The folder itself, or the version directly in it that its `_latest` names."""
    note = os.path.join(folder, LATEST)
    if not os.path.isfile(note):
        return folder
    with open(note, "rb") as file:
        name = os.fsdecode(file.read(100).strip())
    version = os.path.join(folder, name)
    return version if name and os.sep not in name and os.path.isdir(version) else folder


def _expand_remote(url: str, options: Mapping[str, Any]) -> list[File]:
    fs, path = _remote(url, options)
    try:
        return _listed(fs, path, url)
    except Exception as error:  # every storage has errors of its own
        raise _unreachable(url, error, options) from None


def _remote(url: str, options: Mapping[str, Any] | None) -> tuple[Any, str]:
    """The file system of a URL and the path in it; a JobError for one that cannot be used here."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url, **(options or {}))
        return fs, path
    except ImportError as error:
        why, do = str(error).partition("\n")[0], "install the package that it names where the workers run"
    except ValueError as error:
        why, do = str(error), "write file://, s3://, gs://, abfs://, https:// or what else fsspec knows"
    except Exception as error:
        raise _unreachable(url, error, options) from None
    raise JobError("the storage cannot be used", where=url, why=masked(why, options), do=do)


def _unreachable(url: str, error: Exception, options: Mapping[str, Any] | None) -> DataError:
    return DataError("the storage cannot be read", where=url, why=masked(f"{type(error).__name__}: {error}", options),
                     do="check the URL, the network, and the options that source.storage_options names")  # fmt: skip


def _listed(fs: Any, path: str, url: str) -> list[File]:
    if any(c in url for c in "*?[") and not fs.exists(path):
        matches = fs.glob(path, detail=True)
        found = {k: v for k, v in matches.items() if v["type"] == "file" and _meant(k, path)}
    elif fs.isfile(path):
        found = {path: fs.info(path)}
    elif fs.exists(path):
        inside = fs.find(path, detail=True)
        found = {k: v for k, v in inside.items() if _visible(k.removeprefix(path).strip("/"))}
    else:
        found = {}
    return [
        File(fs.unstrip_protocol(k), int(found[k]["size"]), _mtime(found[k])) for k in sorted(found, key=str.encode)
    ]


def _mtime(info: dict[str, Any]) -> int:
    """Modification time in ns from what a file system says, 0 if it says nothing."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, datetime):
            return int(value.timestamp() * 10**9)
        if isinstance(value, (int, float)):
            return int(value * 10**9)
    return 0


def open_binary(path: str, options: Mapping[str, Any] | None = None) -> BinaryIO:
    """A seekable file; a DataError if it cannot be opened."""
    if is_remote(path):
        fs, name = _remote(path, options)
        try:
            return fs.open(name, "rb")
        except Exception as error:
            raise unreadable(path, error, options) from None
    try:
        return open(local_path(path), "rb", buffering=0)
    except OSError as error:
        raise unreadable(path, error) from None


def read_range(path: str, start: int, stop: int, options: Mapping[str, Any] | None = None) -> bytes:
    """Bytes [start, stop) of a file, fewer at its end."""
    with open_binary(path, options) as file:
        try:
            file.seek(start)
            parts = []
            left = stop - start
            while left > 0 and (part := file.read(left)):
                parts.append(part)
                left -= len(part)
        except Exception as error:
            raise _told(path, error, options) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def compression(path: str) -> str | None:
    """The compression that a file's last suffix names."""
    return COMPRESSIONS.get(os.path.splitext(path)[1].lower())


def read_all(path: str, options: Mapping[str, Any] | None = None, length: int | None = None) -> bytes:
    """The whole content or its first `length` bytes, decompressed if the name says that it is compressed."""
    codec = compression(path)
    with open_binary(path, options) as file:
        try:
            if codec is None:
                return file.read(-1 if length is None else length)
            with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec) as stream:
                return stream.read(length)
        except Exception as error:
            raise _told(path, error, options) from None


def _told(path: str, error: Exception, options: Mapping[str, Any] | None) -> Exception:
    """A failed reading as an error that says where; on a local disk what is neither of these two is a fault of ours."""
    expected = is_remote(path) or isinstance(error, (OSError, pa.ArrowException))
    return unreadable(path, error, options) if expected else error


def unreadable(path: str, error: Exception, options: Mapping[str, Any] | None = None) -> DataError:
    return DataError(
        "a file cannot be read",
        where=path,
        why=masked(str(error).split("\n")[0] or type(error).__name__, options),
        do="check that it is whole and that this user may read it, or leave it out of source.path",
    )
