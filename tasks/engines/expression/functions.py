"""The functions of expressions, one declaration each: what a function takes and gives, its rule and its examples.

The reader of expressions, the type rules, the page and the tests follow from the declarations. To add a function,
declare it here and write its body under the same name: in `text_functions` or `list_functions` if Arrow computes it on
the host, else in `verbs_numbers`, or in both `verbs_arrow` and `verbs_cudf`. If the signature does not say all about
its arguments or its result, add a rule in `function_rules`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from tasks.engines.expression import list_functions, text_functions

Example = tuple[str, dict[str, list[Any]], list[Any]]  # an expression, its columns, what comes out


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function: its name, its kind, and its default if it may be left out."""

    name: str
    kind: str = "any"
    optional: bool = False
    default: Any = None


@dataclass(frozen=True)
class Function:
    """A function: how it is called and the type of its result, its `rule`, and examples that are run.

    The annotation of a parameter is its kind, by which `function_rules` checks an argument: `number`, `float` (a number
    in float64), `string`, `time`, `list` and `value` are columns, `column` is learned from, all others are literals. A
    parameter without an annotation takes anything.
    """

    declaration: str
    rule: str
    examples: list[Example]

    @property
    def name(self) -> str:
        return self.declaration.partition("(")[0]

    @property
    def result(self) -> str:
        return self.declaration.partition(" -> ")[2]

    @property
    def runs(self) -> Literal["engine", "host", "learned"]:
        """On the engine of the columns, or for all engines on the host, or learned in a pass over all rows."""
        on_host = self.name in text_functions.ON_HOST or self.name in list_functions.ON_HOST
        return "learned" if self.parameters[0].kind == "column" else "host" if on_host else "engine"

    @cached_property
    def _arguments(self) -> ast.arguments:
        (function,) = ast.parse(f"def {self.declaration.partition(' -> ')[0]}: ...").body
        assert isinstance(function, ast.FunctionDef)
        return function.args

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        arguments = self._arguments.args
        kinds = [ast.unparse(argument.annotation) if argument.annotation else "any" for argument in arguments]
        defaults = [(True, ast.literal_eval(default)) for default in self._arguments.defaults]
        ends = [(False, None)] * (len(arguments) - len(defaults)) + defaults
        return tuple(Parameter(a.arg, kind, *end) for a, kind, end in zip(arguments, kinds, ends, strict=True))

    @property
    def signature(self) -> str:
        """The name and the parameters, without their kinds."""
        shown = [f"{p.name}={p.default!r}" if p.optional else p.name for p in self.parameters]
        return f"{self.name}({', '.join(shown + ['*more'] * self.any_number)})"

    @property
    def any_number(self) -> bool:
        """Whether more arguments may follow."""
        return self._arguments.vararg is not None

    @property
    def least(self) -> int:
        return sum(not parameter.optional for parameter in self.parameters)


