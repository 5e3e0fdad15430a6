"""The type rules of functions in expressions: from a call to typed steps, before any data is read."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import parse_dtype, plain_type
from tasks.core.units import microseconds
from tasks.engines.algorithms.text_times import check_zone, format_of
from tasks.engines.expression.dtypes import BOOL, FLOAT64, INT64, NANOSECONDS, STRING, UINT64, family, unit_of
from tasks.engines.expression.nodes import Node, Typed, converted, failure
from tasks.engines.expression.syntax import learned_name
from tasks.engines.expression.text_functions import json_path, regex_error, regex_groups, regex_size
from tasks.errors import JobError, near

CHOSEN = ("bool", "int", "float", "string", "time")  # families of values that where, case and coalesce choose from
EVERY = {"second": "s", "minute": "s", "hour": "s", "day": "day", "week": "day", "month": "month", "quarter": "month",
         "year": "month"}  # fmt: skip
MOST_PATTERN = 5_000  # of regex_size: a column of long texts then takes seconds, not hours
LENGTHS = {"second": 1, "minute": 60, "hour": 3600, "day": 1, "week": 7, "month": 1, "quarter": 3, "year": 12}


class FunctionRules:
    """A rule for each function, and what rules share; a typed step for each call, or a JobError with the place."""

    def __init__(self, text: str) -> None:
        self.text = text

    def function(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        """The typed step of a call."""
        rule = getattr(self, node.verb + "_")
        return rule(node, args)  # type: ignore[no-any-return]

    def fail(self, step: Typed | Node, what: str, do: str = "") -> JobError:
        return failure(what, self.text, step.place, do)

    def compare(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        """The rule of comparisons, which `typing` has."""
        raise NotImplementedError

    def is_number(self, step: Typed) -> bool:
        return family(step.dtype) in ("bool", "int", "float")

    def common(self, steps: list[Typed]) -> pa.DataType:
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

    def abs_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        here = args[0].dtype
        dtype = here if pa.types.is_floating(here) or pa.types.is_unsigned_integer(here) else self.common(list(args))
        return Typed("abs", (converted(args[0], dtype),), dtype, place=node.place)

    def to_float(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        self.common(list(args))
        return Typed(node.verb, (converted(args[0], FLOAT64),), FLOAT64, place=node.place)

    log_ = exp_ = sqrt_ = to_float

    def round_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        digits = args[1] if len(args) == 2 else Typed("literal", (), INT64, 0)
        if not (digits.is_literal and digits.dtype == INT64 and 0 <= digits.value <= 15):
            raise self.fail(digits, "digits is a whole number from 0 to 15")
        self.common([args[0]])
        if family(args[0].dtype) != "float":
            return converted(args[0], args[0].dtype if family(args[0].dtype) == "int" else INT64)
        return Typed("round", (converted(args[0], FLOAT64),), FLOAT64, digits.value, node.place)

    def moment(self, step: Typed) -> Typed:
        """The literal time of a literal ISO 8601 text."""
        if not step.is_literal:
            raise self.fail(step, "a column of text does not compare with a time", "write cast(x, 'timestamp[us]')")
        try:
            ticks = microseconds(step.value)
        except ValueError:
            raise self.fail(
                step, f"{step.value!r} is no time", "write it as 2020-01-31 or 2020-01-31T12:30:00"
            ) from None
        whole = ticks % 10**6 == 0
        return Typed(
            "literal", (), pa.timestamp("s" if whole else "us"), ticks // 10**6 if whole else ticks, step.place
        )

    def circle(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        """sin and cos of x, or of 2 pi x / period."""
        self.common([args[0]])
        angle, period = converted(args[0], FLOAT64), args[1]
        if not (period.is_literal and period.value is None):
            if not (period.is_literal and self.is_number(period) and period.value > 0):
                raise self.fail(period, "the period is a literal number above 0", f"write {node.verb}(x, 24)")
            share = Typed("/", (angle, Typed("literal", (), FLOAT64, float(period.value))), FLOAT64, place=node.place)
            angle = Typed("*", (share, Typed("literal", (), FLOAT64, 2 * math.pi)), FLOAT64, place=node.place)
        return Typed(node.verb, (angle,), FLOAT64, place=node.place)

    sin_ = cos_ = circle

    def extreme(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        dtype, values = self._choices(node, args)
        if family(dtype) in ("string", "bool"):
            raise self.fail(node, f"{node.verb} compares numbers or times, this is {dtype}")
        if all(value.is_literal for value in args):
            raise self.fail(node, "compares literals only", "name a column")
        return Typed(node.verb, tuple(values), dtype, place=node.place)

    least_ = greatest_ = extreme

    def hash_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        value, seed = args
        if value.is_literal or family(value.dtype) not in CHOSEN:
            raise self.fail(value, "hash takes a column of numbers, texts, booleans or times")
        if not (seed.is_literal and seed.dtype == INT64 and 0 <= seed.value < 2**32):
            raise self.fail(seed, "the seed is a whole number from 0 to 4294967295")
        return Typed("hash", (value,), INT64, seed.value, node.place)

    def between_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        value, low, high = args
        sides = [self.compare(Node("<=", (), None, node.place), pair) for pair in ((low, value), (value, high))]
        return Typed("and", tuple(sides), BOOL, place=node.place)

    # learned values

    def learned_value(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        column, is_end = args[0], node.verb in ("min", "max")
        is_time = family(column.dtype) == "time"
        if not (is_time and is_end) and (not self.is_number(column) or column.dtype == BOOL):
            what = f"{node.verb} learns from a column of {'numbers or times' if is_end else 'numbers'}"
            hints = {"time": 'make a column of its seconds first: Lambda(expression="epoch(_)")',
                     "string": "make a column of numbers first: Lambda(expression=\"cast(_, 'float64')\")"}  # fmt: skip
            hint = hints.get("time" if is_time else family(column.dtype), "")
            raise self.fail(column, f"{what}, this is {column.dtype}", hint)
        dtype = plain_type(column.dtype) if is_end else FLOAT64
        return Typed("learned", (), dtype, learned_name(node), node.place)

    min_ = max_ = mean_ = std_ = quantile_ = learned_value

    # times

    def _time(self, step: Typed, what: str) -> Typed:
        if family(step.dtype) != "time":
            raise self.fail(step, f"{what} needs a column of times, this is {step.dtype}",
                            "write parse_time(x, '%d.%m.%Y') for texts")  # fmt: skip
        return step

    def seconds_between(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        """A time minus a time as float64 seconds, exact before one division."""
        steps = [self.moment(arg) if family(arg.dtype) == "string" else arg for arg in args]
        unit = min((unit_of(step.dtype) for step in steps), key=lambda name: NANOSECONDS[name])
        dtype = pa.date32() if unit == "day" else pa.timestamp(unit)
        ticks = tuple(converted(converted(step, dtype), INT64) for step in steps)
        count = converted(Typed("-", ticks, INT64, place=node.place), FLOAT64)
        verb, factor = ("*", 86_400) if unit == "day" else ("/", NANOSECONDS["s"] // NANOSECONDS[unit])
        return Typed(verb, (count, Typed("literal", (), FLOAT64, float(factor))), FLOAT64, place=node.place)

    def epoch_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        time, unit = self._time(args[0], "epoch"), self.text_of(args[1], "the unit")
        if unit not in NANOSECONDS:
            raise self.fail(args[1], f"there is no unit {unit!r}", near(str(unit), NANOSECONDS))
        counted = converted(time, pa.date32() if unit == "day" else pa.timestamp(unit))
        return Typed("convert", (counted,), INT64, place=node.place)

    def floor_time_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        time, written = self._time(args[0], "floor_time"), self.text_of(args[1], "the unit")
        match = re.fullmatch(r"\s*(\d{1,6})?\s*([a-z]+?)s?\s*", str(written))
        if not match or match[2] not in EVERY or int(match[1] or 1) < 1:
            raise self.fail(args[1], f"{written!r} is no unit", f"write one of {', '.join(EVERY)}, or '15 minutes'")
        every = int(match[1] or 1) * LENGTHS[match[2]]
        if unit_of(time.dtype) == "day" and EVERY[match[2]] == "s" and every > 86_400 and every % 86_400:
            raise self.fail(args[1], f"a date has no part of {written!r}", "write a number of days")
        return Typed("floor time", (time,), time.dtype, (EVERY[match[2]], every, match[2] == "week"), node.place)

    def local_time_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        time, zone = self._time(args[0], "local_time"), self._zone(args[1])
        if unit_of(time.dtype) == "day":
            raise self.fail(time, "a date has no time of day", "write cast(x, 'timestamp[s]')")
        return Typed("local time", (time,), pa.timestamp(time.dtype.unit), zone, node.place)

    def time_part(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        return Typed("time part", (self._time(args[0], node.verb),), INT64, node.verb, node.place)

    second_ = minute_ = hour_ = weekday_ = day_ = dayofyear_ = month_ = year_ = time_part

    # lists

    def by_list(self, node: Node, values: Typed, dtype: pa.DataType, *parameters: Any) -> Typed:
        if family(values.dtype) != "list":
            raise self.fail(values, f"{node.verb} needs a column of lists, this is {values.dtype}")
        return Typed("by list", (values,), dtype, (node.verb, *parameters), node.place)

    def get_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        values, index = args[0], self.whole_of(args[1], "the index")
        leaf = plain_type(values.dtype.value_type) if family(values.dtype) == "list" else pa.null()
        if family(values.dtype) == "list" and family(leaf) not in CHOSEN:
            raise self.fail(values, f"get does not take elements of type {leaf}")
        return self.by_list(node, values, leaf, index)

    def slice_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        start, stop = self.whole_of(args[1], "start"), self.whole_of(args[2], "stop", none=True)
        return self.by_list(node, args[0], args[0].dtype, start, stop)

    def sum_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        values = args[0]
        leaf = plain_type(values.dtype.value_type) if family(values.dtype) == "list" else values.dtype
        if family(values.dtype) == "list" and family(leaf) not in ("bool", "int", "float"):
            raise self.fail(values, f"sum adds numbers, the elements are {leaf}")
        if family(values.dtype) != "list":
            raise self.fail(
                values, f"sum adds the elements of lists, this is {values.dtype}", "write x + y for columns"
            )
        dtype = FLOAT64 if family(leaf) == "float" else UINT64 if leaf == UINT64 else INT64
        return self.by_list(node, values, dtype)

    # text

    def _text(self, step: Typed, verb: str) -> Typed:
        if family(step.dtype) != "string" or step.is_literal:
            what = "a literal" if step.is_literal else str(step.dtype)
            raise self.fail(step, f"{verb} needs a column of strings, this is {what}", "write cast(x, 'string')")
        return step

    def change_case(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        return Typed(node.verb, (self._text(args[0], node.verb),), STRING, place=node.place)

    lower_ = upper_ = change_case

    def len_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        return self.length_(node, args)

    def length_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        if family(args[0].dtype) == "list":
            return Typed("list length", args, INT64, place=node.place)
        return Typed("length", (self._text(args[0], "length"),), INT64, place=node.place)

    def search(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        text, pattern = args
        if not (pattern.is_literal and family(pattern.dtype) == "string"):
            raise self.fail(pattern, f"{node.verb} looks for a literal text", f'write {node.verb}(x, "text")')
        return Typed(node.verb, (self._text(text, node.verb),), BOOL, pattern.value, node.place)

    startswith_ = search

    def contains_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        values, wanted = args
        if family(values.dtype) != "list":
            return self.search(node, args)
        leaf, here = plain_type(values.dtype.value_type), family(wanted.dtype)
        numbers = {"bool", "int", "float"}
        alike = (family(leaf) in numbers and here in numbers) or (family(leaf) == here == "string")
        if not (wanted.is_literal and alike):
            raise self.fail(wanted, f"contains looks for a literal element of type {leaf}", "write contains(x, 1)")
        return self.by_list(node, values, BOOL, wanted.value)

    def endswith_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        return self.by_text(node, args[0], BOOL, self.text_of(args[1], "the end"))

    def strip_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        return self.by_text(node, args[0], STRING, self.text_of(args[1], "the characters", none=True))

    def replace_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        old, new = (self.text_of(arg, "a text to replace or to put in") for arg in args[1:])
        if not old:
            raise self.fail(args[1], "an empty text cannot be replaced", 'write x + ".." to join texts')
        return self.by_text(node, args[0], STRING, old, new)

    def substring_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        start, stop = self.whole_of(args[1], "start"), self.whole_of(args[2], "stop", none=True)
        return self.by_text(node, args[0], STRING, start, stop)

    def split_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        return self.by_text(node, args[0], pa.list_(STRING), self._separator(args[1]))

    def split_part_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        return self.by_text(node, args[0], STRING, self._separator(args[1]), self.whole_of(args[2], "index"))

    def _separator(self, step: Typed) -> str:
        separator = self.text_of(step, "the separator")
        if not separator:
            raise self.fail(step, "an empty separator", "write substring(x, 0, 1) for single characters")
        return separator

    def _pattern(self, step: Typed) -> str:
        pattern = self.text_of(step, "a pattern")
        assert pattern is not None
        if (size := regex_size(pattern)) > MOST_PATTERN:
            why = f"a pattern that stands for {size:,} characters: at most {MOST_PATTERN:,}"
            raise self.fail(
                step, why, "repeat less in it ({1000} counts a thousand times); compare whole texts by `in`"
            )
        if error := regex_error(pattern) or (regex_error(f"({pattern})") and r"\Q has no \E"):
            do = "patterns are those of RE2, without lookaround and backreferences"
            raise self.fail(step, f"this is no regular expression: {error}", do)
        return pattern

    def matches_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        return self.by_text(node, args[0], BOOL, self._pattern(args[1]))

    def regex_extract_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        pattern, group = self._pattern(args[1]), self.whole_of(args[2], "group", none=True)
        groups = regex_groups(pattern)
        if group is None:
            group = min(groups, 1)
        if not 0 <= group <= min(groups, 8):
            raise self.fail(args[2], f"there is no group {group}", f"the pattern has {groups} group(s), 0 is the whole")
        return self.by_text(node, args[0], STRING, pattern, group)

    def regex_replace_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        pattern, new = self._pattern(args[1]), self.text_of(args[2], "the new text")
        if error := regex_error(pattern, new):
            raise self.fail(args[2], f"cannot be put in: {error}", r"groups are written \1 to \9")
        return self.by_text(node, args[0], STRING, pattern, new)

    # texts that are read

    def parse_number_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        decimal, group = self.text_of(args[1], "the decimal sign"), self.text_of(args[2], "the group sign", none=True)
        for step, sign in ((args[1], decimal), (args[2], group)):
            if sign is not None and (len(sign) != 1 or sign.isalnum() or sign in "+-"):
                raise self.fail(step, f"{sign!r} is no sign for numbers", "write one sign, such as ',' or '.'")
        if decimal == group:
            raise self.fail(args[2], "the group sign is the decimal sign", 'write decimal=",", group="."')
        return self.by_text(node, args[0], FLOAT64, decimal, group)

    def parse_time_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        written, zone = self.text_of(args[1], "the format", none=True), self._zone(args[2])
        try:
            format_of(written)
        except ValueError as error:
            raise self.fail(args[1], f"{written!r} is no format: {error}") from None
        return self.by_text(node, args[0], pa.timestamp("us"), written, zone)

    def parse_json_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        path = self.text_of(args[1], "the path")
        assert path is not None
        try:
            return self.by_text(node, args[0], STRING, json_path(path))
        except ValueError as error:
            raise self.fail(args[1], f"{path!r} is no path: it {error}") from None

    def by_text(self, node: Node, text: Typed, dtype: pa.DataType, *parameters: Any) -> Typed:
        """A function that Arrow computes on the host: its name and parameters are the value."""
        return Typed("by text", (self._text(text, node.verb),), dtype, (node.verb, *parameters), node.place)

    def text_of(self, step: Typed, what: str, none: bool = False) -> str | None:
        """The value of a literal text."""
        if none and step.is_literal and step.value is None:
            return None
        if not (step.is_literal and family(step.dtype) == "string"):
            raise self.fail(step, f"{what} is a literal text", 'write it in quotes: ".."')
        return str(step.value)

    def whole_of(self, step: Typed, what: str, none: bool = False) -> int | None:
        """The value of a literal whole number."""
        if none and step.is_literal and step.value is None:
            return None
        if not (step.is_literal and step.dtype == INT64 and -(2**31) < step.value < 2**31):
            raise self.fail(step, f"{what} is a literal whole number")
        return int(step.value)

    def _zone(self, step: Typed) -> str:
        zone = self.text_of(step, "the zone")
        assert zone is not None
        try:
            check_zone(zone)
        except ValueError as error:
            raise self.fail(step, f"there is no time zone {zone!r}", str(error)) from None
        return zone

    # choice and change of type

    def where_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        condition, *choices = args
        self._condition(condition)
        dtype, choices = self._choices(node, choices)
        return Typed("where", (condition, *choices), dtype, place=node.place)

    def case_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        otherwise = args[-1] if len(args) % 2 else Typed("literal", (), pa.null(), None, node.place)
        pairs = args[: len(args) // 2 * 2]
        conditions = pairs[::2]
        for condition in conditions:
            self._condition(condition)
        dtype, values = self._choices(node, [*pairs[1::2], otherwise])
        steps = [step for pair in zip(conditions, values[:-1], strict=True) for step in pair]
        return Typed("case", (*steps, values[-1]), dtype, place=node.place)

    def coalesce_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        dtype, values = self._choices(node, args)
        return Typed("coalesce", tuple(values), dtype, place=node.place)

    def _condition(self, step: Typed) -> None:
        if step.dtype != BOOL:
            raise self.fail(step, f"a condition is true or false, this is {step.dtype}", "compare it: x != 0")

    def _choices(self, node: Node, choices: Sequence[Typed]) -> tuple[pa.DataType, list[Typed]]:
        """(the type of what is chosen, the choices in that type)."""
        dtype = self._chosen(node, list(choices))
        if family(dtype) not in CHOSEN:
            raise self.fail(node, f"{node.verb} does not choose between values of type {dtype}")
        return dtype, [self._as(choice, dtype) for choice in choices]

    def is_null_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        if args[0].is_literal:
            raise self.fail(node, "asks whether a literal is null", "name a column")
        return Typed("is None", args, BOOL, place=node.place)

    def _chosen(self, node: Node, choices: list[Typed]) -> pa.DataType:
        """The type of the columns if it is one and all literals fit it, else the common type of the numbers."""
        real = [c for c in choices if family(c.dtype) != "none"]
        if not real:
            raise self.fail(node, "chooses between None and None")
        columns = [c for c in real if not c.is_literal] or real
        first = columns[0].dtype
        if all(c.dtype == first for c in columns) and all(c.dtype == first or _fits(c, first) for c in real):
            return first
        if {family(c.dtype) for c in columns} == {"time"}:
            return self._finest(columns)
        return self.common(real)

    def _finest(self, times: Sequence[Typed]) -> pa.DataType:
        """The timestamp that holds times of several types: of the finest unit, in their zone if it is one."""
        unit = min((unit_of(step.dtype) for step in times), key=lambda name: NANOSECONDS[name])
        zones = {getattr(step.dtype, "tz", None) for step in times}
        return pa.timestamp(unit, zones.pop() if len(zones) == 1 else None)

    def _as(self, step: Typed, dtype: pa.DataType) -> Typed:
        if family(dtype) == "time" and step.is_literal and family(step.dtype) == "string":
            return converted(self.moment(step), dtype)
        return converted(step, dtype)

    def cast_(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        step, name = args
        if not (name.is_literal and family(name.dtype) == "string"):
            raise self.fail(name, "cast takes the type as text", "write cast(x, 'int64')")
        try:
            dtype = plain_type(parse_dtype(name.value))
        except (JobError, ValueError):
            raise self.fail(name, f"{name.value!r} is no type", near(name.value, CASTS.values())) from None
        if step.is_literal:
            raise self.fail(step, "a literal needs no cast", "write it as it should be")
        here, there = family(step.dtype), family(dtype)
        numbers = {"bool", "int", "float"}
        allowed = {"bool": numbers | {"string"}, "int": numbers | {"string", "time"}, "float": numbers | {"string"},
                   "string": numbers | {"string", "time"}, "time": {"int", "string", "time"},
                   "decimal": {"float", "int", "string"}}  # fmt: skip
        numbers_in_text = here == "string" and there == "list" and family(dtype.value_type) in ("int", "float")
        if step.dtype != dtype and there not in allowed.get(here, ()) and not numbers_in_text:
            known = [name for kind, name in CASTS.items() if kind in allowed.get(here, ())]
            hint = f"cast it to {' or '.join(known)}" if known else "name another column"
            raise self.fail(node, f"{step.dtype} cannot be cast to {dtype}", hint)
        return step if step.dtype == dtype else Typed("convert", (step,), dtype, place=node.place)


CASTS = {"bool": "bool", "int": "int64", "float": "float64", "string": "string", "time": "timestamp[us]"}


def literal_type(value: Any) -> pa.DataType:
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
