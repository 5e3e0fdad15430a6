"""The expression language: facts in, facts out; its rule in plain Python beside it; errors that show the place."""

from __future__ import annotations

import datetime
import decimal
import gc
import math
import pickle
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.schema import Column, Schema
from tasks.engines.convert.gpu_types import lacks_zone
from tasks.engines.expression import interpreter as evaluation
from tasks.engines.expression.interpreter import filter_mask, list_types
from tasks.engines.expression.syntax import Expression, parse
from tasks.engines.expression.typing import dtype_of
from tasks.errors import DataError, JobError
from tests.frames import make_column, to_arrow, to_list

INF = math.inf


def evaluate(text: str, engine: str, **columns: object) -> list[object]:
    """The result as a list; that its type is the promised one is checked on the way."""
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    schema = Schema(Column(name, array.type) for name, array in arrays.items())
    frame = {name: make_column(array, engine=engine) for name, array in arrays.items()}
    expression = parse(text)
    result = to_arrow(evaluation.evaluate(expression, frame, schema))
    promised = dtype_of(expression, schema)
    if engine == "cudf" and pa.types.is_date32(promised):
        result = result.cast(pa.date32())
    if engine == "cudf" and lacks_zone(promised):  # integers that a mark tells apart
        result = result.view(promised)
    assert result.type == promised or (engine == "cudf" and pa.types.is_large_string(result.type))
    return result.to_pylist()


def typed(values: list[object], dtype: str) -> pa.Array:
    return pa.array(values, pa.type_for_alias(dtype))


NUMBERS = [
    ("x + 1", [8, None, -6], "int64"),
    ("x * 2 - 1", [13, None, -15], "int64"),
    ("-x", [-7, None, 7], "int64"),
    ("x / 2", [3.5, None, -3.5], "double"),
    ("x // 2", [3, None, -4], "int64"),
    ("x % 3", [1, None, 2], "int64"),
    ("x % -3", [-2, None, -1], "int64"),
    ("x // 0", [None, None, None], "int64"),
    ("x % 0", [None, None, None], "int64"),
    ("x // -1", [-7, None, 7], "int64"),
    ("x / 0", [INF, None, -INF], "double"),
    ("(x - 7) / 0", [None, None, -INF], "double"),
    ("x // 2.0", [3.0, None, -4.0], "double"),
    ("x % 2.5", [2.0, None, 0.5], "double"),
    ("x % 0.0", [None, None, None], "double"),
    ("abs(x)", [7, None, 7], "int64"),
    ("abs(x) + 0.5", [7.5, None, 7.5], "double"),
    ("sqrt(x + 2)", [3.0, None, None], "double"),
    ("log(x - x)", [-INF, None, -INF], "double"),
    ("exp(x - x)", [1.0, None, 1.0], "double"),
    ("round(x / 2)", [4.0, None, -4.0], "double"),
    ("round(x / 8, 1)", [0.9, None, -0.9], "double"),
    ("round(x)", [7, None, -7], "int32"),
    ("x", [7, None, -7], "int32"),
    ("where(x > 0, x, 0)", [7, None, 0], "int32"),
    ("where(x > 0, x, 0.5)", [7.0, None, 0.5], "double"),
    ("where(x is None, -1, x)", [7, -1, -7], "int32"),
    ("where(x > 0, x, None)", [7, None, None], "int32"),
    ("where(x > 0, 1, 0)", [1, None, 0], "int64"),
    ('cast(x, "int8")', [7, None, -7], "int8"),
    ('cast(x, "uint8")', [7, None, None], "uint8"),
    ('cast(x * 100, "int8")', [None, None, None], "int8"),
    ('cast(x / 2, "int64")', [3, None, -3], "int64"),
    ('cast(x / 0, "int64")', [None, None, None], "int64"),
    ('cast(x / 2, "float32")', [3.5, None, -3.5], "float"),
    ('cast(x, "bool")', [True, None, True], "bool"),
    ('cast(x, "string")', ["7", None, "-7"], "string"),
    ('cast(x, "timestamp[s]") > "1970-01-01"', [True, None, False], "bool"),
]


@pytest.mark.promise("The type of the result is known from the schema alone", "tasks/ops/EXPRESSIONS.md#types")
@pytest.mark.parametrize(("text", "expected", "dtype"), NUMBERS)
def test_numbers(text, expected, dtype, engine):
    assert evaluate(text, engine, x=typed([7, None, -7], "int32")) == expected
    assert dtype_of(parse(text), Schema([Column("x", pa.int32())])) == pa.type_for_alias(dtype)


