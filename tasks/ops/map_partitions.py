"""A function of one's own on whole partitions: a frame in, a frame out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pydantic import field_validator

from tasks.core.dtypes import dtype_name, kind_of, parse_dtype, plain_type
from tasks.core.schema import Column, Schema
from tasks.engines.algorithms.protocol import Kernels
from tasks.errors import JobError
from tasks.ops.base import Columns, Context, Entry, Learned, Series, Unit
from tasks.ops.fitted_values import FittedValues
from tasks.ops.user_code import import_path
from tasks.ops.user_functions import UserFunction, same_kind

SAMPLE_ROWS = 1_000  # of each partition, for types that are not given


class MapPartitions(Learned):
    """Apply a function of your own to the frame of the selected columns, partition by partition: frame in, frame out.

    Parameters
    ----------
    function : str or callable
        Import path `module:name`, or a function of a frame that returns a frame with a row for each of its rows.
    columns_out : dict of str to str, or list of str
        Columns that come out, {name: type}. Of a list of names, `fit` takes the types from a sample, in a pass: of the
        first 1,000 rows of each partition. The types hold for every partition.
    partition_cols : list of str, default []
        Columns whose rows of equal values must lie in one partition. The function gets these columns, too.

    Notes
    -----
    The function gets a pandas frame with Arrow types, or a cuDF frame: its own copy, with the labels 0 .. n - 1. It may
    sort, use rolling windows, join, or compute with NumPy or CuPy. Values are matched to rows by label: a sorted frame
    need not be sorted back, and its index must not be reset. The order of the output is that of the source or of the
    shuffle: to bring rows into another order, read `Dataset(ddf.map_partitions(..))`, with ddf a Dask frame. The result
    may hold input columns that `columns_out` does not name, as they were; they do not come out. NaN becomes null; all
    other values, infinities too, are what the function makes of them.

    Where partitions end depends on workers and memory. If a value depends on other rows, name in `partition_cols` the
    columns by which these belong together: `source.keys` (in Python `Dataset.shuffle_by_keys`) are some of them, and
    `source.sort_by` is the order of the rows. Then the values are the same for any number of workers. As with Rolling,
    rows that a filter of such a value removes have been part of the others' values. A frame that is given to
    `Workflow.transform` is one partition.

    Integers of another width and floats of another precision are cast. A lambda, or a function within another, works in
    memory and on the workers of a Dask client, but a workflow with it cannot be saved.

    Errors: a JobError for a result that is not such a frame, of another number of rows or with other labels, for a
    column that is missing or has another type, for one that is new or changed without being declared, for types that
    differ between samples, and unless `source.keys` fit `partition_cols`; a HostError for a function that cannot be
    imported here; a DataError for a value that its type does not hold, and for an error in the function.

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
    tasks.errors.JobError: the function returned no columns called 'part' ...
    """

    function: UserFunction
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
        result = self._call_function(context.engine.slice_rows(columns, 0, rows), unit, context.part(0, rows))
        return {name: dtype_name(context.engine.dtype(column)) for name, column in result.items()}

    def merge(self, a: dict[str, str], b: dict[str, str]) -> dict[str, str]:
        for name in a.keys() & b.keys():
            if a[name] != b[name] and "null" not in (a[name], b[name]):
                what = f"the function makes {a[name]} of column {name!r} of some rows, and {b[name]} of others"
                raise JobError(what, where="MapPartitions", do=f"give types: columns_out: {{{name}: {a[name]}, ..}}")
        return b | {name: dtype for name, dtype in a.items() if dtype != "null" or name not in b}

    def finalize(self, partial: dict[str, str] | None) -> FittedValues:
        """`types`: the type of each column."""
        declared = self.columns_out if isinstance(self.columns_out, dict) else partial or {}
        return {"types": {name: declared.get(name, "null") for name in self.columns_out}}

    def apply(self, columns: Columns, unit: Unit, fitted: FittedValues, context: Context) -> Columns:
        engine = context.engine
        types = {n: plain_type(parse_dtype(t)) for n, t in fitted["types"].items()}
        if not len(context.rows):
            return engine.from_arrow(pa.schema(types.items()).empty_table())
        result = self._call_function(columns, unit, context)
        for name, column in result.items():
            dtype = engine.dtype(column)
            if not same_kind(dtype, types[name]):
                what = f"the function returned {dtype_name(dtype)} as column {name!r}, not {fitted['types'][name]}"
                why = f"that is its type in {'the sample of the fit' if self.passes else 'columns_out'}"
                raise JobError(what, why=why, do="let the function cast it, or give its type in columns_out")
        return result

    @property
    def passes(self) -> int:  # type: ignore[override]
        return 0 if isinstance(self.columns_out, dict) else 1

    @field_validator("columns_out")
    @classmethod
    def _types(cls, columns: dict[str, str] | list[str]) -> dict[str, str] | list[str]:
        if not columns or len({*columns}) < len(columns):
            raise ValueError("name at least one column, each once")
        for dtype in columns.values() if isinstance(columns, dict) else ():
            parse_dtype(dtype)
        return columns

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        return True

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        return [tuple(name for unit in super().units(selection) for name in unit)]

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        return tuple(self.partition_cols)

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        types = fitted["types"] if fitted else self.columns_out
        if isinstance(types, dict):
            return [Column(name, plain_type(parse_dtype(dtype))) for name, dtype in types.items()]
        return [Column(name, pa.null()).with_properties(settles="dtype") for name in types]

    def _call_function(self, columns: Columns, unit: Unit, context: Context) -> Columns:
        """The columns that the function makes of a run of rows, in the order of the rows; a JobError for others."""
        engine = context.engine
        names = dict.fromkeys([*unit, *self.partition_cols])
        frame = engine.user_frame({name: columns[name] for name in names})
        labels = frame.index
        called = import_path(self.function) if isinstance(self.function, str) else self.function
        result = called(frame.copy())
        if not isinstance(result, type(frame)):
            what = f"{type(result).__name__}, not a frame of {type(frame).__module__.partition('.')[0]}"
            raise JobError(f"the function returned {what}", do="return a frame with the columns of columns_out")
        if len(result) != len(frame):
            what = f"the function returned {len(result):,} rows for {len(frame):,}"
            raise JobError(what, do="return a row for each row; to remove rows use Filter, before or after")
        if not result.index.equals(labels):
            if not result.index.sort_values().equals(labels):
                do = "keep the index of the frame; after a group-by, reset_index(level=0, drop=True)"
                raise JobError("the function returned rows with other labels", why="values go to rows by label", do=do)
            result = result.sort_index()
        returned = list(result.columns)
        for name in self.columns_out:
            if returned.count(name) != 1:
                what = f"the function returned {returned.count(name) or 'no'} columns called {name!r}"
                raise JobError(what, why=f"it returned {', '.join(map(str, returned))}", do="correct it or columns_out")
        for name in (name for name in returned if name not in self.columns_out):
            if name not in names or not _equal(result[name], frame[name], engine):
                what = f"{'changed' if name in names else 'added'} the column {name!r}, which columns_out does not name"
                raise JobError(f"the function {what}", do=f"add {name!r} to columns_out, or let the function drop it")
        return {name: engine.adopt(result[name]) for name in self.columns_out}


def _equal(a: Any, b: Series, engine: Kernels) -> bool:
    if kind_of(engine.dtype(b)) in ("list", "other"):  # cuDF does not compare these
        return bool(engine.host(engine.adopt(a)).equals(engine.host(b)))
    return bool(a.equals(b))
