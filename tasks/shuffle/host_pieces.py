"""Pieces of a GPU's partitions in host memory: what a file asks for goes back to the GPU, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.engines.cpu.order import Pieces


@dataclass(frozen=True)
class OnHost:
    """Pieces of the engine `name`, as Arrow tables that they were made into and are made of again: neighbouring
    ranges in `parts`."""

    parts: tuple[Pieces, ...]
    name: str

    @property
    def counts(self) -> np.ndarray:
        return np.concatenate([part.counts for part in self.parts])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def ranges(self, first: int, last: int) -> OnHost:
        """Return the rows of ranges as a view; the part itself if it has exactly these ranges."""
        parts = []
        start = 0
        for part in self.parts:
            low = max(first, start)
            high = min(last, start + len(part.counts))
            stop = start + len(part.counts)
            if low < high:
                parts.append(part if (low, high) == (start, stop) else part.ranges(low - start, high - start))
            start = stop
        return OnHost(tuple(parts or [self.parts[0].ranges(0, 0)]), self.name)

    def pack_rows(self) -> OnHost:
        """Copy the rows into buffers of their own; buffers that hold nothing else are kept."""
        return OnHost(tuple(part.pack_rows() for part in self.parts), self.name)


def join_on_host(pieces: Sequence[Any]) -> list[Any]:
    """Join pieces in host memory, which then go to the GPU at once; pieces on the GPU stay as they are."""
    parts = [part for piece in pieces if isinstance(piece, OnHost) for part in piece.parts]
    if not parts:
        return list(pieces)
    # Strings of more than 2 GiB come from the GPU as large_string, those of other partitions as string.
    table = pa.concat_tables([part.table for part in parts], promote_options="permissive").unify_dictionaries()
    positions = np.concatenate([part.positions for part in parts])
    whole = Pieces(table, positions, np.array([0, len(positions)], dtype=np.int64))
    return [OnHost((whole,), pieces[0].name)]


def on_device(pieces: Sequence[Any]) -> list[Any]:
    """Return all pieces as the engine has them; pieces in host memory are copied to the GPU."""
    return [loaded for piece in pieces for loaded in (_load_from_host(piece) if isinstance(piece, OnHost) else [piece])]


def _load_from_host(piece: OnHost) -> list[Any]:
    from_host = engines.engine(piece.name).pieces_from_host
    return [from_host(part.table, part.positions, part.offsets) for part in piece.parts]


def to_host(pieces: Any, name: str, shares: Sequence[int] = ()) -> OnHost:
    """Copy the engine's pieces to host memory. `shares`: bounds of ranges with different targets, each in its own
    buffers."""
    copied = engines.engine(name).pieces_to_host
    cuts = [pieces.ranges(first, last) for first, last in pairwise(shares)] if len(shares) > 2 else [pieces]
    return OnHost(tuple(Pieces(*copied(cut)) for cut in cuts), name)
