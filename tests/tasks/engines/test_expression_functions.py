"""The functions of expressions: the examples of their declarations, their edges, their rule in plain Python."""

from __future__ import annotations

import pickle
from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import ops
from tasks.core.schema import Column, Schema
from tasks.dataset import Dataset
from tasks.engines.expression import interpreter as evaluation
from tasks.engines.expression import text_functions
from tasks.engines.expression.functions import FUNCTIONS
from tasks.engines.expression.syntax import parse
from tasks.engines.expression.typing import dtype_of
from tasks.errors import DataError, JobError
from tasks.ops.base import make_operator
from tasks.workflow import Workflow
from tests.frames import make_column, to_arrow
from tests.learning import fitted, rows

SMALL = st.integers(-4, 4)
EXAMPLES = [(name, *example) for name, f in FUNCTIONS.items() if f.runs != "learned" for example in f.examples]


def evaluate(text: str, engine: str, failed: Counter[str] | None = None, **columns: Any) -> list[Any]:
    """The result as a list; that its type is the promised one is checked on the way."""
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    schema = Schema(Column(name, array.type) for name, array in arrays.items())
    frame = {name: make_column(array, engine=engine) for name, array in arrays.items()}
    expression = parse(text)
    result = to_arrow(evaluation.evaluate(expression, frame, schema, failed))
    promised = dtype_of(expression, schema)
    if engine == "cudf" and (pa.types.is_date32(promised) or pa.types.is_list(promised)):
        result = result.cast(promised)
    assert result.type == promised or (engine == "cudf" and pa.types.is_large_string(result.type))
    return result.to_pylist()


@pytest.mark.promise("Results are equal, on CPU and GPU", "tasks/ops/EXPRESSIONS.md#on-cpu-and-gpu")
@pytest.mark.promise("The examples run as tests on both engines", "tasks/ops/EXPRESSIONS.md#functions")
@pytest.mark.parametrize(("name", "text", "columns", "expected"), EXAMPLES, ids=[example[1] for example in EXAMPLES])
def test_the_examples_of_the_page(name: str, text: str, columns: Any, expected: list[Any], engine: str) -> None:
    assert name in text
    found = evaluate(text, engine, **columns)
    close = [pytest.approx(v, abs=1e-15) if isinstance(v, float) else v for v in expected]
    assert found == close


@pytest.mark.promise("A `cast`, `parse_number`, `parse_time` or `parse_json` that cannot read a value gives null")
@pytest.mark.promise("What `coalesce`, `where`, `case`, `or` or `is None` answer for is not counted")
@pytest.mark.parametrize(
    ("text", "values", "expected", "failed"),
    [
        ("parse_number(x)", ["1.5", "1,5", "NA", "", "inf", "nan", "0x10", None], [1.5] + [None] * 7, 6),
        ("coalesce(parse_number(x), parse_number(x, ','), 0)", ["1.5", "1,5", "NA"], [1.5, 1.5, 0.0], 0),
        ("parse_number(x) > 1", ["2", "two"], [True, None], 1),
        ("parse_time(x, '%d/%m/%Y') is None", ["1/2/2020", "x"], [False, True], 0),
        ("coalesce(parse_json(x, 'a'), 'none')", ['{"a": "b"}', "{", None], ["b", "none", "none"], 0),
        ("parse_json(x, 'a') == 'b' or x == '{'", ['{"a": "b"}', "{", "]"], [True, True, None], 1),
        ("case(parse_number(x) > 1, 'many', 'few')", ["2", "two", None], ["many", "few", "few"], 0),
        ("case(parse_number(x) > 1, 'many')", ["2", "two", None], ["many", None, None], 1),
        ("where(x == '', parse_number(x), 0)", ["", "two", None], [None, 0.0, None], 1),
        ("(parse_number(x) > 1 or x == 'two') and parse_json(x, 'a') == 'b'", ["two", "{}"], [None, None], 2),
        ("(parse_number(x) > 1 or x == '{}') and parse_json(x, 'a') == 'b'", ["{}"], [None], 0),
        ("least(parse_number(x), 5) + len(parse_json(x, 'a'))", ["{}"], [None], 0),
        ("len(case(parse_number(x) > 1, 'many', 'few') + parse_json(x, 'a'))", ["{}"], [None], 0),
        ("hash(parse_json(x, 'a')) < 0", ["{}", "{"], [None, None], 1),
        ("epoch(parse_time(x, '%Y'))", [], None, 0),
        ("epoch(parse_time(x, '%Y-%m-%d'))", ["1970-01-02", "1970-13-02", None], [86400, None, None], 1),
        ("parse_json(x, 'a')", ['{"a": 1}', "[1]", '{"a": NaN}', '{"a": "\\ud800"}', ""], ["1"] + [None] * 4, 3),
    ],
)
def test_texts_that_cannot_be_read_are_counted(
    text: str, values: list[Any], expected: list[Any] | None, failed: int, engine: str
) -> None:
    if expected is None:
        with pytest.raises(JobError, match="a time needs a year, a month and a day"):
            evaluate(text, engine, x=pa.array(values, pa.string()))
        return
    counted = Counter[str]()
    assert evaluate(text, engine, counted, x=pa.array(values, pa.string())) == expected
    assert counted == ({text: failed} if failed else {})


