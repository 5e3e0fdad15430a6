"""Outputs among the files of a prefix: of one with versions the newest counts, and files are those of the manifest.

What a listing has says which folders are outputs; without one nothing more is read. `tasks.storage.files` does the same
for folders of this host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tasks.core.plan import File
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError
from tasks.storage.discarded import make_none_left_error, warn_of
from tasks.storage.output_pointer import PREFIX, read_pointer
from tasks.storage.own_files import DISCARDED, FITTED, LATEST, MANIFEST, SPLITS, VERSION
from tasks.storage.store import Store

AT_ONCE = 16  # manifests that are read


def choose_published(store: Store, folder: str, files: Sequence[File]) -> list[File]:
    """Leave out the older versions of outputs among the files below a folder.

    A DataError for a `_latest` that names no version, for an output whose good versions are all discarded, and for one
    whose files are not those that its manifest names, by name and size. A warning for the folder of a discarded output.
    """
    chosen = _choose_pointed(store, _choose_newest(store, files))
    if any(file.path == f"{folder}/{DISCARDED}" for file in files):
        warn_of(folder)
    _check_manifests(store, chosen)
    return chosen


def make_difference_error(folder: str, wrong: Sequence[str], named: str = "") -> DataError:
    """The error for an output whose files are not those of its manifest; `named`: advice on files that are too many."""
    return DataError(
        "an output is not as its manifest says",
        where=folder,
        why="; ".join(wrong[:5]),
        do=f"{named}see all that is damaged: rowmill verify {folder}",
    )


def make_latest_error(folder: str, name: str) -> DataError:
    return DataError(
        f"{LATEST} names no version of this output",
        where=f"{folder}/{LATEST}",
        why=f"it says {name[:100]!r}",
        do=f"name a version, such as {folder}/v0001, or all of them: {folder}/v*",
    )


def _choose_newest(store: Store, files: Sequence[File]) -> list[File]:
    chosen = list(files)
    paths = {file.path for file in files}
    for latest in files:
        output, _, base = latest.path.rpartition("/")
        if base != LATEST:
            continue
        with store.open(latest.path, latest) as opened:
            name = os.fsdecode(opened.read(1000).strip())
        newest = [file for file in chosen if file.path.startswith(f"{output}/{name}/")]
        if not name or "/" in name or not newest:
            if any(_is_of_version(path, output) for path in paths):
                raise make_latest_error(output, name)
            continue  # of another program
        if f"{output}/{name}/{DISCARDED}" in paths:
            raise make_none_left_error(output, f"{output}/{name}")
        chosen = [file for file in chosen if not file.path.startswith(f"{output}/")] + newest
    return chosen


def _choose_pointed(store: Store, files: Sequence[File]) -> list[File]:
    """Of outputs that were written to the store, the version that readers take, by what their pointer says."""
    chosen = list(files)
    prefixes = {file.path.rpartition("/")[0] for file in files if file.path.endswith(f"/{MANIFEST}")}
    around = {prefix.rpartition("/")[0] for prefix in prefixes if PREFIX.fullmatch(prefix.rpartition("/")[2])}
    for output in sorted(around & prefixes):  # the pointer itself lies there
        pointed = read_pointer(store, output)
        if pointed is None:
            continue
        version = pointed[0].current
        newest = [file for file in chosen if version and file.path.startswith(f"{output}/{version.prefix}/")]
        if version and any(file.path == f"{output}/{version.prefix}/{DISCARDED}" for file in newest):
            raise make_none_left_error(output, f"{output}/{version.name}".rstrip("/"))
        chosen = [file for file in chosen if not file.path.startswith(f"{output}/")] + newest
    return chosen


def find_version(store: Store, path: str) -> str | None:
    """The prefix of a version that was written to the store, by the URL with its name: `OUT/v0003`, `OUT/v0003/train`;
    None for any other path."""
    above, _, name = path.rpartition("/")
    inside = ""
    if name in SPLITS:
        inside = f"/{name}"
        above, _, name = above.rpartition("/")
    if not VERSION.fullmatch(name):
        return None
    pointed = read_pointer(store, above)
    prefix = pointed[0].find_prefix(name) if pointed else None
    return f"{above}/{prefix}{inside}" if prefix else None


def _is_of_version(path: str, output: str) -> bool:
    """Whether a file says that a folder in an output is a version of it."""
    if not path.startswith(f"{output}/"):
        return False
    version, _, name = path[len(output) + 1 :].partition("/")
    return bool(VERSION.fullmatch(version)) and name in (MANIFEST, f"{SPLITS[0]}/{MANIFEST}", FITTED)


def _check_manifests(store: Store, files: Sequence[File]) -> None:
    manifests = [file for file in files if file.path.endswith(f"/{MANIFEST}")]
    if not manifests:
        return
    with ThreadPoolExecutor(AT_ONCE) as threads:
        contents = list(threads.map(lambda file: _read(store, file), manifests))
    outputs = {file.path.rpartition("/")[0]: content for file, content in zip(manifests, contents, strict=True)}
    sizes: dict[str, dict[str, int]] = {output: {} for output in outputs}
    for file in files:
        output = next((around for around in _list_folders_around(file.path) if around in outputs), None)
        if output is not None:
            sizes[output][file.path[len(output) + 1 :]] = file.size
    for output, content in outputs.items():
        if isinstance(parts := content.get("parts"), list) and (wrong := [*_compare(parts, sizes[output])]):
            raise make_difference_error(output, wrong)


def _read(store: Store, file: File) -> JsonObject:
    with store.open(file.path, file) as opened:
        try:
            content = json.loads(opened.read())
        except (ValueError, RecursionError):
            raise DataError(
                f"{MANIFEST} is damaged",
                where=file.path,
                why="it is not JSON: which files are of this output is not known",
                do="restore the folder from a copy, or make it again",
            ) from None
    return content if isinstance(content, dict) else {}


def _list_folders_around(path: str) -> Iterator[str]:
    """The folders around a file, the innermost first."""
    while "/" in path and not path.endswith(":/"):
        path = path.rpartition("/")[0]
        yield path


def _compare(parts: Sequence[JsonObject], sizes: dict[str, int]) -> Iterator[str]:
    """Sentences on how the files of an output, by their paths in it, differ from the parts of its manifest."""
    known = {part["path"]: part.get("bytes") for part in parts}
    for name, nbytes in known.items():
        if name not in sizes:
            yield f"{name} is missing"
        elif nbytes not in (None, sizes[name]):
            yield f"{name} has {sizes[name]:,} bytes, the manifest says {nbytes:,}"
    for name in sizes:
        if name not in known and not any(part.startswith(("_", ".")) for part in name.split("/")):
            yield f"{name} is not in the manifest"
