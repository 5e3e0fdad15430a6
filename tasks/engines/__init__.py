"""The seam between the product and its two engines: pandas on Arrow on the CPU, cuDF on the GPU.

A *column* is a pandas Series with an Arrow type, or a cuDF Series. A *frame* is a dict of columns of one length.
Kernels stand in `tasks.engines.cpu` and `tasks.engines.gpu`, under the same names with the same meaning; `engine(name)`
and `engine_of(column)` give the module. Nothing outside this package imports pandas, cuDF or CuPy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from tasks.core.memory_budget import COPIES_ON_GPU, COPIES_WRITTEN, WORK_SHARE_OF_GPU
from tasks.engines.admission import Places, file_runs

Frame = dict[str, Any]
MODULES = {"pandas": "tasks.engines.cpu", "cudf": "tasks.engines.gpu"}


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


def allocatable() -> int:
    """Bytes that this process may allocate on its GPU."""
    return int(engine("cudf").allocatable())


_places = Places(allocatable)


@contextmanager
def _place(nbytes: int, **options: Any) -> Iterator[None]:
    """A place on the GPU; work that fails leaves it when the GPU is done with what was begun: others get the memory."""
    with _places.taken(nbytes, **options):
        try:
            yield
        except BaseException:
            with suppress(Exception):  # of a GPU that is lost itself
                synchronize()
            raise


@contextmanager
def computing(name: str, nbytes: int) -> Iterator[None]:
    """A place to compute on a partition of so many decoded bytes: on a GPU a few at once, as many as fit."""
    if name != "cudf":
        yield
        return
    with _place(COPIES_ON_GPU * nbytes):
        yield


def table_on(name: str, table: Any) -> Any:
    """An Arrow table as an engine writes it: its columns on the GPU, or as it is."""
    return engine(name).from_arrow(table) if name == "cudf" else table


def runs_of_a_file(name: str, nbytes: int) -> int:
    """In how many runs of rows a file of so many bytes is written so that several are written at once on a GPU."""
    return file_runs(allocatable(), nbytes) if name == "cudf" else 1


@contextmanager
def writing(name: str, nbytes: int, alone: bool) -> Iterator[None]:
    """A place to write a file of so many bytes of rows: on a GPU as many at once as fit.

    `alone`: the GPU has no pieces to keep, so that files may fill it.
    """
    if name != "cudf":
        yield
        return
    share = 2 * WORK_SHARE_OF_GPU if alone else WORK_SHARE_OF_GPU
    with _place(int(COPIES_WRITTEN * nbytes), computing=False, share=share):
        yield
