"""The kernels of the engines: every one by literal facts, the same on both; and both packages offer the same names."""

from __future__ import annotations

import ast
import datetime
import decimal
import io
import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import engines
from tasks.core.plan import Block, File, Partition, Piece, Plan
from tasks.core.schema import Schema
from tasks.core.settings import Output
from tasks.engines import cpu
from tasks.engines.algorithms import arrow_arrays
from tasks.engines.algorithms.host_tables import sort_groups
from tasks.engines.expression.interpreter import true_rows
from tasks.engines.expression.syntax import parse
from tasks.storage import checksum

INF, NAN = float("inf"), float("nan")
DAY = datetime.date(2020, 2, 29)
NOON = datetime.datetime(2020, 2, 29, 12, 30, 1)
MONEY = pa.decimal128(10, 2)


@pytest.fixture
def k(engine: str) -> Any:
    """The kernels under test."""
    return engines.engine(engine)


def col(k: Any, values: Any, dtype: Any = None) -> Any:
    return k.column(values if isinstance(values, pa.Array) else pa.array(values, dtype))


def out(k: Any, column: Any) -> list[Any]:
    return k.host(column).to_pylist()


def rows(k: Any, table: Any) -> list[dict[str, Any]]:
    """The rows of a table of counts or sums, in a fixed order."""
    return sorted(k.host_table(table).to_pylist(), key=lambda row: [(v is not None, v) for v in row.values()])


def plain(array: Any) -> list[Any]:
    return array.tolist()


# The seam


def _signatures(engine: str) -> dict[str, list[str]]:
    """Exported name -> its parameters (of a class: of its public methods), read from the syntax trees."""
    folder = Path(engines.__file__).parent / engine
    door = ast.parse((folder / "__init__.py").read_text()).body
    inner = f"tasks.engines.{engine}.kernels"
    imports = [node for node in door if isinstance(node, ast.ImportFrom) and node.module != inner]
    exported = {a.name for node in imports for a in node.names}
    exported |= {a.asname for node in door if isinstance(node, ast.Import) for a in node.names if a.asname}
    exported |= {ast.unparse(target) for node in door if isinstance(node, ast.Assign) for target in node.targets}
    modules = {node.module for node in imports if node.module}
    root = Path(engines.__file__).parents[2]
    found = {}
    for path in sorted(root / f"{module.replace('.', '/')}.py" for module in modules):
        if not path.exists():  # a package: its `__init__` defines no kernels
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name in exported:
                found[node.name] = [a.arg for a in node.args.args]
            if isinstance(node, ast.ClassDef) and node.name in exported:
                public = [
                    n
                    for n in node.body
                    if (isinstance(n, ast.FunctionDef) and n.name[0] != "_") or getattr(n, "name", "") == "__init__"
                ]
                found[node.name] = [f"{n.name}({', '.join(a.arg for a in n.args.args)})" for n in public]
    return {name: found.get(name, ["imported"]) for name in exported}


def test_both_engines_have_the_same_kernels():
    cpu, gpu = _signatures("cpu"), _signatures("gpu")
    assert set(gpu) - set(cpu) <= {
        "allocatable", "device_memory", "read_partition", "spill", "synchronize", "transport",
    }  # fmt: skip
    assert {name for name in cpu if gpu.get(name) == ["imported"]} == {"NAME", "xp"}
    assert {name: gpu[name] for name in cpu} == cpu


# Columns

VALUES = [
    ([1, None, -3], pa.int8()),
    ([1, None, 2**63 - 1], pa.int64()),
    ([1, None, 2**64 - 1], pa.uint64()),
    ([1.5, None, -INF], pa.float32()),
    ([1.5, None, INF], pa.float64()),
    ([True, None, False], pa.bool_()),
    (["a", None, "", "zäh"], pa.string()),
    ([NOON, None], pa.timestamp("s")),
    ([NOON, None], pa.timestamp("ms")),
    ([NOON, None], pa.timestamp("us")),
    ([NOON.replace(tzinfo=datetime.UTC), None], pa.timestamp("us", "UTC")),
    ([DAY, None, datetime.date(1969, 12, 31)], pa.date32()),
    ([decimal.Decimal("1.50"), None], MONEY),
    ([[1, None], None, [], [3]], pa.list_(pa.int64())),
    ([["a"], None, []], pa.list_(pa.string())),
    ([None, None], pa.null()),
]
every_type = pytest.mark.parametrize(("values", "dtype"), VALUES, ids=[str(t) for _, t in VALUES])


@every_type
def test_a_column_keeps_values_and_type(k, values, dtype):
    column = col(k, values, dtype)
    assert k.dtype(column) == dtype
    assert k.host(column).equals(pa.array(values, dtype))
    assert k.length({"x": column}) == len(column) == len(values)
    assert out(k, k.is_null(column)) == [v is None for v in values]


@every_type
def test_rows_are_taken_sliced_and_joined(k, xp, values, dtype):
    column = {"x": col(k, values, dtype)}
    taken = k.take(column, xp.asarray([1, 0, 1]))
    assert out(k, taken["x"]) == [values[1], values[0], values[1]]
    assert out(k, k.slice_rows(column, 1, 2)["x"]) == [values[1]]
    joined = k.concat([column, k.slice_rows(column, 0, 1), k.slice_rows(column, 0, 0)])["x"]
    assert out(k, joined) == [*values, values[0]]
    assert k.dtype(joined) == k.dtype(taken["x"]) == dtype
    assert k.to_arrow(k.from_arrow(pa.table({"x": pa.array(values, dtype)}))).column("x").to_pylist() == values


