"""Exact medians and quantiles of the whole data set, whatever the partitioning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

import pyarrow as pa
from pydantic import Field

from tasks import engines
from tasks.core.schema import Column, Schema, Tags
from tasks.engines.algorithms import radix_selection
from tasks.engines.hashing.canonical import DIGITS, to_unscaled
from tasks.ops.base import Columns, Context, Learned, Series, Unit
from tasks.ops.buckets import bucket, with_cardinality
from tasks.ops.continuous import flag_nulls, make_flag_columns
from tasks.ops.fitted_values import FittedValues

Partial = tuple[str, radix_selection.Counted]  # (kind of the numbers: i, u, f, or decimal and its scale; their counts)


class _Selecting(Learned):
    """Learns the values at exact ranks by radix selection, in up to four passes over its columns alone.

    A subclass says which `fractions` of the way from the smallest to the largest value it wants.
    """

    passes: ClassVar[int] = 4
    on_refit = "frozen"
    frozen_why = "exact ranks need all rows again"

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> Partial:
        column = columns[unit[0]]
        engine = context.engine
        column = engine.leaves(column) if engine.is_list(column) else column
        dtype = engine.dtype(column)
        if pa.types.is_decimal(dtype) and dtype.precision <= DIGITS:
            values = engine.xp.asarray(to_unscaled(engine.host(column).drop_null()))
            return f"decimal {dtype.scale}", radix_selection.count(values, context.question, engine.xp)
        values, valid = engine.numbers(column)
        values = values if valid is None else values[valid]
        return values.dtype.kind, radix_selection.count(values, context.question, engine.xp)

    def merge(self, a: Partial, b: Partial) -> Partial:
        return self.merge_all([a, b])

    def merge_all(self, partials: Sequence[Partial]) -> Partial:
        return partials[0][0], radix_selection.merge([counted for _, counted in partials])

    def refine(self, partial: Partial) -> radix_selection.SelectionQuestion | None:
        counted = partial[1]
        return radix_selection.next_question(
            counted, sorted({r for f in self.fractions() for r in _ranks(f, counted.total)})
        )

    def fractions(self) -> list[Fraction]:
        raise TypeError(f"{type(self).__name__} does not define fractions")

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        return True

    def quantiles(self, partial: Partial) -> list[float | Fraction]:
        """The exact values at the fractions, interpolated linearly as numpy.quantile does; none of no values.

        Between infinite values they are floats.
        """
        kind, counted = partial
        if not counted.total:
            return []
        quantiles = []
        for fraction in self.fractions():
            low, high = _ranks(fraction, counted.total)
            a, b = (_to_exact_number(v, kind) for v in radix_selection.values_at(counted, [low, high], kind))
            quantiles.append(_between(a, b, fraction * (counted.total - 1) - low))
        return quantiles

    def kept_partial(self, partial: Partial, fitted: FittedValues) -> FittedValues:
        """Nothing: exact ranks of more data need all data again."""
        return {}


def quantile_ranks(fraction: Fraction, total: int) -> tuple[int, int]:
    """The two ranks between which a quantile of so many values lies."""
    return _ranks(fraction, total)


def quantile_of(partial: Partial, fraction: Fraction) -> float | None:
    """The exact quantile, interpolated linearly as numpy does and rounded once; None of no values."""
    kind, counted = partial
    if not counted.total:
        return None
    low, high = _ranks(fraction, counted.total)
    a, b = (_to_exact_number(v, kind) for v in radix_selection.values_at(counted, [low, high], kind))
    return float(_between(a, b, fraction * (counted.total - 1) - low))


def _ranks(fraction: Fraction, total: int) -> tuple[int, int]:
    low = math.floor(fraction * (total - 1)) if total else 0
    return low, min(low + 1, max(total - 1, 0))


def _to_exact_number(value: float, kind: str) -> float | Fraction:
    """A decimal of its digits; all else as it is."""
    return Fraction(value) / Fraction(10) ** int(kind.split()[1]) if kind.startswith("decimal") else value


def _between(a: float | Fraction, b: float | Fraction, share: Fraction) -> float | Fraction:
    """a + (b - a) share, exactly.

    Between an infinite value and another one lies the infinite one, between both infinities the nearer one.
    """
    if math.isinf(a) or math.isinf(b):
        if a == b or not share:
            return a
        return a if math.isinf(a) and (share <= Fraction(1, 2) or not math.isinf(b)) else b
    return Fraction(a) + (Fraction(b) - Fraction(a)) * share


def _boundary(value: float | Fraction, kind: str) -> float | int:
    """A boundary as float64, if that is all the same to the values; else, of integers, the least one at or above it.

    An integer is at or above a boundary if it is at or above the next integer. So a float stands for the boundary
    between integers where both have the same next integer, which is always so below 2^53.

    >>> [_boundary(Fraction(5, 2), "i"), _boundary(Fraction(2**62 + 1), "i"), _boundary(Fraction(2**63 + 1, 2), "i")]
    [2.5, 4611686018427387905, 4611686018427387905]
    """
    rounded = float(value)
    return rounded if kind not in ("i", "u") or math.ceil(rounded) == math.ceil(value) else math.ceil(value)


class FillMedian(_Selecting):
    """Replace null by the exact median of the whole data set; the column becomes float64.

    Parameters
    ----------
    add_binary_cols : bool, default False
        Add `<name>_filled`, true where a null was replaced; of a list column it is a list of bools.

    Notes
    -----
    For an even count the median is the mean of the two middle values, rounded once (of decimals with more than 18
    digits, right to a unit of the last place). In list columns, null elements are filled with the median of all
    elements, and null lists stay. An all-null column stays null.

    An infinity is the smallest or the largest value; if one of the two middle values is infinite, the median is, and
    between -inf and inf it is -inf.

    Fitting takes up to four passes over the column. A refit leaves the median as it is: that of more rows needs all
    rows again.

    Source: radix selection, as in Knuth, The Art of Computer Programming 3, 5.2.5.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"x": [1.0, None, 4.0, 2.0, 9.0]})
    >>> Workflow(["x"] >> FillMedian()).fit(table).transform(table).to_pydict()
    {'x': [1.0, 3.0, 4.0, 2.0, 9.0]}
    >>> Workflow(["x"] >> FillMedian(add_binary_cols=True)).fit(table).transform(table.slice(0, 2)).to_pydict()
    {'x': [1.0, 3.0], 'x_filled': [False, True]}
    """

    add_binary_cols: bool = False
    in_float64 = True
    retunable = frozenset({"add_binary_cols"})
    takes = frozenset({"number", "bool"})
    leaves = True
    adds_tags = frozenset({Tags.CONTINUOUS.value})

    def finalize(self, partial: Partial) -> FittedValues:
        return {"median": next(map(float, self.quantiles(partial)), None)}

    def transform(self, column: Series, fitted: FittedValues) -> Series:
        engine = engines.engine_of(column)
        values, valid = engine.numbers(column)
        values = values.astype("float64")
        if valid is None or fitted["median"] is None:
            return engine.from_numbers(values, valid)
        return engine.from_numbers(engine.xp.where(valid, values, fitted["median"]))

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        out = super().apply(columns, unit, fitted, context)
        return out | flag_nulls(columns, unit, context) if self.add_binary_cols else out

    def fractions(self) -> list[Fraction]:
        return [Fraction(1, 2)]

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        columns = [self.output(schema[name]) for name in unit]
        return columns + make_flag_columns(columns) if self.add_binary_cols else columns

    def dtype_out(self, column: Column) -> pa.DataType:
        return pa.float64()


class QuantileBucketize(_Selecting):
    """Put values into buckets of about equal size: Bucketize with the exact quantiles as boundaries, int32; null stays
    null.

    Parameters
    ----------
    num_buckets : int, default 10
        Number of buckets, 2 to 10,000. There may be fewer, since equal boundaries become one: a constant has two at
        most, a column of nothing but nulls has one.

    Notes
    -----
    The boundaries are the quantiles 1/n .. (n-1)/n of the values that are not null, interpolated linearly and rounded
    once. Integers of any size are compared exactly: beyond 2^53, where a float would divide them elsewhere, the
    boundary is the smallest integer at or above the quantile. Decimals are compared as float64. Infinities are values
    like any other. In list columns, the elements are put into buckets.

    Fitting takes up to four passes over the column. A refit leaves the boundaries as they are, as with FillMedian.

    Source: numpy.quantile, whose values these are.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"x": [1.0, 2.0, 3.0, 40.0, None]})
    >>> Workflow(["x"] >> QuantileBucketize(2)).fit(table).transform(table).to_pydict()
    {'x': [0, 0, 1, 1, None]}
    >>> table = pa.table({"x": [7, 7, 7]})
    >>> Workflow(["x"] >> QuantileBucketize(4)).fit(table).transform(pa.table({"x": [6, 7]})).to_pydict()
    {'x': [0, 1]}
    """

    num_buckets: int = Field(10, ge=2, le=10_000)
    in_float64 = True
    takes = frozenset({"number", "bool"})
    leaves = True
    adds_tags = frozenset({Tags.CATEGORICAL.value})

    def finalize(self, partial: Partial) -> FittedValues:
        return {"boundaries": sorted({_boundary(value, partial[0]) for value in self.quantiles(partial)})}

    def transform(self, column: Series, fitted: FittedValues) -> Series:
        return bucket(column, fitted["boundaries"])

    def fractions(self) -> list[Fraction]:
        return [Fraction(i, self.num_buckets) for i in range(1, self.num_buckets)]

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        column = self.output(schema[unit[0]])
        return [column if fitted is None else with_cardinality(column, len(fitted["boundaries"]) + 1)]

    def dtype_out(self, column: Column) -> pa.DataType:
        return pa.int32()
