"""Who hears of the progress of stages: functions that a command registers, and that a flow calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.commands.progress import Watch

_shown: list[Watch] = []  # of this process


def tell(summary: Mapping[str, Any]) -> None:
    """What a stage that is done says of itself, to whoever watches the run in this process."""
    for watch in _shown:
        watch.hear(summary)
