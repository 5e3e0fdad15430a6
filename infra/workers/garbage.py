"""Python's garbage collector in processes that import much."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """A block that imports: the garbage collector passes over the objects that it creates, in the block and later.

    A whole collection takes 0.12 s with Prefect, Dask and pandas loaded, 0.3 s with cuDF, and it stops every thread of
    the process. Without these blocks `rowmill run toy` on a million rows takes 6.5 s instead of 5.4 s from shell to
    prompt (tests/bench/results/hooks-cpu.json).

    A block that imports nothing new, as in the second run of one process, leaves all objects to the collector:
    otherwise garbage of the run before would stay for as long as the process.
    """
    collects = gc.isenabled()
    modules = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > modules:
            gc.freeze()
        if collects:
            gc.enable()
