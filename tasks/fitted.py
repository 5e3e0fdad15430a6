"""A fitted workflow on disk: a folder that a person can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.commit import FITTED, WORKFLOW, write_json
from tasks.errors import DataError
from tasks.graph import Bound, Node, graph_from_json, graph_to_json
from tasks.manifest import current, millrace_version, versions
from tasks.schema import Schema
from tasks.state import FORMAT, State, copy_saved, read_json

README = """# A fitted workflow of millrace

`workflow.json` is the graph: its steps, their operators and parameters, and the columns it was fitted on.
`state.json` holds what every step learned; tables (vocabularies, group sums) are Parquet files under the suffix
`.vocab`, each with its sha256; a large table lies in several, -0000, -0001 and on. Read one with
`pyarrow.parquet.read_table`. What `state.json` calls partials, among them the values that a vocabulary left out, is for
a later fit over more data; applying needs none of it. Load all of it with `tasks.workflow.Workflow.load(folder)`.
"""


def save_fitted(
    final: Node, schema: Schema, state: State, folder: Path, source: Mapping[str, Any] | None = None,
    saved: Path | None = None,
) -> None:  # fmt: skip
    """Write the folder; `source` is what the job said of the rows (filter, keys, sort_by), for who applies it.

    `saved` is where the state is saved already, if it is; then the values are all that is looked at here.
    """
    bound, graph = Bound(final, schema, state.values), graph_to_json(final)
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "format": FORMAT,
        "millrace": millrace_version(),
        "versions": versions(),
        "graph": graph,
        "schema": schema.to_json(),
        "output": bound.output.to_json(),
        "source": dict(source or {}),
        "state": copy_saved(saved, folder) if saved else state.save(folder),
    }
    (folder / "README.md").write_text(README)
    write_json(folder / FITTED, data)


def fitted_folder(path: Path) -> Path:
    """Where a fitted workflow is: the folder (its latest version), or the `_workflow` of an output or its `train`."""
    root = current(path)
    places = [root, root / WORKFLOW, root.parent / WORKFLOW]
    return next((p for p in places if (p / FITTED).exists()), root)


def read_fitted(path: Path) -> dict[str, Any]:
    """What `workflow.json` of a fitted workflow says; a DataError if it is missing, damaged or of a newer format."""
    folder = fitted_folder(path)
    data = read_json(folder / FITTED)
    if data.get("format", 0) > FORMAT:
        raise DataError(
            f"the workflow has format {data['format']}, this version reads up to {FORMAT}",
            where=str(folder),
            do="upgrade millrace",
        )
    if not {"graph", "schema"} <= set(data):
        raise DataError("workflow.json is damaged", where=str(folder), why="the graph or the schema is missing")
    return data


def load_fitted(path: Path) -> tuple[Node, Schema, State]:
    """The graph, the schema it was fitted on and its state; an output folder, or `train` in it, will do as path."""
    data = read_fitted(path)
    state = State.load(fitted_folder(path), digest=data.get("state"))
    return graph_from_json(data["graph"]), Schema.from_json(data["schema"]), state
