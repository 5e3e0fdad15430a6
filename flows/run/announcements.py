"""Events of outputs, as far as this installation sends them: without flows/published nobody hears of any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.core.wings import from_wing


def note_event(kind: str, output: Path, identity: tuple[str, ...], payload: Mapping[str, Any]) -> None:
    """Note an event of an output beside it, where `deliver` takes it from.

    `kind` and `identity` are those of `flows.published.events.make_output_event`.
    """
    if note := from_wing("flows/published", "outbox", "note_event"):
        note(kind, output, identity, payload)


def deliver(outputs: Iterable[Path]) -> None:
    """Send what waits of some outputs, as `flows.published.outbox.deliver` does."""
    if send := from_wing("flows/published", "outbox", "deliver"):
        send(outputs)


def send_waiting(outputs: Iterable[Path], dry_run: bool = False) -> list[str]:
    """Send what waits of the outputs at some paths and below them; return what was done, in lines."""
    send = from_wing("flows/published", "waiting", "send_waiting")
    lines: list[str] = send(outputs, dry_run) if send else []
    return lines
