"""Who hears of the progress of stages: functions that a command registers, and that a flow calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Listener = Callable[[Mapping[str, Any]], None]  # takes the summary of a stage that is done

_listeners: list[Listener] = []  # of this process


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with the summary of each stage that ends in this process while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(summary: Mapping[str, Any]) -> None:
    """Pass the summary of a finished stage to the listeners of the run in this process."""
    for listener in _listeners:
        listener(summary)
