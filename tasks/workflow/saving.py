"""Saves a fitted workflow to a folder or a URL, and loads it from there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.core.schema import Schema
from tasks.graph.mapped_tables import MappedTables
from tasks.graph.node import Node
from tasks.graph.saved_workflow import FittedOrigin, SavedWorkflow, load_fitted, save_fitted
from tasks.graph.state import State
from tasks.storage.allowed_roots import is_local
from tasks.storage.credentials import storage
from tasks.storage.discarded import check_discarded
from tasks.storage.files import local_folder
from tasks.storage.own_files import current
from tasks.storage.published_copy import open_published
from tasks.storage.staging import Staging


def save_workflow(
    final: Node,
    schema: Schema,
    state: State,
    reading: dict[str, Any],
    path: str | Path,
    storage_options: str | Mapping[str, Any] | None = None,
) -> None:
    """Write a fitted workflow to a folder or URL, with how the source was read that it was fitted on."""
    place = os.fspath(path)
    if is_local(place):
        folder = Path(local_folder(place, "the folder to save to", "Workflow.save"))
        save_fitted(final, schema, state, folder, FittedOrigin(reading))
        return
    options = storage(storage_options, "Workflow.save(storage_options=)")
    staging = Staging(place, storage_options=options)
    with staging.hold_lock():
        staging.check("replace")
        staging.reset()
        save_fitted(final, schema, state, staging.new, FittedOrigin(reading))
        staging.publish("replace")


def load_workflow(
    path: str | Path, storage_options: str | Mapping[str, Any] | None = None, mapped: str | Path | None = None
) -> SavedWorkflow:
    """Load the fitted workflow of a folder or URL; a DataError for an output that was discarded."""
    tables = (
        None if mapped is None else MappedTables(Path(local_folder(mapped, "the folder of mapped tables", "mapped")))
    )
    with open_published(path, storage_options, "the fitted workflow", "Workflow.load") as copy:
        check_discarded(current(copy.folder), copy.folder, copy.name)
        return load_fitted(copy.folder, mapped=tables)