@pytest.mark.promise("the first such value is an error that names it, its column, its file and its row there")
@pytest.mark.parametrize(
    ("expression", "table", "what"),
    [
        ("cast(_, 'int8')", [1, None, 300], "cast(_, 'int8') cannot read 300 of column '_' in row 2 of the source"),
        (
            "parse_number(_) + 1",
            ["1", "x", "y"],
            "parse_number(_) cannot read 'x' of column '_' in row 1 of the source",
        ),
        (
            "cast(_, 'timestamp[ns]')",
            pa.array([0, 40_000_000_000_000_000], pa.timestamp("us")),
            "cast(_, 'timestamp[ns]') cannot read 3237-07-19 23:06:40.000000 of column '_' in row 1 of the source",
        ),
        ("parse_json(_, 'a')", ["{}", "{"], "parse_json(_, 'a') cannot read '{' of column '_' in row 1 of the source"),
    ],
)
def test_strict_expressions_name_value_column_and_row(
    expression: str, table: list[Any], what: str, engine: str
) -> None:
    op = ops.Lambda(expression=expression, strict=True)
    with pytest.raises(DataError) as told:
        rows(["x"] >> op, {"x": table}, engine)
    assert told.value.what == what
    assert "Lambda of 'x'" in told.value.where
    assert "row(s) here have such a value" in told.value.why
    assert rows(["x"] >> ops.Lambda(expression=f"coalesce({expression}, {expression})"), {"x": table}, engine)
    named = expression.replace("_)", "x)").replace("_,", "x,")
    with pytest.raises(DataError, match="in row"):
        rows(["x"] >> ops.Filter(f"({named}) == ({named})", strict=True), {"x": table}, engine)


PATTERNS = [
    ("a(?=b)", "invalid perl operator"), ("(a", "missing )"), (r"(a)\1", "invalid escape sequence"),
    ("(?<!a)b", "invalid perl operator"), ("a{2000}", "invalid repetition size"),
    (r"\Qa", r"\Q has no \E"), ("[ab]{1000}" * 8, "a pattern that stands for 32,048 characters: at most 5,000"),
]  # fmt: skip


@pytest.mark.promise("Patterns are those of RE2, on both engines")
@pytest.mark.parametrize(("pattern", "why"), PATTERNS)
def test_patterns_are_those_of_re2(pattern: str, why: str) -> None:
    for name, more in (("matches", ""), ("regex_extract", ""), ("regex_replace", ", ''")):
        with pytest.raises(JobError) as told:
            dtype_of(parse(f"{name}(s, r'{pattern}'{more})"), Schema([Column("s", pa.string())]))
        assert why in told.value.what
        shown, caret = told.value.where.splitlines()
        assert shown[caret.index("^") - len("  where: ") :].startswith("r'")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("strip", (None,)), ("replace", ("a", "b")), ("substring", (0, 2)), ("split_part", (".", -1)),
        ("endswith", ("b",)), ("matches", ("^a",)), ("regex_extract", ("[0-9]+", 0)), ("regex_replace", ("a", "z")),
        ("parse_time", (None, "UTC")), ("parse_number", (",", ".")), ("parse_json", (("a", 1, "b"),)),
    ],
)  # fmt: skip
def test_texts_of_a_gpu_of_more_than_two_gigabytes_are_read_as_others(name: str, parameters: tuple[Any, ...]) -> None:
    """They come as large_string."""
    texts = ["12,5", " a.b ", "2020-01-01", None, '{"a": [1, {"b": "x"}]}', "é-ü"]
    (large, gone), (small, unread) = (
        text_functions.apply(name, pa.array(texts, dtype), parameters) for dtype in (pa.large_string(), pa.string())
    )
    assert large.to_pylist() == small.to_pylist()
    assert (None if gone is None else gone.tolist()) == (None if unread is None else unread.tolist())


