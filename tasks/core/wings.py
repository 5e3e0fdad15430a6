"""Wings: folders of rowmill that an installation may lack. What stands below them asks here for what is in them."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tasks.errors import JobError

# By folder, what it does: the end of the sentence "this installation cannot ..".
WINGS = {
    "flows/nights": "run a job on dates, or on top of earlier versions",
    "flows/gate": "compare rows with a contract or with earlier versions",
    "flows/published": "send events, lineage and metrics",
    "flows/report": "show a run in artifacts and reports",
    "flows/draft": "draft a job",
    "flows/preview": "preview a job",
    "flows/sample": "make look-alike data",
    "tasks/report": "draw artifacts and reports",
    "tasks/loading": "load an output for training",
}


def has_wing(folder: str) -> bool:
    """Whether a wing is there.

    >>> has_wing("tasks/core"), has_wing("tasks/cellar")
    (True, False)
    """
    return find_spec(folder.replace("/", ".")) is not None


def from_wing(folder: str, module: str, name: str) -> Any | None:
    """What a module of a wing calls `name`; None where the wing is not there."""
    if not has_wing(folder):
        return None
    return getattr(import_module(f"{folder.replace('/', '.')}.{module}"), name)


def need_wing(folder: str, where: str) -> None:
    """A JobError where a wing is not there that `where`, a key or a command, needs."""
    if not has_wing(folder):
        raise JobError(
            f"this installation cannot {WINGS[folder]}",
            where=where,
            why=f"its folder {folder} was left out",
            do=f"install rowmill with {folder}, or do without {where}",
        )


def wing_of(module: str) -> str | None:
    """The folder of the wing that a module is in; None for one of no wing.

    >>> wing_of("flows.gate.questions"), wing_of("tasks.core.units")
    ('flows/gate', None)
    """
    folder = "/".join(module.split(".")[:2])
    return folder if folder in WINGS else None
