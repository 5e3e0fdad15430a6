"""Refit: what learning starts from where it does not begin anew: the state of a base, and what happens to its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.graph.changes import Mode
from tasks.graph.state import State
from tasks.ops.base import Night

__all__ = ["Base", "Mode"]


@dataclass(frozen=True)
class Base:
    """What a refit starts from.

    state: what was learned so far, with what a refit needs beside it (`State.partials`).
    rows: how many rows it was learned from: row numbers of the new rows go on from there.
    modes: by the key of each learned step, what happens to it (`tasks.learning.refit_modes`).
    night: the day of the new rows, and what is forgotten.
    """

    state: State
    rows: int
    modes: Mapping[str, Mode]
    night: Night
