"""The operators, and the base classes for operators of one's own: `from rowmill.ops import Categorify, Learned`.

These are the names of `tasks.ops`, to which every module there adds its own. `ops.pyi` lists them for type checkers.
"""

import tasks.graph.node  # noqa: F401 (gives operators `columns >> operator`)
from tasks.ops import *  # noqa: F403
from tasks.ops import __all__ as __all__