NUMBERS = (
    Function(
        "abs(x: number) -> that of x; int64 of signed whole numbers",
        "The absolute value.",
        [("abs(x)", {"x": [-2, 3, None]}, [2, 3, None])],
    ),
    Function(
        "log(x: float) -> float64",
        "The natural logarithm: `log(0)` is minus infinity, of negative numbers null.",
        [("log(x)", {"x": [1.0, -1.0, None]}, [0.0, None, None])],
    ),
    Function(
        "exp(x: float) -> float64",
        "e to the power of x; beyond float64 infinity.",
        [("exp(x)", {"x": [0, None]}, [1.0, None])],
    ),
    Function(
        "sqrt(x: float) -> float64",
        "The square root; null of negative numbers.",
        [("sqrt(x)", {"x": [4, -4, None]}, [2.0, None, None])],
    ),
    Function(
        "sin(x: float, period=None) -> float64",
        "The sine; with `period` of x as a part of a circle: `sin(hour(t), 24)` and `cos(hour(t), 24)` say the "
        "time of day so that 23 and 0 are near. Null of infinities.",
        [("sin(x, 24)", {"x": [0, 6, 18, None]}, [0.0, 1.0, -1.0, None])],
    ),
    Function(
        "cos(x: float, period=None) -> float64",
        "The cosine, as `sin`.",
        [("cos(x, period=7)", {"x": [0, 7, None]}, [1.0, 1.0, None])],
    ),
    Function(
        "round(x: number, digits: digits = 0) -> float64, whole numbers stay",
        "Rounded to 0 to 15 digits, halves to even.",
        [("round(x, 1)", {"x": [0.25, 1.75, None]}, [0.2, 1.8, None])],
    ),
    Function(
        "least(x, y, *more) -> the common type",
        "The smallest of the numbers, or of the times, in a row; nulls are passed over. Null where all are.",
        [("least(x, y)", {"x": [1, None, None], "y": [2, 3, None]}, [1, 3, None])],
    ),
    Function(
        "greatest(x, y, *more) -> the common type",
        "The largest, as `least`.",
        [("greatest(x, y, 0)", {"x": [1, None], "y": [2, None]}, [2, 0])],
    ),
    Function(
        "hash(x: value, seed: seed = 0) -> int64",
        "MurmurHash3_x86_32 of the value, 0 to 4294967295, in every version: of values that are not null, "
        "`hash(x) % n` is what `HashBucket` gives, also for whole floats (7.0 as 7). The seed is a whole number "
        "from 0 to 4294967295.",
        [("hash(user) % 100", {"user": [10, 11, None]}, [76, 7, None])],
    ),
)

CHOICE = (
    Function(
        "where(condition, a, b) -> that of a and b; of different ones the type they are computed in",
        "a where the condition is true, b where it is false, null where it is null.",
        [("where(x > 0, x, 0)", {"x": [5, -5, None]}, [5, 0, None])],
    ),
    Function(
        "case(condition, value, *more) -> as `where`",
        "The value behind the first condition that is true; null is not true. A last argument without a condition "
        "is for all other rows, without it they are null.",
        [
            ("case(x > 9, 'many', x > 0, 'some', 'none')", {"x": [10, 5, 0, None]}, ["many", "some", "none", "none"]),
            ("case(x > 9, 'many')", {"x": [10, 5, None]}, ["many", None, None]),
        ],
    ),
    Function(
        "coalesce(x, y, *more) -> as `where`",
        "The first value that is not null. A cast or a parse that fails is answered by the next argument.",
        [("coalesce(x, y, 0)", {"x": [1, None, None], "y": [5, 6, None]}, [1, 6, 0])],
    ),
    Function("is_null(x) -> bool", "As `x is None`: never null.", [("is_null(x)", {"x": [1, None]}, [False, True])]),
    Function(
        "between(x, low, high) -> bool",
        "As `low <= x <= high`: both ends are inside.",
        [("between(x, 1, 3)", {"x": [1, 3, 4, None]}, [True, True, False, None])],
    ),
    Function(
        "cast(x, dtype: dtype) -> dtype",
        "The value in another type; null, and counted, where the type cannot hold it or a text is no such value. "
        "Floats are cut towards zero. Texts of whole numbers are digits with or without a sign, `0x10` is none. A list "
        "of numbers in a text has commas, bars, semicolons or blanks between them, in brackets or without.",
        [
            ("cast(x, 'int64')", {"x": ["12", "twelve", None]}, [12, None, None]),
            ("cast(x, 'list<double>')", {"x": ["[0.5, 1.5]", "1|2", "a"]}, [[0.5, 1.5], [1.0, 2.0], None]),
        ],
    ),
)