def test_dictionaries_are_text(k):
    column = col(k, pa.array(["b", None, "a", "b"]).dictionary_encode())
    assert k.dtype(column) == pa.string()
    assert out(k, k.decode(column)) == out(k, k.series(column)) == out(k, column) == ["b", None, "a", "b"]
    empty = pa.DictionaryArray.from_arrays(pa.array([None], pa.int32()), pa.array([], pa.string()))
    assert out(k, col(k, empty)) == [None]


def test_numbers_and_back(k, xp):
    values, valid = k.numbers(col(k, [True, None, False]))
    assert (values.dtype, plain(valid)) == (np.dtype("uint8"), [True, False, True])
    assert k.numbers(col(k, [1, 2], pa.int16()))[1] is None
    assert plain(k.numbers(col(k, [DAY]))[0]) == [18321]
    assert plain(k.numbers(col(k, [NOON], pa.timestamp("ms")))[0]) == [1582979401000]
    assert plain(k.numbers(col(k, [decimal.Decimal("1.25")], MONEY))[0]) == [1.25]
    assert out(k, k.from_numbers(xp.asarray([1, 2]), xp.asarray([True, False]))) == [1, None]
    assert out(k, k.from_numbers(xp.asarray([18321], dtype="int32"), None, pa.date32())) == [DAY]
    assert out(k, k.from_numbers(xp.asarray([1, 0], dtype="uint8"), None, pa.bool_())) == [True, False]
    assert k.dtype(k.from_numbers(xp.asarray([1.5], dtype="float32"))) == pa.float32()


def test_numbers_of_a_slice(k):
    part = k.slice_rows({"x": col(k, [1.0, None, 3.0, NAN, 5.0])}, 1, 4)["x"]
    assert out(k, k.finite(part)) == [None, 3.0, None]
    assert out(k, k.affine(part, 1.0, 2.0, pa.float64()))[:2] == [None, 1.0]
    assert out(k, k.fill_null(part, 7.0))[0] == 7.0


CASTS = [
    ([1, None], pa.int64(), pa.int8(), [1, None]),
    ([1.0, None], pa.float64(), pa.int32(), [1, None]),
    ([1.1, None], pa.float64(), pa.float32(), [np.float32(1.1).item(), None]),
    ([True, None], pa.bool_(), pa.float32(), [1.0, None]),
    ([2, 0], pa.int64(), pa.bool_(), [True, False]),
    ([1, None], pa.int32(), pa.string(), ["1", None]),
    (["7", None], pa.string(), pa.int64(), [7, None]),
    ([NOON, None], pa.timestamp("us"), pa.date32(), [DAY, None]),
    ([DAY, None], pa.date32(), pa.timestamp("ms"), [datetime.datetime(2020, 2, 29), None]),
    ([None], pa.null(), pa.int32(), [None]),
    ([[1], None], pa.list_(pa.int64()), pa.list_(pa.int32()), [[1], None]),
    ([decimal.Decimal("8.30"), None], MONEY, pa.float64(), [8.3, None]),
    ([decimal.Decimal("12345678901234567.89")], pa.decimal128(38, 2), pa.float64(), [12345678901234567.89]),
    ([INF, -INF, 3.4028235e38, None], pa.float64(), pa.float32(), [INF, -INF, float(np.finfo("f4").max), None]),
]


@pytest.mark.parametrize(("values", "here", "there", "expected"), CASTS, ids=[f"{h} to {t}" for _, h, t, _ in CASTS])
def test_cast(k, values, here, there, expected):
    found = k.cast(col(k, values, here), there)
    assert (k.dtype(found), out(k, found)) == (there, expected)


@pytest.mark.parametrize(
    ("values", "here", "there"),
    [
        ([300], pa.int64(), pa.uint8()),
        ([-1], pa.int64(), pa.uint64()),
        ([1.5], pa.float64(), pa.int32()),
        ([INF], pa.float64(), pa.int64()),
        ([2**24 + 1], pa.int64(), pa.float32()),
        (["x"], pa.string(), pa.int64()),
        ([1.0, None, -1e300, INF], pa.float64(), pa.float32()),
        ([2.0**128 - 2.0**103], pa.float64(), pa.float32()),
        ([[1.0], None, [INF, 1e39]], pa.list_(pa.float64()), pa.list_(pa.float32())),
    ],
)
def test_a_cast_that_does_not_fit_is_an_error(k, values, here, there):
    with pytest.raises(pa.ArrowInvalid):
        k.cast(col(k, values, here), there)


FILLS = [
    ([1, None], pa.int8(), 0, [1, 0]),
    ([None, 1.5], pa.float32(), 2, [2.0, 1.5]),
    ([None, True], pa.bool_(), False, [False, True]),
    (["a", None], pa.string(), "x", ["a", "x"]),
    ([None, DAY], pa.date32(), datetime.date(1970, 1, 2), [datetime.date(1970, 1, 2), DAY]),
    ([None], pa.null(), 5, [5]),
]


