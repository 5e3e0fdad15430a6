"""Finds new and complete files of a folder or prefix, by comparing a listing with those of earlier looks."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.plan import File
from tasks.errors import DataError, JobError, near
from tasks.sources.formats import FORMATS, format_by_suffix
from tasks.storage.atomic import read_json, write_note
from tasks.storage.files import is_remote, local_path

FORMAT = 1
REMEMBERED_SECONDS = 30 * 86400.0  # a mount that was away for a day must not make every file new again
FILES_OF_ONE_EVENT = 2000  # Prefect's server takes events of 1.5 MB


class Sight(NamedTuple):
    """A file as last seen: size, time of change, since when they are so, when it was last there, whether it was
    announced."""

    size: int
    mtime_ns: int
    since: float
    there: float
    announced: bool = False


class Arrival(NamedTuple):
    """Complete new files below one folder: the watched one, or a folder directly in it."""

    folder: str
    paths: list[str]
    bytes: int


def look(
    files: Iterable[File], seen: dict[str, Sight], now: float, settle: float
) -> tuple[list[File], dict[str, Sight]]:
    """(the files that are complete and were not announced before, all files as seen up to `now` in seconds).

    A file is complete when its size and time of change have been the same for `settle` seconds; a file that
    is written again is announced again. A file that has been gone for 30 days is forgotten.

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
        same = before is not None and (before.size, before.mtime_ns) == (file.size, file.mtime)
        sight = before._replace(there=now) if before and same else Sight(file.size, file.mtime, now, now)
        if not sight.announced and now - sight.since >= settle:
            complete.append(file)
            sight = sight._replace(announced=True)
        after[file.path] = sight
    return complete, after


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
    """The files for which a folder between theirs and the watched one holds the marker, such as `_SUCCESS`."""
    is_marked: dict[str, bool] = {}

    def complete(folder: str) -> bool:
        if folder not in is_marked:
            above = folder.rpartition("/")[0]
            is_marked[folder] = _exists(f"{folder}/{marker}", options) or (
                len(folder) > len(root) and len(above) >= len(root) and complete(above)
            )
        return is_marked[folder]

    return [file for file in files if complete(file.path.rpartition("/")[0])]


def _exists(path: str, options: Mapping[str, Any]) -> bool:
    if not is_remote(path):
        return Path(local_path(path)).exists()
    import fsspec

    fs, name = fsspec.core.url_to_fs(path, **options)
    return bool(fs.exists(name))


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
