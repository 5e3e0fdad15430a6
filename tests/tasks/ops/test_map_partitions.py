"""A function of one's own on whole partitions: frames in, frames out, with declared columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.dataset import Dataset
from tasks.engines import engine_of
from tasks.errors import DataError, HostError, JobError
from tasks.job.fingerprints import users_code
from tasks.workflow import Workflow
from tests.frames import to_list
from tests.learning import cut, fitted, learned, rows

TABLE = {"x": [3, 1, None, 2], "y": [10.0, 20.0, 30.0, None], "s": ["a", "b", None, "d"]}


def rolled(frame: Any) -> Any:
    """The function of the text on custom functions: sort, then a window, of all columns."""
    return frame.sort_values("x")[["x", "y"]].rolling(2).sum()


def smoothed(frame: Any) -> Any:
    return frame.sort_values("x").rolling(2).sum()


def on_arrays(frame: Any) -> Any:
    """NumPy or CuPy inside, which changes the frame in place."""
    xp = engine_of(frame["y"]).xp
    values = xp.asarray(frame["y"].fillna(0.0).to_numpy() if xp.__name__ == "numpy" else frame["y"].fillna(0.0).values)
    frame["cosine"] = xp.cos(values)
    frame["x"] = 0
    return frame[["cosine"]]


def length(frame: Any) -> Any:
    frame["rows"] = len(frame)
    return frame


@pytest.mark.promise("each value goes to the row whose label it has", "flows/SERVING.md#work-of-your-own-at-scale")
def test_a_function_that_sorts_and_rolls_gives_each_row_its_own_value(engine: str) -> None:
    op = ops.MapPartitions(rolled, {"x": "float64", "y": "float64"})
    sums = {"x": [5.0, None, None, 3.0], "y": [None, None, 40.0, None]}
    assert rows((["x", "y"] >> op) + ["s"], TABLE, engine) == sums | {"s": TABLE["s"]}


def test_numpy_or_cupy_inside_and_a_frame_that_is_changed_in_place(engine: str) -> None:
    op = ops.MapPartitions(on_arrays, {"cosine": "float32"})
    made = rows((["x", "y"] >> op) + ["x"], {"x": [1, 2], "y": [0.0, None]}, engine)
    assert made == {"cosine": [1.0, 1.0], "x": [1, 2]}


def test_the_types_are_those_of_a_sample_and_following_operators_learn_from_them(engine: str) -> None:
    graph = ["x"] >> ops.MapPartitions(f"{__name__}:smoothed", ["x"]) >> ops.FillMissing(7) >> ops.NormalizeMinMax()
    workflow = fitted(graph, pa.table(TABLE), engine)
    assert workflow.output_schema.to_arrow() == pa.schema({"x": pa.float32()})
    assert workflow.transform(pa.table(TABLE))["x"].to_pylist() == [0.5, 1.0, 1.0, 0.0]


@pytest.mark.promise("of a list of names the fit takes them from a sample")
def test_types_of_a_sample_hold_for_all_data(engine: str) -> None:
    by_number = lambda frame: frame.astype({"x": "float64"}) if len(frame) == 1 else frame  # noqa: E731
    one = r"(?s)makes (int64|float64) of column 'x' of some rows, and (int64|float64) of others.*columns_out: \{x: "
    with pytest.raises(JobError, match=one):
        learned(["x"] >> ops.MapPartitions(by_number, ["x"]), cut(pa.table({"x": [1, 2, 3]}), 2), engine)
    workflow = Workflow(["x"] >> ops.MapPartitions(by_number, ["x"])).fit(Dataset(pa.table({"x": [1, 2]})))
    with pytest.raises(JobError, match=r"(?s)returned float64 as column 'x', not int64.*the sample of the fit"):
        workflow.transform(pa.table({"x": [3]}))


def test_an_expression_of_a_column_needs_its_type() -> None:
    doubled = ["x"] >> ops.MapPartitions(smoothed, ["x"]) >> ops.Lambda(expression="_ * 2")
    with pytest.raises(JobError, match=r"(?s)Lambda needs the type of column 'x' before the fit.*columns_out"):
        Workflow(doubled).fit(pa.table(TABLE))
    doubled = ["x"] >> ops.MapPartitions(smoothed, {"x": "float64"}) >> ops.Lambda(expression="_ * 2")
    assert rows(doubled, {"x": [1, 2]}, "pandas") == {"x": [None, 6.0]}


def since_first(frame: Any) -> Any:
    return frame[["x"]] - frame.groupby("user")[["x"]].transform("min")


def test_values_of_a_key_are_the_same_for_any_partitions(engine: str) -> None:
    rows, users = 1_200_000, 50
    table = pa.table({"user": pa.array(np.arange(rows) % users), "x": pa.array(np.arange(rows))})
    op = ops.MapPartitions(since_first, {"x": "int64"}, ["user"])
    with pytest.raises(JobError, match="MapPartitions needs all rows of user together"):
        Workflow(["x"] >> op).fit(Dataset(table, engine=engine))
    for size, several in (("1GB", False), (10_000, True)):
        data = Dataset(table, engine=engine, partition_size=size).shuffle_by_keys("user", sort_by="x")
        assert (data.npartitions > 1) == several
        frames = Workflow((["x"] >> op) + ["user"]).fit_transform(data).frames()
        made = pd.concat([pd.DataFrame({name: to_list(f[name]) for name in ("user", "x")}) for f in frames])
        first, last = made.groupby("user")["x"].min(), made.groupby("user")["x"].max()
        assert (first.tolist(), last.tolist()) == ([0] * users, [rows - users] * users)


def test_a_filter_behind_the_function_leaves_its_values_as_they_were(engine: str) -> None:
    counted = ["x"] >> ops.MapPartitions(length, {"rows": "int64"})
    nodes = (counted >> ops.Filter("rows == 4 and x > 1")) + ["x"]
    assert rows(nodes, TABLE, engine) == {"rows": [4, 4], "x": [3, 2]}


def failing(frame: Any) -> Any:
    raise ValueError("no such user")


def changing(frame: Any) -> Any:
    frame["y"] = frame["y"] * 2
    return frame.assign(z=1)


WRONG = [
    (
        failing,
        {"z": "int64"},
        r"MapPartitions of 'x\+y' failed(.|\n)*ValueError: no such user; line \d+ of .*test_map_partitions.py, in ",
    ),
    (changing, {"z": "int64"}, "the function changed the column 'y', which columns_out does not name"),
    (changing, {"y": "float64"}, "the function added the column 'z', which columns_out does not name"),
    (changing, {"y": "float64", "z": "int64", "w": "int8"}, "returned no columns called 'w'(.|\n)*it returned x, y, z"),
    (
        changing,
        {"y": "float64", "z": "string"},
        "int64 as column 'z', not string(.|\n)*its type in columns_out",
    ),
    (lambda f: f.head(1), {"x": "int64"}, "the function returned 1 rows for 4(.|\n)*to remove rows use Filter"),
    (lambda f: f["x"], {"x": "int64"}, "the function returned Series, not a frame of (pandas|cudf)"),
    (lambda f: f.set_index("y"), {"x": "int64"}, "rows with other labels(.|\n)*keep the index"),
    (lambda f: f.assign(x=1000), {"x": "int8"}, "made values that do not fit the type int8"),
]


@pytest.mark.parametrize(("function", "columns", "message"), WRONG)
def test_what_goes_wrong_names_operator_columns_partition_and_file(
    function: Any, columns: dict[str, str], message: str, engine: str, tmp_path: Path
) -> None:
    for number in range(2):
        table = pa.table({"x": [2 * number, 2 * number + 1], "y": [0.5, 1.5]})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    data = Dataset(tmp_path, engine=engine, partition_size=1)
    workflow = Workflow(["x", "y"] >> ops.MapPartitions(function, columns)).fit(data)
    with pytest.raises((DataError, JobError), match=message) as wrong:
        list(workflow.transform(data).frames())
    assert "MapPartitions of 'x+y'" in str(wrong.value)
    assert "partition 0 (rows from 0) of " in str(wrong.value)
    assert "0.parquet" in str(wrong.value)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"function": length}, "MapPartitions needs the parameter 'columns_out'"),
        ({"function": length, "columns_out": {}}, "name at least one column"),
        ({"function": length, "columns_out": ["a", "a"]}, "each once"),
        ({"function": length, "columns_out": {"a": "int46"}}, "did you mean 'int64'"),
        ({"function": "length", "columns_out": ["a"]}, "'length' is not an import path: write module:name"),
    ],
)
def test_wrong_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        ops.MapPartitions(**parameters)


def test_the_function_is_one_that_the_host_allows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    op = ops.MapPartitions(length, {"rows": "int64"})
    assert op.to_json()["function"] == f"{__name__}:length"
    assert users_code([op.to_json()])
    monkeypatch.setenv("ROWMILL_FUNCTION_MODULES", "other")
    with pytest.raises(HostError, match="may not be used"):
        ops.MapPartitions(f"{__name__}:length", {"rows": "int64"})


def test_a_sort_leaves_the_order_and_sorts_as_the_source(engine: str) -> None:
    def sort(frame: Any) -> Any:
        return frame.sort_values("x")

    frame = dd.from_pandas(pd.DataFrame({"x": [3, 1, 2, 0]}), npartitions=2)
    frame = frame.to_backend("cudf") if engine == "cudf" else frame
    workflow = Workflow(["x"] >> ops.MapPartitions(sort, {"x": "int64"})).fit(Dataset(frame, engine=engine))
    assert to_list(workflow.transform(frame).to_ddf().compute()["x"]) == [3, 1, 2, 0]
    in_order = Dataset(frame.map_partitions(sort), engine=engine, index="place")
    assert to_list(in_order.to_ddf(["x"]).compute()["x"]) == [1, 3, 0, 2]
