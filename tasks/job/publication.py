"""The note `_published.json` of an output: what others hear of its publication, and whether the server has heard it.

The commit writes the note before its rename, so that an output whose note has no mark waits to be announced. Outputs of
an earlier rowmill have no note, and are never announced.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from tasks.core.strict_json import JsonObject
from tasks.graph.node import side_paths
from tasks.job.request import Request
from tasks.storage.atomic import read_json, write_note
from tasks.storage.documents import DIGEST, Number, dump_document, make_damage_error, parse_document
from tasks.storage.output_mirror import address_of, place_of
from tasks.storage.own_files import CHANGES, PUBLISHED, VERSION, WORKFLOW

Train = Literal["now", "later"]  # when a training starts by itself: at the event of the output, or at a later one
NAMESPACE = uuid.UUID("6d696c6c-7261-4365-8000-7075626c6973")
MOST_UPSTREAM = 50  # paths of a source that are named one by one; Prefect takes 100 related resources in an event


@dataclass(frozen=True)
class SplitFacts:
    """A split of an output ("" for the output itself): rows, bytes and files, and the digest of its manifest."""

    name: str
    rows: int
    nbytes: int
    files: int
    manifest: str


@dataclass(frozen=True)
class Publication:
    """The note of an output on its publication: the id of its event, its facts, and the paths that it was made of.

    `ids_added` counts the ids that a refit appended, None without a base. `sent` is when the Prefect server `server`
    had the events; both are "" before. `train` is `later` for a run of a backfill that starts one training at its
    end, else `now`.
    """

    id: str
    flow: str
    run: str
    created: str
    splits: list[SplitFacts]
    date: str | None
    gate: str | None
    base: str | None
    ids_added: int | None
    upstream: list[str]
    train: Train = "now"
    sent: str = ""
    server: str = ""
    format: Number = 1

    @property
    def rows(self) -> int:
        return sum(split.rows for split in self.splits)

    @property
    def nbytes(self) -> int:
        return sum(split.nbytes for split in self.splits)

    @property
    def files(self) -> int:
        return sum(split.files for split in self.splits)

    @property
    def manifest(self) -> str:
        """The digest of the manifest; with splits that of the first one."""
        return self.splits[0].manifest

    def payload(self, folder: Path) -> JsonObject:
        """Convert the facts to plain values, for the output in a folder."""
        return {
            "output": address_of(output_root(folder)),
            "version": version_name(folder),
            "path": place_of(folder),
            "splits": [
                {
                    "name": one.name,
                    "path": place_of(folder / one.name),
                    "rows": one.rows,
                    "bytes": one.nbytes,
                    "files": one.files,
                    "manifest": one.manifest,
                }
                for one in self.splits
            ],
            "rows": self.rows,
            "bytes": self.nbytes,
            "files": self.files,
            "manifest": self.manifest,
            "date": self.date,
            "created": self.created,
            "gate": self.gate,
            "base": self.base,
            "ids_added": self.ids_added,
            "flow": self.flow,
            "run": self.run,
            "train": self.train,
        }


def output_root(folder: Path) -> Path:
    """Return the output that a published folder belongs to: the folder around a version, else the folder itself."""
    return folder.parent if version_name(folder) else folder


def version_name(folder: Path) -> str:
    """Return the name of a version; "" for an output without versions."""
    return folder.name if VERSION.fullmatch(folder.name) else ""


def compute_event_id(*parts: str) -> uuid.UUID:
    """Compute the id of an event from its facts: equal facts make the same event, which the server counts once."""
    return uuid.uuid5(NAMESPACE, "\n".join(parts))


def write_publication(
    request: Request,
    manifests: Mapping[str, JsonObject],
    upstream: Sequence[str],
    train: Train = "now",
) -> None:
    """Write the note into the new output of a request, by the sealed manifests of its splits; `upstream` are the paths
    that it was made of."""
    new = request.staging.new
    first = next(iter(manifests.values()))
    splits = [
        SplitFacts(
            name, data["rows"]["out"], sum(part["bytes"] for part in data["parts"]), len(data["parts"]), data[DIGEST]
        )
        for name, data in manifests.items()
    ]
    base = address_of(_find_output(request.base.path)) if request.base else None
    publication = Publication(
        id=str(compute_event_id(*(split.manifest for split in splits))),
        flow=request.flow,
        run=str(first["run"]),
        created=str(first["created"]),
        splits=splits,
        date=request.dated.get("date"),
        gate=first.get("gate"),
        base=base,
        ids_added=_count_added_ids(new / WORKFLOW) if base else None,
        upstream=list(dict.fromkeys(upstream)),
        train=train,
    )
    write_note(new / PUBLISHED, dump_document(publication))


def read_publication(folder: Path) -> Publication | None:
    """Read the note of an output; None if it has none. A DataError if the note is damaged."""
    path = folder / PUBLISHED
    content = read_json(path)
    if content is None and not path.exists():
        return None
    publication = parse_document(Publication, content, path)
    if not publication.splits:
        raise make_damage_error(path, "splits", "it names no split, and an output has one at least")
    return publication


def mark_sent(folder: Path, publication: Publication, server: str) -> None:
    """Note that a server has the events of an output."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_note(folder / PUBLISHED, dump_document(replace(publication, sent=now, server=server)))


def _find_output(workflow: str) -> str:
    """Return the output whose fitted workflow is in a folder; the folder itself if `rowmill fit` wrote it."""
    return workflow.removesuffix(f"/{WORKFLOW}")


def _count_added_ids(workflow: Path) -> int:
    changes = read_json(workflow / CHANGES)
    steps = changes.get("steps", {}).values() if isinstance(changes, dict) else ()
    return sum(step["new_size"] - step["old_size"] for step in steps if step.get("mode") == "appended")


def list_paths(request: Request) -> list[str]:
    """List the paths that a request reads: the source, the side tables, and the base or fitted workflow.

    They may contain secrets.
    """
    origin = [address_of(_find_output(request.origin.path))] if request.origin else []
    sources = list_source_paths(request.source.path, request.source.valid)
    return list(map(str, (*sources, *side_paths(request.final), *origin)))


def list_source_paths(*sections: str | list[str] | None) -> list[str]:
    """List the paths of sections of a source; if there are too many files, their folders."""
    paths = [path for one in sections if one for path in ([one] if isinstance(one, str) else one)]
    if len(paths) > MOST_UPSTREAM:
        paths = sorted({path.rpartition("/")[0] or path for path in paths})[:MOST_UPSTREAM]
    return paths
