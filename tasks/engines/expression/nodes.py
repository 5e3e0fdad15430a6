"""The nodes of parsed expressions and their typed steps, and errors that show a place in an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.errors import DataError, JobError


@dataclass(frozen=True)
class ExpressionNode:
    """One step of an expression: a verb, its arguments, its literal value, its place (start, end) in the text."""

    verb: str
    args: tuple[ExpressionNode, ...]
    value: Any
    place: tuple[int, int]


@dataclass(frozen=True)
class Typed:
    """A step with the type of its result, its literal `value` and its `place` in the text."""

    verb: str
    args: tuple[Typed, ...]
    dtype: pa.DataType
    value: Any = None
    place: tuple[int, int] = (0, 0)

    @property
    def is_literal(self) -> bool:
        return self.verb == "literal"


def columns_of(step: Typed) -> list[str]:
    """The names of the columns that a step uses."""
    return [step.value] if step.verb == "column" else [name for arg in step.args for name in columns_of(arg)]


def convert_step(step: Typed, dtype: pa.DataType) -> Typed:
    """The step in another type."""
    return step if step.dtype == dtype else Typed("convert", (step,), dtype, place=step.place)


def failure(what: str, text: str, place: tuple[int, int], do: str = "", why: str = "") -> JobError:
    """A JobError that marks the place in the text of the expression."""
    start, end = place
    caret = " " * (len("  where: ") + start) + "^" * max(end - start, 1)
    return JobError(f"expression: {what}", where=f"{text}\n{caret}", why=why, do=do)


class UnreadError(DataError):
    """A cast or a parse failed where it must not; `row` is the place of the first such row in the columns."""

    row = 0

    def in_row(self, place: str) -> DataError:
        """The error of the row, whose place is said in words."""
        return DataError(f"{self.what} in {place}", why=self.why, do=self.do)


def unread(what: str, row: int, rows: int) -> UnreadError:
    """The error of a strict expression, with what to do about it."""
    error = UnreadError(
        what,
        why=f"the expression is strict; {rows:,} row(s) here have such a value",
        do="fix the data, give such rows a fallback with coalesce, or leave out strict: they are then null and counted",
    )
    error.row = row
    return error
