"""Functions of expressions on random texts, lists and values: what plain Python answers for each row.

`test_expression_compositions.py` does the same for random expressions of all of them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks import ops
from tasks.engines.expression.text_functions import json_path
from tests.examples import examples
from tests.learning import applied, cut, learned, rows
from tests.tasks.engines.test_expression_functions import evaluate

SPACES = " \t\n\r\x0b\x0c\x1c\x1f\x85\u00a0\u2003\u2028\u3000"
LETTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    "aAbBzZ019 .,-_|*()[]{}\\^$?+/'\"äÄßẞıİşΣσςЖ中한😀\u0301\0" + SPACES
)
TEXT = st.text(LETTERS, max_size=7)
TEXTS = st.lists(st.none() | TEXT, max_size=6)
SHORT = st.text(LETTERS, min_size=1, max_size=2)
PLACE = st.integers(-8, 8)


def each(rule: Callable[..., Any], *columns: list[Any]) -> list[Any]:
    """The rule for each row; null where a value is null."""
    return [None if None in row else rule(*row) for row in zip(*columns, strict=True)]


def strings(values: list[str | None]) -> pa.Array:
    return pa.array(values, pa.string())


@given(TEXTS, SHORT, TEXT, PLACE, st.none() | PLACE)
def test_text_functions_are_those_of_python(
    engine: str, values: list[str | None], old: str, new: str, start: int, stop: int | None
) -> None:
    def part(text: str) -> str | None:
        parts = text.split(old)
        return parts[start] if -len(parts) <= start < len(parts) else None

    for text, rule in (
        (f"replace(s, {old!r}, {new!r})", lambda text: text.replace(old, new)),
        (f"split_part(s, {old!r}, {start})", part),
        (f"substring(s, {start}, {stop})", lambda text: text[start:stop]),
        (f"strip(s, {old!r})", lambda text: text.strip(old)),
        ("strip(s)", str.strip),
        (f"endswith(s, {old!r})", lambda text: text.endswith(old)),
        (f"contains(s, {old!r})", lambda text: old in text),
        ("len(s)", len),
        (f"s + {new!r}", lambda text: text + new),
        (f"s < {new!r}", lambda text: text < new),
        (f"s in [{old!r}, {new!r}]", lambda text: text in (old, new)),
    ):  # fmt: skip
        assert evaluate(text, engine, s=strings(values)) == each(rule, values), text


SIMPLE = {"lower": {"İ": "i"}, "upper": {"ß": "ẞ"}}  # letters that Python makes several of, and Unicode's tables one
CASED = st.sampled_from("aAzZ0 äÄéÉßẞıİşŞñΣσςΩωЖжǆǅ中한😀\u0301") | st.characters(max_codepoint=0x17F)


@given(st.lists(st.none() | st.text(CASED, max_size=7), max_size=6))
def test_letters_change_case_one_by_one(engine: str, values: list[str | None]) -> None:
    for name, change in (("lower", str.lower), ("upper", str.upper)):

        def one(letter: str, name: str = name, change: Callable[[str], str] = change) -> str:
            return SIMPLE[name].get(letter, change(letter) if len(change(letter)) == 1 else letter)

        expected = each(lambda text, one=one: "".join(map(one, text)), values)
        assert evaluate(f"{name}(s)", engine, s=strings(values)) == expected


# Regular expressions that RE2 and Python read alike.

PIECES = ["a", "b", "c", " ", "é", "1", r"\.", ".", "[ab]", "[^a]", "[a-c1]", "[é中]", r"\d", r"\w", "(a)", "(b|é)"]
COUNTS = ["*", "+", "?", "{2}", "{1,2}", "*?", "+?", "??"]  # of pieces, which never fit the empty text
PATTERNS = st.recursive(
    st.sampled_from(PIECES) | st.tuples(st.sampled_from(PIECES), st.sampled_from(COUNTS)).map("".join),
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})")
        | inner.map(lambda one: f"({one})")
    ),
    max_leaves=5,
)
ENDS = st.sampled_from([("", ""), ("^", ""), ("", "$"), ("^", "$")])
FITTED = st.lists(st.none() | st.text(st.sampled_from("abc 1é中.\nAÉ"), max_size=8), max_size=6)


def replaced(pattern: re.Pattern[str], new: str, text: str) -> str:
    """RE2's rule: an empty match directly behind another match is passed over."""
    out, place, last = "", 0, -1
    while place <= len(text):
        match = pattern.search(text, place)
        if match is None:
            break
        out += text[place : match.start()]
        if match.start() == match.end() == last:
            out += text[match.start() : match.start() + 1]
            place = match.start() + 1
            continue
        out += match.expand(new.replace(r"\0", r"\g<0>"))
        place = last = match.end()
        if match.start() == match.end():
            pass
    return out + text[place:]


