# Paths may be URLs, and thousands of them are quicker as strings.
# ruff: noqa: PTH100, PTH110, PTH112, PTH113, PTH114, PTH116, PTH118, PTH120, PTH122, PTH206, PTH207
"""Source paths: listed in one order on every machine, opened on local disks and on whatever fsspec knows, and looked at
again when a stage ends."""

from __future__ import annotations

import errno
import fnmatch
import glob
import io
import json
import lzma
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeVar, cast

import pyarrow as pa

from tasks.core.plan import OPTION, File
from tasks.errors import DataError, JobError, NoInputError, RowmillError, TransientError, few, near
from tasks.storage.allowed_roots import MAGIC, check_listed, check_path, is_local
from tasks.storage.credentials import mask_secrets
from tasks.storage.discarded import check_discarded, is_discarded, warn_of
from tasks.storage.documents import make_damage_error
from tasks.storage.fetch_cache import KeptReads, cache_beside
from tasks.storage.lake_tables import (
    find_log,
    refuse_in_table,
    refuse_remote_log,
    refuse_remote_logs_in,
    refuse_remote_table,
    refuse_table_with,
)
from tasks.storage.own_files import MANIFEST, SPLITS, find_description, output_of, read_latest
from tasks.storage.range_file import RangeFile
from tasks.storage.remote_outputs import choose_published, find_version, make_difference_error, make_latest_error
from tasks.storage.source_changes import file_of, forget_folders, raise_changed
from tasks.storage.store import MissingFileError, Store
from tasks.storage.stores import make_storage_error, open_store

# errors of decompression; of zip files also those of a method that is not known, and of a password
DECODING = (lzma.LZMAError, zlib.error, zipfile.BadZipFile, RuntimeError)
FOLDER_MARKS = ("/", "_$folder$")  # ends of empty objects that stand for folders: of consoles and of Hadoop
CHUNK = 2**20  # bytes that are fetched at once of a file that is read from its beginning
MOST_NAMES = 10_000  # of a folder that are looked at for near ones
LOOKUPS_AT_ONCE = 16  # files of a storage that are looked at
R = TypeVar("R")
FEW_LOOKUPS = 50  # of files one by one; more are listed
MOST_OTHERS = 20  # files that are listed in vain for each that is wanted: fifty times as many come with a request
STEP = 16 * 2**20  # bytes that are decompressed at a time
COMPRESSIONS = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".bz2": "bz2",
    ".lz4": "lz4",
    ".br": "brotli",
    ".xz": "xz",
    ".zip": "zip",
}
SIGNATURES = {
    "gzip": rb"\x1f\x8b\x08",
    "zstd": rb"\x28\xb5\x2f\xfd",
    "bz2": rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\0",
    "lz4": rb"\x04\x22\x4d\x18",
    "zip": rb"PK(?:\x03\x04|\x05\x06)",
}
LONGEST_SIGNATURE = 10
PLAIN = re.compile(rb"(?:\xef\xbb\xbf)?[\t\r\n\x20-\x7e]*")
_codecs: dict[File, str | None] = {}  # of files that this process has looked at


def is_remote(path: str) -> bool:
    return not is_local(path)


def local_folder(path: str | os.PathLike[str], what: str, where: str) -> str:
    """The path; a JobError for a URL, for which a local folder called `s3:` would be made."""
    from fsspec.registry import known_implementations

    scheme, colon, rest = os.fspath(path).partition(":")
    if colon and rest.startswith("/") and scheme.lower() in known_implementations and scheme not in ("file", "local"):
        raise JobError(
            f"{what} is not a local folder",
            where=f"{where} = {os.fspath(path)}",
            do="give a folder of this host, or a mounted one",
        )
    return os.fspath(path).removeprefix("file://")


def local_path(path: str) -> str:
    return os.path.abspath(path.removeprefix("file://"))


