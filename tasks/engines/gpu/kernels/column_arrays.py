"""Views of libcudf's columns as CuPy arrays, without a cuDF Series between: it takes longer than most kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import cupy
import numpy as np
import pylibcudf as plc

if TYPE_CHECKING:
    import cudf

KINDS = {
    "BOOL8": "?",
    "INT8": "i1",
    "INT16": "i2",
    "INT32": "i4",
    "INT64": "i8",
    "UINT8": "u1",
    "UINT16": "u2",
    "UINT32": "u4",
    "UINT64": "u8",
    "FLOAT32": "f4",
    "FLOAT64": "f8",
    **{
        f"{kind}_{unit}": "i8"
        for kind in ("TIMESTAMP", "DURATION")
        for unit in ("SECONDS", "MILLISECONDS", "MICROSECONDS", "NANOSECONDS")
    },
    "TIMESTAMP_DAYS": "i4",
}
DTYPES = {int(plc.TypeId[name]): np.dtype(kind) for name, kind in KINDS.items()}
FLOATS = {int(plc.TypeId.FLOAT32): 4, int(plc.TypeId.FLOAT64): 8}  # and their bytes
PLAIN = {int(plc.TypeId[n]) for n in KINDS if not n.startswith(("TIME", "DURATION"))} | {int(plc.TypeId.STRING)}
# of each column
THREADS = 256
BLOCKS = 64
Column: TypeAlias = "cudf.Series"
Marked: TypeAlias = "cudf.Series | Mark"  # what tells the type of a column

_NAN = cupy.RawKernel(
    r"""
struct Floats { const void* values; const unsigned int* valid; long long first; long long wide; };

__device__ bool is_valid(const Floats& column, long long row) {
    const long long bit = column.first + row;
    return !column.valid || (column.valid[bit / 32] >> (bit % 32) & 1);
}

extern "C" __global__ void find_nan(const Floats* columns, long long rows, bool* flags) {
    const Floats column = columns[blockIdx.y];
    const long long step = (long long)gridDim.x * blockDim.x;
    bool any = false;
    for (long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += step) {
        const long long at = column.first + row;
        const double value = column.wide ? ((const double*)column.values)[at] : ((const float*)column.values)[at];
        any |= isnan(value) && is_valid(column, row);
    }
    if (any) flags[blockIdx.y] = true;
}
""",
    "find_nan",
)


class Mark(NamedTuple):
    """What `rebuilt` needs of a column: cuDF's type, and the name that says which type the column stands for."""

    dtype: Any
    name: str | None


def device(values: Column) -> plc.Column:
    """libcudf's column of a Series."""
    return values.to_pylibcudf()[0]


def array_of(column: plc.Column) -> cupy.ndarray:
    """The stored values of a column of plain numbers, booleans or times, in its memory; anything where null."""
    dtype = DTYPES[int(column.type().id())]
    rows = column.size()
    data = column.data()
    if not rows or data is None:
        return cupy.empty(0, dtype)
    memory = cupy.cuda.UnownedMemory(data.ptr, (column.offset() + rows) * dtype.itemsize, column, _device())
    return cupy.ndarray((rows,), dtype, cupy.cuda.MemoryPointer(memory, column.offset() * dtype.itemsize))


def address_of(values: cupy.ndarray) -> int:
    """The address of an array on the GPU."""
    return int(values.data.ptr)  # type: ignore[attr-defined] # CuPy's alone


def is_plain(column: plc.Column) -> bool:
    """Whether libcudf's type says all of a column's type: numbers, booleans and strings."""
    return int(column.type().id()) in PLAIN


def is_float(column: plc.Column) -> bool:
    return int(column.type().id()) in FLOATS


def valid_in(column: plc.Column) -> cupy.ndarray | None:
    """Which rows are not null; None if all are."""
    return array_of(plc.unary.is_valid(column)) if column.null_count() else None


def gather_columns(columns: Sequence[plc.Column], index: cupy.ndarray, nullify: bool = False) -> list[plc.Column]:
    """Rows of columns by number; with `nullify` a number behind the last row gives null."""
    policy = plc.copying.OutOfBoundsPolicy.NULLIFY if nullify else plc.copying.OutOfBoundsPolicy.DONT_CHECK
    places = plc.Column.from_cuda_array_interface(cupy.ascontiguousarray(index))
    return list(plc.copying.gather(plc.Table(list(columns)), places, policy).columns())


def with_nan(columns: Sequence[plc.Column]) -> list[bool]:
    """For each of these float columns of equal length: whether it has a NaN that is not null."""
    rows = columns[0].size() if columns else 0
    if not rows:
        return [False] * len(columns)
    floats = np.empty((len(columns), 4), dtype=np.int64)
    for i, column in enumerate(columns):
        mask = column.null_mask() if column.null_count() else None
        data = column.data()
        wide = FLOATS[int(column.type().id())] == 8
        floats[i] = data.ptr, mask.ptr if mask is not None else 0, column.offset(), wide
    flags = cupy.zeros(len(columns), dtype=cupy.bool_)
    blocks = min(BLOCKS, -(-rows // THREADS))
    for first in range(0, len(columns), 65_535):  # as many as a grid is high
        part = slice(first, first + 65_535)
        shape = (blocks, len(floats[part]))
        _NAN(shape, (THREADS,), (cupy.asarray(floats[part]), np.int64(rows), flags[part]))
    return [bool(flag) for flag in cupy.asnumpy(flags)]


def _device() -> int:
    return int(cupy.cuda.runtime.getDevice())
