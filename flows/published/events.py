"""The events of an output: published, discarded, restored, waiting, refused; the id is made of what each is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

from prefect.events import Event, RelatedResource, Resource

from flows.published.assets import asset_events
from tasks.job.publication import Publication, Train, compute_event_id, output_root, read_publication, version_name
from tasks.job.request import output_slug
from tasks.storage.discarded import DiscardMark
from tasks.storage.own_files import VERSION

What = Literal["published", "backfilled", "discarded", "restored", "waiting", "refused"]


def output_event(what: What, folder: Path, identity: tuple[str, ...], payload: Mapping[str, Any]) -> Event:
    """Return the event `rowmill.output.<what>` of the output, or version, in a folder.

    `identity` is what tells this event from others of its kind: the same identity makes the same id. `run` in the
    payload is the flow run that the event belongs to.
    """
    root = output_root(folder)
    run = payload.get("run")
    of_run = {"prefect.resource.id": f"prefect.flow-run.{run}", "prefect.resource.role": "flow-run"}
    labels = {
        "prefect.resource.id": f"rowmill.output.{output_slug(root)}",
        "prefect.resource.name": str(root),
        "rowmill.version": version_name(folder),
    }
    if payload.get("train") in get_args(Train):
        labels["rowmill.train"] = str(payload["train"])
    return Event(
        id=compute_event_id(what, *identity),
        event=f"rowmill.output.{what}",
        resource=Resource(labels),
        related=[RelatedResource(of_run)] if run else [],
        payload={"output": str(root), **payload},
    )


def is_event_of(target: Path, event: Event) -> bool:
    """Tell whether an event that was noted next to an output is one of rowmill about this output.

    Others may be able to write such a note, and the event is sent with the rights of whoever runs a command here.
    """
    what = event.event.removeprefix("rowmill.output.")
    payload = event.payload
    version = str(event.resource.get("rowmill.version") or "")
    folder = target / version if VERSION.fullmatch(version) else target
    if what not in get_args(What) or not isinstance(payload.get("run"), str | None):
        return False
    ours = output_event(cast(What, what), folder, (), payload)
    return (event.event, event.resource, event.related) == (ours.event, ours.resource, ours.related) and (
        payload.get("output") == str(target)
    )


def make_published_events(folder: Path, publication: Publication) -> list[Event]:
    """Return the events of the publication of an output, in the order in which they are sent."""
    text = f"{folder} is published: {publication.rows:,} rows in {publication.files:,} files"
    payload = {"text": text, **publication.payload(folder)}
    return [*asset_events(folder, publication), output_event("published", folder, (publication.id,), payload)]


def make_backfilled_event(folder: Path, publication: Publication) -> Event:
    """Return the event of the newest output of a backfill whose nights have started no training."""
    text = f"a backfill of {output_root(folder)} is complete: {folder} is its newest output"
    payload = {"text": text, **publication.payload(folder), "train": "now"}
    return output_event("backfilled", folder, (publication.id,), payload)


def make_discarded_event(folder: Path, mark: DiscardMark) -> Event:
    """Return the event of an output that was taken back."""
    publication = read_publication(folder)
    payload = {
        "text": f"{folder} was discarded by {mark.who}{f': {mark.why}' if mark.why else ''}",
        "path": str(folder),
        "version": version_name(folder),
        "who": mark.who,
        "when": mark.when,
        "why": mark.why,
        "manifest": publication.manifest if publication else None,
    }
    return output_event("discarded", folder, (str(folder), mark.when), payload)


def make_restored_event(folder: Path, mark: DiscardMark, who: str) -> Event:
    """Return the event of an output that was taken back and is brought back."""
    taken_back = make_discarded_event(folder, mark).payload
    payload = {**taken_back, "text": f"{folder} was brought back by {who}", "who": who, "discarded_at": mark.when}
    return output_event("restored", folder, (str(folder), mark.when), payload)
