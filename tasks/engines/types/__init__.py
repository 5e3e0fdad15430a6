"""Types that the engines have in common: arrays of NumPy and CuPy, columns and frames of pandas, Arrow and cuDF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:  # Arrow has no types; tests/stubs has cuDF's Series and CuPy's arrays
    import cudf
    import cupy
    import numpy as np
    import pandas as pd
    import pyarrow as pa

Array: TypeAlias = "np.ndarray | cupy.ndarray"
Series: TypeAlias = "pa.Array | pd.Series | cudf.Series"  # a column of an engine; of pandas in the code of users
DataFrame: TypeAlias = "pd.DataFrame | cudf.DataFrame"
Index: TypeAlias = "pd.Index | cudf.Index"
CountTable: TypeAlias = "pa.Table | cudf.DataFrame"  # keys, `count` and sums


class Lookup(Protocol):
    """Finds the place of values in a vocabulary of `size` values, -1 for other values."""

    size: int

    def find_places(self, columns: Sequence[Any]) -> Array: ...
