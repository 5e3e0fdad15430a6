"""Numbers to a fitted range: into [0, 1], or into the smallest type that holds them."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.core.dtypes import dtype_name, is_list, leaf_type, parse_dtype
from tasks.core.schema import Column, Schema, Tags
from tasks.engines.algorithms.exact_sums import whole_difference
from tasks.engines.algorithms.reductions import extremes
from tasks.errors import DataError
from tasks.ops.base import Columns, Context, Learned, Series, Unit
from tasks.ops.continuous import FLOATS
from tasks.ops.fitted_values import FittedValues

Range = tuple[Any, Any] | None  # (smallest, largest) of the values that are not null, None if there is none


def save_range(partial: Range, fitted: FittedValues) -> dict[str, Any]:
    """What is saved of a range beside fitted values with `min` and `max`: nothing where these are the range."""
    low, high = partial or (None, None)
    return {} if (low, high) == (fitted["min"], fitted["max"]) else {"range": [low, high]}


def restore_range(fitted: FittedValues, saved: FittedValues) -> Range:
    """The range of what `save_range` saved.

    >>> restore_range({"min": 2, "max": 6}, {}), restore_range({"min": 2, "max": 6}, {"range": [1, 6]})
    ((2, 6), (1, 6))
    """
    low, high = saved.get("range", (fitted["min"], fitted["max"]))
    return None if low is None else (low, high)


class _Ranged(Learned):
    """Learns the smallest and the largest finite value, of all elements for lists."""

    def observe(self, column: Series) -> Range:
        engine = engines.engine_of(column)
        values, valid = engine.numbers(column)
        values = values if valid is None else values[valid]
        if values.dtype.kind == "f":
            values = values[engine.xp.isfinite(values)]
        return extremes(values) if len(values) else None

    def merge(self, a: Range, b: Range) -> Range:
        if a is None or b is None:
            return b if a is None else a
        return min(a[0], b[0]), max(a[1], b[1])

    def finalize(self, partial: Range) -> FittedValues:
        low, high = partial or (None, None)
        return {"min": low, "max": high}

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        return True

    def kept_partial(self, partial: Range, fitted: FittedValues) -> FittedValues:
        """Nothing where the fitted values are the range; the range of all rows where they stayed and it grew."""
        return save_range(partial, fitted)

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> Range:
        return restore_range(fitted, saved)


class NormalizeMinMax(_Ranged):
    """Scale to the fitted range: (x - min) / (max - min), in float64, given as `dtype`; null stays.

    Parameters
    ----------
    dtype : {"float32", "float64"}, default "float32"
        Type of the scaled values.

    Notes
    -----
    Later data are not clipped: values outside the fitted range fall below 0 or above 1. A fit on one value, or on none,
    gives 0 for every finite value. Integers beyond 2^53 are subtracted exactly. Booleans count as 0 and 1. Of list
    columns the elements are scaled.

    Infinities are not learned from and stay infinite; after a fit on one value or on none they are null.

    A refit merges the ranges: min and max are those of a fit of all rows, bit for bit.

    Examples
    --------
    >>> NormalizeMinMax().finalize((2, 6))
    {'min': 2, 'max': 6}

    >>> from rowmill import Workflow
    >>> table = pa.table({"x": [2.0, 6.0, 3.0, None]})
    >>> Workflow(["x"] >> NormalizeMinMax()).fit(table).transform(table).to_pydict()
    {'x': [0.0, 1.0, 0.25, None]}
    """

    dtype: Literal["float32", "float64"] = "float32"
    in_float64 = True
    retunable = frozenset({"dtype"})
    takes = frozenset({"number", "bool"})
    leaves = True
    adds_tags = frozenset({Tags.CONTINUOUS.value})

    def transform(self, column: Series, fitted: FittedValues) -> Series:
        engine = engines.engine_of(column)
        dtype = FLOATS[self.dtype]
        low = fitted["min"] or 0
        high = fitted["max"] or 0
        if high <= low:
            return engine.affine(column, low, math.inf, dtype)
        if math.isinf(high - low):  # beyond float64, a half of it is not
            return engine.affine(engine.affine(column, 0.0, 2.0, pa.float64()), low / 2, high / 2 - low / 2, dtype)
        if isinstance(high, int) and max(-low, high) > 1 << 53:  # where float64 would round before it subtracts
            values, valid = engine.numbers(column)
            if values.dtype.kind in "iu":
                scaled = whole_difference(values, low, engine.xp) / float(high - low)
                return engine.from_numbers(scaled.astype(self.dtype), valid)
        return engine.affine(column, low, high - low, dtype)

    def dtype_out(self, column: Column) -> pa.DataType:
        return FLOATS[self.dtype]


class ReduceDtypeSize(_Ranged):
    """Store numbers in the smallest type that holds the fitted range; null stays null.

    Parameters
    ----------
    float_dtype : {"float32", "float64"}, default "float32"
        Type of floats, which are rounded to float32; float64 also widens float32.

    Notes
    -----
    Integers get the first of int8, uint8, int16, uint16, int32, uint32, int64, uint64 that holds the smallest and the
    largest value. Floats get `float_dtype` unless the range is beyond it. In list columns, the elements are stored so.
    Decimals, and columns without a finite value, keep their type. Infinities do not count for the range: every floating
    type holds them.

    Before fitting the schema has the column's own type and the property `settles` = "dtype". A refit leaves the type as
    it is, and warns where a fit of all rows would take another one.

    Errors: a DataError for a value of other data that the fitted type does not hold.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"n": [1, 200]})
    >>> workflow = Workflow(["n"] >> ReduceDtypeSize()).fit(table)
    >>> workflow.transform(table).schema.field("n").type
    DataType(uint8)
    >>> workflow.transform(pa.table({"n": [300]}))
    Traceback (most recent call last):
    ...
    tasks.errors.DataError: a value of column 'n' does not fit the type uint8 ...
    """

    float_dtype: Literal["float32", "float64"] = "float32"
    leaves = True
    settles_schema: ClassVar[bool] = True
    on_refit = "frozen"
    frozen_why = "the column's type would change"

    def apply(self, columns: Columns, unit: Unit, fitted: FittedValues, context: Context) -> Columns:
        engine = context.engine
        column = columns[unit[0]]
        here = engine.dtype(column)
        leaf = self._smallest(leaf_type(here), fitted["min"], fitted["max"])
        try:
            return {unit[0]: engine.cast(column, pa.list_(leaf) if is_list(here) else leaf)}
        except pa.ArrowInvalid as error:
            raise DataError(
                f"a value of column {unit[0]!r} does not fit the type {dtype_name(leaf)}",
                why=f"{error}; fitted on values from {fitted['min']} to {fitted['max']}",
                do="fit again with these data, or leave ReduceDtypeSize out",
            ) from error

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        column = schema[unit[0]]
        if fitted is None:
            return [column.with_properties(settles="dtype")]
        leaf = self._smallest(column.leaf, fitted["min"], fitted["max"])
        dtype = pa.list_(leaf) if is_list(column.dtype) else leaf
        return [Column(column.name, dtype, column.tags, {k: v for k, v in column.properties.items() if k != "settles"})]

    def _smallest(self, leaf: pa.DataType, low: float | None, high: float) -> pa.DataType:
        if low is None or not (pa.types.is_integer(leaf) or pa.types.is_floating(leaf)):
            return leaf
        if pa.types.is_floating(leaf):
            most = max(abs(low), abs(high))
            return leaf if most > float(np.finfo(self.float_dtype).max) else FLOATS[self.float_dtype]
        names = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
        name = next(n for n in names if np.iinfo(n).min <= low and high <= np.iinfo(n).max)
        return parse_dtype(name)

    def would(self, old: FittedValues, new: FittedValues, unit: Unit) -> str | None:
        low = new["min"]
        high = new["max"]
        if low is None:
            return None
        leaf = pa.float64() if isinstance(low, float) else pa.int64()  # all integers take the same type for a range
        now = self._smallest(leaf, low, high)
        was = self._smallest(leaf, old["min"], old["max"])
        if old["min"] is not None and now == was:
            return None
        before = "the column's own" if old["min"] is None else dtype_name(was)
        return f"the type would be {dtype_name(now)}, not {before}: values reach from {low:,} to {high:,}"
