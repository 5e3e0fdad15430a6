"""Operators learned and applied in a line: tables in, Python lists out, on either engine, for any split of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from tasks import engines
from tasks.dataset import Dataset
from tasks.ops.base import Context, Learned, Operator
from tasks.workflow import Workflow
from tests.frames import to_list


def transformed(nodes: Any, table: pa.Table, engine: str, other: pa.Table | None = None) -> dict[str, list[Any]]:
    """The output columns of a workflow fitted on the table, applied to the same table or to another."""
    workflow = Workflow(nodes).fit(Dataset(table, engine=engine))
    found: dict[str, list[Any]] = {name: [] for name in workflow.output_schema}
    for part in workflow.transform(Dataset(table if other is None else other, engine=engine)).frames():
        for name in found:
            found[name] += to_list(part[name])
    return found


def learned(
    op: Learned, table: pa.Table, unit: Sequence[str], engine: str, cuts: Sequence[int] = (), backward: bool = False
) -> Any:
    """What the operator learns, in all its passes, of the table cut before these rows; parts merged from either end."""
    kernels = engines.engine(engine)
    if not op.is_built_in:
        kernels = engines.user_kernels(kernels)
    question = None
    edges = [0, *cuts, table.num_rows]
    for _ in range(op.passes):
        parts = []
        for start, stop in pairwise(edges):
            columns = kernels.from_arrow(table.slice(start, stop - start))
            context = Context(kernels, kernels.row_numbers(start, stop - start), training=True, question=question)
            parts.append(op.observe_unit(columns, tuple(unit), context))
        whole = parts[-1] if backward else parts[0]
        for part in reversed(parts[:-1]) if backward else parts[1:]:
            whole = op.merge(whole, part)
        question = op.refine(whole)
        if question is None:
            return op.finalize_unit(whole, tuple(unit))
    raise AssertionError("the operator asks for more passes than it declares")


def one_column(op: Operator, values: list[Any], dtype: pa.DataType, engine: str) -> list[Any]:
    """The only output column of an operator on one column."""
    (made,) = transformed(["x"] >> op, pa.table({"x": pa.array(values, dtype)}), engine).values()  # type: ignore[operator]
    return made