@pytest.mark.promise("All else is as in Python's `re`, but", "tasks/ops/EXPRESSIONS.md#regular-expressions")
@given(PATTERNS, ENDS, FITTED, st.sampled_from(["", "-", r"<\0>"]), st.data())
def test_regular_expressions_are_those_of_python(
    engine: str, middle: str, ends: tuple[str, str], values: list[str | None], new: str, data: st.DataObject
) -> None:
    pattern = middle.join(ends)
    python = re.compile(ends[0] + middle + ("\\Z" if ends[1] else ""), re.ASCII)  # Python's $ fits before a line end
    group = data.draw(st.integers(0, min(python.groups, 8)))
    new += f"[\\{group}]" if group else ""
    s = strings(values)

    def extracted(text: str) -> str | None:
        match = python.search(text)
        return None if match is None else match[group] or ""

    assert evaluate(f"matches(s, {pattern!r})", engine, s=s) == each(lambda t: python.search(t) is not None, values)
    assert evaluate(f"regex_extract(s, {pattern!r}, {group})", engine, s=s) == each(extracted, values)
    expected = each(lambda text: replaced(python, new, text), values)
    assert evaluate(f"regex_replace(s, {pattern!r}, {new!r})", engine, s=s) == expected


@pytest.mark.promise("All else is as in Python's `re`, but")
def test_patterns_differ_from_those_of_python_where_the_page_says_so(engine: str) -> None:
    """Empty matches behind others, `$` before a line end, ASCII classes, letters of any case."""
    assert evaluate("regex_replace(s, 'a*', '-')", engine, s=["baac", "", None]) == ["-b-c-", "-", None]
    assert evaluate("matches(s, 'a$')", engine, s=["a", "a\n"]) == [True, False]
    assert evaluate(r"matches(s, r'^\s$')", engine, s=[" ", "\t", "\x0b", "\u00a0"]) == [True, True, False, False]
    assert evaluate(r"matches(s, r'^\w\d$')", engine, s=["a1", "é1", "a٣"]) == [True, False, False]
    assert evaluate("matches(s, '(?i)^straße$')", engine, s=["STRAẞE", "Straße", "STRASSE"]) == [True, True, False]


# Texts that are read.

NUMBERS = st.lists(
    st.none() | st.floats().map(repr) | st.integers().map(str) | st.text("0123456789.,+-eE '\u00a0٣_x", max_size=9),
    max_size=8,
)
SIGNS = st.sampled_from([(".", None), (",", None), (",", "."), (".", ","), (".", "'"), (",", " "), (",", "\u00a0")])


def number(text: str, decimal: str, group: str | None) -> float | None:
    digits, point = "[0-9]+", re.escape(decimal)
    if group:
        sign = re.escape(group)
        digits = f"(?:[0-9]+|[0-9]{{1,3}}(?:{sign}[0-9]{{2,3}})*{sign}[0-9]{{3}})"
    form = rf"[+-]?(?:{digits}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?"
    if not re.fullmatch(form, text.strip()):
        return None
    return float(text.strip().replace(group or decimal, "" if group else ".").replace(decimal, "."))


@given(NUMBERS, SIGNS)
def test_numbers_are_read_as_python_reads_them(
    engine: str, values: list[str | None], signs: tuple[str, str | None]
) -> None:
    text, counted = f"parse_number(s, {signs[0]!r}, {signs[1]!r})", Counter[str]()
    expected = each(lambda written: number(written, *signs), values)
    assert evaluate(text, engine, counted, s=strings(values)) == expected
    failed = sum(value is None and written is not None for written, value in zip(values, expected, strict=True))
    assert counted == ({text: failed} if failed else {})