ARGUMENTS = [
    ("split(s, '')", "separator cannot be used: it is empty", "''", "substring(x, 0, 1)"),
    ("strip(s, 1)", "characters is a literal text", "1", "write it in quotes"),
    ("substring(s, 0, 0.5)", "stop is a literal whole number from -2147483647 to 2147483647", "0.5", ""),
    ("get(v, None)", "index is a literal whole number from -2147483647 to 2147483647", "None", ""),
    ("hash(x, -1)", "seed is a literal whole number from 0 to 4294967295", "-1", ""),
    ("hash(v)", "hash needs a column of numbers, texts, booleans or times, this is list<item: int64>", "v", ""),
    ("len(x)", "len needs a column of strings, this is int64", "x", "cast(x, 'string')"),
    ("parse_number(x)", "parse_number needs a column of strings, this is int64", "x", "leave parse_number out"),
    ("hour(s)", "hour needs a column of times, this is string", "s", "parse_time(x, '%d.%m.%Y')"),
    ("parse_number(s, group='. ')", "group cannot be used: '. ' is not a sign for numbers", "'. '", "such as ','"),
    (
        "parse_time(s, zone='Berlin')",
        "zone cannot be used: there is no time zone 'Berlin'",
        "'Berlin'",
        "Europe/Berlin",
    ),
    ("parse_json(s, 'a[')", "path cannot be used: it cannot be read from '[' on", "'a['", "places as [0]"),
    ("epoch(t, 'hour')", "unit cannot be used: there is no unit 'hour'", "'hour'", "ms"),
    ("floor_time(d, '36 hours')", "a date has no part of '36 hours'", "'36 hours'", "a number of days"),
]


@pytest.mark.parametrize(("text", "what", "place", "do"), ARGUMENTS, ids=[text for text, *_ in ARGUMENTS])
def test_an_argument_of_another_kind_is_refused_at_its_place(text: str, what: str, place: str, do: str) -> None:
    types = {"x": pa.int64(), "s": pa.string(), "v": pa.list_(pa.int64()), "t": pa.timestamp("us"), "d": pa.date32()}
    with pytest.raises(JobError) as caught:
        dtype_of(parse(text), Schema(Column(name, dtype) for name, dtype in types.items()))
    assert caught.value.what == f"expression: {what}"
    shown, caret = caught.value.where.splitlines()
    start = caret.index("^") - len("  where: ")
    assert shown[start : start + caret.count("^")] == place
    assert do in caught.value.do


@pytest.mark.promise("values are learned from the rows that are left, so these must be known before")
@pytest.mark.parametrize("text", ["x > mean(x)", "coalesce(x, 0) < quantile(x, 0.99)"])
def test_learned_values_are_refused_where_rows_are_left_out(text: str) -> None:
    with pytest.raises(JobError, match="is a learned value, which cannot stand here") as told:
        ops.Filter(text)
    assert "values are learned from the rows that are left" in told.value.why
    assert "with Lambda, and filter by that column" in told.value.do


LEARNED = [(*example,) for f in FUNCTIONS.values() if f.runs == "learned" for example in f.examples]


@pytest.mark.parametrize(("text", "columns", "expected"), LEARNED, ids=[example[0] for example in LEARNED])
def test_learned_values_are_of_all_rows(
    text: str, columns: Any, expected: list[Any], engine: str, tmp_path: Path
) -> None:
    """Learned once, saved, and applied to other data."""
    (name,) = columns
    workflow = fitted([name] >> ops.Lambda(expression=text, name="y"), pa.table(columns), engine)
    assert workflow.transform(pa.table(columns)).to_pydict() == {"y": expected}
    workflow.save(tmp_path / "w")
    loaded = Workflow.load(tmp_path / "w")
    for row, value in zip(columns[name], expected, strict=True):
        one = pa.table({name: pa.array([row], pa.table(columns)[name].type)})
        assert loaded.transform(one).to_pydict() == {"y": [value]}


