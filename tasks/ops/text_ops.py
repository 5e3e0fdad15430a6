"""Text, times and names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
from pydantic import Field, model_validator

from tasks.core.dtypes import dtype_name
from tasks.core.schema import Column, Schema, Tags
from tasks.errors import DataError, JobError, near
from tasks.ops.base import Columns, Context, Entry, Operator, Unit

DatePart = Literal["hour", "minute", "second", "weekday", "day", "month", "year", "dayofyear"]


class Cross(Operator):
    r"""Join the values of a group (nested list) as text, in the column `a_b`: light_apple; null if any value is null.

    Parameters
    ----------
    sep : str, default "_"
        Text between the values; the name of the column always has "_".

    Notes
    -----
    If a value contains `sep`, a backslash is put before each `sep` and each backslash in the values of that row, so
    that (`x_y`, `z`) and (`x`, `y_z`) give two texts; all other rows are joined unchanged. If `sep` has a backslash,
    the escape is a slash; if it has both, a tilde. An empty `sep` escapes nothing.

    A `sep` of several characters is escaped character by character: with `::`, (`x:y`, `z`) gives `x:y::z`, and (`x:`,
    `y`) gives `x\:::y`. A row is escaped if one of its values contains `sep`, begins or ends with one of its
    characters, ends with the escape, or contains the escape before one of these characters. Then an escape is put
    before each of these characters and each escape in its values.

    A workflow that was fitted by an older version of rowmill escapes nothing, also in refits.

    Integers are written in decimal, booleans as true and false. Type out: string. An empty text stays empty and is not
    null.

    Errors: a DataError for a column that stands alone, and for floats (so for infinities), decimals, times and lists.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"colour": ["light", None], "fruit": ["apple", "pear"]})
    >>> Workflow([["colour", "fruit"]] >> Cross()).fit(table).transform(table).to_pydict()
    {'colour_fruit': ['light_apple', None]}
    >>> table = pa.table({"a": ["x_y", "x"], "b": ["z", "y_z"]})
    >>> Workflow([["a", "b"]] >> Cross()).fit(table).transform(table)["a_b"].to_pylist()[0]
    'x\\_y_z'
    """

    sep: str = "_"
    takes = frozenset({"string", "bool", "number"})
    grouped = True
    adds_tags = frozenset({Tags.CATEGORICAL.value})

    def check(self, unit: Unit, schema: Schema) -> None:
        super().check(unit, schema)
        if len(unit) == 1:
            raise DataError(
                f"Cross takes groups of columns, {unit[0]!r} stands alone",
                do="write a nested list: [[a, b]] >> Cross()",
            )
        for name in unit:
            if pa.types.is_floating(schema[name].dtype) or pa.types.is_decimal(schema[name].dtype):
                raise DataError(
                    f"Cross does not take the fractional numbers of column {name!r}",
                    do="put them into buckets first, or cast them to integers",
                )

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        return [Column("_".join(unit), pa.string(), self.adds_tags)]

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        return {"_".join(unit): context.engine.join_text([columns[n] for n in unit], self.sep, context.rules >= 2)}


class SplitText(Operator):
    """Split texts at `sep` into columns: electronics.audio.headphone -> cat_0, cat_1, cat_2; a missing part is null.

    Parameters
    ----------
    sep : str, default "."
        Plain text between the parts, not a pattern.
    max_parts : int, default 4
        Number of columns, 1 to 64; further parts are dropped.
    prefix : str, default None
        Start of the new names; None takes the column's name.

    Notes
    -----
    The columns are `<prefix>_0` to `<prefix>_<max_parts - 1>`, strings. Null gives nulls. An empty text has one part,
    which is empty.

    Errors: a JobError for an empty `sep`.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"code": ["audio.headphone", "audio", None]})
    >>> Workflow(["code"] >> SplitText(".", 2, "cat")).fit(table).transform(table).to_pydict()
    {'cat_0': ['audio', 'audio', None], 'cat_1': ['headphone', None, None]}
    >>> SplitText("")
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: SplitText: sep must not be empty
    """

    sep: str = "."
    max_parts: int = Field(4, ge=1, le=64)
    prefix: str | None = None
    takes = frozenset({"string"})
    encoded = True
    adds_tags = frozenset({Tags.CATEGORICAL.value})

    @model_validator(mode="after")
    def _some_separator(self) -> SplitText:
        if not self.sep:
            raise ValueError("sep must not be empty")
        return self

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        return [Column(name, pa.string(), self.adds_tags) for name in self._name_parts(unit)]

    def _name_parts(self, unit: Unit) -> list[str]:
        return [f"{self.prefix or unit[0]}_{i}" for i in range(self.max_parts)]

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        return dict(
            zip(
                self._name_parts(unit),
                context.engine.split_text(columns[unit[0]], self.sep, self.max_parts),
                strict=True,
            )
        )


class DateParts(Operator):
    """Take parts of a time in UTC, int16: hour, minute, second, weekday (Monday 0), day, month, year, dayofyear.

    Parameters
    ----------
    parts : list of str, default ["hour", "minute", "weekday", "day", "month", "year"]
        Parts in any order; dayofyear counts from 1.
    prefix : str, default None
        Start of the new names `<prefix>_<part>`; None takes the column's name.

    Notes
    -----
    Takes timestamps, dates (hour 0) and ISO texts ("2019-11-01 00:00:00 UTC", "2019-11-01T02:00:00+02:00"); a time
    without a zone is UTC. Null stays null. Years must fit int16.

    Errors: a DataError for a text that is not a time, and for durations and times of day.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"at": ["2019-11-01 23:15:00 UTC", None]})
    >>> Workflow(["at"] >> DateParts(["hour", "weekday"])).fit(table).transform(table).to_pydict()
    {'at_hour': [23, None], 'at_weekday': [4, None]}
    >>> Workflow(["at"] >> DateParts(["dayofyear"], "on")).fit(table).transform(table).to_pydict()
    {'on_dayofyear': [305, None]}
    """

    parts: list[DatePart] = Field(["hour", "minute", "weekday", "day", "month", "year"], min_length=1)
    prefix: str | None = None
    takes = frozenset({"time", "string"})
    encoded = True
    adds_tags = frozenset({Tags.CATEGORICAL.value})

    def check(self, unit: Unit, schema: Schema) -> None:
        super().check(unit, schema)
        dtype = schema[unit[0]].dtype
        if pa.types.is_temporal(dtype) and not (pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)):
            raise DataError(
                f"DateParts does not take column {unit[0]!r} of type {dtype_name(dtype)}",
                why="it takes timestamps, dates and texts",
            )

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        return [Column(f"{self.prefix or unit[0]}_{part}", pa.int16(), self.adds_tags) for part in self.parts]

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        try:
            times = context.engine.to_time(columns[unit[0]])  # texts are parsed once
        except ValueError as error:
            raise DataError(
                f"column {unit[0]!r} has a value that is not a time",
                why=str(error).split("\n")[0],
                do="fix it, or make such values null before: Lambda(expression=\"cast(_, 'timestamp[us]')\")",
            ) from None
        return {f"{self.prefix or unit[0]}_{part}": context.engine.date_part(times, part) for part in self.parts}


class Rename(Operator):
    """Give columns other names: `names` maps old ones to new ones, `name` is for one column, `postfix` is added to all.

    Parameters
    ----------
    names : dict of str to str, default {}
        New names by old ones; columns that it lacks keep their names.
    name : str, default None
        New name of the one selected column.
    postfix : str, default None
        Text to add to the name of every selected column.

    Notes
    -----
    Values, nulls, types, tags and properties stay.

    Errors: a JobError unless exactly one of the three is given, for an old name that is not selected, and for a name
    that two columns would have; a DataError for `name` with several columns.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"x": [1]})
    >>> Workflow(["x"] >> Rename(name="price")).fit(table).transform(table).to_pydict()
    {'price': [1]}
    >>> Rename(name="price", postfix="_old")
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: Rename: give one of names, name and postfix
    """

    names: dict[str, str] = {}
    name: str | None = None
    postfix: str | None = None
    takes = frozenset({"number", "string", "bool", "time", "list", "other"})
    encoded = True
    keeps_values = True

    @model_validator(mode="after")
    def _one_way(self) -> Rename:
        if sum([bool(self.names), self.name is not None, self.postfix is not None]) != 1:
            raise ValueError("give one of names, name and postfix")
        return self

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        units = super().units(selection)
        for old in self.names:
            if (old,) not in units:
                raise JobError(f"Rename names {old!r}, which is not selected", do=near(old, [u[0] for u in units]))
        if self.name is not None and len(units) > 1:
            raise DataError(
                f"Rename(name={self.name!r}) takes one column, {len(units)} are selected", do="use names or postfix"
            )
        return units

    def new_name(self, old: str) -> str:
        return (
            self.names.get(old, old) if self.names else self.name if self.name is not None else f"{old}{self.postfix}"
        )

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        column = schema[unit[0]]
        return [Column(self.new_name(unit[0]), column.dtype, column.tags, column.properties)]

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        return {self.new_name(unit[0]): columns[unit[0]]}
