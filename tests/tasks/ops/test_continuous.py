"""Normalize, FillMissing, Clip and LogOp."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import engines, ops
from tasks.core.schema import Schema
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tasks.ops.base import Operator
from tests.examples import examples
from tests.learning import cut, fitted, has_nan, learned, rows

INF = math.inf


def made(op: Operator, values: Any, engine: str, dtype: str | None = None) -> list[Any]:
    column = values if isinstance(values, pa.Array) else pa.array(values, dtype and pa.type_for_alias(dtype))
    return rows(["x"] >> op, {"x": column}, engine)["x"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0], [-1.0, 0.0, 1.0]),
        ([1, None, 3, 2], [-1.0, None, 1.0, 0.0]),
        ([True, False, None, True, False], [0.5 / 3**-0.5, -0.5 / 3**-0.5, None, 0.5 / 3**-0.5, -0.5 / 3**-0.5]),
        ([5.0], [0.0]),
        ([0.1] * 7, [0.0] * 7),
        ([[1.0, 3.0], None, [None, 2.0], []], [[-1.0, 1.0], None, [None, 0.0], []]),
    ],
)
def test_normalize(values: list[Any], expected: list[Any], engine: str) -> None:
    found = made(ops.Normalize(), values, engine)
    assert [v if isinstance(v, list) else pytest.approx(v) for v in expected] == found


@pytest.mark.promise("right at offsets of 1e9; constant columns give 0")
def test_normalize_of_a_constant_learned_over_many_blocks_stays_zero(engine: str) -> None:
    table = pa.table({"x": [0.1 + 0.2] * 1001})
    ((found),) = learned(["x"] >> ops.Normalize(), cut(table, 13), engine).values.values()
    assert found == {"n": 1001, "mean": 0.1 + 0.2, "std": 0.0}


@pytest.mark.promise("right at offsets of 1e9; constant columns give 0", "tasks/ops/NVTABULAR.md#moving-from-nvtabular")
def test_normalize_is_right_at_an_offset_of_a_billion(engine: str) -> None:
    rng = np.random.default_rng(3)
    small = rng.integers(0, 1000, 5000)
    table = pa.table({"x": small + 1_000_000_000 * 1.0, "y": small.astype(float)})
    state = learned(["x", "y"] >> ops.Normalize(), cut(table, 100), engine).values
    x, y = state["1/Normalize/x"], state["1/Normalize/y"]
    assert x["std"] == pytest.approx(np.std(small, ddof=1), rel=1e-11)
    assert y["std"] == pytest.approx(np.std(small, ddof=1), rel=1e-12)
    assert x["mean"] - 1e9 == pytest.approx(small.mean(), abs=1e-6)


@pytest.mark.promise(
    "Scale to mean 0 and standard deviation 1: (x - mean) / std, of the rows that are not null (ddof 1)"
)
def test_normalize_is_the_standard_scaler_but_for_ddof(engine: str) -> None:
    scaler = pytest.importorskip("sklearn.preprocessing").StandardScaler()
    values = np.random.default_rng(1).normal(4, 9, 999)
    found = np.array(made(ops.Normalize(dtype="float64"), values.tolist(), engine))
    reference = scaler.fit_transform(values.reshape(-1, 1)).ravel() * math.sqrt(998 / 999)
    assert np.allclose(found, reference, rtol=1e-12, atol=1e-14)


def test_an_unusual_value_at_transform_stays_what_it_is(engine: str) -> None:
    workflow = fitted(["x"] >> ops.Normalize(), {"x": [1.0, 2.0, 3.0]}, engine)
    assert workflow.transform(pa.table({"x": [INF, float("nan"), None]}))["x"].to_pylist() == [INF, None, None]
    with pytest.raises(DataError, match="Normalize cannot learn from inf"):
        fitted(["x"] >> ops.Normalize(), {"x": [1.0, INF]}, engine)


@examples(60)
@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=2, max_size=60), st.integers(1, 20))
def test_moments_are_those_of_numpy_for_any_blocks(values: list[float], block: int) -> None:
    ((found),) = learned(["x"] >> ops.Normalize(), cut(pa.table({"x": values}), block), "pandas").values.values()
    assert found["n"] == len(values)
    assert found["mean"] == pytest.approx(np.mean(values), rel=1e-12, abs=1e-9)
    assert found["std"] == pytest.approx(np.std(values, ddof=1), rel=1e-9, abs=1e-8)


@pytest.mark.promise(
    "Replace null by `fill_value`; with `add_binary_cols` the column `<name>_filled` (bool) says where",
    "tasks/ops/README.md#fillmissing",
)
@pytest.mark.parametrize(
    ("value", "values", "dtype", "expected"),
    [
        (0, [1, None], "int8", [1, 0]),
        (1.5, [None, 2.0], "float32", [1.5, 2.0]),
        ("none", ["a", None, "é"], "string", ["a", "none", "é"]),
        (True, [None, False], "bool", [True, False]),
        (7, [None, None], "int64", [7, 7]),
        (datetime.datetime(2020, 1, 1), [None], "timestamp[us]", [datetime.datetime(2020, 1, 1)]),
        ("2020-01-01T00:00:00", [None], "timestamp[us]", [datetime.datetime(2020, 1, 1)]),
        ("2020-01-01", [None], "date32", [datetime.date(2020, 1, 1)]),
        ("2020-01-01T02:00:00.25+02:00", [None], "timestamp[us]", [datetime.datetime(2020, 1, 1, 0, 0, 0, 250_000)]),
        ("01:02:03", [None], "time32[s]", [datetime.time(1, 2, 3)]),
        (3, [1, 2], "int64", [1, 2]),
    ],
)
def test_fill_missing(value: Any, values: list[Any], dtype: str, expected: list[Any], engine: str) -> None:
    assert made(ops.FillMissing(value), values, engine, dtype) == expected


@pytest.mark.promise(
    "Replace null by `fill_value`; with `add_binary_cols` the column `<name>_filled` (bool) says where"
)
def test_fill_missing_says_where(engine: str) -> None:
    table = {"x": [1, None], "l": [[1, None], None]}
    assert rows(["x", "l"] >> ops.FillMissing(9, add_binary_cols=True), table, engine) == {
        "x": [1, 9],
        "x_filled": [False, True],
        "l": [[1, 9], None],
        "l_filled": [[False, True], None],
    }
    money = pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2))
    for value, filled in ((2, "2.00"), (0.1, "0.10"), ("99999999.99", "99999999.99")):
        assert made(ops.FillMissing(value), money, engine) == [decimal.Decimal("1.50"), decimal.Decimal(filled)]
    assert made(ops.Clip(0.1, 1.25), money, engine) == [decimal.Decimal("1.25"), None]
    for value in (0.001, "0.001", "1e9", "x"):
        with pytest.raises(DataError, match="does not fit column 'x' of type decimal"):
            made(ops.FillMissing(value), money, engine)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (ops.FillMissing(300), "int8"),
        (ops.FillMissing(1.5), "int64"),
        (ops.FillMissing(1e300), "float32"),
        (ops.FillMissing("x"), "int64"),
        (ops.FillMissing(0), "string"),
        (ops.FillMissing(0), "bool"),
        (ops.FillMissing(True), "int64"),
        (ops.FillMissing("soon"), "timestamp[us]"),
        (ops.FillMissing("2020-01-01T00:00:00.5"), "timestamp[s]"),
        (ops.FillMissing("2020-01-01T00:00:00.0000005"), "timestamp[ns]"),
        (ops.FillMissing(datetime.datetime(2020, 1, 1, 0, 0, 0, 1)), "timestamp[ms]"),
        (ops.FillMissing("2020-01-01T12:00"), "date32"),
        (ops.FillMissing("01:02:03.5"), "time32[s]"),
        (ops.Clip(min_value=-1), "uint8"),
        (ops.Clip(max_value=0.5), "int32"),
    ],
)
def test_a_parameter_has_to_fit_the_type(op: Operator, dtype: str) -> None:
    schema = Schema.from_arrow(pa.schema([("x", pa.type_for_alias(dtype))]))
    with pytest.raises(DataError, match=r"does not fit column 'x'"):
        Bound(["x"] >> op, schema)


@pytest.mark.promise(
    "Limit values to [min_value, max_value], in the column's own unit; null stays null and the type stays",
    "tasks/ops/README.md#clip",
)
@pytest.mark.promise(
    "Compute ln(1 + x) in float64, given as float32; -1 gives -inf, values below -1 and null give null",
    "tasks/ops/README.md#logop",
)
@pytest.mark.parametrize(
    ("op", "values", "expected"),
    [
        (ops.Clip(0, 2), [-1, 1, None, 5], [0, 1, None, 2]),
        (ops.Clip(min_value=0), [-1.5, None, INF], [0.0, None, INF]),
        (ops.Clip(max_value=0.5), [[1.0, None, -1.0], None], [[0.5, None, -1.0], None]),
        (ops.Clip(1, 1), [0, 1, 2], [1, 1, 1]),
        (ops.LogOp(), [0.0, math.e - 1, None], [0.0, 1.0, None]),
        (ops.LogOp(), [-1.0, -1.5, INF], [-INF, None, INF]),
        (ops.LogOp(), [True, False], [pytest.approx(math.log(2)), 0.0]),
        (ops.LogOp(), [[0, -2], None], [[0.0, None], None]),
    ],
)
def test_clip_and_log(op: Operator, values: list[Any], expected: list[Any], engine: str) -> None:
    assert made(op, values, engine) == expected


@pytest.mark.promise(
    "Compute ln(1 + x) in float64, given as float32; -1 gives -inf, values below -1 and null give null"
)
def test_log_is_reckoned_in_float64(engine: str) -> None:
    values = np.random.default_rng(2).lognormal(0, 5, 500)
    found = made(ops.LogOp(), values.tolist(), engine)
    assert np.allclose(found, np.log1p(values).astype(np.float32), rtol=1e-7)


@pytest.mark.parametrize(
    ("op", "dtype", "promised"),
    [
        (ops.Normalize(), "int64", pa.float32()),
        (ops.Normalize("float64"), "int64", pa.float64()),
        (ops.LogOp(), "float64", pa.float32()),
        (ops.Clip(0), "int16", pa.int16()),
        (ops.FillMissing(), "uint8", pa.uint8()),
    ],
)
def test_types_out(op: Operator, dtype: str, promised: pa.DataType) -> None:
    for wrap in (lambda t: t, pa.list_):
        schema = Schema.from_arrow(pa.schema([("x", wrap(pa.type_for_alias(dtype)))]))
        assert Bound(["x"] >> op, schema).output["x"].dtype == wrap(promised)


@pytest.mark.parametrize("op", [ops.Normalize(), ops.Clip(0), ops.LogOp()])
@pytest.mark.parametrize(
    "dtype", [pa.string(), pa.timestamp("us"), pa.list_(pa.string()), pa.list_(pa.list_(pa.int64()))]
)
def test_types_that_are_refused(op: Operator, dtype: pa.DataType) -> None:
    with pytest.raises(DataError, match=r"does not take column 'x' of type"):
        Bound(["x"] >> op, Schema.from_arrow(pa.schema([("x", dtype)])))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ops.Clip, "at least one of min_value and max_value"),
        (lambda: ops.Clip(2, 1), "min_value 2 is above max_value 1"),
        (lambda: ops.Clip(float("nan")), "a bound is not a number"),
        (lambda: ops.Clip(minimum=1), "Clip has no parameter 'minimum'"),
        (lambda: ops.Clip(1, 2, 3), "Clip takes 2 parameters, 3 were given"),
        (lambda: ops.Clip(1, min_value=1), "min_value is given twice"),
        (lambda: ops.FillMissing(None), "is itself a null"),
        (lambda: ops.FillMissing(float("nan")), "is itself a null"),
        (lambda: ops.Normalize("int8"), r"Normalize\(dtype\)"),
        (lambda: ops.LogOp(1), "LogOp takes 0 parameters"),
    ],
)
def test_wrong_parameters(make: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make()


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("op", [ops.FillMissing(0.5), ops.Clip(-1.0, 1.0), ops.LogOp(), ops.Normalize()])
@given(
    known=st.lists(FINITE, min_size=1, max_size=5),
    values=st.lists(st.none() | st.floats(allow_nan=False), min_size=1, max_size=8),
)
@examples(50)
def test_what_is_not_looked_through_for_nan_makes_none(
    op: Operator, known: list[float], values: list[float | None], engine: str
) -> None:
    assert not op.may_make_nan
    workflow = fitted(["x"] >> op, {"x": pa.array(known)}, engine)
    found = workflow.transform(pa.table({"x": pa.array(values, pa.float64())}))
    assert not has_nan(found["x"])


def test_what_a_user_s_operator_makes_is_looked_through_for_nan(engine: str) -> None:
    class Outside(ops.Clip):
        def transform(self, column: Any, fitted: Any) -> Any:
            engine = engines.engine_of(column)
            return engine.from_numbers(engine.xp.asarray([math.nan, 2.0]))

    assert Outside(0.0).may_make_nan
    assert made(Outside(0.0), [1.0, 2.0], engine) == [None, 2.0]