TEXTS = (
    Function(
        "lower(text: string) -> string",
        "Small letters, letter by letter, after Unicode.",
        [("lower(s)", {"s": ["Ab", None]}, ["ab", None])],
    ),
    Function(
        "upper(text: string) -> string",
        "Capital letters; `upper('ß')` is `ẞ`, never SS.",
        [("upper(s)", {"s": ["Ab", None]}, ["AB", None])],
    ),
    Function(
        "length(x) -> int64",
        "The number of characters of a text, of elements of a list.",
        [("length(s)", {"s": ["für", "", None]}, [3, 0, None])],
    ),
    Function("len(x) -> int64", "As `length`.", [("len(v)", {"v": [[1, 2], [], None]}, [2, 0, None])]),
    Function(
        "contains(x, value) -> bool",
        "Whether a text has this text in it, or a list this element (a literal); null elements equal nothing.",
        [
            ("contains(s, 'b.')", {"s": ["ab.c", "abc", None]}, [True, False, None]),
            ("contains(v, 2)", {"v": [[1, 2], [None], None]}, [True, False, None]),
        ],
    ),
    Function(
        "startswith(text: string, start: str) -> bool",
        "Whether a text begins with this text.",
        [("startswith(s, 'a')", {"s": ["ab", "ba", None]}, [True, False, None])],
    ),
    Function(
        "endswith(text: string, end: str) -> bool",
        "Whether a text ends with this text.",
        [("endswith(s, 'a')", {"s": ["ab", "ba", None]}, [False, True, None])],
    ),
    Function(
        "strip(text: string, characters: str = None) -> string",
        "Without white space, or these characters, at both ends.",
        [("strip(s)", {"s": [" a b\t", None]}, ["a b", None]), ("strip(s, '*')", {"s": ["**a*b*"]}, ["a*b"])],
    ),
    Function(
        "replace(text: string, old: nonempty, new: str) -> string",
        "Every `old` replaced by `new`, from left to right; literal texts.",
        [("replace(s, '.', '')", {"s": ["1.234.567", None]}, ["1234567", None])],
    ),
    Function(
        "substring(text: string, start: int, stop: int = None) -> string",
        "The characters from `start` up to `stop`, not included, counted from 0, negative ones from the end, as "
        "Python's `text[start:stop]`.",
        [
            ("substring(s, 0, 4)", {"s": ["2020-01-31", "ab", None]}, ["2020", "ab", None]),
            ("substring(s, -2)", {"s": ["2020-01-31"]}, ["31"]),
        ],
    ),
    Function(
        "split_part(text: string, separator: nonempty, index: int) -> string",
        "A part of a text between separators, counted from 0, negative ones from the end; null if there are not so "
        "many parts.",
        [
            ("split_part(s, '.', 1)", {"s": ["a.b.c", "a", None]}, ["b", None, None]),
            ("split_part(s, '.', -1)", {"s": ["a.b.c", "a", ""]}, ["c", "a", ""]),
        ],
    ),
    Function(
        "split(text: string, separator: nonempty) -> list of string",
        "The parts of a text between separators, in their order; an empty text has one, which is empty.",
        [
            ("split(s, '|')", {"s": ["Comedy|Drama", "Drama", "", None]}, [["Comedy", "Drama"], ["Drama"], [""], None]),
            ("len(split(s, ', '))", {"s": ["a, b, c"]}, [3]),
        ],
    ),
    Function(
        "matches(text: string, pattern: pattern) -> bool",
        "Whether the regular expression fits somewhere in the text.",
        [("matches(s, '^[a-z]+[0-9]$')", {"s": ["ab1", "1ab", None]}, [True, False, None])],
    ),
    Function(
        "regex_extract(text: string, pattern: pattern, group: int = None) -> string",
        "What the regular expression fits first, or a group of it: `group` is 0 for the whole, else 1 to 8 (default: "
        "1 if the pattern has a group, else 0). Null where it does not fit; a group that took no part is empty.",
        [
            ("regex_extract(s, '([0-9]+) *kg')", {"s": ["about 12 kg", "none", None]}, ["12", None, None]),
            ("regex_extract(s, '[0-9]+')", {"s": ["a1b22"]}, ["1"]),
        ],
    ),
    Function(
        "regex_replace(text: string, pattern: pattern, new: str) -> string",
        r"Every place that the regular expression fits replaced by `new`, in which `\1` to `\9` are its groups, "
        r"`\0` the whole. An empty place right behind another one is passed over: `a*` in `baac` fits three times.",
        [(r"regex_replace(s, '([0-9]+)-([0-9]+)', '\\2-\\1')", {"s": ["1-2 3-4", "x", None]}, ["2-1 4-3", "x", None])],
    ),
)

