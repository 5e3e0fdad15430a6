"""An output on an object store, and the local folder from which it is written.

The folder, a mirror, looks like a local output in which the parts are missing: each version with its manifest, profile
and fitted workflow. Whatever works on a local output works on the mirror, and what changed there is carried over. What
a run writes lies next to the mirror, or in `run.scratch`, until it is uploaded: nothing is uploaded twice.

Two runs exclude each other by a lock object with a heartbeat. Taking it rewrites the pointer (`output_pointer`), and a
run publishes by a conditional put of the pointer that it wrote then: who has lost the lock meanwhile cannot publish.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tasks.core.plan import File
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError, GiveUpError, JobError, RowmillError, TransientError
from tasks.storage.allowed_roots import is_local
from tasks.storage.atomic import read_record, write_json, write_text
from tasks.storage.cached_copies import find_cache_folder
from tasks.storage.cloud_options import kind_of
from tasks.storage.credentials import StorageOptions, storage
from tasks.storage.object_store import full_url
from tasks.storage.option_errors import explain_unknown_options
from tasks.storage.output_pointer import (
    LOCK,
    OUTBOX_OBJECT,
    PREFIX,
    Entry,
    Pointer,
    Replaced,
    is_own,
    name_urls,
    read_pointer,
)
from tasks.storage.own_files import (
    DISCARDED,
    FITTED,
    LATEST,
    MANIFEST,
    OUTBOX,
    PUBLISHED,
    REMOVED,
    SPLITS,
    VERSION,
    choose_notes,
)
from tasks.storage.process_identity import has_ended
from tasks.storage.published_copy import fetch_file, make_missing_version_error, read_copied_latest
from tasks.storage.store import NO_CONDITION, ConflictError, MissingFileError, Store, make_writing_error
from tasks.storage.stores import LOCAL, open_store

STALE_SECONDS = 60.0  # without a heartbeat, by the store's clock, after which the owner of a lock counts as dead
AT_ONCE = 8  # files
OPTIONS = "output.storage_options"  # the key of a job that has the options of an output
FOLLOW_SECONDS = 0.3  # between two looks for parts that are written
LATER_NOTES = (DISCARDED, PUBLISHED)  # which commands change after a version was published
SINGLE = "data"  # how the prefix of an output without versions begins
ADDRESS = "address.json"  # in the folder around a mirror: what it mirrors
UPLOADS = "uploads.jsonl"  # in the work in progress: the prefix, then each file that lies there
log = logging.getLogger("rowmill")

_mirrors: dict[Path, OutputMirror] = {}  # of this process


class StoreLeftover(NamedTuple):
    """Files below a prefix that are not published: their bytes, and seconds since the last was written; `until` is the
    second until which those of a replaced output stay for their readers, None of an interrupted run."""

    prefix: str
    nbytes: int
    seconds: float
    until: int | None


class Seen(NamedTuple):
    """A file of a version: its size and ETag in the store; `changed`, the time of the local copy, 0 without one."""

    size: int
    version: str
    changed: int = 0


class OutputMirror:
    """The mirror of an output: `pull` makes it equal to the store, `push` carries over what commands changed in it.

    Making one costs nothing: the store is opened when it is needed.
    """

    def __init__(self, url: str, options: str | Mapping[str, Any] | None = None) -> None:
        self.url = full_url(url)
        self._given = options
        self.around = find_mirrors() / hashlib.sha256(self.url.encode()).hexdigest()[:16]
        self.folder = self.around / _name_folder(self.url)
        self.outbox = self.around / f".{self.folder.name}.rowmill" / OUTBOX
        self._outbox: bytes | None = None  # as it is in the store
        self.owner = ""  # the id of the run that has the lock of the store, "" while this process has it not
        self._pointer = Pointer(0)
        self._written: File | None = None  # the pointer as it was read or written last
        self.is_copied = False  # whether it was filled from an output that was copied to the store, not written to it
        self._dropped = set[str]()  # versions that were removed from the mirror, which `push` is to remove
        self._latest: str | None = None  # the version that readers are to take from `push` on
        self._heart: _Heart | None = None

    @property
    def has_options(self) -> bool:
        return bool(self._given)

    @property
    def options_name(self) -> str:
        """The name of the options of the storage; "" without one."""
        return self._given if isinstance(self._given, str) else getattr(self._given, "name", "")

    @cached_property
    def options(self) -> StorageOptions:
        return storage(self._given, OPTIONS)

    @cached_property
    def store(self) -> Store:
        store = open_store(self.url, self.options)
        if not store.publishes:
            raise explain_unknown_options(self.url, self.options) or make_writing_error(self.url, NO_CONDITION)
        return store

    @property
    def pointer_path(self) -> str:
        return f"{self.url}/{MANIFEST}"

    # What is in the store

    def pull(self) -> None:
        """Make the mirror equal to what is published; a JobError for an output that was copied there."""
        self._read_pointer()
        self._fill()

    def pull_copied(self) -> None:
        """Make the mirror equal to what is published, or to an output that was copied there: for readers alone."""
        read = read_pointer(self.store, self.url)
        self._pointer, self._written = read or (self._read_copied_output(), None)
        self.is_copied = read is None
        self._fill()

    def _read_pointer(self) -> None:
        read = read_pointer(self.store, self.url)
        if read is None and self._read_copied_output().versions:  # an error where the bucket is missing
            raise JobError(
                "an output was copied to this place by other means",
                where=self.url,
                why=f"it has no {MANIFEST} that names its versions, as rowmill writes one to an object store",
                do="write to another place (output.path; rowmill refit: --output): a copy can be read, also as a base, "
                "but not changed",
            )
        self._pointer, self._written = read or (Pointer(0), None)

    def _fill(self) -> None:
        """Make the mirror equal to what the pointer names."""
        self._write_address()
        for entry in self._pointer.versions:
            self._refresh(entry)
        names = {entry.name for entry in self._pointer.versions}
        for version in self._list_local_versions():
            if version not in names:
                self._forget(version)
        self._write_note(LATEST, f"{self._pointer.latest}\n" if self._pointer.latest else None)
        self._pull_outbox()
        removed = self._pointer.removed
        self._write_note(REMOVED, json.dumps(removed, indent=1) if removed else None)

    def _pull_outbox(self) -> None:
        """Fetch the events that the Prefect server has not heard of; those of this host stay."""
        try:
            self._outbox = self.store.read(f"{self.url}/{OUTBOX_OBJECT}")[1]
        except MissingFileError:
            self._outbox = None
        if self._outbox is not None and not self.outbox.exists():
            self.outbox.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.outbox, self._outbox.decode())

    def _push_outbox(self) -> None:
        content = self.outbox.read_bytes() if self.outbox.exists() else None
        if content == self._outbox:
            return
        if content is None:
            self.store.delete([f"{self.url}/{OUTBOX_OBJECT}"])
        else:
            self.store.upload(self.outbox, f"{self.url}/{OUTBOX_OBJECT}")
        self._outbox = content

    def _read_copied_output(self) -> Pointer:
        """Describe an output, or a fitted workflow, that was copied here as it is on a local disk: its versions have
        their own names as prefixes, and one without versions has none."""
        files, folders = self.store.list_folder(self.url)
        notes = {_base(file.path): file for file in files}
        names = [_base(folder) for folder in folders]
        versions = sorted(filter(VERSION.fullmatch, names), key=lambda name: int(name[1:]))
        if not versions:
            is_output = MANIFEST in notes or FITTED in notes or SPLITS[0] in names
            return Pointer(0, versions=(Entry("", ""),) if is_output else ())
        latest = read_copied_latest(self.store, notes[LATEST]) if LATEST in notes else ""
        if latest and latest not in versions:
            raise make_missing_version_error(self.url, latest)
        return Pointer(0, versions=tuple(Entry(name, name) for name in versions), latest=latest)

    def list_strangers(self) -> list[str]:
        """The names below the output that rowmill did not write, of its first level."""
        files, folders = self.store.list_folder(self.url)
        names = [_base(file.path) for file in files] + [_base(folder) for folder in folders]
        return sorted(name for name in names if not PREFIX.fullmatch(name) and not is_own(name))

    def _write_address(self) -> None:
        """Note what this is the mirror of; options are noted by their name alone."""
        prefixes = {entry.name: entry.prefix for entry in self._pointer.versions if entry.prefix}
        self.around.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(
            self.around / ADDRESS, {"url": self.url, "storage_options": self.options_name or None, "prefixes": prefixes}
        )

    def _refresh(self, entry: Entry) -> None:
        """Fetch the notes of a version that are new or have changed, and note what else lies there."""
        prefix = f"{self.url}/{entry.prefix}".rstrip("/")
        listed = {file.path[len(prefix) + 1 :]: file for page in self.store.list_pages(prefix) for file in page}
        folder = self.folder / entry.name
        known = self._read_objects(entry.name)
        fetched = [
            name for name in choose_notes(listed) if not _is_fetched(folder / name, listed[name], known.get(name))
        ]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda name: fetch_file(self.store, listed[name], folder / name), fetched))
        for name, seen in known.items():
            if seen.changed and name not in listed:
                (folder / name).unlink(missing_ok=True)
        self._write_objects(entry.name, folder, listed)

    def _write_objects(self, name: str, folder: Path, listed: Mapping[str, File]) -> None:
        objects = {path: [file.size, file.version, _time_of(folder / path)] for path, file in listed.items()}
        path = _objects_note(self.around, name)
        path.parent.mkdir(exist_ok=True)
        write_json(path, objects)

    def _read_objects(self, name: str) -> dict[str, Seen]:
        return {path: Seen(*entry) for path, entry in read_record(_objects_note(self.around, name)).items()}

    def _list_local_versions(self) -> list[str]:
        """The names of the versions in the mirror, "" for an output without versions."""
        if (self.folder / MANIFEST).exists() or _objects_note(self.around, "").exists():
            return [""]
        return [path.name for path in self.folder.glob("v*") if VERSION.fullmatch(path.name)]

    def _forget(self, name: str) -> None:
        """Remove a version from the mirror, which holds copies alone."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        _objects_note(self.around, name).unlink(missing_ok=True)

    def _write_note(self, name: str, text: str | None) -> None:
        path = self.folder / name
        if text is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)

    # What a run changes

    def push(self, until: int) -> None:
        """Carry over what was changed in the mirror: what `drop` and `point_to` were given, notes of versions.

        `until`: the second until which files of removed versions stay for readers. Only for the owner of the lock.
        """
        pointer = self._pointer
        dropped = [entry for entry in pointer.versions if entry.name in self._dropped]
        gone = tuple(Replaced(entry.prefix, until) for entry in dropped)
        wanted = replace(
            pointer,
            versions=tuple(entry for entry in pointer.versions if entry not in dropped),
            replaced=(*pointer.replaced, *gone),
            latest=self._latest or pointer.latest,
            removed=read_record(self.folder / REMOVED) or pointer.removed,
        )
        for entry in wanted.versions:
            self._push_notes(entry)
        self._push_outbox()
        if wanted != pointer:
            self._write_pointer(wanted)
        self._dropped.clear()
        self._latest = None

    def drop(self, version: str) -> None:
        """Have `push` remove a version from the pointer."""
        self._dropped.add(version)

    def point_to(self, version: str) -> None:
        """Have `push` let readers take a version."""
        self._latest = version

    def _push_notes(self, entry: Entry) -> None:
        known = self._read_objects(entry.name)
        folder = self.folder / entry.name
        if not folder.is_dir():
            return
        for note in LATER_NOTES:
            local = folder / note
            remote = f"{self.url}/{entry.prefix}/{note}"
            if local.exists() and _time_of(local) != known.get(note, Seen(0, "")).changed:
                self.store.upload(local, remote)
            elif not local.exists() and note in known:
                self.store.delete([remote])

    def publish(self, new: Path, work: Path, is_version: bool, until: int) -> str:
        """Upload a new output and publish it; return the name of its version, "" for one without.

        Files that lie there already, as the notes of an interrupted run in the folder `work` have it, are not uploaded
        again. Nothing is visible before the pointer is written, and everything after it. A GiveUpError if another run
        has taken the lock meanwhile.
        """
        name = self._choose_name() if is_version else ""
        uploads = self._begin_uploads(name, work)
        uploaded = uploads.upload_all(new)
        entry = Entry(name, uploads.prefix)
        self._write_pointer(self._sweep().with_version(entry, until))
        self._write_objects(name, new, uploaded)
        for path in uploaded.keys() - set(choose_notes(uploaded)):
            (new / path).unlink(missing_ok=True)
        (work / UPLOADS).unlink(missing_ok=True)
        return name

    @contextmanager
    def upload_ahead(self, new: Path, notes: Path, work: Path, is_version: bool) -> Iterator[None]:
        """Upload the parts in `new`, each once its note is in `notes`, while the block writes them."""
        uploads = self._begin_uploads(self._choose_name() if is_version else "", work)
        stop = threading.Event()
        thread = threading.Thread(target=uploads.follow, args=(new, notes, stop), daemon=True, name="rowmill-upload")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _begin_uploads(self, name: str, work: Path) -> _Uploads:
        uploads = _Uploads(self.store, self.url, work / UPLOADS)
        uploads.begin(name or SINGLE, self._pointer.prefixes)
        return uploads

    def _choose_name(self) -> str:
        numbers = [int(entry.name[1:]) for entry in self._pointer.versions if entry.name]
        return f"v{max(numbers, default=0) + 1:04d}"

    def _sweep(self) -> Pointer:
        """Delete the files of replaced versions whose time is over; the pointer without them."""
        now = time.time()
        over = [one for one in self._pointer.replaced if one.until <= now]
        for one in over:
            self.remove_prefix(one.prefix)
        return replace(self._pointer, replaced=tuple(one for one in self._pointer.replaced if one not in over))

    def remove_prefix(self, prefix: str) -> None:
        """Delete all files below a prefix."""
        for page in list(self.store.list_pages(f"{self.url}/{prefix}")):
            self.store.delete([file.path for file in page])

    def _write_pointer(self, pointer: Pointer) -> None:
        content = replace(pointer, owner=self.owner).encode()
        try:
            if self._written is None:
                self._written = self.store.put_if_absent(self.pointer_path, content)
            else:
                self._written = self.store.put_if_unchanged(self.pointer_path, content, self._written.version)
        except ConflictError:
            raise GiveUpError(
                "another run took over",
                where=self.url,
                why=f"it has written {MANIFEST} since this run took the lock; nothing of this run is published",
                do="follow the run that holds the lock",
            ) from None
        self._pointer = pointer
        self._write_address()

    # The lock

    def check_owner(self) -> None:
        """A GiveUpError if another run has the lock."""
        if self._heart is not None and self._heart.is_lost:
            raise GiveUpError(
                "another run took over",
                where=self.url,
                why="this run gave no sign of life for a minute",
                do="follow the run that holds the lock",
            )

    @contextmanager
    def hold_lock(self, owner: JsonObject, wait: bool) -> Iterator[None]:
        """Lock the output while the block runs, and fill the mirror. The local lock of the mirror must be held.

        Errors of the block name the output by its URL.
        """
        heart = _Heart(self.store, f"{self.url}/{LOCK}", owner, self.now)
        heart.acquire(wait)
        self._heart = heart
        self.owner = str(owner["id"])
        try:
            self._read_pointer()
            self._write_pointer(replace(self._pointer, generation=self._pointer.generation + 1))
            self._fill()
            yield
        finally:
            heart.release()
            self._heart = None
            self.owner = ""

    def list_leftovers(self) -> list[StoreLeftover]:
        """The prefixes that interrupted runs have left, and those of outputs that were replaced."""
        read = read_pointer(self.store, self.url)
        pointer = read[0] if read else Pointer(0)
        until = {one.prefix: one.until for one in pointer.replaced}
        published = {entry.prefix for entry in pointer.versions}
        now = self.now()
        leftovers = []
        for folder in self.store.list_folder(self.url)[1]:
            name = _base(folder)
            if not PREFIX.fullmatch(name) or name in published:
                continue
            files = [file for page in self.store.list_pages(folder) for file in page]
            age = now - max((file.mtime / 1e9 for file in files), default=now)
            leftovers.append(StoreLeftover(name, sum(file.size for file in files), max(age, 0.0), until.get(name)))
        return leftovers

    def remove_leftovers(self, prefixes: Collection[str]) -> None:
        """Delete the files below some prefixes, unless they were published meanwhile. For the owner of the lock."""
        published = {entry.prefix for entry in self._pointer.versions}
        for prefix in prefixes:
            if prefix not in published:
                self.remove_prefix(prefix)
        gone = tuple(one for one in self._pointer.replaced if one.prefix not in prefixes)
        if gone != self._pointer.replaced:
            self._write_pointer(replace(self._pointer, replaced=gone))

    def now(self) -> float:
        """The time by the store's clock."""
        probe = f"{self.url}/{LOCK}.{uuid.uuid4().hex[:8]}"
        self.store.put_if_absent(probe, b"{}")
        now = self.store.stat(probe).mtime / 1e9
        self.store.delete([probe])
        return now


