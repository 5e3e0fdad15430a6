"""Sizes in bytes of tables, columns and arrays of both engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def nbytes(value: Any) -> int:
    """Bytes of a table, a column or an array; the sum for lists, tuples and mappings; 0 for other objects.

    >>> import numpy as np
    >>> nbytes({"a": [np.zeros(3), np.zeros(1)], "b": "text"})
    32
    """
    if isinstance(value, Mapping):
        return sum(nbytes(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return sum(nbytes(inner) for inner in value)
    if hasattr(type(value), "to_pylibcudf"):  # cuDF, whose own property would create a Series for each column
        inside = value.to_pylibcudf()[0]
        return sum(part.device_buffer_size() for part in (inside.columns() if hasattr(inside, "columns") else [inside]))
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "columns"):  # a frame
        return sum(int(value[name].memory_usage(index=False)) for name in value.columns)
    return 0
