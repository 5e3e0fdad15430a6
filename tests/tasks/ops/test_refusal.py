"""Data that an operator cannot take: the error names operator, column, partition, row, and the first such value."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from tasks import ops
from tasks.errors import DataError
from tests.learning import applied, cut, learned

# Six rows in three partitions; the last one holds what cannot be taken, in the row numbered 4.
NUMBERS = pa.table(
    {"g": [1, 2, 1, 2, 1, 2], "x": [0.5, 1.0, None, 2.0, -math.inf, math.inf], "z": [1.0, 2.0, 3.0, 5.0, 8.0, 13.0]}
)
WHERE = r"partition 2 \(rows from 4\)"


@pytest.mark.parametrize(
    ("nodes", "operator"),
    [
        (["x"] >> ops.Normalize(), "Normalize"),
        (["x", "z"] >> ops.PCA(1), "PCA"),
        (["z", "g"] >> ops.PairwiseRegression("x"), "PairwiseRegression"),
        (["g"] >> ops.TargetEncoding("x"), "TargetEncoding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_learned_from(engine: str, nodes: Any, operator: str) -> None:
    with pytest.raises(DataError) as caught:
        learned(nodes, cut(NUMBERS, 2), engine)
    error = caught.value
    assert error.what == f"{operator} cannot learn from -inf in column 'x'"
    assert error.where is not None
    assert error.where.startswith(f"{operator} of ")
    assert error.where.endswith("partition 2 (rows from 4)")
    assert "row 4 of the source holds it" in error.why
    assert "Clip" in error.do


@pytest.mark.parametrize(
    ("nodes", "operator", "value"),
    [
        (["x"] >> ops.Lambda(expression="_ * 100", dtype="int8"), "Lambda of 'x'", "300"),
        (["x"] >> ops.Lambda(function=f"{__name__}:refuse"), "Lambda of 'x'", "3 is refused"),
    ],
    ids=["type", "own function"],
)
def test_what_cannot_be_applied_to(engine: str, nodes: Any, operator: str, value: str) -> None:
    source = cut(pa.table({"x": pa.array([0, 1, 0, 1, 3, 9], pa.int64())}), 2)
    with pytest.raises(DataError, match=rf"(?s){operator}.*{WHERE}.*{value}"):
        applied(nodes, source, learned(nodes, source, engine), engine)


def test_a_type_that_was_fitted_does_not_hold_a_later_value(engine: str) -> None:
    nodes = ["x"] >> ops.ReduceDtypeSize()
    state = learned(nodes, cut(pa.table({"x": [1, 2, 3]}), 2), engine)
    later = cut(pa.table({"x": [0, 1, 0, 1, 300, 9]}), 2)
    with pytest.raises(DataError, match=rf"(?s)column 'x'.*ReduceDtypeSize of 'x'.*{WHERE}.*300"):
        applied(nodes, later, state, engine)


def refuse(column: Any) -> Any:
    """Numbers above 2 are an error of the user's own."""
    if (column > 2).any():
        raise ValueError(f"{int(column[column > 2].iloc[0])} is refused")
    return column