def expand(sources: str | Sequence[str], storage_options: Mapping[str, Any] | None = None) -> list[File]:
    """Files in the order of their rows: a list as it is; a glob, folder or prefix by the UTF-8 bytes of the paths.

    Names that begin with `_` or `.` are ignored in folders, and by patterns without such a name. Of an output with
    versions only the newest counts. A JobError if there are no files and for one that is named twice, a DataError for
    those that cannot be read, and for folders and patterns that lead into a folder whose log says which files count.
    """
    files: list[File] = []
    for source in [sources] if isinstance(sources, (str, os.PathLike)) else sources:
        source = os.fspath(source)
        check_path(source, "source.path")
        matches = (
            _expand_remote(source, storage_options or {}) if is_remote(source) else _expand_local(local_path(source))
        )
        if not matches:
            raise _no_input(source)
        check_listed((file.path for file in matches), "source.path")
        files.extend(matches)
    if not files:
        raise JobError("the list of sources is empty", where="source.path", do="name at least one file, folder or glob")
    if twice := [path for path, times in Counter(file.path for file in files).items() if times > 1]:
        why = "its rows would be read twice"
        do = "name it once; a folder or pattern of the list has it, too"
        raise JobError("a file is named twice", where=f"source.path: {few(twice)}", why=why, do=do)
    return files


def look_up(paths: Sequence[str], storage_options: Mapping[str, Any] | None, table: str) -> list[File]:
    """The files at these very paths, which the metadata of a table names, as they are now and in this order.

    A JobError for one outside of the allowed roots, a DataError for one that is gone.
    """
    options = storage_options or {}
    for path in paths:
        check_path(path, f"a data file of {table}")
    forget_folders()
    try:
        local = {path: file_of(local_path(path)) for path in paths if not is_remote(path)}
    except OSError as error:
        raise _make_lost_file_error(str(error.filename), table, error.strerror or str(error)) from None
    remote = {path: open_store(path, options).full_path(path) for path in paths if is_remote(path)}
    wanted = [File(path, 0, 0) for path in remote.values()]
    looked_up = _list_again(wanted, options) if len(wanted) > FEW_LOOKUPS else {}
    rest = [path for path in remote.values() if path not in looked_up]
    try:
        with ThreadPoolExecutor(LOOKUPS_AT_ONCE) as threads:
            looked_up |= zip(rest, threads.map(lambda path: open_store(path, options).stat(path), rest), strict=True)
    except MissingFileError as error:
        raise _make_lost_file_error(error.where, table, error.why) from None
    except Exception as error:  # every storage has errors of its own
        raise make_storage_error(rest[0], error, options) from None
    return [local[path] if path in local else looked_up[remote[path]] for path in paths]


def _make_lost_file_error(path: str, table: str, why: str) -> DataError:
    return DataError(
        "a data file of the table is gone",
        where=f"{path}, of {table}",
        why=why,
        do="read a newer state of the table: the files of expired snapshots and vacuumed versions are removed",
    )


def refuse_inside(sources: str | Sequence[str], target: str) -> None:
    """A JobError if the files written to the folder `target` would be among the source files of the next run."""
    for source in [sources] if isinstance(sources, (str, os.PathLike)) else sources:
        if is_remote(os.fspath(source)) or is_remote(target):
            continue
        path = os.path.realpath(local_path(os.fspath(source)))
        out = os.path.realpath(local_path(target))
        if not os.path.lexists(path) and MAGIC.search(path):
            inside = _would_match(out, path)
        else:
            inside = (out + os.sep).startswith(path.rstrip(os.sep) + os.sep) and _visible(
                out[len(path) :].strip(os.sep)
            )
        if inside:
            raise JobError(
                "the output is inside its own source",
                where=target,
                why=f"the next run would read it as part of {source}",
                do="choose an output.path outside the source, or one whose name begins with _",
            )


def _would_match(folder: str, pattern: str) -> bool:
    """Whether a pattern matches a folder, one around it, or (with `**`) a file that would be in it."""
    if not _meant(folder, pattern):
        return False
    if "**" in pattern:
        return fnmatch.fnmatchcase(os.path.join(folder, "part-00000.parquet"), pattern)
    names = folder.split(os.sep)
    parts = pattern.split(os.sep)
    if len(names) == len(parts) - 1:  # a pattern of files, in this folder itself
        return all(map(fnmatch.fnmatchcase, names, parts)) and fnmatch.fnmatchcase("part-00000.parquet", parts[-1])
    return len(names) >= len(parts) and all(map(fnmatch.fnmatchcase, names, parts))


