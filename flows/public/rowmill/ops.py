"""The operators, and the base classes for operators of one's own: `from rowmill.ops import Categorify, Learned`.

These are the names of `tasks.ops`, to which every module there adds its own. `ops.pyi` lists them for type checkers.
"""

from __future__ import annotations

import sys

import tasks.graph.node  # noqa: F401 (gives operators `columns >> operator`)
from tasks.core.nvtabular import of_attribute as _of_attribute
from tasks.errors import JobError as _JobError
from tasks.ops import *  # noqa: F403
from tasks.ops import __all__ as __all__


def __getattr__(name: str) -> object:
    """AttributeError; a JobError for names of NVTabular, since `from .. import` would hide an AttributeError's text."""
    if advice := _of_attribute("nvt.ops", name):
        raise _JobError(f"there is no operator {name!r}", where="rowmill.ops", do=advice)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
