"""Random expressions of all functions, typed as the language types them: Python answers the same, row by row.

Also which rows are null because a cast or a parse failed: they are counted, and an error of strict expressions.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engines.expression import interpreter as evaluation
from tasks.engines.expression.syntax import parse
from tasks.errors import DataError
from tests.examples import examples
from tests.frames import make_column
from tests.tasks.engines.test_expression_functions import evaluate

Row = dict[str, Any]


class Failed:
    """The null of a cast or a parse that failed."""

    def __repr__(self) -> str:
        return "failed"


FAILED = Failed()


@dataclass(frozen=True)
class Formula:
    """An expression as text, and what it is for a row: a value, None or FAILED."""

    text: str
    of: Callable[[Row], Any]

    def __repr__(self) -> str:
        return self.text


Formulas = st.SearchStrategy[Formula]


def column(name: str) -> Formula:
    return Formula(name, lambda row: row[name])


def literal(value: Any) -> Formula:
    return Formula(repr(value), lambda row: value)


def call(form: str, rule: Callable[..., Any], *args: Formula, nulls: bool = False) -> Formula:
    """`form` has a place {} for each argument; the answer is null where one of them is, unless the rule takes nulls."""

    def of(row: Row) -> Any:
        values = [arg.of(row) for arg in args]
        null = None if nulls else null_of(values)
        return rule(*values) if nulls or not any(map(is_null, values)) else null

    return Formula(form.format(*(arg.text for arg in args)), of)


def made(form: str, rule: Callable[..., Any], *args: Formulas, nulls: bool = False) -> Formulas:
    return st.tuples(*args).map(lambda drawn: call(form, rule, *drawn, nulls=nulls))


def is_null(value: Any) -> bool:
    return value is None or value is FAILED


def null_of(values: Iterable[Any]) -> Any:
    """The null of several values, of which one is null: of a failure, if one failed."""
    return FAILED if any(value is FAILED for value in values) else None


# The rules that Python does not have.


def known(*values: Any) -> list[Any]:
    return [value for value in values if not is_null(value)]


def both(a: Any, b: Any) -> Any:
    return False if a is False or b is False else null_of((a, b)) if is_null(a) or is_null(b) else True


def either(a: Any, b: Any) -> Any:
    return True if a is True or b is True else null_of((a, b)) if is_null(a) or is_null(b) else False


def chosen(condition: Any, a: Any, b: Any) -> Any:
    return condition if is_null(condition) else a if condition else b


def first(*values: Any) -> Any:
    return next((value for value in values[:-1] if not is_null(value)), values[-1])


def case(*args: Any) -> Any:
    """The value behind the first condition that is true; a null is of a failure if a condition before it failed."""
    passed = []
    for condition, value in zip(args[:-1:2], args[1::2], strict=True):
        if condition is True:
            return null_of([*passed, value]) if is_null(value) else value
        passed.append(condition)
    return null_of([*passed, args[-1]]) if is_null(args[-1]) else args[-1]


def extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: choose(known(a, b)) if known(a, b) else null_of((a, b))


def quotient(a: float, b: float) -> float | None:
    if b:
        return a / b
    return None if a == 0 else math.copysign(math.inf, a)


def part(text: str, place: int) -> str | None:
    parts = text.split("-")
    return parts[place] if -len(parts) <= place < len(parts) else None


def element(values: list[Any], place: int) -> Any:
    return values[place] if -len(values) <= place < len(values) else None


def whole(text: str) -> Any:
    matched = re.fullmatch("[+-]?[0-9]+", text.strip())
    return int(matched[0]) if matched and abs(int(matched[0])) < 2**63 else FAILED


def number(text: str) -> Any:
    form = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)"
    return float(text.strip()) if re.fullmatch(form, text.strip()) else FAILED


def name_in(text: str) -> Any:
    """What `parse_json(text, 'a')` is."""
    try:
        value = json.loads(text)
    except ValueError:
        return FAILED
    value = value.get("a") if isinstance(value, dict) else None
    return value if value is None or isinstance(value, str) else json.dumps(value)


def moment(text: str) -> Any:
    try:
        return datetime.strptime(text.strip(), "%Y-%m-%d")
    except ValueError:
        return FAILED


def month(time: datetime) -> datetime:
    return time.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def day(time: datetime) -> datetime:
    return time.replace(hour=0, minute=0, second=0, microsecond=0)


SMALL = st.integers(-4, 4)
WORDS = ["a", "-", "é b", "12", "A-É-中", " x ", "", '{"a": "é"}', "2020-03-01"]
MOMENTS = [datetime(1969, 12, 31, 23, 59, 59, 5), datetime(2020, 2, 29, 12, 30), datetime(2020, 3, 1)]
LEAVES: dict[str, Formulas] = {
    "int": st.sampled_from([column("x"), column("y"), column("z")]),
    "float": st.sampled_from([column("f"), column("g")]),
    "text": st.sampled_from([column("s"), column("u")]),
    "time": st.sampled_from([column("t"), column("w")]),
    "bool": st.sampled_from([column("p"), column("q")]),
    "ints": st.just(column("v")),
    "texts": st.just(column("l")),
}
LITERALS: dict[str, Formulas] = {
    "int": SMALL.map(literal),
    "float": st.sampled_from([0.5, -1.0, 3.0]).map(literal),
    "text": st.sampled_from(WORDS).map(literal),
    "time": st.sampled_from(["2020-02-29", "2020-02-29T12:30:00"]).map(
        lambda text: Formula(repr(text), lambda row: datetime.fromisoformat(text))
    ),
}


@cache
def alternatives(kind: str, depth: int) -> Formulas:
    """Expressions of a type, at most so deep."""
    if depth == 0:
        return LEAVES[kind]

    def deeper(kind: str) -> Formulas:
        return formulas(kind, depth - 1)

    def or_literal(kind: str) -> Formulas:
        return deeper(kind) | LITERALS[kind] if kind in LITERALS else deeper(kind)

    own = {
        "int": _ints, "float": _floats, "text": _texts, "time": _times, "bool": _truths, "ints": _ints_in_lists,
        "texts": _texts_in_lists,
    }[kind](deeper, or_literal)  # fmt: skip
    return st.one_of(LEAVES[kind], *own, *(_choices(kind, deeper, or_literal) if kind not in ("ints", "texts") else ()))


@st.composite
def formulas(draw: st.DrawFn, kind: str, depth: int) -> Formula:
    """One of the alternatives, without their long description."""
    return draw(alternatives(kind, depth))


Of = Callable[[str], Formulas]


def _choices(kind: str, deeper: Of, or_literal: Of) -> list[Formulas]:
    some, other, condition = deeper(kind), or_literal(kind), deeper("bool")
    choices = [
        made("where({}, {}, {})", chosen, condition, some, other, nulls=True),
        made("where({}, {}, {})", chosen, condition, other, some, nulls=True),
        made("coalesce({}, {})", first, some, other, nulls=True),
        made("coalesce({}, {}, {})", first, some, other, some, nulls=True),
        made("coalesce({}, {})", first, other, some, nulls=True),
        made("case({}, {}, {}, {}, {})", case, condition, other, condition, some, other, nulls=True),
        made("case({}, {}, {})", case, condition, other, some, nulls=True),
        made("case({}, {})", lambda p, a: case(p, a, None), condition, some, nulls=True),
    ]  # fmt: skip
    if kind in ("int", "float", "time"):
        choices += [
            made("least({}, {})", extreme(min), some, other, nulls=True),
            made("greatest({}, {})", extreme(max), some, other, nulls=True),
        ]
    return choices


def _ints(deeper: Of, or_literal: Of) -> list[Formulas]:
    a, b = deeper("int"), or_literal("int")
    return [
        made("({} + {})", lambda a, b: a + b, a, b),
        made("({} - {})", lambda a, b: a - b, a, b),
        made("({} * {})", lambda a, b: a * b, a, b),
        made("({} // {})", lambda a, b: a // b if b else None, a, b),
        made("({} % {})", lambda a, b: a % b if b else None, a, b),
        made("(-{})", lambda a: -a, a),
        made("abs({})", abs, a),
        made("len({})", len, deeper("text") | deeper("ints") | deeper("texts")),
        made("sum({})", lambda values: sum(known(*values)), deeper("ints")),
        st.tuples(deeper("ints"), SMALL).map(
            lambda two: call(f"get({{}}, {two[1]})", lambda values: element(values, two[1]), two[0])
        ),
        made("cast({}, 'int64')", whole, deeper("text")),
        made("epoch({})", lambda time: (time - datetime(1970, 1, 1)) // timedelta(seconds=1), deeper("time")),
        made("year({})", lambda time: time.year, deeper("time")),
        made("weekday({})", lambda time: time.weekday(), deeper("time")),
        made("({} + {})", lambda p, a: p + a, deeper("bool"), b),
    ]


def _floats(deeper: Of, or_literal: Of) -> list[Formulas]:
    return [
        made("({} / {})", quotient, deeper("int"), or_literal("int")),
        made("({} + {})", lambda a, b: _finite(a + b), deeper("float"), or_literal("float")),
        made("({} * {})", lambda a, b: _finite(a * b), deeper("float"), or_literal("float")),
        made("({} - {})", lambda a, b: (a - b) / timedelta(seconds=1), deeper("time"), or_literal("time")),
        made("round({}, 1)", lambda a: a if math.isinf(a) else round(a * 10) / 10, deeper("float")),
        made("sqrt({})", lambda a: math.sqrt(a) if a >= 0 else None, deeper("float")),
        made("cast({}, 'float64')", float, deeper("int")),
        made("parse_number({})", number, deeper("text")),
    ]


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value


def _texts(deeper: Of, or_literal: Of) -> list[Formulas]:
    text = deeper("text")
    return [
        made("({} + {})", lambda a, b: a + b, text, or_literal("text")),
        made("lower({})", str.lower, text),
        made("upper({})", str.upper, text),
        made("strip({})", str.strip, text),
        made("replace({}, '-', 'é')", lambda text: text.replace("-", "é"), text),
        made("regex_replace({}, '[0-9]', '<\\\\0>')",
             lambda text: "".join(f"<{c}>" if c in "0123456789" else c for c in text), text),
        st.tuples(text, SMALL, st.none() | SMALL).map(
            lambda three: call(f"substring({{}}, {three[1]}, {three[2]})", lambda t: t[three[1] : three[2]], three[0])
        ),
        st.tuples(text, SMALL).map(
            lambda two: call(f"split_part({{}}, '-', {two[1]})", lambda text: part(text, two[1]), two[0])
        ),
        st.tuples(deeper("texts"), SMALL).map(
            lambda two: call(f"get({{}}, {two[1]})", lambda values: element(values, two[1]), two[0])
        ),
        made("parse_json({}, 'a')", name_in, text),
        made("cast({}, 'string')", str, deeper("int")),
        made("cast({}, 'string')", lambda p: str(p).lower(), deeper("bool")),
    ]  # fmt: skip


def _times(deeper: Of, or_literal: Of) -> list[Formulas]:
    return [
        made("floor_time({}, 'month')", month, deeper("time")),
        made("floor_time({}, 'day')", day, deeper("time")),
        made("parse_time(cast({}, 'string'))", lambda time: time, deeper("time")),
        made("parse_time({}, '%Y-%m-%d')", moment, deeper("text")),
    ]


COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def _truths(deeper: Of, or_literal: Of) -> list[Formulas]:
    compared = [
        made(f"({{}} {sign} {{}})", rule, deeper(kind), or_literal(kind))
        for sign, rule in COMPARED.items()
        for kind in ("int", "float", "text", "time")
    ]
    return [
        st.one_of(compared),
        made("({} and {})", both, deeper("bool"), deeper("bool"), nulls=True),
        made("({} or {})", either, deeper("bool"), deeper("bool"), nulls=True),
        made("(not {})", lambda p: not p, deeper("bool")),
        made("({} is None)", is_null, st.one_of(*map(deeper, LEAVES)), nulls=True),
        made("is_null({})", is_null, st.one_of(*map(deeper, LEAVES)), nulls=True),
        made("({} in [1, -2, 4])", lambda a: a in (1, -2, 4), deeper("int")),
        made("({} not in ['a', '12'])", lambda a: a not in ("a", "12"), deeper("text")),
        made("contains({}, '-')", lambda text: "-" in text, deeper("text")),
        made("startswith({}, 'a')", lambda text: text.startswith("a"), deeper("text")),
        made("endswith({}, 'é')", lambda text: text.endswith("é"), deeper("text")),
        made("matches({}, '^[a-z]')", lambda text: "a" <= text[:1] <= "z", deeper("text")),
        made("contains({}, 2)", lambda values: 2 in values, deeper("ints")),
        made("contains({}, 'a')", lambda values: "a" in values, deeper("texts")),
        made("between({}, {}, {})", lambda a, low, high: both(_below(low, a), _below(a, high)), deeper("int"),
             or_literal("int"), or_literal("int"), nulls=True),
    ]  # fmt: skip


def _below(a: Any, b: Any) -> Any:
    return null_of((a, b)) if is_null(a) or is_null(b) else a <= b


def _slices(values: Formulas) -> list[Formulas]:
    return [
        st.tuples(values, SMALL, st.none() | SMALL).map(
            lambda drawn: call(f"slice({{}}, {drawn[1]}, {drawn[2]})", lambda one: one[drawn[1] : drawn[2]], drawn[0])
        )
    ]


def _ints_in_lists(deeper: Of, or_literal: Of) -> list[Formulas]:
    return _slices(deeper("ints"))


def _texts_in_lists(deeper: Of, or_literal: Of) -> list[Formulas]:
    return [*_slices(deeper("texts")), made("split({}, '-')", lambda text: text.split("-"), deeper("text"))]


TYPES = {"x": pa.int64(), "y": pa.int8(), "z": pa.uint8(), "f": pa.float64(), "g": pa.float32(), "s": pa.string(),
         "u": pa.string(), "t": pa.timestamp("us"), "w": pa.timestamp("ms"), "p": pa.bool_(), "q": pa.bool_(),
         "v": pa.list_(pa.int64()), "l": pa.list_(pa.string())}  # fmt: skip
HALVES = st.integers(-6, 6).map(lambda value: value / 2)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "x": SMALL, "y": SMALL, "z": st.integers(0, 4), "f": HALVES, "g": HALVES, "s": st.sampled_from(WORDS),
    "u": st.sampled_from(WORDS), "t": st.sampled_from(MOMENTS),
    "w": st.sampled_from([datetime(2020, 2, 29, 12, 30), datetime(1969, 12, 31, 23)]), "p": st.booleans(),
    "q": st.booleans(), "v": st.lists(st.none() | SMALL, max_size=3),
    "l": st.lists(st.none() | st.sampled_from(WORDS), max_size=3),
}  # fmt: skip
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), max_size=5)


def strictly(text: str, engine: str, columns: dict[str, pa.Array]) -> None:
    frame = {name: make_column(array, engine=engine) for name, array in columns.items()}
    evaluation.evaluate(parse(text), frame, strict=True)


@pytest.mark.promise(
    "What `coalesce`, `where`, `case`, `or` or `is None` answer for is not counted",
    "tasks/ops/EXPRESSIONS.md#casts-and-parses-that-fail",
)
@pytest.mark.parametrize("kind", LEAVES)
@examples(60)
@given(rows=ROWS, data=st.data())
def test_any_composition_answers_as_python_does(engine: str, kind: str, rows: list[Row], data: st.DataObject) -> None:
    formula = data.draw(formulas(kind, 4))
    columns = {name: pa.array([row[name] for row in rows], dtype) for name, dtype in TYPES.items()}
    answers_of_python = [formula.of(row) for row in rows]
    failed, counted = sum(value is FAILED for value in answers_of_python), Counter[str]()
    expected = [None if value is FAILED else value for value in answers_of_python]
    answers = evaluate(formula.text, engine, counted, **columns)
    assert counted == ({formula.text: failed} if failed else {})
    with pytest.raises(DataError, match="the expression is strict") if failed else nullcontext():
        strictly(formula.text, engine, columns)
    if kind == "float":
        expected = [value if value is None else pytest.approx(value, rel=1e-12, abs=1e-12) for value in expected]
    assert answers == expected
