"""The type rules of expressions: from nodes and a schema to typed steps, before any data is read.

A typed step has the exact operation and the type of its result, so that engines decide nothing.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import parse_dtype, plain_type
from tasks.core.schema import Schema
from tasks.engines.expression.dtypes import BOOL, FLOAT64, INT64, NANOSECONDS, STRING, UINT64, family, unit_of
from tasks.engines.expression.nodes import Node, failure
from tasks.engines.expression.syntax import Expression
from tasks.errors import JobError, near


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


def typed(expression: Expression, schema: Schema) -> Typed:
    """The typed steps of an expression; JobError, with the place, if the expression does not fit the schema."""
    return _Rules(schema, expression.text).type(expression.root)


def dtype_of(expression: Expression, schema: Schema) -> pa.DataType:
    """The type of the result; JobError, with the place, if the expression does not fit the schema."""
    return typed(expression, schema).dtype


def _numeric(step: Typed) -> bool:
    return family(step.dtype) in ("bool", "int", "float")


def _convert(step: Typed, dtype: pa.DataType) -> Typed:
    return step if step.dtype == dtype else Typed("convert", (step,), dtype, place=step.place)


class _Rules:
    def __init__(self, schema: Schema, text: str) -> None:
        self.schema, self.text = schema, text

    def fail(self, step: Typed | Node, what: str, do: str = "") -> JobError:
        return failure(what, self.text, step.place, do)

    def type(self, node: Node) -> Typed:
        if node.verb == "column":
            if node.value not in self.schema:
                raise self.fail(node, f"there is no column {node.value!r}", near(node.value, self.schema))
            return Typed("column", (), plain_type(self.schema[node.value].dtype), node.value, node.place)
        if node.verb == "literal":
            return Typed("literal", (), _literal_type(node.value), node.value, node.place)
        args = tuple(self.type(arg) for arg in node.args)
        rule = {"is None": self.is_none, "in": self.is_in, "and": self.logic, "or": self.logic, "not": self.logic,
                "negate": self.negate, "+": self.add}.get(node.verb)  # fmt: skip
        if rule is None and node.verb in ("-", "*", "/", "//", "%"):
            rule = self.arithmetic
        elif rule is None and node.verb in ("==", "!=", "<", "<=", ">", ">="):
            rule = self.compare
        elif rule is None:
            rule = getattr(self, node.verb + "_")
        return rule(node, args)

    # numbers

    def common(self, steps: list[Typed]) -> pa.DataType:
        """The type in which numbers are computed: float64 if one is a float, uint64 if one is uint64, else int64."""
        for step in steps:
            if family(step.dtype) == "decimal":
                raise self.fail(step, "decimals are not reckoned with", "write cast(x, 'float64')")
            if not _numeric(step):
                raise self.fail(step, f"a number is needed here, this is {step.dtype}", _number_hint(step))
        if any(family(step.dtype) == "float" for step in steps):
            return FLOAT64
        if not any(step.dtype == UINT64 for step in steps):
            return INT64
        for step in steps:
            negative = step.value < 0 if step.is_literal else pa.types.is_signed_integer(step.dtype)
            if negative:
                raise self.fail(step, "uint64 does not mix with negative numbers", "write cast(x, 'int64')")
        return UINT64

    def arithmetic(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        common = self.common(list(args))
        dtype = FLOAT64 if node.verb == "/" else common
        return Typed(node.verb, tuple(_convert(arg, dtype) for arg in args), dtype, place=node.place)

    def add(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        if all(family(arg.dtype) == "string" for arg in args):
            if all(arg.is_literal for arg in args):
                raise self.fail(node, "joins two literals", "write them as one")
            return Typed("join", args, STRING, place=node.place)
        return self.arithmetic(node, args)

    def negate(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        dtype = self.common(list(args))
        if dtype == UINT64:
            raise self.fail(node, "uint64 has no negative numbers", "write -cast(x, 'int64')")
        return Typed("negate", (_convert(args[0], dtype),), dtype, place=node.place)

    def abs_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        here = args[0].dtype
        dtype = here if pa.types.is_floating(here) or pa.types.is_unsigned_integer(here) else self.common(list(args))
        return Typed("abs", (_convert(args[0], dtype),), dtype, place=node.place)

    def to_float(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        self.common(list(args))
        return Typed(node.verb, (_convert(args[0], FLOAT64),), FLOAT64, place=node.place)

    log_ = exp_ = sqrt_ = to_float

    def round_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        digits = args[1] if len(args) == 2 else Typed("literal", (), INT64, 0)
        if not (digits.is_literal and digits.dtype == INT64 and 0 <= digits.value <= 15):
            raise self.fail(digits, "digits is a whole number from 0 to 15")
        self.common([args[0]])
        if family(args[0].dtype) != "float":
            return _convert(args[0], args[0].dtype if family(args[0].dtype) == "int" else INT64)
        return Typed("round", (_convert(args[0], FLOAT64),), FLOAT64, digits.value, node.place)

    # truth

    def logic(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        for arg in args:
            if arg.dtype != BOOL:
                raise self.fail(
                    arg, f"`{node.verb}` needs true or false, this is {arg.dtype}", "compare it: x != 0, x is not None"
                )
        return Typed(node.verb, args, BOOL, place=node.place)

    def compare(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        return Typed(*self._comparable(node, args, node.verb), place=node.place)

    def _comparable(self, node: Node, args: tuple[Typed, ...], verb: str) -> tuple[str, tuple[Typed, ...], pa.DataType]:
        kinds = {family(arg.dtype) for arg in args}
        if "time" in kinds and kinds <= {"time", "string"}:
            return verb, self._ticks(list(args)), BOOL
        if kinds == {"string"}:
            if all(arg.is_literal for arg in args):
                raise self.fail(node, "compares literals only", "name a column")
            return "text " + verb, args, BOOL
        if "string" in kinds or not kinds <= {"bool", "int", "float", "decimal"}:
            types = " with ".join(str(arg.dtype) for arg in args[:2])
            raise self.fail(node, f"cannot compare {types}", "write cast(x, 'type') to make them alike")
        dtype = self.common(list(args))
        return verb, tuple(_convert(arg, dtype) for arg in args), BOOL

    def _ticks(self, args: list[Typed]) -> tuple[Typed, ...]:
        """Times as int64 counts of the finest unit among them, clipped to the range of int64."""
        steps = [self._moment(arg) if family(arg.dtype) == "string" else arg for arg in args]
        unit = min((unit_of(step.dtype) for step in steps), key=lambda u: NANOSECONDS[u])
        return tuple(Typed("ticks", (step,), INT64, unit, step.place) for step in steps)

    def _moment(self, step: Typed) -> Typed:
        """The literal time of a literal ISO 8601 text."""
        if not step.is_literal:
            raise self.fail(step, "a column of text does not compare with a time", "write cast(x, 'timestamp[us]')")
        try:
            moment = datetime.datetime.fromisoformat(step.value)
        except ValueError:
            raise self.fail(
                step, f"{step.value!r} is no time", "write it as 2020-01-31 or 2020-01-31T12:30:00"
            ) from None
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        moment = moment.replace(tzinfo=moment.tzinfo or datetime.UTC)
        ticks = (moment - epoch) // datetime.timedelta(microseconds=1)
        whole = ticks % 10**6 == 0
        return Typed(
            "literal", (), pa.timestamp("s" if whole else "us"), ticks // 10**6 if whole else ticks, step.place
        )

    def is_in(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        items = tuple(self.type(item) for item in node.value)
        if args[0].is_literal:
            raise self.fail(args[0], "looks for a literal in literals", "name a column")
        if not items:
            return Typed("in", (args[0],), BOOL, (), node.place) if _numeric(args[0]) else self._never(node, args)
        verb, steps, _ = self._comparable(node, (args[0], *items), "in")
        return Typed(verb, steps[:1], BOOL, steps[1:], node.place)

    def _never(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        """`x in []` of a type that is not a number: false, null for null."""
        never = Typed("is None", args, BOOL, place=node.place)
        null = Typed("literal", (), pa.null(), None, node.place)
        return Typed("where", (never, _convert(null, BOOL), Typed("literal", (), BOOL, False)), BOOL, place=node.place)

    def is_none(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        if args[0].is_literal:
            raise self.fail(node, "asks whether a literal is None", "name a column")
        return Typed("is None", args, BOOL, place=node.place)

    # text

    def _text(self, step: Typed, verb: str) -> Typed:
        if family(step.dtype) != "string" or step.is_literal:
            what = "a literal" if step.is_literal else str(step.dtype)
            raise self.fail(step, f"{verb} needs a column of strings, this is {what}", "write cast(x, 'string')")
        return step

    def change_case(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        return Typed(node.verb, (self._text(args[0], node.verb),), STRING, place=node.place)

    lower_ = upper_ = change_case

    def length_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        if family(args[0].dtype) == "list":
            return Typed("list length", args, INT64, place=node.place)
        return Typed("length", (self._text(args[0], "length"),), INT64, place=node.place)

    def search(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        text, pattern = args
        if not (pattern.is_literal and family(pattern.dtype) == "string"):
            raise self.fail(pattern, f"{node.verb} looks for a literal text", f'write {node.verb}(x, "text")')
        return Typed(node.verb, (self._text(text, node.verb),), BOOL, pattern.value, node.place)

    contains_ = startswith_ = search

    # choice and change of type

    def where_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        condition, *choices = args
        if condition.dtype != BOOL:
            raise self.fail(condition, f"a condition is true or false, this is {condition.dtype}", "compare it: x != 0")
        dtype = self._chosen(node, choices)
        if family(dtype) not in ("bool", "int", "float", "string", "time"):
            raise self.fail(node, f"where does not choose between values of type {dtype}")
        return Typed("where", (condition, *(self._as(choice, dtype) for choice in choices)), dtype, place=node.place)

    def _chosen(self, node: Node, choices: list[Typed]) -> pa.DataType:
        """The type of the columns if it is one and all literals fit it, else the common type of the numbers."""
        real = [c for c in choices if family(c.dtype) != "none"]
        if not real:
            raise self.fail(node, "chooses between None and None")
        columns = [c for c in real if not c.is_literal] or real
        first = columns[0].dtype
        if all(c.dtype == first for c in columns) and all(c.dtype == first or _fits(c, first) for c in real):
            return first
        return self.common(real)

    def _as(self, step: Typed, dtype: pa.DataType) -> Typed:
        if family(dtype) == "time" and step.is_literal and family(step.dtype) == "string":
            return _convert(self._moment(step), dtype)
        return _convert(step, dtype)

    def cast_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        step, name = args
        if not (name.is_literal and family(name.dtype) == "string"):
            raise self.fail(name, "cast takes the type as text", "write cast(x, 'int64')")
        try:
            dtype = plain_type(parse_dtype(name.value))
        except (JobError, ValueError) as error:
            raise self.fail(name, f"{name.value!r} is no type", getattr(error, "do", "")) from None
        if step.is_literal:
            raise self.fail(step, "a literal needs no cast", "write it as it should be")
        here, there = family(step.dtype), family(dtype)
        numbers = {"bool", "int", "float"}
        allowed = {"bool": numbers | {"string"}, "int": numbers | {"string", "time"}, "float": numbers | {"string"},
                   "string": numbers | {"string", "time"}, "time": {"int", "string", "time"},
                   "decimal": {"float", "int", "string"}}  # fmt: skip
        if step.dtype != dtype and there not in allowed.get(here, ()):
            raise self.fail(node, f"{step.dtype} cannot be cast to {dtype}")
        return step if step.dtype == dtype else Typed("convert", (step,), dtype, place=node.place)


def _literal_type(value: Any) -> pa.DataType:
    if isinstance(value, int) and not isinstance(value, bool):
        return UINT64 if value >= 2**63 else INT64
    return {bool: BOOL, float: FLOAT64, str: STRING, type(None): pa.null()}[type(value)]


def _fits(literal: Typed, dtype: pa.DataType) -> bool:
    """Whether the type of a column can hold a literal, so that a choice of both keeps the type."""
    if not literal.is_literal:
        return False
    here, there = family(literal.dtype), family(dtype)
    if there == "int" and here == "int":
        return _range(dtype)[0] <= literal.value <= _range(dtype)[1]
    return (there == "float" and here in ("int", "float")) or (there == "time" and here == "string")


def _range(dtype: pa.DataType) -> tuple[int, int]:
    bits = dtype.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pa.types.is_signed_integer(dtype) else (0, 2**bits - 1)


def _number_hint(step: Typed) -> str:
    kind = family(step.dtype)
    if kind == "string":
        return "write cast(x, 'float64')"
    return "write cast(x, 'int64') for the count of its unit" if kind == "time" else ""