class _Heart:
    """The lock object: who holds it, and the thread that gives signs of life."""

    def __init__(self, store: Store, path: str, owner: JsonObject, read_clock: Callable[[], float]) -> None:
        self._store = store
        self._read_clock = read_clock
        self._path = path
        self._owner = owner
        self._stop = threading.Event()
        self._file: File | None = None
        self._thread = threading.Thread(target=self._beat, daemon=True, name="rowmill-store-lock")
        self.is_lost = False

    def acquire(self, wait: bool) -> None:
        while not self._try():
            holder = self.find_holder()
            if holder is None:
                continue
            if not wait:
                raise JobError(
                    "another run is working on this output",
                    where=self._path,
                    why=f"process {holder.get('pid')} on {holder.get('host')} has held it since {holder.get('since')}",
                    do="wait for it, choose another output.path, or set run.lock to wait",
                )
            time.sleep(1.0)
        self._thread.start()

    def _try(self) -> bool:
        """Take the lock if it is free, or if its owner is dead."""
        try:
            self._file = self._store.put_if_absent(self._path, self._content(0))
        except ConflictError:
            pass
        else:
            return True
        try:
            there, content = self._store.read(self._path)
            if self._find_living(there, content) is None:
                self._file = self._store.put_if_unchanged(self._path, self._content(0), there.version)
                return True
        except (MissingFileError, ConflictError):  # it was let go, or another one took it
            pass
        return False

    def find_holder(self) -> JsonObject | None:
        """The living owner of the lock."""
        try:
            return self._find_living(*self._store.read(self._path))
        except MissingFileError:
            return None

    def _find_living(self, there: File, content: bytes) -> JsonObject | None:
        """The owner that a lock object names, None if it is dead: its process has ended, or it was silent too long."""
        try:
            owner = json.loads(content)
        except ValueError:
            owner = {}
        if isinstance(owner, dict) and has_ended(owner):
            return None
        return owner if self._read_clock() - there.mtime / 1e9 <= STALE_SECONDS else None

    def _content(self, beat: int) -> bytes:
        return json.dumps({**self._owner, "beat": beat}, indent=1).encode()

    def _beat(self) -> None:
        beat = 0
        while not self._stop.wait(STALE_SECONDS / 6):
            beat += 1
            try:
                assert self._file is not None
                self._file = self._store.put_if_unchanged(self._path, self._content(beat), self._file.version)
            except ConflictError:
                self.is_lost = True
                return
            except RowmillError as error:
                log.warning("no sign of life for the lock %s: %s", self._path, error)

    def release(self) -> None:
        """Let the lock go, if it is still this owner's."""
        self._stop.set()
        self._thread.join()
        try:
            there = self._store.stat(self._path)
            if self._file is not None and there.version == self._file.version:
                self._store.delete([self._path])
        except MissingFileError:
            pass
        except RowmillError as error:
            log.warning("the lock stays for a minute: %s", error)


