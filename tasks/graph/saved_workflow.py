"""A fitted workflow on disk: a folder that a person can read."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field

from tasks.core.notes import leave_out_empty
from tasks.core.schema import Schema, Tags
from tasks.core.strict_json import JsonObject
from tasks.core.versions import rowmill_version, versions
from tasks.errors import DataError, GiveUpError, HostError, RowmillError, TransientError
from tasks.graph.binding import Bound
from tasks.graph.mapped_tables import MappedTables
from tasks.graph.node import Node, graph_from_json, graph_to_json
from tasks.graph.noted_operators import NotedForm, make_noted, note_operators
from tasks.graph.refit_history import check_history, save_history
from tasks.graph.state import FORMAT, State, TableForm, copy_saved, read_json
from tasks.ops.base import Learned
from tasks.sources.reading_rules import check_reading_rules, reading_lines
from tasks.storage.atomic import write_json
from tasks.storage.documents import (
    DIGEST,
    ColumnForm,
    Count,
    DatedForm,
    Day,
    Form,
    Names,
    Number,
    check_columns,
    make_damage_error,
    parse_document,
    seal,
)
from tasks.storage.own_files import FITTED, WORKFLOW, current
from tasks.storage.sample_data import describe_sample_data

log = logging.getLogger("rowmill")

# The beginning of the README.md of every fitted workflow.
README = """# A fitted workflow of rowmill

`workflow.json` is the graph: its steps, their operators and parameters, and the columns it was fitted on.
`state.json` holds what every step learned; tables (vocabularies, group sums) are Parquet files under the suffix
`.vocab`, each with its sha256; a large table lies in several, -0000, -0001 and on. Read one with
`pyarrow.parquet.read_table`. `partials.json`, among it the values that a vocabulary left out, is for a later refit with
more rows; applying needs none of it. `changes.json`, if there is one, is what the last refit changed. Load all of it
with `tasks.workflow.Workflow.load(folder)`.
"""
SOURCE = """
## How its source was read

New data are read in the same way where nothing else is said (`source` in `workflow.json`): null_values, schema,
explode, filter, strict, keys and sort_by always; delimiter, header and columns where they are of the same format.

