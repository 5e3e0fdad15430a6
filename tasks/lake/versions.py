"""Published versions of an output as files of a table: which are to be added, and what a table is told of each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.dtypes import plain_type
from tasks.core.plan import File
from tasks.core.settings import Output
from tasks.storage.documents import DIGEST
from tasks.storage.output import PublishedOutput
from tasks.storage.output_mirror import address_of, place_of, store_of
from tasks.storage.own_files import versions_of


@dataclass(frozen=True)
class Version:
    """A published version: its folder, the digest of its manifest, and the paths of its parts with rows from there."""

    folder: Path
    digest: str
    parts: tuple[str, ...]

    @property
    def note(self) -> dict[str, str]:
        """What the table keeps of it with the snapshot that adds it."""
        return {
            "rowmill.manifest": self.digest,
            "rowmill.output": self.output,
            "rowmill.version": self.folder.name,
        }

    @property
    def output(self) -> str:
        """The output, by its path or URL."""
        return address_of(self.folder.parent)

    def path_of(self, part: str) -> str:
        """The path or URL of a part."""
        return f"{place_of(self.folder)}/{part}"

    def stat(self, part: str) -> File:
        """A part as it is where it lies."""
        return store_of(self.folder).stat(self.path_of(part))

    def open(self, part: str) -> BinaryIO:
        """Open a part where it lies."""
        return store_of(self.folder).open(self.path_of(part))


class Table(Protocol):
    """A table that versions of an output are added to. `where` of errors is the key of the job that names it."""

    def check(self, schema: pa.Schema) -> None:
        """A JobError where the table cannot get files with these columns; nothing is changed."""
        ...

    def has(self, version: Version) -> bool:
        """Whether the version was added."""
        ...

    def add(self, version: Version) -> str:
        """Add a version as one snapshot, once; returns what names the snapshot. The table is made if it is missing.

        A TransientError if other writers are faster each time.
        """
        ...


def read_version(folder: Path) -> Version:
    """Read the version in a folder."""
    manifest = PublishedOutput(folder).manifest
    parts = tuple(str(part["path"]) for part in manifest["parts"] if part["rows"])
    return Version(folder, str(manifest[DIGEST]), parts)


def list_pending(root: Path, output: Output, has: Callable[[Version], bool]) -> list[Version]:
    """List the versions of an output that were written for its table and are not in it, the oldest first.

    A run that was cut off after it had published, or whose table could not be written, leaves one. Those before a
    version that the table has are not looked at: they were added before it.
    """
    pending = []
    for folder in reversed(versions_of(root)):
        known = PublishedOutput(folder)
        if known.is_discarded or known.manifest.get("output", {}).get(output.table) != output.table_name:
            continue
        version = read_version(folder)
        if has(version):
            break
        pending.append(version)
    return pending[::-1]


def output_id(version: Version) -> str:
    """Name the output of a version in 16 characters."""
    return hashlib.sha256(version.output.encode()).hexdigest()[:16]


def read_columns(part: Path | BinaryIO) -> pa.Schema:
    """Read the columns of a part, in the types that stand for all encodings of their values."""
    schema = pq.read_schema(part)
    return pa.schema([pa.field(column.name, plain_type(column.type)) for column in schema])
