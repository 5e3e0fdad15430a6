"""Canonical values and hashes of cuDF columns; the GPU counterpart of `hashing.canonical` and `hashing.murmur3`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.dtypes import plain_type
from tasks.engines.convert.gpu_types import type_of_mark
from tasks.engines.gpu.kernels.column_arrays import Column, Marked
from tasks.engines.hashing.canonical import canonical_bits, is_text
from tasks.engines.hashing.murmur3 import NULL_HASH, hash_fixed, refuse_nested
from tasks.engines.types import Array

TICKS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def arrow_type(series: Marked) -> pa.DataType:
    """The plain Arrow type of a cuDF Series, derived from its dtype alone; copies nothing to the host."""
    import cudf

    dtype = series.dtype
    return _arrow_type(dtype.categories.dtype if isinstance(dtype, cudf.CategoricalDtype) else dtype)


def type_of_series(series: Marked) -> pa.DataType:
    """The type for which a Series stands, by its name; else the type of its dtype."""
    marked = type_of_mark(series.name)
    return arrow_type(series) if marked is None else marked


def _arrow_type(dtype: Any) -> pa.DataType:
    import cudf

    if isinstance(dtype, cudf.ListDtype):
        return pa.list_(_arrow_type(dtype.element_type))
    if isinstance(dtype, (cudf.Decimal32Dtype, cudf.Decimal64Dtype, cudf.Decimal128Dtype)):
        return pa.decimal128(dtype.precision, dtype.scale)
    if isinstance(dtype, cudf.StructDtype):
        return plain_type(dtype.to_arrow())
    if getattr(dtype, "tz", None) is not None:
        return pa.timestamp(dtype.unit, str(dtype.tz))
    return pa.from_numpy_dtype(dtype) if isinstance(dtype, np.dtype) and dtype.kind in "iufbmM" else pa.string()


def decode_categories(series: Column) -> Column:
    """The Series itself, or its values where it is a category."""
    import cudf

    return series.astype(series.cat.categories.dtype) if isinstance(series.dtype, cudf.CategoricalDtype) else series


def raw_values(series: Column, dtype: pa.DataType) -> tuple[Any, Any | None]:
    """The stored numbers of a boolean, number, time or date Series as CuPy, and where they are valid (None: all are).

    NaN is not valid. `dtype` is the type in the schema: for a date, which is a timestamp under cuDF, days are returned.
    """
    series = decode_categories(series)
    stored = arrow_type(series)
    if pa.types.is_floating(stored):
        series = series.nans_to_nulls()
    valid = series.notna().values if series.null_count else None
    if pa.types.is_timestamp(stored) and stored.tz is not None:
        series = series.dt.tz_convert(None)
    if pa.types.is_temporal(stored):
        series = series.astype("int64")
    if valid is not None:
        series = series.fillna(False if pa.types.is_boolean(stored) else 0)
    values = series.values
    if pa.types.is_date32(dtype) and pa.types.is_timestamp(stored):
        values = values // TICKS_PER_DAY[stored.unit]
    return values, valid


def hash_series(series: Column, seed: int = 0, dtype: pa.DataType | None = None, whole: bool = False) -> Array:
    """MurmurHash3_x86_32 of the canonical bytes of each value as CuPy uint32; null -> 0xFFFFFFFF.

    `dtype` is the column's type in the schema, where cuDF does not keep it apart (a date is a timestamp there). With
    `whole`, whole floats hash as integers.
    """
    import cupy

    dtype = plain_type(dtype or arrow_type(series))
    refuse_nested(dtype)
    if is_text(dtype) or pa.types.is_decimal(dtype):
        series = decode_categories(series)
        text = series.astype("str") if pa.types.is_decimal(dtype) else series
        hashes = text.hash_values(method="murmur3", seed=seed).values
        valid = series.notna().values if series.null_count else None
    elif pa.types.is_null(dtype):
        return cupy.full(len(series), NULL_HASH, dtype=cupy.uint32)
    else:
        values, valid = raw_values(series, dtype)
        hashes = hash_fixed(canonical_bits(values, dtype, cupy, whole), seed, cupy)
    return hashes if valid is None else cupy.where(valid, hashes, np.uint32(NULL_HASH))