@pytest.mark.parametrize(("values", "dtype", "value", "expected"), FILLS)
def test_fill_null(k, values, dtype, value, expected):
    assert out(k, k.fill_null(col(k, values, dtype), value)) == expected


def test_clip(k):
    assert out(k, k.clip(col(k, [-5, None, 5], pa.int8()), -1, 3)) == [-1, None, 3]
    assert k.dtype(k.clip(col(k, [1.0], pa.float32()), None, 0.5)) == pa.float32()
    assert out(k, k.clip(col(k, [1.0, None, -INF]), 0.5, None)) == [1.0, None, 0.5]


@pytest.mark.parametrize("dtype", [pa.int8(), pa.uint64(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("limits", [(0, None), (None, 0), (1, 5)])
def test_limits_are_those_of_arrow(dtype, limits):
    values = [0, 1, None, 7, 3, 120] * 3
    if pa.types.is_floating(dtype):
        values += [-0.0, math.nan, INF, -INF, None, -1.5]
    arrow = pa.array(values, dtype).slice(1)
    expected = arrow_arrays.clip(arrow, *limits)
    assert [repr(value) for value in cpu.clip(arrow, *limits).to_pylist()] == [repr(v) for v in expected.to_pylist()]


def test_affine_and_log1p(k):
    scaled = k.affine(col(k, [1, None, 3], pa.uint8()), 1.0, 4.0, pa.float32())
    assert (out(k, scaled), k.dtype(scaled)) == ([0.0, None, 0.5], pa.float32())
    logs = k.log1p(col(k, [0.0, -1.0, -2.0, None]), pa.float32())
    assert (out(k, logs), k.dtype(logs)) == ([0.0, -INF, None, None], pa.float32())


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pa.int8(), [-128, 127, 0, -1]),
        (pa.uint8(), [255, 0, 3, 3]),
        (pa.int32(), [-1, 40, 7, 2**31 - 1]),
        (pa.int64(), [-(2**63), 2**63 - 1, 5, 5]),
        (pa.uint64(), [2**64 - 1, 2**64 - 2, 2**64 - 1, 2**64 - 5]),
    ],
)
def test_log1p_of_few_integers_is_that_of_each(k, dtype, values):
    several = pa.array(values * 500, dtype)
    alone = [out(k, k.log1p(col(k, [value], dtype), pa.float64()))[0] for value in values]
    assert out(k, k.log1p(col(k, several), pa.float64())) == alone * 500


def test_moments(k):
    column = col(k, [1, None, 2, 3, 4, None, 7])
    assert k.moments(column, [0, 5, 6, 7]) == [
        (4, 2.5, 5.0, 1.0, 4.0),
        (0, 0.0, 0.0, 0.0, 0.0),
        (1, 7.0, 0.0, 7.0, 7.0),
    ]
    assert k.moments(col(k, [], pa.float32()), [0, 0]) == [(0, 0.0, 0.0, 0.0, 0.0)]
    found = k.moments(col(k, [1e9 + i % 2 for i in range(100_000)]), [0, 100_000])
    assert found == [(100_000, 1e9 + 0.5, 25_000.0, 1e9, 1e9 + 1)]


@pytest.mark.parametrize("dtype", [pa.float32(), pa.float64(), pa.int32()])
def test_moments_of_long_runs_are_those_of_their_values_wherever_they_stand(k, dtype):
    rng = np.random.default_rng(0)
    values = (rng.normal(1e4, 10, 200_000)).astype(dtype.to_pandas_dtype())
    null = rng.random(len(values)) < 0.3
    null[70_000:120_000] = True
    starts = [0, 1, 16_385, 70_000, 120_000, 120_000, 200_000]
    found = k.moments(k.column(pa.array(values, mask=null)), starts)
    for (first, stop), (n, mean, squares, low, high) in zip(itertools.pairwise(starts), found, strict=True):
        kept = values[first:stop][~null[first:stop]].astype(np.float64)
        about = math.fsum(kept) / max(len(kept), 1)
        assert (n, low, high) == (len(kept), *((kept.min(), kept.max()) if n else (0, 0)))
        assert mean == pytest.approx(about, rel=1e-14)
        assert squares == pytest.approx(math.fsum((kept - about) ** 2), rel=1e-12)
    moved = k.column(pa.concat_arrays([pa.array(values[:12_345]), pa.array(values, mask=null)]))
    assert k.moments(moved, [12_345 + start for start in starts]) == found


def test_lists(k):
    column = col(k, [[1, None], None, [], [3]], pa.list_(pa.int64()))
    assert k.is_list(column)
    assert not k.is_list(k.leaves(column))
    assert out(k, k.leaves(column)) == [1, None, 3]
    new = k.with_leaves(column, col(k, ["a", "b", None]))
    assert (out(k, new), k.dtype(new)) == ([["a", "b"], None, [], [None]], pa.list_(pa.string()))
    part = k.slice_rows({"x": column}, 1, 4)["x"]
    assert out(k, k.leaves(part)) == [3]
    assert out(k, k.with_leaves(part, col(k, [7], pa.int32()))) == [None, [], [7]]


def test_null_lists_have_no_elements(k):
    hidden = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([1, 2, 3]), mask=pa.array([True, False]))
    assert out(k, k.leaves(col(k, hidden))) == [3]


