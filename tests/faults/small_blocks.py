"""Every file of a source is a block, however small, so that a few thousand rows take the way of millions.

For this process (`make_plan`, `use`), and as a preload of Dask for its workers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tasks.core.plan import Limits
from tasks.sources import planning
from tasks.stages import plan_splits

ROWS = 8192  # of a small file

make_plan = partial(planning.make_plan, limits=Limits(join_below=1))


def use() -> None:
    plan_splits.make_plan = make_plan


def dask_setup(worker: Any) -> None:
    """Called by Dask in every worker process before its first task."""
    use()