TRUTH = [
    ("x > 1", [False, True, None]),
    ("1 < x <= 2", [False, True, None]),
    ("x == 1 or b", [True, None, True]),
    ("x == 2 and b", [False, None, None]),
    ("not b", [True, None, False]),
    ("b or True", [True, True, True]),
    ("b and False", [False, False, False]),
    ("x in [2, 3]", [False, True, None]),
    ("x in [1.5, 2.0]", [False, True, None]),
    ("x not in (1, 9, 8, 7, 6, 5, 4, 3, 10, 11)", [False, True, None]),
    ("x in []", [False, False, None]),
    ("x is None", [False, False, True]),
    ("x is not None", [True, True, False]),
    ("b is None or x is None", [False, True, True]),
    ("b == False", [True, None, False]),
    ("b + b == 2", [False, None, True]),
    ("(x > 1) != (x > 0)", [True, False, None]),
    ("2 >= x", [True, True, None]),
]


@pytest.mark.promise(
    "comparisons, `in` and `is`, which chain (`1 < x < 3` is `1 < x and x < 3`)",
    "tasks/ops/EXPRESSIONS.md#precedence",
)
@pytest.mark.parametrize(("text", "expected"), TRUTH)
def test_truth_has_three_values(text, expected, engine):
    assert evaluate(text, engine, x=pa.array([1, 2, None]), b=pa.array([False, None, True])) == expected


STRINGS = [
    ('s == "Ab"', [True, False, None, False]),
    ('s != "Ab"', [False, True, None, True]),
    ('s < "b"', [True, False, None, True]),
    ('"b" > s', [True, False, None, True]),
    ("s <= s", [True, True, None, True]),
    ('s in ["Ab", ""]', [True, False, None, True]),
    ('s not in ["Ab"]', [False, True, None, True]),
    ("s in []", [False, False, None, False]),
    ("s is None", [False, False, True, False]),
    ("lower(s)", ["ab", "über.", None, ""]),
    ("upper(s)", ["AB", "ÜBER.", None, ""]),
    ("length(s)", [2, 5, None, 0]),
    ('contains(s, ".")', [False, True, None, False]),
    ('contains(s, "")', [True, True, None, True]),
    ('startswith(s, "Üb")', [False, True, None, False]),
    ('startswith(s, "")', [True, True, None, True]),
    ('s + "!"', ["Ab!", "Über.!", None, "!"]),
    ('"<" + s + s', ["<AbAb", "<Über.Über.", None, "<"]),
    ('where(length(s) > 2, s, "short")', ["short", "Über.", None, "short"]),
    ("where(s is None, None, s)", ["Ab", "Über.", None, ""]),
    ('where(s is None, "none", s)', ["Ab", "Über.", "none", ""]),
    ('where(s == "Ab", "yes", "no")', ["yes", "no", None, "no"]),
    ('cast(s, "int64")', [None, None, None, None]),
]


@pytest.mark.parametrize(("text", "expected"), STRINGS)
def test_strings(text, expected, engine):
    assert evaluate(text, engine, s=pa.array(["Ab", "Über.", None, ""])) == expected


def test_letters_within_ascii(engine):
    assert evaluate("lower(s)", engine, s=pa.array(["Ab", None])) == ["ab", None]
    assert evaluate("upper(s)", engine, s=pa.array(["Ab", None])) == ["AB", None]


