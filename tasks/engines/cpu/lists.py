"""Lengths of lists, and lists from lengths and elements, on the CPU."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms.arrow_arrays import find_valid_rows
from tasks.engines.cpu.columns import Column, array, column
from tasks.errors import DataError

MOST = 2**31 - 1  # elements: offsets are int32


def list_lengths(values: Column) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (length of each list, int64, 0 for a null; which lists are not null, None without nulls)."""
    lists = array(values)
    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0), dtype=np.int64), find_valid_rows(lists)


def make_lists(lengths: np.ndarray, valid: np.ndarray | None, elements: Column) -> Column:
    """Make lists of these lengths of elements that come one after another; null (of length 0) where not valid.

    A DataError for more than 2^31 - 1 elements.
    """
    if len(elements) > MOST:
        raise DataError(
            f"the lists of one partition have {len(elements):,} elements together",
            why=f"a column of lists holds up to {MOST:,}",
            do="make partitions smaller with source.partition_size, or limit the lists (Groupby(.., max_length=..))",
        )
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    child = array(elements)
    bits = None if valid is None else pa.array(valid).buffers()[1]
    return column(
        pa.Array.from_buffers(pa.list_(child.type), len(lengths), [bits, pa.py_buffer(offsets)], children=[child])
    )
