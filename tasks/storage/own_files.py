"""Decides which files of a folder rowmill wrote: nothing else is ever replaced or removed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from tasks.core.strict_json import JsonObject
from tasks.storage.checksum import digest as digest_of
from tasks.storage.documents import make_damage_error
from tasks.storage.signature import is_signed

MANIFEST = "_manifest.json"
WORKFLOW = "_workflow"
FITTED = "workflow.json"  # a fitted workflow has it instead of a manifest, written last as well
# of Parquet, by output.metadata_file
METADATA = "_metadata"
COMMON_METADATA = "_common_metadata"
STATE = "state.json"
# next to it: for a refit, and what the last one changed
PARTIALS = "partials.json"
CHANGES = "changes.json"
GATE = "_gate.json"  # the verdicts of the gate, beside the manifest or in a fitted workflow
PROFILE = "_profile.json"  # the profile of all rows that the run has read
REPORTS = ("_report.html", "_performance.html")
LATEST = "_latest"  # in an output of several versions: the name of the newest one
REMOVED = "_removed.json"  # beside it: the nights of versions that output.keep_versions has removed
DISCARDED = "_discarded.json"  # marks an output that `rowmill discard` has taken back
PUBLISHED = "_published.json"  # beside the manifest: what others hear of the output, and whether they have heard it
SPLITS = ("train", "valid", "test")
ASKS = "asks.json"  # beside an output, one of whose nights waits for an answer in a scratch folder: which one
OUTBOX = "outbox.json"  # beside an output: events that the Prefect server has not heard of yet
NOTES = {MANIFEST, GATE, PROFILE, DISCARDED, PUBLISHED}  # say something of an output, and are no parts
OWN = {MANIFEST, WORKFLOW, LATEST, REMOVED, DISCARDED, PUBLISHED, GATE, PROFILE, *REPORTS, METADATA, COMMON_METADATA}
VERSION = re.compile(r"v\d+")
NO_OBJECTS: Mapping[str, int] = MappingProxyType({})
log = logging.getLogger("rowmill")
TEMPORARY = r"(\.[0-9a-f]{8,32})?(\.tmp)*"  # what is being written has such an end
# Files of the work in progress, by their path in its folder.
WORK = re.compile(
    r"(lock(\..+)?|\.(rowmill-)?probe-[^/]+"
    rf"|((swap|target|plan|night|question|asks|outbox|gate|progress|exchange(train|valid|test)?)\.json"
    rf"|diagram-[0-9a-f]+\.svg){TEMPORARY}"
    rf"|(state|workflow|base){TEMPORARY}/((state|manifest|workflow|partials|changes|of_night)\.json|README\.md|[^/]+\.vocab)"
    rf"{TEMPORARY}"
    rf"|profile(-[a-z]+)?\.json{TEMPORARY}"
    rf"|exchange/[^/]+/partition-\d+\.(arrow|json){TEMPORARY}"
    r"|(keyed|parsed)(train|valid|test|learn-from)?/block-\d+\.(arrow|tmp)"
    r"|(repeated(train|valid|test|learn-from)?|split-(valid|test))\.(bits|tmp)"
    r"|(repeated(train|valid|test|learn-from)?|split)\.scratch/rows-\d+(\.sides)?\.npz"
    rf"|(repeated(train|valid|test|learn-from)?|split)\.scratch/rowmill-[0-9a-f]+/partition-\d+\.(arrow|json){TEMPORARY}"
    rf"|samples/[a-z_-]+\.json{TEMPORARY}"
    r"|reading/[^/]+"
    r"|fetched/[0-9a-f]{32}(\.marks)?"
    r"|uploads\.jsonl"
    rf"|parts/((train|valid|test)/)?part-\d+\.[a-z]+\.json{TEMPORARY}"
    rf"|new{TEMPORARY}/((train|valid|test)/)?([^/=]+=[^/]*/)*part-\d+\.(parquet|arrow|csv|orc){TEMPORARY}"
    rf"|new{TEMPORARY}/((train|valid|test)/)?(_(manifest|gate|profile|published)\.json|_report\.html|_performance\.html|_metadata"
    rf"|_common_metadata){TEMPORARY}"
    rf"|new{TEMPORARY}/(_workflow/)?(_gate\.json|(workflow|state|partials|changes)\.json|README\.md|[^/]+\.vocab)"
    rf"{TEMPORARY})"
)


@dataclass(frozen=True)
class Known:
    """A file that rowmill wrote, as its manifest describes it: `nbytes` if noted; `finished`, the time in nanoseconds
    of the manifest; `is_same` checks a file that was changed later, None where only the name is known."""

    nbytes: int | None
    finished: int
    is_same: Callable[[Path], bool] | None


def find_description(folder: Path) -> Path | None:
    """The file that says what an output or a fitted workflow is: `_manifest.json`, that of `train`, or `workflow.json`;
    None for any other folder."""
    places = (folder / MANIFEST, folder / SPLITS[0] / MANIFEST, folder / FITTED)
    return next((place for place in places if place.exists()), None)


def output_of(folder: str) -> str | None:
    """The output that a folder is in: itself, or the one around its folders of `partition_on`; None for another."""
    while not os.path.isfile(os.path.join(folder, MANIFEST)):  # noqa: PTH113, PTH118
        folder, name = os.path.split(folder)
        if "=" not in name:
            return None
    return folder


def read_latest(folder: Path) -> str | None:
    """What `_latest` of an output says, as it stands there; None where there is no such file."""
    latest = folder / LATEST
    if not latest.is_file():
        return None
    with latest.open("rb") as file:
        return os.fsdecode(file.read(1000).strip())


def current(folder: Path) -> Path:
    """The folder itself, or the version that its `_latest` names; a DataError where that is not a name in it."""
    name = read_latest(folder)
    if name is None:
        return folder
    if not VERSION.fullmatch(name):
        raise make_damage_error(folder / LATEST, "", f"{name[:100]!r} is not a version in this folder")
    return folder / name


def versions_of(folder: Path) -> list[Path]:
    """The versions in a folder, the oldest first; [] for an output of its own and for a folder that is not there.

    A link is the version that it leads to, as of nights on another disk; one that leads nowhere counts too, so that
    no run goes on without it. A copy of a version under another number does not count.
    """
    if not folder.is_dir():
        return []
    named = [path for path in folder.glob("v*") if VERSION.fullmatch(path.name)]
    versions = list[Path]()
    known = dict[str, Path]()
    for path in sorted(named, key=lambda path: int(path.name[1:])):
        if path.is_dir() or (path.is_symlink() and not path.exists()):
            marks = {os.path.realpath(path), _digest_of_manifest(path)} - {""}
            first = next((known[mark] for mark in marks if mark in known), None)
            if first is None:
                versions.append(path)
                known |= dict.fromkeys(marks, path)
            else:
                _warn_of_copy(path, first)
    return versions


def _digest_of_manifest(version: Path) -> str:
    """The digest that the manifest of a version, or of its train, names; empty where it has none, or is closed."""
    try:
        described = find_description(version)
        if described is None or described.name != MANIFEST:
            return ""
        status = described.stat()
    except OSError:
        return ""
    return _read_cached_digest(described, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=10_000)
def _read_cached_digest(manifest: Path, _changed: int, _size: int, _inode: int) -> str:
    return str(_json(manifest).get("digest", ""))


@lru_cache(maxsize=10_000)
def _warn_of_copy(version: Path, first: Path) -> None:
    """Once in a process."""
    log.warning("%s is a copy of %s, or a link to it: it does not count as a version", version, first.name)


def own_output(target: Path) -> bool:
    """True if the folder has files that rowmill wrote and no others."""
    known = list_expected_files(target)
    return bool(known) and next(strangers(target, known), None) is None


def lacking(root: Path, objects: Mapping[str, int] = NO_OBJECTS) -> list[str]:
    """The files of an output, by their paths in it, that are not there or have another size than its manifest says; no
    byte is read. `objects` are the sizes of its files that lie in an object store, by path."""

    def is_lacking(name: str, known: Known) -> bool:
        is_needed = known.nbytes is not None or name.endswith((".vocab", "state.json"))  # not a report or a README
        path = root / name
        size = path.stat().st_size if path.is_file() else objects.get(name)
        return is_needed and (size is None or known.nbytes not in (None, size))

    return sorted(name for name, known in list_expected_files(root).items() if is_lacking(name, known))


def list_expected_files(root: Path) -> dict[str, Known]:
    """The files that an output, a fitted workflow or a folder of versions should have, by their paths in it."""
    if (root / LATEST).is_file():
        drafts = [
            p.name
            for name in (LATEST, REMOVED)
            for p in root.glob(f"{name}*")
            if re.fullmatch(rf"{re.escape(name)}{TEMPORARY}", p.name)
        ]
        known = {name: Known(None, 0, None) for name in drafts}
        for version in _folders(root):
            if VERSION.fullmatch(version.name):
                known |= _below(version.name, list_expected_files(version))
        return known
    if _is_output(root / SPLITS[0]):
        known = {name: _report(_read_finish_time(root / SPLITS[0] / MANIFEST)) for name in REPORTS}
        known |= _notes_of(root)
        for folder in _folders(root):
            if folder.name in SPLITS:
                known |= _below(folder.name, _of_output(folder))
        return known | _below(WORKFLOW, _of_workflow(root / WORKFLOW))
    if (root / FITTED).is_file():
        return _of_workflow(root) | _notes_of(root)
    return _of_output(root) | _notes_of(root) if _is_output(root) else {}


def _notes_of(root: Path) -> dict[str, Known]:
    """The notes of an output that are younger than the output: that it was announced, that it was taken back."""
    drafts = [
        path.name
        for name in (DISCARDED, PUBLISHED)
        for path in root.glob(f"{name}.*")
        if re.fullmatch(rf"{re.escape(name)}{TEMPORARY}", path.name)
    ]
    return {name: Known(None, 0, None) for name in (DISCARDED, PUBLISHED, *drafts)}


def strangers(root: Path, known: dict[str, Known] | None = None) -> Iterator[str]:
    """The paths in the folder of files, links and empty folders that rowmill did not write, or that were changed."""
    known = list_expected_files(root) if known is None else known
    parents = {str(parent) for name in known for parent in Path(name).parents}
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        for name in sorted(folders):
            path = here / name
            inside = str(path.relative_to(root))
            if path.is_symlink() or (inside not in parents and not any(path.iterdir())):
                yield inside
        for name in sorted(files):
            inside = str((here / name).relative_to(root))
            if inside not in known or not _is_own(here / name, known[inside]):
                yield inside


def choose_notes(paths: Iterable[str]) -> list[str]:
    """Choose, of the paths of files in a published folder, what says something of it: no parts and no reports.

    >>> choose_notes(["_manifest.json", "part-00000.parquet", "_workflow/workflow.json", "_workflow/brand.vocab"])
    ['_manifest.json', '_workflow/workflow.json', '_workflow/brand.vocab']
    """
    every = [PurePosixPath(path) for path in paths]
    fitted = {path.parent for path in every if path.name == FITTED}
    return [str(path) for path in every if path.name in NOTES or path.parent in fitted]


def splits_of(root: Path) -> tuple[str, ...]:
    """The splits of an output in the order of `SPLITS`, as the manifest of train names them; train and valid where it
    names none."""
    named = _json(root / SPLITS[0] / MANIFEST).get("splits")
    return tuple(name for name in SPLITS if name in (named if isinstance(named, list) else SPLITS[:2]))


def remove_output(root: Path) -> list[str]:
    """Remove the files that rowmill wrote, the manifest last; returns the paths of all others, which stay."""
    known = list_expected_files(root)
    foreign = list(strangers(root, known))
    for name in sorted(
        known.keys() - {*foreign}, key=lambda name: (Path(name).name in (MANIFEST, FITTED, LATEST), name)
    ):
        with contextlib.suppress(OSError):
            (root / name).unlink()
    remove_empty(root)
    return foreign


def remove_work(root: Path, spare: Callable[[str], bool] = lambda path: False) -> list[str]:
    """Remove the files of work in progress, except where `spare(path)`; returns the paths of files that rowmill did
    not write, which stay."""
    foreign: list[str] = []
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        for name in [*files, *(n for n in folders if (here / n).is_symlink())]:
            inside = str((here / name).relative_to(root))
            if not WORK.fullmatch(inside):
                foreign.append(inside)
            elif not spare(inside):
                with contextlib.suppress(OSError):
                    (here / name).unlink()
    remove_empty(root)
    return foreign


def foreign_work(root: Path) -> list[str]:
    """The paths of files in a folder of work in progress that rowmill did not write."""
    paths = [path for path in root.rglob("*") if path.is_symlink() or not path.is_dir()]
    return sorted(name for path in paths if not WORK.fullmatch(name := str(path.relative_to(root))))


def remove_empty(root: Path) -> None:
    """Remove the folder and the folders in it, as far as they have no files."""
    for folder, _, _ in os.walk(root, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())


def _below(name: str, known: dict[str, Known]) -> dict[str, Known]:
    return {f"{name}/{path}": entry for path, entry in known.items()}


def _is_output(folder: Path) -> bool:
    return isinstance(_json(folder / MANIFEST).get("parts"), list)


def _json(path: Path) -> JsonObject:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _read_finish_time(note: Path) -> int:
    try:
        return note.stat().st_mtime_ns
    except OSError:
        return 0


def _of_output(folder: Path) -> dict[str, Known]:
    """The files of an output: parts, footers, reports, the manifest itself and the fitted workflow in it."""
    data = _json(folder / MANIFEST)
    finished = _read_finish_time(folder / MANIFEST)
    known = {MANIFEST: Known(None, finished, None), **{name: _report(finished) for name in REPORTS}}
    known[GATE] = Known(None, finished, _is_our_gate)
    for part in [*_records(data, "parts"), *_records(data, "footers"), *_records(data, "profile")]:
        nbytes = part.get("bytes")
        digest = part.get("xxh3_128")
        same = (lambda path, digest=digest: digest_of(path) == digest) if isinstance(digest, str) else None
        known[part["path"]] = Known(nbytes if isinstance(nbytes, int) else None, finished, same)
    return known | _below(WORKFLOW, _of_workflow(folder / WORKFLOW))


def _records(data: JsonObject, section: str) -> list[JsonObject]:
    records = data.get(section)
    if not isinstance(records, list):
        return []
    return [r for r in records if isinstance(r, dict) and isinstance(r.get("path"), str)]


def _of_workflow(folder: Path) -> dict[str, Known]:
    """The files of a fitted workflow: the graph, the state, its tables and the README."""
    finished = _read_finish_time(folder / FITTED)
    noted = _json(folder / FITTED)
    digest = noted.get("state")
    readme = noted.get("readme")
    known = {
        FITTED: Known(None, finished, None),
        GATE: Known(None, finished, _is_our_gate),
        "README.md": Known(None, finished, partial(_has_sha256, readme) if readme else None),
        STATE: Known(None, finished, partial(_has_sha256, digest) if digest else None),
    }
    state = _json(folder / STATE)
    tables = [*tables_of([state, noted])]
    for name in (PARTIALS, CHANGES):
        entry = state.get(name.removesuffix(".json"))
        if isinstance(entry, dict) and entry.get("file") == name and isinstance(entry.get("sha256"), str):
            known[name] = Known(None, finished, partial(_has_sha256, entry["sha256"]))
            tables += tables_of(_json(folder / name))
    for table, sha256 in tables:
        known[table] = Known(None, finished, partial(_has_sha256, sha256))
    return known if (folder / FITTED).is_file() and not folder.is_symlink() else {}


def _has_sha256(sha256: str, path: Path) -> bool:
    return _sha256(path) == sha256


def tables_of(value: object) -> Iterator[tuple[str, str]]:
    """(name, sha256) of every table that JSON of rowmill names, at any depth."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("table"), str) and isinstance(value.get("sha256"), str):
                yield value["table"], value["sha256"]
            waiting += value.values()
        elif isinstance(value, list):
            waiting += [item for item in value if isinstance(item, (dict, list))]


def _report(finished: int) -> Known:
    return Known(None, finished, _is_our_report)


def _is_own(path: Path, known: Known) -> bool:
    """True if the file is as rowmill wrote it. Reads its bytes only if it was changed after its manifest: by somebody
    else, or because the folder is a copy."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or (known.nbytes is not None and status.st_size != known.nbytes):
            return False
        return known.is_same is None or status.st_mtime_ns <= known.finished or known.is_same(path)
    except OSError:
        return False


def _is_our_report(path: Path) -> bool:
    """Whether a report is as it was written; `rowmill report` writes a missing one, after the manifest."""
    with path.open("rb") as file:
        return is_signed(file)


def _is_our_gate(path: Path) -> bool:
    return isinstance(_json(path).get("verdicts"), dict)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