MOMENTS = pa.array([0, 1_577_836_800_000_000, None, -1], pa.timestamp("us"))
TIMES = [
    ('t >= "2020-01-01"', [False, True, None, False]),
    ('t == "2020-01-01T01:00:00+01:00"', [False, True, None, False]),
    ('t < "1970-01-01T00:00:00.000001"', [True, False, None, True]),
    ('"1969-12-31" < t < "1970-01-02"', [True, False, None, True]),
    ('t in ["1970-01-01", "2020-01-01"]', [True, True, None, False]),
    ("t is None", [False, False, True, False]),
    ('cast(t, "int64")', [0, 1_577_836_800_000_000, None, -1]),
    ('cast(cast(t, "timestamp[s]"), "int64")', [0, 1_577_836_800, None, -1]),
    ('cast(t, "timestamp[ns]") == t', [True, True, None, True]),
    ('cast(t, "date32") == "2020-01-01"', [False, True, None, False]),
    ('cast(cast(t, "date32"), "int64")', [0, 18262, None, -1]),
    ('cast(t, "date32") < t', [False, False, None, True]),
    ('cast(cast(t, "timestamp[s]"), "string")',
     ["1970-01-01 00:00:00", "2020-01-01 00:00:00", None, "1969-12-31 23:59:59"]),
    ('cast(where(t < "1970-01-01", "2000-01-01", t), "date32") > "1999-12-31"', [False, True, None, True]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TIMES)
def test_times(text, expected, engine):
    assert evaluate(text, engine, t=MOMENTS) == expected


FINE = pa.array([1, 2, None, -1, 1_577_836_800_000_000_001], pa.timestamp("ns"))
FINE_TIMES = [
    ('t >= "1970-01-01T00:00:00.000000002"', [False, True, None, False, True]),
    ('t < "1970-01-01T00:00:00.000000002"', [True, False, None, True, False]),
    ('t == "1970-01-01T01:00:00.000000002+01:00"', [False, True, None, False, False]),
    ('t in ["1970-01-01T00:00:00.000000001", "1969-12-31T23:59:59.999999999"]', [True, False, None, True, False]),
    ('"2020-01-01" < t < "2020-01-01T00:00:00.000000002"', [False, False, None, False, True]),
    ('t - "1970-01-01T00:00:00.000000001"', [0.0, 1e-9, None, -2e-9, 1_577_836_800.0]),
    ('coalesce(t, "1970-01-01T00:00:00.000000009") == "1970-01-01T00:00:00.000000009"',
     [False, False, True, False, False]),
    ('t < "2300-01-01"', [True, True, None, True, True]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FINE_TIMES)
def test_times_of_nanoseconds(text, expected, engine):
    assert evaluate(text, engine, t=FINE) == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_moment_of_nanoseconds_is_between_those_of_coarser_units(unit, engine):
    far = 2**62
    times = pa.array([0, 1, -far, far], pa.timestamp(unit))
    assert evaluate('t > "1970-01-01T00:00:00.000000001"', engine, t=times) == [False, True, False, True]
    assert evaluate('t == "1970-01-01T00:00:00.000000001"', engine, t=times) == [False] * 4


def test_times_out_of_range_compare_rightly(engine):
    far = pa.array([2**62, -(2**62)], pa.timestamp("us"))
    near = pa.array([0, 0], pa.timestamp("ns"))
    assert evaluate("far > near", engine, far=far, near=near) == [True, False]
    assert evaluate('cast(far, "timestamp[ns]") is None', engine, far=far) == [True, True]


def test_dates(engine):
    days = pa.array([datetime.date(2020, 1, 1), None, datetime.date(1969, 12, 31)])
    assert evaluate('d >= "2020-01-01"', engine, d=days) == [True, None, False]
    assert evaluate('cast(d, "int64")', engine, d=days) == [18262, None, -1]
    assert evaluate("d", engine, d=days) == [datetime.date(2020, 1, 1), None, datetime.date(1969, 12, 31)]


def test_zones_compare_as_moments(engine):
    zoned = pa.array([0, 3_600_000_000], pa.timestamp("us", "Europe/Berlin"))
    assert evaluate('t > "1970-01-01"', engine, t=zoned) == [False, True]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int64", [12, None, -3, None, None, 9223372036854775807]),
        ("float64", [12.0, 0.5, -3.0, None, None, 9.223372036854775807e18]),
        ("bool", [None, None, None, None, None, None]),
    ],
)
def test_texts_as_numbers(dtype, expected, engine):
    texts = pa.array(["12", "0.5", " -3", "x", None, "9223372036854775807"])
    assert evaluate(f'cast(s, "{dtype}")', engine, s=texts) == expected


def test_texts_as_times(engine):
    texts = pa.array(["2020-01-01 00:00:00 UTC", "2020-02-30", None, "2020-01-01T00:00:00Z", "1970-01-01"])
    assert evaluate('cast(cast(s, "timestamp[us]"), "int64")', engine, s=texts) == [
        1_577_836_800_000_000, None, None, 1_577_836_800_000_000, 0,
    ]  # fmt: skip


OFFSETS = [
    "2020-01-01T00:00:00+02:00", "2020-01-01 00:00:00-0530", "2020-01-01T00:00:00.25 +02", "2020-01-01", None,
    "2020-01-01T00:00+02:00", "2020-01-01T00:00:00Z", "1 o'clock+02:00", "2020-01-01T00:00:00+25:00",
]  # fmt: skip
SINCE_2020 = [-7200.0, 19800.0, -7199.75, 0.0, None, -7200.0, 0.0, None, None]  # seconds since 2020


@pytest.mark.parametrize("dtype", ["timestamp[us]", "timestamp[us, tz=Europe/Berlin]", "timestamp[ns, tz=+05:30]"])
def test_texts_with_offsets_are_times_in_utc(dtype, engine):
    found = evaluate(f'cast(s, "{dtype}")', engine, s=pa.array(OFFSETS))
    since = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    zoned = [t and (t if t.tzinfo else t.replace(tzinfo=datetime.UTC)) for t in found]
    assert [t and (t - since).total_seconds() for t in zoned] == SINCE_2020
    assert evaluate('t == "2020-01-01T02:00:00+02:00"', engine, t=pa.array([since])) == [True]


