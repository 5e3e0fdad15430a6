"""Where the columns of an output come from: columns of the source and of side tables, and the operators in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tasks.graph.binding import SOURCE, Bound, Step
from tasks.ops.base import Learned, Operator
from tasks.ops.join_external import JoinExternal
from tasks.ops.windows import Groupby

Influence = Literal["IDENTITY", "TRANSFORMATION", "AGGREGATION", "WINDOW", "GROUP_BY", "JOIN", "FILTER"]
WEAKER = get_args(Influence)  # each one than those before it
INDIRECT = WEAKER[3:]  # they decide which values come together, and are not among them


@dataclass(frozen=True)
class ColumnOrigin:
    """A column of the source, or of the side table in `file`, that a column depends on.

    `influence` is called as in the column lineage of OpenLineage; AGGREGATION is learned from all rows. `nodes` are the
    numbers of the graph's nodes whose operators are in between.
    """

    column: str
    file: str = ""
    influence: Influence = "IDENTITY"
    nodes: tuple[int, ...] = ()


class ColumnLineage:
    """The origins of the columns of a bound graph, and of its rows."""

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self._known: dict[tuple[int, str], list[ColumnOrigin]] = {}
        for step in bound.needed_steps(bound.targets):  # in graph order: then no call waits for many others
            for column in step.outputs:
                self.of(step.node, column.name)

    def outputs(self) -> dict[str, list[ColumnOrigin]]:
        """Return the origins of each output column, by name, in the order of the output."""
        return {name: self.of(place, name) for place, name in self.bound.targets}

    def of_rows(self) -> list[ColumnOrigin]:
        """Return the columns that decide which rows the output has, by filters and groups of the graph."""
        filters = self.bound.filters_for(self.bound.targets)
        groups = [step for step in self.bound.needed_steps(self.bound.targets) if step.op.groups_rows]
        return _merge_origins(
            self._trace_origins(
                (step, step.inputs[name], "GROUP_BY" if step.op.groups_rows else "FILTER")
                for step in (*filters, *groups)
                for name in _list_deciding_columns(step.op) or step.unit
            )
        )

    def operators(self, origin: ColumnOrigin) -> list[str]:
        """Return the names of the operators between an origin and its column, in graph order."""
        return [type(self.bound.nodes[number].op).__name__ for number in origin.nodes]

    def of(self, place: int, name: str) -> list[ColumnOrigin]:
        """Return the origins of the column at a place of the graph."""
        place, name = self.bound.origin(place, name)
        if place == SOURCE:
            return [ColumnOrigin(name)]
        if (place, name) not in self._known:
            step = self.bound.steps[place, name]
            origins = [*self._trace_origins((step, at, influence) for at, influence in _list_used_columns(step, name))]
            if isinstance(step.op, JoinExternal) and name not in step.unit:
                origins += [ColumnOrigin(name, file, nodes=(step.node,)) for file in step.op.files]
            self._known[place, name] = _merge_origins(origins)
        return self._known[place, name]

    def _trace_origins(self, used: Iterable[tuple[Step, tuple[int, str], Influence]]) -> Iterator[ColumnOrigin]:
        """Yield the origins of columns that steps use, as origins of what the steps make."""
        for step, at, influence in used:
            for origin in self.of(*at):
                nodes = origin.nodes if influence == "IDENTITY" else (*origin.nodes, step.node)
                yield replace(origin, influence=max(origin.influence, influence, key=WEAKER.index), nodes=nodes)


def _list_used_columns(step: Step, output: str) -> Iterator[tuple[tuple[int, str], Influence]]:
    """Yield the places of the columns that an output of a step depends on, each with its influence."""
    op = step.op
    own = step.op.made_of(output, step.unit)
    keeps = op.removes_rows or op.groups_rows or op.hands_on
    if op.keeps_values or (keeps and own == (output,)):
        yield from ((step.inputs[name], "IDENTITY") for name in own)
        return
    yield from ((step.inputs[name], "TRANSFORMATION") for name in own)
    how: Influence = "JOIN" if isinstance(op, JoinExternal) else "GROUP_BY" if op.groups_rows else "TRANSFORMATION"
    how = "WINDOW" if op.run_columns and not op.groups_rows else how
    yield from ((step.inputs[name], how) for name in _list_deciding_columns(op) if name not in own)
    if isinstance(op, Learned) and op.passes:
        known = {*own, *op.extra_columns(fitting=False)}
        yield from ((at, "AGGREGATION") for name, at in step.fit_inputs.items() if name not in known)


def _list_deciding_columns(op: Operator) -> tuple[str, ...]:
    """List the columns, besides the selected ones, that an operator uses for all of its outputs."""
    if isinstance(op, Groupby):
        return tuple(dict.fromkeys([*op.keys, *op.sorted_by]))
    return op.extra_columns(fitting=False)


def _merge_origins(origins: Iterable[ColumnOrigin]) -> list[ColumnOrigin]:
    """Merge equal origins; each has the nodes of all paths from it."""
    nodes: dict[ColumnOrigin, set[int]] = {}
    for origin in origins:
        nodes.setdefault(replace(origin, nodes=()), set()).update(origin.nodes)
    return [replace(origin, nodes=tuple(sorted(numbers))) for origin, numbers in nodes.items()]
