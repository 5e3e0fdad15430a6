"""Tells dask-cuda which results of tasks are in the GPU's memory.

Above `device_memory_limit` dask-cuda moves those to the host, and from there to disk. It knows cuDF's frames, CuPy's
arrays, lists and dicts of them. Without this module it would leave objects of rowmill in the GPU's memory until the
GPU is full. `gpu_worker` registers this before a worker has its first result.
"""

from __future__ import annotations

import importlib.util

import cudf
from dask.sizeof import sizeof

from tasks.engines.convert.frame_sizes import nbytes
from tasks.engines.gpu.order import Pieces
from tasks.engines.task_result import TaskResult


def register() -> None:
    """Tell dask-cuda, where it is installed, and how large cuDF's frames are."""
    sizeof.register(cudf.DataFrame)(nbytes)
    if importlib.util.find_spec("dask_cuda") is None:
        return
    from dask_cuda.is_device_object import is_device_object

    is_device_object.register(Pieces)(lambda pieces: True)
    is_device_object.register(TaskResult)(lambda result: is_device_object(result.device_parts()))
