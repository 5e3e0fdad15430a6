"""The graph of a workflow bound to a schema, before any data is read."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NoReturn

import pyarrow as pa

from tasks.core.dtypes import is_list
from tasks.core.schema import Column, Schema, Tags, check_names, to_output_type
from tasks.errors import JobError, RowmillError, near
from tasks.graph.node import Node, title, topological
from tasks.ops.base import Entry, Learned, Operator, Unit
from tasks.ops.fitted_values import FittedSteps, FittedValues

SOURCE = -1  # the number of the source itself, which is not a node


@dataclass(frozen=True)
class Step:
    """An operator on one unit of columns in the bound graph.

    `inputs` and `fit_inputs` are the places of the columns that it takes to apply and to learn, by the names under
    which it takes them. `origins` and `fit_origins` are the columns of steps or of the source behind them
    (`Bound.origin`). `texts` are those of strings, which may be dictionary-encoded.
    """

    key: str
    node: int
    op: Operator
    unit: Unit
    inputs: Mapping[str, tuple[int, str]]
    fit_inputs: Mapping[str, tuple[int, str]]
    origins: Mapping[str, tuple[int, str]]
    fit_origins: Mapping[str, tuple[int, str]]
    texts: frozenset[str]
    outputs: tuple[Column, ...]
    depth: int  # learned steps that must be fitted before this one is applied, itself included
    within: int = SOURCE  # the rows of its inputs: those of the source, or those of the node that grouped them

    @cached_property
    def space(self) -> int:
        """The rows of its outputs: those of the source, or those of the node that grouped them."""
        return self.node if self.op.groups_rows else self.within

    @cached_property
    def may_hold_nan(self) -> frozenset[str]:
        """The outputs that are searched for NaN, which becomes null."""
        if not self.op.may_make_nan:
            return frozenset()
        types = {c.name: c.dtype.value_type if is_list(c.dtype) else c.dtype for c in self.outputs}
        return frozenset(name for name, dtype in types.items() if pa.types.is_floating(dtype))


@dataclass
class Bound:
    """A graph with every name resolved against a source schema; `fitted` are the learned values by step, if any.

    Nodes are numbered in graph order, the source has the number `SOURCE`; (number, name) is the place of a column. The
    rows that columns have in common are their space: those of the source, or those that a Groupby makes.
    """

    final: Node
    source: Schema
    fitted: FittedSteps = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = topological(self.final)
        self.number = {id(node): i for i, node in enumerate(self.nodes)}
        self.schemas: dict[int, Schema] = {SOURCE: self.source}
        self.selections: dict[int, tuple[Entry, ...]] = {}
        self.origins: dict[tuple[int, str], tuple[int, str]] = {}
        self.steps: dict[tuple[int, str], Step] = {}
        self._grouped_from: dict[int, int] = {}  # by node that groups rows: the rows that it groups
        self._silent: list[Step] = []  # learned steps that make no column, since they learned to drop theirs
        # By node, the columns that operators have learned to drop: to select or drop one is not an error.
        self.gone: dict[int, frozenset[str]] = {SOURCE: frozenset()}
        self._bind_all()
        self._settle_depths()
        self.space = self._find_common_space([self.origin(*t) for t in self.targets])

    @cached_property
    def output(self) -> Schema:
        """The output columns, in the types in which files hold them."""
        last = self.schemas[len(self.nodes) - 1]
        return Schema((replace(c, dtype=to_output_type(c.dtype)) for c in last.columns), fields=False)

    @cached_property
    def finer(self) -> dict[str, pa.DataType]:
        """The output columns (name -> type) whose files hold another type than the last step makes."""
        last = self.schemas[len(self.nodes) - 1]
        return {name: c.dtype for name, c in self.output.items() if c.dtype != last[name].dtype}

    @property
    def targets(self) -> list[tuple[int, str]]:
        return [(len(self.nodes) - 1, name) for name in self.output]

    @cached_property
    def output_origins(self) -> dict[str, tuple[int, str]]:
        """The columns of steps or of the source behind the output columns, by name."""
        return {name: self.origin(place, name) for place, name in self.targets}

    def _bind_all(self) -> None:
        """Bind every node after its parents, in graph order as far as possible.

        The extra column of an operator (a target, say) may come from a branch that is later in the graph. So a node
        that lacks one waits while another node can be bound. When all wait, the first is bound with the known columns.
        """
        waiting = list(enumerate(self.nodes))
        while waiting:
            still = []
            for i, node in waiting:
                if self._parents_are_bound(node) and not self._waits_for_column(i, node):
                    self._bind(i, node)
                else:
                    still.append((i, node))
            if len(still) == len(waiting):
                first = next(number for number, (_, node) in enumerate(still) if self._parents_are_bound(node))
                self._bind(*still.pop(first))
            waiting = still

    def _parents_are_bound(self, node: Node) -> bool:
        return all(self.number[id(parent)] in self.schemas for parent in node.parents)

    def _waits_for_column(self, i: int, node: Node) -> bool:
        """Return whether the node's operator needs a column that does not exist yet, and that an unbound node may
        make."""
        if node.op is None:
            return False
        p = self.number[id(node.parents[0])]
        names = (*node.op.extra_columns(fitting=False), *node.op.extra_columns(fitting=True))
        if all(self._find_extra_column(i, p, name) for name in names):
            return False
        return any(other not in self.schemas for other in range(len(self.nodes) - 1) if other != i)

    def _bind(self, i: int, node: Node) -> None:
        match node.kind:
            case "pick":
                self._bind_pick(i, node)
            case "join":
                self._bind_join(i, node)
            case "drop":
                self._bind_drop(i, node)
            case "apply":
                self._bind_apply(i, node)
            case unknown:
                raise ValueError(f"a node of the unknown kind {unknown!r}")

    def _bind_pick(self, i: int, node: Node) -> None:
        parents = [self.number[id(p)] for p in node.parents]
        entries: list[Entry] = []
        columns: dict[str, Column] = {}
        for entry in node.selection:
            if isinstance(entry, Tags):
                entries += [n for p in (parents or [SOURCE]) for n in self.schemas[p].with_tag(entry.value)]
            else:
                entries += self._expand_pattern(entry, (SOURCE, *parents) if node.name or not parents else parents)
        gone = frozenset(n for p in parents for n in self.gone[p] if not any(n in self.schemas[q] for q in parents))
        entries = [e for e in entries if not gone & set([e] if isinstance(e, str) else e)]
        self.gone[i] = gone
        for name in (n for e in entries for n in ([e] if isinstance(e, str) else e)):
            # A job's entries (nodes with a name) select from the source too, node[..] only from its node.
            places = [*reversed(parents), SOURCE] if node.name or not parents else parents
            place = next((p for p in places if name in self.schemas[p]), None)
            if place is None:
                known = [n for p in reversed(places) for n in self.schemas[p]]
                raise JobError(
                    f"there is no column {name!r}",
                    where=node.name or "the workflow",
                    do=near(name, dict.fromkeys(known)),
                )
            self.origins[i, name] = (place, name)
            columns[name] = self.schemas[place][name]
        self.selections[i] = tuple(entries)
        self.schemas[i] = Schema(columns.values(), fields=False)

    def _expand_pattern(self, entry: Entry, places: Sequence[int]) -> list[Entry]:
        """Expand a pattern (`x*`, `x[0-4]?`) to all columns that it matches, in the order of the places; return other
        entries as they are.

        An entry that is itself the name of a column is not a pattern. A pattern that matches nothing stays as it is.
        """
        if not isinstance(entry, str) or not set(entry) & set("*?["):
            return [entry]
        known = dict.fromkeys(name for place in places for name in self.schemas[place])
        return [entry] if entry in known else [*fnmatch.filter(known, entry)] or [entry]

    def _bind_join(self, i: int, node: Node) -> None:
        columns: dict[str, Column] = {}
        entries: list[Entry] = []
        maker: dict[str, Node] = {}
        for parent in node.parents:
            p = self.number[id(parent)]
            entries += self.selections[p]
            for name, column in self.schemas[p].items():
                if name in columns and self.origin(p, name) != self.origin(*self.origins[i, name]):
                    raise JobError(
                        f"two columns are called {name!r}",
                        where=f"{title(maker[name])} and {title(parent)}",
                        do="rename one with Rename, or set keep: false where it only feeds other entries",
                    )
                columns[name], maker[name] = column, parent
                self.origins[i, name] = (p, name)
        self.gone[i] = frozenset().union(*(self.gone[self.number[id(p)]] for p in node.parents)) - set(columns)
        self.selections[i] = tuple(dict.fromkeys(entries))
        self.schemas[i] = Schema(columns.values(), fields=False)

    def _bind_drop(self, i: int, node: Node) -> None:
        p = self.number[id(node.parents[0])]
        gone: set[str] = set()
        for e in node.selection:
            gone.update(self.schemas[p].with_tag(e.value) if isinstance(e, Tags) else [e] if isinstance(e, str) else e)
        self.gone[i] = self.gone[p]
        for name in sorted(gone - set(self.schemas[p]) - self.gone[p]):
            raise JobError(f"cannot drop {name!r}: there is no such column", do=near(str(name), self.schemas[p]))
        self.schemas[i] = Schema((c for c in self.schemas[p].columns if c.name not in gone), fields=False)
        self.selections[i] = tuple(e for entry in self.selections[p] for e in _remove_columns(entry, gone))
        self.origins.update({(i, name): (p, name) for name in self.schemas[i]})

    def _bind_apply(self, i: int, node: Node) -> None:
        p = self.number[id(node.parents[0])]
        op = node.op
        assert op is not None
        columns: dict[str, Column] = {}
        gone = set(self.gone[p])
        for unit in op.units(self.selections[p]):
            op.check(unit, self.schemas[p])
            key = f"{i}/{type(op).__name__}/{'+'.join(name.replace('+', '++') for name in unit)}"
            inputs = {name: (p, name) for name in unit}
            for name in op.extra_columns(fitting=False):
                inputs[name] = self._find_extra_column(i, p, name) or self._raise_missing_column(name, op)
            learned_from = {name: self._find_extra_column(i, p, name) for name in op.extra_columns(fitting=True)}
            fit_inputs = {name: place for name, place in learned_from.items() if place is not None} | inputs
            origins = {name: self.origin(*place) for name, place in inputs.items()}
            fit_origins = {name: self.origin(*place) for name, place in fit_inputs.items()}
            known = Schema(_rename_column(self.schemas[place][name], n) for n, (place, name) in fit_inputs.items())
            texts = frozenset(name for name, column in known.items() if pa.types.is_string(column.dtype))
            outputs = _make_outputs(op, unit, known, self.fitted.get(key))
            if isinstance(op, Learned) and op.settles_schema and key in self.fitted:
                gone |= {c.name for c in op.outputs(unit, known, None)} - {c.name for c in outputs}
            depth = max([self.depth(*place) for place in fit_inputs.values()], default=0) + _learns_from_data(op)
            space = self._find_common_space([*fit_origins.values()], node)
            if op.groups_rows:
                self._grouped_from[i] = space
            step = Step(key, i, op, unit, inputs, fit_inputs, origins, fit_origins, texts, outputs, depth, space)
            if not outputs and key in self.fitted:
                self._silent.append(step)
            for column in outputs:
                if column.name in columns:
                    if column.name in op.shared_outputs:
                        continue
                    raise JobError(
                        f"{type(op).__name__} makes the column {column.name!r} twice", do="give its columns other names"
                    )
                columns[column.name] = column
                self.steps[i, column.name] = step
            check_names([column.name for column in outputs], type(op).__name__)
        self.schemas[i] = Schema(columns.values(), fields=False)
        self.selections[i] = tuple(columns)
        self.gone[i] = frozenset(gone - set(columns))

    def _find_extra_column(self, i: int, p: int, name: str) -> tuple[int, str] | None:
        """Find where an extra column of node i, whose parent is p, comes from; None if no bound node has it.

        The nearest ancestor that has the column takes precedence over the source, the source over other nodes. Of the
        entries of a job above its own (nodes with names), the last one that makes the column counts, not one that only
        passes it on.
        """
        todo = [p]
        while todo:
            place = todo.pop(0)
            if name in self.schemas[place]:
                return place, name
            node = self.nodes[place]
            above = [self.number[id(parent)] for parent in node.parents]
            if node.kind == "pick" and node.name:
                above = [entry for entry in reversed(above) if name in self.schemas[entry]]
            todo += above
        if name in self.source:
            return SOURCE, name
        for place in [*reversed(range(i)), *range(i + 1, len(self.nodes))]:
            if name in self.schemas.get(place, ()):
                return place, name
        return None

    def _raise_missing_column(self, name: str, op: Operator) -> NoReturn:
        known = dict.fromkeys(n for schema in self.schemas.values() for n in schema)
        raise JobError(f"{type(op).__name__} needs the column {name!r}, which is not there", do=near(name, known))

    def taking_wider(self, types: Mapping[str, pa.DataType], training: bool) -> set[str]:
        """Find the columns of the source that may have these wider types.

        The steps that read them, in `training` or where what was learned is applied, must compute the same, and the
        output must keep its types. Halves are tried, since a graph of many columns is slow to bind.
        """
        if not types or self._takes_wider(types, training):
            return {*types}
        if len(types) == 1:
            return set()
        names = [*types]
        middle = len(types) // 2
        halves = ({n: types[n] for n in half} for half in (names[:middle], names[middle:]))
        return set[str]().union(*(self.taking_wider(half, training) for half in halves))

    def _takes_wider(self, types: Mapping[str, pa.DataType], training: bool) -> bool:
        columns = [replace(c, dtype=types.get(c.name, c.dtype)) for c in self.source.columns]
        try:
            wider = Bound(self.final, Schema(columns), self.fitted)
        except RowmillError:
            return False
        takes = all(
            step.op.takes_wider(step.unit, n)
            for step in (*self.steps.values(), *self.silent)
            for n, (place, inner) in (step.fit_inputs if training else step.inputs).items()
            if wider.schemas[place][inner].dtype != self.schemas[place][inner].dtype
        )
        return takes and wider.output == self.output

    def encoder(self, place: int, name: str) -> Step | None:
        """Find the step that made the values of a column, through steps that only rename or describe them.

        None for a source column.
        """
        place, name = self.origin(place, name)
        while place != SOURCE:
            step = self.steps[place, name]
            if not step.op.keeps_values:
                return step
            place, name = self.origin(*step.inputs[step.unit[0]])
        return None

    def origin(self, place: int, name: str) -> tuple[int, str]:
        """Find the (node, name) of the step or source column behind a name, through picks, joins and drops."""
        while (place, name) in self.origins:
            place, name = self.origins[place, name]
        return place, name

    def _find_common_space(self, roots: list[tuple[int, str]], node: Node | None = None) -> int:
        """Find the rows that all columns have in common; a JobError if some are grouped and others are not."""
        spaces = {SOURCE if place == SOURCE else self.steps[place, name].space: name for place, name in roots}
        if len(spaces) > 1:
            names = " and ".join(repr(name) for name in spaces.values())
            raise JobError(
                f"the columns {names} have different rows",
                where=title(node) if node else "the output",
                why="one stands before a Groupby, the other after it",
                do="take all columns from after the Groupby, as its keys or aggregations",
            )
        return next(iter(spaces), SOURCE)

    @cached_property
    def filters(self) -> list[Step]:
        """The steps that remove rows, in graph order. They hold for the whole table: of the source's rows, or of those
        that a Groupby made."""
        return sorted({s.key: s for s in self.steps.values() if s.op.removes_rows}.values(), key=lambda s: s.node)

    def filters_of(self, space: int) -> list[Step]:
        """List the filters of some rows, and of the rows that these were grouped from, in graph order."""
        spaces = {space}
        while space in self._grouped_from:
            space = self._grouped_from[space]
            spaces.add(space)
        return [f for f in self.filters if f.within in spaces]

    def filters_for(self, targets: Iterable[tuple[int, str]]) -> list[Step]:
        """List the filters that hold for the rows of some columns, in graph order."""
        origins = {self.origin(*t) for t in targets}
        spaces = {SOURCE, *(self.steps[at].space for at in origins if at[0] != SOURCE)}
        keys = {f.key for space in spaces for f in self.filters_of(space)}
        return [f for f in self.filters if f.key in keys]

    def filter_rounds(self, filters: Iterable[Step]) -> list[list[Step]]:
        """Group filters into rounds, one after another; the filters of a round look at the same rows.

        Rows of the source come before those that are grouped, and what needs fewer phases of learning comes first. A
        filter of what is made of runs (a history, say) comes after those that are not, so that no run holds the rows
        that they remove, and after the filters on which it depends.
        """
        rounds: dict[tuple[int, int, int], list[Step]] = {}
        for f in filters:
            rounds.setdefault((f.within, f.depth, self._count_earlier_rounds(f)), []).append(f)
        return [rounds[place] for place in sorted(rounds)]

    def _count_earlier_rounds(self, step: Step) -> int:
        before = [s for s in self.needed_steps(step.inputs.values()) if s.within == step.within]
        if not any(s.op.run_columns for s in before):
            return 0
        return 1 + max([self._count_earlier_rounds(s) for s in before if s.op.removes_rows], default=0)

    @cached_property
    def made_of_runs(self) -> frozenset[str]:
        """The keys of the steps whose values depend on other rows of their run; of grouped rows, all."""
        return frozenset(
            s.key
            for s in self.steps.values()
            if any(t.op.run_columns for t in [s, *self.needed_steps(s.inputs.values())])
        )

    def _settle_depths(self) -> None:
        """Make every learned step wait for all filters that do not depend on it: it must not learn removed rows."""
        filters = self.filters
        if all(f.depth == 0 for f in filters):
            return
        behind = {f.key: {s.key for s in self.needed_steps(f.inputs.values())} for f in filters}
        for _ in range(len(self.steps) + 2):
            changed = False
            for at, step in sorted(self.steps.items(), key=lambda item: item[0][0]):
                depth = max([self.depth(*t) for t in step.fit_inputs.values()], default=0)
                if _learns_from_data(step.op):
                    waits = [
                        self.steps[f.node, f.outputs[0].name].depth
                        for f in self.filters_of(step.within)
                        if step.key not in behind[f.key]
                    ]
                    depth = max([depth, *waits]) + 1
                if depth != step.depth:
                    self.steps[at], changed = replace(step, depth=depth), True
            if not changed:
                self.__dict__.pop("filters", None)
                return
        raise JobError(
            "filters wait for each other's statistics",
            where=", ".join(title(self.nodes[f.node]) for f in filters),
            why="each needs values that are learned from rows that the other keeps",
            do="join them, or filter the source",
        )

    def depth(self, place: int, name: str) -> int:
        place, name = self.origin(place, name)
        return 0 if place == SOURCE else self.steps[place, name].depth

    def needed_steps(self, targets: Iterable[tuple[int, str]]) -> list[Step]:
        """List the steps that the targets need, in graph order (inputs of fitting included)."""
        needed: dict[str, Step] = {}
        todo = [self.origin(*t) for t in targets]
        while todo:
            place, name = todo.pop()
            if place == SOURCE or self.steps[place, name].key in needed:
                continue
            step = self.steps[place, name]
            needed[step.key] = step
            todo += [self.origin(*t) for t in step.fit_inputs.values()]
        return sorted(needed.values(), key=lambda s: (s.node, s.key))

    @cached_property
    def learned(self) -> list[Step]:
        """The steps behind the output that learn from data, in graph order."""
        return [s for s in self.needed_steps(self.targets) if _learns_from_data(s.op)]

    @cached_property
    def silent(self) -> list[Step]:
        """The learned steps that make no column, since they learned to drop theirs: a refit looks at their columns."""
        steps = []
        for step in self._silent:
            waits = [filter.depth for filter in self.filters_of(step.within)]
            inputs = [self.depth(*place) for place in step.fit_inputs.values()]
            steps.append(replace(step, depth=max([0, *waits, *inputs]) + 1))
        return steps

    @cached_property
    def learning(self) -> list[Step]:
        """`learned` and `silent`, in graph order."""
        return sorted([*self.learned, *self.silent], key=lambda s: (s.node, s.key))

    @cached_property
    def learned_from_parameters(self) -> list[Step]:
        """The steps behind the output that learn from their parameters alone, such as a side table."""
        return [s for s in self.needed_steps(self.targets) if isinstance(s.op, Learned) and not s.op.passes]

    def source_columns(self, targets: Iterable[tuple[int, str]], training: bool) -> list[str]:
        """List the source columns that have to be read for the targets, in the order of the source, then its fields."""
        needed: set[str] = set()
        visited: set[str] = set()
        seen: set[tuple[int, str]] = set()
        todo = [self.origin(*t) for t in targets]
        while todo:
            place, name = todo.pop()
            if (place, name) in seen:
                continue
            seen.add((place, name))
            if place == SOURCE:
                needed.add(name)
            elif (step := self.steps[place, name]).key not in visited:
                visited.add(step.key)
                todo += [self.origin(*t) for t in (step.fit_inputs if training else step.inputs).values()]
        return [*(name for name in self.source if name in needed), *sorted(needed.difference(self.source))]


def _remove_columns(entry: Entry, gone: Iterable[str]) -> list[Entry]:
    """Remove the columns that are gone from an entry; a group with one remaining column becomes that column."""
    if isinstance(entry, str):
        return [] if entry in gone else [entry]
    left = tuple(n for n in entry if n not in gone)
    return [left if len(left) > 1 else left[0]] if left else []


def _learns_from_data(op: Operator) -> bool:
    return isinstance(op, Learned) and op.passes > 0


def _make_outputs(op: Operator, unit: Unit, known: Schema, fitted: FittedValues | None) -> tuple[Column, ...]:
    """Make the output columns of an operator for a unit; a JobError if it needs a type that only the rows tell."""
    unsettled = [c.name for c in known.columns if c.properties.get("settles") and pa.types.is_null(c.dtype)]
    try:
        return tuple(op.outputs(unit, known, fitted))
    except RowmillError as error:
        if not unsettled:
            raise
        what = f"{type(op).__name__} needs the type of column {unsettled[0]!r} before the fit"
        raise JobError(what, why=error.what, do="give its type where the column is made: columns_out") from None


def _rename_column(column: Column, name: str) -> Column:
    return column if column.name == name else Column(name, column.dtype, column.tags, column.properties)
