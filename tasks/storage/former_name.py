"""The former name, millrace: what was written under it is refused with the command that converts or finishes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.errors import DataError, JobError

FORMER, NAME = "millrace", "rowmill"  # the key in documents, and the end of the names of staging folders


def is_former(data: Any) -> bool:
    """Whether a document names the version of millrace that wrote it."""
    return isinstance(data, Mapping) and FORMER in data and NAME not in data


def refuse_document(data: Any, path: Path) -> None:
    """A DataError for a document of millrace."""
    if is_former(data):
        raise DataError(
            f"{path.name} was written under the former name of {NAME}, {FORMER}",
            where=str(path),
            do=f"convert it, data files stay as they are: {NAME} convert {path.parent}",
        )


def refuse_staging(staging: Path) -> None:
    """A JobError if a run of millrace has left its unfinished work where the folder `staging` would be."""
    former = staging.with_name(staging.name.removesuffix(NAME) + FORMER)
    if former.is_dir():
        raise JobError(
            f"a run of {FORMER}, the former name of {NAME}, has left unfinished work",
            where=str(former),
            why="this run would begin anew beside it",
            do=f"go on with it: mv {former} {staging}; or begin anew: rm -r {former}; then run the same job again",
        )