PARSING = (
    Function(
        "parse_number(text: string, decimal: sign = '.', group: sign = None) -> float64",
        "The number that a text writes, white space at both ends ignored: digits, a sign, `decimal` as decimal sign, "
        "an exponent. With `group` digits may stand in groups (of three, the first ones of two or three). All other "
        "texts, `inf` and `nan` too, are null and counted.",
        [
            ("parse_number(s, decimal=',')", {"s": ["1,5", " 2 ", "NA", None]}, [1.5, 2.0, None, None]),
            ("parse_number(s, ',', group='.')", {"s": ["1.234,5", "12.34"]}, [1234.5, None]),
        ],
    ),
    Function(
        "parse_time(text: string, format: format = None, zone: zone = 'UTC') -> timestamp[us]",
        "The time that a text writes, in UTC: ISO 8601, or by the signs of `format`, which are those of Python's "
        "strptime: %Y %y %m %d %b (English names, short or whole) %j %H %I %p %M %S %f %z %s %a %F %T %R %D %%; a "
        "space stands for any white space, %f for up to 9 digits, of which 6 stay. Years %y are 1969 to 2068. A text "
        "without an offset is local time in `zone`: of a time that the clock shows twice the first, of one that it "
        "skips the first moment after. Texts in another format, and days that do not exist, are null and counted.",
        [
            (
                "parse_time(s, '%d.%m.%Y %H:%M')",
                {"s": ["31.01.2020 12:30", "31.02.2020 12:30", None]},
                [datetime(2020, 1, 31, 12, 30), None, None],
            ),
            (
                "parse_time(s, zone='Europe/Berlin')",
                {"s": ["2020-07-01 12:00", "2020-07-01T12:00Z"]},
                [datetime(2020, 7, 1, 10), datetime(2020, 7, 1, 12)],
            ),
        ],
    ),
    Function(
        "parse_json(text: string, path: path) -> string",
        "What lies at a path (`$.items[0].name`, `['odd name']`, places from the end negative) of a JSON text: texts "
        "as they are, all else as JSON. Null where the path leads nowhere or to null; a text that is not JSON is "
        "null and counted.",
        [
            ("parse_json(s, 'a[0].b')", {"s": ['{"a": [{"b": "x"}]}', '{"a": 1}', "{", None]}, ["x", None, None, None]),
            ("cast(parse_json(s, '$.n'), 'int64')", {"s": ['{"n": 5}']}, [5]),
        ],
    ),
)

_MOMENT = datetime(2020, 2, 29, 23, 15, 30)
_BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 500000)


def _part(name: str, rule: str, value: int) -> Function:
    return Function(f"{name}(time: time) -> int64", rule, [(f"{name}(t)", {"t": [_MOMENT, None]}, [value, None])])


