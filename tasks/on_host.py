"""Pieces of a GPU's partitions in host memory: what a file asks for goes back to the GPU, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

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


def joined_on_host(pieces: Sequence[Any]) -> list[Any]:
    """Pieces in host memory as one, which goes to the GPU at once; pieces on the GPU as they are."""
    found = [piece.pieces for piece in pieces if isinstance(piece, OnHost)]
    if not found:
        return list(pieces)
    # Strings of more than 2 GiB come from the GPU as large_string, those of other partitions as string.
    table = pa.concat_tables([piece.table for piece in found], promote_options="permissive").unify_dictionaries()
    positions = np.concatenate([piece.positions for piece in found])
    return [OnHost(Pieces(table, positions, np.array([0, len(positions)], dtype=np.int64)), pieces[0].name)]


def on_device(pieces: Sequence[Any]) -> list[Any]:
    """The engine's pieces of those that are in host memory, and the others."""
    return [_loaded(piece) if isinstance(piece, OnHost) else piece for piece in pieces]


def _loaded(piece: OnHost) -> Any:
    found = piece.pieces
    return frame.engine(piece.name).pieces_from_host(found.table, found.positions, found.offsets, mapped=False)


def to_host(pieces: Any, name: str) -> OnHost:
    """The engine's pieces, copied."""
    return OnHost(Pieces(*frame.engine(name).pieces_to_host(pieces)), name)
