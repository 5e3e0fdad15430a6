"""Values of Arrow columns as Python objects; times out of the range of Python's types as text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def to_python_list(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values as Python objects; a time outside the years 1 to 9999 as text.

    >>> to_python_list(pa.array([0, 2**40], pa.timestamp("s")))
    [datetime.datetime(1970, 1, 1, 0, 0), '1099511627776 s since 1970']
    """
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        values = [value_of(scalar) for scalar in column]
    return values


def value_of(scalar: pa.Scalar) -> object:
    """One value, as in `to_python_list`."""
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_nested(scalar.type):
            return str(scalar.type)
        number = scalar.cast(to_storage_type(scalar.type)).as_py()
        dtype = scalar.type
        unit = dtype.unit if hasattr(dtype, "unit") else "ms" if pa.types.is_date64(dtype) else "days"
        return f"{number} {unit}" + ("" if pa.types.is_duration(dtype) else " since 1970")


def rows_listed(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as maps from column to value."""
    columns = [to_python_list(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def to_storage_type(dtype: pa.DataType) -> pa.DataType:
    """The integer type that stores values of a time type; other types unchanged."""
    if not pa.types.is_temporal(dtype):
        return dtype
    return pa.int32() if dtype.bit_width == 32 else pa.int64()
