"""Columns of the GPU engine: to and from Arrow, and numbers value by value. All columns have the plain index 0, 1, ..

cuDF has no dates and no columns of type null: a Series of timestamps in seconds called `date32[day]` stands for dates,
one of null strings called `null` for the other. `tasks.engines.convert.gpu_types` says what stands for further types,
under what name. Kernels keep the name; `dtype` and `host` read it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import cudf
import cupy
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pylibcudf as plc

from tasks.core.dtypes import is_list as is_list_type
from tasks.core.dtypes import leaf_type, plain_type
from tasks.engines.algorithms import arrow_arrays
from tasks.engines.algorithms.moments import power_of, within
from tasks.engines.algorithms.reductions import all_true, extremes
from tasks.engines.convert.gpu_types import from_stand_in, is_foreign, mark_of, stand_in, type_of_mark
from tasks.engines.convert.type_widening import is_narrower
from tasks.engines.gpu.kernels import canonical_cudf, pinned_copies
from tasks.engines.gpu.kernels.block_reductions import block_moments
from tasks.engines.gpu.kernels.column_arrays import Column, Marked, array_of, device, gather_columns, valid_in, with_nan
from tasks.engines.hashing.canonical import decimal_floats
from tasks.engines.types import Array

DATE = str(pa.date32())
NULL = str(pa.null())
TICKS = canonical_cudf.TICKS_PER_DAY
_AFFINE = cupy.ElementwiseKernel(
    "T x, float64 shift, float64 scale", "S y", "y = (S)(((double)x - shift) / scale)", "affine"
)
_LOG1P = cupy.ElementwiseKernel("T x", "S y", "y = (S)log1p((double)x)", "log1p_of")
DECIMALS = (cudf.Decimal32Dtype, cudf.Decimal64Dtype, cudf.Decimal128Dtype)


def synchronize() -> None:
    """Wait for the work of this thread: other threads, on streams of their own, may use its results from here on."""
    cupy.cuda.Stream.null.synchronize()
    cupy.cuda.Stream.ptds.synchronize()


def rebuilt(stored: plc.Column, like: Marked) -> Column:
    """The Series of libcudf's column `stored`, with exactly the type and the mark of the Series `like`."""
    series = cudf.Series.from_pylibcudf(stored)
    zone = getattr(like.dtype, "tz", None)
    if zone is not None:
        series = series.dt.tz_localize("UTC").dt.tz_convert(zone)
    elif isinstance(like.dtype, DECIMALS) and series.dtype != like.dtype:
        series = series.astype(like.dtype)
    if is_mark(like.name):
        series.name = like.name
    return series


def is_mark(name: object) -> bool:
    """Whether the name of a Series says which type the Series stands for."""
    return name in (DATE, NULL) or type_of_mark(name) is not None


def name_of(dtype: pa.DataType) -> str | None:
    """The name of a Series of a type that cuDF lacks; None for types that cuDF has."""
    return DATE if pa.types.is_date32(dtype) else mark_of(dtype)


def column(values: pa.Array | pa.ChunkedArray) -> Column:
    """The column of an Arrow array on the device: dictionaries decoded there, NaN null."""
    joined = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(joined, pa.ChunkedArray):  # Arrow does not join chunks of this type
        joined = joined.chunk(0) if joined.num_chunks else pa.array([], joined.type)
    if pa.types.is_dictionary(joined.type):
        return _from_dictionary(joined)
    plain = plain_type(joined.type)
    name = NULL if pa.types.is_null(plain) else name_of(plain)
    stored_type = pa.string() if name == NULL else plain
    joined = joined if joined.type == stored_type else joined.cast(stored_type)
    joined = stand_in(joined) if is_foreign(plain) else joined
    series = cudf.Series.from_arrow(joined)
    if is_list_type(joined.type) and joined.null_count:
        series = take_values(series, cupy.arange(len(series), dtype=cupy.int32))  # null lists without elements
    series.name = name
    return finite(series)


def _from_dictionary(values: pa.DictionaryArray) -> Column:
    """The column of a dictionary array: copies indices and dictionary to the device and decodes them there."""
    if not len(values.dictionary) or not pa.types.is_string(plain_type(values.type)):
        return column(values.dictionary_decode())
    outside = len(values.dictionary)
    indices = values.indices.cast(pa.int32()).fill_null(outside).to_numpy()
    return take_values(column(values.dictionary), pinned_copies.array_to_device(indices), nullify=True)