def _no_input(source: str) -> NoInputError:
    do = "correct the path"
    if any(c in source for c in "*?["):
        why = "the pattern matches no file"
    elif not is_remote(source) and os.path.isdir(local_path(source)):
        why = "the folder holds no data file (names beginning with _ or . do not count)"
    else:
        why = "the path does not exist"
        if not is_remote(source):
            hint = _split_of_newest(local_path(source)) or _nearby(local_path(source))
            do = f"{hint}correct the path, or make look-alike data of a recipe there: rowmill sample toy --path DIR"
    return NoInputError("there is no input", where=source, why=why, do=do)


def _split_of_newest(path: str) -> str:
    """Advice for a split of an output in versions, which is in each of them."""
    folder, split = os.path.split(path)
    if split not in SPLITS or not os.path.isdir(folder):
        return ""
    try:
        there = os.path.join(_newest(folder), split)
    except DataError:
        return ""
    return f"name the split of a version: {there}; " if os.path.isdir(there) else ""


def _nearby(path: str) -> str:
    """Advice for a path that does not exist: existing names near its first missing part."""
    folder, name = os.path.split(path)
    while name and not os.path.isdir(folder):
        folder, name = os.path.split(folder)
    try:
        check_path(folder, "source.path")
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MOST_NAMES) if _visible(entry.name)]
    except (OSError, JobError):
        return ""
    close = near(name, names)
    return f"{folder} has no {name!r}, {close} " if close.startswith("did") else f"{folder} has no {name!r}; "


def _visible(relative: str) -> bool:
    return not any(part.startswith(("_", ".")) for part in relative.replace(os.sep, "/").split("/"))


def _expand_local(path: str) -> list[File]:
    forget_folders()
    try:
        files = [file_of(name) for name in sorted(_list_local_names(path), key=os.fsencode)]
        outputs = {folder: output_of(folder) for folder in {os.path.dirname(file.path) for file in files}}
        sizes = {file.path: file.size for file in files}
        for output in sorted({output for output in outputs.values() if output}):
            _compare(output, path, sizes, outputs)
        return files
    except OSError as error:
        raise DataError(
            "the source cannot be listed",
            where=error.filename or path,
            why=error.strerror or str(error),
            do="give this user read access, fix or remove a broken link, or leave it out of source.path",
        ) from None


def _compare(folder: str, path: str, sizes: Mapping[str, int], outputs: Mapping[str, str | None]) -> None:
    """A DataError where the files that `path` names in an output are not those that its manifest names, by name and
    size. A pattern may match more files; whoever names single files has these alone.

    outputs: the output that each folder of the files is in.
    """
    try:
        manifest = json.loads(Path(folder, MANIFEST).read_bytes())
    except (ValueError, RecursionError):
        raise make_damage_error(
            Path(folder, MANIFEST), "", "it is not JSON: which files are of this output is not known"
        ) from None
    parts = manifest.get("parts") if isinstance(manifest, dict) else None
    if not isinstance(parts, list):
        return  # of another program
    known = {os.path.join(folder, part["path"]): part for part in parts}
    wrong = list[str]()
    own = list[str]()
    for name, part in known.items():
        if name not in sizes:
            wrong += [f"{part['path']} is missing"] if _means(path, name) else []
        elif part.get("bytes") not in (None, sizes[name]):
            wrong.append(f"{part['path']} has {sizes[name]:,} bytes, the manifest says {part['bytes']:,}")
    if os.path.isdir(path):
        inside = [name for name in sizes if name.startswith(folder + os.sep) and name not in known]
        own = [name for name in inside if outputs[os.path.dirname(name)] in (None, folder)]
        wrong += [f"{os.path.relpath(name, folder)} is not in the manifest" for name in own]
    if wrong:
        pattern = os.path.join(os.path.dirname(own[0]), "*" + os.path.splitext(own[0])[1]) if own else ""
        named = f"move {own[0]} away, or read it as well, by a pattern: {pattern}; " if own else ""
        raise make_difference_error(folder, wrong, named)


def _means(path: str, file: str) -> bool:
    """Whether a source path means a file of an output that is not there: as a folder around it, or as a pattern that
    matches it or a folder around it."""
    if not MAGIC.search(path) or os.path.lexists(path):
        return os.path.isdir(path) and file.startswith(path.rstrip(os.sep) + os.sep)
    if "**" in path:
        return fnmatch.fnmatchcase(file, path)
    return any(one.match(path) for one in (PurePath(file), *PurePath(file).parents))


