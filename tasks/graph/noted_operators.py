"""Operators of users' own in a workflow that is only looked at: what was noted of them, and nothing is imported.

A command that looks at an output must not run code that the output names. So a saved workflow says of each such
operator what the graph needs: its units, their columns, and what kind of operator it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import ConfigDict

from tasks.core.schema import Column, Schema
from tasks.core.strict_json import JsonObject
from tasks.graph.binding import Bound
from tasks.ops.base import Entry, Learned, Operator, Unit, make_operator
from tasks.ops.fitted_values import FittedValues
from tasks.storage.documents import ColumnForm, Count, Form, Names

KINDS = ("removes_rows", "groups_rows", "keeps_values", "keeps_ids", "settles_schema")  # class variables that are noted


class UnitForm(Form):
    """A unit of an operator, and the columns that it makes."""

    unit: Names
    outputs: list[ColumnForm]


class NotedForm(Form):
    """An operator of a user's own: its units, the further columns that it reads, and its kind."""

    units: list[UnitForm]
    applying: Names
    fitting: Names
    passes: Count | None = None
    kinds: Names = []


def note_operators(bound: Bound) -> JsonObject:
    """Note what can be said of operators that users define, by the numbers of their nodes; {} if there are none."""
    noted = {}
    for number, node in enumerate(bound.nodes):
        if node.op is None or ":" not in node.op.to_json()["op"]:
            continue
        parent = bound.number[id(node.parents[0])]
        outputs = {step.unit: step.outputs for step in bound.steps.values() if step.node == number}
        noted[str(number)] = {
            "units": [
                {"unit": list(unit), "outputs": Schema(outputs.get(unit, ()), fields=False).to_json()}
                for unit in node.op.units(bound.selections[parent])
            ],
            "applying": list(node.op.extra_columns(fitting=False)),
            "fitting": list(node.op.extra_columns(fitting=True)),
            "passes": node.op.passes if isinstance(node.op, Learned) else None,
            "kinds": [kind for kind in KINDS if getattr(node.op, kind, False)],
        }
    return noted


def make_noted(spec: JsonObject, noted: JsonObject | None) -> Operator:
    """Make the operator of an entry of a graph; one that a user defined is made from its note, without its class."""
    name = str(spec.get("op"))
    if ":" not in name:
        return make_operator(spec)
    module, _, qualified = name.partition(":")
    note = noted or {"units": [], "applying": [], "fitting": []}
    base: type[Operator] = _Noted if note.get("passes") is None else _NotedLearned
    variables: JsonObject = {kind: True for kind in KINDS if kind in note.get("kinds", ()) and hasattr(base, kind)}
    if base is _NotedLearned:
        variables["passes"] = note["passes"]
    make_class: Any = type(base)  # pydantic's metaclass
    # Operators are registered when their class is made, unless its name begins with _.
    cls = make_class("_Named", (base,), {"__module__": __name__, "note": note, **variables})
    cls.__name__ = qualified.rpartition(".")[2]
    cls.__qualname__ = qualified
    cls.__module__ = module
    return cls(**{key: value for key, value in spec.items() if key != "op"})


class _Noted(Operator):
    """An operator as its note says; it takes any columns and any parameters, and does no work."""

    model_config = ConfigDict(**{**Operator.model_config, "extra": "allow"})

    note: ClassVar[JsonObject] = {}

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        return [tuple(one["unit"]) for one in self.note["units"]]

    def check(self, unit: Unit, schema: Schema) -> None:
        """Nothing: its columns were checked when the workflow was made."""

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        return tuple(self.note["fitting" if fitting else "applying"])

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        outputs = next(one["outputs"] for one in self.note["units"] if tuple(one["unit"]) == unit)
        return list(Schema.from_json(outputs).columns)


class _NotedLearned(_Noted, Learned):
    """An operator that has learned something, as its note says."""

    model_config = _Noted.model_config