@pytest.mark.promise("Texts of whole numbers are digits with or without a sign, `0x10` is none")
@given(
    st.lists(st.none() | st.integers(-(2**70), 2**70).map(str) | st.text("0123456789 +-._x", max_size=6), max_size=8)
)
@example(values=["0x10", "0xffffffffffffffff", "0X1F", "+5", "-0", "0" * 30 + "7"])
def test_whole_numbers_are_cast_as_python_reads_them(engine: str, values: list[str | None]) -> None:
    def whole(text: str) -> int | None:
        value = int(text) if re.fullmatch("[+-]?[0-9]+", text.strip()) else None
        return value if value is None or -(2**63) <= value < 2**63 else None

    assert evaluate("cast(s, 'int64')", engine, s=strings(values)) == each(whole, values)


FORMATS = ["%Y-%m-%d", "%d.%m.%Y %H:%M", "%m/%d/%y", "%d %b %Y", "%Y%j", "%Y-%m-%dT%H:%M:%S.%f", "%I:%M %p %d.%m.%Y",
           "%a %d %b %Y %H:%M:%S", "%H:%M:%S %d-%m-%Y %z"]  # fmt: skip
ZONES = st.sampled_from([0, 60, -90, 345]).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(1969, 1, 1), datetime(2068, 12, 31), timezones=ZONES)


@given(st.sampled_from(FORMATS), st.lists(MOMENTS, max_size=5), st.data())
def test_times_are_read_as_python_reads_them(
    engine: str, form: str, moments: list[datetime], data: st.DataObject
) -> None:
    """Also with one character changed, so that days and hours do not exist, or the text is of another format."""
    texts: list[str | None] = [None, ""]
    for moment in moments:
        text = moment.strftime(form)
        place = data.draw(st.integers(0, len(text) - 1))
        other = data.draw(st.sampled_from("0123456789.:-/T")) if text[place].isdigit() else text[place]
        texts += [text, text if "T" in form else text.lower(), f" {text} ", text[:place] + other + text[place + 1 :]]

    def read(text: str) -> datetime | None:
        try:
            moment = datetime.strptime(text.strip(), form)
        except ValueError:
            return None
        if form == "%Y%j" and moment.year != int(text.strip()[:4]):
            return None  # Python reads day 366 of a year that has 365 as the first one of the next year
        return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment

    assert evaluate(f"parse_time(s, {form!r})", engine, s=strings(texts)) == each(read, texts)


BERLIN = ZoneInfo("Europe/Berlin")
CHANGES = st.sampled_from([datetime(2020, 3, 29, 2), datetime(2020, 10, 25, 2), datetime(1999, 12, 31, 23)])
CLOCKS = st.builds(lambda change, minutes: change + timedelta(minutes=minutes), CHANGES, st.integers(-150, 150))


@given(st.lists(st.none() | CLOCKS, max_size=6))
def test_clocks_of_zones_are_those_of_python(engine: str, clocks: list[datetime | None]) -> None:
    """Also where the clock changes: of a time that it shows twice the first, of one that it skips what comes after."""

    def in_utc(clock: datetime) -> datetime:
        moment = clock.replace(tzinfo=BERLIN).astimezone(UTC)
        skipped = moment.astimezone(BERLIN).replace(tzinfo=None) != clock
        return (moment.replace(hour=1, minute=0) if skipped else moment).replace(tzinfo=None)

    texts = each(lambda clock: clock.strftime("%d.%m.%Y %H:%M"), clocks)
    expected = each(in_utc, clocks)
    assert evaluate("parse_time(s, '%d.%m.%Y %H:%M', 'Europe/Berlin')", engine, s=strings(texts)) == expected
    shown = each(lambda moment: moment.replace(tzinfo=UTC).astimezone(BERLIN).replace(tzinfo=None), expected)
    times = pa.array(expected, pa.timestamp("ms"))
    assert evaluate("local_time(t, 'Europe/Berlin')", engine, t=times) == shown


NAMES = st.text("ab é_", min_size=1, max_size=2)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
STEPS = st.lists(NAMES | st.integers(-3, 3), max_size=3)


