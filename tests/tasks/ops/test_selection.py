"""Facts about exact medians and quantiles."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import ops
from tasks.dataset import Dataset
from tasks.engines.algorithms import radix_selection
from tasks.workflow import Workflow
from tests.examples import examples
from tests.reads import count_reads
from tests.tasks.ops.fitting import learned, one_column, transformed


@pytest.fixture
def tiny(monkeypatch):
    """Whole keys are kept only while there are at most two, so that a few values take all four passes."""
    monkeypatch.setattr(radix_selection, "EXACT", 2)
    monkeypatch.setattr(radix_selection, "SAMPLE", 4)


def test_null_becomes_the_median(engine):
    assert one_column(ops.FillMedian(), [3, None, 1, 10], pa.int64(), engine) == [3.0, 3.0, 1.0, 10.0]
    assert one_column(ops.FillMedian(), [1.0, 2.0, None, 4.0, 100.0], pa.float32(), engine) == [
        1.0,
        2.0,
        3.0,
        4.0,
        100.0,
    ]


def test_filled_columns_say_where(engine):
    made = transformed(["x"] >> ops.FillMedian(add_binary_cols=True), pa.table({"x": [1, None]}), engine)
    assert made == {"x": [1.0, 1.0], "x_filled": [False, True]}
    lists = pa.table({"l": [[1, None], None, [None, 3]]})
    made = transformed(["l"] >> ops.FillMedian(add_binary_cols=True), lists, engine)
    assert made == {"l": [[1.0, 2.0], None, [2.0, 3.0]], "l_filled": [[False, True], None, [True, False]]}


def test_nothing_but_nulls_stays(engine):
    assert one_column(ops.FillMedian(), [None, None], pa.int64(), engine) == [None, None]
    assert one_column(ops.QuantileBucketize(3), [None, None], pa.int64(), engine) == [None, None]


def test_null_elements_of_lists_are_filled(engine):
    values = [[1, None], None, [], [3, 8]]
    assert one_column(ops.FillMedian(), values, pa.list_(pa.int64()), engine) == [[1.0, 3.0], None, [], [3.0, 8.0]]


def test_the_median_of_other_data_is_that_of_the_fitted(engine):
    table, other = pa.table({"x": [1, 2, 3]}), pa.table({"x": pa.array([None, 50], pa.int64())})
    assert transformed(["x"] >> ops.FillMedian(), table, engine, other) == {"x": [2.0, 50.0]}


SPREAD = np.random.default_rng(5).normal(0, 1e3, 999).astype("float64")
WIDE = np.random.default_rng(6).integers(-(2**62), 2**62, 1000)


@pytest.mark.promise("the exact median of all data, whatever the partitioning")
@pytest.mark.promise(
    "Replace null by the exact median of the whole data set; the column becomes float64",
    "tasks/ops/README.md#fillmedian",
)
@pytest.mark.parametrize("values", [SPREAD, SPREAD.astype("float32"), WIDE, WIDE.astype("uint64"), WIDE % 5], ids=str)
@pytest.mark.parametrize("cuts", [(), (1,), (100, 100, 700)])
def test_the_median_is_exact_for_any_split_in_four_passes(engine, tiny, values, cuts):
    table = pa.table({"x": values})
    found = learned(ops.FillMedian(), table, ["x"], engine, cuts)["median"]
    low, high = np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]].tolist()
    assert found == float((Fraction(low) + Fraction(high)) / 2)
    assert found == pytest.approx(np.median(values.astype("float64")), rel=1e-15)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("values", [SPREAD, WIDE, np.repeat([3, 4, 9], 50)], ids=["floats", "integers", "repeated"])
def test_quantile_boundaries_are_numpys(engine, request, values, few):
    if few:
        request.getfixturevalue("tiny")
    found = learned(ops.QuantileBucketize(7), pa.table({"x": values}), ["x"], engine, (10, 20, 500 % len(values)))[
        "boundaries"
    ]
    expected = np.unique(np.quantile(values.astype("float64"), [i / 7 for i in range(1, 7)]))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@examples(60)
@given(st.lists(st.floats(allow_nan=False, width=64), min_size=1, max_size=40), st.data())
def test_order_statistics_of_any_floats(values, data):
    engine, exact, sample = "pandas", radix_selection.EXACT, radix_selection.SAMPLE
    cut = data.draw(st.integers(0, len(values)))
    table = pa.table({"x": pa.array(values, pa.float64())})
    try:
        radix_selection.EXACT, radix_selection.SAMPLE = 2, 2
        few = learned(ops.FillMedian(), table, ["x"], engine, (cut,))
    finally:
        radix_selection.EXACT, radix_selection.SAMPLE = exact, sample
    ordered = sorted(v + 0.0 for v in values)
    low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
    assert few == learned(ops.FillMedian(), table, ["x"], engine)
    assert low <= few["median"] <= high or low == high


INF, MOST = float("inf"), 1.7e308


@pytest.mark.parametrize(
    ("values", "median"),
    [([0, INF], INF), ([-INF, 0], -INF), ([-INF, INF], -INF), ([-INF, 5, INF], 5), ([INF, INF], INF),
     ([-MOST, MOST], 0), ([0.5 * MOST, MOST], 0.75 * MOST)],
)  # fmt: skip
def test_between_infinite_and_largest_values(engine, values, median):
    table = pa.table({"x": pa.array(values, pa.float64())})
    assert learned(ops.FillMedian(), table, ["x"], engine)["median"] == median
    boundaries = learned(ops.QuantileBucketize(5), table, ["x"], engine)["boundaries"]
    assert boundaries == sorted(boundaries)
    assert all(min(values) <= b <= max(values) for b in boundaries)


@pytest.mark.promise(
    "Put values into buckets of about equal size: Bucketize with the exact quantiles as boundaries, int32; null stays "
    "null"
)
def test_quantile_buckets_agree_with_scikit_learn(engine):
    values = np.random.default_rng(8).exponential(1, 500)
    made = one_column(ops.QuantileBucketize(10), values.tolist(), pa.float64(), engine)
    bins = pytest.importorskip("sklearn.preprocessing").KBinsDiscretizer
    reference = bins(10, encode="ordinal", strategy="quantile", quantile_method="linear")
    assert made == reference.fit_transform(values[:, None])[:, 0].astype(int).tolist()
    assert np.bincount(made).tolist() == [50] * 10


def test_equal_boundaries_become_one(engine):
    assert one_column(ops.QuantileBucketize(4), [1, 1, 1, 1, 1, 1, 2], pa.int64(), engine) == [1, 1, 1, 1, 1, 1, 1]
    table = pa.table({"x": [0, 0, 0, 0, 5, 6, 7, 8]})
    assert learned(ops.QuantileBucketize(4), table, ["x"], engine)["boundaries"] == [0.0, 2.5, 6.25]


def test_the_cardinality_is_known_when_fitted(engine):
    table = pa.table({"x": [1.0, 2.0, 3.0, 4.0]})
    workflow = Workflow(["x"] >> ops.QuantileBucketize(2)).fit(Dataset(table, engine=engine))
    assert workflow.output_schema["x"].properties == {"cardinality": 2, "domain": {"min": 0, "max": 1}}


def test_further_passes_are_shared_and_read_only_what_is_still_open(engine, tiny, monkeypatch):
    reads = []
    count_reads(monkeypatch, lambda _, columns: reads.append(columns))
    table = pa.table({"x": SPREAD, "y": WIDE[:999], "z": np.arange(999), "s": ["a"] * 999})
    nodes = (
        (["x"] >> ops.FillMedian())
        + (["y"] >> ops.QuantileBucketize(3))
        + (["z"] >> ops.Normalize())
        + (["s"] >> ops.Categorify())
    )
    Workflow(nodes).fit(Dataset(table, engine=engine))
    assert reads == [["x", "y", "z", "s"], ["x", "y"], ["y"], ["y"]]  # the median of x is among two values by then


MIDDLES = [
    ([-(2**63), 2**63 - 1], pa.int64(), -0.5),
    ([2**63 - 1, 2**63 - 2], pa.int64(), 2.0**63),
    ([2**53, 2**53 + 1], pa.int64(), 2.0**53),
    ([2**53 + 2, 2**53 + 3], pa.int64(), 2.0**53 + 2),
    ([2**53 + 3, 2**53 + 4], pa.int64(), 2.0**53 + 4),
    ([2**64 - 1, 0], pa.uint64(), 2.0**63),
    ([2**64 - 1, 2**64 - 1], pa.uint64(), 2.0**64),
    ([1.7e308, 1.6e308], pa.float64(), 1.6499999999999999e308),
    ([5e-324, 1.5e-323], pa.float64(), 1e-323),
    ([Decimal("0.10"), Decimal("0.23")], pa.decimal128(9, 2), 0.165),
    ([Decimal("90071992547409.93"), Decimal("90071992547409.95")], pa.decimal128(18, 2), 90071992547409.94),
    ([Decimal("-0.1"), Decimal("0.4"), None], pa.decimal128(3, 1), 0.15),
    ([True, False], pa.bool_(), 0.5),
]


@pytest.mark.promise("medians and quantiles are rounded once")
@pytest.mark.parametrize(("values", "dtype", "median"), MIDDLES, ids=str)
def test_the_mean_of_two_middle_values_is_rounded_once(engine, values, dtype, median):
    table = pa.table({"x": pa.array(values, dtype)})
    assert learned(ops.FillMedian(), table, ["x"], engine, (1,))["median"] == median


@pytest.mark.promise("Integers of any size are compared exactly", "tasks/ops/README.md#quantilebucketize")
@examples(100)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9), st.integers(2, 9))
def test_boundaries_of_integers_divide_them_exactly(values, buckets):
    table = pa.table({"x": pa.array(values, pa.int64())})
    made = transformed(["x"] >> ops.QuantileBucketize(buckets), table, "pandas")["x"]
    ordered, last = sorted(values), len(values) - 1
    edges = set()
    for i in range(1, buckets):
        low, share = divmod(Fraction(i, buckets) * last, 1)
        edges.add(ordered[low] + (ordered[min(low + 1, last)] - ordered[low]) * share)
    for (a, of_a), (b, of_b) in combinations(sorted(zip(values, made, strict=True)), 2):
        assert (of_a == of_b) == (not any(a < edge <= b for edge in edges))


def test_boundaries_of_large_integers_are_what_divides_them(engine):
    values = [2**60, 2**60 + 1, 2**60 + 2, 2**60 + 3]
    table = pa.table({"x": values})
    assert learned(ops.QuantileBucketize(2), table, ["x"], engine) == {"boundaries": [2**60 + 2]}
    assert transformed(["x"] >> ops.QuantileBucketize(2), table, engine) == {"x": [0, 0, 1, 1]}
    assert learned(ops.QuantileBucketize(2), pa.table({"x": [1, 2, 4]}), ["x"], engine) == {"boundaries": [2.0]}


def test_boundaries_between_the_ends_of_float64(engine):
    table = pa.table({"x": [-1.7e308, 1.7e308]})
    assert learned(ops.QuantileBucketize(4), table, ["x"], engine) == {"boundaries": [-0.85e308, 0.0, 0.85e308]}
