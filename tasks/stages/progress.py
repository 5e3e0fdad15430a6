"""How far a stage is: calls of a function, a few a second."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A function that hears how far a stage is: rows done of rows in all."""

    def __call__(self, done: int, total: int) -> None: ...


def no_progress(done: int, total: int) -> None:
    """Report progress to nothing."""


class RowCounter:
    """Adds up the rows of partitions or files that are done, and calls `progress` each time."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress = progress
        self.total = total
        self.done = 0

    def add(self, rows: int) -> None:
        self.done += rows
        self.progress(self.done, self.total)
