"""How far a stage is: calls of a function, a few a second."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told how far a stage is: rows done of rows in all."""

    def __call__(self, done: int, total: int) -> None: ...


def _silent(done: int, total: int) -> None:
    return


class _Counter:
    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def add(self, rows: int) -> None:
        self.done += rows
        self.progress(self.done, self.total)
