"""Users' own functions, expressions and operators."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks import ops
from tasks.core.schema import Schema
from tasks.dataset import Dataset
from tasks.errors import DataError, HostError, JobError
from tasks.graph.binding import Bound
from tasks.ops.base import make_operator
from tasks.workflow import Workflow
from tests.frames import to_list
from tests.learning import fitted, rows

TABLE = {"x": [1, None, 3], "y": [10.0, 20.0, None], "s": ["a", None, "b"]}


def double(column: Any) -> Any:
    return column * 2


def with_frame(column: Any, frame: Any) -> Any:
    return column + frame["y"]


def scaled(column: Any, factor: int = 3) -> Any:
    return column * factor


def shorter(column: Any) -> Any:
    return column.iloc[:2]


def broken(column: Any) -> Any:
    raise ValueError("no such price")


def halved(column: Any) -> Any:
    return column / 2


@pytest.mark.parametrize("function", [double, f"{__name__}:double", lambda c: c + c])
def test_a_function_of_a_column(function: Any, engine: str) -> None:
    assert rows(["x"] >> ops.Lambda(function), TABLE, engine) == {"x": [2, None, 6]}


@pytest.mark.promise(
    "Apply a function or an expression of your own to each of the selected columns",
    "tasks/ops/README.md#lambda",
)
def test_a_function_of_a_column_and_the_frame(engine: str) -> None:
    op = ops.Lambda(with_frame, dtype="float64", dependency=["y"], name="z")
    assert rows(["x"] >> op, TABLE, engine) == {"z": [11.0, None, None]}
    assert rows(["x"] >> ops.Lambda(scaled), TABLE, engine) == {"x": [3, None, 9]}


@pytest.mark.promise("Apply a function or an expression of your own to each of the selected columns")
@pytest.mark.promise("`Lambda`, `Filter` and `source.filter` take expressions", "tasks/ops/README.md#expressions")
def test_an_expression_names_columns(engine: str) -> None:
    assert rows(["x"] >> ops.Lambda(expression="_ + y", name="z"), TABLE, engine) == {"z": [11.0, None, None]}
    assert rows(["s"] >> ops.Lambda(expression="upper(_)"), TABLE, engine) == {"s": ["A", None, "B"]}
    assert rows(["x"] >> ops.Lambda(expression="_ == 1"), TABLE, engine) == {"x": [True, None, False]}


def test_numpy_functions_and_plain_arrays(engine: str) -> None:
    if engine == "pandas":
        assert rows(["x"] >> ops.Lambda(np.negative), TABLE, engine) == {"x": [-1, None, -3]}
    made = rows(["y"] >> ops.Lambda(lambda c: [float("nan"), 1.0, None]), TABLE, engine)
    assert made == {"y": [None, 1.0, None]}


def test_the_type_stays_unless_it_is_given(engine: str) -> None:
    with pytest.raises(JobError, match=r"(?s)the function made float64 of int64.*give Lambda the dtype"):
        rows(["x"] >> ops.Lambda(lambda c: c * 0.5), TABLE, engine)
    assert rows(["x"] >> ops.Lambda(lambda c: c * 0.5, dtype="float32"), TABLE, engine) == {"x": [0.5, None, 1.5]}
    with pytest.raises(DataError, match="made values that do not fit the type int8"):
        rows(["x"] >> ops.Lambda(lambda c: c * 100, dtype="int8"), TABLE, engine)


def test_what_goes_wrong_is_named(engine: str) -> None:
    with pytest.raises(DataError, match=r"(?s)Lambda of 'x' failed.*partition 0.*ValueError: no such price"):
        rows(["x"] >> ops.Lambda(broken), TABLE, engine)
    with pytest.raises(DataError, match=r"(?s)Lambda changed the number of rows of 'x' from 3 to 2.*use a filter"):
        rows(["x"] >> ops.Lambda(shorter), TABLE, engine)
    schema = Schema.from_arrow(pa.schema([("price", pa.int64())]))
    with pytest.raises(JobError, match="Lambda needs the column 'prise', which is not there"):
        Bound(["price"] >> ops.Lambda(expression="prise + 1"), schema)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "give either a function or an expression"),
        ({"function": double, "expression": "_"}, "give either a function or an expression"),
        ({"function": "double"}, "'double' is not an import path: write module:name"),
        ({"expression": "_ +"}, "expression|syntax|expected"),
        ({"function": double, "dtype": "int46"}, "did you mean 'int64'"),
        ({"funktion": double}, "Lambda has no parameter 'funktion': did you mean 'function'"),
    ],
)
def test_wrong_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        ops.Lambda(**parameters)


def test_a_missing_function_is_named(engine: str) -> None:
    with pytest.raises(JobError, match=r"tests.tasks.ops.test_lambda:gone' cannot be imported"):
        rows(["x"] >> ops.Lambda(f"{__name__}:gone"), TABLE, engine)


def test_functions_are_saved_by_their_import_path(engine: str, tmp_path: Any) -> None:
    workflow = fitted(["x"] >> ops.Lambda(double), pa.table(TABLE), engine)
    workflow.save(tmp_path / "w")
    assert Workflow.load(tmp_path / "w").transform(pa.table({"x": [4]})).to_pydict() == {"x": [8]}
    assert ops.Lambda(double).to_json() == {"op": "Lambda", "function": f"{__name__}:double"}
    for function in (lambda c: c, functools.partial(scaled, factor=2)):
        with pytest.raises(JobError, match="cannot be saved"):
            ops.Lambda(function).to_json()
        with pytest.raises(JobError, match="cannot be saved"):
            fitted(["x"] >> ops.Lambda(function), pa.table(TABLE), engine).save(tmp_path / "no")
        assert not (tmp_path / "no").exists()


class Largest(ops.Learned):
    """A learned operator of a module of one's own: values as part of the largest one."""

    scale: float = 1.0

    def dtype_out(self, column: Any) -> pa.DataType:
        return pa.float64()

    def order_free(self, unit: Any, schema: Any) -> bool:
        return True

    def observe(self, column: Any) -> float:
        return float(column.max()) if column.notna().any() else 0.0

    def merge(self, a: float, b: float) -> float:
        return max(a, b)

    def finalize(self, partial: float) -> dict[str, Any]:
        return {"largest": partial}

    def transform(self, column: Any, fitted: Any) -> Any:
        return column / fitted["largest"] * self.scale


