"""Facts about exact numbers: sums, means and deviations against fractions, for any split of the rows."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import engines, ops
from tasks.dataset import Dataset
from tasks.engines.algorithms import exact_sums
from tasks.engines.algorithms.moments import deviation, merge_moments
from tasks.workflow import Workflow
from tests.examples import examples
from tests.frames import to_list
from tests.tasks.ops.fitting import learned, transformed

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)
NEAR = st.integers(-1000, 1000).map(lambda i: 1e9 + i / 10)
VALUES = st.lists(FINITE | NEAR | st.sampled_from([1e300, -1e300, 5e-324, 0.1, 0.0]), min_size=1, max_size=30)


def total(values: list[float]) -> Fraction:
    return sum(map(Fraction, values), Fraction())


def variance(values: list[float]) -> Fraction:
    mean = total(values) / len(values)
    return sum(((Fraction(v) - mean) ** 2 for v in values), Fraction()) / (len(values) - 1)


@examples(300)
@given(VALUES, st.integers(1, 3))
def test_sums_are_exact_and_means_lie_among_their_values(values: list[float], groups: int) -> None:
    codes, data = np.arange(len(values)) % groups, np.array(values)
    kernels = engines.engine("pandas")
    sums, rests = kernels.exact_sums_by(codes, groups, data, len(values))
    counts = np.bincount(codes, minlength=groups)
    means = exact_sums.divide_pair(sums, rests, np.maximum(counts, 1), np)
    for group in set(codes.tolist()):
        mine = data[codes == group].tolist()
        scale = sum((abs(Fraction(v)) for v in mine), Fraction())
        assert abs(Fraction(sums[group]) + Fraction(rests[group]) - total(mine)) <= scale / 2**100
        assert min(mine) <= means[group] <= max(mine)


def test_sums_beyond_float64_and_of_infinities_are_infinite() -> None:
    codes = np.array([0, 0, 1, 1, 2, 2, 3, 3, 3])
    values = np.array([1e308, 1e308, math.inf, 1.0, math.inf, -math.inf, 1.7e308, 1.7e308, -1.7e308])
    sums, rests = engines.engine("pandas").exact_sums_by(codes, 4, values, 3)
    assert [sums[0], sums[1], math.isnan(sums[2]), sums[3]] == [math.inf, math.inf, True, 1.7e308]
    assert rests.tolist() == [0.0] * 4


def test_the_mean_of_many_equal_values_is_the_value(engine: str) -> None:
    table = pa.table({"g": ["a"] * 50_000, "x": [1e9 + 0.1] * 50_000})
    stats = ops.JoinGroupby("x", stats=["mean", "std", "min", "max"])
    made = Workflow(["g"] >> stats).fit(Dataset(table, engine=engine)).transform(table.slice(0, 1)).to_pydict()
    assert made == {"g_x_mean": [1e9 + 0.1], "g_x_std": [0.0], "g_x_min": [1e9 + 0.1], "g_x_max": [1e9 + 0.1]}
    encoding = ops.TargetEncoding("x", kfold=5, p_smooth=0, dtype="float64")
    made = Workflow(["g"] >> encoding).fit(Dataset(table, engine=engine)).transform(table.slice(0, 1)).to_pydict()
    assert made == {"TE_g_x": [1e9 + 0.1]}


@pytest.mark.promise(
    "Sums and means of groups are exact before they are rounded to float64, whatever the order of the rows"
)
@pytest.mark.parametrize("backward", [False, True])
def test_sums_are_the_same_bits_for_any_split(engine: str, backward: bool) -> None:
    draw = np.random.default_rng(5)
    values = draw.normal(size=900) * 10.0 ** draw.integers(-9, 9, 900)
    table = pa.table({"g": draw.integers(0, 3, 900), "x": values})
    op, encoding = ops.JoinGroupby("x", stats=["sum", "mean"]), ops.TargetEncoding("x", kfold=3)
    whole = learned(op, table, ["g"], engine)["groups"]
    assert whole["c0_sum"].to_pylist() == [math.fsum(values[table["g"].to_numpy() == g]) for g in range(3)]
    of_folds = learned(encoding, table, ["g"], engine)
    assert of_folds["means"] == [float(total(values.tolist()) / 900)]
    for cuts in ((1, 2, 500), (450,), tuple(range(1, 900, 37))):
        assert learned(op, table, ["g"], engine, cuts, backward)["groups"]["c0_sum"].equals(whole["c0_sum"])
        split = learned(encoding, table, ["g"], engine, cuts, backward)
        assert split["means"] == of_folds["means"]
        for name in (n for n in split["groups"].column_names if "_sum_" in n):
            assert split["groups"][name].equals(of_folds["groups"][name])


def test_the_other_folds_are_not_lost_beside_a_large_one(engine: str) -> None:
    table = pa.table({"g": [1] * 5, "fold": [0, 0, 0, 0, 1], "y": [1e17, 1e17, 1e17, 1e17, 3.0]})
    encoding = ops.TargetEncoding("y", kfold=2, fold_column="fold", p_smooth=0, dtype="float64")
    made = Workflow(["g"] >> encoding).fit_transform(Dataset(table, engine=engine)).head(5)
    assert to_list(made["TE_g_y"]) == [3.0, 3.0, 3.0, 3.0, 1e17]


SIZES = [1e-300, 1e-160, 1.0, 1e9, 1e154, 1e160, 1e300]


@pytest.mark.promise(
    "right also at offsets of 1e9 and for values from 1e-300 to 1e300",
    "tasks/ops/README.md#normalize",
)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3)])
def test_deviations_of_values_of_any_size(engine: str, size: float, cuts: tuple[int, ...]) -> None:
    values = [size, 2 * size, 4 * size, 8 * size]
    std = math.sqrt(variance([1.0, 2.0, 4.0, 8.0])) * size
    table = pa.table({"g": [1] * 4, "x": values})
    found = learned(ops.Normalize(), table, ["x"], engine, cuts)
    assert found["mean"] == pytest.approx(3.75 * size, rel=1e-15)
    assert found["std"] == pytest.approx(std, rel=1e-14)
    profile = learned(ops.DataStats(), table, ["x"], engine, cuts)
    assert (profile["mean"], profile["std"]) == (pytest.approx(3.75 * size), pytest.approx(std, rel=1e-14))
    op = ops.JoinGroupby("x", stats=["mean", "std", "var", "sum"])
    prepared = op.prepare(learned(op, table, ["g"], engine, cuts), engines.engine("pandas"))[1]
    made = {name: to_list(column)[0] for name, column in prepared.items()}
    assert made["0 mean"] == pytest.approx(3.75 * size, rel=1e-15)
    assert made["0 std"] == pytest.approx(std, rel=1e-14)
    assert made["0 sum"] == pytest.approx(15 * size, rel=1e-15)
    if 1e-150 < size < 1e150:
        assert made["0 var"] == pytest.approx(std**2, rel=1e-14)


@pytest.mark.parametrize("size", SIZES)
def test_deviations_of_runs_of_any_size(engine: str, size: float) -> None:
    table = pa.table({"k": [1] * 4 + [2] * 3, "x": [size, 2 * size, 4 * size, 8 * size, 1.0, 2.0, 3.0]})
    dataset = Dataset(table, engine=engine).shuffle_by_keys("k")
    nodes = ["x"] >> ops.Groupby("k", aggs=["mean", "std", "sum"])
    made = Workflow(nodes).fit(dataset).transform(dataset).head(2)
    assert to_list(made["x_mean"]) == [pytest.approx(3.75 * size, rel=1e-15), 2.0]
    assert to_list(made["x_std"]) == [pytest.approx(math.sqrt(variance([1.0, 2.0, 4.0, 8.0])) * size, rel=1e-14), 1.0]
    assert to_list(made["x_sum"]) == [pytest.approx(15 * size, rel=1e-15), 6.0]


@examples(200)
@given(st.lists(FINITE, min_size=2, max_size=20), st.data())
def test_moments_joined_are_those_of_all_values(values: list[float], data: Any) -> None:
    cut = data.draw(st.integers(0, len(values)))
    kernels = engines.engine("pandas")
    whole = kernels.from_numbers(np.array(values))
    parts = kernels.moments(whole, [0, cut, len(values)])
    found = merge_moments(*parts)
    true = variance(values)
    size = max(abs(Fraction(v)) for v in values) ** 2
    assert min(values) <= found[1] <= max(values)
    least = Fraction(5e-324) ** 2 * 4  # a deviation among the smallest numbers is a whole number of them
    product = true * size  # the means are rounded, by 2^-53 of the largest value: the cross term with a deviation
    crossed = Fraction(math.isqrt(product.numerator * product.denominator) + 1, product.denominator) / 2**51
    assert abs(Fraction(deviation(found)) ** 2 - true) <= true / 10**9 + size / 2**90 + crossed + least


def test_normalize_at_the_ends_of_float64(engine: str) -> None:
    table = pa.table({"x": [1.7e308] * 999 + [-1.7e308]})
    made = transformed(["x"] >> ops.Normalize("float64"), table, engine)["x"]
    assert made[0] == pytest.approx(1 / math.sqrt(1000), rel=1e-3)
    assert made[-1] == pytest.approx(-math.sqrt(999), rel=1e-3)


def test_windows_of_large_values_are_finite(engine: str) -> None:
    table = pa.table({"k": [1] * 4, "t": [1, 2, 3, 4], "x": [1.7e308, 1.7e308, -1.7e308, math.inf]})
    dataset = Dataset(table, engine=engine).shuffle_by_keys("k", sort_by="t")
    nodes = ["x"] >> ops.Rolling(3, ["mean", "sum"], "k", min_periods=1)
    made = Workflow(nodes).fit(dataset).transform(dataset).head(4)
    assert to_list(made["x_rolling_mean_3"]) == [1.7e308, 1.7e308, pytest.approx(1.7e308 / 3), math.inf]
    assert to_list(made["x_rolling_sum_3"]) == [1.7e308, math.inf, 1.7e308, math.inf]


def test_medians_and_means_of_runs_are_rounded_once(engine: str) -> None:
    values = [-(2**63), 2**63 - 1, 2**63 - 1, 2**63 - 2, 2**53 + 3, 2**53 + 4]
    table = pa.table({"k": [1, 1, 2, 2, 3, 3], "x": pa.array(values, pa.int64())})
    dataset = Dataset(table, engine=engine).shuffle_by_keys("k")
    nodes = ["x"] >> ops.Groupby("k", aggs=["median", "mean"])
    made = Workflow(nodes).fit(dataset).transform(dataset).head(3)
    made = sorted(zip(to_list(made["k"]), to_list(made["x_median"]), to_list(made["x_mean"]), strict=True))
    assert made == [(1, -0.5, -0.5), (2, 2.0**63, 2.0**63), (3, 2.0**53 + 4, 2.0**53 + 4)]


def test_components_and_fits_of_values_of_any_size(engine: str) -> None:
    for size in (1e-200, 1e200):
        x, z = [size, 2 * size, 4 * size, 9 * size], [3.0, 1.0, 4.0, 1.0]
        y = [2 * a + size * b for a, b in zip(x, z, strict=True)]
        table = pa.table({"x": x, "z": z, "y": y})
        pair = learned(ops.PairwiseRegression("y"), table, ["x", "z"], engine, (2,))["pairs"].to_pylist()[0]
        assert pair["first_coefficient"] == pytest.approx(2.0, rel=1e-12)
        assert pair["second_coefficient"] == pytest.approx(size, rel=1e-12)
        assert pair["r2"] == pytest.approx(1.0)
        shares = learned(ops.PCA(1), table, ["x"], engine, (2,))["components"]["share"].to_pylist()
        assert shares == [1.0]
        whitened = transformed(["x"] >> ops.PCA(1, whiten=True), table, engine)["pca_0"]
        assert np.std(whitened, ddof=1) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.promise(
    "Infinite values are counted in `infinite` and take no part in the rest",
    "tasks/ops/README.md#datastats",
)
def test_infinities_are_counted_apart_in_a_profile(engine: str) -> None:
    values = [1.0, math.inf, math.inf, -math.inf, None, 1.0, 2.0]
    found = learned(ops.DataStats(), pa.table({"x": values}), ["x"], engine, (3,))
    assert {k: found[k] for k in ("infinite", "distinct", "nulls", "max")} == {
        "infinite": 3, "distinct": 2, "nulls": 1, "max": 2.0,
    }  # fmt: skip
    assert found["top"] == [{"value": 1.0, "count": 2}, {"value": 2.0, "count": 1}]
    nothing = learned(ops.DataStats(), pa.table({"x": [math.inf, -math.inf]}), ["x"], engine)
    assert (nothing["distinct"], nothing["top"], nothing["infinite"]) == (0, [], 2)
