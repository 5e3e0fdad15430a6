"""What `_manifest.json` of an output on an object store says: which of the prefixes beside it are its versions.

An output on an object store is never renamed. Each version is written under a prefix of its own, with a manifest of its
own; then one conditional put of this document publishes it. Readers trust the document alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tasks.core.plan import File
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError
from tasks.storage.documents import Count, Number, dump_document, make_damage_error, parse_document
from tasks.storage.own_files import MANIFEST, VERSION
from tasks.storage.store import MissingFileError, Store

FORMAT = 1
LOCK = "_lock.json"
OUTBOX_OBJECT = "_outbox.json"  # events that the Prefect server has not heard of yet
PREFIX = re.compile(r"(?P<name>v\d+|data)-[0-9a-f]{8}")  # of a version, or of an output without versions


def is_own(name: str) -> bool:
    """Whether a name beside the versions is that of the pointer, the lock, a probe of the clock, or the outbox."""
    return name in (MANIFEST, LOCK, OUTBOX_OBJECT) or name.startswith(f"{LOCK}.")


@dataclass(frozen=True)
class Entry:
    """A version: its name, "" of an output without versions, and the prefix of its files."""

    name: str
    prefix: str


@dataclass(frozen=True)
class Replaced:
    """A prefix that is not published any more; its files stay for their readers until a second since 1970."""

    prefix: str
    until: Count


@dataclass(frozen=True)
class Pointer:
    """The versions of an output, the oldest first.

    `latest` is the version that readers take; `owner` names the run that wrote the document, so that each write has
    bytes of its own; `generation` rises whenever a run takes the lock. `removed` is the content of `_removed.json`.
    """

    generation: Count
    owner: str = ""
    versions: tuple[Entry, ...] = ()
    latest: str = ""
    replaced: tuple[Replaced, ...] = ()
    removed: dict[str, Any] = field(default_factory=dict)
    pointer: Number = FORMAT

    @property
    def current(self) -> Entry | None:
        """The version that readers take; None before the first one."""
        named = [entry for entry in self.versions if entry.name == self.latest]
        return named[0] if named else None

    def find_prefix(self, name: str) -> str | None:
        return next((entry.prefix for entry in self.versions if entry.name == name), None)

    @property
    def prefixes(self) -> set[str]:
        """All prefixes that it names."""
        return {entry.prefix for entry in self.versions} | {one.prefix for one in self.replaced}

    def with_version(self, entry: Entry, until: int) -> Pointer:
        """Add a version and let readers take it; one of the same name, of an output without versions, is replaced."""
        same = [Replaced(one.prefix, until) for one in self.versions if one.name == entry.name]
        others = [one for one in self.versions if one.name != entry.name]
        return replace(self, versions=(*others, entry), latest=entry.name, replaced=(*self.replaced, *same))

    def encode(self) -> bytes:
        return json.dumps(dump_document(self), indent=1).encode()


def read_pointer(store: Store, root: str) -> tuple[Pointer, File] | None:
    """The pointer of an output and its file; None where no output is, or one that was copied there.

    A DataError for one that is damaged, or of a newer rowmill.
    """
    path = f"{root}/{MANIFEST}"
    try:
        file, content = store.read(path)
    except MissingFileError:
        return None
    document = _parse(content)
    if "pointer" not in document:
        return None
    if isinstance(document["pointer"], int) and document["pointer"] > FORMAT:
        raise DataError(
            f"the output has format {document['pointer']}, this version reads up to {FORMAT}",
            where=path,
            do="upgrade rowmill",
        )
    pointer = parse_document(Pointer, document, path)
    _check_names(pointer, path)
    return pointer, file


def _check_names(pointer: Pointer, path: str) -> None:
    """A DataError for a prefix that is not one of rowmill's: files below it are read, and removed."""
    for prefix in pointer.prefixes:
        if not PREFIX.fullmatch(prefix):
            raise make_damage_error(path, "versions", f"{prefix[:100]!r} is not a prefix of a version")
    for entry in pointer.versions:
        if entry.name and not VERSION.fullmatch(entry.name):
            raise make_damage_error(path, "versions", f"{entry.name[:100]!r} is not a version")


def name_urls(text: str, folder: str, url: str, prefixes: Mapping[str, str]) -> str:
    """A text with URLs in place of the paths of a copy of an output; `prefixes` are those of its versions, by name.

    Of an output without versions, the URL is that of the output, and those of its files have the prefix.

    >>> name_urls("/c/v0001/a and /c/v0002", "/c", "s3://shop/out", {"v0001": "v0001-3f2a9c10"})
    's3://shop/out/v0001-3f2a9c10/a and s3://shop/out/v0002'
    """
    for name, prefix in prefixes.items():
        if name:
            text = re.sub(rf"{re.escape(folder)}/{name}\b", f"{url}/{prefix}", text)
        else:
            text = text.replace(f"{folder}/", f"{url}/{prefix}/")
    return text.replace(folder, url)


def _parse(content: bytes) -> JsonObject:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