def test_a_filter_by_a_learned_value_goes_through_a_column(engine: str) -> None:
    node = ["x"] >> ops.Lambda(expression="_ <= quantile(_, 0.75)", name="usual") >> ops.Filter("usual")
    assert rows(node, {"x": [1, 2, 3, 4, 1000]}, engine) == {"usual": [True] * 4}


def test_a_refit_merges_learned_values_and_freezes_quantiles(engine: str) -> None:
    first, second = [1.0, 2.0, None, 9.0], [-4.0, 5.0]
    for text, merged in (
        ("min(_) + max(_) + 0 * _", True), ("(_ - mean(_)) / std(_)", True), ("_ > quantile(_, 0.5)", False)
    ):  # fmt: skip
        node = ["x"] >> ops.Lambda(expression=text)
        workflow = Workflow(node).fit(Dataset(pa.table({"x": first}), engine=engine))
        before = workflow.transform(pa.table({"x": second})).to_pydict()["x"]
        workflow.refit(Dataset(pa.table({"x": second}), engine=engine))
        whole = Workflow(node).fit(Dataset(pa.table({"x": first + second}), engine=engine))
        expected = whole.transform(pa.table({"x": second})).to_pydict()["x"] if merged else before
        assert workflow.transform(pa.table({"x": second})).to_pydict()["x"] == pytest.approx(expected, rel=1e-12)


FAR = 2**62 // 10**6  # seconds; beyond the years that texts have
ENDS = [
    (pa.timestamp("us"), [datetime(2020, 1, 2), None, datetime(2020, 1, 1, 0, 0, 0, 1)], 86399.999999),
    (pa.timestamp("ns", "Europe/Berlin"), [datetime(2020, 1, 2), None, datetime(2020, 1, 1, 12)], 43200.0),
    (pa.timestamp("s"), [pa.scalar(FAR, pa.int64()).cast(pa.timestamp("s")), None, datetime(1970, 1, 1)], float(FAR)),
    (pa.date32(), [date(2020, 1, 2), None, date(1969, 12, 31)], 18264 * 86400.0),
]


@pytest.mark.promise("`min` and `max` take times and dates, too: `t - min(t)` are the seconds since the first one")
@pytest.mark.parametrize(("dtype", "times", "seconds"), ENDS, ids=[str(end[0]) for end in ENDS])
def test_first_and_last_times_are_learned_saved_and_merged(
    dtype: pa.DataType, times: list[Any], seconds: float, engine: str, tmp_path: Path
) -> None:
    last, first = (pa.table({"t": pa.array(part, dtype)}) for part in (times[:2], times[2:]))
    named = {"since": "_ - min(t)", "left": "max(_) - t", "filled": "coalesce(t, min(t))"}
    nodes = [["t"] >> ops.Lambda(expression=text, name=name) for name, text in named.items()]
    workflow = Workflow(nodes[0] + nodes[1] + nodes[2]).fit(Dataset(last, engine=engine))
    assert workflow.transform(first).select(["since", "left"]).to_pydict() == {"since": [-seconds], "left": [seconds]}
    workflow.refit(Dataset(first, engine=engine))
    workflow.save(tmp_path / "w")
    loaded = Workflow.load(tmp_path / "w").transform(last)
    assert loaded.select(["since", "left"]).to_pydict() == {"since": [seconds, None], "left": [0.0, None]}
    filled = loaded["filled"].cast(dtype).combine_chunks()  # seconds are written as milliseconds
    assert filled == pa.array([times[0], times[2]], dtype)


@pytest.mark.promise("Mean, standard deviation and quantile are of numbers", "tasks/ops/EXPRESSIONS.md#learned-values")
@pytest.mark.parametrize("name", ["mean(_)", "std(_)", "quantile(_, 0.5)"])
def test_a_mean_of_times_is_learned_from_their_seconds(name: str, engine: str) -> None:
    table = {"t": [datetime(2020, 1, 1), datetime(2020, 1, 2)]}
    with pytest.raises(JobError, match=r"learns from a column of numbers, this is timestamp\[us\]") as told:
        rows(["t"] >> ops.Lambda(expression=f"_ - {name}"), table, engine)
    assert 'Lambda(expression="epoch(_)")' in told.value.do
    with pytest.raises(JobError, match="min learns from a column of numbers or times, this is string"):
        rows(["s"] >> ops.Lambda(expression="min(s)"), {"s": ["a"]}, engine)
    node = ["t"] >> ops.Lambda(expression="epoch(_)") >> ops.Lambda(expression=f"_ > {name}")
    assert rows(node, table, engine) == {"t": [name == "std(_)", True]}