def test_unsigned_64_bits_are_whole(engine):
    u = pa.array([2**64 - 1, 5, None], pa.uint64())
    assert evaluate("u > 5", engine, u=u) == [True, False, None]
    assert evaluate("u // 2 + 1", engine, u=u) == [2**63, 3, None]
    assert evaluate("u in [18446744073709551615]", engine, u=u) == [True, False, None]
    assert evaluate('cast(u, "int64")', engine, u=u) == [None, 5, None]
    with pytest.raises(JobError, match="does not mix"):
        evaluate("u + x", engine, u=u, x=pa.array([1, 2, 3]))


LEAST, MOST = -(2**63), 2**63 - 1
BEYOND = [
    ("x // -1", [LEAST], "int64"),
    ("x - 1", [0, LEAST, None], "int64"),
    ("x + x", [MOST, 1], "int64"),
    ("x * 3", [1, MOST], "int64"),
    ("x * x", [LEAST], "int64"),
    ("-x", [LEAST, 5], "int64"),
    ("abs(x)", [LEAST], "int64"),
    ("x * x * x * x", [-(2**31)], "int32"),
    ("x - 1", [0], "uint64"),
    ("x + 1", [2**64 - 1], "uint64"),
    ("x * x", [2**32], "uint64"),
    ("x > 0 or x * x > 0", [LEAST], "int64"),
    ("where(x < 0, x * x, x)", [LEAST], "int64"),
    ("x * x is None", [MOST, None], "int64"),
    ("coalesce(x * x, 0)", [MOST, None, 2], "int64"),
    ("least(x * x, 3)", [MOST, None, 2], "int64"),
    ("greatest(x, x * x)", [LEAST, None, 2], "int64"),
    ("case(x * x > 5, 1, x)", [MOST, None, 2], "int64"),
    ("case(x * x > 5, 'a', 'b')", [MOST, None, 2], "int64"),
    ("hash(x * x)", [MOST, None, 2], "int64"),
    ("len(cast(x * x, 'string'))", [MOST, None, 2], "int64"),
    ("coalesce(cast(x * x, 'string'), 'a')", [MOST, None, 2], "int64"),
]


@pytest.mark.promise("whole numbers that leave 64 bits are an error")
@pytest.mark.promise("`is beyond`", "flows/OPERATIONS.md#when-it-fails")
@pytest.mark.promise(
    "A number beyond these 64 bits is an error that names the expression, its part, the columns and the cure"
)
@pytest.mark.parametrize(("text", "values", "dtype"), BEYOND)
def test_whole_numbers_beyond_64_bits_are_refused(text, values, dtype, engine):
    """Not wrapped, and no row is dropped by a filter for it."""
    column = {"x": make_column(values, dtype, engine)}
    with pytest.raises(DataError, match=r"is beyond u?int64 in 1 row\(s\), column\(s\) 'x'") as told:
        evaluation.evaluate(parse(text), column)
    assert "cast(x, 'float64')" in told.value.do
    assert repr(text) in told.value.why
    with pytest.raises(DataError, match="is beyond"):
        filter_mask(parse(f"({text}) is not None and ({text}) == ({text})"), column)


WITHIN = [
    ("x % -1", [LEAST], "int64", [0]),
    ("x * 2", [-128, 127, None], "int8", [-256, 254, None]),
    ("x * x", [-(2**31), 2**31 - 1], "int32", [2**62, (2**31 - 1) ** 2]),
    ("x - 70000", [65535], "uint16", [-4465]),
    ("x + x", [2**32 - 1], "uint32", [2**33 - 2]),
    ("abs(x)", [-128, 127], "int8", [128, 127]),
    ("abs(x)", [-(2**31)], "int32", [2**31]),
    ("abs(x)", [255], "uint8", [255]),
    ("-x", [-128], "int8", [128]),
    ("-x", [255], "uint8", [-255]),
    ("x < 10 or x * x > 0", [LEAST, 3], "int64", [True, True]),
    ("where(x > 10, -1, x * x)", [MOST, 3, None], "int64", [-1, 9, None]),
    ("case(x > 10, 'many', cast(x * x, 'string'))", [MOST, 3, None], "int64", ["many", "9", None]),
    ("cast(x, 'float64') * x", [MOST], "int64", [2.0**126]),
]


@pytest.mark.parametrize(("text", "values", "dtype", "expected"), WITHIN)
def test_narrow_integers_are_widened(text, values, dtype, expected, engine):
    found = evaluation.evaluate(parse(text), {"x": make_column(values, dtype, engine)})
    assert to_list(found) == expected