class Clip(ops.Operator):
    """Goes by its import path, though a built-in operator has the same name."""

    def transform(self, column: Any, fitted: Any) -> Any:
        return column * 0


@pytest.mark.promise("A class of a module of your own, named by import path in `op:`, is as good an operator as these")
def test_an_operator_of_a_users_module(engine: str, tmp_path: Any) -> None:
    op = make_operator({"op": f"{__name__}:Largest", "scale": 100})
    assert op == Largest(scale=100)
    assert op.to_json() == {"op": f"{__name__}:Largest", "scale": 100.0}
    workflow = fitted(["x"] >> op, pa.table(TABLE), engine)
    workflow.save(tmp_path / "w")
    assert Workflow.load(tmp_path / "w").transform(pa.table({"x": [6, None]})).to_pydict() == {"x": [200.0, None]}


def test_a_name_that_is_taken_does_not_hide_the_built_in_operator() -> None:
    assert type(make_operator({"op": "Clip", "min_value": 1})) is ops.Clip
    assert type(make_operator(f"{__name__}:Clip")) is Clip
    assert Clip().to_json() == {"op": f"{__name__}:Clip"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("Categorise", "unknown operator 'Categorise'.*\n.*did you mean 'Categorify'"),
        ({"operator": "Clip"}, "an operator needs the key 'op'"),
        ("nowhere:Op", "'nowhere:Op' cannot be imported"),
        (f"{__name__}:double", "is not an operator"),
    ],
)
def test_operators_that_do_not_exist(spec: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make_operator(spec)


def test_a_module_that_fails_while_it_is_imported_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_written.py").write_text("class Twice(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(HostError, match=r"'half_written:Twice' cannot be imported\n  why: SyntaxError: .*line 1"):
        make_operator("half_written:Twice")


def by_user(column: Any, frame: Any) -> Any:
    return frame.sort_values("y", ascending=False)["y"]


def largest(frame: Any) -> Any:
    return frame.sort_values("y", ascending=False)["y"] > 15


@pytest.mark.parametrize("op", [ops.Lambda(by_user, dependency=["y"], dtype="float64"), ops.Filter(function=largest)])
def test_rows_in_another_order_are_refused(op: Any, engine: str) -> None:
    table = {"x": [1, 2, 3], "y": [10.0, 20.0, 15.0]}
    with pytest.raises(JobError, match="the function returned its rows in another order"):
        rows(["x", "y"] >> op, table, engine)


def test_rows_with_an_index_of_their_own_are_taken_by_position(engine: str) -> None:
    moved = ops.Lambda(lambda c: c.rename({0: 7, 1: 8, 2: 9}) if hasattr(c, "reindex_like") else c)
    assert rows(["x"] >> moved, TABLE, engine) == {"x": [1, None, 3]}


@pytest.mark.promise("works in memory and on the workers of a Dask client; `save` and `to_parquet` refuse it")
def test_a_lambda_works_in_memory_and_is_refused_where_it_is_saved(engine: str, tmp_path: Path) -> None:
    factor, table = 3, pa.table({"x": [1, None, 3]})
    chained = ["x"] >> ops.Filter(function=lambda frame: frame["x"] > 1) >> ops.Lambda(lambda c: c * factor)
    bought = Workflow(chained)
    made = bought.fit_transform(Dataset(table, engine=engine))
    assert to_list(made.head()["x"]) == [9]
    for save in (lambda: bought.save(tmp_path / "fitted"), lambda: made.to_parquet(str(tmp_path / "out"))):
        with pytest.raises(JobError, match=r"(?s)<lambda> cannot be saved.*import path.*top of a module"):
            save()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
@pytest.mark.promise("works in memory and on the workers of a Dask client; `save` and `to_parquet` refuse it")
def test_workers_of_a_cluster_get_closures_that_can_be_pickled(two_workers: Any) -> None:
    table, lock, factor = pa.table({"x": [1, 2]}), threading.Lock(), 3
    data = Dataset(table, engine="pandas")

    def locked(column: Any) -> Any:
        with lock:
            return column

    with two_workers.as_current():
        made = Workflow(["x"] >> ops.Lambda(lambda c: c * factor) >> ops.NormalizeMinMax()).fit(data)
        assert made.transform(table).to_pydict() == {"x": [0.0, 1.0]}
        assert made.transform(data).to_ddf().compute()["x"].tolist() == [0.0, 1.0]
        with pytest.raises(JobError, match=r"(?s)cannot be sent to the workers.*only this process has.*lock"):
            Workflow(["x"] >> ops.Lambda(locked) >> ops.NormalizeMinMax()).fit(data)
    assert Workflow(["x"] >> ops.Lambda(locked)).fit(data).transform(table).to_pydict() == {"x": [1, 2]}


@pytest.mark.system
@pytest.mark.promise("A function of the script itself is saved with a warning")
def test_a_function_of_the_script_is_saved_with_a_warning(tmp_path: Path) -> None:
    lines = [
        "import pyarrow as pa",
        "from rowmill import Workflow, ops",
        "def twice(column):",
        "    return column * 2",
        "table = pa.table({'x': [1]})",
        f"Workflow(['x'] >> ops.Lambda(twice)).fit(table).save({str(tmp_path / 'fitted')!r})",
        f"print(Workflow.load({str(tmp_path / 'fitted')!r}).transform(table).to_pydict())",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout == "{'x': [2]}\n"
    assert "the saved workflow names __main__:twice, which other processes lack" in done.stderr
    with pytest.raises(HostError, match="'__main__:twice' cannot be imported"):
        Workflow.load(tmp_path / "fitted").transform(pa.table({"x": [1]}))
