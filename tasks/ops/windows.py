"""Rows of one key: differences, windows and histories inside their run, and one row made of them all. They need
`source.keys`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import field_validator, model_validator

from tasks.core.dtypes import dtype_name
from tasks.core.schema import Column, Schema, Tags
from tasks.engines.algorithms.key_runs import Aggregate, Histories, KeyRuns, difference, find_runs, lag_column, rolling
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.text_times import find_unsorted_times
from tasks.errors import DataError
from tasks.ops.base import Array, Columns, Context, Entry, Operator, Series, Unit
from tasks.ops.continuous import check_fits, convert_parameter
from tasks.ops.fitted_values import FittedValues

Agg = Literal["list", "first", "last", "count", "nunique", "sum", "mean", "std", "var", "min", "max", "median"]
RollingAgg = Literal["mean", "sum", "min", "max"]
ANYTHING = ("list", "first", "last", "count")
NUMERIC = ("sum", "mean", "std", "var", "median")
SAME_VALUES = ("list", "first", "last", "min", "max")  # domain and vocabulary still hold
ALL_KINDS = frozenset({"number", "string", "bool", "time", "list", "other"})


def _several(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class _RunOperator(Operator):
    """Takes all selected columns at once, since they share their runs."""

    encoded = True

    @field_validator("partition_cols", "groupby_cols", "shift", "aggregation", check_fields=False)
    @classmethod
    def _some(cls, value: object) -> object:
        if not _several(value):
            raise ValueError("at least one is needed")
        return value

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        unit = tuple(name for one in super().units(selection) for name in one)
        return [unit] if unit else []

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        assert self.run_columns
        return tuple(_several(getattr(self, self.run_columns)))

    def made_of(self, output: str, unit: Unit) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for title, name, *_ in self._name_outputs(unit) if title == output)) or (
            output,
        )

    def _name_outputs(self, unit: Unit) -> Iterable[tuple[str, str, Any]]:
        """(name made, column, what is made of it) for each new column."""
        raise TypeError(f"{type(self).__name__} does not define _named")


class _Shifted(_RunOperator):
    """Makes for each shift a column of the values and those `shift` rows before them: `<column>_<word>_<shift>`."""

    partition_cols: str | list[str]
    shift: int | list[int] = 1
    run_columns = "partition_cols"
    word: ClassVar[str]

    @field_validator("shift")
    @classmethod
    def _moves(cls, value: int | list[int]) -> int | list[int]:
        if 0 in _several(value):
            raise ValueError("a shift of 0 is the row itself")
        return value

    def _name_outputs(self, unit: Unit) -> Iterable[tuple[str, str, int]]:
        shifts = dict.fromkeys(_several(self.shift))
        return ((f"{name}_{self.word}_{n}", name, n) for name in unit for n in shifts)

    def shift_column(self, column: Series, runs: KeyRuns, shift: int) -> Series:
        """The column of one shift."""
        raise TypeError(f"{type(self).__name__} does not define shifted")

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        runs = find_runs([columns[k] for k in _several(self.partition_cols)], context.engine)
        return {title: self.shift_column(columns[name], runs, n) for title, name, n in self._name_outputs(unit)}


class DifferenceLag(_Shifted):
    """Subtract from each value the one `shift` rows before it in its run: `<column>_difference_lag_<shift>`, float64.

    Parameters
    ----------
    partition_cols : str or list of str
        Columns that are equal in the rows of a run; a null key is a key like any other.
    shift : int or list of int, default 1
        Number of rows to look back, or several; a negative one looks ahead.

    Notes
    -----
    The rows of a run are in the order of `source.sort_by`. Timestamps, dates and durations give seconds. Integers and
    times are subtracted exactly and rounded once. The result is null where either value is null or lies outside the
    run. The difference to an infinity is infinite, that of two equal ones null.

    Errors: a JobError for a shift of 0, and unless `source.keys` (in Python `Dataset.shuffle_by_keys`) are some of
    `partition_cols`.

    Examples
    --------
    >>> from rowmill import Dataset, Workflow
    >>> table = pa.table({"user": ["u", "u", "v"], "t": [1, 2, 1], "x": [3.0, 5.0, 1.0]})
    >>> clicks = Dataset(table, engine="pandas").shuffle_by_keys("user", sort_by="t")
    >>> out = Workflow((["x"] >> DifferenceLag(["user"])) + ["t", "x"]).fit_transform(clicks).head(3)
    >>> sorted(zip(out["t"], out["x"], out["x_difference_lag_1"].isna()))
    [(1, 1.0, True), (1, 3.0, True), (2, 5.0, False)]
    >>> Workflow(["x"] >> DifferenceLag("user")).fit(table)
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: DifferenceLag needs all rows of user together ...
    """

    in_float64 = True
    takes = frozenset({"number", "time"})
    word = "difference_lag"

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        return [
            Column(title, pa.float64(), frozenset({Tags.CONTINUOUS.value})) for title, _, _ in self._name_outputs(unit)
        ]

    def shift_column(self, column: Series, runs: KeyRuns, shift: int) -> Series:
        return difference(column, runs, shift)


class Rolling(_RunOperator):
    """Compute mean, sum, min or max of a run's last `window` rows: `<column>_rolling_<aggregation>_<window>`, float64.

    Parameters
    ----------
    window : int
        Number of rows, 1 or more, the row itself included.
    aggregation : {"mean", "sum", "min", "max"}, or list of these
        Figures of each window.
    partition_cols : str or list of str
        Columns that are equal in the rows of a run; a null key is a key like any other.
    min_periods : int, default None
        Fewest values that are not null; with fewer the result is null. None takes `window`.

    Notes
    -----
    The rows of a run are in the order of `source.sort_by`. As in pandas, nulls are left out. Booleans count as 0 and 1.
    A sum of finite values beyond float64 is infinite, a mean is not.

    A window with an infinity has it as its sum and mean, null where both signs meet; other windows of the run do not
    see it.

    Errors: a JobError for a window or min_periods out of range, and unless `source.keys` (in Python
    `Dataset.shuffle_by_keys`) are some of `partition_cols`.

    Source: pandas.DataFrame.rolling.

    Examples
    --------
    >>> from rowmill import Dataset, Workflow
    >>> table = pa.table({"user": ["u", "u", "u"], "t": [1, 2, 3], "x": [3.0, 5.0, 1.0]})
    >>> clicks = Dataset(table, engine="pandas").shuffle_by_keys("user", sort_by="t")
    >>> rolling = Rolling(2, "sum", ["user"], min_periods=1)
    >>> Workflow(["x"] >> rolling).fit_transform(clicks).head(3)["x_rolling_sum_2"].tolist()
    [3.0, 8.0, 6.0]
    >>> Workflow(["x"] >> Rolling(2, "max", "user")).fit_transform(clicks).head(3)["x_rolling_max_2"].tolist()
    [<NA>, 5.0, 5.0]
    """

    window: int
    aggregation: RollingAgg | list[RollingAgg]
    partition_cols: str | list[str]
    min_periods: int | None = None
    in_float64 = True
    takes = frozenset({"number", "bool"})
    run_columns = "partition_cols"

    @model_validator(mode="after")
    def _lengths(self) -> Rolling:
        if self.window < 1:
            raise ValueError(f"window must be 1 or more, not {self.window}")
        if self.min_periods is not None and not 1 <= self.min_periods <= self.window:
            raise ValueError(f"min_periods must be from 1 to window ({self.window}), not {self.min_periods}")
        return self

    def _name_outputs(self, unit: Unit) -> Iterable[tuple[str, str, str]]:
        wanted = dict.fromkeys(_several(self.aggregation))
        return ((f"{name}_rolling_{agg}_{self.window}", name, agg) for name in unit for agg in wanted)

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        return [
            Column(title, pa.float64(), frozenset({Tags.CONTINUOUS.value})) for title, _, _ in self._name_outputs(unit)
        ]

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        runs = find_runs([columns[k] for k in _several(self.partition_cols)], context.engine)
        least = self.window if self.min_periods is None else self.min_periods
        return {title: rolling(columns[n], runs, self.window, agg, least) for title, n, agg in self._name_outputs(unit)}


class Lag(_Shifted):
    """Take the value `shift` rows before each row in its run: `<column>_lag_<shift>`, of the column's own type.

    Parameters
    ----------
    partition_cols : str or list of str
        Columns that are equal in the rows of a run; a null key is a key like any other.
    shift : int or list of int, default 1
        Number of rows to look back, or several; a negative one looks ahead: the lag of -1 is the next value, the target
        of a model that predicts the next item.

    Notes
    -----
    The rows of a run are in the order of `source.sort_by`, ties in the order of the source. A null stays null, the
    result is null outside the run too. Tags and the number of distinct values stay. An infinity is a value like any
    other.

    Errors: a JobError for a shift of 0, and unless `source.keys` (in Python `Dataset.shuffle_by_keys`) are some of
    `partition_cols`.

    Examples
    --------
    >>> from rowmill import Dataset, Workflow
    >>> table = pa.table({"user": ["u", "u", "u"], "t": [2, 1, 3], "item": [8, 7, 9]})
    >>> clicks = Dataset(table, engine="pandas").shuffle_by_keys("user", sort_by="t")
    >>> lag = Workflow(["item"] >> Lag("user", [1, -1])).fit_transform(clicks).head(3)
    >>> [lag["item_lag_1"].tolist(), lag["item_lag_-1"].tolist()]
    [[<NA>, 7, 8], [8, 9, <NA>]]
    >>> Lag("user", 0)
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: Lag(shift): a shift of 0 is the row itself
    """

    takes = ALL_KINDS
    makes_nan = False
    word = "lag"

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        return [replace(schema[name], name=title) for title, name, _ in self._name_outputs(unit)]

    def shift_column(self, column: Series, runs: KeyRuns, shift: int) -> Series:
        return lag_column(column, runs, shift)


class History(_RunOperator):
    """List for each row the values of the rows before it in its run, oldest first: `<column>_history`.

    Parameters
    ----------
    length : int
        Number of rows before the row that a history lists; at the start of a run it has fewer, and the first one is
        empty.
    partition_cols : str or list of str
        Columns that are equal in the rows of a run; a null key is a key like any other.
    include_current : bool, default False
        Make the row itself the last of the `length`; else its value can be the target.
    time_col : str, default None
        Column by which the source is sorted. Rows with equal values (nulls included) are left out of each other's
        histories, so a history is strictly earlier.
    min_length : int, default 0
        Fewest values; a shorter history is a null list, so that Dropna removes its row.
    pad : {"left", "right"}, default None
        Side on which histories are filled up to `length`; a null list stays null.
    pad_value : any, default 0
        Value of the elements that `pad` adds.

    Notes
    -----
    The rows of a run are in the order of `source.sort_by`, ties in the order of the source. The rows of a history are
    the same for all selected columns; null values stay in it. Tags and the number of distinct values stay; the tag
    `list` is added. An infinity is a value like any other.

    Errors: a JobError for a length below 1, a min_length below 0 or above length, and unless `source.keys` (in Python
    `Dataset.shuffle_by_keys`) are some of `partition_cols`; a DataError for columns of lists, for a `pad_value` that a
    column's type does not hold exactly, and for histories of more than 2^31 - 1 values in one partition.

    Examples
    --------
    >>> from rowmill import Dataset, Workflow
    >>> table = pa.table({"user": ["u", "u", "v", "u"], "t": [2, 1, 1, 3], "item": [8, 7, 5, 9]})
    >>> clicks = Dataset(table, engine="pandas").shuffle_by_keys("user", sort_by="t")
    >>> out = Workflow(["item"] + (["item"] >> History(2, "user"))).fit_transform(clicks).head(4)
    >>> sorted((int(item), [int(x) for x in history]) for item, history in zip(out["item"], out["item_history"]))
    [(5, []), (7, []), (8, [7]), (9, [7, 8])]
    >>> padded = Workflow(["item"] >> History(3, "user", pad="left")).fit_transform(clicks).head(4)
    >>> sorted([int(x) for x in history] for history in padded["item_history"])
    [[0, 0, 0], [0, 0, 0], [0, 0, 7], [0, 7, 8]]
    """

    length: int
    partition_cols: str | list[str]
    include_current: bool = False
    time_col: str | None = None
    min_length: int = 0
    pad: Literal["left", "right"] | None = None
    pad_value: Any = 0
    takes = ALL_KINDS - {"list"}
    makes_nan = False
    run_columns = "partition_cols"

    @model_validator(mode="after")
    def _lengths(self) -> History:
        if self.length < 1:
            raise ValueError(f"length must be 1 or more, not {self.length}")
        if not 0 <= self.min_length <= self.length:
            raise ValueError(f"min_length must be from 0 to length ({self.length}), not {self.min_length}")
        return self

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*_several(self.partition_cols), *([self.time_col] if self.time_col else [])]))

    def _name_outputs(self, unit: Unit) -> Iterable[tuple[str, str, str]]:
        return ((f"{name}_history", name, "list") for name in unit)

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        size = {"value_count": {"min": self.length, "max": self.length}} if self.pad else {}
        columns = []
        for name in unit:
            column = schema[name]
            if self.pad:
                check_fits(self.pad_value, column.dtype, name, "History", "pad_value")
            tags = column.tags | {Tags.LIST.value}
            properties = {**column.properties, **size}
            columns.append(Column(f"{name}_history", pa.list_(column.dtype), tags, properties))
        return columns

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        runs = find_runs([columns[k] for k in _several(self.partition_cols)], context.engine)
        ties = None if self.time_col is None else columns[self.time_col]
        histories = Histories(runs, self.length, ties, self.include_current)
        out = {}
        for name in unit:
            filler = convert_parameter(self.pad_value, context.engine.dtype(columns[name])) if self.pad else None
            out[f"{name}_history"] = histories.lists(columns[name], self.min_length, self.pad, filler)
        return out


class Groupby(_RunOperator):
    """Make one row of all rows of a key: the keys under their names, then `<column>_<aggregation>`.

    Parameters
    ----------
    groupby_cols : str or list of str
        Key columns; a null key is a key like any other.
    sort_cols : str or list of str, default []
        Columns by which the rows of a key are sorted, nulls first, before `source.sort_by` decides.
    aggs : str, list of str, or dict of str to these, default "list"
        Aggregations of all selected columns but the keys, or a dict with those of each column: list, first, last,
        count, nunique, sum, mean, std, var, min, max, median.
    name_sep : str, default "_"
        Text between column and aggregation in the new names.
    ascending : bool, default True
        Sort the rows of a key by `sort_cols` from the smallest value to the largest.
    min_length : int, default 1
        Fewest rows of a key; shorter ones are dropped.
    max_length : int, default None
        Most rows of a key that the aggregations see, its first ones; None shows all.
    last : bool, default False
        Take the last `max_length` rows of a key, in place of the first.

    Notes
    -----
    list has all values, nulls too; first and last are the value of the first and last row, even if null. The others
    leave nulls out. Types out: count, nunique int64; sum int64, uint64 or float64, 0 without values; min, max of the
    column's type; mean, median, std and var float64 (ddof 1), null without enough values. Sums of floats are exact to
    2^-100 of the sum of absolute values before they are rounded, means and medians are rounded once.

    With an infinity the sum and the mean are infinite (null where both signs meet), std and var null; to median, min,
    max and nunique it is a value.

    Keys with fewer than `min_length` rows (default 1) are dropped. Of a longer key all aggregations see its first
    `max_length` rows in the order above, with `last` its last ones; by default all. Both count rows, those with nulls
    too; of rows with equal `sort_cols` those count as earlier that `source.sort_by` has earlier. A key is dropped for
    the rows that it has, not for those that `max_length` leaves. The manifest counts dropped rows, as of a filter.

    The new row has the smallest row number of its key, and the place of the key's first row.

    Errors: a JobError unless `source.keys` (in Python `Dataset.shuffle_by_keys`) are some of `groupby_cols`, for a
    length below 1, and for `last` without `max_length`; a DataError for a sum of integers beyond 64 bits, for an
    aggregation that the column's type does not have, and for `sort_cols` with texts that are times and do not sort as
    such (31.12.2023).

    Examples
    --------
    >>> from rowmill import Dataset, Workflow
    >>> table = pa.table({"user": ["u", "u", "u"], "t": [2, 1, 3], "item": [7, 8, 9]})
    >>> clicks = Dataset(table, engine="pandas").shuffle_by_keys("user", sort_by="t")
    >>> groupby = Groupby(["user"], ["t"], {"item": ["list", "count"]})
    >>> out = Workflow(["user", "t", "item"] >> groupby).fit_transform(clicks).head()
    >>> [list(out["item_list"][0]), int(out["item_count"][0])]
    [[8, 7, 9], 3]
    >>> latest = Groupby(["user"], ["t"], {"item": "list"}, max_length=2, last=True)
    >>> list(Workflow(["user", "t", "item"] >> latest).fit_transform(clicks).head()["item_list"][0])
    [7, 9]
    """

    groupby_cols: str | list[str]
    sort_cols: str | list[str] = []
    aggs: Agg | list[Agg] | dict[str, Agg | list[Agg]] = "list"
    name_sep: str = "_"
    ascending: bool = True
    min_length: int = 1
    max_length: int | None = None
    last: bool = False
    takes = ALL_KINDS
    groups_rows = True
    run_columns = "groupby_cols"

    @model_validator(mode="after")
    def _lengths(self) -> Groupby:
        for name, length in (("min_length", self.min_length), ("max_length", self.max_length)):
            if length is not None and length < 1:
                raise ValueError(f"{name} must be 1 or more, not {length}")
        if self.last and self.max_length is None:
            raise ValueError("last needs max_length, the number of last rows")
        return self

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(_several(self.groupby_cols)))

    @property
    def sorted_by(self) -> list[str]:
        return list(_several(self.sort_cols))

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        named = self.aggs if isinstance(self.aggs, dict) else ()
        return tuple(dict.fromkeys([*self.keys, *self.sorted_by, *named]))

    def _name_outputs(self, unit: Unit) -> Iterable[tuple[str, str, str]]:
        """(name made, column, aggregation): in the order of `aggs` where it is a map, else of the selection."""
        columns = self.aggs if isinstance(self.aggs, dict) else {n: self.aggs for n in unit if n not in self.keys}
        for name, wanted in columns.items():
            for agg in dict.fromkeys(_several(wanted)):
                yield f"{name}{self.name_sep}{agg}", name, agg

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        for name in (*self.keys, *self.sorted_by):
            if schema[name].kind in ("list", "other"):
                raise _make_column_error(schema[name], "group or sort by")
        columns = [schema[name] for name in self.keys]
        return columns + [_output(schema[name], title, agg) for title, name, agg in self._name_outputs(unit)]

    def regroup(self, columns: Columns, unit: Unit, context: Context) -> tuple[Columns, Context]:
        """(the columns of one row per key, the context of these rows)."""
        engine = context.engine
        order = context.ordered()
        runs = find_runs([columns[k] for k in self.keys], engine)
        first = runs.first_rows
        numbers = context.rows if runs.order is None else context.rows[runs.order]
        rows, _ = engine.extremes_by(runs.codes, len(runs.lengths), numbers)
        own = None if context.own is None else _any_of(context.own, runs)
        if self.sorted_by:
            _check_text_order(columns, self.sorted_by, engine)
            runs = runs.sort_rows([columns[name] for name in self.sorted_by], self.ascending)
        if self.min_length > 1 or self.max_length is not None:
            runs, chosen = runs.limit_lengths(self.min_length, self.max_length, self.last)
            first = first[chosen]
            rows = rows[chosen]
            own = None if own is None else own[chosen]
        keys = engine.take({k: columns[k] for k in self.keys}, first)
        taken: dict[str, Aggregate] = {}
        for title, name, agg in self._name_outputs(unit):
            if name not in taken:
                taken[name] = Aggregate(columns[name], runs)
            keys[title] = getattr(taken[name], agg)()
        return keys, replace(context, rows=rows, order=order[first], own=own)


def _check_text_order(columns: Columns, names: Sequence[str], engine: Kernels) -> None:
    """A DataError for texts to sort by that are times and do not sort as such, as far as some rows show it."""
    for name in names:
        if engine.dtype(columns[name]) == pa.string():
            some = engine.xp.arange(min(1000, len(columns[name])))
            table = engine.host_columns(engine.take({name: columns[name]}, some), Schema([Column(name, pa.string())]))
            if unsorted := find_unsorted_times(table.column(name).combine_chunks().cast(pa.string())):
                do = f"make times of them before: Lambda(expression={unsorted.expression!r}) {unsorted.tried}"
                raise DataError(f"Groupby sorts by {name!r}, and its times are texts", why=unsorted.why, do=do)


def _any_of(flags: Array, runs: KeyRuns) -> Array:
    """For each run whether it has a row with the flag; `flags` are in the order of rows."""
    placed = (flags if runs.order is None else flags[runs.order]).astype(runs.xp.int64)
    before = runs.xp.concatenate([runs.xp.zeros(1, dtype=runs.xp.int64), runs.xp.cumsum(placed)])
    return before[runs.starts[1:]] > before[runs.starts[:-1]]


def _output(column: Column, title: str, agg: str) -> Column:
    """The column of an aggregation; a DataError where the column's type has none."""
    kind = column.kind
    dtype = column.dtype
    fits = {"list": kind != "list"}.get(agg, agg in ANYTHING or kind in ("number", "bool"))
    if not fits and not (agg in ("nunique", "min", "max") and kind in ("string", "time")):
        raise _make_column_error(column, f"make {agg} of")
    if agg in SAME_VALUES:
        tags = column.tags | {Tags.LIST.value} if agg == "list" else column.tags
        return Column(title, pa.list_(dtype) if agg == "list" else dtype, tags, column.properties)
    if agg in ("count", "nunique"):
        number = pa.int64()
    elif agg == "sum" and (pa.types.is_integer(dtype) or kind == "bool"):
        number = pa.uint64() if pa.types.is_unsigned_integer(dtype) else pa.int64()
    else:
        number = pa.float64()
    return Column(title, number, frozenset({Tags.CONTINUOUS.value}))


def _make_column_error(column: Column, verb: str) -> DataError:
    return DataError(
        f"Groupby cannot {verb} column {column.name!r} of type {dtype_name(column.dtype)}",
        why=f"{', '.join(NUMERIC)} take numbers; nunique, min and max take strings and times too; list takes no lists",
        do="choose other aggregations for it, with aggs: {column: [..]}",
    )
