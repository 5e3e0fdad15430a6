"""Removes old versions of outputs, and the work in progress of runs that were cut off."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.core.settings import Output
from tasks.errors import DataError, JobError
from tasks.storage import own_files
from tasks.storage.atomic import read_json, read_record, write_note
from tasks.storage.discarded import is_discarded
from tasks.storage.documents import Number, dump_document, parse_document
from tasks.storage.files_being_read import without_readers
from tasks.storage.output_mirror import address_of, list_objects
from tasks.storage.own_files import REMOVED
from tasks.storage.staging import Staging, is_work_of, until_of

BESIDE = re.compile(r"^\.(?P<name>.+)\.rowmill(-old-\d+(-\d+)?)?$")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
LONGEST = 36_500 * 86_400  # seconds of an age
log = logging.getLogger("rowmill")


def publish(staging: Staging, output: Output, anew: bool = False) -> Path:
    """Publish the new output with one rename; then remove old versions beyond `output.keep_versions`.

    `anew`: it learns from the beginning, since every version of its base was taken back. Nights that were removed
    before are in none of its ids: they count as missing from now on.
    """
    if anew and (lost := _read_removed_or_warn(staging.target)):
        log.warning(
            "the ids begin anew: %s night(s) that output.keep_versions has removed are not among them, and count as "
            "missing",
            f"{len(lost):,}",
        )
        write_note(staging.target / REMOVED, {"format": 1, "nights": []})
    path = staging.publish(output.on_existing)
    if output.keep_versions is not None:
        for version in drop_versions(staging, output.keep_versions):
            log.info("removed the old version %s", version)
    return path


def drop_versions(staging: Staging, keep: int) -> list[Path]:
    """Remove the versions of an output that are older than its newest `keep`; returns the removed ones.

    A discarded version does not count, nor does one that lacks files: whatever is taken back or damaged, `keep`
    versions are left to go on from. Never removes the version that `_latest` names, versions on which a run works or
    that a reader on this host holds, versions with files that rowmill did not write, and folders and links that are no
    versions. A version that cannot be looked at or removed is a warning: the run is done. Only for the owner of the
    lock.

    The run dates of the removed versions are noted in `_removed.json` of the output: they were published.
    """
    root = staging.target
    latest = own_files.read_latest(root)
    gone = list[Path]()
    there = list[Path]()
    counted = list[Path]()
    for version in own_files.versions_of(root):
        try:
            if own_files.find_description(version):
                there.append(version)
                if lacks := own_files.lacking(version, list_objects(version)):
                    log.warning(
                        "%s does not count as a version: %s is missing or cut off", address_of(version), lacks[0]
                    )
                elif not is_discarded(version):
                    counted.append(version)
        except OSError as error:
            log.warning("%s does not count as a version: %s", version, error.strerror or error)
    for version in there[: there.index(counted[-keep])] if len(counted) >= keep else ():
        if version.name == latest or version.is_symlink():
            continue
        try:
            if not own_files.own_output(version) or Staging(version).in_use():
                continue
            with without_readers(version) as is_free:
                if not is_free:
                    log.warning("the old version %s stays: a reader on this host holds it", version)
                    continue
                if not is_discarded(version):
                    _note_removed(version)
                if staging.put_away(version):
                    gone.append(version)
        except OSError as error:
            log.warning("the old version %s could not be removed: %s", version, error.strerror or error)
    return gone


@dataclass(frozen=True)
class RemovedVersion:
    """The night of a version that was removed, as its manifest had it."""

    version: str
    date: str
    run_date: str
    created: str
    run: str


@dataclass(frozen=True)
class Removed:
    """The nights of the versions that were removed from an output, the oldest removal first."""

    nights: list[RemovedVersion]
    format: Number


def read_removed_versions(root: Path) -> list[RemovedVersion]:
    """The nights of the versions that `drop_versions` has removed from an output, the oldest removal first. A DataError
    if the note is damaged."""
    path = root / REMOVED
    content = read_json(path)
    return [] if content is None and not path.exists() else parse_document(Removed, content, path).nights


def _read_removed_or_warn(root: Path) -> list[RemovedVersion]:
    """As `read_removed_versions`, and a warning where the note is damaged: it is about to be written anew."""
    try:
        return read_removed_versions(root)
    except DataError as error:
        log.warning("%s is written anew: %s", root / REMOVED, error.what)
        return []


def _note_removed(version: Path) -> None:
    """Note the run date of a version that is about to be removed."""
    others = [one for one in _read_removed_or_warn(version.parent) if one.version != version.name]
    described = own_files.find_description(version)
    content = read_record(described) if described else {}
    dated = content.get("dated")
    dated = dated if isinstance(dated, dict) else {}
    of_run = {name: str(dated.get(name, "")) for name in ("date", "run_date")}
    of_manifest = {name: str(content.get(name, "")) for name in ("created", "run")}
    removed = RemovedVersion(version.name, **of_run, **of_manifest)
    write_note(version.parent / REMOVED, dump_document(Removed([*others, removed], 1)))


@dataclass(frozen=True)
class Leftover:
    """Folders that ended runs left beside an output (or in a scratch folder): their target, size and age.

    `until`: the second until which a replaced output stays for its readers.
    """

    target: Path
    folders: tuple[Path, ...]
    nbytes: int
    seconds: float  # since anything in it was changed
    until: int | None = None

    @property
    def is_cut_off(self) -> bool:
        """True if a swap began here and was not finished."""
        return self.until is None and _staging_of(self).is_cut_off


@dataclass(frozen=True)
class Removal:
    """The outcome of removing a leftover: bytes that are free now, the swap that was finished, why something stays."""

    freed: int
    finished: str = ""
    why: str = ""


def seconds_of(text: str) -> float:
    """Seconds of 7d, 12h, 30m, 45s, 2w or 0.

    >>> seconds_of("7d"), seconds_of("1.5h"), seconds_of("0")
    (604800.0, 5400.0, 0.0)
    """
    number, unit = (text[:-1], text[-1:]) if text[-1:] in UNITS else (text, "s")
    try:
        seconds = float(number) * UNITS[unit]
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST or (unit == "s" and number == text and seconds != 0):
        raise JobError(
            f"{text!r} is not an age", do="write a number and s, m, h, d or w, at most 36500d: 7d, 12h; 0 for any age"
        )
    return seconds


def leftovers(paths: Sequence[Path]) -> list[Leftover]:
    """All work in progress of the targets `paths`, and of targets in these folders, at any depth.

    Swaps that were cut off count too. A JobError for a path that is not there.
    """
    by_target: dict[tuple[Path, str], set[Path]] = {}
    for path in paths:
        path = Path(os.path.realpath(path))
        beside = list(path.parent.glob(f".{path.name}.rowmill*")) if path.parent.is_dir() else []
        if not path.exists() and not beside:
            raise JobError("there is nothing to clean", where=str(path), do="give an output, or a folder of outputs")
        for folder in (*beside, *([path] if BESIDE.match(path.name) else []), *_inside(path)):
            match = BESIDE.match(folder.name)
            if match and folder.is_dir() and not folder.is_symlink():
                alone = folder.name if until_of(folder) is not None or _read_target(folder) else ""
                target = _read_target(folder) or folder.parent / match["name"]
                by_target.setdefault((target, alone), set()).add(folder)
    return [_leftover(target, tuple(sorted(folders))) for (target, _), folders in sorted(by_target.items())]


def remove(leftover: Leftover) -> Removal:
    """Remove a leftover file by file, unless a run works there, and except files that rowmill did not write.

    Finishes a swap that was cut off first, as the next run would.
    """
    if leftover.until is not None:
        strangers = own_files.remove_output(leftover.folders[0])
        why = f"it holds {strangers[0]}, which rowmill did not write" if strangers else ""
        return Removal(leftover.nbytes - _measure_folders(leftover.folders)[0], "", why)
    staging = _staging_of(leftover)
    strangers = [name for folder in leftover.folders for name in own_files.foreign_work(folder)]
    if strangers:
        return Removal(0, "", f"it holds {strangers[0]}, which rowmill did not write")
    if not staging.target.parent.is_dir():  # of a scratch folder: no run can work for it
        own_files.remove_work(leftover.folders[0])
    else:
        try:
            with staging.hold_lock():
                staging.clean()
        except JobError as error:
            return Removal(0, "", f"{error.what}: {error.why}")
    freed = leftover.nbytes - _measure_folders(leftover.folders)[0]
    if staging.mended:  # what was moved into its place is not free
        freed = max(freed - _measure_folders([staging.target])[0], 0)
    left = [folder for folder in leftover.folders if folder.exists()]
    why = ""
    if left and (left[0] / own_files.OUTBOX).exists():
        why = "events in it wait for a Prefect server"
    elif left:
        strangers = list(own_files.strangers(left[0]))
        why = f"it holds {strangers[0]}, which rowmill did not write" if strangers else "it cannot be removed"
    return Removal(freed, staging.mended, why)


def _read_target(folder: Path) -> Path | None:
    """The target of a folder under a scratch folder; None where its note names another one."""
    note = read_json(folder / "target.json")
    target = Path(note["target"]) if isinstance(note, dict) and isinstance(note.get("target"), str) else None
    return target if target is not None and is_work_of(folder, target) else None


def _staging_of(leftover: Leftover) -> Staging:
    noted = _read_target(leftover.folders[0])
    return Staging(leftover.target, leftover.folders[0].parent if noted else None)


def _inside(path: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(path):
        for name in [n for n in names if n.startswith(".")]:
            names.remove(name)
            if BESIDE.match(name):
                yield Path(folder) / name


def _leftover(target: Path, folders: tuple[Path, ...]) -> Leftover:
    nbytes, touched = _measure_folders(folders)
    until = until_of(folders[0])
    return Leftover(target, folders, nbytes, max(time.time() - touched, 0.0), until)


def _measure_folders(folders: Sequence[Path]) -> tuple[int, float]:
    """(bytes, time of the last change) of all files in the folders."""
    nbytes = 0
    touched = 0.0
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            try:
                stat = path.lstat()
            except FileNotFoundError:  # a run that is going on
                continue
            nbytes += 0 if path.is_dir() else stat.st_size
            touched = max(touched, stat.st_mtime)
    return nbytes, touched