class _Uploads:
    """The files of an output that were uploaded to a prefix, as a note of the work in progress has them."""

    def __init__(self, store: Store, root: str, note: Path) -> None:
        self._store = store
        self._root = root
        self._note = note
        self._known: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        self.prefix = ""

    def begin(self, name: str, taken: set[str]) -> None:
        """Go on with the prefix of the note if it is one of this name that is not published, else begin a new one."""
        lines = [entry for line in read_text(self._note).splitlines() if isinstance(entry := _parse_line(line), list)]
        noted = str(lines[0][1]) if lines and lines[0][0] == self._root else ""
        if noted.rpartition("-")[0] == name and noted not in taken:
            self.prefix = noted
            self._known = {str(entry[0]): entry[1:] for entry in lines[1:]}
            return
        self.prefix = f"{name}-{uuid.uuid4().hex[:8]}"
        self._note.write_text(json.dumps([self._root, self.prefix]) + "\n")

    def upload_all(self, folder: Path) -> dict[str, File]:
        """Upload every file of a folder that is not there yet, manifests last; delete what is there besides.

        Returns the files that are there then, by their paths in the folder.
        """
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        there = self.list_files()
        manifests = [name for name in files if _base(name) == MANIFEST]
        others = [name for name in files if _base(name) != MANIFEST]
        for names in (others, manifests):
            missing = [name for name in names if not self._is_there(folder / name, name, there.get(name))]
            with ThreadPoolExecutor(AT_ONCE) as threads:
                uploaded = threads.map(lambda name: self.upload(folder / name, name), missing)
                there |= zip(missing, uploaded, strict=True)
        self._store.delete([there.pop(name).path for name in there.keys() - set(files)])
        return there

    def follow(self, new: Path, notes: Path, stop: threading.Event) -> None:
        """Upload parts that are noted until `stop`. What fails is tried again when the output is published."""
        followed: dict[Path, int] = {}
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rowmill-upload") as threads:
            while not stop.wait(FOLLOW_SECONDS):
                for note in sorted(notes.rglob("*.json")):
                    if followed.get(note) != _time_of(note):
                        followed[note] = _time_of(note)
                        threads.submit(self._upload_noted, new, note.parent.relative_to(notes), note, stop)

    def _upload_noted(self, new: Path, split: Path, note: Path, stop: threading.Event) -> None:
        """Upload the files of a note, unless they are there as they are."""
        for part in read_record(note).get("parts", ()):
            name = str(split / part["path"])
            path = new / name
            if stop.is_set() or self._is_noted(path, name):
                continue
            try:
                self.upload(path, name)
            except (RowmillError, OSError) as error:
                log.info("%s is uploaded later: %s", path, error)

    def _is_noted(self, path: Path, name: str) -> bool:
        """Whether a local file was uploaded as it is."""
        status = path.stat()
        return self._known.get(name, [])[:2] == [status.st_size, status.st_mtime_ns]

    def upload(self, path: Path, name: str) -> File:
        status = path.stat()
        file = self._store.upload(path, f"{self._root}/{self.prefix}/{name}")
        if file.size != status.st_size:
            raise TransientError("a file changed while it was uploaded", where=str(path), do="run the same job again")
        with self._lock, self._note.open("a") as note:
            self._known[name] = [status.st_size, status.st_mtime_ns, file.version]
            note.write(json.dumps([name, status.st_size, status.st_mtime_ns, file.version]) + "\n")
        return file

    def _is_there(self, path: Path, name: str, file: File | None) -> bool:
        """Whether a local file was uploaded as it is, and lies there as it was uploaded."""
        if file is None or not self._is_noted(path, name):
            return False
        size, _, version = self._known[name]
        return (size, version) == (file.size, file.version)

    def list_files(self) -> dict[str, File]:
        prefix = f"{self._root}/{self.prefix}"
        return {file.path[len(prefix) + 1 :]: file for page in self._store.list_pages(prefix) for file in page}