def test_adopt_takes_what_functions_return(k, xp):
    for given in (xp.asarray([1.0, 2.0]), np.asarray([1.0, 2.0]), pa.array([1.0, 2.0]), [1.0, 2.0]):
        assert out(k, k.adopt(given)) == [1.0, 2.0]
    shifted = k.user_frame({"x": col(k, [1, 2, 3])})["x"]
    assert out(k, k.adopt(shifted[shifted > 1] * 2)) == [4, 6]


def test_row_numbers(k, xp):
    found = k.row_numbers(5, 3)
    assert (found.dtype, plain(found)) == (np.dtype("uint64"), [5, 6, 7])
    assert plain(k.hash_rows(k.row_numbers(10, 1), 0)) == [4004982076]


# Text and times


def test_text_and_join(k):
    assert out(k, k.text(col(k, [True, None, False]))) == ["true", None, "false"]
    assert out(k, k.text(col(k, [1, -2], pa.int16()))) == ["1", "-2"]
    joined = k.join_text([col(k, ["a", None, "c"]), col(k, [1, 2, None]), col(k, [True, True, True])], "_")
    assert out(k, joined) == ["a_1_true", None, None]


def test_split_text(k):
    parts = k.split_text(col(k, ["a.b.c", None, "", "x", "..y"]), ".", 2)
    assert [out(k, p) for p in parts] == [["a", None, "", "x", ""], ["b", None, None, None, ""]]


PARTS = {"hour": 12, "minute": 30, "second": 1, "weekday": 5, "day": 29, "month": 2, "year": 2020, "dayofyear": 60}
TIMES = [
    ([NOON, None], pa.timestamp("s")),
    ([NOON, None], pa.timestamp("ns")),
    ([NOON.replace(tzinfo=datetime.UTC), None], pa.timestamp("us", "Europe/Berlin")),
    (["2020-02-29 12:30:01 UTC", None], pa.string()),
    (["2020-02-29T12:30:01Z", None], pa.string()),
    (["2020-02-29 12:30:01.250", None], pa.string()),
]


@pytest.mark.parametrize(("values", "dtype"), TIMES, ids=[f"{t} {v[0]}" for v, t in TIMES])
def test_date_parts(k, values, dtype):
    for part, expected in PARTS.items():
        found = k.date_part(col(k, values, dtype), part)
        assert (k.dtype(found), out(k, found)) == (pa.int16(), [expected, None])


def test_date_parts_of_dates(k):
    assert out(k, k.date_part(col(k, [DAY]), "dayofyear")) == [60]
    assert out(k, k.date_part(col(k, ["2020-02-29", "2020-03-01"]), "day")) == [29, 1]
    with pytest.raises(pa.ArrowInvalid):
        k.date_part(col(k, ["nonsense"]), "day")


# Counting and looking up


def test_count_values(k):
    counted = k.count_values([col(k, [2, None, 1, 2], pa.int32())], ["v0"])
    assert rows(k, counted) == [{"v0": None, "count": 1}, {"v0": 1, "count": 1}, {"v0": 2, "count": 2}]
    assert k.host_table(counted).schema == pa.schema([("v0", pa.int32()), ("count", pa.int64())])
    strings = k.count_values([col(k, pa.array(["b", None, "a", "b"]).dictionary_encode())], ["v0"])
    assert rows(k, strings) == [{"v0": None, "count": 1}, {"v0": "a", "count": 1}, {"v0": "b", "count": 2}]
    assert rows(k, k.count_values([col(k, [0.0, -0.0])], ["v0"])) == [{"v0": 0.0, "count": 2}]
    assert rows(k, k.count_values([col(k, [2**62, -5, 2**62])], ["v0"])) == [
        {"v0": -5, "count": 1},
        {"v0": 2**62, "count": 2},
    ]
    assert rows(k, k.count_values([col(k, [DAY, DAY])], ["v0"])) == [{"v0": DAY, "count": 2}]
    assert k.host_table(k.count_values([col(k, [], pa.string())], ["v0"])).num_rows == 0


def test_count_pairs(k):
    counted = k.count_values([col(k, ["a", "a", None, "a"]), col(k, [1, None, None, 1])], ["v0", "v1"])
    assert rows(k, counted) == [
        {"v0": None, "v1": None, "count": 1},
        {"v0": "a", "v1": None, "count": 1},
        {"v0": "a", "v1": 1, "count": 2},
    ]
    rest, nulls = k.split_nulls(counted, ["v0", "v1"])
    assert (len(k.host_table(rest)), nulls) == (2, 1)


def test_counts_are_merged_and_sorted(k):
    parts = [k.count_values([col(k, values)], ["v0"]) for values in (["b", "a"], ["c", "b", None])]
    merged = k.merge_sums(parts, ["v0"])
    assert rows(k, merged) == [
        {"v0": None, "count": 1},
        {"v0": "a", "count": 1},
        {"v0": "b", "count": 2},
        {"v0": "c", "count": 1},
    ]
    table = k.sort_counts(merged, ["v0"])
    assert k.host_table(table).column("v0").to_pylist() == ["b", None, "a", "c"]
    assert (k.count_at_least(table, 2), k.count_at_least(table, 1)) == (1, 4)


