"""Tell the server of new complete files in a folder or prefix, so that a deployment runs on exactly these."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow, get_client, get_run_logger
from prefect.client.schemas.filters import FlowRunFilter
from prefect.context import FlowRunContext
from prefect.events import Event, RelatedResource, Resource
from prefect.events.clients import get_events_client
from prefect.states import Cancelled

from flows.deployed import enter_folder
from tasks.allowed import check_path
from tasks.arrivals import Arrival, grouped, load_seen, look, marked, save_seen
from tasks.errors import JobError
from tasks.files import expand, is_remote, local_path
from tasks.plan import File
from tasks.secrets import storage

ARRIVED, NOTHING = "millrace.data.arrived", "there is no input"
NAMESPACE = uuid.UUID("6d696c6c-7261-4365-8000-64617461696e")


@flow(name="watch-source", persist_result=False)
def watch_source(
    path: str,
    settle: float = 30,
    marker: str | None = None,
    storage_options: str | None = None,
    state: str | None = None,
) -> list[str]:
    """Look once for new complete files below a folder or prefix; returns them after the server has heard of them.

    An event `millrace.data.arrived` per folder directly in `path` (and one for `path` itself) has the payload
    {folder, paths, files, bytes}. A look that is cut off before its note is written is told again, as the same event.

    Args:
        path: folder or fsspec URL; names that begin with _ or . do not count
        settle: seconds for which a file must have kept its size and time of change; one that still grows is not told
        marker: name of a file, such as _SUCCESS, without which nothing of a folder (or of those in it) is complete
        storage_options: for URLs, a name; the options are the JSON in the variable MILLRACE_STORAGE_<NAME>
        state: file that notes what has been seen; in .millrace/ of the current folder if left out
    """
    log = get_run_logger()
    enter_folder()
    _cancel_late_looks()
    check_path(path, "path")
    root = path.rstrip("/") if is_remote(path) else local_path(path)
    note = Path(state or f".millrace/seen-{hashlib.sha256(root.encode()).hexdigest()[:16]}.json").absolute()
    check_path(note, "state")
    options = storage(storage_options)
    try:
        files = expand(root, options)
    except JobError as error:
        if error.what != NOTHING:
            raise
        log.info("nothing is there yet: %s", error)
        return []  # and nothing is forgotten: the folder may be a mount that is away
    seen = load_seen(note)
    if marker:
        files, settle = marked(files, _root_of(files, root, options), marker, options), 0
    new, seen = look(files, seen, time.time(), settle)
    arrivals = list(grouped(new, _root_of(new, root, options)))
    asyncio.run(_tell(arrivals, {file.path: file for file in new}))
    save_seen(note, seen)
    for arrival in arrivals:
        log.info("%s new file(s) in %s", len(arrival.paths), arrival.folder)
    log.info("%s file(s) there, %s new and complete", len(files), len(new))
    return [file.path for file in new]


def _root_of(files: Sequence[File], root: str, options: Mapping[str, Any]) -> str:
    """The watched folder as the paths of its files spell it: a file system may write a URL in another way."""
    if not is_remote(root) or not files or files[0].path.startswith(root):
        return root
    import fsspec

    fs, name = fsspec.core.url_to_fs(root, **options)
    return str(fs.unstrip_protocol(name)).rstrip("/")


async def _tell(arrivals: Sequence[Arrival], files: dict[str, File]) -> None:
    """Send the events and wait until the server has them."""
    if not arrivals:
        return
    async with get_events_client(checkpoint_every=1) as events:
        for arrival in arrivals:
            await events.emit(event_of(arrival, files))


def event_of(arrival: Arrival, files: dict[str, File]) -> Event:
    """The event of an arrival; its id is made from the files, so that it is the same when it is told again."""
    names = [f"{path}:{files[path].size}:{files[path].mtime}" for path in arrival.paths]
    payload = {"folder": arrival.folder, "paths": arrival.paths, "files": len(arrival.paths), "bytes": arrival.bytes}
    resource = {"prefect.resource.id": f"millrace.source.{arrival.folder}", "prefect.resource.name": arrival.folder}
    return Event(
        id=uuid.uuid5(NAMESPACE, "\n".join(names)),
        event=ARRIVED,
        resource=Resource(resource),
        related=_this_run(),
        payload=payload,
    )


def _this_run() -> list[RelatedResource]:
    run = _flow_run()
    if run is None:
        return []
    return [RelatedResource({"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.role": "flow-run"})]


def _flow_run() -> Any:
    context = FlowRunContext.get()
    return context.flow_run if context else None


def _cancel_late_looks() -> None:
    """Looks that came due while the host was busy would all see the same: this one is for all of them."""
    run = _flow_run()
    if run is None or run.deployment_id is None:
        return
    late = {
        "deployment_id": {"any_": [run.deployment_id]},
        "state": {"name": {"any_": ["Late", "Scheduled", "AwaitingConcurrencySlot"]}},
        "expected_start_time": {"before_": datetime.now(UTC)},
        "id": {"not_any_": [run.id]},
    }
    with get_client(sync_client=True) as client:
        for other in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(late)):
            client.set_flow_run_state(other.id, Cancelled(message="a later look was for this one, too"))