def list_mirrors(pattern: str, options: str | Mapping[str, Any] | None) -> list[Path]:
    """The mirrors, brought up to date, of the outputs whose URLs a pattern matches."""
    mirrors = [OutputMirror(url, options) for url in _match_folders(pattern, options)]
    mirrors = [_register(mirror) for mirror in mirrors]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(OutputMirror.pull, [mirror for mirror in mirrors if not mirror.owner]))
    return [mirror.folder for mirror in mirrors]


def _match_folders(pattern: str, options: str | Mapping[str, Any] | None) -> list[str]:
    """The URLs that a pattern matches; one without signs of a pattern matches itself."""
    bucket = "/".join(pattern.split("/", 3)[:3])
    matched = [bucket]
    for part in pattern[len(bucket) + 1 :].split("/"):
        if glob.has_magic(part):
            store = open_store(bucket, storage(options, OPTIONS))
            below = [folder for root in matched for folder in store.list_folder(root)[1]]
            matched = [folder for folder in below if fnmatch.fnmatchcase(_base(folder), part)]
        else:
            matched = [f"{root}/{part}" for root in matched]
    return sorted(matched)


def find_output(url: str, options: str | Mapping[str, Any] | None) -> tuple[Path, Path]:
    """The mirror, brought up to date, of an output by its URL, and the folder in it that the URL names.

    A version may be named as in a folder (`OUT/v0006`), or by its prefix. A DataError where no output is.
    """
    root, name = url.rstrip("/"), ""
    above, _, last = root.rpartition("/")
    if version := re.fullmatch(r"(v\d+)(-[0-9a-f]{8})?", last):
        root, name = above, version[1]
    mirror = find_mirror(root, options)
    assert mirror is not None
    mirror.pull()
    if not (mirror.folder / name).is_dir():
        raise DataError(
            "this is not an output of rowmill",
            where=url,
            why="nothing is published there" if not name else f"the output has no version {name}",
            do="give the output.path of a run that has ended, or a version of it",
        )
    return mirror.folder, mirror.folder / name


