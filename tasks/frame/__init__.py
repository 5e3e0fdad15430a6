"""The seam between the product and its two engines: pandas on Arrow on the CPU, cuDF on the GPU.

A *column* is a pandas Series with an Arrow type, or a cuDF Series. A *frame* is a dict of columns of one length.
Kernels stand in `tasks.frame.cpu` and `tasks.frame.gpu`, under the same names with the same meaning; `engine(name)`
and `engine_of(column)` give the module. Nothing outside this package imports pandas, cuDF or CuPy.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

Frame = dict[str, Any]
MODULES = {"pandas": "tasks.frame.cpu", "cudf": "tasks.frame.gpu"}
GPU_COMPUTING = 8  # partitions that compute at once on one GPU; more only wait for the interpreter's lock
_computing = threading.Semaphore(GPU_COMPUTING)


def engine(name: str) -> ModuleType:
    """The kernels of an engine, `pandas` or `cudf` (imported only when it is asked for)."""
    return importlib.import_module(MODULES[name])


def engine_of(column: Any) -> ModuleType:
    """The kernels for a column, by its own library."""
    return engine("cudf" if type(column).__module__.split(".")[0] == "cudf" else "pandas")


def synchronize() -> None:
    """Wait until this thread's work on the GPU is done, before another thread uses its results; nothing without a
    GPU."""
    if "cudf" in sys.modules and MODULES["cudf"] in sys.modules:
        engine("cudf").synchronize()


@contextmanager
def computing(name: str) -> Iterator[None]:
    """A place to compute on one partition: on a GPU a few at once per process, whatever the number of its threads."""
    if name != "cudf":
        yield
        return
    with _computing:
        yield
