"""Facts about infinities: what each operator makes of them, as its description and the table of the reference say."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from flows.commands.inspect import operators
from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.ops.base import Operator
from tasks.ops.docstrings import docstring_of
from tasks.workflow import Workflow
from tests.frames import to_list
from tests.reference import of_infinities
from tests.tasks.ops.fitting import transformed

INF = math.inf
TABLE = pa.table(
    {
        "x": [1.0, INF, -INF, None, 2.0, 2.0],
        "k": [1, 1, 2, 2, 3, 3],
        "y": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "l": pa.array([[1.0, INF], [-INF], None, [], [2.0], [INF]], pa.list_(pa.float64())),
    }
)


@pytest.mark.promise("Plus and minus infinity are values", "tasks/ops/README.md#infinities")
@pytest.mark.parametrize(
    ("selection", "op", "made"),
    [
        (["x"], ops.Bucketize([0, 10]), {"x": [1, 2, 0, None, 1, 1]}),
        (["x"], ops.Bucketize([-INF, 0, INF]), {"x": [2, 3, 1, None, 2, 2]}),
        (["x"], ops.Categorify(), {"x": [5, 6, 4, 1, 3, 3]}),
        (["x"], ops.Clip(-5, 5), {"x": [1.0, 5.0, -5.0, None, 2.0, 2.0]}),
        (["x"], ops.Clip(-INF, 5), {"x": [1.0, 5.0, -INF, None, 2.0, 2.0]}),
        (["x"], ops.DataStats(), {"x": [1.0, INF, -INF, None, 2.0, 2.0]}),
        (["x"], ops.DropLowCardinality(4), {"x": [1.0, INF, -INF, None, 2.0, 2.0]}),
        (["x"], ops.Dropna(), {"x": [1.0, INF, -INF, 2.0, 2.0]}),
        (["x"], ops.FillMedian(), {"x": [1.0, INF, -INF, 2.0, 2.0, 2.0]}),
        (["x"], ops.FillMissing(INF), {"x": [1.0, INF, -INF, INF, 2.0, 2.0]}),
        (["x"], ops.Filter("x > 1"), {"x": [INF, 2.0, 2.0]}),
        (["x"], ops.HashBucket(10), {"x": [6, 3, 2, 5, 0, 0]}),
        (["x"], ops.LogOp(), {"x": [pytest.approx(math.log(2)), INF, None, None, *[pytest.approx(math.log(3))] * 2]}),
        (["x"], ops.NormalizeMinMax(), {"x": [0.0, INF, -INF, None, 1.0, 1.0]}),
        (["x"], ops.QuantileBucketize(3), {"x": [0, 2, 0, None, 2, 2]}),
        (["x"], ops.ReduceDtypeSize(), {"x": [1.0, INF, -INF, None, 2.0, 2.0]}),
        (["l"], ops.ListSlice(0, 1), {"l": [[1.0], [-INF], None, [], [2.0], [INF]]}),
        (["x"], ops.JoinGroupby("y", stats=["sum"]), {"x_y_sum": [1.0, 2.0, 3.0, 4.0, 11.0, 11.0]}),
        (["x"], ops.TargetEncoding("y", p_smooth=0, kfold=1), {"TE_x_y": [1.0, 2.0, 3.0, 4.0, 5.5, 5.5]}),
        (
            ["k"],
            ops.JoinGroupby("x", stats=["sum", "mean", "std", "min", "max"]),
            {
                "k_x_sum": [INF, INF, -INF, -INF, 4.0, 4.0], "k_x_mean": [INF, INF, -INF, -INF, 2.0, 2.0],
                "k_x_std": [None, None, None, None, 0.0, 0.0], "k_x_min": [1.0, 1.0, -INF, -INF, 2.0, 2.0],
                "k_x_max": [INF, INF, -INF, -INF, 2.0, 2.0],
            },
        ),
    ],
    ids=repr,
)  # fmt: skip
def test_what_becomes_of_infinities(selection: list[str], op: Operator, made: dict[str, Any], engine: str) -> None:
    assert transformed(selection >> op, TABLE, engine) == made  # type: ignore[operator]


@pytest.mark.promise("cannot be learned from: an error that names column and row")
@pytest.mark.parametrize(
    ("selection", "op"),
    [
        (["x"], ops.Normalize()), (["x", "y"], ops.PCA(1)), (["x", "k"], ops.PairwiseRegression("y")),
        (["k"], ops.TargetEncoding("x")),
    ],
    ids=repr,
)  # fmt: skip
def test_what_has_no_mean_is_refused(selection: list[str], op: Operator, engine: str) -> None:
    with pytest.raises(DataError, match=r"(?s)cannot learn from inf in column 'x'.*row 1 of the source.*Clip"):
        transformed(selection >> op, TABLE, engine)  # type: ignore[operator]


def test_where_they_are_applied_they_stay_infinite(engine: str) -> None:
    table = pa.table({"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 4.0]})
    other = pa.table({"x": [INF, -INF, None], "y": [1.0, 1.0, 1.0]})
    assert transformed(["x"] >> ops.Normalize(), table, engine, other) == {"x": [INF, -INF, None]}
    assert transformed(["x", "y"] >> ops.PCA(1), table, engine, other) == {"pca_0": [INF, -INF, None]}


def test_in_runs_they_stay_in_their_own(engine: str) -> None:
    dataset = Dataset(TABLE, engine=engine).shuffle_by_keys("k")

    def made(op: Operator) -> dict[str, list[Any]]:
        found = Workflow(["x"] >> op).fit(dataset).transform(dataset).head(6)  # type: ignore[operator]
        return {name: sorted(to_list(found[name]), key=repr) for name in found.columns}

    assert made(ops.DifferenceLag("k")) == {"x_difference_lag_1": [0.0, None, None, None, None, INF]}
    assert made(ops.Rolling(2, ["mean", "min"], "k", min_periods=1)) == {
        "x_rolling_mean_2": [-INF, -INF, 1.0, 2.0, 2.0, INF], "x_rolling_min_2": [-INF, -INF, 1.0, 1.0, 2.0, 2.0],
    }  # fmt: skip
    assert made(ops.Groupby("k", aggs=["sum", "mean", "std", "median", "max", "nunique"])) == {
        "k": [1, 2, 3], "x_sum": [-INF, 4.0, INF], "x_mean": [-INF, 2.0, INF], "x_std": [0.0, None, None],
        "x_median": [-INF, 2.0, INF], "x_max": [-INF, 2.0, INF], "x_nunique": [1, 1, 2],
    }  # fmt: skip


def test_a_window_with_one_sign_has_it_as_sum_whatever_the_others_add_up_to(engine: str) -> None:
    values = [-INF, 1.0, 1e308, 1e308, 1e308, 1.0, INF, -INF]
    table = pa.table({"k": [1] * 8, "t": range(8), "x": values})
    dataset = Dataset(table, engine=engine).shuffle_by_keys("k", sort_by="t")
    made = (
        Workflow(["x"] >> ops.Rolling(4, ["sum", "mean"], "k", min_periods=1)).fit(dataset).transform(dataset).head(8)
    )
    assert to_list(made["x_rolling_sum_4"]) == [-INF, -INF, -INF, -INF, INF, INF, INF, None]
    assert to_list(made["x_rolling_mean_4"]) == [-INF] * 4 + [pytest.approx(7.5e307), pytest.approx(7.5e307), INF, None]


def test_both_signs_have_no_sum(engine: str) -> None:
    table = pa.table({"k": [1, 1], "x": [INF, -INF]})
    made = transformed(["k"] >> ops.JoinGroupby("x", stats=["sum", "mean", "max"]), table, engine)
    assert made == {"k_x_sum": [None, None], "k_x_mean": [None, None], "k_x_max": [INF, INF]}


@pytest.mark.promise("The description of an operator says what it does with infinities")
@pytest.mark.promise("Plus and minus infinity are values")
@pytest.mark.promise("Without it the suite fails")
def test_every_operator_that_looks_at_numbers_says_what_it_does_with_infinities() -> None:
    looking = {name: cls for name, cls in operators().items() if "number" in cls.takes and not cls.keeps_values}
    assert [name for name, cls in looking.items() if "nfinit" not in docstring_of(cls).notes] == []


def test_the_table_of_the_reference_has_the_sentences_on_infinities() -> None:
    assert of_infinities(ops.Clip) == "Infinities are limited like other values; an infinite limit limits nothing."
    assert of_infinities(ops.Cross) == ""