def refresh_mirror(folder: Path) -> None:
    """Bring the mirror that a folder is up to date, unless this process has its lock; nothing for other folders.

    An output that was copied to the storage is mirrored, too: it can be read.
    """
    mirror = find_mirror(folder, None)
    if mirror and not mirror.owner:
        mirror.pull_copied()


def check_can_publish(url: str) -> None:
    """A JobError for a URL of a storage on which no output can be published."""
    if kind_of(url) is None:
        raise make_writing_error(url, NO_CONDITION)


def find_mirrors() -> Path:
    """The folder of all mirrors of this user."""
    return find_cache_folder("outputs").resolve()


def address_of(path: str | os.PathLike[str]) -> str:
    """What people call a path: its URL if it is in a mirror; any other path as it is.

    >>> address_of("/data/out/toy")
    '/data/out/toy'
    """
    return with_urls(os.fspath(path))


def place_of(folder: str | os.PathLike[str]) -> str:
    """Where the files of an output, a version or a split lie: below a URL if it is in a mirror."""
    return with_urls(f"{os.fspath(folder)}/").rstrip("/")


def with_urls(text: str) -> str:
    """A text with URLs in place of paths in mirrors."""
    mirrors = find_mirrors()
    for around in {mirrors / name for name in re.findall(rf"{re.escape(str(mirrors))}/([0-9a-f]{{16}})/", text)}:
        note = read_record(around / ADDRESS)
        if url := note.get("url"):
            folder = str(around / _name_folder(url))
            text = name_urls(text, folder, url, note["prefixes"])
    return text