def take_values(values: Column, index: cupy.ndarray, nullify: bool = False) -> Column:
    """Rows by number; with `nullify` a number behind the last row gives null."""
    return rebuilt(gather_columns([device(values)], index, nullify)[0], values)


def renumber_rows(values: Column) -> Column:
    """The same values with the plain index."""
    return values.reset_index(drop=True)


def array(values: Column | pa.Array | pa.ChunkedArray) -> pa.Array:
    """The Arrow array of a column, in host memory."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values if isinstance(values, pa.Array) else host(values)


def decode(values: Column) -> Column:
    return values


def to_arrow(frame: dict[str, Column]) -> pa.Table:
    return pa.table({name: host(values) for name, values in frame.items()})


def host(values: Column) -> pa.Array:
    """The column in host memory as Arrow, of its exact type."""
    return host_as(values, dtype(values))


def host_as(values: Column, wanted: pa.DataType) -> pa.Array:
    """The column in host memory as the Arrow type that it stands for."""
    on_host = pinned_copies.to_host(canonical_cudf.decode_categories(values))
    if is_foreign(wanted):
        return from_stand_in(on_host, wanted)
    exact = on_host.type == wanted or pa.types.is_null(leaf_type(wanted))
    return _restore_names(on_host if exact else on_host.cast(wanted), wanted)


def _restore_names(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The array with names of list elements, and nulls without a type, as `wanted` has them: cuDF keeps neither."""
    if pa.types.is_null(wanted):
        return pa.nulls(len(values))
    if not is_list_type(wanted):
        return values
    child = _restore_names(values.values, wanted.value_type)
    return pa.Array.from_buffers(wanted, len(values), values.buffers()[:2], values.null_count, values.offset, [child])


def length(frame: dict[str, Column]) -> int:
    return len(next(iter(frame.values()))) if frame else 0


def valid_rows(values: Column) -> cupy.ndarray | None:
    """Which rows are not null; None if all are. (Series.notnull would count NaN among nulls.)"""
    return valid_in(device(values))