def test_what_lies_under_a_null_is_no_overflow(engine):
    x = pa.Array.from_buffers(pa.int64(), 2, [pa.array([True, False]).buffers()[1], pa.array([1, MOST]).buffers()[1]])
    assert evaluate("x * x", engine, x=x) == [1, None]


@pytest.mark.promise("`where(cast(_, 'int64') is None, -1, cast(_, 'int64'))` is not counted")
@pytest.mark.promise("A `cast`, `parse_number`, `parse_time` or `parse_json` that cannot read a value gives null")
@pytest.mark.parametrize(
    ("text", "values", "dtype", "expected", "failed"),
    [
        ("cast(x, 'int64')", ["1", "one", None, ""], "string", [1, None, None, None], 2),
        ("cast(x, 'int8')", [127, 128, None], "int64", [127, None, None], 1),
        ("cast(x, 'int8')", [0.5, 1e9, INF], "float64", [0, None, None], 2),
        ("cast(x, 'float32')", [1e300, 1.5, INF], "float64", [None, 1.5, INF], 1),
        ("cast(x, 'timestamp[us]')", ["2020-02-30", "2020-02-29"], "string", [None, datetime.datetime(2020, 2, 29)], 1),
        ("cast(x, 'timestamp[ns]')", [2**40], "timestamp[s]", [None], 1),
        ("cast(x, 'uint8') + cast(x, 'int8')", [-1, 200, 300, 5], "int64", [None, None, None, 10], 3),
        ("cast(x, 'int64') > 1", ["2", "two"], "string", [True, None], 1),
        ("length(x) > 3 or cast(x, 'int64') > 1", ["2", "long", "no"], "string", [True, True, None], 1),
        ("where(x == 'none', -1, cast(x, 'int64'))", ["none", "3"], "string", [-1, 3], 0),
        ("where(cast(x, 'int64') is None, 0, cast(x, 'int64'))", ["none", "3"], "string", [0, 3], 0),
        ("cast(cast(x, 'int64'), 'string') + '!'", ["3", "x"], "string", ["3!", None], 1),
    ],
)
def test_casts_that_fail_are_null_and_counted(text, values, dtype, expected, failed, engine):
    """Where the result is null for them: what `where`, `or` and `is None` answer for is not."""
    counted = Counter()
    found = evaluation.evaluate(parse(text), {"x": make_column(values, dtype, engine)}, failed=counted)
    assert to_list(found) == expected
    assert counted == ({text: failed} if failed else {})


EDGES = [
    ("x / 0", [1.0, -1.0, 0.0, INF], [INF, -INF, None, INF]),
    ("x // 0", [1.0, -1.0, 0.0], [INF, -INF, None]),
    ("x % 0", [1.0, 0.0], [None, None]),
    ("x / 0", [1, -1, 0, None], [INF, -INF, None, None]),
    ("x // 0", [1, 0], [None, None]),
    ("x % 0", [1, 0], [None, None]),
    ("x - x", [INF, 1.0], [None, 0.0]),
    ("x + x", [INF, 1e308], [INF, INF]),
    ("x * 0", [INF, 2.0], [None, 0.0]),
    ("x % 5", [INF, -7.0], [None, 3.0]),
    ("5 % x", [INF, -INF], [5.0, -INF]),
    ("x == x", [INF, None], [True, None]),
    ("x > 1e308", [INF, -INF], [True, False]),
    ("log(x)", [0.0, -1.0, INF], [-INF, None, INF]),
    ("exp(x)", [1000.0, -INF], [INF, 0.0]),
    ("sqrt(x)", [-1.0, INF, 4.0], [None, INF, 2.0]),
    ("round(x)", [INF, 2.5, 3.5], [INF, 2.0, 4.0]),
    ("abs(x)", [-INF], [INF]),
    ("cast(x, 'int64')", [INF, -0.9], [None, 0]),
    ("x == 9007199254740992.0", [9007199254740993], [True]),
    ("x == 9007199254740992", [9007199254740993], [False]),
    ("x + 0.5 > x", [2**60], [False]),
    ("upper(x)", ["ß", "straße", "ŉ", "ﬁ", "é"], ["ẞ", "STRAẞE", "ŉ", "ﬁ", "É"]),
    ("lower(x)", ["ẞ", "İ", "ΑΣ"], ["ß", "i", "ασ"]),
]


