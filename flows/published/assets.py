"""The assets of a publication, as events of Prefect: the output and its splits, and what they were made of.

Prefect's own decorator sends them when a task ends, before the output has its name; these are sent from the note of the
output like its other events, so that they are counted once, too.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from prefect.assets import Asset, AssetProperties
from prefect.context import AssetContext
from prefect.events import Event, RelatedResource, Resource

from infra.orchestration.server import flow_run_url, ui_url
from tasks.core.markdown import escape_markdown
from tasks.job.publication import Publication, compute_event_id, output_root
from tasks.storage.files import is_remote
from tasks.storage.output_mirror import address_of
from tasks.storage.own_files import REPORTS

REFERENCED = "prefect.asset.referenced"
MATERIALIZED = "prefect.asset.materialization.succeeded"
REFUSED = re.compile(r"[\s\0#?&%\"'<>\[\]{}|\\^`]")  # characters that Prefect takes in no key of an asset
LONGEST = 512  # characters of a key
MOST_RELATED = 90  # upstream assets of an event, of 100 related resources


def asset_key(path: str) -> str:
    """Return the key of the asset at a path: its URI; with a digest where Prefect refuses characters of it.

    >>> asset_key("/data/out"), asset_key("s3://shop/in/*.csv"), asset_key("/data/my out")
    ('file:///data/out', 's3://shop/in/*.csv', 'file:///data/my_out-795b52')
    """
    uri = path if is_remote(path) else f"file://{os.path.abspath(path)}"  # noqa: PTH100 - nothing is looked up
    plain = REFUSED.sub("_", uri)
    if plain == uri and len(uri) <= LONGEST:
        return uri
    return f"{plain[: LONGEST - 7]}-{hashlib.sha256(uri.encode()).hexdigest()[:6]}"


def asset_events(folder: Path, publication: Publication) -> list[Event]:
    """Return the events of the assets of a publication: those that are referenced, then those that are materialized.

    The output has the facts of the publication as its metadata, a split its own ones.
    """
    root = output_root(folder)
    upstream = [Asset(key=key) for key in dict.fromkeys(map(asset_key, publication.upstream))][:MOST_RELATED]
    related = [
        *map(AssetContext.asset_as_related, upstream),
        AssetContext.related_materialized_by("rowmill"),
        {"prefect.resource.id": f"prefect.flow-run.{publication.run}", "prefect.resource.role": "flow-run"},
    ]
    whole = publication.payload(folder)
    splits = whole.pop("splits")
    facts = {"": whole, **{split["name"]: {**whole, **split} for split in splits if split["name"]}}

    def event(name: str, asset: Asset, resources: list[dict[str, str]], payload: dict[str, Any]) -> Event:
        return Event(
            id=compute_event_id(name, publication.id, asset.key),
            event=name,
            payload=payload,
            resource=Resource(AssetContext.asset_as_resource(asset)),
            related=[RelatedResource(one) for one in resources],
        )

    referenced = [event(REFERENCED, asset, related[-1:], {}) for asset in upstream]
    made_of = [
        event(MATERIALIZED, _asset(address_of(root / name), folder / name, payload), related, payload)
        for name, payload in facts.items()
    ]
    return [*referenced, *made_of]


def _asset(path: str, folder: Path, facts: dict[str, Any]) -> Asset:
    """Return the asset at a path, described by the facts of what was published in a folder."""
    page = flow_run_url(ui_url(), facts["run"])
    links = [f"[run]({page})"]
    report = next((one for one in (folder / REPORTS[0], folder.parent / REPORTS[0]) if one.is_file()), None)
    if report:
        links.append(f"report: rowmill report {escape_markdown(address_of(report.parent))} --open")
    what = " ".join(filter(None, (facts["version"], f"of {facts['date']}" if facts["date"] else "")))
    output = escape_markdown(what or "The output")
    text = f"{output}: {facts['rows']:,} rows in {facts['files']:,} files. {', '.join(links)}"
    name = "/".join(path.split("/")[-2:])
    return Asset(key=asset_key(path), properties=AssetProperties(name=name, url=page, description=text[:2500]))
