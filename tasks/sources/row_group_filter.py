"""Which row groups `source.filter` leaves out, by the bounds of their columns: they are not part of the plan.

Only conditions that compare a column with a value that needs no row decide. A row group stays where its bounds are not
known, where a comparison cannot be made of bounds, and where a cast in a condition fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.core.schema import Schema
from tasks.engines.expression.interpreter import true_mask
from tasks.engines.expression.nodes import ExpressionNode
from tasks.engines.expression.syntax import Expression, parse
from tasks.errors import RowmillError
from tasks.sources.formats.parquet_bounds import FLOATS, TEXTS, Bounds
from tasks.sources.formats.survey import Inspected

LEFT_OUT = "left_out"  # in a plan's options: by file, [row group, rows] of each row group that is left out
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}


def leave_out_row_groups(
    files: Sequence[Inspected], condition: str | None, schema: Schema
) -> tuple[list[Inspected], dict[str, list[list[int]]]]:
    """(the files with the units that may have rows for the filter, by file what is left out).

    One unit stays at least, so that a filter that keeps no row fails as it does without bounds.
    """
    parts = parse(condition).conjuncts if condition else []
    parts = [part for part in parts if any(not {*part.columns}.isdisjoint(file.bounds) for file in files)]
    if not parts:
        return list(files), {}
    chosen = [_may_pass(file, parts, schema) for file in files]
    if not any(mask.any() for mask in chosen):
        chosen[0][0] = True
    left_out = {}
    remaining = []
    for number, (file, mask) in enumerate(zip(files, chosen, strict=True)):
        gone = [[unit.piece.group, unit.rows] for unit, stays in zip(file.units, mask, strict=True) if not stays]
        if gone:
            left_out[str(number)] = gone
        units = tuple(unit for unit, stays in zip(file.units, mask, strict=True) if stays)
        remaining.append(replace(file, units=units))
    return remaining, left_out


def _may_pass(file: Inspected, parts: Sequence[Expression], schema: Schema) -> np.ndarray:
    """For each unit of a file whether rows of it may pass all conditions."""
    typed = {name: _in_type_of(schema, name, pair) for name, pair in file.bounds.items()}
    bounds = {name: pair for name, pair in typed.items() if pair is not None}
    return may_pass(parts, bounds, len(file.units))


def may_pass(parts: Sequence[Expression], bounds: Mapping[str, Bounds], count: int) -> np.ndarray:
    """For each of `count` row groups, or files, whether rows of it may pass all conditions. The bounds are in the types
    in which columns are read."""
    mask = np.ones(count, dtype=bool)
    for part in parts:
        if not {*part.columns}.isdisjoint(bounds):
            mask &= _BoundsTest(part, bounds, len(mask)).may_hold(part.root)
    return mask


def _in_type_of(schema: Schema, name: str, bounds: Bounds) -> Bounds | None:
    """The bounds in the type in which the column is read; None if that may change the order of values."""
    if name not in schema:
        return None
    stored, read = bounds.least.type, schema[name].dtype
    if stored == read:
        return bounds
    alike = (
        (stored in TEXTS and read in TEXTS)
        or (pa.types.is_integer(stored) and pa.types.is_integer(read))
        or (stored in FLOATS and read in FLOATS)
        or (pa.types.is_timestamp(stored) and pa.types.is_timestamp(read) and stored.tz == read.tz)
    )
    try:
        return Bounds(bounds.least.cast(read), bounds.greatest.cast(read)) if alike else None
    except pa.ArrowInvalid:
        return None


class _BoundsTest:
    """Where a condition may hold, for row groups with these bounds."""

    def __init__(self, condition: Expression, bounds: Mapping[str, Bounds], groups: int) -> None:
        self._condition = condition
        self._bounds = bounds
        self._groups = groups

    def may_hold(self, node: ExpressionNode) -> np.ndarray:
        everywhere = np.ones(self._groups, dtype=bool)
        if node.verb == "and":
            return np.logical_and.reduce([self.may_hold(arg) for arg in node.args])
        if node.verb == "or":
            return np.logical_or.reduce([self.may_hold(arg) for arg in node.args])
        if node.verb == "in":
            (column,) = node.args
            return np.logical_or.reduce([self._compare("==", column, value) for value in node.value] or [everywhere])
        if node.verb == "between":
            column, low, high = node.args
            return self._compare(">=", column, low) & self._compare("<=", column, high)
        if node.verb in FLIPPED:
            left, right = node.args
            if left.verb == "column":
                return self._compare(node.verb, left, right)
            return self._compare(FLIPPED[node.verb], right, left)
        return everywhere

    def _compare(self, verb: str, column: ExpressionNode, value: ExpressionNode) -> np.ndarray:
        if column.verb != "column" or column.value not in self._bounds or not _is_constant(value):
            return np.ones(self._groups, dtype=bool)
        bounds = self._bounds[column.value]
        if verb == "==":
            return self._holds("<=", column, value, bounds.least) & self._holds(">=", column, value, bounds.greatest)
        return self._holds(verb, column, value, bounds.least if verb in ("<", "<=") else bounds.greatest)

    def _holds(self, verb: str, column: ExpressionNode, value: ExpressionNode, bounds: pa.Array) -> np.ndarray:
        """Where the comparison is true of a bound, or the bound is not known."""
        kernels = engines.engine("pandas")
        root = ExpressionNode(verb, (column, value), None, column.place)
        frame = kernels.from_arrow(pa.table({column.value: bounds}))
        failed = Counter[str]()
        try:
            mask = true_mask(Expression(self._condition.text, root, (column.value,)), frame, failed)
        except RowmillError:  # reading the rows says what is wrong with the filter
            return np.ones(self._groups, dtype=bool)
        if failed:
            return np.ones(self._groups, dtype=bool)
        return np.asarray(mask) | bounds.is_null().to_numpy(zero_copy_only=False)


def _is_constant(node: ExpressionNode) -> bool:
    return node.verb != "column" and all(_is_constant(arg) for arg in node.args)
