"""Tell the server of new complete files in a folder or prefix, so that a deployment runs on exactly these."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow, get_client, get_run_logger
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.events import Event, RelatedResource, Resource
from prefect.events.clients import get_events_client
from prefect.states import Cancelled

from flows.job.deployed import check_lasting, enter_folder
from flows.job.run_labels import label_host
from flows.run.run_names import run_name
from tasks.core.plan import File
from tasks.errors import JobError, NoInputError, RowmillError, few
from tasks.sources.arrivals import (
    Arrival,
    data_files,
    group_files,
    is_announced,
    load_seen,
    load_strays,
    look,
    save_seen,
    select_marked_files,
)
from tasks.storage.allowed_roots import check_path
from tasks.storage.credentials import storage
from tasks.storage.files import expand, is_remote, local_folder, local_path
from tasks.storage.stores import open_store

ARRIVED = "rowmill.data.arrived"
# of the ids of events; never change it: by these ids the server recognises files that were announced before
NAMESPACE = uuid.UUID("6d696c6c-7261-4365-8000-64617461696e")
MOST_NAMED = 10  # strays that a line of the log names


@flow(name="watch-source", persist_result=False, flow_run_name=run_name)
def watch_source(
    path: str,
    pattern: str | list[str] | None = None,
    format: str = "auto",
    settle: float = 30,
    marker: str | None = None,
    storage_options: str | None = None,
    state: str | None = None,
    create: bool = False,
) -> Any:
    """Look once for new complete files below a folder or prefix; returns them after the server has heard of them.

    An event `rowmill.data.arrived` per folder directly in `path` (and one for `path` itself) has the payload
    {folder, paths, files, bytes}. A look that is cut off before its note is written sends the same event again.
    What is not data (pattern, format) is named once in the log and not announced. A look that fails is a Failed run;
    the looks after it that fail in the same way are Cancelled ones, which say so.

    Args:
        path: folder or fsspec URL; names that begin with _ or . do not count
        pattern: which files are data, such as "*.csv" or a list of such; by their suffixes if left out
        format: the format of the data, where only its suffixes count; auto takes all that rowmill reads
        settle: seconds for which a file must have kept its size and time of change; until then it still grows
        marker: name of a file, such as _SUCCESS, without which nothing of a folder (or of those in it) is complete
        storage_options: for URLs, a name; the options are the JSON in the variable ROWMILL_STORAGE_<NAME>
        state: file that notes what has been seen; in .rowmill/ of the current folder if left out
        create: make the folder if it is not there; otherwise that is an error
    """
    label_host()
    if state:
        local_folder(state, "the file that notes what has been seen", "state")
    enter_folder()
    _cancel_late_looks()
    check_path(path, "path")
    root = path.rstrip("/") if is_remote(path) else local_path(path)
    digest = hashlib.sha256(root.encode()).hexdigest()[:16]
    state_file = Path(state or f".rowmill/seen-{digest}.json").absolute()
    check_path(state_file, "state")
    check_lasting(state_file, "state")
    failure = state_file.with_name(f"{state_file.name}.failure")
    patterns = [pattern] if isinstance(pattern, str) else pattern or []
    if create and not is_remote(path):
        Path(root).mkdir(parents=True, exist_ok=True)
    try:
        paths = _announce_new_files(root, state_file, patterns, format, settle, marker, storage(storage_options))
    except RowmillError as error:
        if failure.exists() and failure.read_text() == str(error):
            return Cancelled(name="StillFailing", message=f"as the looks before: {error}")
        failure.parent.mkdir(parents=True, exist_ok=True)
        failure.write_text(str(error))
        raise
    failure.unlink(missing_ok=True)
    return paths


def _announce_new_files(
    root: str,
    state_file: Path,
    patterns: list[str],
    format: str,
    settle: float,
    marker: str | None,
    options: Mapping[str, Any],
) -> list[str]:
    """Find the files that are new and complete, announce them, and note what was seen; return their paths."""
    log = get_run_logger()
    seen = load_seen(state_file)
    logged_strays = load_strays(state_file)
    if not is_remote(root) and not Path(root).exists():
        raise JobError(
            "the watched folder is not there",
            where=root,
            do="make it, mount it, or correct `path`; what was announced before is not forgotten",
        )
    try:
        listing = expand(root, options)
    except NoInputError:
        log.info("nothing is there yet: %s", root)
        return []  # and nothing is forgotten: a prefix may be empty for a while
    files, strays = data_files(listing, _spell_root(listing, root, options), patterns, format)
    complete = files
    if marker:
        waiting = [file for file in files if not is_announced(file, seen)]
        marked = {
            file.path for file in select_marked_files(waiting, _spell_root(files, root, options), marker, options)
        }
        complete = [file for file in files if file.path in marked or is_announced(file, seen)]
        settle = 0  # the marker says that the files are complete
        strays = [file for file in strays if file.path.rpartition("/")[2] != marker]
    new, seen = look(complete, seen, time.time(), settle)
    arrivals = list(group_files(new, _spell_root(new, root, options)))
    asyncio.run(_send_events(arrivals, {file.path: file for file in new}))
    save_seen(state_file, seen, [file.path for file in strays])
    for arrival in arrivals:
        log.info("%s new file(s) in %s", len(arrival.paths), arrival.folder)
    if unknown := [file.path for file in strays if file.path not in logged_strays]:
        log.warning("not data by `pattern` and `format`, so not announced: %s", few(unknown, MOST_NAMED))
    log.info("%s file(s) found: %s not data, %s new and complete", len(listing), len(strays), len(new))
    return [file.path for file in new]


def announce(paths: Sequence[str], patterns: Sequence[str] = (), format: str = "auto", options: Any = None) -> int:
    """Send the events of files again, as if they had just arrived; return how many events were sent.

    JobError where a path has no files, or none that are data.
    """
    options = options or {}
    by_root = dict[str, list[File]]()
    announced = set[str]()
    for path in paths:
        root = path.rstrip("/") if is_remote(path) else local_path(path)
        try:
            listing = expand(root, options)
        except NoInputError as error:
            do = "correct the path; a folder without data announces nothing"
            raise NoInputError("there is nothing to announce", where=path, why=error.why, do=do) from None
        is_one_file = len(listing) == 1 and listing[0].path == root
        root = root.rpartition("/")[0] if is_one_file else _spell_root(listing, root, options)
        files, strays = data_files(listing, root, patterns, format)
        if not files:
            raise JobError(
                "no data is there to announce",
                where=path,
                why=f"not data by name: {few([file.path for file in strays], MOST_NAMED)}",
                do="name them with --pattern, such as --pattern '*.log', or correct --format",
            )
        by_root.setdefault(root, []).extend(file for file in files if file.path not in announced)
        announced.update(file.path for file in files)
        if strays:
            left_out = few([file.path for file in strays], MOST_NAMED)
            logging.getLogger("rowmill").warning("not announced, since they are not data by name: %s", left_out)
    arrivals = [arrival for root, files in by_root.items() for arrival in group_files(files, root)]
    asyncio.run(_send_events(arrivals, {}))
    return len(arrivals)


def _spell_root(files: Sequence[File], root: str, options: Mapping[str, Any]) -> str:
    """Spell the watched folder as the paths of its files do: a file system may write a URL in another way."""
    if not is_remote(root) or not files or files[0].path.startswith(root):
        return root
    return open_store(root, options).full_path(root).rstrip("/")


async def _send_events(arrivals: Sequence[Arrival], files: dict[str, File]) -> None:
    """Send the events and wait until the server has them."""
    if not arrivals:
        return
    async with get_events_client(checkpoint_every=1) as events:
        for arrival in arrivals:
            await events.emit(event_of(arrival, files))


def event_of(arrival: Arrival, files: dict[str, File]) -> Event:
    """Make the event of an arrival. The server ignores an event whose id it knows.

    The id is derived from the arrival's files in `files`, so that a look which is repeated announces nothing twice. If
    none of them is there, the id is random, so that an event which is sent again on purpose is not ignored.
    """
    known = [_describe_file(files[path]) for path in arrival.paths if path in files]
    id_parts = known or [str(uuid.uuid4())]
    payload = {"folder": arrival.folder, "paths": arrival.paths, "files": len(arrival.paths), "bytes": arrival.bytes}
    resource = {"prefect.resource.id": f"rowmill.source.{arrival.folder}", "prefect.resource.name": arrival.folder}
    return Event(
        id=uuid.uuid5(NAMESPACE, "\n".join(id_parts)),
        event=ARRIVED,
        resource=Resource(resource),
        related=_this_run(),
        payload=payload,
    )


def _describe_file(file: File) -> str:
    """What tells a file from those that were at its path before."""
    text = f"{file.path}:{file.size}:{file.mtime}"
    return f"{text}:{file.version}" if file.version else text


def _this_run() -> list[RelatedResource]:
    run = _flow_run()
    if run is None:
        return []
    return [RelatedResource({"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.role": "flow-run"})]


def _flow_run() -> FlowRun | None:
    context = FlowRunContext.get()
    return context.flow_run if context else None


def _cancel_late_looks() -> None:
    """Cancel looks that came due while the host was busy: they would all see the same files as this one."""
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
