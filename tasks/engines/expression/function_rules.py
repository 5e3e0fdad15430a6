"""The type rules of functions in expressions: from a call to typed steps, before any data is read.

`checked` holds each argument against the kind that the declaration in `functions` gives its parameter. A function whose
result follows from its declaration needs no more. Any other has a rule: the method with its name and an underscore.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import parse_dtype, plain_type
from tasks.core.units import nanoseconds
from tasks.engines.algorithms.text_times import check_zone, format_of
from tasks.engines.expression.functions import FUNCTIONS, Parameter
from tasks.engines.expression.nodes import ExpressionNode, Typed, convert_step, failure
from tasks.engines.expression.syntax import state_name_of
from tasks.engines.expression.text_functions import json_path, regex_error, regex_groups, regex_size
from tasks.engines.expression.type_families import (
    BOOL,
    FLOAT64,
    INT64,
    NANOSECONDS,
    STRING,
    UINT64,
    family,
    time_type,
    unit_of,
)
from tasks.errors import JobError, near

CHOSEN = ("bool", "int", "float", "string", "time")  # families of values that where, case and coalesce choose from
NUMBERS = {"bool", "int", "float"}
PERIODS = {
    "second": ("s", 1),
    "minute": ("s", 60),
    "hour": ("s", 3600),
    "day": ("day", 1),
    "week": ("day", 7),
    "month": ("month", 1),
    "quarter": ("month", 3),
    "year": ("month", 12),
}
UNITS = {"day": "days", "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
MOST_PATTERN = 5_000  # of regex_size: a column of long texts then takes seconds, not hours
CASTS = {"bool": "bool", "int": "int64", "float": "float64", "string": "string", "time": "timestamp[us]"}
CASTABLE = {
    "bool": NUMBERS | {"string"},
    "int": NUMBERS | {"string", "time"},
    "float": NUMBERS | {"string"},
    "string": NUMBERS | {"string", "time"},
    "time": {"int", "string", "time"},
    "decimal": {"float", "int", "string"},
}

RESULTS = {
    "bool": BOOL,
    "int64": INT64,
    "float64": FLOAT64,
    "string": STRING,
    "list of string": pa.list_(STRING),
    "timestamp[us]": pa.timestamp("us"),
}


def _nonempty(text: str) -> str:
    if not text:
        raise ValueError("it is empty", 'substring(x, 0, 1) takes single characters, x + ".." joins texts')
    return text


def _sign(text: str) -> str:
    if len(text) != 1 or text.isalnum() or text in "+-":
        raise ValueError(f"{text!r} is not a sign for numbers", "write one sign, such as ',' or '.'")
    return text


def _pattern(text: str) -> str:
    if (size := regex_size(text)) > MOST_PATTERN:
        raise ValueError(
            f"a pattern that stands for {size:,} characters: at most {MOST_PATTERN:,}",
            "repeat less in it ({1000} counts a thousand times); compare whole texts by `in`",
        )
    if error := regex_error(text) or (regex_error(f"({text})") and r"\Q has no \E"):
        raise ValueError(error, "patterns are those of RE2, without lookaround and backreferences")
    return text


def _format(text: str) -> str:
    format_of(text)
    return text


def _dtype(text: str) -> pa.DataType:
    try:
        return plain_type(parse_dtype(text))
    except (JobError, ValueError):
        raise ValueError(f"{text!r} is not a type", near(text, CASTS.values())) from None


def _unit(text: str) -> str:
    if text not in NANOSECONDS:
        raise ValueError(f"there is no unit {text!r}", near(text, NANOSECONDS))
    return text


def _period(text: str) -> tuple[str, int, bool]:
    """(s, day or month; how many of them; whether they begin on a Monday) of a unit such as "15 minutes"."""
    match = re.fullmatch(r"\s*(\d{1,6})?\s*([a-z]+?)s?\s*", text)
    if not match or match[2] not in PERIODS or int(match[1] or 1) < 1:
        raise ValueError(f"{text!r} is not a unit", f"write one of {', '.join(PERIODS)}, or '15 minutes'")
    of, length = PERIODS[match[2]]
    return of, int(match[1] or 1) * length, match[2] == "week"


# Kinds of parameters: columns (families, their name, what to do about others), whole numbers (least, most), texts.
COLUMNS = {
    "string": (("string",), "strings", "write cast(x, 'string')"),
    "time": (("time",), "times", "write parse_time(x, '%d.%m.%Y') for texts"),
    "list": (("list",), "lists", ""),
    "value": (CHOSEN, "numbers, texts, booleans or times", ""),
}
WHOLE = {"int": (1 - 2**31, 2**31 - 1), "digits": (0, 15), "seed": (0, 2**32 - 1)}
LITERALS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "nonempty": _nonempty,
    "sign": _sign,
    "pattern": _pattern,
    "format": _format,
    "zone": check_zone,
    "path": json_path,
    "unit": _unit,
    "period": _period,
    "dtype": _dtype,
}


class FunctionRules:
    """The rules of calls: a typed step, or a JobError with the place."""

    def __init__(self, text: str) -> None:
        self.text = text

    def fail(self, step: Typed | ExpressionNode, what: str, do: str = "") -> JobError:
        return failure(what, self.text, step.place, do)

    def call(self, node: ExpressionNode, args: tuple[Typed, ...]) -> Typed:
        """The typed step of a call: by the rule of the function, else by the result that its declaration names."""
        function = FUNCTIONS[node.verb]
        checked = [self.check_argument(node, *pair) for pair in zip(function.parameters, args, strict=False)]
        values = [*checked, *args[len(checked) :]]
        if rule := getattr(self, node.verb + "_", None):
            return rule(node, *values)  # type: ignore[no-any-return]
        is_kept = function.result.startswith("that of the ")
        return self.step(node, args[0].dtype if is_kept else RESULTS[function.result], *values)

    def step(self, node: ExpressionNode, dtype: pa.DataType, *values: Any) -> Typed:
        """The step of a call with checked arguments: columns are its arguments, literals its value."""
        columns = tuple(value for value in values if isinstance(value, Typed))
        literals = tuple(value for value in values if not isinstance(value, Typed))
        return Typed(node.verb, columns, dtype, literals, node.place)

    def check_argument(self, node: ExpressionNode, parameter: Parameter, arg: Typed) -> object:
        """An argument of the kind of its parameter: a step for a column, the value of a literal."""
        name = parameter.name
        kind = parameter.kind
        if kind in ("any", "column"):
            return arg
        if kind in ("number", "float"):
            self.common([arg])
            return convert_step(arg, FLOAT64) if kind == "float" else arg
        if kind in COLUMNS:
            return self.column(node, kind, arg)
        if arg.is_literal and arg.value is None and parameter.optional and parameter.default is None:
            return None
        if kind in WHOLE:
            low, high = WHOLE[kind]
            if not (arg.is_literal and arg.dtype == INT64 and low <= arg.value <= high):
                raise self.fail(arg, f"{name} is a literal whole number from {low} to {high}")
            return arg.value
        if not (arg.is_literal and family(arg.dtype) == "string"):
            raise self.fail(arg, f"{name} is a literal text", 'write it in quotes: ".."')
        try:
            return LITERALS[kind](arg.value)
        except ValueError as error:
            why, *do = error.args
            raise self.fail(arg, f"{name} cannot be used: {why}", *do) from None

    def column(self, node: ExpressionNode, kind: str, step: Typed) -> Typed:
        """A step that is a column of the types of a kind."""
        families, what, do = COLUMNS[kind]
        if family(step.dtype) not in families or step.is_literal:
            this = "a literal" if step.is_literal else step.dtype
            if node.verb == "parse_number" and family(step.dtype) in NUMBERS:  # cast and parsed, 5.125 may become 5125
                do = "leave parse_number out, or read the column of text files as text: source.schema: {x: string}"
            raise self.fail(step, f"{node.verb} needs a column of {what}, this is {this}", do)
        return step

    def is_number(self, step: Typed) -> bool:
        return family(step.dtype) in NUMBERS

    def common(self, steps: Sequence[Typed]) -> pa.DataType:
        """The type in which numbers are computed: float64 if one is a float, uint64 if one is uint64, else int64."""
        for step in steps:
            if family(step.dtype) == "decimal":
                raise self.fail(step, "decimals are not reckoned with", "write cast(x, 'float64')")
            if not self.is_number(step):
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

    # numbers

    def abs_(self, node: ExpressionNode, x: Typed) -> Typed:
        is_kept = pa.types.is_floating(x.dtype) or pa.types.is_unsigned_integer(x.dtype)
        dtype = x.dtype if is_kept else self.common([x])
        return self.step(node, dtype, convert_step(x, dtype))

    def round_(self, node: ExpressionNode, x: Typed, digits: int) -> Typed:
        if family(x.dtype) != "float":
            return convert_step(x, x.dtype if family(x.dtype) == "int" else INT64)
        return self.step(node, FLOAT64, convert_step(x, FLOAT64), digits)

    def circle(self, node: ExpressionNode, angle: Typed, period: Typed) -> Typed:
        """sin and cos of x, or of 2 pi x / period."""
        if not (period.is_literal and period.value is None):
            if not (period.is_literal and self.is_number(period) and period.value > 0):
                raise self.fail(period, "the period is a literal number above 0", f"write {node.verb}(x, 24)")
            share = Typed("/", (angle, Typed("literal", (), FLOAT64, float(period.value))), FLOAT64, place=node.place)
            angle = Typed("*", (share, Typed("literal", (), FLOAT64, 2 * math.pi)), FLOAT64, place=node.place)
        return self.step(node, FLOAT64, angle)

    sin_ = cos_ = circle

    def extreme(self, node: ExpressionNode, *args: Typed) -> Typed:
        dtype, values = self._choices(node, args)
        if family(dtype) in ("string", "bool"):
            raise self.fail(node, f"{node.verb} compares numbers or times, this is {dtype}")
        if all(value.is_literal for value in args):
            raise self.fail(node, "compares literals only", "name a column")
        return self.step(node, dtype, *values)

    least_ = greatest_ = extreme

    def type_learned_value(self, node: ExpressionNode, column: Typed, *q: Typed) -> Typed:
        is_end = node.verb in ("min", "max")
        is_time = family(column.dtype) == "time"
        if not (is_time and is_end) and (not self.is_number(column) or column.dtype == BOOL):
            what = f"{node.verb} learns from a column of {'numbers or times' if is_end else 'numbers'}"
            hints = {
                "time": 'make a column of its seconds first: Lambda(expression="epoch(_)")',
                "string": "make a column of numbers first: Lambda(expression=\"cast(_, 'float64')\")",
            }
            raise self.fail(column, f"{what}, this is {column.dtype}", hints.get(family(column.dtype), ""))
        dtype = plain_type(column.dtype) if is_end else FLOAT64
        return Typed("learned", (), dtype, state_name_of(node), node.place)

    min_ = max_ = mean_ = std_ = quantile_ = type_learned_value

    # times

    def moment(self, step: Typed) -> Typed:
        """The literal time of a literal ISO 8601 text."""
        if not step.is_literal:
            raise self.fail(step, "a column of text does not compare with a time", "write cast(x, 'timestamp[us]')")
        try:
            ticks = nanoseconds(step.value)
        except ValueError:
            hint = "write it as 2020-01-31 or 2020-01-31T12:30:00, with up to nine digits behind the second"
            raise self.fail(step, f"{step.value!r} is not a time", hint) from None
        unit = next(unit for unit in ("s", "us", "ns") if ticks % NANOSECONDS[unit] == 0)
        count = ticks // NANOSECONDS[unit]
        if not -(2**63) <= count < 2**63:
            what = f"{step.value!r} is beyond the times that nanoseconds count"
            raise self.fail(step, what, "write at most six digits behind the second")
        return Typed("literal", (), pa.timestamp(unit), count, step.place)

    def moment_in(self, step: Typed, dtype: pa.DataType) -> Typed:
        """The literal time of a literal text in the type of a column; refused where the type would cut it."""
        moment = self.moment(step)
        unit = unit_of(dtype)
        if moment.value * NANOSECONDS[unit_of(moment.dtype)] % NANOSECONDS[unit]:
            what = f"{step.value!r} is finer than the column, which counts {UNITS[unit]}"
            raise self.fail(step, what, "write it as a time of this unit")
        return convert_step(moment, dtype)

    def times(self, args: Sequence[Typed]) -> tuple[list[Typed], str]:
        """(the times, of which literal texts are moments; the finest of their units)."""
        steps = [self.moment(arg) if family(arg.dtype) == "string" else arg for arg in args]
        return steps, min((unit_of(step.dtype) for step in steps), key=lambda unit: NANOSECONDS[unit])

    def seconds_between(self, node: ExpressionNode, *args: Typed) -> Typed:
        """A time minus a time as float64 seconds, exact before one division."""
        steps, unit = self.times(args)
        ticks = tuple(convert_step(convert_step(step, time_type(unit)), INT64) for step in steps)
        count = convert_step(Typed("-", ticks, INT64, place=node.place), FLOAT64)
        verb, factor = ("*", 86_400) if unit == "day" else ("/", NANOSECONDS["s"] // NANOSECONDS[unit])
        return Typed(verb, (count, Typed("literal", (), FLOAT64, float(factor))), FLOAT64, place=node.place)

    def epoch_(self, node: ExpressionNode, time: Typed, unit: str) -> Typed:
        return Typed("convert", (convert_step(time, time_type(unit)),), INT64, place=node.place)

    def floor_time_(self, node: ExpressionNode, time: Typed, period: tuple[str, int, bool]) -> Typed:
        of, every, _ = period
        if unit_of(time.dtype) == "day" and of == "s" and every > 86_400 and every % 86_400:
            raise self.fail(node.args[1], f"a date has no part of {node.args[1].value!r}", "write a number of days")
        return self.step(node, time.dtype, time, *period)

    def local_time_(self, node: ExpressionNode, time: Typed, zone: str) -> Typed:
        if unit_of(time.dtype) == "day":
            raise self.fail(time, "a date has no time of day", "write cast(x, 'timestamp[s]')")
        return self.step(node, pa.timestamp(time.dtype.unit), time, zone)

    # lists

    def get_(self, node: ExpressionNode, values: Typed, index: int) -> Typed:
        leaf = plain_type(values.dtype.value_type)
        if family(leaf) not in CHOSEN:
            raise self.fail(values, f"get does not take elements of type {leaf}")
        return self.step(node, leaf, values, index)

    def sum_(self, node: ExpressionNode, values: Typed) -> Typed:
        if family(values.dtype) != "list":
            what = f"sum adds the elements of lists, this is {values.dtype}"
            raise self.fail(values, what, "write x + y for columns")
        leaf = plain_type(values.dtype.value_type)
        if family(leaf) not in NUMBERS:
            raise self.fail(values, f"sum adds numbers, the elements are {leaf}")
        dtype = FLOAT64 if family(leaf) == "float" else UINT64 if leaf == UINT64 else INT64
        return self.step(node, dtype, values, dtype)

    # texts

    def length_(self, node: ExpressionNode, x: Typed) -> Typed:
        if family(x.dtype) == "list":
            return Typed("list length", (x,), INT64, (), node.place)
        return Typed("length", (self.column(node, "string", x),), INT64, (), node.place)

    len_ = length_

    def contains_(self, node: ExpressionNode, x: Typed, wanted: Typed) -> Typed:
        is_list = family(x.dtype) == "list"
        leaf = plain_type(x.dtype.value_type) if is_list else self.column(node, "string", x).dtype
        alike = any({family(leaf), family(wanted.dtype)} <= families for families in (NUMBERS, {"string"}))
        if not (wanted.is_literal and alike):
            what = f"a literal element of type {leaf}" if is_list else "a literal text"
            do = "write contains(x, 1)" if is_list else 'write contains(x, "text")'
            raise self.fail(wanted, f"contains looks for {what}", do)
        return Typed("list contains" if is_list else "contains", (x,), BOOL, (wanted.value,), node.place)

    def regex_extract_(self, node: ExpressionNode, text: Typed, pattern: str, group: int | None) -> Typed:
        groups = regex_groups(pattern)
        group = min(groups, 1) if group is None else group
        if not 0 <= group <= min(groups, 8):
            do = f"the pattern has {groups} group(s), 0 is the whole"
            raise self.fail(node.args[2], f"there is no group {group}", do)
        return self.step(node, STRING, text, pattern, group)

    def regex_replace_(self, node: ExpressionNode, text: Typed, pattern: str, new: str) -> Typed:
        if error := regex_error(pattern, new):
            raise self.fail(node.args[2], f"cannot be put in: {error}", r"groups are written \1 to \9")
        return self.step(node, STRING, text, pattern, new)

    def parse_number_(self, node: ExpressionNode, text: Typed, decimal: str, group: str | None) -> Typed:
        if decimal == group:
            raise self.fail(node.args[2], "the group sign is the decimal sign", 'write decimal=",", group="."')
        return self.step(node, FLOAT64, text, decimal, group)

    # choice and change of type

    def where_(self, node: ExpressionNode, condition: Typed, *choices: Typed) -> Typed:
        self._condition(condition)
        dtype, values = self._choices(node, choices)
        return self.step(node, dtype, condition, *values)

    def case_(self, node: ExpressionNode, *args: Typed) -> Typed:
        otherwise = args[-1] if len(args) % 2 else Typed("literal", (), pa.null(), None, node.place)
        pairs = args[: len(args) // 2 * 2]
        for condition in pairs[::2]:
            self._condition(condition)
        dtype, values = self._choices(node, [*pairs[1::2], otherwise])
        steps = [step for pair in zip(pairs[::2], values[:-1], strict=True) for step in pair]
        return self.step(node, dtype, *steps, values[-1])

    def coalesce_(self, node: ExpressionNode, *args: Typed) -> Typed:
        dtype, values = self._choices(node, args)
        return self.step(node, dtype, *values)

    def is_null_(self, node: ExpressionNode, x: Typed) -> Typed:
        if x.is_literal:
            raise self.fail(node, "asks whether a literal is None", "name a column")
        return Typed("is None", (x,), BOOL, place=node.place)

    def _condition(self, step: Typed) -> None:
        if step.dtype != BOOL:
            raise self.fail(step, f"a condition is true or false, this is {step.dtype}", "compare it: x != 0")

    def _choices(self, node: ExpressionNode, choices: Sequence[Typed]) -> tuple[pa.DataType, list[Typed]]:
        """(the type of what is chosen, the choices in that type)."""
        dtype = self._choose_type(node, list(choices))
        if family(dtype) not in CHOSEN:
            raise self.fail(node, f"{node.verb} does not choose between values of type {dtype}")
        return dtype, [self._as(choice, dtype) for choice in choices]

    def _choose_type(self, node: ExpressionNode, choices: list[Typed]) -> pa.DataType:
        """The type of the columns if it is one and all literals fit it, else the common type of the numbers."""
        real = [c for c in choices if family(c.dtype) != "none"]
        if not real:
            raise self.fail(node, "chooses between None and None")
        columns = [c for c in real if not c.is_literal] or real
        first = columns[0].dtype
        if all(c.dtype == first for c in columns) and all(c.dtype == first or _fits(c, first) for c in real):
            return first
        if {family(c.dtype) for c in columns} == {"time"}:
            zones = {getattr(c.dtype, "tz", None) for c in columns}
            return time_type(self.times(columns)[1], zones.pop() if len(zones) == 1 else None)
        return self.common(real)

    def _as(self, step: Typed, dtype: pa.DataType) -> Typed:
        if family(dtype) == "time" and step.is_literal and family(step.dtype) == "string":
            return self.moment_in(step, dtype)
        return convert_step(step, dtype)

    def cast_(self, node: ExpressionNode, x: Typed, dtype: pa.DataType) -> Typed:
        if x.is_literal:
            raise self.fail(x, "a literal needs no cast", "write it as it should be")
        here = family(x.dtype)
        there = family(dtype)
        numbers_in_text = here == "string" and there == "list" and family(dtype.value_type) in ("int", "float")
        if x.dtype != dtype and there not in CASTABLE.get(here, ()) and not numbers_in_text:
            known = [name for kind, name in CASTS.items() if kind in CASTABLE.get(here, ())]
            hint = f"cast it to {' or '.join(known)}" if known else "name another column"
            raise self.fail(node, f"{x.dtype} cannot be cast to {dtype}", hint)
        return x if x.dtype == dtype else Typed("convert", (x,), dtype, place=node.place)


def literal_type(value: object) -> pa.DataType:
    if isinstance(value, int) and not isinstance(value, bool):
        return UINT64 if value >= 2**63 else INT64
    return {bool: BOOL, float: FLOAT64, str: STRING, type(None): pa.null()}[type(value)]


def _fits(literal: Typed, dtype: pa.DataType) -> bool:
    """Whether the type of a column can hold a literal, so that a choice of both keeps the type."""
    if not literal.is_literal:
        return False
    here = family(literal.dtype)
    there = family(dtype)
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
