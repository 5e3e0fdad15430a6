"""Arrays of either engine in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np


def on_host(array: Any) -> np.ndarray:
    """An array of numpy or CuPy in host memory."""
    return array.get() if hasattr(array, "get") else array