def _list_local_names(path: str) -> Iterator[str]:
    if os.path.isdir(path):
        check_discarded(Path(path), Path(path))
        refuse_in_table(path)
        yield from _walk(path)
    elif os.path.isfile(path):
        check_discarded(Path(path).parent, Path(path).parent)
        yield path
    elif MAGIC.search(path):
        yield from _matches(path)
    elif _there(path):
        os.stat(path)  # a link that leads nowhere, or in a circle


def _there(path: str) -> bool:
    """Whether a path exists; an OSError where this user may not look."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _matches(pattern: str) -> Iterator[str]:
    """Files that a pattern matches, and files in folders that it matches; a pattern with `**` matches files alone."""
    recursive = "**" in pattern
    _refuse_closed(pattern, recursive)
    looked_at = set[Path]()
    for path in glob.glob(pattern, recursive=recursive):
        is_folder = os.path.isdir(path)
        if not _meant(path, pattern) or (is_folder and recursive):
            continue
        folder = Path(path) if is_folder else Path(path).parent
        if folder not in looked_at:
            looked_at.add(folder)
            check_discarded(folder, folder)
            refuse_in_table(str(folder))
        if is_folder:
            yield from _walk(path)
        elif os.path.isfile(path) or os.path.islink(path):
            yield path


def _meant(path: str, pattern: str) -> bool:
    """Whether a matched path counts: names that begin with `_` or `.` count only if the pattern has such a name."""
    magic = MAGIC.search(pattern)
    start = pattern.rfind("/", 0, magic.start() if magic else None) + 1
    return not _visible(pattern[start:]) or _visible(path[start:])


def _refuse_closed(pattern: str, recursive: bool) -> None:
    """Raise PermissionError for folders that this user may not read: a pattern would skip them."""
    patterns = [*_folders_of_pattern(pattern)]
    if recursive:  # which matches folders itself
        patterns.append(pattern)
    for of_folders in patterns:
        for folder in glob.glob(of_folders or os.sep, recursive=recursive):
            if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)


def _walk(folder: str) -> Iterator[str]:
    """Files below a folder; of an output with versions, those of the version that its `_latest` names."""
    is_empty = True
    folder = _newest(folder)
    with os.scandir(folder) as scanned:
        entries = list(scanned)
    refuse_table_with({entry.name for entry in entries}, folder)
    for entry in entries:
        if _visible(entry.name):
            is_empty = False
            if entry.is_dir():
                if entry.is_symlink():
                    check_path(entry.path, "source.path")  # before its names are read
                if is_discarded(Path(entry.path)):
                    warn_of(Path(entry.path))
                yield from _walk(entry.path)
            else:
                yield entry.path
    if is_empty and os.path.isfile(os.path.join(folder, MANIFEST)):
        _compare(folder, folder, {}, {})


def _newest(folder: str) -> str:
    """The folder itself, or the version directly in it that its `_latest` names.

    A DataError if `_latest` names none and outputs of rowmill are there: all versions would be read as one.
    """
    name = read_latest(Path(folder))
    if name is None:
        return folder
    version = os.path.join(folder, name)
    if not name or os.sep in name or "\0" in name or not os.path.isdir(version):
        if not any(map(find_description, Path(folder).glob("v[0-9]*"))):
            return folder
        raise make_latest_error(folder, name)
    check_discarded(Path(version), Path(folder))
    return version


def _expand_remote(url: str, options: Mapping[str, Any]) -> list[File]:
    store = open_store(url, options)
    try:
        files = _list_remote_files(store, store.full_path(url))
    except Exception as error:  # every storage has errors of its own
        raise make_storage_error(url, error, options) from None
    counted = [file for file in files if file.size != 0 or not file.path.endswith(FOLDER_MARKS)]
    return sorted(counted, key=lambda file: file.path.encode())


def _list_remote_files(store: Store, path: str) -> list[File]:
    with suppress(MissingFileError):
        return [store.stat(path)]
    files = _below(store, path)
    if not files and (version := find_version(store, path)):
        return _below(store, version)
    if files or not MAGIC.search(path):
        refuse_remote_table(store, path)
        return files
    return _match_remote_pattern(store, path)


def _below(store: Store, folder: str) -> list[File]:
    """The files below a folder of a storage that count."""
    files = [file for page in store.list_pages(folder) for file in page]
    refuse_remote_log(file.path for file in files)
    files = choose_published(store, folder, files)
    return [file for file in files if _visible(file.path.removeprefix(folder).strip("/"))]


def _match_remote_pattern(store: Store, pattern: str) -> list[File]:
    """What `_matches` finds of a local pattern, of a storage.

    Where folders of the first level do not match, only those that do are listed; else all is listed with one prefix.
    """
    matching = RemotePattern(pattern)
    refuse_remote_table(store, matching.root)
    files: list[File] = []
    if "**" in pattern:
        prefixes = [matching.root]
    else:
        here, folders = store.list_folder(matching.root)
        refuse_remote_logs_in(store, here, folders)
        files = [file for file in here if matching.means(file.path)]
        prefixes = [folder for folder in folders if matching.leads_through(folder)]
        if len(prefixes) > 1 and len(prefixes) == len(folders):
            prefixes = [matching.root]
            files = []
    for prefix in prefixes:
        for page in store.list_pages(prefix):
            matching.refuse_logs(page)
            files += [file for file in page if matching.means(file.path)]
    return files


class RemotePattern:
    """A pattern of files of a storage. Without `**` it means files that it matches and all in folders that it
    matches."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        folders = [*_folders_of_pattern(pattern)]
        self.root = folders[0]
        self._recursive = "**" in pattern
        self._regex = self._compile_glob(pattern)
        self._through = [self._compile_glob(folder) for folder in folders]
        self._known: dict[str, bool] = {}

    def _compile_glob(self, pattern: str) -> re.Pattern[str]:
        from fsspec.utils import glob_translate

        return re.compile(glob_translate(pattern.partition("://")[2]))

    def means(self, path: str) -> bool:
        """Whether a file counts."""
        if self._matches(path):
            return True
        folder = self._folder_of(path)
        return folder is not None and _visible(path[len(folder) :].strip("/"))

    def leads_through(self, folder: str) -> bool:
        """Whether files below a folder may count."""
        bare = folder.partition("://")[2]
        inside = any(regex.match(bare) for regex in self._through) and _meant(folder, self.pattern)
        return inside or self._folder_of(f"{folder}/") is not None

    def refuse_logs(self, files: Sequence[File]) -> None:
        """A DataError for a log of a table that the pattern leads through, or whose folder it matches."""
        for file in files:
            log = find_log(file.path)
            if log is None:
                continue
            bare = log[0].partition("://")[2]
            within = self._folder_of(file.path) is not None
            if within or self._recursive or any(regex.match(bare) for regex in self._through):
                refuse_remote_log([file.path])

    def _matches(self, path: str) -> bool:
        return bool(self._regex.match(path.partition("://")[2])) and _meant(path, self.pattern)

    def _folder_of(self, path: str) -> str | None:
        """The folder around a file that the pattern matches."""
        if self._recursive:
            return None
        folder = path.rpartition("/")[0]
        while len(folder) > len(self.root):
            if folder not in self._known:
                self._known[folder] = self._matches(folder)
            if self._known[folder]:
                return folder
            folder = folder.rpartition("/")[0]
        return None


