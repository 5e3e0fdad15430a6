"""The mark of an output that was taken back: `_discarded.json` says who did so, when and why."""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tasks.errors import DataError
from tasks.storage.atomic import read_json, write_note
from tasks.storage.documents import dump_document, parse_document
from tasks.storage.own_files import DISCARDED, SPLITS, WORKFLOW

log = logging.getLogger("rowmill")


@dataclass(frozen=True)
class DiscardMark:
    """Who has taken an output back, when and why; `sent` is when the Prefect server heard of it, "" before that, None
    in marks of an earlier rowmill, which are not announced."""

    who: str
    when: str
    why: str = ""
    format: int = 1
    sent: str | None = None


def mark(version: Path, why: str = "", who: str = "") -> bool:
    """Mark an output, or a version of one, as taken back; False if it was marked before, which stays as it is.

    `who` is the user and host of this process if nothing is said.
    """
    if is_discarded(version):
        return False
    when = datetime.now(UTC).isoformat(timespec="seconds")
    write_note(version / DISCARDED, dump_document(DiscardMark(who or _me(), when, why, sent="")))
    return True


def mark_announced(version: Path, known: DiscardMark, _server: str = "") -> None:
    """Note in the mark of an output that the Prefect server has heard of it."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_note(version / DISCARDED, dump_document(replace(known, sent=now)))


def unmark(version: Path) -> bool:
    """Bring an output back that was taken back; False for one that was not."""
    was = is_discarded(version)
    (version / DISCARDED).unlink(missing_ok=True)
    return was


def is_discarded(version: Path) -> bool:
    """Whether an output is taken back: the file alone decides, so that a damaged mark is a mark."""
    return (version / DISCARDED).exists()


def read_mark(version: Path) -> DiscardMark | None:
    """Who has taken an output back, when and why; None without a mark. A DataError if the mark is damaged."""
    path = version / DISCARDED
    return parse_document(DiscardMark, read_json(path), path) if is_discarded(version) else None


def describe_discard(version: Path) -> str:
    """Who has taken an output back, when and why, for people, also where its mark is damaged."""
    try:
        noted = read_mark(version)
    except DataError:
        return "somebody (its mark is damaged)"
    return f"{noted.who} at {noted.when}{f': {noted.why}' if noted.why else ''}" if noted else ""


def find_marked_folder(folder: Path) -> Path | None:
    """The folder that has the mark of an output that was taken back: itself, or that around a split or a fitted
    workflow; None for an output that was not."""
    around = [folder.parent] if folder.name in (*SPLITS, WORKFLOW) else []
    return next((one for one in (folder, *around) if is_discarded(one)), None)


def make_discard_line(folder: Path) -> str:
    """The sentence on an output that was taken back, for those who only look at it; "" for one that was not."""
    marked = find_marked_folder(folder)
    return f"{marked} was discarded by {describe_discard(marked)}" if marked else ""


def check_discarded(version: Path, named: Path, describe: Callable[[Path], str] = str) -> None:
    """For whoever reads the rows of an output or applies what it learned: a warning where it was taken back.

    `named` is the path of the user, `version` the folder behind it. A DataError for the name of an output of
    several versions, all of whose good ones were taken back: `_latest` names such a version only then. `describe` gives
    the name of a folder in the warning.
    """
    marked = find_marked_folder(version)
    if marked is None:
        return
    if version != named and marked.parent == named:
        raise make_none_left_error(str(named), str(marked))
    warn_of(describe(marked))


def make_none_left_error(output: str, newest: str) -> DataError:
    """The error for an output whose newest version, and so every good one, was discarded."""
    return DataError(
        "no good version is left in this output",
        where=output,
        why=f"{newest.rpartition('/')[2]}, the newest one, was discarded, and so was every good one before it",
        do=f"run it again; or name a version, to read it all the same: {newest}",
    )


def warn_of(version: str | Path) -> None:
    """The warning for whoever reads an output that was taken back."""
    log.warning("%s was discarded, but is read anyway, since the path names it", version)


def _me() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without names of users
        user = "somebody"
    return f"{user} on {socket.gethostname()}"
