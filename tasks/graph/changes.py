"""What a refit changed: `changes.json` beside the state, and a table for each vocabulary that grew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.graph.state import load_changes


@dataclass(frozen=True)
class Mode:
    """What a refit does with a learned step.

    mode: "merged" (as learned from all rows), "appended" (ids stay, new values are appended), "frozen" (as it was) or
        "new" (learned from these rows alone, since the base does not have the step).
    why: the reason, in one clause; "" where it needs none.
    behind: the keys of the learned steps on which its inputs depend.
    """

    mode: Literal["merged", "appended", "frozen", "new"]
    why: str = ""
    behind: tuple[str, ...] = ()


def read_changes(folder: Path) -> dict[str, Any]:
    """What `changes.json` of a fitted workflow says, with its tables, all checked; {} where a fit made the workflow.

    `base` (the version that the refit began with), `rows` (old, new), and `steps`, by step.
    """
    return load_changes(folder)
