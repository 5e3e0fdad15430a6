"""The values that an operator learned of one unit: what `finalize` returns, and `apply`, `report` and a refit take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

FittedValues: TypeAlias = dict[str, Any]  # name -> value; each learned operator documents its own names
FittedSteps: TypeAlias = Mapping[str, FittedValues]  # key of a learned step -> what it learned
