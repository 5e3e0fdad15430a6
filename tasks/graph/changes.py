"""What a refit changed: `changes.json` beside the state, and a table for each vocabulary that grew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.storage.atomic import write_json
from tasks.storage.own_files import CHANGES

FORMAT = 1


@dataclass(frozen=True)
class Mode:
    """What a refit does with a learned step.

    mode: "merged" (as learned from all rows), "appended" (ids stay, new values come behind) or "frozen" (as it was).
    why: the reason, in one clause; "" where it needs none.
    behind: the keys of the learned steps on which its inputs depend.
    """

    mode: Literal["merged", "appended", "frozen"]
    why: str = ""
    behind: tuple[str, ...] = ()


def save_changes(
    changes: Mapping[str, Mapping[str, Any]], folder: Path, base: str = "", rows: Mapping[str, int] | None = None
) -> None:
    """Write `changes.json`: the version of the base, the rows before and after, and what changed by step."""
    data = {"format": FORMAT, "base": base, "rows": dict(rows or {}), "steps": {k: dict(v) for k, v in changes.items()}}
    write_json(folder / CHANGES, data)