def test_equal_counts_stand_in_the_order_of_values(k):
    def order(values: Any, dtype: Any = None) -> list[Any]:
        return (
            k.host_table(k.sort_counts(k.count_values([col(k, values, dtype)], ["v0"]), ["v0"]))
            .column("v0")
            .to_pylist()
        )

    assert order(["zz", "é", "Z", "a", "\U0001f600", "\uffee"]) == ["Z", "a", "zz", "é", "\uffee", "\U0001f600"]
    assert order([True, False]) == [False, True]
    assert order([3, -1, 2]) == [-1, 2, 3]
    assert order([DAY, datetime.date(1960, 1, 1)]) == [datetime.date(1960, 1, 1), DAY]


WIDTHS = {
    "one byte": ["b", "a", "b", "c", "a", "b"],
    "eight bytes": ["00ff00ff", "zzzzzzzz", "00ff00ff", "00ff00fe", "zzzzzzzz", "00ff00ff"],
    "letters of two bytes": ["äö", "zäz", "äö", "aäa", "zäz", "äö"],
    "with nulls": ["20", None, "20", "19", None, "20"],
    "of two lengths": ["ab", "abc", "ab", "a", "abc", "ab"],
    "nine bytes": ["123456789", "223456789", "123456789", "023456789", "223456789", "123456789"],
    "empty": ["", "b", "", "a", "b", ""],
}


@pytest.mark.parametrize("texts", WIDTHS.values(), ids=WIDTHS)
def test_strings_of_one_length_are_counted_like_others(k, texts):
    first, second, third = texts[0], texts[1], texts[3]
    counts = k.count_values([col(k, pa.array(["?", *texts, "?"]).slice(1, 6))], ["v"])
    merged = k.merge_sums([counts, k.count_values([col(k, [third, first])], ["v"])], ["v"])
    assert rows(k, counts) == rows(k, k.count_values([col(k, pa.array(texts).dictionary_encode())], ["v"]))
    assert {row["v"]: row["count"] for row in rows(k, merged)} == {first: 4, second: 2, third: 2}


def test_strings_of_one_length_stand_in_the_order_of_their_bytes(k):
    texts = [f"{(i * 7919) % 100_003:06d}" for i in range(80_000)] + ["éé00", "zzzzzz"]
    counts = k.count_values([col(k, texts + texts[:300] + ["000000"] * 300)], ["v"])
    found = [(row["v"], row["count"]) for row in k.host_table(k.sort_counts(counts, ["v"])).to_pylist()]
    twice = set(texts[:300]) - {"000000"}
    expected = [("000000", 302), *((text, 2) for text in sorted(twice))]
    assert found == [*expected, *((text, 1) for text in sorted(set(texts) - twice - {"000000"}, key=str.encode))]


def test_tables_of_one_vocabulary_get_one_type(k):
    tables = [k.count_values([col(k, [1], pa.int8())], ["v0"]), k.count_values([col(k, [1, 2], pa.int32())], ["v0"])]
    assert rows(k, k.merge_sums(k.same_types(tables), ["v0"])) == [{"v0": 1, "count": 2}, {"v0": 2, "count": 1}]


def test_group_sums(k):
    keys = [col(k, ["a", "b", "a", None, "a"])]
    values = {"i": col(k, [1, 2, None, 4, 2**53]), "b": col(k, [True, None, True, False, True])}
    assert rows(k, k.group_sums(keys, ["v0"], values)) == [
        {"v0": None, "i_count": 1, "i_sum": 4, "b_count": 1, "b_sum": 0},
        {"v0": "a", "i_count": 2, "i_sum": 2**53 + 1, "b_count": 3, "b_sum": 3},
        {"v0": "b", "i_count": 1, "i_sum": 2, "b_count": 0, "b_sum": 0},
    ]
    floats = k.group_sums(
        [col(k, [1, 1, 2, None])],
        ["v0"],
        {"t0": col(k, [0.5, 0.25, None, 4.0], pa.float32()), "t1": col(k, [1, 1, 1, 1])},
    )
    assert k.host_table(floats).column_names == ["v0", "t0_count", "t0_sum", "t0_rest", "t1_count", "t1_sum"]
    assert k.host_table(floats).schema.types == [pa.int64()] * 2 + [pa.float64()] * 2 + [pa.int64()] * 2
    assert [tuple(r.values()) for r in rows(k, floats)] == [
        (None, 1, 4.0, 0.0, 1, 1),
        (1, 2, 0.75, 0.0, 2, 2),
        (2, 0, 0.0, 0.0, 1, 1),
    ]


def test_sums_of_floats_are_the_same_bits_every_time(k):
    random = np.random.default_rng(1)
    keys, values = (
        random.integers(0, 50, 200_000),
        random.normal(size=200_000) * 10.0 ** random.integers(-20, 20, 200_000),
    )
    tables = [
        k.host_table(k.group_sums([col(k, keys)], ["v0"], {"t0": col(k, values)})).sort_by("v0") for _ in range(3)
    ]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    assert tables[0].column("t0_sum").to_pylist() == [math.fsum(values[keys == key]) for key in range(50)]
    halves = [k.group_sums([col(k, keys[i::2])], ["v0"], {"t0": col(k, values[i::2])}) for i in (0, 1)]
    merged = k.host_table(k.merge_sums(halves, ["v0"])).sort_by("v0")
    assert merged.column("t0_sum").equals(tables[0].column("t0_sum"))


