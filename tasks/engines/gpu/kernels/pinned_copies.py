"""Copies between the GPU and ordinary host memory through pinned buffers, one for each thread that copies.

The driver copies ordinary memory with one thread for a whole process, 4 GB/s; from and to pinned memory a copy takes
next to nothing, and threads move bytes between that and the pages of their own side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import cupy
import cupyx
import numpy as np
import pyarrow as pa
import pylibcudf as plc

from tasks.engines.gpu.kernels import canonical_cudf
from tasks.engines.gpu.kernels.column_arrays import Column, address_of

STAGE = 8 << 20  # bytes of a buffer

_free: list[np.ndarray] = []  # buffers that no thread uses


@contextmanager
def _stage() -> Iterator[np.ndarray]:
    try:
        stage = _free.pop()
    except IndexError:
        stage = cupyx.empty_pinned(STAGE, np.uint8)
    try:
        yield stage
    finally:
        _free.append(stage)


def bytes_to_host(pointer: int, nbytes: int) -> np.ndarray:
    """A copy of the bytes at an address of the GPU, made when the stream of this thread has done its work."""
    runtime = cupy.cuda.runtime
    stream = cupy.cuda.get_current_stream()
    on_host = np.empty(nbytes, np.uint8)
    with _stage() as stage:
        for start in range(0, nbytes, STAGE):
            part = on_host[start : start + STAGE]
            kind = runtime.memcpyDeviceToHost
            runtime.memcpyAsync(stage.ctypes.data, pointer + start, len(part), kind, stream.ptr)
            stream.synchronize()
            np.copyto(part, stage[: len(part)])
    return on_host


def copy_pieces(values: cupy.ndarray) -> Iterator[memoryview]:
    """Copy the bytes of an array piece by piece to the host; each piece is valid until the next one is taken."""
    runtime = cupy.cuda.runtime
    stream = cupy.cuda.get_current_stream()
    with _stage() as stage:
        for start in range(0, values.nbytes, STAGE):
            nbytes = min(STAGE, values.nbytes - start)
            runtime.memcpyAsync(
                stage.ctypes.data, address_of(values) + start, nbytes, runtime.memcpyDeviceToHost, stream.ptr
            )
            stream.synchronize()
            yield stage[:nbytes].data


def bytes_to_device(parts: Sequence[np.ndarray]) -> cupy.ndarray:
    """One array on the device with the bytes of all parts, one part after another."""
    runtime = cupy.cuda.runtime
    stream = cupy.cuda.get_current_stream()
    on_device = cupy.empty(sum(len(part) for part in parts), np.uint8)
    sent = filled = 0
    with _stage() as stage:
        for part in parts:
            while len(part):
                taken = part[: STAGE - filled]
                part = part[STAGE - filled :]
                np.copyto(stage[filled : filled + len(taken)], taken)
                filled += len(taken)
                if filled == STAGE or sent + filled == len(on_device):
                    kind = runtime.memcpyHostToDevice
                    runtime.memcpyAsync(on_device.data.ptr + sent, stage.ctypes.data, filled, kind, stream.ptr)
                    stream.synchronize()
                    sent = sent + filled
                    filled = 0
    return on_device


def array_to_host(values: cupy.ndarray) -> np.ndarray:
    """A contiguous array of one dimension."""
    return bytes_to_host(address_of(values), values.nbytes).view(values.dtype)


def array_to_device(values: np.ndarray) -> cupy.ndarray:
    """A contiguous array of one dimension."""
    return bytes_to_device([values.view(np.uint8)]).view(values.dtype)


def to_host(values: Column) -> pa.Array:
    """`Series.to_arrow` that keeps the type where all is null, and copies strings and numbers by pinned memory."""
    column = values.to_pylibcudf()[0]
    rows = column.size()
    nulls = column.null_count()
    if nulls == rows:  # cuDF forgets the type of lists that are all null
        return pa.nulls(rows, canonical_cudf.arrow_type(values))
    if column.offset():
        return values.to_arrow()
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iufmM":
        kind = pa.from_numpy_dtype(values.dtype)
        data = [_buffer(column.data(), rows * values.dtype.itemsize)]
    elif column.type().id() == plc.TypeId.STRING and column.child(0).type().id() == plc.TypeId.INT32:
        ends = _buffer(column.child(0).data(), 4 * (rows + 1))
        kind = pa.string()
        data = [ends, _buffer(column.data(), int(np.frombuffer(ends, np.int32)[-1]))]
    else:
        return values.to_arrow()
    mask = _buffer(column.null_mask(), -(-rows // 8)) if nulls else None
    return pa.Array.from_buffers(kind, rows, [mask, *data], nulls)


def _buffer(span: plc.gpumemoryview, nbytes: int) -> pa.Buffer:
    """The first bytes of memory of libcudf."""
    return pa.py_buffer(bytes_to_host(span.ptr, nbytes) if nbytes else b"")


def chunks_to_device(values: pa.ChunkedArray) -> cupy.ndarray:
    """The values of a type of fixed width, anything where null, chunk by chunk; times as int64."""
    plain = np.dtype(np.int64 if pa.types.is_temporal(values.type) else values.type.to_pandas_dtype())
    return bytes_to_device([_data(chunk, plain.itemsize) for chunk in values.chunks if len(chunk)]).view(plain)


def _data(chunk: pa.Array, width: int) -> np.ndarray:
    """The bytes of a chunk's values."""
    return np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * width : (chunk.offset + len(chunk)) * width]