def _folders_of_pattern(pattern: str) -> Iterator[str]:
    """The patterns of the folders that a pattern leads through, from its first sign on.

    >>> [*_folders_of_pattern("lake/*/day=*/*.csv")]
    ['lake', 'lake/*', 'lake/*/day=*']
    """
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if MAGIC.search(part))
    for end in range(first, len(parts)):
        yield "/".join(parts[:end])


def info_of(url: str, options: Mapping[str, Any] | None = None) -> File:
    """A file of a storage as it is now; a DataError if it is not there."""
    try:
        return open_store(url, options).stat(url)
    except (JobError, TransientError):
        raise
    except Exception as error:
        raise unreadable(url, error, options) from None


def check_unchanged(files: Sequence[File], options: Mapping[str, Any] | None = None) -> None:
    """A DataError that names the first file that is gone or not as it was recorded."""
    forget_folders()
    remote = [file for file in files if is_remote(file.path)]
    for file in files:
        if file.inode:
            try:
                now = file_of(file.path)
            except OSError as error:
                raise _make_missing_file_error(file, error.strerror or str(error)) from None
            raise_changed(file, now)
    now_listed = _list_again(remote, options) if len(remote) > FEW_LOOKUPS else {}
    for file in remote:
        if file.path in now_listed:
            raise_changed(file, now_listed[file.path])
    rest = [file for file in remote if file.path not in now_listed]
    if rest:
        with ThreadPoolExecutor(min(LOOKUPS_AT_ONCE, len(rest))) as threads:
            for file, now in zip(rest, threads.map(lambda f: info_of(f.path, options), rest), strict=True):
                raise_changed(file, now)


