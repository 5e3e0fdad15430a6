"""Sends what waits of outputs from a command, if a server runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flows.published.unsent import outputs_to_announce


def send_waiting(paths: Iterable[Path], dry_run: bool = False) -> list[str]:
    """Send what waits of the outputs at some paths and below them; return what was done, in lines.

    No server is started for it: without one the events wait. Only outputs of which something waits have Prefect
    imported.
    """
    targets = [target for path in paths for target in outputs_to_announce(path)]
    if not targets or dry_run:
        return [f"waits    {target}: its events are not sent yet" for target in targets]
    from infra.orchestration.server import use_running_server

    if not use_running_server():
        return [f"waits    {target}: no Prefect server runs that could take its events" for target in targets]
    from flows.published.outbox import deliver

    return [f"sent     {event.event}: {event.payload['text']}" for event in deliver(targets) if "text" in event.payload]
