"""Tables of the host as columns of the device."""

from __future__ import annotations

from collections.abc import Mapping

import cupy
import numpy as np
import pyarrow as pa
import pylibcudf as plc

from tasks.engines.algorithms.arrow_arrays import columns_by_name
from tasks.engines.gpu.columns import Column, column, device, finite, from_numbers, rebuilt
from tasks.engines.gpu.kernels import pinned_copies


def from_arrow(table: pa.Table | Mapping[str, pa.ChunkedArray]) -> dict[str, Column]:
    return {name: _of_chunks(values) for name, values in columns_by_name(table).items()}


def _of_chunks(values: pa.ChunkedArray) -> Column:
    """Numbers go to the device as they lie, dictionaries one by one: to unify them is a single core's work."""
    if (series := from_plain_chunks(values)) is not None:
        return finite(series)
    if not pa.types.is_dictionary(values.type) or values.num_chunks < 2:
        return column(in_own_memory(values))
    parts = [column(chunk) for chunk in values.chunks]
    return rebuilt(plc.concatenate.concatenate([device(part) for part in parts]), parts[0])


def from_plain_chunks(values: pa.ChunkedArray) -> Column | None:
    """The column of chunks of plain numbers, times of no zone and durations; None for other types."""
    kind = values.type
    times = (pa.types.is_timestamp(kind) and kind.tz is None) or pa.types.is_duration(kind)
    plain = pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if not (times or plain) or not len(values):
        return None
    valid = None
    if values.null_count:
        valid = cupy.asarray(np.concatenate([c.is_valid().to_numpy(zero_copy_only=False) for c in values.chunks]))
    return from_numbers(pinned_copies.chunks_to_device(values), valid, kind if times else None)


def in_own_memory(values: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The values out of a mapped file, if they are in one: cuDF copies units of 64 bytes, more than the file may
    have."""
    if values.num_chunks != 1:
        return values.combine_chunks()
    return pa.concat_arrays([values.chunk(0).slice(0, 0), values.chunk(0)])