def find_mirror(target: str | Path, options: str | Mapping[str, Any] | None) -> OutputMirror | None:
    """The mirror of an output by its URL, or by a path that is its mirror; None for a local output.

    One for each output and process: whoever asks while a run has the lock gets the mirror that has it.
    """
    url = os.fspath(target)
    if is_local(url):
        around = Path(os.path.realpath(url)).parent
        if around.parent != find_mirrors():
            return None
        note = read_record(around / ADDRESS)
        if not note:  # it was not filled on this host yet
            return _mirrors.get(around)
        url, options = note["url"], note["storage_options"]
    return _register(OutputMirror(url, options))


def _register(mirror: OutputMirror) -> OutputMirror:
    """The mirror of this process for the same output; one that was made without options of the storage is replaced."""
    known = _mirrors.get(mirror.around)
    if known is None or (not known.has_options and mirror.has_options and not known.owner):
        _mirrors[mirror.around] = known = mirror
    return known


def store_of(folder: Path) -> Store:
    """Where the files of an output, or of a version of it, lie: this host, or the store that a folder mirrors."""
    mirror = mirror_of(folder)
    return mirror.store if mirror else LOCAL


def mirror_of(folder: Path) -> OutputMirror | None:
    """The mirror that an output, a version or a split is in; None for a local one."""
    places = (folder, *folder.parents[:2])
    return next((mirror for place in places if (mirror := find_mirror(place, None))), None)


