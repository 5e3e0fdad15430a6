"""What an earlier start of the same job wrote: files are kept if their bytes are still those that were noted."""

from __future__ import annotations

import logging
from pathlib import Path

from tasks.cluster.pool import Pool
from tasks.storage.atomic import read_json
from tasks.storage.checksum import _is_whole

log = logging.getLogger("millrace")


def drop_damaged(folder: Path, notes: Path, pool: Pool) -> list[str]:
    """Remove the notes of files in `folder` whose size or digest has changed, so that they are written again; their
    names.

    Every byte is read, by the workers: nothing but what this returns may go on to the output.
    """
    found = [str(note) for note in sorted(notes.glob("*.json"))]
    whole = pool.map(_is_whole, str(folder), found)
    damaged = [Path(note) for note, kept in zip(found, whole, strict=True) if not kept]
    for note in damaged:
        note.unlink(missing_ok=True)
    names = [note.stem for note in damaged]
    if names:
        log.warning("written again, since damaged or gone: %s", ", ".join(names))
    return names


def halvings(notes: Path) -> int:
    """How often the writing of the noted files was halved for want of memory."""
    return sum(int((read_json(note) or {}).get("halved", 0)) for note in notes.glob("*.json"))
