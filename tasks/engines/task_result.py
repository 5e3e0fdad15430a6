"""The results of tasks that hold tables: each says how large it is, and what of it may stand in a GPU's memory.

Dask weighs, moves and spills a result by its class, or by the first of its bases that is registered. What workers
register for `TaskResult` (`tasks.cluster.transfer.host_memory`, `tasks.cluster.transfer.gpu_pieces`,
`tasks.cluster.transfer.gpu_spilling`) holds for all of millrace's results, and the modules that register it need not
import those that make results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class TaskResult(ABC):
    """What a task leaves on its worker for other tasks to read."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the tables in it."""

    @abstractmethod
    def device_parts(self) -> list[Any]:
        """Its tables, or what holds them: the result stands on a GPU if any of these does."""

    def __sizeof__(self) -> int:
        """What Dask takes for the size of a result: it spills and moves results by it, and asks several times in the
        thread that serves it."""
        return self.nbytes


class PiecesResult(TaskResult):
    """A result that is a list of pieces, as an engine's `cut` makes them, and plain attributes."""

    pieces: list[Any]

    @property
    def nbytes(self) -> int:
        return int(sum(p.nbytes for p in self.pieces))

    def device_parts(self) -> list[Any]:
        return self.pieces
