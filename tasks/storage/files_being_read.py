"""Notes which files a process is reading and which function of a user it runs: if that ends the process, the notes name
it."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tasks.core.plan import OPTION

FOLDER = "reading"  # in a run's staging folder
RAN = "ran "  # how the note on a function of a user begins

_into: list[Path] = []


def note_into(folder: Path) -> None:
    """Have this process write its notes into a folder, whatever the options say."""
    _into[:] = [folder]


@contextmanager
def noted(options: Mapping[str, Any], *paths: str) -> Iterator[None]:
    """Note that this thread reads these files, or does what begins with `RAN`, in a small file that is removed when the
    block ends.

    Without a folder for it among the options nothing is noted. Notes are for people:
    one that cannot be written is left out.
    """
    folder = next(iter(_into), None) or options.get(OPTION)
    if not folder:
        yield
        return
    note = Path(folder) / f"{socket.gethostname()}-{os.getpid()}-{threading.get_native_id()}"
    outer = None
    with suppress(OSError):
        outer = note.read_bytes() if note.exists() else None
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_bytes(b"\n".join(os.fsencode(path) for path in paths[:20]))
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink() if outer is None else note.write_bytes(outer)


def notes_left(folder: Path) -> list[str]:
    """What processes were reading, and the functions that they ran, when they ended, sorted; the notes are removed."""
    paths: set[str] = set()
    with suppress(OSError):
        for note in folder.iterdir():
            paths |= {os.fsdecode(line) for line in note.read_bytes().split(b"\n") if line}
        shutil.rmtree(folder, ignore_errors=True)
    return sorted(paths)


def doing(notes: Sequence[str]) -> str:
    """What processes did that left these notes, for a message.

    >>> doing(["/data/a.parquet", "ran mine:f of partition 0"]), doing([])
    ('while it read /data/a.parquet; while it ran mine:f of partition 0', '')
    """
    files = [note for note in notes if not note.startswith(RAN)]
    parts = [*([f"read {listed(files)}"] if files else []), *(note for note in notes if note.startswith(RAN))]
    return "; ".join(f"while it {part}" for part in parts[:5])


def listed(files: Sequence[str]) -> str:
    """A few of the files, for a message."""
    return ", ".join(files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")
