"""The events of an output, and the ids by which the server counts each of them once.

Events of a publication, a backfill, a discard and a restore are made here. Those of a question of the gate (waiting,
refused, discarded) are noted in the outbox, which makes them with `make_output_event`. An event that is made again has
the same id: however often it is sent, the server counts it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

from prefect.events import Event, RelatedResource, Resource

from flows.published.assets import asset_events
from tasks.job.publication import Publication, Train, compute_event_id, output_root, read_publication, version_name
from tasks.job.request import output_slug
from tasks.storage.discarded import DiscardMark
from tasks.storage.output_mirror import address_of
from tasks.storage.own_files import VERSION

EventKind = Literal["published", "backfilled", "discarded", "restored", "waiting", "refused"]


def make_output_event(kind: EventKind, folder: Path, identity: tuple[str, ...], payload: Mapping[str, Any]) -> Event:
    """Make the event `rowmill.output.<kind>` of the output, or version, in a folder.

    `identity` tells this event from others of its kind: the same identity makes the same id. `run` in the payload is
    the flow run that the event belongs to.
    """
    root = output_root(folder)
    run = payload.get("run")
    run_labels = {"prefect.resource.id": f"prefect.flow-run.{run}", "prefect.resource.role": "flow-run"}
    labels = {
        "prefect.resource.id": f"rowmill.output.{output_slug(address_of(root))}",
        "prefect.resource.name": address_of(root),
        "rowmill.version": version_name(folder),
    }
    if payload.get("train") in get_args(Train):
        labels["rowmill.train"] = str(payload["train"])
    return Event(
        id=compute_event_id(kind, *identity),
        event=f"rowmill.output.{kind}",
        resource=Resource(labels),
        related=[RelatedResource(run_labels)] if run else [],
        payload={"output": address_of(root), **payload},
    )


def is_event_of(target: Path, event: Event) -> bool:
    """Tell whether an event from the outbox of an output is one that rowmill makes about this output.

    Others may be able to write into the outbox, and its events are sent with the rights of whoever runs a command here.
    The events of assets are not among them: they are never noted, but made again from the publication.
    """
    kind = event.event.removeprefix("rowmill.output.")
    payload = event.payload
    version = str(event.resource.get("rowmill.version") or "")
    folder = target / version if VERSION.fullmatch(version) else target
    if kind not in get_args(EventKind) or not isinstance(payload.get("run"), str | None):
        return False
    # The identity is unknown here; it is only in the id, which is not compared.
    ours = make_output_event(cast(EventKind, kind), folder, (), payload)
    return (event.event, event.resource, event.related) == (ours.event, ours.resource, ours.related) and (
        payload.get("output") == address_of(target)
    )


def make_published_events(folder: Path, publication: Publication) -> list[Event]:
    """Make the events of the publication of an output, in the order in which they are sent."""
    text = f"{address_of(folder)} is published: {publication.rows:,} rows in {publication.files:,} files"
    payload = {"text": text, **publication.payload(folder)}
    return [*asset_events(folder, publication), make_output_event("published", folder, (publication.id,), payload)]


def make_backfilled_event(folder: Path, publication: Publication) -> Event:
    """Make the event of the newest output of a backfill whose runs have triggered no training."""
    text = f"a backfill of {address_of(output_root(folder))} is complete: {address_of(folder)} is its newest output"
    payload = {"text": text, **publication.payload(folder), "train": "now"}
    return make_output_event("backfilled", folder, (publication.id,), payload)


def make_discarded_event(folder: Path, mark: DiscardMark) -> Event:
    """Make the event of an output that was discarded."""
    return make_output_event("discarded", folder, (str(folder), mark.when), _make_discard_payload(folder, mark))


def make_restored_event(folder: Path, mark: DiscardMark, who: str) -> Event:
    """Make the event of an output that was discarded and is brought back; `mark` is that of the discard."""
    text = f"{address_of(folder)} was brought back by {who}"
    payload = {**_make_discard_payload(folder, mark), "text": text, "who": who, "discarded_at": mark.when}
    return make_output_event("restored", folder, (str(folder), mark.when), payload)


def _make_discard_payload(folder: Path, mark: DiscardMark) -> dict[str, Any]:
    publication = read_publication(folder)
    return {
        "text": f"{address_of(folder)} was discarded by {mark.who}{f': {mark.why}' if mark.why else ''}",
        "path": address_of(folder),
        "version": version_name(folder),
        "who": mark.who,
        "when": mark.when,
        "why": mark.why,
        "manifest": publication.manifest if publication else None,
    }