TIMES = (
    Function(
        "epoch(time: time, unit: unit = 's') -> int64",
        "The count of units (s, ms, us, ns, or day) since 1970 in UTC, rounded down.",
        [("epoch(t)", {"t": [datetime(1970, 1, 2), _BEFORE_1970, None]}, [86400, -1, None])],
    ),
    Function(
        "floor_time(time: time, unit: period) -> that of the time",
        "The beginning of the second, minute, hour, day, week (Monday), month, quarter or year in UTC; also of "
        "several, '15 minutes', counted from 1970 (weeks from Monday, 1969-12-29).",
        [
            ("floor_time(t, 'month')", {"t": [_MOMENT, None]}, [datetime(2020, 2, 1), None]),
            ("floor_time(t, '15 minutes')", {"t": [_MOMENT]}, [datetime(2020, 2, 29, 23, 15)]),
        ],
    ),
    Function(
        "local_time(time: time, zone: zone) -> timestamp without zone",
        "What the clock shows in a zone: `hour(local_time(t, 'Europe/Berlin'))`.",
        [("local_time(t, 'Europe/Berlin')", {"t": [_MOMENT, None]}, [datetime(2020, 3, 1, 0, 15, 30), None])],
    ),
    _part("second", "The second, 0 to 59.", 30),
    _part("minute", "The minute, 0 to 59.", 15),
    _part("hour", "The hour in UTC, 0 to 23.", 23),
    _part("weekday", "The day of the week, Monday 0 to Sunday 6.", 5),
    _part("day", "The day of the month, from 1.", 29),
    _part("dayofyear", "The day of the year, from 1.", 60),
    _part("month", "The month, 1 to 12.", 2),
    _part("year", "The year.", 2020),
)

LISTS = (
    Function(
        "get(list: list, index: int) -> that of the elements",
        "An element, counted from 0, negative ones from the end; null if there are not so many.",
        [("get(v, 0)", {"v": [[7, 8], [], None]}, [7, None, None]), ("get(v, -1)", {"v": [[7, 8]]}, [8])],
    ),
    Function(
        "slice(list: list, start: int, stop: int = None) -> that of the list",
        "The elements from `start` up to `stop`, not included, as Python's `list[start:stop]`.",
        [("slice(v, -2)", {"v": [[7, 8, 9], [7], None]}, [[8, 9], [7], None])],
    ),
    Function(
        "sum(list) -> int64, uint64 or float64",
        "The sum of the elements that are not null, 0 of none; floats are added exactly and rounded once.",
        [("sum(v)", {"v": [[1, 2, None], [], None]}, [3, 0, None])],
    ),
)

_X = {"x": [1.0, 2.0, None, 6.0]}
LEARNED = (
    Function(
        "min(column: column) -> that of the column",
        "The smallest value of a column of numbers, the first time of a column of times; null of none.",
        [
            ("x - min(x)", _X, [0.0, 1.0, None, 5.0]),
            ("t - min(t)", {"t": [datetime(2020, 1, 2, 12), datetime(2020, 1, 1), None]}, [129600.0, 0.0, None]),
        ],
    ),
    Function(
        "max(column: column) -> that of the column",
        "The largest value of a column of numbers, the last time of a column of times; null of none.",
        [("x / max(x)", {"x": [1, 2, None, 4]}, [0.25, 0.5, None, 1.0])],
    ),
    Function(
        "mean(column: column) -> float64",
        "The mean of a column of numbers; null of none.",
        [("coalesce(x, mean(x))", _X, [1.0, 2.0, 3.0, 6.0])],
    ),
    Function(
        "std(column: column) -> float64",
        "The standard deviation of a column of numbers (ddof 1), as `Normalize` learns it; 0 of one value, null of "
        "none.",
        [("std(x)", {"x": [1, 3, None]}, [1.4142135623730951] * 3)],
    ),
    Function(
        "quantile(column: column, q) -> float64",
        "The exact quantile of a column of numbers, q from 0 to 1, interpolated as numpy does; null of none.",
        [("x > quantile(x, 0.5)", _X, [False, False, None, True])],
    ),
)

GROUPS = {
    "Choice and types": CHOICE,
    "Numbers": NUMBERS,
    "Texts": TEXTS,
    "Reading texts": PARSING,
    "Times": TIMES,
    "Lists": LISTS,
    "Learned values": LEARNED,
}
FUNCTIONS = {function.name: function for group in GROUPS.values() for function in group}
