"""Dask keeps every scheduler that this process ever had: 1.8 MB for each run. Its two caches are emptied here.

`distributed.core._expects_comm` and `distributed.dashboard.scheduler.template_variables` are caches without bounds
whose keys are schedulers or their methods (https://github.com/dask/distributed/issues/5960). Both only save a few
microseconds; tests/infra/test_closed_schedulers.py fails when Dask renames or fixes them.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any


def forget() -> None:
    """Empty both caches, so that the schedulers of runs that have ended are collected."""
    if expects := getattr(sys.modules.get("distributed.core"), "_expects_comm", None):
        expects.cache_clear()
    if variables := getattr(sys.modules.get("distributed.dashboard.scheduler"), "template_variables", None):
        cache_of(variables).clear()


def cache_of(memoized: Any) -> dict[Any, Any]:
    """The memoized results of a function of toolz (in its closure) or cytoolz (in an attribute); {} for any other."""
    if isinstance(cache := getattr(memoized, "cache", None), dict):
        return cache
    return inspect.getclosurevars(memoized).nonlocals.get("cache", {}) if inspect.isfunction(memoized) else {}