def _list_again(files: Sequence[File], options: Mapping[str, Any] | None) -> dict[str, File]:
    """Files of one storage as a listing of the folder around them shows them, by path; those that are found before most
    of what is listed are other files."""
    folders = {file.path.rpartition("/")[0] for file in files}
    pairs = zip(min(folders).split("/"), max(folders).split("/"), strict=False)
    prefix = "/".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if prefix.count("/") < 2:  # of several buckets
        return {}
    store = open_store(prefix, options)
    if not store.lists_versions:
        return {}
    wanted = {file.path for file in files}
    listed: dict[str, File] = {}
    others = 0
    for page in store.list_pages(prefix):
        listed |= {file.path: file for file in page if file.path in wanted}
        others += sum(file.path not in wanted for file in page)
        if len(listed) == len(wanted) or others > MOST_OTHERS * len(wanted):
            break
    return listed


def _make_missing_file_error(file: File, why: str) -> DataError:
    return DataError(
        "a source file disappeared during the run",
        where=file.path,
        why=why,
        do="bring it back, or run the same job again without it",
    )


def open_binary(path: str | File, options: Mapping[str, Any] | None = None) -> BinaryIO:
    """A seekable file; a DataError if it cannot be opened, or if it is not the `File` that the plan was made of.

    From a remote storage, each read fetches exactly its own bytes.
    """
    file, path = (path, path.path) if isinstance(path, File) else (None, path)
    try:
        return open_store(path, options).open(path, file)
    except Exception as error:
        raise reading_error(path, error, options) from None


@contextmanager
def open_planned_path(file: File) -> Iterator[str]:
    """A name of an open local file that was compared with the plan, for readers that open files by name: it leads to
    this file even if another file takes its path."""
    with open_binary(file) as opened:
        name = f"/proc/self/fd/{opened.fileno()}"
        yield name if os.path.exists(name) else local_path(file.path)


def read_range(path: str | File, start: int, stop: int, options: Mapping[str, Any] | None = None) -> bytes:
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
            raise reading_error(path.path if isinstance(path, File) else path, error, options) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_text_range(file: File, start: int, stop: int, options: Mapping[str, Any]) -> bytes:
    """`read_range` by options of readers: what a storage names a version of is fetched once, and kept on this host."""
    storage = options.get("storage_options")
    if not _is_kept(file):
        return read_range(file, start, stop, storage)
    try:
        return cache_beside(options.get(OPTION)).read(open_store(file.path, storage), file, start, stop)
    except Exception as error:
        raise reading_error(file.path, error, storage) from None


def open_text(file: File, options: Mapping[str, Any]) -> BinaryIO:
    """`open_binary` by options of readers, as `read_text_range` reads."""
    storage = options.get("storage_options")
    if not _is_kept(file):
        return open_binary(file, storage)
    store = KeptReads(cache_beside(options.get(OPTION)), open_store(file.path, storage))
    return cast("BinaryIO", RangeFile(store, file))


def _is_kept(file: File) -> bool:
    return bool(file.version) and is_remote(file.path)


def compression(file: File, options: Mapping[str, Any]) -> str | None:
    """The compression of a file, by options of readers: what its first bytes say; that of its suffix where they are
    neither a signature nor ASCII text."""
    key = replace(file, digest="")  # which is not known before the file is looked at
    if key not in _codecs:
        if len(_codecs) > 100_000:
            _codecs.clear()
        _codecs[key] = _codec(file.path, read_text_range(file, 0, LONGEST_SIGNATURE, options))
    return _codecs[key]


