"""Facts about the scaling to a fitted range."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.workflow import Workflow
from tests.tasks.ops.fitting import learned, one_column, transformed


def test_minmax_scales_to_the_fitted_range(engine):
    assert one_column(ops.NormalizeMinMax(), [2, None, 6, 3], pa.int64(), engine) == [0.0, None, 1.0, 0.25]


@pytest.mark.promise("a constant column gives 0 (there 0.5); not clamped")
def test_minmax_does_not_clamp_other_data(engine):
    made = transformed(
        ["x"] >> ops.NormalizeMinMax(), pa.table({"x": [0.0, 4.0]}), engine, pa.table({"x": [-2.0, 8.0]})
    )
    assert made == {"x": [-0.5, 2.0]}


@pytest.mark.promise("a constant column gives 0 (there 0.5); not clamped")
@pytest.mark.parametrize("values", [[7, 7, 7], [7]])
def test_minmax_of_a_constant_is_zero_also_for_other_values(engine, values):
    made = transformed(["x"] >> ops.NormalizeMinMax(), pa.table({"x": values}), engine, pa.table({"x": [7, 9]}))
    assert made == {"x": [0.0, 0.0]}


def test_minmax_of_nothing_but_nulls_stays_null(engine):
    assert one_column(ops.NormalizeMinMax(), [None, None], pa.float64(), engine) == [None, None]


def test_minmax_learns_from_finite_values_alone(engine):
    assert one_column(ops.NormalizeMinMax(), [0.0, float("inf"), 2.0], pa.float64(), engine) == [0.0, float("inf"), 1.0]


def test_minmax_scales_a_range_beyond_float64(engine):
    made = one_column(ops.NormalizeMinMax("float64"), [-1.7e308, 0.85e308, None, 1.7e308], pa.float64(), engine)
    assert made == [0.0, pytest.approx(0.75, abs=1e-15), None, 1.0]


def test_minmax_scales_the_elements_of_lists(engine):
    dtype = pa.list_(pa.int32())
    assert one_column(ops.NormalizeMinMax(), [[0, 4], None, [], [None, 1]], dtype, engine) == [
        [0, 1],
        None,
        [],
        [None, 0.25],
    ]


@pytest.mark.promise(
    "Scale to the fitted range: (x - min) / (max - min), in float64, given as `dtype`; null stays",
    "tasks/ops/README.md#normalizeminmax",
)
def test_minmax_agrees_with_scikit_learn(engine):
    values = np.random.default_rng(3).normal(1e6, 10, 1000)
    made = one_column(ops.NormalizeMinMax(dtype="float64"), values.tolist(), pa.float64(), engine)
    scaler = pytest.importorskip("sklearn.preprocessing").MinMaxScaler()
    np.testing.assert_allclose(made, scaler.fit_transform(values[:, None])[:, 0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("cuts", [(1,), (2, 2, 3), (1, 2, 3, 4)])
@pytest.mark.parametrize("backward", [False, True])
def test_the_range_is_the_same_for_any_split(engine, cuts, backward):
    table = pa.table({"x": [5, None, -2, 9, 0]})
    assert learned(ops.NormalizeMinMax(), table, ["x"], engine, cuts, backward) == {"min": -2, "max": 9}


@pytest.mark.promise(
    "Store numbers in the smallest type that holds the fitted range; null stays null",
    "tasks/ops/README.md#reducedtypesize",
)
@pytest.mark.parametrize(
    ("values", "dtype"),
    [([0, 127], "int8"), ([-128, 0], "int8"), ([0, 255], "uint8"), ([-1, 255], "int16"), ([0, 65535], "uint16"),
     ([-1, 65535], "int32"), ([0, 2**32 - 1], "uint32"), ([-1, 2**32], "int64"), ([None, 5], "int8")],
)  # fmt: skip
def test_integers_get_the_smallest_type_that_holds_them(engine, values, dtype):
    table = pa.table({"x": pa.array(values, pa.int64())})
    workflow = Workflow(["x"] >> ops.ReduceDtypeSize()).fit(Dataset(table, engine=engine))
    assert str(workflow.output_schema["x"].dtype) == dtype
    assert transformed(["x"] >> ops.ReduceDtypeSize(), table, engine) == {"x": values}


def test_floats_get_float_dtype_where_their_range_allows(engine):
    table = pa.table({"x": [1.5, None], "y": [1e300, 0.0]})
    workflow = Workflow(["x", "y"] >> ops.ReduceDtypeSize()).fit(Dataset(table, engine=engine))
    assert [c.dtype for c in workflow.output_schema.columns] == [pa.float32(), pa.float64()]


def test_a_column_of_nulls_keeps_its_type_and_lists_shrink_by_their_elements(engine):
    table = pa.table({"x": pa.nulls(2, pa.int64()), "l": [[1, 2], [300]]})
    workflow = Workflow(["x", "l"] >> ops.ReduceDtypeSize()).fit(Dataset(table, engine=engine))
    assert [c.dtype for c in workflow.output_schema.columns] == [pa.int64(), pa.list_(pa.int16())]
    assert transformed(["x", "l"] >> ops.ReduceDtypeSize(), table, engine) == {"x": [None, None], "l": [[1, 2], [300]]}


def test_before_fitting_the_schema_says_that_the_type_will_settle():
    workflow = Workflow(["x"] >> ops.ReduceDtypeSize())
    dataset = Dataset(pa.table({"x": [1, 2]}))
    assert workflow.output_schema_of(dataset.schema)["x"].properties == {"settles": "dtype"}
    assert workflow.fit(dataset).output_schema["x"].properties == {}


def test_a_value_beyond_the_fitted_type_is_named(engine):
    with pytest.raises(DataError, match=r"(?s)'x' does not fit the type int8.*fitted on values from 1 to 2"):
        transformed(["x"] >> ops.ReduceDtypeSize(), pa.table({"x": [1, 2]}), engine, pa.table({"x": [1, 1000]}))


LISTS = pa.table({"k": [0, 0, 1, 1], "x": pa.array([[1.0], [2.0, 3.0], None, [4.0]], pa.list_(pa.float32()))})


def test_a_frame_of_no_rows_gets_the_fitted_type(engine):
    workflow = Workflow(["x"] >> ops.ReduceDtypeSize("float64")).fit(Dataset(LISTS, engine=engine))
    made = workflow.transform(LISTS.slice(0, 0))
    assert (made.num_rows, made.schema.field("x").type) == (0, pa.list_(pa.float64()))


def test_a_partition_that_a_filter_empties_gets_the_fitted_type(engine):
    nodes = (["k"] >> ops.Filter("k == 1")) + (["x"] >> ops.ReduceDtypeSize("float64"))
    made = transformed(nodes, LISTS, engine)
    assert made == {"k": [1, 1], "x": [None, [4.0]]}
    halves = Dataset([LISTS.slice(0, 2), LISTS.slice(2)], engine=engine)
    workflow = Workflow(nodes).fit(Dataset(LISTS, engine=engine))
    assert sum(len(frame) for frame in workflow.transform(halves).frames()) == 2


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([2**62, 2**62 + 1, None, 2**62 + 2], pa.int64()),
        ([2**64 - 3, 2**64 - 2, None, 2**64 - 1], pa.uint64()),
        ([-(2**63), -1, None, 2**63 - 1], pa.int64()),
    ],
)
def test_minmax_of_large_integers_subtracts_them_exactly(engine, values, dtype):
    made = one_column(ops.NormalizeMinMax("float64"), values, dtype, engine)
    assert made == [0.0, pytest.approx(0.5, abs=1e-15), None, 1.0]
