"""What waits to be announced of outputs, read from their notes without Prefect."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.errors import DataError
from tasks.job.publication import Publication, output_root, read_publication
from tasks.storage.atomic import read_json
from tasks.storage.discarded import DiscardMark, is_discarded, read_mark
from tasks.storage.own_files import DISCARDED, OUTBOX, PUBLISHED, find_description, versions_of
from tasks.storage.staging import Staging

log = logging.getLogger("rowmill")


def unsent_notes(target: Path) -> Iterator[tuple[Path, Publication | DiscardMark]]:
    """Yield the folders of an output, itself or versions, whose last note was not announced, with that note.

    A damaged note is a warning. An output that was taken back before its publication was announced is announced as
    discarded alone. One that cannot be written is left out: its note could not be marked, and would be sent for ever.
    """
    for folder in (target, *versions_of(target)):
        note: Publication | DiscardMark | None
        try:
            if find_description(folder) is None or not os.access(folder, os.W_OK):
                continue
            note = read_mark(folder) if is_discarded(folder) else read_publication(folder)
        except DataError as error:
            log.warning("nothing is announced of %s: %s", folder, error)
            continue
        if note is not None and note.sent == "":
            yield folder, note


def box_of(target: Path) -> Path:
    """Return the file of the events of an output that are of no version of it."""
    return Staging(target).beside / OUTBOX


def read_box(box: Path) -> list[Any]:
    """Read the events in a box as JSON; [] where none waits."""
    notes = read_json(box)
    return notes if isinstance(notes, list) else []


def is_waiting(target: Path) -> bool:
    """Tell whether something waits of an output; it is looked for no further than the first note."""
    return box_of(target).is_file() or any(unsent_notes(target))


def outputs_to_announce(path: Path) -> list[Path]:
    """The outputs at a path, and in folders below it, of which something waits; work in progress is not an output."""
    path = Path(os.path.realpath(path))
    targets = {output_root(path): None}
    for folder, names, files in os.walk(path):
        here = Path(folder)
        for name in [name for name in names if name.startswith(".")]:
            names.remove(name)
            if (here / name / OUTBOX).is_file():
                targets[here / name.removeprefix(".").removesuffix(".rowmill")] = None
        if {PUBLISHED, DISCARDED} & {*files}:
            targets[output_root(here)] = None
            names.clear()
    return [target for target in targets if is_waiting(target)]
