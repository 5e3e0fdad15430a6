"""Transforms a frame that a user gives, in this process, and turns its ids back into values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from tasks import engines
from tasks.cluster.transfer import gpu_setup
from tasks.core.dtypes import plain_type
from tasks.core.schema import ROW, Column, Schema, check_kinds, check_names, check_storable
from tasks.engines.user_frames import open_frame
from tasks.errors import DataError
from tasks.graph.binding import SOURCE, Bound
from tasks.graph.evaluation import Evaluation
from tasks.graph.failed_casts import list_records, warn
from tasks.graph.node import Node
from tasks.graph.state import State
from tasks.job.apply_fitted import list_needed_columns, remove_outputs, wider_number
from tasks.ops.base import Context
from tasks.ops.categorify import Categorify
from tasks.sources.formats.conform import (
    decode_repeated_values,
    first_fraction,
    fit_column,
    is_carried,
    with_fields,
)

# A dictionary of the strings of so few rows costs more than it saves.
FEW_ROWS = 64
# Bindings are compared with a frame one after another: hashing a schema costs more.
MOST_BINDINGS = 16
MOST_GRAPHS = 64  # bound to other columns than those of the fit
WHERE = "the given frame"


@dataclass(frozen=True)
class PlannedColumn:
    """A column that a graph needs: its place in a table, and the type in which the graph takes it.

    `is_carried`: its values are taken as they are. `is_text`: they are strings, which are taken so where there are few.
    """

    place: int
    field: pa.Field
    is_carried: bool
    is_text: bool

    def take(self, table: pa.Table) -> pa.ChunkedArray:
        """Take the column from a table; a DataError for a value that the type does not hold."""
        values = table.column(self.place)
        if self.is_carried or (self.is_text and len(values) <= FEW_ROWS):
            return values
        try:
            return fit_column(decode_repeated_values(values), self.field)
        except DataError as error:
            raise _explain_misfit(error, first_fraction(values, self.field.type)) from None


@dataclass(frozen=True)
class FrameBinding:
    """How a bound graph takes the columns of frames whose tables have this schema.

    `has_fields`: some of the columns are fields of structs.
    """

    schema: pa.Schema
    has_fields: bool
    bound: Bound
    columns: Mapping[str, PlannedColumn]

    def take_columns(self, table: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Take the columns that the graph needs, in the types of its source."""
        if self.has_fields:
            table = with_fields(table, self.columns)
        return {name: column.take(table) for name, column in self.columns.items()}


