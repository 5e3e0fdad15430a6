"""Columns of the GPU engine as users' functions get them, and columns made of the results of these functions."""

from __future__ import annotations

import cudf
import cupy
import pyarrow as pa

from tasks.core.dtypes import is_list
from tasks.engines.algorithms.arrow_arrays import one_array
from tasks.engines.convert.gpu_types import is_foreign, lacks_zone, stand_in, type_of_mark
from tasks.engines.convert.libraries import LACKED, arrow_values
from tasks.engines.gpu.columns import NULL, Column, column, dtype, finite, from_numbers, host, numbers, renumber_rows
from tasks.engines.gpu.kernels import canonical_cudf


def series(values: Column) -> Column:
    """The column as a user's function sees it: structs with the names of their fields, times in UTC where cuDF lacks
    their zone; other types that cuDF lacks by their stand-ins."""
    if lacks_zone(here := dtype(values)):
        return from_numbers(*numbers(values), pa.timestamp(here.unit, "UTC"))
    if not isinstance(values.dtype, cudf.StructDtype):
        return values
    on_host = host(values)
    try:
        return cudf.Series.from_arrow(on_host)
    except LACKED:  # a field's type
        return values


def user_frame(frame: dict[str, Column]) -> cudf.DataFrame:
    """A cuDF DataFrame of the columns, for users' functions and for callers that passed a cuDF DataFrame."""
    return cudf.DataFrame({name: renumber_rows(series(values)) for name, values in frame.items()})


def _is_marked(values: Column) -> bool:
    """Whether the name of a Series is the mark of its type: cuDF gives a result the name of its argument."""
    if (marked := type_of_mark(values.name)) is not None:
        return bool(canonical_cudf.arrow_type(values) == _cudf_type(marked))
    return bool(values.name != NULL or values.null_count == len(values))


def _cudf_type(dtype: pa.DataType) -> pa.DataType:
    """The type of cuDF's own dtype for a Series that stands for this type."""
    if is_foreign(dtype):
        return stand_in(pa.array([], dtype)).type
    if is_list(dtype):
        return pa.list_(_cudf_type(dtype.value_type))
    return pa.timestamp("s") if pa.types.is_date32(dtype) else dtype


def adopt(result: object) -> Column:
    """A column of whatever a user's function returned: a Series, a CuPy, Arrow or numpy array, a list."""
    if isinstance(result, cudf.Series):
        values = renumber_rows(canonical_cudf.decode_categories(result))
        if isinstance(values.dtype, cudf.StructDtype):
            return column(values.to_arrow())
        values.name = values.name if _is_marked(values) else None
        return values
    if isinstance(result, (pa.Array, pa.ChunkedArray)):
        return column(result)
    if isinstance(result, cupy.ndarray):
        return finite(from_numbers(result))
    return column(one_array(arrow_values(result)))
