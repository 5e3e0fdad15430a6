"""What the reference says of infinities, operator by operator (`flows.reference.INFINITE`)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flows.reference import INFINITE
from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.ops.base import Operator
from tasks.workflow import Workflow
from tests.frames import to_list
from tests.learning import rows

INF = float("inf")
TABLE = {"x": [1.0, INF, -INF, None, 3.0], "y": [1.0, 2.0, 3.0, 4.0, 6.0], "k": [1, 1, 2, 2, 2]}
EXPECTED: list[tuple[Any, dict[str, list[Any]]]] = [
    (["x"] >> ops.NormalizeMinMax(), {"x": [0.0, INF, -INF, None, 1.0]}),
    (["x"] >> ops.DataStats(), {"x": [1.0, INF, -INF, None, 3.0]}),
    (["x"] >> ops.FillMedian(), {"x": [1.0, INF, -INF, 2.0, 3.0]}),
    (["x"] >> ops.QuantileBucketize(2), {"x": [0, 1, 0, None, 1]}),
    (["k"] >> ops.JoinGroupby(cont_cols=["x"], stats=["sum", "mean", "std", "min", "max"]), {
        "k_x_sum": [INF, INF, -INF, -INF, -INF], "k_x_mean": [INF, INF, -INF, -INF, -INF], "k_x_std": [None] * 5,
        "k_x_min": [1.0, 1.0, -INF, -INF, -INF], "k_x_max": [INF, INF, 3.0, 3.0, 3.0],
    }),
    (["x"] >> ops.Clip(0, 2), {"x": [1.0, 2.0, 0.0, None, 2.0]}),
    (["x"] >> ops.Bucketize([0, 2]), {"x": [1, 2, 0, None, 2]}),
    (["x"] >> ops.LogOp(), {"x": [pytest.approx(0.6931472), INF, None, None, pytest.approx(1.3862944)]}),
    (["x"] >> ops.Categorify(), {"x": [4, 6, 3, 1, 5]}),
    (["x"] >> ops.HashBucket(100), {"x": [87, 93, 72, 95, 95]}),
    (["x"] >> ops.DropLowCardinality(4), {"x": [1.0, INF, -INF, None, 3.0]}),
    (["x"] >> ops.FillMissing(0), {"x": [1.0, INF, -INF, 0.0, 3.0]}),
    (["x"] >> ops.ReduceDtypeSize(), {"x": [1.0, INF, -INF, None, 3.0]}),
]  # fmt: skip


@pytest.mark.parametrize(("node", "expected"), EXPECTED, ids=[type(node.op).__name__ for node, _ in EXPECTED])
def test_what_an_infinity_does(node: Any, expected: dict[str, list[Any]], engine: str) -> None:
    assert rows(node, TABLE, engine) == expected


@pytest.mark.parametrize(
    "node",
    [
        ["x"] >> ops.Normalize(),
        ["x", "y"] >> ops.PCA(1),
        ["x", "k"] >> ops.PairwiseRegression("y"),
        ["k"] >> ops.TargetEncoding("x", kfold=1),
    ],
    ids=["Normalize", "PCA", "PairwiseRegression", "TargetEncoding"],
)
def test_what_cannot_be_learned_from_an_infinity_names_its_row(node: Any, engine: str) -> None:
    with pytest.raises(DataError, match=r"(?s)cannot learn from inf in column 'x'.*row 1 of the source holds it"):
        rows(node, TABLE, engine)


def test_runs_of_rows_with_infinities(engine: str) -> None:
    def made(node: Any) -> dict[str, list[Any]]:
        source = Dataset(pa.table(TABLE), engine=engine).shuffle_by_keys("k", sort_by="y")
        (part,) = Workflow(node).fit_transform(source).frames()
        return {name: to_list(part[name]) for name in part.columns}

    found = made(["x"] >> ops.Rolling(2, ["mean", "min"], "k", min_periods=1))
    assert sorted(map(str, found["x_rolling_mean_2"])) == sorted(map(str, [1.0, INF, -INF, -INF, 3.0]))
    assert sorted(map(str, found["x_rolling_min_2"])) == sorted(map(str, [1.0, 1.0, -INF, -INF, 3.0]))
    lags = made(["x"] >> ops.DifferenceLag("k"))["x_difference_lag_1"]
    assert sorted(map(str, lags)) == sorted(map(str, [None, INF, None, None, None]))
    grouped = made(["k", "x"] >> ops.Groupby("k", aggs={"x": ["sum", "mean", "std", "min", "max", "median"]}))
    by_key = dict(zip(grouped["k"], zip(*(grouped[n] for n in grouped if n != "k"), strict=True), strict=True))
    assert by_key == {1: (INF, INF, None, 1.0, INF, INF), 2: (-INF, -INF, None, -INF, 3.0, -INF)}


def test_the_table_names_operators() -> None:
    words = {word.strip(" ,") for names in INFINITE for word in names.split()}
    assert {w for w in words if w[0].isupper()} <= set(Operator.registry)
