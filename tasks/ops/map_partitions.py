"""A function of one's own on whole partitions: a frame in, a frame out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pydantic import field_serializer, field_validator

from tasks.core.dtypes import dtype_name, parse_dtype, plain_type
from tasks.core.schema import Column, Schema
from tasks.errors import JobError
from tasks.ops.base import Columns, Context, Entry, Learned, Unit
from tasks.ops.user_code import check_module, import_path
from tasks.ops.user_functions import function_path, same_kind

SAMPLE_ROWS = 1_000  # of each partition, for types that are not given


class MapPartitions(Learned):
    """Apply a function of your own to the frame of the selected columns, partition by partition: frame in, frame out.

    Parameters
    ----------
    function : str or callable
        Import path `module:name`, or a function of a frame that returns a frame with a row for each of its rows.
    columns_out : dict of str to str, or list of str
        Columns that come out, {name: type}. Of a list of names, `fit` takes the types from a sample: what the function
        makes of the first 1,000 rows of each partition. The types hold for every partition.
    partition_cols : list of str, default []
        Columns whose rows of equal values must lie in one partition. The function gets these columns, too.

    Notes
    -----
    The function gets a pandas frame with Arrow types, or a cuDF frame: a copy of its own, with the labels 0 .. n - 1.
    It may sort, roll windows, join, or compute with NumPy or CuPy. Values go to the row whose label they have, so that
    a frame that was sorted needs no sorting back; the order of the output is that of the source or of the shuffle.
    Do not reset the index of a sorted frame: its values would get the labels of other rows. The frame may still hold
    input columns that `columns_out` does not name, as they were; only the columns of `columns_out` come out. NaN
    becomes null; all other values, infinities too, are what the function makes of them.

    Where partitions end depends on workers and memory. If a value depends on other rows, name in `partition_cols` the
    columns by which these belong together: `source.keys` (in Python `Dataset.shuffle_by_keys`) are some of them, and
    `source.sort_by` is the order of the rows. Then the values are the same for any number of workers. As with Rolling,
    rows that a filter of such a value removes have been part of the others' values. A frame that is given to
    `Workflow.transform` is one partition.

    Integers of another width and floats of another precision are cast. A lambda, or a function within another, works in
    memory and on the workers of a Dask client, but a workflow with it cannot be saved.

    Errors: a JobError for a result that is not such a frame, of another number of rows or with other labels, for a
    column that is missing, has another type or is not declared, for an input column that changed without being
    declared, for types that differ between samples, and unless `source.keys` fit `partition_cols`; a HostError for a
    function that cannot be imported here; a DataError for a value that its type does not hold, and for an error in the
    function.

    Examples
    --------
    >>> from rowmill import Dataset, Workflow
    >>> def share(frame):
    ...     frame = frame.sort_values("price")
    ...     return (frame / frame.sum()).rename(columns={"price": "share"})
    >>> table = pa.table({"price": [3.0, 1.0, None]})
    >>> Workflow(["price"] >> MapPartitions(share, {"share": "float64"})).fit(table).transform(table).to_pydict()
    {'share': [0.75, 0.25, None]}
    >>> Workflow(["price"] >> MapPartitions(share, ["part"])).fit(Dataset(table, engine="pandas"))
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: the function did not make the column 'part' ...
    """

    function: str | Callable[..., Any]
    columns_out: dict[str, str] | list[str]
    partition_cols: list[str] = []
    takes = frozenset({"number", "string", "bool", "time", "list", "other"})
    run_columns = "partition_cols"
    settles_schema = True
    on_refit = "frozen"
    frozen_why = "the types of its columns would change"

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> dict[str, str]:
        """The types that the function makes of the first rows."""
        rows = min(len(context.rows), SAMPLE_ROWS)
        if not rows:
            return {}
        result = self._called(context.engine.slice_rows(columns, 0, rows), unit, context.part(0, rows))
        return {name: dtype_name(context.engine.dtype(column)) for name, column in result.items()}

    def merge(self, a: dict[str, str], b: dict[str, str]) -> dict[str, str]:
        for name in a.keys() & b.keys():
            if a[name] != b[name] and "null" not in (a[name], b[name]):
                raise JobError(
                    f"the function makes {a[name]} of column {name!r} of some rows, and {b[name]} of others",
                    where="MapPartitions",
                    do=f"give its types: columns_out: {{{name}: {a[name]}, ..}}",
                )
        return b | {name: dtype for name, dtype in a.items() if dtype != "null" or name not in b}

    def finalize(self, partial: dict[str, str] | None) -> dict[str, Any]:
        """`types`: the type of each column."""
        declared = self.columns_out if isinstance(self.columns_out, dict) else partial or {}
        return {"types": {name: declared.get(name, "null") for name in self.columns_out}}

    def apply(self, columns: Columns, unit: Unit, fitted: dict[str, Any], context: Context) -> Columns:
        engine, types = context.engine, {n: plain_type(parse_dtype(t)) for n, t in fitted["types"].items()}
        if not len(context.rows):
            return engine.from_arrow(pa.schema(types.items()).empty_table())
        result = self._called(columns, unit, context)
        for name, column in result.items():
            if not same_kind(engine.dtype(column), types[name]):
                raise JobError(
                    f"the function made {dtype_name(engine.dtype(column))} of column {name!r}, "
                    f"which is {dtype_name(types[name])}",
                    why="columns_out says so" if self.passes == 0 else "that is its type in the sample of the fit",
                    do="let the function cast it, or give its type in columns_out",
                )
        return result

    @property
    def passes(self) -> int:  # type: ignore[override]
        return 0 if isinstance(self.columns_out, dict) else 1

    @field_validator("function")
    @classmethod
    def _is_path(cls, function: Any) -> Any:
        if isinstance(function, str):
            if not all(function.partition(":")):
                raise ValueError(f"{function!r} is not an import path: write module:name")
            check_module(function)
        return function

    @field_validator("columns_out")
    @classmethod
    def _types(cls, columns: dict[str, str] | list[str]) -> dict[str, str] | list[str]:
        if not columns or len({*columns}) < len(columns):
            raise ValueError("name at least one column, each once")
        for dtype in columns.values() if isinstance(columns, dict) else ():
            parse_dtype(dtype)
        return columns

    @field_serializer("function")
    def _path(self, function: Any) -> str | None:
        return function_path(function)

    @cached_property
    def called(self) -> Callable[..., Any]:
        return import_path(self.function) if isinstance(self.function, str) else self.function  # type: ignore[no-any-return]

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        return True

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        unit = tuple(name for one in super().units(selection) for name in one)
        return [unit] if unit else []

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        return tuple(self.partition_cols)

    def outputs(self, unit: Unit, schema: Schema, fitted: Mapping[str, Any] | None) -> list[Column]:
        types = fitted["types"] if fitted else self.columns_out
        if isinstance(types, dict):
            return [Column(name, plain_type(parse_dtype(dtype))) for name, dtype in types.items()]
        return [Column(name, pa.null()).with_properties(settles="dtype") for name in types]

    def _called(self, columns: Columns, unit: Unit, context: Context) -> Columns:
        """The columns that the function makes of a run of rows, in the order of the rows; a JobError for others."""
        names = dict.fromkeys([*unit, *self.partition_cols])
        frame = context.engine.user_frame({name: columns[name] for name in names})
        labels = frame.index
        result = self.called(frame.copy())
        if not isinstance(result, type(frame)):
            what = f"{type(result).__name__}, not a frame of {type(frame).__module__.partition('.')[0]}"
            raise JobError(f"the function returned {what}", do="return a frame with the columns of columns_out")
        if len(result) != len(frame):
            what = f"the function gave {len(result):,} rows for {len(frame):,}"
            raise JobError(what, do="return a row for each row; to remove rows use Filter, before or after")
        if not result.index.equals(labels):
            if not result.index.sort_values().equals(labels):
                raise JobError(
                    "the function returned rows with other labels than those of its frame",
                    why="values go to the row whose label they have",
                    do="keep the index through all steps; after a group-by, reset_index(level=0, drop=True)",
                )
            result = result.sort_index()
        returned = list(result.columns)
        for name in self.columns_out:
            if returned.count(name) != 1:
                what = f"{'made twice' if name in returned else 'did not make'} the column {name!r}"
                why = f"it made {', '.join(map(str, returned))}"
                raise JobError(f"the function {what}", why=why, do="return it, or leave it out of columns_out")
        for name in returned:
            if name in self.columns_out or (name in names and result[name].equals(frame[name])):
                continue
            what = f"{'changed' if name in names else 'made'} the column {name!r}, which columns_out does not name"
            raise JobError(f"the function {what}", do=f"add {name!r} to columns_out, or let the function leave it out")
        return {name: context.engine.adopt(result[name]) for name in self.columns_out}
