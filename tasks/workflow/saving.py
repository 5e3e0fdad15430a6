"""Saves a fitted workflow to a folder of this host, and loads it from there or from a URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.core.schema import Schema
from tasks.graph.node import Node
from tasks.graph.saved_workflow import FittedOrigin, SavedWorkflow, load_fitted, save_fitted
from tasks.graph.state import State
from tasks.storage.discarded import check_discarded
from tasks.storage.files import local_folder
from tasks.storage.own_files import current
from tasks.storage.published_copy import open_published


def save_workflow(final: Node, schema: Schema, state: State, reading: dict[str, Any], path: str | Path) -> None:
    """Write a fitted workflow to a folder, with how the source was read that it was fitted on."""
    folder = Path(local_folder(path, "the folder to save to", "Workflow.save"))
    save_fitted(final, schema, state, folder, FittedOrigin(reading))


def load_workflow(path: str | Path, storage_options: str | Mapping[str, Any] | None = None) -> SavedWorkflow:
    """Load the fitted workflow of a folder or URL; a DataError for an output that was discarded."""
    with open_published(path, storage_options, "the fitted workflow", "Workflow.load") as copy:
        check_discarded(current(copy.folder), copy.folder)
        return load_fitted(copy.folder)