def test_sorted_groups():
    table = pa.table({"v0": ["b", None, "a", "b"], "x": [1, 2, 3, 4]})
    groups, places = sort_groups(table, ["v0"])
    assert (groups.column("v0").to_pylist(), places.tolist()) == ([None, "a", "b"], [2, 0, 1, 2])


LOOKUPS = [
    ([3, 1, 2], [1, 3, 9, None, -(2**40)], pa.int64(), [1, 0, -1, -1, -1]),
    ([2**62, -5, None], [None, -5, 0, 2**62], pa.int64(), [2, 1, -1, 0]),
    (["b", "a", ""], ["", "a", "c", None, "b"], pa.string(), [2, 1, -1, -1, 0]),
    ([None, "a"], ["a", None, "b"], pa.string(), [1, 0, -1]),
    ([1.5, 0.0], [-0.0, 1.5, 2.0, None], pa.float64(), [1, 0, -1, -1]),
    ([True], [False, True], pa.bool_(), [-1, 0]),
    ([NOON], [NOON, None], pa.timestamp("us"), [0, -1]),
    ([DAY], [DAY, datetime.date(1970, 1, 1)], pa.date32(), [0, -1]),
    ([decimal.Decimal("1.50")], [decimal.Decimal("1.50"), None], MONEY, [0, -1]),
    ([], [1, None], pa.int64(), [-1, -1]),
    ([], ["x"], pa.string(), [-1]),
]


@pytest.mark.parametrize(("keys", "values", "dtype", "expected"), LOOKUPS)
def test_lookup(k, keys, values, dtype, expected):
    lookup = k.Lookup([pa.array(keys, dtype)])
    found = lookup.find_places([col(k, values, dtype)])
    assert (lookup.size, found.dtype, plain(found)) == (len(keys), np.dtype("int64"), expected)


def test_lookup_of_many_strings_and_of_a_dictionary(k):
    words = [f"word {i}" for i in range(20_000)]
    lookup = k.Lookup([pa.array(words)])
    column = col(k, pa.array([*words[::-1], "other", None]).dictionary_encode())
    assert plain(lookup.find_places([column])) == [*range(19_999, -1, -1), -1, -1]


@pytest.mark.parametrize("keys", [50, 6_000])
def test_lookup_of_strings_of_one_length(k, keys):
    lookup = k.Lookup([pa.array([f"{i:04x}" for i in range(keys)])])
    assert lookup.find_places([col(k, ["0031", "0000", "ffff", "0002"])]).tolist() == [49, 0, -1, 2]
    assert lookup.find_places([col(k, ["0031", None, "zz", "", "00000002", "0002"])]).tolist() == [
        49,
        -1,
        -1,
        -1,
        -1,
        2,
    ]
    assert lookup.find_places([col(k, ["31", "00"])]).tolist() == [-1, -1]
    assert lookup.find_places([col(k, [None, "0007", None])]).tolist() == [-1, 7, -1]
    many = [f"{i % 7_000:04x}" for i in range(60_000)]
    assert lookup.find_places([col(k, many)]).tolist() == [i if i < keys else -1 for i in range(7_000)] * 8 + [
        i if i < keys else -1 for i in range(4_000)
    ]


def test_lookup_of_narrow_numbers_in_a_wide_vocabulary(k):
    assert plain(k.Lookup([pa.array([300, 5])]).find_places([col(k, [5, 0, 44], pa.int8())])) == [1, -1, -1]


def test_lookup_of_tuples(k):
    lookup = k.Lookup([pa.array(["a", None, "a"]), pa.array([1, 2, None])])
    columns = [col(k, ["a", "a", None, "b", None]), col(k, [None, 1, 2, 1, 1])]
    assert plain(lookup.find_places(columns)) == [2, 0, 1, -1, -1]


def test_hashes(k):
    assert plain(k.hash_columns([col(k, [10, None])])) == [4004982076, 0xFFFFFFFF]
    assert plain(k.hash_columns([col(k, [datetime.date(1970, 1, 11)])])) == [4004982076]
    assert plain(k.hash_columns([col(k, ["", "abc"])])) == [0, 0xB3DD93FA]
    pair = k.hash_columns([col(k, [10]), col(k, ["abc"])])
    assert (pair.dtype, plain(pair)) == (np.dtype("uint32"), [1978149815])


def test_valid_rows_of_slices():
    expected = [i % 3 != 1 for i in range(40)]
    array = pa.array([i if valid else None for i, valid in enumerate(expected)])
    for start, stop in itertools.combinations(range(0, 41, 4), 2):
        assert arrow_arrays.find_valid_rows(array[start:stop]).tolist() == expected[start:stop]
    assert arrow_arrays.find_valid_rows(array[2:4]) is None
    assert arrow_arrays.find_valid_rows(pa.nulls(3)).tolist() == [False] * 3
    assert arrow_arrays.find_valid_rows(array.dictionary_encode()[3:6]).tolist() == expected[3:6]


def test_null_rows(k):
    a, b = col(k, [1, None, None]), col(k, ["x", None, "y"])
    assert plain(k.null_rows([a, b])) == [False, True, False]
    assert k.null_rows([a, col(k, [1, 2, 3])]) is None


