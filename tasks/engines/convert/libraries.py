"""Converts frames of other libraries to Arrow tables and back; imports cuDF only for cuDF frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tasks.core.dtypes import dtype_name
from tasks.engines.types import DataFrame
from tasks.errors import DataError

REFUSED = (pa.ArrowException, TypeError, ValueError, OverflowError)  # Arrow raises these for values that it cannot hold
LACKED = (NotImplementedError, TypeError, ValueError)  # cuDF raises these for types that it lacks


def library(frame: object) -> str:
    """The library of a frame: pandas, pyarrow, cudf, dask (also for dask_cudf) or the first part of its module."""
    root = type(frame).__module__.split(".")[0]
    return {"dask_expr": "dask", "dask_cudf": "dask"}.get(root, root)


def from_any(frame: Any) -> pa.Table | None:
    """The columns of a pandas, Arrow or cuDF frame, without its index, as a table; None for other objects."""
    kind = library(frame)
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pd.DataFrame):
        return _of_pandas(frame)
    if kind == "cudf":
        return _of_cudf(frame)
    return None


def copy_from_any(frame: object) -> pa.Table | None:
    """As `from_any`, in memory of its own: Arrow shares numbers of pandas, which may change later."""
    return from_any(frame.copy() if isinstance(frame, pd.DataFrame) else frame)


def _of_pandas(frame: pd.DataFrame) -> pa.Table:
    if not frame.columns.is_unique:
        several = sorted({str(name) for name in frame.columns[frame.columns.duplicated()]})
        raise DataError("a pandas frame has several columns of one name", why=", ".join(several), do="rename them")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    except REFUSED:
        for name in frame.columns:
            _arrow_of(frame[name])
        raise


def _of_cudf(frame: Any) -> pa.Table:
    """As cuDF gives them, and in their own types the lists and structs without a value, which cuDF gives as nulls."""
    table = frame.to_arrow(preserve_index=False).replace_schema_metadata()
    for i, (field, dtype) in enumerate(zip(table.schema, frame.dtypes, strict=True)):
        if _lacks_types(field.type) and hasattr(dtype, "to_arrow"):
            table = table.set_column(i, field.name, table.column(i).cast(dtype.to_arrow()))
    return table


def _lacks_types(dtype: pa.DataType) -> bool:
    return pa.types.is_null(dtype) or any(_lacks_types(dtype.field(i).type) for i in range(dtype.num_fields))


def columns_of(frame: Any, names: list[Any]) -> pa.Table:
    """Columns of a pandas or cuDF frame as a table. Column by column, which is fast for a frame of one row."""
    if library(frame) == "cudf":
        return _of_cudf(frame[names])
    return pa.table({str(name): _arrow_of(frame[name]) for name in names})


def _arrow_of(column: pd.Series) -> pa.Array | pa.ChunkedArray:
    """A pandas column as Arrow: Arrow-backed values without a copy, plain numbers through numpy."""
    try:
        if getattr(column.dtype, "kind", "O") in "biufM" and not pd.api.types.is_extension_array_dtype(column.dtype):
            return pa.array(column.to_numpy(), from_pandas=True)
        convert = getattr(column.array, "__arrow_array__", None)
        return convert() if convert else pa.array(column, from_pandas=True)
    except REFUSED as error:
        raise DataError(
            f"column {str(column.name)!r} of a pandas frame does not convert to Arrow",
            why=f"dtype {column.dtype}: {error.args[0] if error.args else error!s}",
            do=f"give its values one plain type, such as frame[{column.name!r}].astype('string'), or leave it out",
        ) from None


def arrow_values(values: object) -> pa.Array | pa.ChunkedArray:
    """The values of a pandas Series, an Arrow array, a numpy array or a list, as Arrow."""
    if isinstance(values, pd.Series):
        inside: Any = values.array
        return inside.__arrow_array__() if isinstance(values.dtype, pd.ArrowDtype) else pa.Array.from_pandas(values)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    return pa.array(values if isinstance(values, list) else np.asarray(values))


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The table as a pandas frame backed by Arrow, without dictionary encoding."""
    return decode_dictionaries(table).to_pandas(types_mapper=pd.ArrowDtype)


def to_cudf(table: pa.Table) -> DataFrame:
    """The table as a cuDF frame on the current GPU."""
    import cudf

    table = decode_dictionaries(table)
    try:
        return cudf.DataFrame.from_arrow(table)
    except LACKED:
        for name in table.column_names:
            _check_cudf_holds(name, table[name])
        raise


def _check_cudf_holds(name: str, values: pa.ChunkedArray) -> None:
    import cudf

    try:
        cudf.Series.from_arrow(values.slice(0, 0).combine_chunks())
    except LACKED:
        raise DataError(
            f"cuDF frames cannot hold column {name!r}",
            why=f"it is {dtype_name(values.type)}",
            do="write it with to_parquet, leave it out, or take engine='pandas'",
        ) from None


def to_frame(table: pa.Table, engine: str) -> DataFrame:
    """The table as the engine's frame."""
    return to_cudf(table) if engine == "cudf" else to_pandas(table)


def decode_dictionaries(table: pa.Table) -> pa.Table:
    """The table without dictionary encoding."""
    for i, (field, values) in enumerate(zip(table.schema, table.columns, strict=True)):
        if pa.types.is_dictionary(field.type):  # a cast to the same type would spoil lists of nulls
            table = table.set_column(i, field.name, values.cast(field.type.value_type))
    return table


def resolve_engine(engine: str) -> str:
    """The engine for a setting: `auto` is cudf if cuDF is installed and a GPU answers, else pandas."""
    if engine != "auto":
        return engine
    import importlib.util

    if importlib.util.find_spec("cudf") is None:
        return "pandas"
    try:
        import pynvml

        pynvml.nvmlInit()
        return "cudf" if pynvml.nvmlDeviceGetCount() else "pandas"
    except Exception:  # no driver, no library: no GPU, whatever the reason
        return "pandas"