@pytest.mark.promise("nulls, whole numbers and floats, texts, times, `x / 0`, infinities")
@pytest.mark.promise(
    "`/` gives float64: `x / 0` is infinite with the sign of x, `0 / 0` null",
    "tasks/ops/EXPRESSIONS.md#nulls-zeros-and-infinities",
)
@pytest.mark.parametrize(("text", "values", "expected"), EDGES)
def test_rules_at_the_edges(text, values, expected, engine):
    """What the reference says of zeros, infinities, whole numbers beside floats, and letters."""
    assert evaluate(text, engine, x=pa.array(values)) == expected


def test_nan_is_null(engine):
    x = pa.array([math.nan, 1.0, None])
    assert evaluate("x", engine, x=x) == [None, 1.0, None]
    assert evaluate("x is None", engine, x=x) == [True, False, True]
    assert evaluate("log(-x) is None", engine, x=x) == [True, True, True]


def test_decimals_are_cast_first(engine):
    price = pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.75")], pa.decimal128(10, 2))
    assert evaluate('cast(price, "float64") > 1', engine, price=price) == [True, None, False]
    assert evaluate('cast(price, "int64")', engine, price=price) == [1, None, -2]
    assert evaluate('cast(price, "string")', engine, price=price) == ["1.50", None, "-2.75"]
    assert evaluate("price is None", engine, price=price) == [False, True, False]
    with pytest.raises(JobError, match="cast"):
        evaluate("price > 1", engine, price=price)


def test_length_of_lists(engine):
    assert evaluate("length(v)", engine, v=pa.array([[1], [], None, [1, 2]])) == [1, 0, None, 2]
    assert evaluate("v is not None", engine, v=pa.array([[1], None])) == [True, False]


@pytest.mark.promise(
    "An expression is read as Python reads it, and may stand on several lines",
    "tasks/ops/EXPRESSIONS.md#grammar",
)
def test_odd_names_and_several_lines(engine):
    assert evaluate('col("a b") + col("class")', engine, **{"a b": [1], "class": [2]}) == [3]
    assert evaluate("x > 0\n  and x < 9\n", engine, x=[5]) == [True]


def test_dictionaries_and_empty_frames(engine):
    assert evaluate("x + 1", engine, x=pa.array([], pa.int8())) == []
    assert evaluate('s + "!"', engine, s=pa.array([], pa.string())) == []
    column = make_column(pa.array(["b", None, "b"]).dictionary_encode(), engine=engine)
    assert to_list(evaluation.evaluate(parse('s == "b"'), {"s": column})) == [True, None, True]


def test_the_result_keeps_the_index(engine):
    frame = {"x": make_column([1, 2, 3], "int64", engine)}
    frame["x"].index = [5, 6, 7]
    assert to_list(evaluation.evaluate(parse("x * 2"), frame).index) == [5, 6, 7]


def test_filter_mask_keeps_what_is_true(engine):
    frame = {"x": make_column([1, None, 3], "int64", engine)}
    assert filter_mask(parse("x > 1"), frame).tolist() == [False, False, True]
    assert filter_mask(parse("x is None or x > 1"), frame).tolist() == [False, True, True]
    with pytest.raises(JobError, match="a filter needs true or false, this is int64"):
        filter_mask(parse("x + 1"), frame)


def test_an_expression_is_a_value():
    expression = parse(" b + a * b ")
    assert expression.text == "b + a * b"
    assert expression.columns == ("b", "a")
    assert expression == parse("b + a * b")
    assert hash(expression) == hash(parse("b + a * b"))
    copy = pickle.loads(pickle.dumps(expression))  # noqa: S301
    assert isinstance(copy, Expression)
    assert (copy, copy.columns, copy.root) == (expression, expression.columns, expression.root)


