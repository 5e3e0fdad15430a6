"""List columns taken apart and put together again, on the GPU."""

from __future__ import annotations

import cudf
import cupy
import pylibcudf as plc

from tasks.engines.gpu.columns import Column, device, listing, valid_rows


def list_lengths(values: Column) -> tuple[cupy.ndarray, cupy.ndarray | None]:
    """(length of each list, int64, 0 where null; valid, None without nulls)."""
    counts = cudf.Series.from_pylibcudf(plc.lists.count_elements(device(values))).fillna(0).values
    return counts.astype(cupy.int64), valid_rows(values)


def make_lists(lengths: cupy.ndarray, valid: cupy.ndarray | None, elements: Column) -> Column:
    """Lists of these lengths of the elements, one after another; null (of length 0) where not valid."""
    offsets = cupy.zeros(len(lengths) + 1, dtype=cupy.int32)
    cupy.cumsum(lengths, out=offsets[1:])
    flat = plc.Column.from_cuda_array_interface(offsets)
    lists = plc.Column(plc.DataType(plc.TypeId.LIST), len(lengths), None, None, 0, 0, [flat, device(elements)])
    if valid is not None:
        mask, nulls = plc.transform.bools_to_mask(plc.Column.from_cuda_array_interface(cupy.ascontiguousarray(valid)))
        lists = lists.with_mask(mask, nulls)
    return listing(lists, elements)
