"""The type that holds the values of several types, and the check of values for a narrower type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import is_list, leaf_type


def widest(types: Sequence[pa.DataType]) -> pa.DataType:
    """The type that keeps values of all these types distinct: integers, numbers, times, else text.

    >>> str(widest([pa.int8(), pa.uint16()])), str(widest([pa.int8(), pa.float32()]))
    ('int64', 'double')
    """
    if all(pa.types.is_integer(t) for t in types):
        return pa.int64() if any(pa.types.is_signed_integer(t) for t in types) else pa.uint64()
    if all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in types):
        return pa.float64()
    if all(pa.types.is_timestamp(t) or pa.types.is_date(t) for t in types):
        zone = next((t.tz for t in types if pa.types.is_timestamp(t)), None)
        return pa.timestamp("ns" if pa.timestamp("ns", zone) in types else "us", zone)
    return pa.string()


def check_range(values: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> None:
    """pa.ArrowInvalid for numbers too large for a narrower floating type, which Arrow would cast to infinity."""
    new = leaf_type(wanted)
    if not is_narrower(new, leaf_type(values.type)):
        return
    while is_list(values.type):
        values = pc.list_flatten(values)
    if _within(values, new):
        return
    finite = pc.filter(values, pc.is_finite(values))
    if not _within(finite, new):
        bounds = pc.min_max(finite)
        raise pa.ArrowInvalid(f"values from {bounds['min']} to {bounds['max']} are beyond {new}")


def is_narrower(new: pa.DataType, here: pa.DataType) -> bool:
    """Whether both types are floating and `new` has the smaller range."""
    return pa.types.is_floating(new) and pa.types.is_floating(here) and new.bit_width < here.bit_width


def _within(values: pa.Array | pa.ChunkedArray, dtype: pa.DataType) -> bool:
    bounds = pc.min_max(values)
    limit = beyond(dtype)
    low = bounds["min"].as_py()
    high = bounds["max"].as_py()
    return low is None or -limit < low <= high < limit


def beyond(dtype: pa.DataType) -> float:
    """The least number that a floating type rounds to infinity.

    >>> beyond(pa.float16())
    65520.0
    """
    most = np.finfo(dtype.to_pandas_dtype()).max
    return float(most) + (float(most) - float(np.nextafter(most, 0, dtype=most.dtype))) / 2