ERRORS = [
    ("nme + 1", "there is no column 'nme'", "^^^", "did you mean 'name'"),
    ("lowr(name)", "there is no function 'lowr'", "^^^^", "did you mean 'lower'"),
    ("x = 1", "cannot be read", "^", "compare with =="),
    ("x > 1 && x < 3", "cannot be read", "^", "write and"),
    ("x & 1", "not part of the language", "^^^^^", "write and"),
    ("x ** 2", "not part of the language", "^^^^^^", "write x * x"),
    ("1 if x else 2", "not part of the language", "^" * 13, "where(condition, a, b)"),
    ("name.upper()", "not part of the language", "^" * 12, "write"),
    ("x[0]", "not part of the language", "^^^^", "col("),
    ("lambda: x", "not part of the language", "^" * 9, "write"),
    ('__import__("os").system("true")', "not part of the language", "^" * 31, "write"),
    ('f"{x}"', "not part of the language", "^" * 6, "write"),
    ('eval("x")', "there is no function 'eval'", "^^^^", "abs"),
    ("x + name", "a number is needed here, this is string", "^^^^", "cast"),
    ('x == "a"', "cannot compare int64 with string", "^" * 8, "cast"),
    ("x == None", "nothing is equal to None", "^^^^", "x is None"),
    ("x in [None]", "nothing is equal to None", "^^^^", "x is None"),
    ("x in [x]", "literals only", "^", "or"),
    ('x in "abc"', "needs a list", "^^^^^", "contains"),
    ("x is 3", "None only", "^", "write =="),
    ("x and True", "needs true or false, this is int64", "^", "x != 0"),
    ("abs(x, x)", "takes 1 arguments, not 2", "^" * 9, ""),
    ('cast(x, "int65")', "'int65' is not a type", "^" * 7, "did you mean 'int64'"),
    ('cast(name, "list<bool>")', "cannot be cast", "^" * 24, ""),
    ("contains(name, name)", "literal text", "^^^^", "contains"),
    ("lower(x)", "needs a column of strings", "^", "cast"),
    ('t > "soon"', "'soon' is not a time", "^" * 6, "2020-01-31"),
    ('t > "2020-01-01T00:00:00.0000000001"', "is not a time", "^" * 32, "up to nine digits"),
    ('t > "2400-01-01T00:00:00.000000001"', "beyond the times that nanoseconds count", "^" * 31, "at most six"),
    ('coalesce(t, "2020-01-01T00:00:00.000000001")', "the column, which counts microseconds", "^" * 31, "this unit"),
    ('least(cast(t, "date32"), "2020-01-01T12:00")', "the column, which counts days", "^" * 18, "this unit"),
    ("t + 1", "a number is needed here", "^", "cast(x, 'int64')"),
    ("1 + 2", "names no column", "^^^^^", "at least one column"),
    ("x + 1e999", "too large", "^^^^^", ""),
    ("x + 99999999999999999999", "too large", "^" * 20, "float"),
    ("round(x, 20)", "from 0 to 15", "^^", ""),
    ('"ü" + nme', "there is no column 'nme'", "^^^", "name"),
]


@pytest.mark.promise("An expression is read as Python reads it, and may stand on several lines")
@pytest.mark.parametrize(("text", "what", "caret", "hint"), ERRORS)
def test_an_error_shows_the_place(text, what, caret, hint):
    schema = Schema([Column("x", pa.int64()), Column("name", pa.string()), Column("t", pa.timestamp("us"))])
    with pytest.raises(JobError) as caught:
        dtype_of(parse(text), schema)
    lines = str(caught.value).splitlines()
    assert what in lines[0]
    assert lines[1] == f"  where: {text}"
    assert lines[2].strip() == caret
    assert hint in str(caught.value)


def test_the_caret_stands_below_the_name():
    with pytest.raises(JobError) as caught:
        dtype_of(parse('"ü" + nme'), Schema([Column("name", pa.string())]))
    _, shown, caret = str(caught.value).splitlines()[:3]
    assert shown[caret.index("^") :] == "nme"


@pytest.mark.parametrize(
    "text", ["-" * 9000 + "x", "(" * 300 + "x" + ")" * 300, "+".join("x" * 300), "not " * 200 + "x"]
)
def test_deep_nesting_is_a_plain_error(text):
    with pytest.raises(JobError, match=r"deep|nested|read"):
        parse(text)


@pytest.mark.parametrize("text", ["", "  ", None, 3, "x > 0 # big\nand x < 3", "x\0", "x" * 30_000])
def test_what_is_no_expression(text):
    with pytest.raises(JobError):
        parse(text)


def test_a_missing_column_is_named(engine):
    with pytest.raises(JobError, match="there is no column 'y'"):
        evaluation.evaluate(parse("x + y"), {"x": make_column([1], "int64", engine)})


def test_the_schema_of_a_frame(engine):
    frame = {"a": make_column([1], "int8", engine), "b": make_column(["x"], "string", engine)}
    assert list_types(frame) == {"a": pa.int8(), "b": pa.string()}


# The rule once more, one row at a time, in plain Python.


LOST = "a number beyond int64"


def within(value: int) -> int | str:
    return value if LEAST <= value <= MOST else LOST


def kleene(operator: str, a: bool | None, b: bool | None) -> bool | None:
    decisive = operator == "or"
    if a is decisive or b is decisive:
        return decisive
    if LOST in (a, b):
        return LOST
    return None if a is None or b is None else not decisive


def arithmetic(operator: str, a: int | None, b: int | None) -> int | None:
    if LOST in (a, b):
        return LOST
    if a is None or b is None or (operator in ("//", "%") and b == 0):
        return None
    work = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "//": int.__floordiv__, "%": int.__mod__}
    return within(work[operator](a, b))


