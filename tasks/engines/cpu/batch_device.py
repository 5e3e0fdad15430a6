"""Host memory as the place where batches for training live."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pyarrow as pa


class BatchDevice:
    """Host memory: arrays are NumPy's, Arrow reads the row groups, and there are no streams to keep in order."""

    xp = np

    def __init__(self, number: int | None = None) -> None:
        self.name = "cpu"

    def read(self, path: str, group: int, types: dict[str, pa.DataType]) -> dict[str, tuple[Any, Any, Any]]:
        """No column: the caller reads all of them with Arrow."""
        return {}

    def put(self, values: np.ndarray) -> np.ndarray:
        """The array in the memory of this device."""
        return values

    def host(self, values: np.ndarray) -> np.ndarray:
        """The array in host memory."""
        return values

    def reading(self) -> AbstractContextManager[None]:
        """Surrounds what reads a row group and puts it in order."""
        return nullcontext()

    def handing_over(self, stream: int | None = None) -> AbstractContextManager[None]:
        """Surrounds what makes a batch of row groups, for work on a stream of the caller's."""
        return nullcontext()
