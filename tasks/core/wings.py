"""Wings: folders of rowmill that an installation may lack. What stands below them asks here for what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tasks.core.strict_json import JsonObject
from tasks.errors import JobError

# By folder, what it does: the end of the sentence "this installation cannot ..".
WINGS = {
    "flows/nights": "run a job on dates, or on top of earlier versions",
    "flows/gate": "judge the rows of a run",
    "flows/published": "send events, lineage and metrics",
    "flows/report": "show a run in artifacts and reports",
    "flows/draft": "draft a job",
    "flows/preview": "preview a job",
    "flows/sample": "make look-alike data",
    "flows/lake": "go on from a state of a table, or add an output to one",
    "tasks/report": "draw artifacts and reports",
    "tasks/gate": "compare rows with a contract or with earlier versions",
    "tasks/loading": "load an output for training",
    "tasks/lake": "read or write tables of Iceberg and Delta",
}


# By key of a job, the wing that it belongs to.
KEYS = {
    "base": "flows/nights",
    "refit": "flows/nights",
    "contract": "flows/gate",
    "checks": "flows/gate",
    "source.sample": "flows/sample",
    "source.iceberg": "tasks/lake",
    "source.delta": "tasks/lake",
    "output.iceberg": "flows/lake",
    "output.delta": "flows/lake",
    "run.ready_by": "flows/nights",
    "run.lineage": "flows/published",
    "run.metrics": "flows/published",
}


def check_keys(job: JsonObject) -> None:
    """A JobError where a job names a key of a wing that this installation does not have."""
    for key, folder in KEYS.items():
        section, _, name = key.partition(".")
        value = job.get(section)
        if name:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            need_wing(folder, key)


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
        raise _absent(folder, where)


def absent_wing(error: ModuleNotFoundError, where: str) -> JobError | None:
    """The error of a wing that is not there, where a module of it was not found; None for another module."""
    folder = "/".join((error.name or "").split(".")[:2])
    return _absent(folder, where) if folder in WINGS and not has_wing(folder) else None


def _absent(folder: str, where: str) -> JobError:
    return JobError(
        f"this installation cannot {WINGS[folder]}",
        where=where,
        why=f"its folder {folder} was left out",
        do=f"install rowmill with {folder}, or do without {where}",
    )
