"""Handles that are used up: a worker frees a result once its last handle is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class Handles:
    """Handles of results on workers, which `consume` hands on without keeping any.

    A name that still refers to a handle keeps its result in memory. So only `Handles` have names; the list that
    `consume` returns goes straight into the call that takes it.
    """

    def __init__(self, handles: Iterable[Any]) -> None:
        self._handles = list(handles)

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._handles)

    def consume(self) -> list[Any]:
        """All handles; none is left here."""
        handles = self._handles
        self._handles = []
        return handles
