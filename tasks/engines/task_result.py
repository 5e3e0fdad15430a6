"""Base classes of task results that hold tables: a result knows its size and which of its parts may be on a GPU.

Dask measures, moves and spills a result by its class, or by the first registered base class. Workers register functions
for `TaskResult` (in `host_memory`, `gpu_pieces` and `gpu_spilling` of `tasks.cluster.transfer`). The functions apply to
all results of rowmill, so the modules that register them do not import the modules that create results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class TaskResult(ABC):
    """The result of a task, which stays on its worker until other tasks read it."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all tables of the result."""

    @abstractmethod
    def device_parts(self) -> list[Any]:
        """The tables of the result, or the objects that hold them: the result is on a GPU if any of them is."""

    def __sizeof__(self) -> int:
        """The size that Dask uses to spill and move results. Dask calls this often, in the thread of its event loop."""
        return self.nbytes


class PiecesResult(TaskResult):
    """A result with a list of pieces, as the engine's `cut` returns them, and plain attributes."""

    pieces: list[Any]

    @property
    def nbytes(self) -> int:
        return int(sum(p.nbytes for p in self.pieces))

    def device_parts(self) -> list[Any]:
        return self.pieces