# Order and files


def cut(k: Any, xp: Any, positions: list[int], edges: list[int], first: int = 0) -> Any:
    names = [f"row {first + i}" for i in range(len(positions))]
    columns = {"n": col(k, names), "x": col(k, [p if p % 2 else None for p in positions])}
    return k.cut(columns, xp.asarray(positions, dtype=xp.uint64), np.array(edges))


def table_of(k: Any, table: Any) -> dict[str, list[Any]]:
    return k.host_table(table).to_pydict()


def test_a_partition_is_cut_and_a_file_put_together(k, xp):
    one, two = cut(k, xp, [7, 0, 5, 3], [0, 2, 4, 6, 8]), cut(k, xp, [2, 6, 1, 4], [0, 2, 4, 6, 8], first=4)
    assert (one.counts.tolist(), two.counts.tolist()) == ([1, 1, 1, 1], [1, 1, 1, 1])
    assert one.nbytes > 0
    whole = k.assemble([one.ranges(0, 4), two.ranges(0, 4)], 0, 8)
    assert table_of(k, whole)["n"] == [f"row {i}" for i in (1, 6, 4, 3, 7, 2, 5, 0)]
    assert table_of(k, whole)["x"] == [None, 1, None, 3, None, 5, None, 7]
    middle = k.assemble([one.ranges(1, 3).pack_rows(), two.ranges(1, 3).pack_rows()], 1, 2)
    assert table_of(k, middle) == {"n": ["row 3", "row 7"], "x": [3, None]}
    assert table_of(k, k.assemble([one.ranges(1, 1), two.ranges(1, 1)], 0, 0)) == {"n": [], "x": []}


def test_copies_of_a_row_keep_their_order(k, xp):
    one, two = cut(k, xp, [1, 0, 1, 0], [0, 2]), cut(k, xp, [0, 1], [0, 2], first=4)
    assert one.ranges(0, 1).counts.tolist() == [4]
    assert table_of(k, k.assemble([one, two], 0, 6))["n"] == [f"row {i}" for i in (1, 3, 4, 0, 2, 5)]


def test_large_positions(k, xp):
    pieces = cut(k, xp, [2**40 - 1, 5, 2**33], [0, 2**20, 2**35, 2**40])
    assert pieces.counts.tolist() == [1, 1, 1]
    assert table_of(k, k.assemble([pieces], 0, 3))["n"] == ["row 1", "row 2", "row 0"]
    hashes = cut(k, xp, [2**32 - 1, 0], [0, 2**31, 2**32])
    assert hashes.counts.tolist() == [1, 1]


def test_pieces_in_the_order_of_keys(k, xp):
    def pieces(hashes: list[int], users: list[Any], times: list[Any], first: int) -> Any:
        columns = {
            "n": col(k, [f"row {first + i}" for i in range(len(hashes))]),
            "_key0": col(k, users),
            "_sort0": col(k, times, pa.bool_()),
        }
        columns["_row"] = k.from_numbers(k.row_numbers(first, len(hashes)))
        return k.cut(columns, xp.asarray(hashes, dtype=xp.uint64), np.array([0, 2**32]))

    one = pieces([9, 1, 9, 1], ["u", "v", "t", "v"], [True, False, None, None], 0)
    two = pieces([9, 1], ["u", "v"], [True, False], 4)
    order = SimpleNamespace(keys=("user",), sort_by=("time",))
    assert table_of(k, k.assemble_sorted([one, two], order, "_")) == {"n": [f"row {i}" for i in (3, 1, 5, 2, 0, 4)]}


TYPED = pa.table(
    {
        str(t): pa.array([v[0], v[1]], t)
        for v, t in VALUES
        if not pa.types.is_null(t) and str(t) != "timestamp[us, tz=UTC]"
    }
)


def write(k: Any, path: Any, table: pa.Table, **output: Any) -> None:
    columns = k.from_arrow(table)
    rows = table.num_rows
    pieces = k.cut(columns, k.row_numbers(0, rows), np.array([0, rows]))
    schema = Schema.from_arrow(table.schema)
    writing = SimpleNamespace(schema=schema, output=Output(path="x", **output), dictionary_columns=["string"])
    k.write_file(k.assemble([pieces], 0, rows), str(path), writing)


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none", "gzip"])
def test_a_file_holds_the_exact_types(k, tmp_path, compression):
    write(k, tmp_path / "a.parquet", TYPED, compression=compression)
    found = pq.read_table(tmp_path / "a.parquet")
    stored = [pa.timestamp("ms") if t == pa.timestamp("s") else t for t in TYPED.schema.types]  # Parquet has no seconds
    assert found.schema.types == stored
    assert found.to_pydict() == TYPED.to_pydict()


def test_a_file_with_time_zones(k, tmp_path):
    table = pa.table({"t": pa.array([NOON.replace(tzinfo=datetime.UTC), None], pa.timestamp("us", "UTC"))})
    write(k, tmp_path / "a.parquet", table)
    assert pq.read_table(tmp_path / "a.parquet").equals(table)


