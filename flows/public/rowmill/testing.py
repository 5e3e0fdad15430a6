"""What every operator keeps to, for tests of operators of one's own: `from rowmill.testing import check_operator`."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

import tasks.graph.node  # noqa: F401 (gives operators `columns >> operator`)
from tasks import engines
from tasks.dataset import Dataset
from tasks.ops.base import Context, Learned, Operator, make_operator
from tasks.workflow import Workflow

CUTS = ((), (1,), (1, 2), (2, 3, 5))  # the rows before which a table is cut


def check_operator(columns: list[Any], operator: Operator, table: pa.Table, engine: str = "pandas") -> None:
    """Try an operator on a table of a few rows with nulls; an AssertionError says which rule is broken.

    The rules: parameters survive JSON; the output has the promised types, and the same rows whether the table comes
    whole or in pieces; the table stays as it is; a saved workflow computes the same; what is learned does not depend on
    where the rows are cut or on how their parts are grouped when they merge. Operators that remove rows, group them or
    need the rows of a key together are tried whole only.

    >>> from rowmill import ops
    >>> check_operator(["x"], ops.FillMissing(0), pa.table({"x": [1, None, 3]}))
    """
    before = table.to_pylist()
    again = make_operator(json.loads(json.dumps(operator.to_json(), allow_nan=False)))
    assert again == operator, f"{again!r}, made of the JSON of {operator!r}, is another operator"

    workflow = Workflow(columns >> operator).fit(Dataset(table, engine=engine))
    whole = _apply_workflow(workflow, table, engine)
    promised = workflow.output_schema.to_arrow()
    assert whole.schema.equals(promised), f"the output has the types {whole.schema}, and {promised} was promised"
    by_row = not (operator.removes_rows or operator.groups_rows or operator.run_columns)
    for cuts in _cuts(table) if by_row else ():
        parts = [_apply_workflow(workflow, part, engine) for part in _cut_table(table, cuts)]
        pieces = pa.concat_tables(parts).to_pydict()
        assert _close(pieces, whole.to_pydict()), f"cut before the rows {cuts} the table gives other rows: {pieces}"
    assert repr(table.to_pylist()) == repr(before), "the operator changed its input"

    with tempfile.TemporaryDirectory() as folder:
        workflow.save(Path(folder) / "fitted")
        saved = _apply_workflow(Workflow.load(Path(folder) / "fitted"), table, engine).to_pydict()
    assert _close(saved, whole.to_pydict()), f"the saved workflow gives other rows: {saved}"
    if isinstance(operator, Learned) and operator.passes and by_row:
        _check_learned(columns, operator, table, engine)


def _apply_workflow(workflow: Workflow, table: pa.Table, engine: str) -> pa.Table:
    """Return the output of a table, computed by the engine."""
    kernels = engines.engine(engine)
    parts = [{name: kernels.host(column) for name, column in part.items()} for part in _frames(workflow, table, engine)]
    return pa.concat_tables(pa.table(part) for part in parts)


def _frames(workflow: Workflow, table: pa.Table, engine: str) -> Iterator[Any]:
    return workflow.transform(Dataset(table, engine=engine)).frames()


def _check_learned(columns: list[Any], operator: Learned, table: pa.Table, engine: str) -> None:
    for unit in operator.units([tuple(c) if isinstance(c, list) else c for c in columns]):
        expected = _learn_from_parts(operator, unit, table, engine, (), backward=False)
        for cuts in _cuts(table):
            for backward in (False, True):
                values = _learn_from_parts(operator, unit, table, engine, cuts, backward)
                assert _close(values, expected), (
                    f"of {', '.join(unit)}, cut before the rows {cuts} and merged from the "
                    f"{'end' if backward else 'start'}, {values} was learned, and {expected} of the whole"
                )


def _learn_from_parts(
    operator: Learned, unit: tuple[str, ...], table: pa.Table, engine: str, cuts: Sequence[int], backward: bool
) -> dict[str, Any]:
    """What is learned of the parts of a table in all passes; parts are merged from the start or from the end."""
    kernels = engines.engine(engine)
    if not operator.is_built_in:
        kernels = engines.user_kernels(kernels)
    question = None
    start_rows = (0, *cuts)
    whole: Any = None
    for _ in range(operator.passes):
        partials = []
        for start, part in zip(start_rows, _cut_table(table, cuts), strict=True):
            context = Context(kernels, kernels.row_numbers(start, part.num_rows), training=True, question=question)
            partials.append(operator.observe_unit(kernels.from_arrow(part), unit, context))
        whole = partials.pop() if backward else partials.pop(0)
        for partial in reversed(partials) if backward else partials:
            whole = operator.merge(partial, whole) if backward else operator.merge(whole, partial)
        question = operator.refine(whole)
        if question is None:
            break
    return operator.finalize_unit(whole, unit)


def _cuts(table: pa.Table) -> list[tuple[int, ...]]:
    return [cuts for cuts in CUTS if max(cuts, default=0) < table.num_rows]


def _cut_table(table: pa.Table, cuts: Sequence[int]) -> list[pa.Table]:
    edges = [0, *cuts, table.num_rows]
    return [table.slice(start, stop - start) for start, stop in pairwise(edges)]


def _close(a: object, b: object) -> bool:
    """Tell whether two plain values or tables are equal, floats but for the last digits."""
    if isinstance(a, pa.Table) and isinstance(b, pa.Table):
        return a.schema.equals(b.schema) and _close(a.to_pydict(), b.to_pydict())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9) or a == b or (a != a and b != b)
    return bool(a == b)