def raw(values: Column) -> cupy.ndarray:
    """The stored numbers, anything where null: booleans as uint8, times as int64 in their unit, decimals as float64."""
    if isinstance(values.dtype, DECIMALS):
        values = values.astype("float64")
    data = array_of(device(values))
    if values.name == DATE:
        return (data // TICKS["s"]).astype(cupy.int32)
    return data.view(cupy.uint8) if data.dtype == cupy.bool_ else data


def numbers(values: Column) -> tuple[cupy.ndarray, cupy.ndarray | None]:
    """(values, valid): the raw numbers, booleans as uint8, times as int64 in their unit; valid None without nulls."""
    return raw(values), valid_rows(values)


def from_numbers(values: Array, valid: Array | None = None, dtype: pa.DataType | None = None) -> Column:
    """The column of raw numbers and their validity (None: no nulls), of the Arrow type of the numbers or `dtype`."""
    values = cupy.ascontiguousarray(cupy.asarray(values))
    if dtype is not None and pa.types.is_boolean(dtype):
        values = values.astype(cupy.bool_)
    elif dtype is not None and pa.types.is_date32(dtype):
        values = values.astype(cupy.int64) * TICKS["s"]
    stored = plc.Column.from_cuda_array_interface(values)
    if valid is not None:
        flags = plc.Column.from_cuda_array_interface(cupy.ascontiguousarray(cupy.asarray(valid)))
        mask, nulls = plc.transform.bools_to_mask(flags)
        stored = stored.with_mask(mask, nulls) if nulls else stored
    series = cudf.Series.from_pylibcudf(stored)
    if dtype is None or not pa.types.is_temporal(dtype):
        return series
    if is_foreign(dtype):
        series.name = mark_of(dtype)
        return series
    series = series.astype("datetime64[s]" if pa.types.is_date32(dtype) else numpy_time(dtype))
    if getattr(dtype, "tz", None):
        series = series.dt.tz_localize("UTC").dt.tz_convert(dtype.tz)
    series.name = DATE if pa.types.is_date32(dtype) else None
    return series


def numpy_time(dtype: pa.DataType) -> str:
    return f"{'timedelta64' if pa.types.is_duration(dtype) else 'datetime64'}[{dtype.unit}]"


def finite(values: Column) -> Column:
    """NaN becomes null (infinities stay)."""
    return all_finite({"": values})[""]


def all_finite(frame: dict[str, Column]) -> dict[str, Column]:
    """The columns with null for NaN; one kernel searches all float columns."""
    floats = {name: device(c) for name, c in frame.items() if getattr(c.dtype, "kind", "") == "f"}
    flags = with_nan(list(floats.values()))
    return frame | {n: _nan_null(frame[n]) for n, flag in zip(floats, flags, strict=True) if flag}


def _nan_null(values: Column) -> Column:
    data, valid = numbers(values)
    numbers_only = ~cupy.isnan(data)
    return from_numbers(data, numbers_only if valid is None else valid & numbers_only)


def from_pylibcudf(stored: plc.Column) -> Column:
    return cudf.Series.from_pylibcudf(stored)


def dtype(values: Marked) -> pa.DataType:
    """The Arrow type of the values."""
    if values.name == DATE and values.dtype.kind == "M":
        return pa.date32()
    if values.name == NULL:
        return pa.null()
    return canonical_cudf.type_of_series(values)


type_of = dtype  # where a parameter is called dtype


def cast(values: Column, dtype: pa.DataType) -> Column:
    """The same values in another type; raises pa.ArrowInvalid where a value does not fit."""
    here = type_of(values)
    if here == dtype:
        return values
    if pa.types.is_null(dtype) and values.null_count == len(values):
        return column(pa.nulls(len(values)))
    if is_foreign(here) or is_foreign(dtype):
        return column(pc.cast(host(values), dtype))
    if is_list_type(here) and is_list_type(dtype):
        return with_leaves(values, cast(leaves(values), dtype.value_type))
    if _is_plain(here) and _is_plain(dtype):
        return _cast_numbers(values, here, dtype)
    if pa.types.is_date32(dtype) and pa.types.is_timestamp(here) and here.tz is None:
        data, valid = numbers(values)
        return from_numbers(data // TICKS[here.unit], valid, dtype)
    if pa.types.is_decimal(here) and pa.types.is_floating(dtype):
        return cast(column(decimal_floats(host(values))), dtype)
    return column(pc.cast(host(values), dtype))


def _is_plain(dtype: pa.DataType) -> bool:
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_boolean(dtype)


def _cast_numbers(values: Column, here: pa.DataType, wanted: pa.DataType) -> Column:
    data, valid = numbers(values)
    new = cupy.dtype(wanted.to_pandas_dtype())
    if pa.types.is_integer(here) or (pa.types.is_floating(here) and pa.types.is_integer(wanted)):
        _check_fits(data, valid, new, here, wanted)
    if pa.types.is_boolean(wanted):
        return from_numbers(data != 0, valid)
    if valid is not None and data.dtype.kind == "f" and new.kind in "iu":
        data = cupy.where(valid, data, 0)
    converted = data.astype(new)
    if is_narrower(wanted, here):
        _check_range(data, converted, valid, wanted)
    return from_numbers(converted, valid)


def _check_range(data: Array, converted: Array, valid: Array | None, wanted: pa.DataType) -> None:
    """pa.ArrowInvalid for numbers that a narrower floating type made infinite, as on the host."""
    lost = cupy.isinf(converted) & ~cupy.isinf(data)
    lost = lost if valid is None else lost & valid
    if not all_true(~lost):
        low, high = extremes(data[lost])
        raise pa.ArrowInvalid(f"values from {low} to {high} are beyond {wanted}")


def _check_fits(data: Array, valid: Array | None, new: np.dtype, here: pa.DataType, wanted: pa.DataType) -> None:
    """The rule of Arrow's safe casts: integers within the new type's (exact) range, floats whole and within it."""
    valid_numbers = data if valid is None else data[valid]
    if not len(valid_numbers) or new.kind == "b":
        return
    low, high = extremes(valid_numbers)
    if new.kind == "f":
        most = 1 << (24 if new.itemsize == 4 else 53)
        limits = (-most, most)
    else:
        limits = (int(np.iinfo(new).min), int(np.iinfo(new).max))
    whole = data.dtype.kind != "f" or all_true(cupy.trunc(valid_numbers) == valid_numbers)
    if not whole:
        raise pa.ArrowInvalid(f"a value of type {here} is not whole and would be cut by {wanted}")
    if not limits[0] <= low <= high <= limits[1]:
        raise pa.ArrowInvalid(f"values from {low} to {high} do not fit {wanted}: {limits[0]} to {limits[1]}")


def is_null(values: Column) -> Column:
    return from_pylibcudf(plc.unary.is_null(device(values)))


def fill_null(values: Column, value: object) -> Column:
    here = dtype(values)
    if pa.types.is_null(here):
        return column(pa.repeat(pa.scalar(value), len(values)))
    scalar = pa.scalar(value, here)
    if not values.null_count:
        return values
    data, valid = (None, None) if not _is_plain(here) else numbers(values)
    if data is not None:
        new = np.asarray(scalar.as_py()).astype(data.dtype)[()]
        return from_numbers(cupy.where(valid, data, new), None, here)
    if pa.types.is_string(here):
        return renumber_rows(values.fillna(value))
    return column(pc.fill_null(host(values), scalar))


def clip(values: Column, low: float | None, high: float | None) -> Column:
    here = dtype(values)
    if not _is_plain(here):
        return column(arrow_arrays.clip(host(values), low, high))
    data, valid = numbers(values)
    if low is not None:
        data = cupy.maximum(data, data.dtype.type(pa.scalar(low, here).as_py()))
    if high is not None:
        data = cupy.minimum(data, data.dtype.type(pa.scalar(high, here).as_py()))
    return from_numbers(data, valid, here)


def affine(values: Column, shift: float, scale: float, dtype: pa.DataType) -> Column:
    """(x - shift) / scale in float64, then in `dtype`; null stays."""
    data, valid = numbers(values)
    out = cupy.empty(len(data), dtype.to_pandas_dtype())
    return from_numbers(_AFFINE(data, np.float64(shift), np.float64(scale), out), valid)


def log1p(values: Column, dtype: pa.DataType) -> Column:
    """ln(1 + x) in float64, then in `dtype`; -1 gives -inf, below null."""
    data, valid = numbers(values)
    return finite(from_numbers(_LOG1P(data, cupy.empty(len(data), dtype.to_pandas_dtype())), valid))


def moments(values: Column, starts: Sequence[int]) -> list[tuple[int, float, float, float, float]]:
    """The moments (`tasks.engines.algorithms.moments`) of the values that are not null, in float64, for each run
    [starts[i], starts[i + 1]); the same bits every time.
    """
    data, valid = numbers(values)
    data = data if data.dtype.kind == "f" else data.astype(cupy.float64)
    runs = []
    for i, (n, mean, squares, low, high) in enumerate(block_moments(data, valid, starts).tolist()):
        power = power_of(low, high)
        if power:  # float64 cannot hold the squares: compute them again from scaled values
            here = slice(int(starts[i]), int(starts[i + 1]))
            part = cupy.ldexp(data[here].astype(cupy.float64), -power)
            flags = None if valid is None else valid[here]
            ((n, mean, squares, _, _),) = block_moments(part, flags, [0, len(part)]).tolist()
        runs.append((int(n), within(mean, power, low, high) if math.isfinite(mean) else mean, squares, low, high))
    return runs


def is_list(values: Column) -> bool:
    """Whether the values are lists; a map, for which a list of structs stands, is none."""
    return isinstance(values.dtype, cudf.ListDtype) and not pa.types.is_map(dtype(values))


def leaves(values: Column) -> Column:
    """The elements of all lists, one after another (null lists have none)."""
    elements = finite(from_pylibcudf(device(values).list_view().get_sliced_child()))
    wanted = dtype(values).value_type
    if isinstance(elements.dtype, DECIMALS):  # libcudf knows the scale, not the precision
        elements = elements.astype(type(elements.dtype)(wanted.precision, wanted.scale))
    elements.name = name_of(wanted)
    return elements


def with_leaves(values: Column, new: Column) -> Column:
    """Lists of the same lengths with other elements; null lists stay null."""
    stored = device(values)
    counts = cudf.Series.from_pylibcudf(plc.lists.count_elements(stored)).fillna(0).values
    offsets = cupy.zeros(len(values) + 1, dtype=cupy.int32)
    cupy.cumsum(counts, out=offsets[1:])
    flat = plc.Column.from_cuda_array_interface(offsets)
    lists = plc.Column(plc.DataType(plc.TypeId.LIST), len(values), None, None, 0, 0, [flat, device(new)])
    if values.null_count:
        mask, nulls = plc.transform.bools_to_mask(plc.Column.from_cuda_array_interface(valid_rows(values)))
        lists = lists.with_mask(mask, nulls)
    return listing(lists, new)


def listing(lists: plc.Column, elements: Column) -> Column:
    """The Series of a list column of libcudf; its name says the type where the elements stand for another type."""
    series = from_pylibcudf(lists)
    series.name = mark_of(pa.list_(dtype(elements)))
    return series


def row_numbers(first: int, rows: int) -> cupy.ndarray:
    """The numbers of `rows` rows from `first` on, uint64."""
    return cupy.arange(first, first + rows, dtype=cupy.uint64)