"""


class TagForm(Form):
    tag: Literal[tuple(tag.value for tag in Tags)]  # type: ignore[valid-type]


class NodeForm(Form):
    kind: Literal["pick", "apply", "join", "drop"]
    parents: list[Count]
    op: JsonObject | None = None
    selection: list[str | Names | TagForm] = []
    name: str = ""


class BatchForm(Form):
    day: Day
    rows: Count
    files: Count
    ids: dict[str, Count] = {}
    rowmill: str = ""


class HistoryForm(Form):
    rows: Count
    batches: list[BatchForm] = Field(alias="nights")  # the name in the file
    files: TableForm | None = None


class WorkflowForm(Form):
    """What must be right in a `workflow.json` to load it; other keys (`rowmill`, `versions`, `readme`) are notes."""

    format: Number = 1
    graph: Annotated[list[NodeForm], Field(min_length=1)]
    schema_: list[ColumnForm] = Field(alias="schema")
    output: list[ColumnForm] = []
    source: JsonObject = {}
    dated: DatedForm | None = None
    state: str = ""
    ancestors: list[str] = []
    ids_since: dict[str, int] = {}
    history: HistoryForm | None = None
    digest: str = ""
    noted: dict[str, NotedForm] = {}


@dataclass(frozen=True)
class FittedOrigin:
    """What a fitted workflow notes of its origin, in addition to its graph and what it has learned.

    reading: how the rows were read (`tasks.sources.reading_rules`); new rows are read alike. The key `source`.
    made_up: the look-alike data among the rows (`tasks.storage.sample_data`).
    dated: the date of the run that fitted it.
    history: the batches that it has learned, and the table of their files (`tasks.graph.refit_history`).
    gate: the checks and the contract of the job, for an output without a manifest that would have them.
    ancestors: the digests of the states that it was learned on top of, oldest first. It continues their ids, except in
        columns that one of them lacks.
    ids_since: what `read_ids_since` returns for the newest ancestor.
    """

    reading: JsonObject = field(default_factory=dict)
    made_up: Sequence[JsonObject] = ()
    dated: JsonObject | None = None
    history: tuple[JsonObject, pa.Table] | None = None
    gate: Mapping[str, Any] = field(default_factory=dict)
    ancestors: Sequence[str] = ()
    ids_since: Mapping[str, int] = field(default_factory=dict)


def save_fitted(
    final: Node, schema: Schema, state: State, folder: Path, notes: FittedOrigin, saved: Path | None = None
) -> None:
    """Write the folder of a fitted workflow.

    `saved` is a folder in which the state is on disk already: its files are copied, and of `state` only the values are
    used.
    """
    bound = Bound(final, schema, state.values)
    graph = graph_to_json(final)
    made_up = list(notes.made_up)
    ancestors = list(notes.ancestors)
    for path in _list_script_paths(graph):
        text = "the saved workflow names %s, which other processes lack: it is of this script; move it to a module"
        log.warning(text, path)
    folder.mkdir(parents=True, exist_ok=True)
    data: JsonObject = {
        "format": FORMAT,
        "rowmill": rowmill_version(),
        "versions": versions(),
        "graph": graph,
        "schema": schema.to_json(),
        "output": bound.output.to_json(),
        "source": dict(notes.reading),
        **leave_out_empty({"made_up": made_up, "dated": dict(notes.dated or {}), "noted": note_operators(bound)}),
        **notes.gate,
        **leave_out_empty({"ancestors": ancestors, "ids_since": _count_ancestors_with_other_ids(bound, notes)}),
        "state": copy_saved(saved, folder) if saved else state.save(folder),
    }
    if notes.history is not None:
        data["history"] = save_history(folder, *notes.history)
    lines = [f"    {line}\n" for line in reading_lines(data["source"])]
    lines += [f"\n**It was fitted on made-up data**: {describe_sample_data(made_up)}.\n"] if made_up else []
    readme = README + (SOURCE + "".join(lines) if lines else "")
    (folder / "README.md").write_text(readme)
    write_json(folder / FITTED, seal({**data, "readme": hashlib.sha256(readme.encode()).hexdigest()}))


def _count_ancestors_with_other_ids(bound: Bound, notes: FittedOrigin) -> dict[str, int]:
    """Count, for each column of ids, the ancestors (the oldest ones) whose ids in it are not those of this workflow.

    A column that the newest ancestor lacks begins its ids now, so all ancestors count. 0 is left out.
    """
    if not notes.ids_since:
        return {}
    columns = [column.name for column in bound.output.columns if Tags.CATEGORICAL.value in column.tags]
    counts = {name: notes.ids_since.get(name, len(notes.ancestors)) for name in columns}
    return {name: count for name, count in counts.items() if count}


def read_ids_since(data: JsonObject) -> dict[str, int]:
    """Read, for each output column of a `workflow.json`, the number of its oldest ancestors that have other ids in it.

    They lacked the column, or had it before it was dropped and came back. 0 if the ids of all ancestors are the same.
    """
    return {c["name"]: data.get("ids_since", {}).get(c["name"], 0) for c in data.get("output", ())}


def _list_script_paths(graph: Sequence[JsonObject]) -> list[str]:
    """List the import paths of functions and operators that the script, or notebook, of this process defines."""
    paths = [node["op"].get(key) for node in graph if "op" in node for key in ("op", "function")]
    return sorted({path for path in paths if isinstance(path, str) and path.startswith("__main__:")})


def find_fitted_folder(path: Path) -> Path:
    """Find the folder of a fitted workflow: the path itself (its latest version), or `_workflow` in an output, or next
    to one of its splits."""
    root = current(path)
    places = [root, root / WORKFLOW, root.parent / WORKFLOW]
    return next((p for p in places if (p / FITTED).exists()), root)


def read_fitted(path: Path) -> JsonObject:
    """Read the `workflow.json` of a fitted workflow; a DataError if it is missing, damaged or of a newer format.

    Operators that users define are not imported, so their parameters are not checked.
    """
    folder = find_fitted_folder(path)
    path = folder / FITTED
    data = read_json(path)
    if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
        raise DataError(
            f"the workflow has format {data['format']}, this version reads up to {FORMAT}",
            where=str(folder),
            do="upgrade rowmill",
        )
    parse_document(WorkflowForm, data, path)
    check_columns(data["schema"], path, "schema")
    if DIGEST in data and data[DIGEST] != seal(data)[DIGEST]:
        raise make_damage_error(path, "", "its content has another digest than the one that it names: it was changed")
    _check_graph(data, path)
    return {**data, "source": check_reading_rules(data.get("source"), str(folder))}


def _check_graph(data: JsonObject, path: Path) -> None:
    """Check the graph of a `workflow.json`; a DataError names the node that is not valid."""
    for number, node in enumerate(data["graph"]):
        location = f"graph[{number}]"
        parents = node["parents"]
        if any(parent >= number for parent in parents):
            raise make_damage_error(path, f"{location}.parents", "a node is made of nodes before it")
        if (node["kind"] in ("apply", "drop") and len(parents) != 1) or (node["kind"] == "join" and not parents):
            raise make_damage_error(path, f"{location}.parents", f"{node['kind']} has {len(parents)} of them")
        if (node["kind"] == "apply") != ("op" in node):
            raise make_damage_error(
                path, f"{location}.op", "it belongs to nodes that apply an operator, and to these alone"
            )
        try:
            if "op" in node:
                make_noted(node["op"], data.get("noted", {}).get(str(number)))
        except HostError:
            raise
        except Exception as error:  # parameters may be anything
            raise make_damage_error(path, f"{location}.op", _describe_error(error)) from None
    _build_graph_without_imports(data)


def _build_graph_without_imports(data: JsonObject) -> Node:
    """Build the graph of a `workflow.json` to look at; operators that users define are not imported (see `noted`)."""
    noted = data.get("noted", {})
    return graph_from_json(data["graph"], lambda number, spec: make_noted(spec, noted.get(str(number))))


def _describe_error(error: Exception) -> str:
    return error.what if isinstance(error, RowmillError) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class SavedWorkflow:
    """A fitted graph, the schema it was fitted on, its state, and how its source was read."""

    final: Node
    schema: Schema
    state: State
    reading: JsonObject

    @property
    def bound(self) -> Bound:
        return Bound(self.final, self.schema, self.state.values)


def load_fitted(
    path: Path, heads: bool = False, look: bool = False, mapped: MappedTables | None = None
) -> SavedWorkflow:
    """Load a fitted workflow; `path` is its folder, an output folder, or `train` in one.

    With `heads`, large vocabularies have their first values only. With `look`, code that users wrote is not imported,
    and the workflow cannot be applied. Large tables come from `mapped`, if it is there.
    """
    data = read_fitted(path)
    folder = find_fitted_folder(path)
    state = State.load_heads(folder) if heads else State.load(folder, digest=data.get("state"), mapped=mapped)
    check_history(folder, data)
    final = _build_graph_without_imports(data) if look else graph_from_json(data["graph"])
    schema = Schema.from_json(data["schema"])
    _check_bound(final, schema, state, folder)
    for step in Bound(final, schema, state.values).learned_from_parameters:
        if isinstance(step.op, Learned) and step.op.frames:
            step.op.restore_frames(state.values[step.key])
    return SavedWorkflow(final, schema, state, data["source"])


def _check_bound(final: Node, schema: Schema, state: State, folder: Path) -> None:
    """Raise a DataError if the graph does not fit the schema, or a step lacks its learned values or cannot use them."""
    try:
        bound = Bound(final, schema, state.values)
    except (HostError, TransientError, GiveUpError):
        raise
    except Exception as error:  # what was learned may be anything
        raise make_damage_error(folder / FITTED, "graph", _describe_error(error)) from None
    for step in bound.learned:
        if step.key not in state.values:
            raise make_damage_error(folder / "state.json", "fitted", f"there is nothing of the step {step.key}")
