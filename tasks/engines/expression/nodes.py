"""The nodes of parsed expressions, and errors that show a place in an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks.errors import JobError


@dataclass(frozen=True)
class Node:
    """One step of an expression: a verb, its arguments, its literal value, its place (start, end) in the text."""

    verb: str
    args: tuple[Node, ...]
    value: Any
    place: tuple[int, int]


def failure(what: str, text: str, place: tuple[int, int], do: str = "", why: str = "") -> JobError:
    """A JobError that marks the place in the text of the expression."""
    start, end = place
    caret = " " * (len("  where: ") + start) + "^" * max(end - start, 1)
    return JobError(f"expression: {what}", where=f"{text}\n{caret}", why=why, do=do)
