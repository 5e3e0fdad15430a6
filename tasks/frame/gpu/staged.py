"""Copies between the GPU and ordinary host memory through pinned buffers, one for each thread that copies.

The driver copies ordinary memory with one thread for a whole process, 4 GB/s; from and to pinned memory a copy takes
next to nothing, and threads move bytes between that and the pages of their own side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import cudf
import cupy
import cupyx
import numpy as np
import pyarrow as pa

from tasks.frame import canonical_cudf
from tasks.frame.gpu.columns import Column, array, device, from_numbers, in_own_memory

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
    """The bytes at an address of the GPU, after what this thread's stream still does to them."""
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    found = np.empty(nbytes, np.uint8)
    with _stage() as stage:
        for start in range(0, nbytes, STAGE):
            part = found[start : start + STAGE]
            kind = runtime.memcpyDeviceToHost
            runtime.memcpyAsync(stage.ctypes.data, pointer + start, len(part), kind, stream.ptr)
            stream.synchronize()
            np.copyto(part, stage[: len(part)])
    return found


def bytes_to_device(parts: Sequence[np.ndarray]) -> cupy.ndarray:
    """Bytes of the host, one part after another, in one array."""
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    found = cupy.empty(sum(len(part) for part in parts), np.uint8)
    sent = filled = 0
    with _stage() as stage:
        for part in parts:
            while len(part):
                taken, part = part[: STAGE - filled], part[STAGE - filled :]
                np.copyto(stage[filled : filled + len(taken)], taken)
                filled += len(taken)
                if filled == STAGE or sent + filled == len(found):
                    kind = runtime.memcpyHostToDevice
                    runtime.memcpyAsync(found.data.ptr + sent, stage.ctypes.data, filled, kind, stream.ptr)
                    stream.synchronize()
                    sent, filled = sent + filled, 0
    return found


def array_to_host(values: cupy.ndarray) -> np.ndarray:
    """A contiguous array of one dimension."""
    return bytes_to_host(values.data.ptr, values.nbytes).view(values.dtype)


def array_to_device(values: np.ndarray) -> cupy.ndarray:
    """A contiguous array of one dimension."""
    return bytes_to_device([values.view(np.uint8)]).view(values.dtype)


def to_host(values: Column) -> pa.Array:
    """`Series.to_arrow`; numbers and times without a zone go through pinned memory."""
    found = device(values)
    if not (isinstance(values.dtype, np.dtype) and values.dtype.kind in "iufmM" and len(values) and not found.offset()):
        made = values.to_arrow()
        # cuDF forgets the type of lists that are all null
        return pa.nulls(len(made), canonical_cudf.arrow_type(values)) if made.null_count == len(made) else made
    rows, nulls = len(values), found.null_count()
    data = bytes_to_host(found.data().ptr, rows * values.dtype.itemsize)
    mask = pa.py_buffer(bytes_to_host(found.null_mask().ptr, -(-rows // 8))) if nulls else None
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), rows, [mask, pa.py_buffer(data)], nulls)


def to_device(values: pa.ChunkedArray, mapped: bool) -> Column:
    """`Series.from_arrow`; numbers and times without a zone go through pinned memory, chunk by chunk.

    `mapped`: they may lie in a mapped file, of which nothing but their own bytes may be read.
    """
    kind = values.type
    times = (pa.types.is_timestamp(kind) and kind.tz is None) or pa.types.is_duration(kind)
    if not (times or pa.types.is_integer(kind) or pa.types.is_floating(kind)) or not len(values):
        return cudf.Series.from_arrow(array(in_own_memory(values) if mapped else values))
    plain = np.dtype(np.int64 if times else kind.to_pandas_dtype())
    numbers = bytes_to_device([_data(chunk, plain.itemsize) for chunk in values.chunks if len(chunk)]).view(plain)
    valid = None
    if values.null_count:
        valid = cupy.asarray(np.concatenate([c.is_valid().to_numpy(zero_copy_only=False) for c in values.chunks]))
    return from_numbers(numbers, valid, kind if times else None)


def _data(chunk: pa.Array, width: int) -> np.ndarray:
    """The bytes of a chunk's values."""
    return np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * width : (chunk.offset + len(chunk)) * width]
