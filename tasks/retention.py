"""What is kept and for how long: old versions of an output, and the work in progress of runs that were cut off."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.commit import Staging, own_output
from tasks.errors import JobError
from tasks.files import LATEST
from tasks.settings import Output

BESIDE = re.compile(r"^\.(?P<name>.+)\.millrace(-old|-new|-new\.tmp)?$")
# What a run puts into its staging folder; where there is anything else, somebody else works there too.
OWN_WORK = re.compile(
    r"^(lock(\..+)?|(plan|progress)\.json(\..+)?|(state|exchange|keyed|new|parts|samples)(train|valid)?(\..+)?"
    r"|diagram-[0-9a-f]+\.svg(\..+)?|\.(millrace-)?probe-.+)$"
)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
log = logging.getLogger("millrace")


def publish(staging: Staging, output: Output) -> Path:
    """One rename makes the new output visible; then old versions go that `output.keep_versions` does not keep."""
    path = staging.publish(output.on_existing)
    if output.keep_versions is not None:
        for version in drop_versions(staging, output.keep_versions):
            log.info("removed the old version %s", version)
    return path


def drop_versions(staging: Staging, keep: int) -> list[Path]:
    """Remove all but the newest `keep` versions of an output; returns those that are gone.

    Only for the owner of the lock. Stays, whatever its age: the version that `_latest` names, one on which a run works,
    and one that holds a file which millrace did not write. One that cannot be removed is a warning: the run is done.
    """
    root = staging.target
    latest = (root / LATEST).read_text().strip()
    numbered = sorted((p for p in root.glob("v*") if p.name[1:].isdigit()), key=lambda p: int(p.name[1:]))
    gone = []
    for version in numbered[:-keep]:
        if version.is_symlink() or not version.is_dir() or version.name == latest:
            continue
        try:
            if own_output(version) and not Staging(version).in_use():
                shutil.rmtree(staging.old, ignore_errors=True)
                version.rename(staging.old)  # gone as a whole: no reader finds half of it
                shutil.rmtree(staging.old)
                gone.append(version)
        except OSError as error:
            log.warning("the old version %s could not be removed: %s", version, error.strerror or error)
    return gone


@dataclass(frozen=True)
class Leftover:
    """Work in progress that lies beside an output (or in a scratch folder): of which target, how large, how old."""

    target: Path
    folders: tuple[Path, ...]
    nbytes: int
    seconds: float  # since anything in it was touched


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
    if not seconds >= 0 or (unit == "s" and number == text and seconds != 0):
        raise JobError(f"{text!r} is no age", do="write a number and s, m, h, d or w: 7d, 12h; 0 for any age")
    return seconds


def leftovers(paths: Sequence[Path]) -> list[Leftover]:
    """All work in progress of the targets `paths`, and of targets in these folders, at any depth.

    Swaps that were cut off count too. A JobError for a path that is not there.
    """
    found: dict[Path, set[Path]] = {}
    for path in paths:
        path = Path(os.path.realpath(path))
        own = list(path.parent.glob(f".{path.name}.millrace*")) if path.parent.is_dir() else []
        if not path.exists() and not own:
            raise JobError("there is nothing to clean", where=str(path), do="give an output, or a folder of outputs")
        for folder in (*own, *([path] if BESIDE.match(path.name) else []), *_inside(path)):
            match = BESIDE.match(folder.name)
            if match and folder.is_dir() and not folder.is_symlink():
                found.setdefault(folder.parent / match["name"], set()).add(folder)
    return [_leftover(target, tuple(sorted(folders))) for target, folders in sorted(found.items())]


def remove(leftover: Leftover) -> str:
    """Remove it; "" when it is gone, else why it stays: a run works there, or it holds files of somebody else.

    A swap that was cut off is finished first, as the next run would.
    """
    staging = Staging(leftover.target)
    strangers = [p.name for p in staging.folder.glob("*") if not OWN_WORK.match(p.name)]
    if strangers:
        return f"it holds {strangers[0]}, which millrace did not write"
    try:
        with staging.locked():
            staging.clean()
    except JobError as error:
        return f"{error.what}: {error.why}"
    left = [folder for folder in leftover.folders if folder.exists()]
    return f"{left[0].name} cannot be removed" if left else ""


def _inside(path: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(path):
        for name in [n for n in names if n.startswith(".")]:
            names.remove(name)
            if BESIDE.match(name):
                yield Path(folder) / name


def _leftover(target: Path, folders: tuple[Path, ...]) -> Leftover:
    nbytes, touched = 0, 0.0
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            try:
                stat = path.lstat()
            except FileNotFoundError:  # a run that is going on
                continue
            nbytes += 0 if path.is_dir() else stat.st_size
            touched = max(touched, stat.st_mtime)
    return Leftover(target, folders, nbytes, max(time.time() - touched, 0.0))
