"""A night in another type of numbers than the fit: fractions are taken where steps calculate, whole floats as ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.graph.binding import Bound
from tasks.graph.node import as_node
from tasks.job.base_version import find_newest_good
from tasks.workflow import Workflow
from tests.frames import to_list
from tests.stages import run_stages

FIRST = pa.table({"user": [1, 2, 2], "price": [1, 2, 3], "label": [0, 1, 1]})
NIGHT = pa.table({"user": [2.0, None, 4.0], "price": [1.5, None, 3.5], "label": [1.0, 0.0, None]})
FEATURES = (
    (["user"] >> ops.Categorify())
    + (["price"] >> ops.FillMissing(2) >> ops.Filter("price > 0") >> ops.Normalize("float64"))
    + ["label"]
)


def parquet(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def as_pandas_writes(table: pa.Table, path: Path) -> Path:
    table.to_pandas().to_csv(path.with_suffix(".csv"), index=False)
    return path.with_suffix(".csv")


def json_lines(table: pa.Table, path: Path) -> Path:
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return path.with_suffix(".jsonl")


WRITERS = [parquet, as_pandas_writes, json_lines]
Writer = Callable[[pa.Table, Path], Path]


def fitted(engine: str, first: pa.Table = FIRST, features: Any = FEATURES) -> Workflow:
    return Workflow(features).fit(Dataset(first, engine=engine))


def transformed(workflow: Workflow, data: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in workflow.output_schema}
    for frame in workflow.transform(data).frames() if isinstance(data, Dataset) else [workflow.transform(data)]:
        for name in found:
            column = frame[name]
            found[name] += column.to_pylist() if isinstance(column, pa.ChunkedArray) else to_list(column)
    return found


@pytest.mark.parametrize("write", WRITERS)
def test_fractions_are_applied_and_whole_floats_are_ids(write: Writer, tmp_path: Path, engine: str) -> None:
    workflow = fitted(engine)
    expected = {"user": [3, 1, 2], "price": [-0.5, 0.0, 1.5], "label": [1, 0, None]}
    assert transformed(workflow, Dataset(write(NIGHT, tmp_path / "night"), engine=engine)) == expected
    assert transformed(workflow, NIGHT) == expected
    assert str(workflow.output_schema["label"].dtype) == "int64"


@pytest.mark.parametrize("write", WRITERS)
def test_fractions_are_learned_and_ids_stay(write: Writer, tmp_path: Path, engine: str) -> None:
    workflow = fitted(engine).refit(Dataset(write(NIGHT, tmp_path / "night"), engine=engine))
    of_all = Workflow(["price"] >> ops.FillMissing(2) >> ops.Normalize("float64")).fit(
        pa.table({"price": [1.0, 2.0, 3.0, 1.5, 2.0, 3.5]})
    )
    (learned,) = (values for key, values in workflow.state.values.items() if "Normalize" in key)
    (wanted,) = (values for key, values in of_all.state.values.items() if "Normalize" in key)
    assert learned["n"] == 6
    assert learned["mean"] == pytest.approx(wanted["mean"], rel=1e-12)
    assert learned["std"] == pytest.approx(wanted["std"], rel=1e-12)
    later = pa.table({"user": [2, 1, 4], "price": [1, 2, 3], "label": [0, 1, 1]})
    assert transformed(workflow, later)["user"] == [3, 4, 5]

    workflow.refit(Dataset(FIRST, engine=engine))  # a night of whole numbers goes on
    (learned,) = (values for key, values in workflow.state.values.items() if "Normalize" in key)
    assert learned["n"] == 9


@pytest.mark.promise(
    "whole floats up to 2^53 are the integer that they are; another value is an error with value, file and row"
)
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("schema", [{}, {"user": "float64"}])
def test_an_id_with_a_fraction_names_value_file_and_row(
    write: Writer, schema: dict[str, str], tmp_path: Path, engine: str
) -> None:
    path = write(NIGHT.set_column(0, "user", pa.array([2.0, None, 4.5])), tmp_path / "night")
    workflow, data = fitted(engine), Dataset(path, schema=schema, engine=engine)
    for work in (lambda: list(workflow.transform(data).frames()), lambda: workflow.refit(data)):
        with pytest.raises(DataError) as caught:
            work()
        assert "4.5" in str(caught.value)
        assert "column user, row 3" in caught.value.where
        assert caught.value.where.startswith(str(path))
        assert "fit all rows again in another type: source.schema: {user: float64}" in caught.value.do
    Workflow(FEATURES).fit(Dataset(path, schema={"user": "float64"}, engine=engine))  # as the error says


def test_the_second_row_group_of_the_second_file_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": [1.0, 2.0]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"user": [1.0, 2.0, 3.0, 1.0, 0.5]}), tmp_path / "b.parquet", row_group_size=3)
    workflow = Workflow(["user"] >> ops.Categorify()).fit(FIRST)
    with pytest.raises(DataError) as caught:
        workflow.refit(Dataset(str(tmp_path / "*.parquet")))
    assert caught.value.where == f"{tmp_path}/b.parquet, column user, row 5"
    assert caught.value.what == "column 'user' has a value that is not of type int64: 0.5"


def test_a_float_that_may_be_several_ids_is_refused() -> None:
    workflow = Workflow(["user"] >> ops.Categorify()).fit(FIRST)
    with pytest.raises(DataError, match="a float beyond 2\\^53 may stand for several whole numbers"):
        workflow.transform(pa.table({"user": [2.0, 2.0**53 + 2]}))
    assert workflow.transform(pa.table({"user": [2.0, 2.0**53]})).to_pydict() == {"user": [3, 2]}


def test_digits_are_read_one_by_one_beside_a_point(tmp_path: Path) -> None:
    ids = [9007199254740992, 9007199254740993]
    workflow = Workflow(["user"] >> ops.Categorify()).fit(pa.table({"user": ids}))
    (tmp_path / "night.csv").write_text("user\n7.0\n9007199254740993\n9007199254740992.0\n")
    assert transformed(workflow, Dataset(tmp_path / "night.csv"))["user"] == [2, 4, 3]
    (tmp_path / "night.jsonl").write_text('{"user": 7.0}\n{"user": 9007199254740993}\n{"user": 9007199254740992.0}\n')
    assert transformed(workflow, Dataset(tmp_path / "night.jsonl"))["user"] == [2, 4, 3]


def test_a_fraction_beyond_the_sample_is_read_as_the_error_says(tmp_path: Path) -> None:
    workflow = Workflow(["price"] >> ops.Normalize("float64")).fit(FIRST)
    (tmp_path / "night.csv").write_text("price\n2\n1.5\n")
    with pytest.raises(DataError, match=r"source\.schema: {price: float64}") as caught:
        list(workflow.transform(Dataset(tmp_path / "night.csv", schema={"price": "int64"})).frames())
    assert "'1.5'" in caught.value.what
    given = Dataset(tmp_path / "night.csv", schema={"price": "float64"})
    assert transformed(workflow, given)["price"] == [0.0, -0.5]


@pytest.mark.parametrize(
    ("decimal", "value", "number"), [(",", "1.426,72", 1426.72), (".", "1,426.72", 1426.72), (",", "1.426", 1426.0)]
)
def test_digits_in_groups_are_read_as_the_error_says(
    decimal: str, value: str, number: float, tmp_path: Path, engine: str
) -> None:
    (tmp_path / "first.csv").write_text(f"price;k\n1{decimal}5;a\n2{decimal}5;b\n")
    (tmp_path / "night.csv").write_text(f"price;k\n{value};a\n2{decimal}5;b\n")
    options: dict[str, Any] = {"delimiter": ";", "decimal": decimal, "engine": engine}
    workflow = Workflow(["price"] >> ops.FillMissing(0)).fit(Dataset(tmp_path / "first.csv", **options))
    with pytest.raises(DataError) as caught:
        transformed(workflow, Dataset(tmp_path / "night.csv", **options))
    advised = re.search(r'source\.schema: {price: "(.*)"}', caught.value.do)
    assert advised is not None
    schema = {"price": advised[1]}
    assert transformed(workflow, Dataset(tmp_path / "night.csv", schema=schema, **options))["price"] == [number, 2.5]
    assert transformed(workflow, Dataset(tmp_path / "first.csv", schema=schema, **options))["price"] == [1.5, 2.5]


def test_a_text_in_a_column_of_numbers_is_null_as_the_error_says(tmp_path: Path, engine: str) -> None:
    workflow = Workflow(["price"] >> ops.FillMissing(0)).fit(pa.table({"price": [1.5]}))
    (tmp_path / "night.csv").write_text("price\nn/a\n2.5\n")
    with pytest.raises(DataError, match=r"or add it to source\.null_values if it means null$"):
        transformed(workflow, Dataset(tmp_path / "night.csv", engine=engine))
    data = Dataset(tmp_path / "night.csv", null_values=["n/a"], engine=engine)
    assert transformed(workflow, data)["price"] == [0, 2.5]


def test_a_type_of_another_kind_is_refused_with_advice_that_works(tmp_path: Path) -> None:
    workflow = fitted("pandas")
    path = as_pandas_writes(NIGHT, tmp_path / "night")
    with pytest.raises(DataError, match=r"leave user out of source\.schema: its fitted type counts"):
        workflow.transform(Dataset(path, schema={"user": "string"}))
    texts = parquet(NIGHT.set_column(0, "user", pa.array(["2", None, "4"])), tmp_path / "texts")
    with pytest.raises(DataError, match=r"read it in that type: source\.schema: {user: int64}"):
        workflow.transform(Dataset(texts))
    assert transformed(workflow, Dataset(texts, schema={"user": "int64"}))["user"] == [3, 1, 2]


@pytest.mark.promise("otherwise the log says that the type of the fit counts")
def test_what_is_read_otherwise_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    transformed(fitted("pandas"), Dataset(parquet(NIGHT, tmp_path / "night")))
    said = "\n".join(caplog.messages)
    assert "column 'price' is float64, the workflow was fitted with int64: read as float64\n" in said + "\n"
    assert "column 'user' is float64, the workflow was fitted with int64: read as int64, which takes whole" in said


@pytest.mark.promise("take the wider type, where the types of the output stay")
@pytest.mark.parametrize(
    ("features", "takes"),
    [
        (["price"] >> ops.Normalize(), True),
        (["price"] >> ops.Clip(0, 10) >> ops.LogOp(), True),
        (["price"] >> ops.Lambda(expression="log(_ + 1) / 2", name="p"), True),
        (["price"] >> ops.Bucketize([1, 2]), True),
        (["price"] >> ops.Rename(name="p") >> ops.NormalizeMinMax(), True),
        ((["price"] >> ops.Normalize()) + (["price"] >> ops.Rename(name="p")), False),
        (["price"] >> ops.Clip(0, 10), False),
        (["price"] >> ops.Lambda(expression="cast(_, 'string')", name="p"), False),
        (["price"] >> ops.Lambda(expression="hash(_)", name="p"), False),
        (["price"] >> ops.Lambda(expression="_ // 2", name="p") >> ops.Normalize(), False),
        (["price"] >> ops.HashBucket(10), False),
        (["user"] >> ops.JoinGroupby("price", stats=["mean"]), False),
        (["user"] >> ops.TargetEncoding("price"), False),
        ([["user", "price"]] >> ops.Cross(), False),
        ((["user"] >> ops.Normalize()) + (["label"] >> ops.Filter("cast(price, 'string') == '1'")), False),
        ((["user"] >> ops.Normalize()) + (["label"] >> ops.Filter("price >= 1")), True),
    ],
    ids=range(16),
)
def test_which_steps_take_fractions(features: Any, takes: bool) -> None:
    bound = Bound(as_node(features), Dataset(FIRST).schema)
    assert bound.taking_wider({"price": pa.float64()}, training=True) == ({"price"} if takes else set())


@pytest.mark.parametrize(
    "learns_from_price",
    [ops.JoinGroupby("price", stats=["mean"]), ops.TargetEncoding("price", kfold=2, drop_folds=True)],
)
def test_a_column_that_only_the_fit_reads_does_not_keep_fractions_out(
    learns_from_price: Any, tmp_path: Path, engine: str
) -> None:
    features = (["user"] >> learns_from_price) + (["price"] >> ops.Normalize("float64"))
    workflow = fitted(engine, features=features)
    path = parquet(pa.table({"user": [2, 1], "price": [1.5, 2.0]}), tmp_path / "night")
    assert transformed(workflow, Dataset(path, engine=engine))["price"] == pytest.approx([-0.5, 0.0])
    frame = pa.table({"user": [2, 1], "price": [1.5, 2.0]})
    assert workflow.transform(frame)["price"].to_pylist() == pytest.approx([-0.5, 0.0])


@pytest.mark.promise(
    "steps that take fractions learn from it in float64 from that night on, and the gate names its new type"
)
def test_nights_of_a_job_go_on_in_the_wider_type_and_the_gate_hears_of_it(tmp_path: Path, engine: str) -> None:
    out = tmp_path / "out"

    def night(table: pa.Table, **refit: Any) -> dict[str, Any]:
        job = {
            "source": {"path": str(parquet(table, tmp_path / f"in{len([*out.glob('v*')])}")), "filter": "price > 0"},
            "features": [
                {"columns": ["user"], "ops": [{"op": "Categorify"}]},
                {"columns": ["price"], "ops": [{"op": "Normalize", "dtype": "float64"}]},
            ],
            "label": ["label"],
            "output": {"path": str(out), "on_existing": "version", "files": 1, "shuffle": "none"},
            "base": str(out),
            **({"refit": refit} if refit else {}),
        }
        made = make_job(job)
        assert made.base_path is not None
        run_stages(made.request(engine, find_newest_good(made.base_path).version))
        folder = sorted(out.glob("v*"))[-1]
        profile = json.loads((folder / "_profile.json").read_text())["columns"]
        schema = json.loads((folder / "_workflow/workflow.json").read_text())["schema"]
        return {
            "rows": pq.read_table(sorted(folder.glob("*.parquet"))[0]).to_pydict(),
            "gate": {column["name"]: column["type"] for column in profile},
            "schema": {column["name"]: column["dtype"] for column in schema},
        }

    first = night(FIRST)
    assert first["gate"] == {"user": "int64", "price": "int64", "label": "int64"}
    second = night(NIGHT)
    assert second["rows"]["user"] == [3, 5]
    assert second["rows"]["label"] == [1, None]
    assert second["rows"]["price"] == pytest.approx([-0.7 / 1.075**0.5, 1.3 / 1.075**0.5], rel=1e-12)
    assert second["gate"] == {"user": "float64", "price": "float64", "label": "float64"}
    assert second["schema"] == {"user": "int64", "price": "float64", "label": "int64"}
    third = night(FIRST, all=True, again=True)
    assert third["rows"]["user"] == [4, 3, 3]
    assert third["rows"]["price"] == [-1.0, 0.0, 1.0]
    assert third["schema"]["price"] == "float64"