@given(st.lists(VALUES, max_size=4), STEPS)
def test_json_is_read_as_python_reads_it(engine: str, values: list[Any], steps: list[str | int]) -> None:
    path = "$" + "".join(
        f"[{step}]" if isinstance(step, int) else f"[{json.dumps(step, ensure_ascii=False)}]" for step in steps
    )
    assert json_path(path) == tuple(steps)

    def at_end(text: str) -> str | None:
        value = json.loads(text)
        for step in steps:
            fits = isinstance(value, dict if isinstance(step, str) else list)
            try:
                value = value[step] if fits else None
            except (KeyError, IndexError):
                value = None
        if value is None or isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    texts = [None, *(json.dumps(value, ensure_ascii=bool(place % 2)) for place, value in enumerate(values))]
    assert evaluate(f"parse_json(s, {path!r})", engine, s=strings(texts)) == each(at_end, texts)


# Hashes.

SMALL = st.integers(-4, 4)
HASHED = st.one_of(
    st.tuples(st.just(pa.string()), st.lists(st.none() | TEXT, min_size=1, max_size=6)),
    st.tuples(st.just(pa.int64()), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6)),
    st.tuples(st.just(pa.float64()), st.lists(st.none() | st.floats(allow_nan=False), min_size=1, max_size=6)),
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans(), min_size=1, max_size=6)),
)


@given(HASHED, st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_a_hash_depends_on_the_value_alone(
    engine: str, typed: tuple[pa.DataType, list[Any]], seed: int, random: Any
) -> None:
    """Not on other rows, their order, on how often a value occurs, or on how wide its type is."""
    dtype, values = typed
    text = f"hash(x, {seed})"
    hashes = evaluate(text, engine, x=pa.array(values, dtype))
    assert [value is None for value in hashes] == [value is None for value in values]
    assert all(value is None or 0 <= value < 2**32 for value in hashes)
    places = [random.randrange(len(values)) for _ in range(7)]
    again = evaluate(text, engine, x=pa.array(values, dtype).take(pa.array(places)))
    assert again == [hashes[place] for place in places]
    sliced = pa.array([None, *values], dtype).slice(1)
    assert evaluate(text, engine, x=sliced) == hashes
    if pa.types.is_int64(dtype) and all(value is None or -128 <= value < 128 for value in values):
        assert evaluate(text, engine, x=pa.array(values, pa.int8())) == hashes


@examples(20)
@given(st.lists(st.none() | TEXT, min_size=1, max_size=5), st.integers(1, 9))
def test_a_hash_is_that_of_hash_bucket(engine: str, values: list[str | None], buckets: int) -> None:
    table = pa.table({"s": strings(values)})
    bucket = rows(["s"] >> ops.HashBucket(num_buckets=buckets), table, engine)["s"]
    hashed = rows(["s"] >> ops.Lambda(expression=f"hash(_) % {buckets}"), table, engine)["s"]
    known = [place for place, value in enumerate(values) if value is not None]
    assert [hashed[place] for place in known] == [bucket[place] for place in known]


# Learned values.

COUNTED = st.one_of(
    st.tuples(st.just(pa.int16()), st.lists(st.none() | st.integers(-9, 9), min_size=1, max_size=8)),
    st.tuples(st.just(pa.float64()), st.lists(st.none() | st.floats(allow_nan=False), min_size=1, max_size=8)),
    st.tuples(
        st.just(pa.timestamp("us", "Europe/Berlin")),
        st.lists(st.none() | st.datetimes(datetime(1600, 1, 1), datetime(2400, 1, 1)), min_size=1, max_size=8),
    ),
    st.tuples(st.just(pa.date32()), st.lists(st.none() | st.dates(), min_size=1, max_size=8)),
)


@examples(30)
@given(COUNTED, st.integers(1, 8), st.integers(1, 3))
def test_ends_are_learned_alike_for_any_cut(
    engine: str, typed: tuple[pa.DataType, list[Any]], block_rows: int, blocks: int
) -> None:
    dtype, values = typed
    table = pa.table({"x": pa.array(values, dtype)})
    known = pa.array([value for value in values if value is not None], dtype)
    for name in ("min", "max"):
        node, source = ["x"] >> ops.Lambda(expression=f"coalesce({name}(_), _)"), cut(table, block_rows, blocks)
        column = applied(node, source, learned(node, source, engine), engine)["x"]
        end = getattr(pc, name)(known)
        assert column.cast(dtype).combine_chunks() == pa.array([end.as_py()] * len(values), dtype)


# Lists.


def lists_of(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | st.lists(st.none() | elements, max_size=4), max_size=6)


@given(
    st.one_of(
        st.tuples(st.just(pa.string()), lists_of(TEXT)),
        st.tuples(st.just(pa.float64()), lists_of(st.floats(allow_nan=False, width=32))),
        st.tuples(st.just(pa.int16()), lists_of(SMALL)),
        st.tuples(st.just(pa.bool_()), lists_of(st.booleans())),
    ),
    SMALL,
    st.none() | SMALL,
    st.data(),
)
def test_lists_of_any_type_are_those_of_python(
    engine: str, typed: tuple[pa.DataType, list[Any]], start: int, stop: int | None, data: st.DataObject
) -> None:
    dtype, lists = typed
    v = pa.array([[], *lists], pa.list_(dtype)).slice(1)
    assert evaluate("len(v)", engine, v=v) == each(len, lists)
    assert evaluate(f"slice(v, {start}, {stop})", engine, v=v) == each(lambda one: one[start:stop], lists)
    inside = each(lambda one: one[start] if -len(one) <= start < len(one) else None, lists)
    assert evaluate(f"get(v, {start})", engine, v=v) == inside
    flat = [value for one in lists for value in one or () if value is not None]
    wanted = data.draw(st.sampled_from(flat)) if flat else {"string": "a", "bool": True}.get(str(dtype), 1)
    if not (isinstance(wanted, float) and math.isinf(wanted)):  # a literal that does not exist
        assert evaluate(f"contains(v, {wanted!r})", engine, v=v) == each(lambda one: wanted in one, lists)
    if dtype != pa.string():
        add = math.fsum if pa.types.is_floating(dtype) else sum

        def total(one: list[Any]) -> Any:
            known = [value for value in one if value is not None]
            return None if {math.inf, -math.inf} <= {*known} else add(known)

        assert evaluate("sum(v)", engine, v=v) == each(total, lists)


# Choices.

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), SMALL),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), st.text("aÄ é", max_size=2)),
    "time": (pa.timestamp("us"), st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1))),
    "bool": (pa.bool_(), st.booleans()),
}


