"""Transforms a frame that a user gives, in this process, and turns its ids back into values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks import engines
from tasks.cluster.transfer import gpu_setup
from tasks.core.dtypes import plain_type
from tasks.core.schema import Column, Schema, check_kinds
from tasks.engines.user_frames import Restore, open_frame
from tasks.errors import DataError
from tasks.graph.binding import SOURCE, Bound
from tasks.graph.evaluation import Evaluation
from tasks.graph.failed_casts import list_records, warn
from tasks.graph.state import State
from tasks.job.apply_fitted import wider_number
from tasks.ops.base import Context
from tasks.ops.categorify import Categorify
from tasks.sources.formats.conform import conform, first_fraction, with_distinct_values, with_fields


@dataclass(frozen=True)
class GivenFrame:
    """A frame as an Arrow table: its engine, and what makes a frame of its kind of outputs.

    `restore` takes the columns of the output, the kernels, and the places of the rows that came out (None for all).
    """

    table: pa.Table
    engine: str
    restore: Restore


# A dictionary of the strings of so few rows costs more than it saves.
FEW_ROWS = 64


def open_columns(data: object, needed: Sequence[str], roots: Collection[str]) -> GivenFrame:
    """The columns of a frame that are needed, as far as it has them, also those that are fields of the structs
    `roots`."""
    table, engine, restore = open_frame(data, [*needed, *sorted({*roots}.difference(needed))])
    return GivenFrame(with_fields(table, needed), engine, restore)


def transform_table(frame: GivenFrame, bound: Bound, state: State, needed: Sequence[str]) -> Any:
    """The outputs of a bound graph for the table of a frame, as a frame of the same kind."""
    gpu_setup.prepare(frame.engine)
    kernels = engines.engine(frame.engine)
    rows = frame.table.num_rows
    columns = kernels.from_arrow(_conform_table(frame.table, bound.source, needed))
    context = Context(kernels, kernels.row_numbers(0, rows))
    evaluation = Evaluation(bound, columns, state, context, where="the given frame").apply_filters()
    outputs = evaluation.outputs()
    warn(list_records(evaluation.failed))
    return frame.restore(outputs, kernels, _list_places(evaluation, bound, rows))


def decode_ids(data: object, bound: Bound, state: State) -> Any:
    """The frame with the values of Categorify in place of their ids; other columns stay."""
    table, engine, restore = open_frame(data)
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


def list_wider_numbers(bound: Bound, table: pa.Table) -> dict[str, pa.DataType]:
    """The types of the columns of a table that are wider numbers than those of the fit."""
    numbers = {f.name: wider_number(bound.source[f.name].dtype, plain_type(f.type)) for f in table.schema}
    return {name: dtype for name, dtype in numbers.items() if dtype is not None}


def _conform_table(table: pa.Table, schema: Schema, needed: Sequence[str]) -> pa.Table:
    """The needed columns in the types that the workflow was fitted with; a DataError names the one that does not
    fit."""
    frame_schema = Schema(Column(field.name, plain_type(field.type)) for field in table.schema)
    try:
        check_kinds(schema, frame_schema, needed)
        plain = needed if table.num_rows <= FEW_ROWS else ()
        return conform(with_distinct_values(table), pa.schema([(n, schema[n].dtype) for n in needed]), plain)
    except DataError as error:
        ending = "the workflow was fitted with"
        why = error.why
        what = error.what if ending in error.what else f"{error.what}, the type that {ending}"
        name = getattr(error, "column", "")
        first = first_fraction(table.column(name), schema[name].dtype) if name else None
        if first:
            why = f"row {first[0]:,}, counted from 0, has {first[1]}; {why}"
        raise DataError(what, where="the given frame", why=why, do="give values of the fitted type") from None


def _list_places(evaluation: Evaluation, bound: Bound, rows: int) -> Any:
    """The places in a given frame of the rows that came out: None for all of them, and for rows that were grouped."""
    context = evaluation.contexts[bound.space]
    return None if bound.space != SOURCE or len(context.rows) == rows else context.rows
