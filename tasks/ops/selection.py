"""Exact medians and quantiles of the whole data set, whatever the partitioning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from tasks import frame
from tasks.frame import radix
from tasks.ops.base import Columns, Context, Learned, Unit
from tasks.ops.buckets import _counted, bucket
from tasks.ops.continuous import filled_columns, filled_flags
from tasks.schema import Column, Schema, Tags

Partial = tuple[str, radix.Counted]  # (kind of the numbers: i, u or f; their counts)


class _Selecting(Learned):
    """Learns the values at exact ranks by radix selection, in up to four passes over its columns alone.

    A subclass says which `fractions` of the way from the smallest to the largest value it wants.
    """

    passes: ClassVar[int] = 4
    refittable: ClassVar[bool] = False

    def fractions(self) -> list[float]:
        raise TypeError(f"{type(self).__name__} does not define fractions")

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        return True

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> Partial:
        column, engine = columns[unit[0]], context.engine
        values, valid = engine.numbers(engine.leaves(column) if engine.is_list(column) else column)
        values = values if valid is None else values[valid]
        return values.dtype.kind, radix.count(values, context.question, engine.xp)

    def merge(self, a: Partial, b: Partial) -> Partial:
        return self.merge_all([a, b])

    def merge_all(self, partials: Sequence[Partial]) -> Partial:
        return partials[0][0], radix.merge([counted for _, counted in partials])

    def refine(self, partial: Partial) -> radix.Question | None:
        counted = partial[1]
        return radix.next_question(counted, sorted({r for f in self.fractions() for r in _ranks(f, counted.total)}))

    def quantiles(self, partial: Partial) -> list[float]:
        """The values at the fractions, interpolated linearly as numpy.quantile does; none of no values."""
        kind, counted = partial
        if not counted.total:
            return []
        found = []
        for fraction in self.fractions():
            low, high = _ranks(fraction, counted.total)
            a, b = (float(v) for v in radix.values_at(counted, [low, high], kind))
            found.append(_between(a, b, fraction * (counted.total - 1) - low))
        return found

    def kept_partial(self, partial: Partial, fitted: dict[str, Any]) -> dict[str, Any]:
        """Nothing: exact ranks of more data need all data again."""
        return {}


def _ranks(fraction: float, total: int) -> tuple[int, int]:
    low = min(math.floor(fraction * (total - 1)), max(total - 1, 0)) if total else 0
    return low, min(low + 1, max(total - 1, 0))


def _between(a: float, b: float, share: float) -> float:
    """a + (b - a) share, from whichever end is nearer, so that both ends are met exactly.

    Between an infinite value and another one lies the infinite one, between both infinities the nearer one.
    """
    if a == b or not share:
        return a
    if math.isinf(a) or math.isinf(b):
        return a if math.isinf(a) and (share <= 0.5 or not math.isinf(b)) else b
    if math.isinf(float(b) - float(a)):  # beyond the largest float
        return a * (1 - share) + b * share
    return b - (b - a) * (1 - share) if share >= 0.5 else a + (b - a) * share


class FillMedian(_Selecting):
    """null -> the exact median of the whole data set, float64; with `add_binary_cols` `<name>_filled` says where.

    For an even count the mean of the two middle values, the infinite one if one is (minus infinity if both are, with
    opposite signs). List columns: null elements are filled with the median of all elements, null lists stay. A column
    of nothing but nulls stays as it is. Not refittable: the median of more data cannot be found from that of some.
    Source of the method: radix selection, as in Knuth, The Art of Computer Programming 3, 5.2.5.

    >>> from tasks.workflow import Workflow
    >>> table = pa.table({"x": [1.0, None, 4.0, 2.0, 9.0]})
    >>> Workflow(["x"] >> FillMedian()).fit(table).transform(table).to_pydict()
    {'x': [1.0, 3.0, 4.0, 2.0, 9.0]}
    """

    add_binary_cols: bool = False
    takes = frozenset({"number", "bool"})
    leaves = True
    adds_tags = frozenset({Tags.CONTINUOUS.value})

    def fractions(self) -> list[float]:
        return [0.5]

    def outputs(self, unit: Unit, schema: Schema, fitted: Any) -> list[Column]:
        made = [self.output(schema[name]) for name in unit]
        return made + filled_columns(made) if self.add_binary_cols else made

    def dtype_out(self, column: Column) -> pa.DataType:
        return pa.float64()

    def finalize(self, partial: Partial) -> dict[str, Any]:
        return {"median": next(iter(self.quantiles(partial)), None)}

    def transform(self, column: Any, fitted: dict[str, Any]) -> Any:
        engine = frame.engine_of(column)
        values, valid = engine.numbers(column)
        values = values.astype("float64")
        if valid is None or fitted["median"] is None:
            return engine.from_numbers(values, valid)
        return engine.from_numbers(engine.xp.where(valid, values, fitted["median"]))

    def apply(self, columns: Columns, unit: Unit, fitted: Any, context: Context) -> Columns:
        out = super().apply(columns, unit, fitted, context)
        return out | filled_flags(columns, unit, context) if self.add_binary_cols else out


class QuantileBucketize(_Selecting):
    """Buckets of about equal size: Bucketize with boundaries at the exact quantiles, int32; null stays null.

    The boundaries are the quantiles 1/n .. (n-1)/n of the values that are not null, interpolated linearly; equal ones
    become one, so that there may be fewer buckets than `num_buckets`. A column of nothing but nulls has one bucket.
    Lists: their elements. Not refittable.

    >>> from tasks.workflow import Workflow
    >>> table = pa.table({"x": [1.0, 2.0, 3.0, 40.0, None]})
    >>> Workflow(["x"] >> QuantileBucketize(2)).fit(table).transform(table).to_pydict()
    {'x': [0, 0, 1, 1, None]}
    """

    num_buckets: int = Field(10, ge=2, le=10_000)
    takes = frozenset({"number", "bool"})
    leaves = True
    adds_tags = frozenset({Tags.CATEGORICAL.value})

    def fractions(self) -> list[float]:
        return [i / self.num_buckets for i in range(1, self.num_buckets)]

    def outputs(self, unit: Unit, schema: Schema, fitted: Any) -> list[Column]:
        made = self.output(schema[unit[0]])
        return [made if fitted is None else _counted(made, len(fitted["boundaries"]) + 1)]

    def dtype_out(self, column: Column) -> pa.DataType:
        return pa.int32()

    def finalize(self, partial: Partial) -> dict[str, Any]:
        return {"boundaries": sorted(set(self.quantiles(partial)))}

    def transform(self, column: Any, fitted: dict[str, Any]) -> Any:
        return bucket(column, fitted["boundaries"])