@pytest.mark.parametrize("kind", ["arrow", "csv", "orc"])
def test_other_formats(k, tmp_path, kind):
    import pyarrow.dataset as ds

    table = pa.table({"a": [1, 2], "s": ["x", "y"]})
    write(k, tmp_path / "a", table, format=kind)
    assert (
        ds.dataset(tmp_path / "a", format={"arrow": "ipc"}.get(kind, kind)).to_table().to_pydict() == table.to_pydict()
    )


def test_row_groups_and_bytes(k, tmp_path):
    table = pa.table(
        {"a": np.arange(25_000) % 7, "s": [f"w{i % 90}" for i in range(25_000)], "f": np.arange(25_000) / 3}
    )
    for name in ("a", "b"):
        write(k, tmp_path / name, table, row_group_size=10_000)
    metadata = pq.read_metadata(tmp_path / "a")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [10_000, 10_000, 5_000]
    assert metadata.row_group(0).column(1).compression == "SNAPPY"
    assert pq.read_table(tmp_path / "a").equals(table)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_true_rows(k):
    columns = {"x": col(k, [1, None, 3, 4]), "s": col(k, pa.array(["a", "b", None, "a"]).dictionary_encode())}
    assert plain(true_rows(parse('x > 1 and s == "a"'), columns)) == [3]
    assert plain(true_rows(parse('d >= "2020-01-01"'), {"d": col(k, [DAY, None, datetime.date(1970, 1, 1)])})) == [0]


def test_reading_partitions(k, tmp_path):
    if not hasattr(k, "read_partition"):
        pytest.skip("an optional kernel: this engine takes what the host's reader gives")
    table = pa.table(
        {
            **{f.name: TYPED.column(f.name).take([0, 1] * 50) for f in TYPED.schema},
            "i": range(100),
            "f": [NAN, 1.0] * 50,
        }
    )
    table = table.set_column(table.column_names.index("i"), "i", pa.array(range(100), pa.int64()))
    files = []
    for name, part in (("a", table.slice(0, 60)), ("b", table.slice(60))):
        pq.write_table(part, tmp_path / name, row_group_size=20)
        files.append(File(str(tmp_path / name), (tmp_path / name).stat().st_size, 0))
    pieces = (Piece(0, 5, 20, 0), Piece(0, 0, 20, 1), Piece(0, 0, 20, 2), Piece(1, 0, 20, 0), Piece(1, 0, 7, 1))
    schema = Schema.from_arrow(
        pa.schema(
            [
                (n, pa.float64() if n == "i" else pq.read_schema(tmp_path / "a").field(n).type)
                for n in table.column_names
            ]
        )
    )
    plan = Plan(tuple(files), "parquet", schema, (), ())
    partition = Partition(0, (Block(0, 5, 82, 0, pieces),))
    found = k.read_partition(plan, partition, table.column_names[::-1])
    assert list(found) == table.column_names[::-1]
    assert out(k, found["i"]) == [float(i) for i in range(5, 87)]
    assert out(k, found["f"])[:3] == [1.0, None, 1.0]
    for name, column in found.items():
        assert k.dtype(column) == schema[name].dtype
        if name not in ("i", "f"):
            assert out(k, column) == table.column(name).slice(5, 82).to_pylist()
    assert k.read_partition(Plan(tuple(files), "csv", schema, (), ()), partition, ["i"]) == {}
    others = Plan(tuple(files), "parquet", schema, (), (), (), {"folders": {"string": ["x", "y"]}, "on_host": ["f"]})
    assert list(k.read_partition(others, partition, ["f", "i", "string"])) == ["i"]


RUNS = [pa.table({"x": np.arange(n * 20_000, (n + 1) * 20_000)}) for n in range(6)]


def written_in_runs(path: Path, tables: Any) -> str | None:
    kernels, schema = engines.engine("cudf"), Schema.from_arrow(RUNS[0].schema)
    writing = SimpleNamespace(schema=schema, output=Output(path="x", row_group_size=10_000), dictionary_columns=[])
    frames = (kernels.user_frame({"x": kernels.column(table["x"].combine_chunks())}) for table in tables)
    return str(kernels.write_runs(frames, str(path), writing))


@pytest.mark.gpu
def test_a_file_of_several_runs_has_its_own_bytes_whatever_else_is_opened_meanwhile(tmp_path: Path) -> None:
    import pylibcudf as plc

    others, sinks = [io.BytesIO() for _ in range(200)], []

    def with_others() -> Any:
        for number, table in enumerate(RUNS):
            yield table
            sinks.extend(plc.io.SinkInfo([other]) for other in others[number::6])

    digest = written_in_runs(tmp_path / "a", with_others())
    assert pq.read_table(tmp_path / "a").equals(pa.concat_tables(RUNS))
    assert digest == checksum.digest(tmp_path / "a")
    assert not any(other.getvalue() for other in others)
    assert len(sinks) == 200


@pytest.mark.gpu
def test_memory_that_ends_between_two_runs_of_a_file_is_an_error_like_any_other(tmp_path: Path) -> None:
    def short(runs: int) -> Any:
        yield from RUNS[:runs]
        raise MemoryError("no memory for the next run")

    for runs in (0, 1, 3):
        with pytest.raises(MemoryError, match="for the next run"):
            written_in_runs(tmp_path / "a", short(runs))
    assert written_in_runs(tmp_path / "b", RUNS)
    assert pq.read_table(tmp_path / "b").equals(pa.concat_tables(RUNS))
