"""Operators of users see Series of pandas or cuDF, and kernels that make such."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tasks import engines
from tasks.ops.base import Context, Learned, Operator
from tasks.ops.continuous import FillMissing
from tasks.workflow import Workflow

TABLE = pa.table({"x": [1.0, None, 3.0], "s": ["a", None, "b"]})


class HalfOfFilled(Operator):
    """A kernel's result in the arithmetic of a Series."""

    def transform(self, column: Any, fitted: Any) -> Any:
        return engines.engine_of(column).fill_null(column, 8.0) / 2


class FilledAndDoubled(FillMissing):
    """A built-in operator's result in the arithmetic of a Series."""

    def transform(self, column: Any, fitted: Any) -> Any:
        return super().transform(column, fitted) * 2


class MinusLargest(Learned):
    """Series where it learns, in what it prepares, and in `apply`; it hands a Series on."""

    def order_free(self, unit: Any, schema: Any) -> bool:
        return True

    def observe(self, column: Any) -> float:
        return float(column.dropna().max())

    def merge(self, a: float, b: float) -> float:
        return max(a, b)

    def finalize(self, partial: float) -> dict[str, Any]:
        return {"largest": partial}

    def prepare(self, fitted: Any, engine: Any) -> Any:
        return engine.column(pa.array([fitted["largest"]])).max()

    def apply(self, columns: Any, unit: Any, fitted: Any, context: Context) -> Any:
        (column,) = columns.values()
        return {unit[0]: context.engine.cast(column - fitted, pa.float64()) * 1}


class Encoded(Operator):
    """Strings as they were read."""

    takes = frozenset({"string"})
    encoded = True

    def transform(self, column: Any, fitted: Any) -> Any:
        assert isinstance(column, pd.Series) or type(column).__module__.startswith("cudf")
        return column


@pytest.mark.parametrize(
    ("op", "name", "made"),
    [
        (HalfOfFilled(), "x", [0.5, 4.0, 1.5]),
        (FilledAndDoubled(fill_value=1.0), "x", [2.0, 2.0, 6.0]),
        (MinusLargest(), "x", [-2.0, None, 0.0]),
        (Encoded(), "s", ["a", None, "b"]),
    ],
)
def test_an_operator_of_a_user_gets_series(engine: str, op: Operator, name: str, made: list[Any]) -> None:
    workflow = Workflow([name] >> op).fit(TABLE)
    assert workflow.transform(TABLE)[name].to_pylist() == made


def test_built_in_operators_go_on_with_the_series_of_a_user() -> None:
    workflow = Workflow(["x"] >> HalfOfFilled() >> FillMissing(0.0) >> MinusLargest()).fit(TABLE)
    assert workflow.transform(TABLE)["x"].to_pylist() == [-3.5, 0.0, -2.5]
