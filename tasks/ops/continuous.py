"""Scales, fills, clips and log-transforms columns; checks that a parameter fits its column's type."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
from pydantic import TypeAdapter, model_validator

from tasks import engines
from tasks.core.dtypes import dtype_name, is_list, leaf_type
from tasks.core.schema import Column, Schema, Tags
from tasks.engines.algorithms.moments import Moments, deviation, merge_moments
from tasks.errors import DataError
from tasks.ops.base import Columns, Context, Learned, Operator, Series, Unit, refuse_infinite
from tasks.ops.fitted_values import FittedValues

HUGE = 2.0**1000  # beyond it the difference of two values may overflow
INFINITE = "mean and standard deviation of infinite values do not exist"
BEYOND_MICROSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")  # digits of a second that Python's times drop
DURATION = TypeAdapter(datetime.timedelta)  # reads ISO texts, PT1.5S, as a saved workflow has them
FLOATS = {"float32": pa.float32(), "float64": pa.float64()}


class Normalize(Learned):
    """Scale to mean 0 and standard deviation 1: (x - mean) / std, of the rows that are not null (ddof 1).

    Parameters
    ----------
    dtype : {"float32", "float64"}, default "float32"
        Type of the scaled values.

    Notes
    -----
    A standard deviation of 0, or fewer than two values, gives x - mean. Null stays null; list columns are scaled by
    their elements.

    Moments are float64 and merged pairwise, right also at offsets of 1e9 and for values from 1e-300 to 1e300; a column
    is constant if its smallest value equals its largest. A refit merges the moments: mean and standard deviation are
    those of a fit of all rows within 1e-12.

    Fitting raises an error that names the column and row of an infinity; transform leaves infinities infinite.

    Errors: a DataError in a fit for infinities, and for values whose standard deviation is beyond float64.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.

    Examples
    --------
    >>> Normalize().finalize((4, 2.5, 5.0, 1.0, 4.0))
    {'n': 4, 'mean': 2.5, 'std': 1.2909944487358056}

    >>> from rowmill import Workflow
    >>> table = pa.table({"x": [1.0, 2.0, None, 3.0]})
    >>> Workflow(["x"] >> Normalize()).fit(table).transform(table).to_pydict()
    {'x': [-1.0, 0.0, None, 1.0]}
    """

    dtype: Literal["float32", "float64"] = "float32"
    makes_nan = False
    in_float64 = True
    retunable = frozenset({"dtype"})
    takes = frozenset({"number", "bool"})
    leaves = True
    adds_tags = frozenset({Tags.CONTINUOUS.value})

    def observe_blocks(self, columns: Columns, unit: Unit, context: Context, starts: Sequence[int]) -> list[Moments]:
        (name,) = unit
        column = columns[name]
        if context.engine.is_list(column):
            return super().observe_blocks(columns, unit, context, starts)
        moments = context.engine.moments(column, starts)
        if not all(math.isfinite(low) and math.isfinite(high) for n, _, _, low, high in moments if n):
            refuse_infinite("Normalize", unit, columns, context, INFINITE)
        return moments

    def observe(self, column: Series) -> Moments:
        return _refuse_infinite_moments(engines.engine_of(column).moments(column, [0, len(column)])[0])

    def merge(self, a: Moments, b: Moments) -> Moments:
        return merge_moments(a, b)

    def finalize(self, partial: Moments) -> FittedValues:
        n, mean, _, low, high = partial
        if low == high:
            return {"n": n, "mean": low, "std": 0.0}
        std = deviation(partial)
        if math.isinf(std):
            raise DataError(
                f"Normalize cannot scale values from {low} to {high}",
                why="their standard deviation is beyond float64",
                do="limit the values with Clip first",
            )
        return {"n": n, "mean": mean, "std": std}

    def transform(self, column: Series, fitted: FittedValues) -> Series:
        engine = engines.engine_of(column)
        mean = fitted["mean"]
        std = fitted["std"] or 1.0
        # value - mean may be beyond float64, a quarter of it is not. affine is (x - shift) / scale: it divides by 4.
        if HUGE < max(abs(mean), std) < math.inf:
            column = engine.affine(column, 0.0, 4.0, pa.float64())
            mean = mean / 4
            std = std / 4
        scaled = engine.affine(column, mean, std, FLOATS[self.dtype])
        # An infinite mean or std turns values into NaN, which is null.
        return scaled if math.isfinite(mean) and math.isfinite(std) else engine.finite(scaled)

    def dtype_out(self, column: Column) -> pa.DataType:
        return FLOATS[self.dtype]

    def kept_partial(self, partial: Moments, fitted: FittedValues) -> FittedValues:
        return {"partial": list(partial)}

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> Moments:
        n, mean, squares, low, high = saved["partial"]
        return n, mean, squares, low, high


def _refuse_infinite_moments(moments: Moments) -> Moments:
    """Return the moments, or raise a DataError if values are infinite."""
    _, _, _, low, high = moments
    if math.isinf(low) or math.isinf(high):
        raise DataError(
            f"Normalize cannot learn from {low if math.isinf(low) else high}",
            why=INFINITE,
            do="limit the values with Clip first",
        )
    return moments


class FillMissing(Operator):
    """Replace null by `fill_value`; with `add_binary_cols` the column `<name>_filled` (bool) says where.

    Parameters
    ----------
    fill_value : any, default 0
        Value in place of null, which must fit the column's type; times and decimals may be given as text.
    add_binary_cols : bool, default False
        Add `<name>_filled`, true where a null was replaced; of a list column it is a list of bools.

    Notes
    -----
    The column's type stays. In list columns, null elements are filled and null lists stay. Infinities are not null and
    stay; `fill_value` may be infinite.

    Errors: a JobError for a `fill_value` that is null or NaN; a DataError for one that the column's type does not hold
    exactly.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"x": [1, None, 3]})
    >>> Workflow(["x"] >> FillMissing(0, add_binary_cols=True)).fit(table).transform(table).to_pydict()
    {'x': [1, 0, 3], 'x_filled': [False, True, False]}
    >>> FillMissing(None)
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: FillMissing: fill_value None is itself a null
    """

    fill_value: Any = 0
    add_binary_cols: bool = False
    makes_nan = False
    in_float64 = True
    takes = frozenset({"number", "string", "bool", "time"})
    leaves = True

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        columns = [self.output(schema[name]) for name in unit]
        for column in columns:
            check_fits(self.fill_value, leaf_type(column.dtype), column.name, "FillMissing", "fill_value")
        return columns + make_flag_columns(columns) if self.add_binary_cols else columns

    @model_validator(mode="after")
    def _refuse_null(self) -> FillMissing:
        if self.fill_value is None or self.fill_value != self.fill_value:
            raise ValueError(f"fill_value {self.fill_value} is itself a null")
        return self

    def transform(self, column: Series, fitted: object) -> Series:
        engine = engines.engine_of(column)
        return engine.fill_null(column, convert_parameter(self.fill_value, engine.dtype(column)))

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        out = super().apply(columns, unit, fitted, context)
        return out | flag_nulls(columns, unit, context) if self.add_binary_cols else out


def make_flag_columns(columns: Sequence[Column]) -> list[Column]:
    """Make the columns that say where columns were filled: bools, or lists of bools for list columns."""
    tags = frozenset({Tags.CATEGORICAL.value})
    types = [pa.list_(pa.bool_()) if is_list(column.dtype) else pa.bool_() for column in columns]
    return [Column(f"{column.name}_filled", dtype, tags) for column, dtype in zip(columns, types, strict=True)]


def flag_nulls(columns: Columns, unit: Unit, context: Context) -> Columns:
    """Flag the rows of columns, or the elements of their lists, that are null."""
    engine = context.engine
    flags = {}
    for name in unit:
        column = columns[name]
        nulls = engine.is_null(engine.leaves(column) if engine.is_list(column) else column)
        flags[f"{name}_filled"] = engine.with_leaves(column, nulls) if engine.is_list(column) else nulls
    return flags


class Clip(Operator):
    """Limit values to [min_value, max_value], in the column's own unit; null stays null and the type stays.

    Parameters
    ----------
    min_value : float, default None
        Lower limit; None sets none.
    max_value : float, default None
        Upper limit; None sets none.

    Notes
    -----
    In list columns, the elements are limited. Infinities are limited like other values; an infinite limit limits
    nothing.

    Errors: a JobError if both limits are None, if one is NaN, or if min_value is above max_value; a DataError for a
    limit that the column's type does not hold (0.5 for integers, 300 for int8).

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"x": [-5, 3, None, 50]})
    >>> Workflow(["x"] >> Clip(0, 10)).fit(table).transform(table).to_pydict()
    {'x': [0, 3, None, 10]}
    >>> Clip()
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: Clip: at least one of min_value and max_value is needed
    """

    min_value: float | int | None = None
    max_value: float | int | None = None
    in_float64 = True
    makes_nan = False
    leaves = True

    @model_validator(mode="after")
    def _check_bounds(self) -> Clip:
        if self.min_value is None and self.max_value is None:
            raise ValueError("at least one of min_value and max_value is needed")
        for bound in (self.min_value, self.max_value):
            if bound is not None and bound != bound:
                raise ValueError("a bound is not a number")
        if self.min_value is not None and self.max_value is not None and self.min_value > self.max_value:
            raise ValueError(f"min_value {self.min_value} is above max_value {self.max_value}")
        return self

    def output(self, column: Column) -> Column:
        for name in ("min_value", "max_value"):
            check_fits(getattr(self, name), leaf_type(column.dtype), column.name, "Clip", name)
        return super().output(column)

    def transform(self, column: Series, fitted: object) -> Series:
        engine = engines.engine_of(column)
        dtype = engine.dtype(column)
        return engine.clip(column, convert_parameter(self.min_value, dtype), convert_parameter(self.max_value, dtype))


class LogOp(Operator):
    """Compute ln(1 + x) in float64, returned as float32; -1 gives -inf, values below -1 and null give null.

    Notes
    -----
    Plus infinity stays infinite; minus infinity is below -1 and gives null. Booleans count as 0 and 1. In list columns,
    the elements are computed.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"x": [0.0, -1.0, -2.0, None]})
    >>> Workflow(["x"] >> LogOp()).fit(table).transform(table).to_pydict()
    {'x': [0.0, -inf, None, None]}
    >>> table = pa.table({"x": [[0.0, None], None]})
    >>> Workflow(["x"] >> LogOp()).fit(table).transform(table).to_pydict()
    {'x': [[0.0, None], None]}
    """

    in_float64 = True
    makes_nan = False
    takes = frozenset({"number", "bool"})
    leaves = True
    adds_tags = frozenset({Tags.CONTINUOUS.value})

    def dtype_out(self, column: Column) -> pa.DataType:
        return pa.float32()

    def transform(self, column: Series, fitted: object) -> Series:
        return engines.engine_of(column).log1p(column, pa.float32())


def convert_parameter(value: object, dtype: pa.DataType) -> Any:
    """Convert a parameter to the Python value that a column of the type holds.

    Times and decimals may be given as text, since JSON has neither; a float becomes the decimal that it is written as.
    """
    if pa.types.is_decimal(dtype):
        return decimal.Decimal(str(value)) if isinstance(value, (str, float)) else value
    if not isinstance(value, str) or not pa.types.is_temporal(dtype):
        return value
    if BEYOND_MICROSECONDS.search(value):
        raise ValueError(f"{value} has more than six digits behind the second")
    if pa.types.is_duration(dtype):
        return DURATION.validate_python(value)
    if pa.types.is_time(dtype):
        return datetime.time.fromisoformat(value)
    time = datetime.datetime.fromisoformat(value)
    if not pa.types.is_date(dtype):
        return time
    if time.timetz() != datetime.time():
        raise ValueError(f"{value} is not a date alone")
    return time.date()


def _convert_zone(value: object, dtype: pa.DataType) -> object:
    """Convert a date or time to what Arrow stores in a column of timestamps: a time without a zone is UTC."""
    if not isinstance(value, datetime.datetime) and isinstance(value, datetime.date):
        value = datetime.datetime.combine(value, datetime.time())
    if not isinstance(value, datetime.datetime):
        return value
    has_zone = value.tzinfo is not None
    if has_zone == (dtype.tz is not None):
        return value
    return value.astimezone(datetime.UTC).replace(tzinfo=None) if has_zone else value.replace(tzinfo=datetime.UTC)


def check_fits(value: object, dtype: pa.DataType, name: str, op: str, parameter: str) -> None:
    """Refuse a parameter that the column's type cannot hold exactly; floats may be rounded, but not to infinity."""
    if value is None or pa.types.is_null(dtype):
        return
    try:
        stored = convert_parameter(value, dtype)
        as_column = pa.scalar(stored, dtype).as_py()
        if pa.types.is_floating(dtype) and math.isinf(as_column) == math.isinf(stored):
            fits = True
        elif pa.types.is_timestamp(dtype):
            fits = as_column == _convert_zone(stored, dtype)
        else:
            fits = as_column == stored
    except (pa.ArrowException, TypeError, ValueError, OverflowError, decimal.InvalidOperation):
        fits = False
    if not fits or (isinstance(value, bool) and not pa.types.is_boolean(dtype)):
        raise DataError(
            f"{op}: {parameter} {value!r} does not fit column {name!r} of type {dtype_name(dtype)}",
            do="choose a value of that type, or cast the column first with Lambda(expression='cast(..)')",
        )