def test_a_learned_lambda_is_a_value() -> None:
    op = ops.Lambda(expression="_ - mean(_)", name="y", strict=True)
    assert pickle.loads(pickle.dumps(op)) == op  # noqa: S301
    assert op.to_json() == {"op": "Lambda", "expression": "_ - mean(_)", "name": "y", "strict": True}
    assert make_operator(op.to_json()) == op
    with pytest.raises(JobError, match="mean learns from one column"):
        ops.Lambda(expression="mean(_ + 1)")


SPAN = st.integers(-(2**35), 2**35)


@given(st.lists(st.none() | SPAN, max_size=8))
def test_parts_and_floors_of_times_are_those_of_python(engine: str, ticks: list[int | None]) -> None:
    real = [t if t is None else datetime(1970, 1, 1) + timedelta(seconds=t) for t in ticks]
    times = pa.array(real, pa.timestamp("s"))
    for name, rule in (
        ("year", lambda t: t.year), ("month", lambda t: t.month), ("day", lambda t: t.day), ("hour", lambda t: t.hour),
        ("weekday", lambda t: t.weekday()), ("dayofyear", lambda t: t.timetuple().tm_yday),
        ("second", lambda t: t.second),
    ):  # fmt: skip
        assert evaluate(f"{name}(t)", engine, t=times) == [t and rule(t) for t in real]
    assert evaluate("floor_time(t, 'month')", engine, t=times) == [
        t and t.replace(day=1, hour=0, minute=0, second=0) for t in real
    ]


@given(st.lists(st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=4), max_size=6), SMALL, st.none() | SMALL)
def test_list_functions_are_those_of_python(engine: str, lists: Any, start: int, stop: int | None) -> None:
    v = pa.array(lists, pa.list_(pa.int64()))
    assert evaluate(f"slice(v, {start}, {stop})", engine, v=v) == [x if x is None else x[start:stop] for x in lists]
    inside = [None if x is None or not -len(x) <= start < len(x) else x[start] for x in lists]
    assert evaluate(f"get(v, {start})", engine, v=v) == inside
    assert evaluate(f"contains(v, {start})", engine, v=v) == [x if x is None else start in x for x in lists]
    assert evaluate("sum(v)", engine, v=v) == [x if x is None else sum(i or 0 for i in x) for x in lists]


@given(st.lists(st.tuples(st.none() | SMALL, st.none() | SMALL), min_size=1, max_size=8))
def test_choices_are_those_of_python(engine: str, pairs: list[tuple[int | None, int | None]]) -> None:
    x, y = (pa.array([pair[side] for pair in pairs], pa.int64()) for side in (0, 1))
    first = [next((v for v in pair if v is not None), 7) for pair in pairs]
    assert evaluate("coalesce(x, y, 7)", engine, x=x, y=y) == first
    least = [min((v for v in pair if v is not None), default=None) for pair in pairs]
    assert evaluate("least(x, y)", engine, x=x, y=y) == least
    chosen = ["a" if a is not None and a > 0 else "b" if b is not None and b > 0 else None for a, b in pairs]
    assert evaluate("case(x > 0, 'a', y > 0, 'b')", engine, x=x, y=y) == chosen


def test_a_number_among_dates_counts_days(engine: str) -> None:
    d = pa.array([date(2020, 1, 1), None])
    assert evaluate("coalesce(d, 1)", engine, d=d) == [date(2020, 1, 1), date(1970, 1, 2)]


def test_times_apart_are_seconds(engine: str) -> None:
    t = pa.array([datetime(2020, 1, 2), None, datetime(2019, 12, 31, 23, 59, 59, 500000)], pa.timestamp("us"))
    assert evaluate("t - '2020-01-01'", engine, t=t) == [86400.0, None, -0.5]
    assert evaluate("t - u", engine, t=t, u=t.cast(pa.timestamp("ms"))) == [0.0, None, 0.0]
