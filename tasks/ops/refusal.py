"""Data that an operator cannot learn from: which row of the source it is, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.errors import DataError
from tasks.ops.base import Columns, Context


def refuse_infinite(operator: str, names: Sequence[str], columns: Columns, context: Context, why: str) -> None:
    """A DataError about the first row that holds an infinite value in one of the named columns, if there is one."""
    engine, xp = context.engine, context.engine.xp
    first: tuple[int, str, float] | None = None
    for name in names:
        values, valid = engine.numbers(columns[name])
        if values.dtype.kind != "f":
            continue
        infinite = xp.isinf(values) if valid is None else xp.logical_and(xp.isinf(values), valid)
        places = xp.flatnonzero(infinite)
        if len(places) and (first is None or int(places[0]) < first[0]):
            first = int(places[0]), name, float(values[places[0]])
    if first is None:
        return
    place, name, value = first
    raise DataError(
        f"{operator} cannot learn from {value} in column {name!r}",
        why=f"row {int(context.rows[place]):,} of the source holds it; {why}",
        do="limit the values with Clip first, or leave such rows out with a filter",
    )
