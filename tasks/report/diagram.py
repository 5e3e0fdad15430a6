"""The graph of a workflow as people read it: columns -> operators -> outputs, as a picture and as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.core.dtypes import dtype_name
from tasks.core.strict_json import decode_floats
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.ops.base import Operator
from tasks.report.box_graph import graph
from tasks.storage.atomic import write_text

# names in a box
MOST_NAMES = 4
# boxes of a kind in a picture
MOST_BOXES = 16
# characters of an operator's parameters
PARAMETERS_IN_TABLE = 44
PARAMETERS_IN_PICTURE = 24


@dataclass
class Box:
    """A box of the diagram: source columns that go the same ways, a step of the graph, or the outputs of one step."""

    kind: str  # source, operator or output
    text: str
    inputs: set[Any] = field(default_factory=set)  # keys of the boxes that it takes from
    learns: set[Any] = field(default_factory=set)  # keys of the boxes that it takes from only to learn (a target)


def operator_text(op: Operator, most: int = PARAMETERS_IN_TABLE) -> str:
    """Describe an operator; its parameters, without those that are null, are cut to `most` characters.

    >>> from rowmill import ops
    >>> operator_text(ops.FillMissing(fill_value=7)), operator_text(ops.Normalize())
    ('FillMissing(fill_value=7)', 'Normalize')
    """
    parameters = {
        name: value for name, value in decode_floats(op.to_json()).items() if name != "op" and value is not None
    }
    text = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
    text = text if len(text) <= most else text[: most - 2] + ".."
    return type(op).__name__ + (f"({text})" if text else "")


def names_text(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Join names for a box or a cell; of more than `most`, the first ones, the last and their number.

    >>> names_text(["a", "b"]), names_text(["c1", "c2", "c3", "c4", "c5", "c6"])
    ('a, b', 'c1, c2, c3 .. c6 (6 columns)')
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} .. {names[-1]} ({len(names):,} columns)"


def make_boxes(bound: Bound) -> dict[Any, Box]:
    """Make the boxes by key, in the order of the graph, without those that the output does not need."""
    steps: dict[int, list[Step]] = {}
    for step in {s.key: s for s in [*bound.needed_steps(bound.targets), *bound.filters]}.values():
        steps.setdefault(step.node, []).append(step)
    uses: dict[str, set[Any]] = {}
    by_key: dict[Any, Box] = {}
    for node, own_steps in sorted(steps.items()):
        box = by_key["operator", node] = Box("operator", operator_text(own_steps[0].op, PARAMETERS_IN_PICTURE))
        for step in own_steps:
            for at in step.fit_inputs.values():
                place, name = bound.origin(*at)
                if place != SOURCE:
                    (box.inputs if at in step.inputs.values() else box.learns).add(("operator", place))
                else:
                    uses.setdefault(name, set()).add(("operator", node))
        box.learns -= box.inputs
    outputs: dict[Any, list[str]] = {}
    for place, name in bound.targets:
        root, column = bound.origin(place, name)
        if root == SOURCE:
            uses.setdefault(column, set()).add(("output", SOURCE))
        outputs.setdefault(root, []).append(name)
    for root, names in outputs.items():
        by_key["output", root] = Box("output", names_text(names), {("operator", root)} if root != SOURCE else set())
    return _with_sources(bound, uses, by_key)


def _with_sources(bound: Bound, uses: dict[str, set[Any]], by_key: dict[Any, Box]) -> dict[Any, Box]:
    """Return the boxes with those of the source columns before them, which become inputs of the boxes that use them.

    Columns that the same boxes use share one box.
    """
    groups: dict[frozenset[Any], list[str]] = {}
    for name in bound.source:
        if name in uses:
            groups.setdefault(frozenset(uses[name]), []).append(name)
    sources = {}
    for number, (targets, names) in enumerate(groups.items()):
        sources["source", number] = Box("source", names_text(names))
        for key in targets:
            by_key[key].inputs.add(("source", number))
    return sources | by_key


def draw_workflow(bound: Bound) -> str:
    """Draw the workflow: columns on the left, outputs on the right, dotted where values are only learned from.

    An SVG image is shown by every page of Prefect, and by a report without a network; Mermaid is not. Of each kind the
    first `MOST_BOXES` boxes are drawn, and how many there are more.
    """
    every = make_boxes(bound)
    shown: dict[Any, Box] = {}
    more: list[str] = []
    for kind, names in (("source", "groups of columns"), ("operator", "operators"), ("output", "outputs")):
        of_kind = {key: box for key, box in every.items() if box.kind == kind}
        shown |= dict(list(of_kind.items())[:MOST_BOXES])
        more += [f"{len(of_kind) - MOST_BOXES:,} {names}"] if len(of_kind) > MOST_BOXES else []
    edges = [
        (origin, key, kind)
        for key, box in shown.items()
        for kind, origins in (("after", box.inputs), ("learns", box.learns))
        for origin in sorted(origins, key=str)
        if origin in shown
    ]
    note = f"not drawn: {', '.join(more)}" if more else ""
    return graph({key: (box.kind, box.text) for key, box in shown.items()}, _compute_depths(shown), edges, note)


def _compute_depths(shown: Mapping[Any, Box]) -> dict[Any, int]:
    """Compute how far right every box stands (0: leftmost): one beyond its inputs, outputs last."""
    depths: dict[Any, int] = {}

    def depth_of(key: Any) -> int:
        # Not in the order of `shown`: a box may learn from a later one. The graph has no cycles, so this ends.
        if key not in depths:
            box = shown[key]
            before = [depth_of(origin) for origin in box.inputs | box.learns if origin in shown]
            depths[key] = 0 if box.kind == "source" else max(before, default=0) + 1
        return depths[key]

    last = max((depth_of(key) for key, box in shown.items() if box.kind != "output"), default=0) + 1
    return {key: last if box.kind == "output" else depths[key] for key, box in shown.items()}


def tabulate_paths(bound: Bound) -> list[dict[str, str]]:
    """Tabulate which source columns go through which operators into which outputs."""
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for place, name in bound.targets:
        steps = _trace_steps(bound, place, name)
        sources = bound.source_columns([(place, name)], training=False)
        key = tuple(dict.fromkeys(f"{s.node} {operator_text(s.op)}" for s in steps))
        row = rows.setdefault(key, {"columns": [], "outputs": [], "types": []})
        row["columns"] += [c for c in sources if c not in row["columns"]]
        row["outputs"].append(name)
        row["types"].append(dtype_name(bound.output[name].dtype))
    table = []
    for key, row in rows.items():
        operators = " → ".join(step.partition(" ")[2] for step in key) or "as it is"
        columns = names_text(row["columns"], 12)
        outputs = names_text(row["outputs"], 12)
        types = ", ".join(dict.fromkeys(row["types"]))
        table.append({"columns": columns, "operators": operators, "outputs": outputs, "types": types})
    return table


def _trace_steps(bound: Bound, place: int, name: str) -> list[Step]:
    """Trace the steps that make a column, in graph order, without those that it only learns from."""
    applied: dict[str, Step] = {}
    todo = [bound.origin(place, name)]
    while todo:
        at = todo.pop()
        if at[0] != SOURCE and (step := bound.steps[at]).key not in applied:
            applied[step.key] = step
            todo += [bound.origin(*t) for t in step.inputs.values()]
    return sorted(applied.values(), key=lambda s: (s.node, s.key))


def load_or_draw_workflow(path: Path, bind: Callable[[], Bound]) -> str:
    """Load the picture of a run's workflow as SVG from `path`; if it is not there, draw it and save it."""
    if path.exists():
        return path.read_text()
    text = draw_workflow(bind())
    write_text(path, text)
    return text
