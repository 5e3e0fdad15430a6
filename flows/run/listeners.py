"""Listeners to the progress of stages: functions that a command registers and a flow calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.core.stage_results import StageResult

_folders: list[Path] = []  # of the last run of this process
Listener = Callable[[StageResult], None]

_listeners: list[Listener] = []  # of this process


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with the result of each stage that ends in this process while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def notify(result: StageResult) -> None:
    """Call all listeners of this process with the result of a stage that is done."""
    for listener in _listeners:
        listener(result)


def work_in(folder: Path) -> None:
    """Note in which staging folder the current run of this process works."""
    _folders[:] = [folder]


def folder_of_work() -> Path | None:
    """Return the staging folder in which the last run of this process works; None before the first."""
    return _folders[-1] if _folders else None
