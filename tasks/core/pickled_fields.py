"""Dataclasses that cache what they compute, and travel without it."""

from __future__ import annotations

from typing import Any, ClassVar


class PickledFields:
    """A dataclass of which only the fields are pickled: another process computes its cached values again.

    >>> from dataclasses import dataclass
    >>> from functools import cached_property
    >>> @dataclass(frozen=True)
    ... class Square(PickledFields):
    ...     side: int
    ...     @cached_property
    ...     def area(self):
    ...         return self.side**2
    >>> square = Square(3)
    >>> square.area, square.__getstate__()
    (9, {'side': 3})
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __getstate__(self) -> dict[str, Any]:
        values = self.__dict__  # to which another thread may add a cached value at this moment
        return {name: values[name] for name in self.__dataclass_fields__ if name in values}
