"""An operator of a user's own, outside of tasks/ops: it learns the largest value and gives shares of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tasks.core.schema import Column
from tasks.ops.base import Learned


class ShareOfLargest(Learned):
    """x / the largest x that was learned from, times `scale`; null stays null."""

    scale: float = 1.0

    def dtype_out(self, column: Column) -> pa.DataType:
        return pa.float64()

    def observe(self, column: Any) -> float:
        return float(column.max())

    def merge(self, a: float, b: float) -> float:
        return max(a, b)

    def finalize(self, partial: float) -> dict[str, Any]:
        return {"largest": partial}

    def transform(self, column: Any, fitted: dict[str, Any]) -> Any:
        return column.astype("float64[pyarrow]") / fitted["largest"] * self.scale
