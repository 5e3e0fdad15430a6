"""Pieces of a GPU's partitions in host memory: what a file asks for goes back to the GPU, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks import frame
from tasks.frame.cpu.order import Pieces


@dataclass(frozen=True)
class OnHost:
    """Pieces of the engine `name`, as Arrow tables that they were made into and are made of again."""

    pieces: Pieces
    name: str

    @property
    def counts(self) -> np.ndarray:
        return self.pieces.counts

    @property
    def nbytes(self) -> int:
        return self.pieces.nbytes

    def ranges(self, first: int, last: int) -> OnHost:
        """The rows of ranges [first, last), a view."""
        return OnHost(self.pieces.ranges(first, last), self.name)

    def packed(self) -> OnHost:
        """The same rows in buffers of their own."""
        return OnHost(self.pieces.packed(), self.name)

    def on_device(self) -> Any:
        """The engine's pieces."""
        found = self.pieces
        return frame.engine(self.name).pieces_from_host(found.table, found.positions, found.offsets)


def to_host(pieces: Any, name: str) -> OnHost:
    """The engine's pieces, copied."""
    return OnHost(Pieces(*frame.engine(name).pieces_to_host(pieces)), name)