def compare(operator: str, a: int | None, b: int | None) -> bool | None:
    if LOST in (a, b):
        return LOST
    if a is None or b is None:
        return None
    work = {"==": int.__eq__, "!=": int.__ne__, "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}
    return work[operator](a, b)


Tree = tuple
INTEGERS = st.recursive(
    st.sampled_from([("column", "x"), ("column", "y")]) | st.integers(-5, 5).map(lambda v: ("literal", v)),
    lambda inner: (
        st.tuples(st.sampled_from(["+", "-", "*", "//", "%"]), inner, inner) | st.tuples(st.just("-x"), inner)
    ),
    max_leaves=6,
)
TRUTHS = st.recursive(
    st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), INTEGERS, INTEGERS)
    | st.tuples(st.just("is None"), st.just(("column", "x"))),
    lambda inner: st.tuples(st.sampled_from(["and", "or"]), inner, inner) | st.tuples(st.just("not"), inner),
    max_leaves=4,
)


def written(tree: Tree) -> str:
    match tree:
        case ("column", name):
            return name
        case ("literal", value):
            return str(value)
        case ("-x", inner):
            return f"(-{written(inner)})"
        case ("not", inner):
            return f"(not {written(inner)})"
        case ("is None", inner):
            return f"({written(inner)} is None)"
    return f"({written(tree[1])} {tree[0]} {written(tree[2])})"


def answer(tree: Tree, row: dict[str, int | None]) -> int | bool | None:
    match tree:
        case ("column", name):
            return row[name]
        case ("literal", value):
            return value
        case ("-x", inner):
            value = answer(inner, row)
            return value if value in (None, LOST) else within(-value)
        case ("not", inner):
            value = answer(inner, row)
            return value if value in (None, LOST) else not value
        case ("is None", inner):
            return answer(inner, row) is None
    a, b = answer(tree[1], row), answer(tree[2], row)
    if tree[0] in ("and", "or"):
        return kleene(tree[0], a, b)
    return (arithmetic if tree[0] in ("+", "-", "*", "//", "%") else compare)(tree[0], a, b)


WHOLE = st.none() | st.integers(-6, 6) | st.integers(-(2**63), 2**63 - 1)


@given(INTEGERS | TRUTHS, st.lists(st.tuples(WHOLE, WHOLE), min_size=1, max_size=6))
def test_any_expression_answers_as_the_rule_in_python(engine, tree, rows):
    text = f"where(x is None, {written(tree)}, {written(tree)})"  # names a column in any case
    x, y = (pa.array([row[side] for row in rows], pa.int64()) for side in (0, 1))
    expected = [answer(tree, {"x": a, "y": b}) for a, b in rows]
    if LOST in expected:
        with pytest.raises(DataError, match="is beyond int64"):
            evaluate(text, engine, x=x, y=y)
    kept = pa.array([value != LOST for value in expected])
    assert evaluate(text, engine, x=x.filter(kept), y=y.filter(kept)) == [v for v in expected if v != LOST]


REAL = st.none() | st.floats(width=64)


@given(st.lists(st.tuples(REAL, REAL), min_size=1, max_size=6))
def test_float_remainder_is_that_of_python(engine, rows):
    def rest(a: float | None, b: float | None) -> float | None:
        if a is None or b is None or math.isnan(a) or math.isnan(b) or b == 0 or math.isinf(a):
            return None
        return a % b

    x, y = (pa.array([row[side] for row in rows], pa.float64()) for side in (0, 1))
    assert evaluate("x % y", engine, x=x, y=y) == [rest(a, b) for a, b in rows]


@given(st.lists(st.none() | st.text(max_size=5)), st.text(max_size=2))
def test_text_search_is_that_of_python(engine, values, pattern):
    texts = pa.array(values, pa.string())
    for name, rule in (("contains", str.__contains__), ("startswith", str.startswith)):
        expected = [None if value is None else rule(value, pattern) for value in values]
        assert evaluate(f"{name}(s, {pattern!r})", engine, s=texts) == expected
    assert evaluate("length(s)", engine, s=texts) == [None if value is None else len(value) for value in values]


def test_threads_read_expressions_side_by_side() -> None:
    text = " and ".join(f"(a{i} > {i})" for i in range(30))
    before = gc.get_threshold()

    def wait(phase: str, info: dict[str, int]) -> None:  # lets another thread in while a tree is made
        time.sleep(0)

    gc.callbacks.append(wait)
    gc.set_threshold(20)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: [parse(text) for _ in range(100)], range(8)))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(wait)
    assert {expression.columns for of_thread in found for expression in of_thread} == {parse(text).columns}
