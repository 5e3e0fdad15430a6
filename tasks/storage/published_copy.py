"""A local copy of what an output or fitted workflow behind a URL says of itself: its manifest and what it has learned.

Files are fetched once for each version (ETag) and host, into a folder of this user that has a limit. Everything that
reads a published folder reads such a copy in the same way, checks its digests included. Parts are not copied: they are
read where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from tasks.core.plan import File
from tasks.errors import DataError, RowmillError, few, rewrite_error
from tasks.storage.allowed_roots import check_path, is_local, open_allowed_path
from tasks.storage.atomic import partial_file
from tasks.storage.cached_copies import (
    CachedCopies,
    CopyInUse,
    copy_file,
    describe_version,
    find_cache_folder,
    make_key,
)
from tasks.storage.credentials import COMMAND, PARAMETER, storage
from tasks.storage.files import local_folder
from tasks.storage.output_pointer import Pointer, name_urls, read_pointer
from tasks.storage.own_files import (
    CHANGES,
    DISCARDED,
    FITTED,
    LATEST,
    MANIFEST,
    PUBLISHED,
    SPLITS,
    VERSION,
    WORKFLOW,
    choose_notes,
)
from tasks.storage.store import Store
from tasks.storage.stores import LOCAL, open_store

# Of versions that are not read themselves: what they are and were learned on top of, no tables and profiles.
NOTES_OF_OTHERS = {MANIFEST, DISCARDED, PUBLISHED, FITTED, CHANGES}
LIMIT = 10 * 2**30  # bytes of the folder; copies that are in use do not count as removable
AT_ONCE = 8  # files
# What has the options of a storage, by what has the path; where it is not here, a parameter has them.
OPTIONS_OF = {
    "OUT": COMMAND,
    "fitted": "source.storage_options",
    "Workflow.load": "Workflow.load(storage_options=)",
    "Dataset": "Dataset(storage_options=)",
}

_in_use: dict[str, CopyInUse] = {}  # the copies that this process uses, which others leave alone


@dataclass(frozen=True)
class PublishedCopy:
    """A published folder: on this host as it is, or as a copy of what is behind a URL."""

    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)  # of the storage
    _root: str = ""  # the folder that the URL of the root is shown for
    _url: str = ""
    _prefixes: Mapping[str, str] = field(default_factory=dict)  # of the versions below the URL, by name

    @property
    def is_copy(self) -> bool:
        """Whether the folder is a copy of what a URL names: it may go at any time, and has no parts."""
        return bool(self._root)

    @property
    def store(self) -> Store:
        """Where the files lie of which this is a copy."""
        return open_store(self._url, self.options) if self.is_copy else LOCAL

    def at(self, folder: Path) -> PublishedCopy:
        """The same for another folder of this copy, such as that of a version or a split."""
        return replace(self, folder=folder)

    def name(self, path: Path) -> str:
        """The path, or in a copy the URL, of what lies at a path of this folder, copied or not."""
        return self.with_urls(str(path))

    def label(self, folder: Path) -> str:
        """The name of the folder: that of a version, wherever its files lie; else the last part of its path or URL."""
        return folder.name if VERSION.fullmatch(folder.name) else self.name(folder).rpartition("/")[2]

    def find_file(self, path: Path) -> File:
        """A file of the output as it is now where it lies, copied or not; a MissingFileError if it is missing."""
        return self.store.stat(self.name(path))

    def open_file(self, path: Path) -> BinaryIO:
        """Open a file of the output where it lies; what is read of it is fetched, and no more."""
        return self.store.open(self.name(path))

    def list_files(self) -> dict[str, File]:
        """All files of this folder where they lie, copied or not, by their paths in it."""
        root = self.store.full_path(self.place_of(self.folder))
        files = [file for page in self.store.list_pages(root) for file in page]
        return {file.path[len(root) :].lstrip("/"): file for file in files}

    @contextmanager
    def open_path(self, path: Path, field: str) -> Iterator[str]:
        """Give a name of an open file of this folder, inside of the allowed roots; of a copy, its URL was checked."""
        if self.is_copy:
            yield str(path)
        else:
            with open_allowed_path(path, field) as name:
                yield name

    def place_of(self, folder: str | Path) -> str:
        """Where the files of a folder lie: below a URL where it is a copy."""
        return self.with_urls(f"{folder}/").rstrip("/")

    def with_urls(self, text: str) -> str:
        """The text, such as a path, with URLs in place of the paths of a copy."""
        return name_urls(text, self._root, self._url, self._prefixes) if self.is_copy else text


@contextmanager
def open_published(
    path: str | os.PathLike[str],
    storage_options: str | Mapping[str, Any] | None,
    what: str,
    where: str,
    *,
    every_version: bool = False,
) -> Iterator[PublishedCopy]:
    """Give the folder of an output or fitted workflow, by path or URL; errors of the block name the URL.

    Of an output with versions, the copy has the version that `_latest` names; with `every_version`, also what the
    others say of themselves, without their tables. Its files are those of one listing: one that is replaced meanwhile
    is a DataError, and so is a version that `_latest` names and that is not there. A JobError for a URL that cannot be
    read, and for one outside of the allowed roots.
    """
    address = os.fspath(path)
    options = storage(storage_options, OPTIONS_OF.get(where, PARAMETER))
    if is_local(address):
        yield PublishedCopy(Path(local_folder(path, what, where)))
        return
    check_path(address, where)  # first: some clients connect when they are made
    store = open_store(address, options)
    copy = _copy_here(store, store.full_path(address), options, every_version)
    try:
        yield copy
    except RowmillError as error:
        renamed = rewrite_error(error, copy.with_urls)
    else:
        return
    raise renamed  # without the error that names paths of the copy


@dataclass(frozen=True)
class _Listing:
    """The files of a published folder that are copied, by their paths in the copy.

    Of an output that was written to the store, `prefixes` are those of its versions, and `latest` names the newest.
    """

    files: Mapping[str, File]
    prefixes: Mapping[str, str] = field(default_factory=dict)
    latest: str = ""


def _copy_here(store: Store, url: str, options: Mapping[str, Any], every_version: bool) -> PublishedCopy:
    root, inside = _split_inside(url)
    name = PurePosixPath(root).name
    above = root.rpartition("/")[0]
    pointed = None
    if VERSION.fullmatch(name) and (pointed := read_pointer(store, above)):
        root = above
        inside = f"{name}/{inside}".rstrip("/")
    else:
        name = ""
        files, folders = store.list_folder(root)
        names = {_base(file.path) for file in files}
        if MANIFEST in names and LATEST not in names:
            pointed = read_pointer(store, root)
    if pointed:
        listing = _list_versions(store, root, pointed[0], name, every_version)
    else:
        notes = _list_notes(store, root, files, folders)
        if every_version:
            notes += _list_other_versions(store, folders, notes)
        listing = _Listing({file.path[len(root) + 1 :]: file for file in notes})
    folder = _fetch(store, root, listing)
    return PublishedCopy(folder / inside if inside else folder, options, str(folder), root, listing.prefixes)


def _split_inside(url: str) -> tuple[str, str]:
    """(root, folder in it) of the URL of a split or of a fitted workflow: what a split has learned lies next to it."""
    around, _, last = url.rpartition("/")
    return (around, last) if last in (*SPLITS, WORKFLOW) else (url, "")


def _list_other_versions(store: Store, folders: Sequence[str], files: Sequence[File]) -> list[File]:
    """List what the versions of an output say of themselves, but for the files that are listed already."""
    listed = {file.path for file in files}
    versions = [folder for folder in folders if VERSION.fullmatch(_base(folder))]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        notes = list(chain.from_iterable(threads.map(lambda version: _list_version(store, version), versions)))
    return [file for file in notes if _base(file.path) in NOTES_OF_OTHERS and file.path not in listed]


def _list_versions(store: Store, root: str, pointer: Pointer, name: str, every_version: bool) -> _Listing:
    """List the notes of the versions that a pointer names: of one that is asked for by its name, the newest, or all."""
    latest = pointer.current
    named = [entry for entry in pointer.versions if entry.name == name] if name else [latest] if latest else []
    if not named:
        names = few([entry.name for entry in pointer.versions])
        raise DataError(
            f"{name} is not a version of this output" if name else "nothing is published at this place yet",
            where=root,
            why=f"it has {names}" if names else "no run that writes to it has ended",
            do="name one of its versions" if names else "give an output that a finished run wrote",
        )
    files: dict[str, File] = {}
    for entry in pointer.versions if every_version and not name else named:
        prefix = f"{root}/{entry.prefix}/"
        listed = {file.path[len(prefix) :]: file for page in store.list_pages(prefix) for file in page}
        notes = [path for path in choose_notes(listed) if entry in named or _base(path) in NOTES_OF_OTHERS]
        files |= {f"{entry.name}/{path}".lstrip("/"): listed[path] for path in notes}
    prefixes = {entry.name: entry.prefix for entry in pointer.versions}
    return _Listing(files, prefixes, "" if name or not latest else latest.name)


def _list_notes(store: Store, root: str, files: Sequence[File], folders: Sequence[str]) -> list[File]:
    """List the files that are copied, of a published folder with these files and folders; [] where it has none."""
    names = {_base(file.path): file for file in files}
    if latest := names.get(LATEST):
        version = read_copied_latest(store, latest)
        inside = _list_version(store, f"{root}/{version}") if VERSION.fullmatch(version) else [latest]
        if not inside:
            raise make_missing_version_error(root, version)
        return [latest, *inside]
    return _choose_notes(files) + _list_below(store, folders)


def read_copied_latest(store: Store, latest: File) -> str:
    """What `_latest` says in an output that was copied to a storage."""
    with store.open(latest.path, latest) as opened:
        return os.fsdecode(opened.read(1000).strip())


def make_missing_version_error(root: str, version: str) -> DataError:
    return DataError(
        f"{LATEST} names a version that is not there",
        where=f"{root}/{LATEST}",
        why=f"it says {version}, and {root}/{version} has no {MANIFEST} or {FITTED}: it may not be copied yet",
        do=f"copy the version, and {LATEST} after it; or name another version, such as {root}/v0001",
    )


def _list_version(store: Store, version: str) -> list[File]:
    files, folders = store.list_folder(version)
    return _choose_notes(files) + _list_below(store, folders)


def _list_below(store: Store, folders: Sequence[str]) -> list[File]:
    listed = [folder for folder in folders if _base(folder) in (*SPLITS, WORKFLOW)]
    return [file for folder in listed for file in _choose_notes(store.list_folder(folder)[0])]


def _choose_notes(files: Sequence[File]) -> list[File]:
    """Choose what says something of a folder, of the files directly in it."""
    by_name = {_base(file.path): file for file in files}
    return [by_name[name] for name in choose_notes(by_name)]


def _base(path: str) -> str:
    return PurePosixPath(path).name


def _fetch(store: Store, root: str, listing: _Listing) -> Path:
    """Fetch files that were listed into a folder of their own, unless they are there.

    The copy is in use until this process ends: what was loaded may read its tables later.
    """
    files = listing.files

    def write(folder: Path) -> None:
        folder.mkdir()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda path: fetch_file(store, files[path], folder / path), files))
        if listing.latest:
            (folder / LATEST).write_text(f"{listing.latest}\n")

    key = make_key(root, listing.latest, sorted(describe_version(file) for file in files.values()))
    if key not in _in_use or not _in_use[key].path.exists():
        copies = CachedCopies(find_cache_folder("published"), LIMIT)
        _in_use[key] = copies.fetch(key, sum(file.size for file in files.values()), write)
    return _in_use[key].path


def fetch_file(store: Store, file: File, target: Path) -> None:
    """Fetch a file to a local path, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with partial_file(target) as partial:
        copy_file(store, file, partial)
