"""What operators of users see of the CPU engine: pandas Series, and the same kernels, which make Series."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pandas as pd
import pyarrow as pa

# The kernels that make columns, or frames or lists of them.
MAKERS = frozenset(
    {
        *("adopt", "affine", "cast", "clip", "column", "concat", "date_part", "decode", "fill_null", "finite"),
        *("from_arrow", "from_numbers", "is_null", "join_text", "leaves", "log1p", "make_lists", "project"),
        *("slice_rows", "split_text", "take", "text", "with_leaves"),
    }
)


def user_column(values: pa.Array | pd.Series) -> pd.Series:
    """Return a column as a Series with an Arrow type, without a copy; dictionary encoding stays."""
    return values if isinstance(values, pd.Series) else pd.Series(pd.arrays.ArrowExtensionArray(values), copy=False)


class SeriesKernels:
    """The kernels of the CPU engine, which take Arrow arrays and Series alike; those that make columns make Series."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)
        return _make_series(kernel) if name in MAKERS else kernel


def _make_series(kernel: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(kernel)
    def run(*args: Any, **settings: Any) -> Any:
        result = kernel(*args, **settings)
        if isinstance(result, dict):
            return {name: user_column(values) for name, values in result.items()}
        if isinstance(result, list):
            return [user_column(values) for values in result]
        return user_column(result)

    return run