def is_copied(folder: Path) -> bool:
    """Whether a version is in the mirror of an output that was copied to a store: it can be read alone."""
    mirror = mirror_of(folder)
    return mirror is not None and mirror.is_copied


def is_mirror(folder: Path) -> bool:
    """Whether a folder is in the mirror of an output, which has no parts."""
    return Path(os.path.realpath(folder)).is_relative_to(find_mirrors())


def list_objects(folder: Path) -> dict[str, int]:
    """The sizes of the files of a mirrored version in the store, by path in it; {} for a folder that is no mirror."""
    mirrors = find_mirrors()
    if not is_mirror(folder):
        return {}
    folder = Path(os.path.realpath(folder))
    around, _, *inside = folder.relative_to(mirrors).parts
    name = inside.pop(0) if inside and VERSION.fullmatch(inside[0]) else ""
    below = "".join(f"{one}/" for one in inside)
    objects = read_record(_objects_note(mirrors / around, name))
    return {path[len(below) :]: entry[0] for path, entry in objects.items() if path.startswith(below)}


def read_text(path: Path) -> str:
    """The text of a small file; "" where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _parse_line(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:  # cut off by a kill
        return None


def _is_fetched(path: Path, file: File, known: Seen | None) -> bool:
    return known == (file.size, file.version, _time_of(path)) and path.is_file()


def _time_of(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _name_folder(url: str) -> str:
    return PurePosixPath(url).name.lstrip(".") or SINGLE


def _objects_note(around: Path, name: str) -> Path:
    return around / "objects" / f"{name or SINGLE}.json"


def _base(path: str) -> str:
    return PurePosixPath(path).name
