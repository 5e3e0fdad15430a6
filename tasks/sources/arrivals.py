"""Finds new and complete files of a folder or prefix, by comparing a listing with those of earlier looks."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.plan import File
from tasks.errors import DataError, JobError, near
from tasks.sources.formats import FORMATS, format_by_suffix
from tasks.storage.atomic import read_json, write_note
from tasks.storage.store import MissingFileError
from tasks.storage.stores import open_store

FORMAT = 1
REMEMBERED_SECONDS = 30 * 86400.0  # a mount that was away for a day must not make every file new again
LOOKUPS_AT_ONCE = 16  # folders that are asked for a marker
FILES_OF_ONE_EVENT = 2000  # Prefect's server takes events of 1.5 MB


class Sight(NamedTuple):
    """A file as last seen: size, time of change, since when they are so, when it was last there, whether it was
    announced; of a storage the version (an ETag), which alone says whether it is another file."""

    size: int
    mtime_ns: int
    since: float
    there: float
    announced: bool = False
    version: str = ""

    def is_of(self, file: File) -> bool:
        """Whether this is still the file; notes of earlier versions of rowmill name no version."""
        if self.version and file.version:
            return (self.size, self.version) == (file.size, file.version)
        return (self.size, self.mtime_ns) == (file.size, file.mtime)


class Arrival(NamedTuple):
    """Complete new files below one folder: the watched one, or a folder directly in it."""

    folder: str
    paths: list[str]
    bytes: int


def look(
    files: Iterable[File], seen: dict[str, Sight], now: float, settle: float
) -> tuple[list[File], dict[str, Sight]]:
    """(the files that are complete and were not announced before, all files as seen up to `now` in seconds).

    A file is complete when its size and time of change, or its version, have been the same for `settle` seconds; a file
    that is written again is announced again. A file that has been gone for 30 days is forgotten.

    >>> part = File("in/a.parquet", 10, 1)
    >>> new, seen = look([part], {}, now=0, settle=30)
    >>> [file.path for file in new]
    []
    >>> [file.path for file in look([part], seen, now=60, settle=30)[0]]
    ['in/a.parquet']
    >>> [file.path for file in look([File("in/a.parquet", 20, 2)], seen, now=60, settle=30)[0]]
    []
    """
    complete = []
    after = {path: sight for path, sight in seen.items() if now - sight.there < REMEMBERED_SECONDS}
    for file in files:
        before = seen.get(file.path)
        if before and before.is_of(file):
            sight = before._replace(there=now, version=file.version)
        else:
            sight = Sight(file.size, file.mtime, now, now, version=file.version)
        if not sight.announced and now - sight.since >= settle:
            complete.append(file)
            sight = sight._replace(announced=True)
        after[file.path] = sight
    return complete, after


def is_announced(file: File, seen: Mapping[str, Sight]) -> bool:
    """Whether an earlier look has announced a file, which has not changed since."""
    sight = seen.get(file.path)
    return sight is not None and sight.announced and sight.is_of(file)


def data_files(
    files: Iterable[File], root: str, patterns: Sequence[str] = (), format: str = "auto"
) -> tuple[list[File], list[File]]:
    """(data files, strays): data files match one of the patterns or, without patterns, have a suffix of the format.

    A pattern is of the file's name, or of its path below `root` if it has a slash. JobError for an unknown format.

    >>> files = [File("in/a.csv", 1, 0), File("in/b.parquet", 1, 0), File("in/notes.txt", 1, 0)]
    >>> [[file.path for file in group] for group in data_files(files, "in")]
    [['in/a.csv', 'in/b.parquet'], ['in/notes.txt']]
    >>> [[file.path for file in group] for group in data_files(files, "in", format="csv")]
    [['in/a.csv'], ['in/b.parquet', 'in/notes.txt']]
    >>> [[file.path for file in group] for group in data_files(files, "in", ["n*.txt"])]
    [['in/notes.txt'], ['in/a.csv', 'in/b.parquet']]
    """
    if format != "auto" and format not in FORMATS:
        raise JobError(f"{format!r} is not a format", where="format", do=near(format, ["auto", *FORMATS]))

    def is_data(path: str) -> bool:
        if patterns:
            below = path[len(root) :].lstrip("/")
            return any(fnmatch.fnmatchcase(below if "/" in p else path.rpartition("/")[2], p) for p in patterns)
        by_name = format_by_suffix(path)
        return by_name is not None and format in ("auto", by_name)

    groups: tuple[list[File], list[File]] = ([], [])
    for file in files:
        groups[not is_data(file.path)].append(file)
    return groups


def select_marked_files(files: Sequence[File], root: str, marker: str, options: Mapping[str, Any]) -> list[File]:
    """The files for which a folder between theirs and the watched one holds the marker, such as `_SUCCESS`.

    Each folder is asked once, several at a time.
    """
    is_marked: dict[str, bool] = {}

    def find(folder: str) -> None:
        is_marked[folder] = _exists(f"{folder}/{marker}", options)

    folders = {file.path.rpartition("/")[0] for file in files}
    marked_by = {folder: folder for folder in folders}  # the folder around it that is asked, or has the marker
    with ThreadPoolExecutor(LOOKUPS_AT_ONCE) as threads:
        while unknown := {around for around in marked_by.values() if around not in is_marked}:
            list(threads.map(find, unknown))
            for folder, around in marked_by.items():
                above = around.rpartition("/")[0]
                if not is_marked[around] and len(above) >= len(root):
                    marked_by[folder] = above
    return [file for file in files if is_marked[marked_by[file.path.rpartition("/")[0]]]]


def _exists(path: str, options: Mapping[str, Any]) -> bool:
    store = open_store(path, options)
    try:
        store.stat(path)
    except MissingFileError:
        return False
    return True


def group_files(files: Sequence[File], root: str) -> Iterator[Arrival]:
    """The files by the folder directly in `root` that they are below, those in `root` itself first.

    A job reads files of one format, so files of different formats (by suffix) are different arrivals.

    >>> files = [File("in/x", 1, 0), File("in/day=1/h=1/y", 2, 0), File("in/day=1/z", 3, 0)]
    >>> for arrival in group_files(files, "in"):
    ...     print(arrival)
    Arrival(folder='in', paths=['in/x'], bytes=1)
    Arrival(folder='in/day=1', paths=['in/day=1/h=1/y', 'in/day=1/z'], bytes=5)
    """
    groups: dict[tuple[str, str], list[File]] = {}
    for file in files:
        first, slash, _ = file.path[len(root) :].lstrip("/").partition("/")
        folder = f"{root}/{first}" if slash else root
        groups.setdefault((folder, format_by_suffix(file.path) or ""), []).append(file)
    for (folder, _), inside in sorted(groups.items()):
        for start in range(0, len(inside), FILES_OF_ONE_EVENT):
            at_once = inside[start : start + FILES_OF_ONE_EVENT]
            yield Arrival(folder, [file.path for file in at_once], sum(file.size for file in at_once))


def load_seen(path: Path) -> dict[str, Sight]:
    """The files as earlier looks saw them; empty before the first look. DataError if the note is damaged or newer."""
    try:
        data = json.loads(path.read_text())
        if data["format"] > FORMAT:
            raise ValueError(f"format {data['format']}, this version reads up to {FORMAT}")
        return {name: Sight(*values) for name, values in data["files"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            "what the watch has seen cannot be read",
            where=str(path),
            why=str(error),
            do="remove that file; all files that are there are then announced once more",
        ) from None


def load_strays(path: Path) -> set[str]:
    """The files that an earlier look logged as other files than data."""
    note = read_json(path)
    return set(note.get("strays", [])) if isinstance(note, dict) else set()


def save_seen(path: Path, seen: dict[str, Sight], strays: Collection[str] = ()) -> None:
    """Write the note of the watch, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_note(path, {"format": FORMAT, "files": seen, "strays": sorted(strays)})
