"""CuPy's arrays, for mypy: CuPy has no types, and its arrays have the methods of NumPy's. Everything else is Any."""

from typing import Any

from numpy import ndarray as ndarray

def __getattr__(name: str) -> Any: ...