def truth(value: bool | None) -> bool:
    return value is True


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_choices_of_any_type_are_those_of_python(engine: str, kind: str, data: st.DataObject) -> None:
    dtype, values = KINDS[kind]
    row = st.tuples(*[st.none() | st.booleans()] * 2, *[st.none() | values] * 3)
    table = data.draw(st.lists(row, min_size=1, max_size=6))
    p, q, x, y, z = map(list, zip(*table, strict=True))
    columns = {
        name: pa.array(column, pa.bool_() if name in "pq" else dtype)
        for name, column in zip("pqxyz", (p, q, x, y, z), strict=True)
    }

    def answers(text: str, rule: Callable[..., Any]) -> None:
        assert evaluate(text, engine, **columns) == [rule(*one) for one in table], text

    answers("where(p, x, y)", lambda p, q, x, y, z: None if p is None else x if p else y)
    answers("coalesce(x, y, z)", lambda p, q, x, y, z: next((v for v in (x, y, z) if v is not None), None))
    answers("case(p, x, q, y, z)", lambda p, q, x, y, z: x if truth(p) else y if truth(q) else z)
    answers("case(p, x, q, y)", lambda p, q, x, y, z: x if truth(p) else y if truth(q) else None)
    answers("is_null(x)", lambda p, q, x, y, z: x is None)
    if kind != "bool":
        answers("between(x, y, z)", lambda p, q, x, y, z: both(below(y, x), below(x, z)))
    if kind in ("int", "float", "time"):
        for name, choose in (("least", min), ("greatest", max)):
            answers(
                f"{name}(x, y, z)",
                lambda p, q, x, y, z, choose=choose: choose((v for v in (x, y, z) if v is not None), default=None),
            )


def below(a: Any, b: Any) -> bool | None:
    return None if a is None or b is None else a <= b


def both(a: bool | None, b: bool | None) -> bool | None:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True
