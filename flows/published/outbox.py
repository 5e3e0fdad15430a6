"""The events of outputs on their way to the Prefect server: at least once from here, counted once there.

What waits is noted in the output itself (`_published.json`, `_discarded.json`), or, for a night that has no output, in
`outbox.json` beside it. A note is marked when the server has the event. After a kill in between, the next start of the
job, `rowmill publish` or `rowmill clean` sends the event again, unless the server knows its id.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from prefect import get_client
from prefect.events import Event
from prefect.events.filters import EventFilter, EventIDFilter
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.published import events
from flows.published.unsent import box_of, is_waiting, read_box, unsent_notes
from tasks.errors import few
from tasks.job.publication import Publication, mark_sent, output_root
from tasks.storage.atomic import write_note
from tasks.storage.discarded import DiscardMark, mark_announced

CONNECT_SECONDS = 0.5  # in which a server that lives takes a connection
ANSWER_SECONDS = 5.0
AT_ONCE = 50  # events of one request
log = logging.getLogger("rowmill")


@dataclass(frozen=True)
class Pending:
    """Events that belong together and that no server has confirmed; `mark(server)` notes that a server has them."""

    events: list[Event]
    mark: Callable[[str], None]


def deliver(targets: Iterable[Path]) -> list[Event]:
    """Send what waits of some outputs, the oldest first; return the events that the server has now.

    A server that does not answer is a warning: the events wait for the next start. Returns within a second where no
    server is, however many versions wait: their events are made for a server that is there.
    """
    waiting = [target for target in (Path(os.path.realpath(one)) for one in targets) if is_waiting(target)]
    server = str(PREFECT_API_URL.value() or "")
    sent = list[Event]()
    if not waiting:
        return sent
    if not _is_reachable(server):
        outputs = few(map(str, waiting))
        log.warning("no Prefect server takes the events of %s: they are kept and sent at the next start", outputs)
        return sent
    for one in chain.from_iterable(map(pending, waiting)):
        try:
            send_new(one.events)
        except Exception as error:  # of the server, or of the connection to it
            log.warning("an event of an output waits for the next start: %s: %s", type(error).__name__, error)
            break
        with suppress(OSError):  # the output is being removed
            one.mark(server)
        sent += one.events
    return sent


def pending(target: Path) -> Iterator[Pending]:
    """Yield what waits of an output: of the output itself, of its versions, and of nights that have none."""
    for folder, note in unsent_notes(target):
        if isinstance(note, Publication):
            yield Pending(events.make_published_events(folder, note), partial(mark_sent, folder, note))
        else:
            yield Pending([events.make_discarded_event(folder, note)], partial(mark_announced, folder, note))
    box = box_of(target)
    for entry in read_box(box):
        event = _event_of(target, entry)
        if event is None:
            log.warning("an entry of %s is not an event of this output: it is not sent", box)
            continue
        yield Pending([event], partial(_take_out, box, event))


def _event_of(target: Path, entry: object) -> Event | None:
    """Return the event of an entry of a box; None for one that is not about the output beside which the box is."""
    try:
        event = Event.model_validate(entry)
    except ValueError:
        return None
    return event if events.is_event_of(target, event) else None


def note_event(kind: events.EventKind, output: Path, identity: tuple[str, ...], payload: Mapping[str, Any]) -> None:
    """Note an event of an output, as `flows.published.events.make_output_event` makes it, beside the output."""
    put_in(output, events.make_output_event(kind, output, identity, payload))


def note_restored(version: Path, mark: DiscardMark, who: str) -> None:
    """Note the event of a version that was taken back and is brought back beside its output."""
    put_in(output_root(version), events.make_restored_event(version, mark, who))


def put_in(target: Path, event: Event) -> None:
    """Note an event of an output beside it, where `deliver` takes it from."""
    box = box_of(target)
    box.parent.mkdir(parents=True, exist_ok=True)
    write_note(box, [*read_box(box), event.model_dump(mode="json")])


def _take_out(box: Path, event: Event, _server: str) -> None:
    own = str(event.id)
    if left := [entry for entry in read_box(box) if not isinstance(entry, dict) or entry.get("id") != own]:
        write_note(box, left)
        return
    box.unlink(missing_ok=True)
    with suppress(OSError):  # work in progress is there
        box.parent.rmdir()


def _is_reachable(server: str) -> bool:
    """Return whether something takes connections at the address of the server; with a proxy it may."""
    try:
        parts = urlsplit(server)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if not getproxies() or proxy_bypass(parts.hostname or ""):
            socket.create_connection((parts.hostname or "", port), CONNECT_SECONDS).close()
    except (OSError, ValueError):
        return False
    return bool(parts.hostname)


def send_new(batch: list[Event]) -> None:
    """Send events that the server does not know; when this returns, the server has handed them to its triggers."""
    once = temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0})
    with once, get_client(sync_client=True, httpx_settings={"timeout": ANSWER_SECONDS}) as client:
        for begin in range(0, len(batch), AT_ONCE):
            some = batch[begin : begin + AT_ONCE]
            chosen = EventFilter(id=EventIDFilter(id=[event.id for event in some]))
            known = {event.id for event in client.read_events(chosen, limit=AT_ONCE).events}
            if new := [event.model_dump(mode="json") for event in some if event.id not in known]:
                client.request("POST", "/events", json=new)