def batch_files(files: Sequence[File], most: int | None = None) -> list[Sequence[File]]:
    """Divide files into batches for `map_files`, at most so many: files of storages are waited for together."""
    size = LOOKUPS_AT_ONCE if any(is_remote(file.path) for file in files) else 1
    if most:
        size = max(size, -(-len(files) // most))
    return [files[first : first + size] for first in range(0, len(files), size)]


def map_files(function: Callable[[File], R], files: Sequence[File]) -> list[R]:
    """The results of a function of each file; those of storages, which mostly waits, several at once."""
    if not any(is_remote(file.path) for file in files):
        return [function(file) for file in files]
    contexts = [copy_context() for _ in files]
    with ThreadPoolExecutor(min(LOOKUPS_AT_ONCE, len(files))) as threads:
        return list(threads.map(lambda context, file: context.run(function, file), contexts, files))


def _codec(path: str, start: bytes) -> str | None:
    signed = next((codec for codec, signature in SIGNATURES.items() if re.match(signature, start)), None)
    if signed or PLAIN.fullmatch(start):
        return signed
    return COMPRESSIONS.get(os.path.splitext(path)[1].lower())


def read_all(
    file: File,
    options: Mapping[str, Any] | None = None,
    length: int | None = None,
    opened: BinaryIO | None = None,
) -> bytes:
    """The whole content of a file or its first `length` bytes, decompressed; of a zip file, of its first member."""
    return read_members(file, options, length, opened=opened)[0][1]


def read_members(
    source: File,
    options: Mapping[str, Any] | None = None,
    length: int | None = None,
    most: int | None = None,
    opened: BinaryIO | None = None,
) -> list[tuple[str, bytes]]:
    """(name, content) of each file in a zip file; of any other file its own, decompressed. With `length` the first so
    many bytes of the first one.

    OverflowError where all decompress to more than `most` bytes; no more than these are ever in memory. `opened`: the
    file, where it is open already; it is closed.
    """
    name = source.path
    codec = compression(source, {"storage_options": options})
    with opened or open_binary(source, options) as file:
        try:
            if codec is None:
                return [(name, file.read(-1 if length is None else length))]
            if not is_remote(name):
                packed: Any = file
            elif length is None:
                packed = io.BytesIO(file.read())
            else:
                packed = io.BufferedReader(
                    cast("Any", file), min(CHUNK, max(length, 2**16))
                )  # Arrow reads 64 KiB at a time
            members = list[tuple[str, bytes]]()
            total = 0
            for member, stream in _decompressing(name, packed, codec):
                with stream:
                    if length is not None:
                        return [(member, stream.read(length))]
                    parts = []
                    while part := stream.read(STEP):
                        parts.append(part)
                        total += len(part)
                        if most is not None and total > most:
                            raise OverflowError
                    members.append((member, b"".join(parts)))
            return members
        except (OverflowError, DataError):
            raise
        except Exception as error:
            raise reading_error(name, error, options) from None


def _decompressing(path: str, packed: BinaryIO, codec: str) -> Iterator[tuple[str, Any]]:
    """(name, stream) of what a compressed file holds; Arrow knows every codec but xz. Of a zip file these are all
    files in it, but for those that folders hide, too."""
    if codec == "zip":
        with zipfile.ZipFile(packed) as archive:
            members = [member for member in archive.infolist() if not member.is_dir() and _visible(member.filename)]
            if not members:
                raise DataError(
                    "a zip file holds no data file",
                    where=path,
                    why="names that begin with _ or . do not count",
                    do="put a file into it, or leave it out of source.path",
                )
            for member in members:
                yield member.filename, archive.open(member)
    elif codec == "xz":
        yield path, lzma.LZMAFile(packed)  # noqa: SIM115
    else:
        yield path, pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), codec)


def reading_error(path: str, error: Exception, options: Mapping[str, Any] | None) -> Exception:
    """A DataError for a failed read; on a local disk, errors of other kinds stay: they are defects of rowmill."""
    if isinstance(error, RowmillError):
        return error
    expected = is_remote(path) or isinstance(error, (OSError, EOFError, pa.ArrowException, *DECODING))
    return unreadable(path, error, options) if expected else error


def unreadable(path: str, error: Exception, options: Mapping[str, Any] | None = None) -> DataError:
    return DataError(
        "a file cannot be read",
        where=path,
        why=mask_secrets(str(error).split("\n")[0] or type(error).__name__, options),
        do="check that it is whole and that this user may read it, or leave it out of source.path",
    )
