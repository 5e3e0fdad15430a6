"""The seam between the product and its two engines: Arrow on the CPU, which users see as pandas, and cuDF on the GPU.

A *column* is an Arrow array, or a cuDF Series; operators of users get pandas Series in place of Arrow arrays. A *frame*
is a dict of columns of one length.
`tasks.engines.cpu` and `tasks.engines.gpu` have the same kernels, with equal parameters and meaning: those of
`tasks.engines.algorithms.protocol.Engine`. `engine(name)` and `engine_of(column)` return the module. Only this package
and `tasks.cluster.transfer` import pandas, cuDF or CuPy.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tasks.core.memory_budget import COPIES_ON_GPU, COPIES_WRITTEN, WORK_SHARE_OF_GPU
from tasks.engines.admission import Places, file_runs
from tasks.engines.algorithms.protocol import Engine, Kernels
from tasks.engines.types import Array, Series

if TYPE_CHECKING:
    import cudf
    import pandas as pd
    import pyarrow as pa

Frame = dict[str, Series]


@functools.cache
def _cpu() -> Engine[pa.Array | pd.Series, Array, pa.Table]:
    from tasks.engines import cpu

    return cpu


@functools.cache
def _gpu() -> Engine[cudf.Series, Array, cudf.DataFrame]:
    from tasks.engines import gpu

    return gpu


MODULES: dict[str, Callable[[], Engine[Any, Any, Any]]] = {"pandas": _cpu, "cudf": _gpu}


def engine(name: str) -> Kernels:
    """Return the kernels of an engine, `pandas` or `cudf`; the first call imports the module."""
    return MODULES[name]()


def engine_of(column: object) -> Kernels:
    """The kernels of the library that the column belongs to; those of a pandas Series make Series, too."""
    return _find_kernels(type(column).__module__)


@functools.lru_cache(maxsize=256)
def _find_kernels(module: str) -> Kernels:
    library = module.split(".")[0]
    kernels = engine("cudf" if library == "cudf" else "pandas")
    return user_kernels(kernels) if library == "pandas" else kernels


def user_kernels(kernels: Kernels) -> Kernels:
    """The kernels for operators of users, whose columns are Series of pandas or cuDF."""
    return kernels if kernels.NAME == "cudf" else _make_series_kernels()


@functools.cache
def _make_series_kernels() -> Kernels:
    from tasks.engines.cpu.user_series import SeriesKernels

    kernels: Kernels = SeriesKernels(engine("pandas"))
    return kernels


def user_column(column: Any) -> Series:
    """A column of an engine as operators of users take it: a Series of pandas or cuDF."""
    if type(column).__module__.split(".")[0] == "cudf":
        return column
    from tasks.engines.cpu import user_series

    return user_series.user_column(column)


def synchronize() -> None:
    """Wait until the GPU has finished the work of this thread, so that other threads may use the results.

    Does nothing in a process that has not imported the GPU engine.
    """
    if "cudf" in sys.modules and "tasks.engines.gpu" in sys.modules:
        from tasks.engines import gpu

        gpu.synchronize()


def allocatable() -> int:
    """Bytes that this process may allocate on its GPU."""
    from tasks.engines import gpu

    return gpu.allocatable()


def device_memory() -> tuple[int, int]:
    """Free and all bytes of the GPU of this process."""
    from tasks.engines import gpu

    return gpu.device_memory()


_places = Places(allocatable)


@contextmanager
def _take_gpu_place(nbytes: int, **options: Any) -> Iterator[None]:
    """Take a place on the GPU. If the work fails, keep the place until the GPU has finished what was submitted."""
    with _places.take_place(nbytes, **options):
        try:
            yield
        except BaseException:
            with suppress(Exception):  # of a GPU that is lost itself
                synchronize()
            raise


@contextmanager
def computing(name: str, nbytes: int) -> Iterator[None]:
    """Wait for a place to compute on a partition of `nbytes` decoded bytes. A GPU takes as many at once as fit."""
    if name != "cudf":
        yield
        return
    with _take_gpu_place(COPIES_ON_GPU * nbytes):
        yield


def table_on(name: str, table: object) -> Frame | pa.Table:
    """The Arrow table as the engine writes it: with cudf its columns on the GPU, with pandas the table itself."""
    return engine(name).from_arrow(table) if name == "cudf" else table


def runs_of_a_file(name: str, nbytes: int) -> int:
    """In how many runs of rows a file of `nbytes` bytes is written, so that a GPU writes several files at once."""
    return file_runs(allocatable(), nbytes) if name == "cudf" else 1


@contextmanager
def writing(name: str, nbytes: int, alone: bool) -> Iterator[None]:
    """Wait for a place to write a file of `nbytes` bytes of rows. A GPU takes as many at once as fit.

    `alone`: the GPU holds no pieces, so files may take twice the usual share of its memory.
    """
    if name != "cudf":
        yield
        return
    share = 2 * WORK_SHARE_OF_GPU if alone else WORK_SHARE_OF_GPU
    with _take_gpu_place(int(COPIES_WRITTEN * nbytes), computing=False, share=share):
        yield
