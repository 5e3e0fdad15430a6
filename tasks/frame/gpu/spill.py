"""Which results of tasks stand in the GPU's memory.

Above `device_memory_limit` dask-cuda moves those to the host, and from there to disk. It looks at what it knows (cuDF's
frames, CuPy's arrays, lists and dicts of them); what stands in objects of millrace it would leave where it is until the
GPU is full. Imported with the engine, before a worker has its first result.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import cudf
from dask.sizeof import sizeof

from tasks.frame.gpu.order import Pieces
from tasks.frame.size import nbytes


def register() -> None:
    """Tell dask-cuda, where it is installed, and how large cuDF's frames are."""
    sizeof.register(cudf.DataFrame)(nbytes)
    if importlib.util.find_spec("dask_cuda") is None:
        return
    from dask_cuda.is_device_object import is_device_object

    is_device_object.register(Pieces)(lambda pieces: True)
    is_device_object.register_lazy("tasks", lambda: _register_holders(is_device_object))


def _register_holders(is_device_object: Any) -> None:
    """The classes that hold tables or pieces, asked for when the first result of such a class is there."""
    from tasks.large import Part, Piece, Split
    from tasks.statistics import Observed
    from tasks.transform import Cut

    is_device_object.register(Cut)(lambda cut: is_device_object(cut.pieces))
    is_device_object.register(Observed)(lambda found: is_device_object([p.tree for p in found.partials.values()]))
    is_device_object.register((Split, Part))(lambda held: is_device_object(list(held.tables)))
    is_device_object.register(Piece)(lambda piece: is_device_object(piece.table))


register()