class FrameTransform:
    """Transforms frames by what a workflow has learned. Any thread may use it.

    What depends on the schema of a frame alone is worked out for the first frame of that schema: the graph bound to its
    columns and types, and how each column is taken. `list_missing_targets` takes the schema of a frame that lacks
    columns, and lists the targets that cannot be made of it.
    """

    def __init__(
        self, final: Node, schema: Schema, state: State, list_missing_targets: Callable[[Schema], list[str]]
    ) -> None:
        self.state = state
        self.list_missing_targets = list_missing_targets
        self._fitted = Schema(c for c in schema.columns if c.name != ROW)
        self._bound = Bound(final, schema, state.values)
        self._bindings: tuple[FrameBinding, ...] = ()  # never changed, only replaced: threads read it without a lock
        self._graphs: dict[object, Bound] = {}  # by the columns that frames lack, and those that are of wider types

    def transform(self, data: object) -> Any:
        """Make a frame of the same kind of the outputs."""
        table, engine, restore = open_frame(data, self._names)
        binding = self._find_binding(data, table)
        gpu_setup.prepare(engine)
        kernels = engines.engine(engine)
        rows = table.num_rows
        columns = kernels.from_arrow(binding.take_columns(table))
        context = Context(kernels, kernels.row_numbers(0, rows), rules=self.state.rules)
        evaluation = Evaluation(binding.bound, columns, self.state, context, where=WHERE).apply_filters()
        outputs = evaluation.outputs()
        if evaluation.failed:
            warn(list_records(evaluation.failed))
        return restore(outputs, kernels, _list_places(evaluation, binding.bound, rows))

    @cached_property
    def _needed(self) -> list[str]:
        return list_needed_columns(self._bound)

    @cached_property
    def _names(self) -> list[str]:
        """The columns to read of a frame: those that are needed, and those of structs that have them as fields."""
        roots = {root for name in self._needed if (root := self._bound.source.root(name))}
        return [*self._needed, *sorted(roots.difference(self._needed))]

    def _find_binding(self, data: object, table: pa.Table) -> FrameBinding:
        schema = table.schema
        for binding in self._bindings:
            if binding.schema.equals(schema):
                return binding
        binding = self._bind_to_frame(data, table)
        self._bindings = (binding, *self._bindings[: MOST_BINDINGS - 1])
        return binding

    def _bind_to_frame(self, data: object, table: pa.Table) -> FrameBinding:
        check_names(table.column_names, WHERE)
        schema = table.schema
        table = with_fields(table, self._needed)
        bound = self._bound
        needed = self._needed
        missing = frozenset(needed).difference(table.column_names)
        if missing:
            bound = self._bind_without(data, table, missing)
            needed = list_needed_columns(bound)
        bound = self._bind_in_wider_types(bound, table.select(needed).schema, missing)
        has_fields = not {*needed} <= {*schema.names}
        return FrameBinding(schema, has_fields, bound, _plan_columns(table.schema, bound.source, needed))

    def _bind_without(self, data: object, table: pa.Table, missing: frozenset[str]) -> Bound:
        """Bind the graph without the targets that need a column which a frame does not have; a DataError where anything
        else needs one."""

        def bind() -> Bound:
            columns = table.column_names if isinstance(data, pa.Table) else getattr(data, "columns", table.column_names)
            others = (str(name) for name in columns if str(name) not in table.column_names)
            there = Schema([*Schema.from_arrow(table.schema).columns, *(Column(name, pa.string()) for name in others)])
            left_out = self.list_missing_targets(there)
            final, _ = remove_outputs(self._bound.final, self._fitted, self._fitted, left_out)
            return Bound(final, self._fitted, self.state.values)

        return self._bind_once(missing, bind)

    def _bind_in_wider_types(self, bound: Bound, schema: pa.Schema, missing: frozenset[str]) -> Bound:
        """Bind a graph to the wider types of numbers that columns of a frame have, where it takes them."""
        numbers = {f.name: wider_number(bound.source[f.name].dtype, plain_type(f.type)) for f in schema}
        wide = {name: dtype for name, dtype in numbers.items() if dtype is not None}
        if not wide:
            return bound

        def bind() -> Bound:
            taken = bound.taking_wider(wide, training=False)
            columns = [replace(c, dtype=wide[c.name]) if c.name in taken else c for c in bound.source.columns]
            return Bound(bound.final, Schema(columns), bound.fitted)

        return self._bind_once((missing, *wide.items()), bind)

    def _bind_once(self, key: object, bind: Callable[[], Bound]) -> Bound:
        """Bind a graph, or take it as it was bound before: many schemas share a graph, and to bind it takes long."""
        bound = self._graphs.get(key)
        if bound is None:
            bound = bind()
            if len(self._graphs) >= MOST_GRAPHS:
                self._graphs = {}
            self._graphs[key] = bound
        return bound


def _plan_columns(schema: pa.Schema, source: Schema, needed: Sequence[str]) -> dict[str, PlannedColumn]:
    """Plan how the needed columns of a table become those of the source that a workflow was fitted with; a DataError
    names one that is of another kind."""
    try:
        check_kinds(source, Schema.from_arrow(schema), needed)
    except DataError as error:
        raise _explain_misfit(error) from None
    fields = pa.schema([(name, source[name].dtype) for name in needed])
    check_storable(fields, WHERE)
    columns = {}
    for field in fields:
        place = schema.get_field_index(field.name)
        here = schema.field(place).type
        is_text = here == field.type == pa.string()
        columns[field.name] = PlannedColumn(place, field, is_carried(here, field.type), is_text)
    return columns


def _explain_misfit(error: DataError, first: tuple[int, str] | None = None) -> DataError:
    """Say of a column that does not fit its type where this type is from; `first` are the place and the value of the
    first row that does not fit."""
    ending = "the workflow was fitted with"
    what = error.what if ending in error.what else f"{error.what}, the type that {ending}"
    why = f"row {first[0]:,}, counted from 0, has {first[1]}; {error.why}" if first else error.why
    return DataError(what, where=WHERE, why=why, do="give values of the fitted type")


def decode_ids(data: object, bound: Bound, state: State) -> Any:
    """The frame with the values of Categorify in place of their ids; other columns stay."""
    table, engine, restore = open_frame(data)
    check_names(table.column_names, WHERE)
    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        step = bound.encoder(len(bound.nodes) - 1, name) if name in bound.output else None
        if step is None or not isinstance(step.op, Categorify):
            columns[name] = column
            continue
        values = step.op.inverse(column.combine_chunks(), state.values[step.key])
        names = list(step.unit) if step.op.combo and len(step.unit) > 1 else [name]
        columns.update(zip(names, values, strict=True))
    gpu_setup.prepare(engine)
    kernels = engines.engine(engine)
    return restore(kernels.from_arrow(pa.table(columns)), kernels, None)


def _list_places(evaluation: Evaluation, bound: Bound, rows: int) -> Any:
    """The places in a given frame of the rows that came out: None for all of them, and for rows that were grouped."""
    context = evaluation.contexts[bound.space]
    return None if bound.space != SOURCE or len(context.rows) == rows else context.rows
