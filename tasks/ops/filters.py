"""Operators that remove rows of the whole table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pydantic import model_validator

from tasks.core.dtypes import dtype_name, kind_of
from tasks.engines.expression.interpreter import true_mask
from tasks.engines.expression.syntax import Expression, parse
from tasks.errors import JobError
from tasks.ops.base import Array, Columns, Context, Entry, Operator, Unit
from tasks.ops.user_code import import_path, refuse_reordered
from tasks.ops.user_functions import UserFunction, rows_named


class _RowFilter(Operator):
    """Keeps some rows of the whole table; the selected columns stay what they are.

    A removed row is gone for every output column, and for the statistics of every operator that the filter's inputs do
    not depend on. Filters act as early as their columns exist; of several a row has to pass all. After Groupby the rows
    are its groups.
    """

    takes = frozenset({"number", "string", "bool", "time", "list", "other"})
    removes_rows = True

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        return [tuple(name for unit in super().units(selection) for name in unit)]

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        return {name: columns[name] for name in unit}


class Filter(_RowFilter):
    """Keep the rows for which an expression, or a function of the frame, is true; null is not true.

    Parameters
    ----------
    expression : str, default None
        Expression of booleans, which may name any column: "price > 0 and brand is not None".
    function : str or callable, default None
        Import path `module:name`, or a function. It gets the frame of the selected columns and returns one boolean (or
        number, true unless 0) per row.
    strict : bool, default False
        Make a cast or a parse that fails a DataError that names value, column, file and row, in place of a null that is
        counted and reported.

    Notes
    -----
    A removed row is missing from every output column, and from the statistics of every operator that the filter's
    inputs do not depend on. A row has to pass all filters. A filter on columns made from runs (History, Rolling ..) is
    applied after the others and leaves the runs unchanged: "len(item_history) > 0" takes no event out of the histories
    of later ones. After Groupby a filter keeps groups, for the columns and statistics of groups. Types and values stay,
    an infinity too.

    Errors: a JobError unless exactly one of expression and function is given, for an expression that cannot be read or
    is not of booleans, and for a function that returns another number of rows, another order or another type; a
    HostError for a function that cannot be imported here.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from rowmill import Workflow
    >>> table = pa.table({"price": [3.0, -1.0, None]})
    >>> Workflow(["price"] >> Filter("price > 0")).fit(table).transform(table).to_pydict()
    {'price': [3.0]}
    >>> Filter("price >")
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: expression: cannot be read: invalid syntax ...
    """

    expression: str | None = None
    function: UserFunction | None = None
    strict: bool = False

    @model_validator(mode="before")
    @classmethod
    def _function_first(cls, values: Any) -> Any:
        """Take a function in the first place, as in `Filter(lambda frame: ..)`, for the function that it is."""
        if callable(values.get("expression")) and values.get("function") is None:
            return {**values, "expression": None, "function": values["expression"]}
        return values

    @model_validator(mode="after")
    def _one_rule(self) -> Filter:
        if (self.function is None) == (self.expression is None):
            raise ValueError("give either an expression or a function")
        if self.expression is not None:
            parse(self.expression)
        return self

    @cached_property
    def parsed(self) -> Expression:
        assert self.expression is not None
        return parse(self.expression)

    def takes_wider(self, unit: Unit, name: str) -> bool:
        return self.expression is not None and self.parsed.in_float64

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        return tuple(self.parsed.columns) if self.expression is not None else ()

    def keep(self, columns: Columns, unit: Unit, context: Context) -> Array:
        engine = context.engine
        if self.expression is not None:
            with rows_named(context):
                return true_mask(self.parsed, columns, context.failed, self.strict, context.hashes_whole)
        called = import_path(self.function) if isinstance(self.function, str) else self.function
        assert callable(called)
        frame = engine.user_frame({name: columns[name] for name in unit})
        result = called(frame)
        refuse_reordered(result, frame)
        mask = engine.adopt(result)
        if len(mask) != len(context.rows):
            raise JobError(
                f"the function gave {len(mask):,} values for {len(context.rows):,} rows",
                do="return one boolean per row",
            )
        dtype = engine.dtype(mask)
        if pa.types.is_null(dtype):  # nothing but null
            return engine.xp.zeros(len(mask), dtype=bool)
        if kind_of(dtype) not in ("bool", "number"):
            raise JobError(f"the function gave values of type {dtype_name(dtype)}", do="return one boolean per row")
        values, valid = engine.numbers(mask)
        return values.astype(bool) if valid is None else values.astype(bool) & valid


class Dropna(_RowFilter):
    """Drop the rows with a null in any of the selected columns.

    Notes
    -----
    NaN is null; a null list is, a list with null elements is not. An infinity is not null. Types and other values stay.
    A dropped row is missing from all output columns and statistics, as with Filter; after Groupby rows are groups.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from rowmill import Workflow
    >>> table = pa.table({"x": [1, None, 3], "y": ["a", "b", None]})
    >>> Workflow(["x", "y"] >> Dropna()).fit(table).transform(table).to_pydict()
    {'x': [1], 'y': ['a']}
    >>> table = pa.table({"seen": [[1, None], None]})
    >>> Workflow(["seen"] >> Dropna()).fit(table).transform(table).to_pydict()
    {'seen': [[1, None]]}
    """

    in_float64 = True

    def keep(self, columns: Columns, unit: Unit, context: Context) -> Array:
        engine = context.engine
        mask = engine.xp.ones(len(context.rows), dtype=bool)
        for name in unit:
            null = engine.null_rows([columns[name]])
            mask = mask if null is None else mask & ~null
        return mask
