"""The mark of an output that was taken back: `_discarded.json` says who did so, when and why."""

from __future__ import annotations

import getpass
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.storage.atomic import read_json, write_json
from tasks.storage.metadata_forms import check_form
from tasks.storage.own_files import DISCARDED


def mark(version: Path, why: str = "", who: str = "") -> bool:
    """Mark an output, or a version of one, as taken back; False if it was marked before, which stays as it is.

    `who` is the user and host of this process if nothing is said.
    """
    if is_discarded(version):
        return False
    when = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(version / DISCARDED, {"format": 1, "who": who or _me(), "when": when, "why": why})
    return True


def is_discarded(version: Path) -> bool:
    """Whether an output is taken back: the file alone decides, so that a damaged mark is a mark."""
    return (version / DISCARDED).exists()


def read_mark(version: Path) -> dict[str, Any]:
    """Who has taken an output back, when and why; {} without a mark. A DataError if the mark is damaged."""
    if not is_discarded(version):
        return {}
    content = read_json(version / DISCARDED)
    check_form(content, "discarded", version / DISCARDED)
    return dict(content or {})


def _me() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without names of users
        user = "somebody"
    return f"{user} on {socket.gethostname()}"
