"""Workflows: learn, apply, save, load, serve; frames in and frames of the same kind out."""

from __future__ import annotations

import json
import pickle
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from rowmill import each, svd

from tasks import ops
from tasks.cluster.local_pool import LocalPool
from tasks.core.schema import Schema, Tags
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError, TransientError
from tasks.graph.node import as_node
from tasks.graph.saved_workflow import load_fitted
from tasks.workflow import Workflow
from tests.frames import to_list

TABLE = pa.table(
    {
        "x": [1.0, None, 3.0, 2.0],
        "c": ["a", "b", None, "a"],
        "l": [[1, 2], None, [2], []],
        "t": pa.array([1, 0, 1, 0], pa.int8()),
        "other": [0, 0, 0, 0],
    }
)


def graph() -> Any:
    return (
        (["x"] >> ops.FillMissing(0) >> ops.Normalize())
        + (["c", "l"] >> ops.Categorify())
        + (["c"] >> ops.TargetEncoding("t", kfold=2, p_smooth=0))
        + (["t"] >> ops.AddTags([Tags.TARGET]))
    )


def workflow(engine: str) -> Workflow:
    return Workflow(graph()).fit(Dataset(TABLE, engine=engine))


def test_schemas_before_and_after_fitting(engine: str) -> None:
    promised = Workflow(graph()).output_schema_of(Schema.from_arrow(TABLE.schema))
    assert promised.to_arrow() == pa.schema(
        [
            ("x", pa.float32()),
            ("c", pa.int32()),
            ("l", pa.list_(pa.int32())),
            ("TE_c_t", pa.float32()),
            ("t", pa.int8()),
        ]
    )
    made = workflow(engine)
    assert made.output_schema.to_arrow() == promised.to_arrow()
    assert list(made.input_schema) == ["x", "c", "l", "t"]
    assert made.output_schema["c"].properties["embedding"] == {"rows": 5, "dimension": 16}
    assert made.output_schema.with_tag(Tags.TARGET) == ["t"]


@pytest.mark.promise("For operators with out-of-fold encodings, `fit_transform` returns those")
def test_fit_transform_is_out_of_fold_and_transform_is_not(engine: str) -> None:
    fitted = workflow(engine)
    dataset = Dataset(TABLE, engine=engine)
    full = next(iter(fitted.transform(dataset).to_iter()))
    out_of_fold = next(iter(Workflow(graph()).fit_transform(dataset).to_iter()))
    assert list(full["TE_c_t"].to_numpy()) == [0.5, 0.0, 1.0, 0.5]
    assert list(out_of_fold["TE_c_t"].to_numpy()) != [0.5, 0.0, 1.0, 0.5]
    assert fitted.transform(dataset).schema.to_arrow() == fitted.output_schema.to_arrow()
    assert len(fitted.transform(dataset).head(2)) == 2


@pytest.mark.promise("takes a pandas or cuDF frame or an Arrow table and gives the same kind back")
def test_a_pandas_frame_keeps_its_index_and_kind(engine: str) -> None:
    fitted = workflow(engine)
    table = fitted.transform(TABLE)
    df = pd.DataFrame(
        {
            "other": 1,
            "t": [1, 0, 1, 0],
            "c": ["a", "b", None, "a"],
            "x": [1.0, float("nan"), 3.0, 2.0],
            "l": [[1, 2], None, [2], []],
        },
        index=pd.Index([7, 5, 5, 1], name="key"),
    )
    made = fitted.transform(df)
    assert isinstance(made, pd.DataFrame)
    assert made.index.equals(df.index)
    assert list(made.columns) == ["x", "c", "l", "TE_c_t", "t"]
    assert pa.Table.from_pandas(made, preserve_index=False).replace_schema_metadata().equals(table)
    assert list(df.columns) == ["other", "t", "c", "x", "l"]
    assert isinstance(fitted.transform(TABLE.to_batches()[0]), pa.Table)


def test_a_frame_of_other_types_is_taken_in_the_types_learned_from(engine: str) -> None:
    fitted = workflow(engine)
    wide = TABLE.set_column(0, "x", pa.array([1, None, 3, 2], pa.int16())).set_column(3, "t", pa.array([1, 0, 1, 0]))
    assert fitted.transform(wide).equals(fitted.transform(TABLE))
    with pytest.raises(
        DataError, match=r"(?s)column 't' of type int64 does not fit int8, the type that the workflow was fitted"
    ):
        fitted.transform(TABLE.set_column(3, "t", pa.array([1000, 0, 1, 0])))
    with pytest.raises(DataError, match=r"(?s)the frame has no column 'c'"):
        fitted.transform(TABLE.drop(["c"]))
    with pytest.raises(DataError, match="a workflow cannot transform Series"):
        fitted.transform(pd.Series([1.0], name="x"))
    with pytest.raises(JobError, match=r"(?s)a dict is not a source.*Table\.from_pylist\(rows\)"):
        fitted.transform([{"x": 1}])
    with pytest.raises(DataError, match="a workflow cannot transform dict"):
        fitted.transform({"x": [1]})
    with pytest.raises(DataError, match="column 'c' is int64, the workflow was fitted with string"):
        fitted.transform(Dataset(TABLE.set_column(1, "c", pa.array([1, 2, 3, 4])), engine=engine))


@pytest.mark.parametrize("values", [["1", "0", "1", "0"], [True, False, True, False]])
def test_a_frame_with_values_of_another_kind_is_refused(engine: str, values: list[Any]) -> None:
    with pytest.raises(DataError, match=r"column 't' is (string|bool), the workflow was fitted with int8") as error:
        workflow(engine).transform(TABLE.set_column(3, "t", pa.array(values)))
    assert error.value.where == "the given frame"


@pytest.mark.parametrize("kind", ["frame", "parquet", "csv", "keyed"])
def test_a_data_set_of_other_types_is_read_in_the_types_learned_from(tmp_path: Path, engine: str, kind: str) -> None:
    small = pa.table({"g": pa.array([1, 2, 1], pa.int8()), "x": pa.array([0.1, 0.2, 0.3], pa.float32())})
    wide = pa.table({"g": [1, 2, 1], "x": [0.1, 0.2, 0.3]})
    fitted = Workflow(["x", "g"]).fit(Dataset(small, engine=engine))
    source: Any = wide
    if kind != "frame":
        source = tmp_path / f"a.{kind if kind == 'csv' else 'parquet'}"
        (csv.write_csv if kind == "csv" else pq.write_table)(wide, source)
    dataset = Dataset(source, engine=engine)
    if kind == "keyed":
        dataset = dataset.shuffle_by_keys("g")
    made = fitted.transform(dataset)
    del dataset
    assert (
        made.schema.to_arrow() == fitted.output_schema.to_arrow() == pa.schema([("x", pa.float32()), ("g", pa.int8())])
    )
    assert sorted(to_list(made.head(3)["x"])) == small["x"].to_pylist()
    made.to_parquet(str(tmp_path / "out"), files=1)
    assert pq.read_schema(tmp_path / "out" / "part-00000.parquet").types == [pa.float32(), pa.int8()]
    if kind != "csv":
        far = wide.set_column(0, "g", pa.array([1, 2, 1000]))
        with pytest.raises(DataError, match="column 'g' of type int64 does not fit int8"):
            fitted.transform(Dataset(far, engine=engine)).head(3)


@pytest.mark.promise("without the outputs that need a column which a request does not have")
def test_without_the_target(engine: str) -> None:
    serving = workflow(engine).remove_inputs(["t"])
    assert list(serving.input_schema) == ["x", "c", "l"]
    made = serving.transform(TABLE.drop(["t", "other"]))
    assert made.column_names == ["x", "c", "l", "TE_c_t"]
    assert made["TE_c_t"].to_pylist() == [0.5, 0.0, 1.0, 0.5]


def labelled(engine: str) -> Workflow:
    """A target of two columns, one of which the features need too."""
    target = ["t"] >> ops.AddTags(tags=["target"])
    both = [["c", "t"]] >> ops.Cross() >> ops.Rename(name="both") >> ops.AddTags(tags=["target"])
    features = (["x"] >> ops.Normalize()) + (["c"] >> ops.Categorify())
    table = TABLE.set_column(3, "t", TABLE["t"].cast(pa.string()))
    return Workflow(features + target + both).fit(Dataset(table, engine=engine))


@pytest.mark.promise(
    "Where a request lacks the columns of an output that is tagged as target, `transform` leaves that output out, as "
    "`apply` does, and names it in the log once"
)
def test_targets_are_left_out_where_the_frame_has_none(tmp_path: Path, engine: str, caplog: Any) -> None:
    fitted, request = labelled(engine), TABLE.drop(["t", "other"])
    whole = fitted.transform(TABLE.set_column(3, "t", TABLE["t"].cast(pa.string())))
    made = [fitted.transform(request), fitted.transform(request)]
    frame = fitted.transform(request.to_pandas())
    files = fitted.transform(Dataset(request, engine=engine))
    manifest = files.to_parquet(str(tmp_path / "out"), shuffle="none", files=1)
    fitted.save(tmp_path / "fitted")

    assert whole.column_names == ["x", "c", "t", "both"]
    assert made == [whole.select(["x", "c"])] * 2
    assert list(frame.columns) == ["x", "c"]
    assert list(files.schema) == ["x", "c"]
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet").column_names == ["x", "c"]
    assert manifest.data["left_out"] == ["t", "both"]
    assert list(Workflow.load(tmp_path / "out").output_schema) == ["x", "c", "t", "both"]
    assert Workflow.load(tmp_path / "fitted").transform(request).column_names == ["x", "c"]
    said = "left out, since the frame lacks their columns: t, both"
    assert [text for text in caplog.messages if text == said] == [said, said]  # once for each workflow


def test_any_other_output_needs_its_columns_and_the_error_names_remove_inputs(engine: str) -> None:
    with pytest.raises(DataError, match=r"(?s)the frame has no column 'x'.*workflow\.remove_inputs\(\['x'\]\)"):
        labelled(engine).transform(TABLE.drop(["t", "x"]))
    with pytest.raises(DataError, match=r"(?s)the data set has no column 'x'.*remove_inputs"):
        labelled(engine).transform(Dataset(TABLE.drop(["t", "x"]), engine=engine))
    plain = Workflow(["x", "t"]).fit(Dataset(TABLE, engine=engine))
    with pytest.raises(DataError, match=r"(?s)the frame has no column 't'.*remove_inputs\(\['t'\]\)"):
        plain.transform(TABLE.drop(["t"]))  # nobody has said that it is a target


def test_inputs_that_there_are_not_cannot_be_removed(engine: str) -> None:
    with pytest.raises(JobError, match=r"(?s)no input 'tt'.*did you mean 't'"):
        workflow(engine).remove_inputs(["tt"])


def test_names_that_are_there_twice_or_are_rowmill_s_own(tmp_path: Path, engine: str) -> None:
    fitted = Workflow(["x"] >> ops.Normalize()).fit(Dataset(pa.table({"x": [1.0, 2.0]}), engine=engine))
    twice = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["x", "x"])
    for frame in (twice, pd.DataFrame([[1.0, 2.0]], columns=["x", "x"])):
        with pytest.raises(DataError, match="two columns 'x'"):
            fitted.transform(frame)
    spare = pd.DataFrame([[1.0, 2.0, 3.0]], columns=["x", "y", "y"])  # which nobody looks at
    assert fitted.transform(spare)["x"].tolist() == fitted.transform(pa.table({"x": [1.0]}))["x"].to_pylist()
    with pytest.raises(DataError, match="two columns 'x'"):
        fitted.fit(twice)
    own = pa.table({"__row__": [1], "x": [2.0]})
    pq.write_table(own, tmp_path / "a.parquet")
    for source in (own, tmp_path):
        with pytest.raises(DataError, match="may not be called '__row__'"):
            fitted.fit(Dataset(source, engine=engine))
    with pytest.raises(DataError, match="may not be called '__rowmill_x'"):
        Workflow(["x"] >> ops.Rename(name="__rowmill_x")).fit(Dataset(own.select(["x"]), engine=engine)).output_schema


@pytest.mark.promise("turns ids back into values", "README.md#from-python")
def test_inverse(engine: str) -> None:
    fitted = workflow(engine)
    back = fitted.inverse(fitted.transform(TABLE))
    assert back.select(["c", "l"]).to_pydict() == TABLE.select(["c", "l"]).to_pydict()
    assert back["t"].to_pylist() == [1, 0, 1, 0]


def test_a_workflow_that_learns_again_forgets(engine: str) -> None:
    fitted = Workflow(["x"] >> ops.Normalize("float64")).fit(Dataset(TABLE, engine=engine))
    fitted.transform(TABLE)
    fitted.fit(Dataset(pa.table({"y": [0], "x": [10.0]}), engine=engine))
    assert fitted.transform(pa.table({"x": [11.0]})).to_pydict() == {"x": [1.0]}
    assert list(fitted.input_schema) == ["x"]


def test_what_is_not_fitted_says_so(tmp_path: Path) -> None:
    made = Workflow(graph())
    for work in (
        lambda: made.transform(TABLE),
        lambda: made.transform(Dataset(TABLE)),
        lambda: made.save(tmp_path / "w"),
        lambda: made.inverse(TABLE),
    ):
        with pytest.raises(JobError, match=r"(?s)the workflow is not fitted.*call fit or fit_transform first"):
            work()
    for name in ("output_schema", "input_schema"):
        with pytest.raises(JobError, match=r"(?s)has no schema yet.*call fit first"):
            getattr(made, name)


@pytest.mark.promise("JSON and Parquet instead of pickle: readable, movable, loadable on the other engine")
def test_saved_moved_and_loaded(engine: str, tmp_path: Path) -> None:
    fitted = workflow(engine)
    fitted.save(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    loaded = Workflow.load(tmp_path / "two")
    assert loaded.transform(TABLE).equals(fitted.transform(TABLE))
    assert loaded.output_schema.to_json() == fitted.output_schema.to_json()
    assert sorted(p.name for p in (tmp_path / "two").iterdir() if p.suffix != ".vocab") == [
        "README.md",
        "partials.json",
        "state.json",
        "workflow.json",
    ]
    loaded.save(tmp_path / "again")
    for name in ("workflow.json", "state.json", "partials.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_damaged_and_newer_folders_are_refused(engine: str, tmp_path: Path) -> None:
    workflow(engine).save(tmp_path)
    path = tmp_path / "workflow.json"
    data = json.loads(path.read_text())
    state = (tmp_path / "state.json").read_text()
    (tmp_path / "state.json").write_text(state.replace('"std": ', '"std": 1'))
    with pytest.raises(DataError, match=r"(?s)state.json is damaged.*its digest differs"):
        Workflow.load(tmp_path)
    path.write_text(json.dumps({**data, "format": 6}))
    with pytest.raises(DataError, match=r"(?s)the workflow has format 6, this version reads up to 5.*upgrade rowmill"):
        Workflow.load(tmp_path)
    path.write_text(json.dumps({"format": 1}))
    with pytest.raises(DataError, match=r"workflow.json is damaged"):
        load_fitted(tmp_path)
    with pytest.raises(DataError, match=r"workflow.json is missing"):
        Workflow.load(tmp_path / "nowhere")


def test_a_function_that_cannot_be_saved_is_refused_before_anything_is_written(engine: str, tmp_path: Path) -> None:
    made = Workflow(["x"] >> ops.Lambda(lambda c: c)).fit_transform(Dataset(TABLE, engine=engine))
    with pytest.raises(JobError, match="cannot be saved"):
        made.to_parquet(str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_one_row_is_served_in_milliseconds(engine: str, tmp_path: Path) -> None:
    """Processor time of this process: others on the machine do not count; the limit leaves room for slow ones."""
    n = 2000
    table = pa.table(
        {
            "event_time": ["2019-11-01 00:00:00 UTC", "2019-11-02 13:30:59 UTC"] * (n // 2),
            "category": ["electronics.audio.headphone", "appliances.kitchen"] * (n // 2),
            "brand": [f"brand{i % 90}" for i in range(n)],
            "product": [i % 700 for i in range(n)],
            "user": [10**12 + 7919 * (i % 900) for i in range(n)],
            "price": [float(i % 50) for i in range(n)],
            "bought": [i % 3 == 0 for i in range(n)],
        }
    )
    split = ["category"] >> ops.SplitText(max_parts=3, prefix="cat")
    nodes = (
        (["event_time"] >> ops.DateParts())
        + ([split, "brand", "product", "user"] >> ops.Categorify())
        + (as_node([split, "brand"])[[("cat_1", "brand")]] >> ops.TargetEncoding("bought"))
        + (["price"] >> ops.FillMissing(0) >> ops.LogOp() >> ops.Normalize())
    )
    Workflow(nodes).fit(Dataset(table, engine=engine)).save(tmp_path)
    serving = Workflow.load(tmp_path)
    one = table.slice(3, 1).to_pandas() if engine == "pandas" else table.slice(3, 1)
    serving.transform(one)
    seconds = []
    for _ in range(20):
        start = time.process_time()
        serving.transform(one)
        seconds.append(time.process_time() - start)
    assert statistics.median(seconds) < 0.03


def serve(engine: str, rows: int = 70) -> tuple[Workflow, pa.Table]:
    """A fitted workflow of operators that requests meet, and a table with nulls and unknown values for it."""
    table = pa.table(
        {
            "at": pa.array([None if i % 9 == 4 else i * 86_399_000_000 for i in range(rows)], pa.timestamp("us")),
            "code": [None if i % 7 == 3 else ".".join("abcd"[: i % 5]) for i in range(rows)],
            "user": [None if i % 8 == 5 else (i % 11 - 5) * (10**15 + 7) for i in range(rows)],
            "count": pa.array([None if i % 6 == 1 else i - 9 for i in range(rows)], pa.int32()),
            "price": [None if i % 5 == 2 else float("nan") if i % 10 == 8 else i - 3.5 for i in range(rows)],
            "kind": ["buy" if i % 3 else "look" for i in range(rows)],
        }
    )
    parts = ["code"] >> ops.SplitText(max_parts=3, prefix="part")
    nodes = (
        (["at"] >> ops.DateParts())
        + ([parts, "user"] >> ops.Categorify(num_buckets=2))
        + (as_node([parts, "kind"])[[("part_0", "kind")]] >> ops.TargetEncoding("price"))
        + (["count", "price"] >> ops.FillMissing(0) >> ops.Clip(0, 50) >> ops.LogOp() >> ops.Normalize())
        + (["kind"] >> ops.Lambda(expression="cast(_ == 'buy', 'int8')", name="bought"))
    )
    return Workflow(nodes).fit(Dataset(table.slice(0, rows // 2), engine=engine)), table


def test_rows_alone_get_what_they_get_together(engine: str) -> None:
    fitted, table = serve(engine)
    alone = pa.concat_tables([fitted.transform(table.slice(row, 1)) for row in range(len(table))])
    assert alone.combine_chunks().equals(fitted.transform(table))
    assert fitted.transform(table.slice(0, 0)).equals(alone.slice(0, 0))


def test_frames_of_many_schemas_are_served_in_turns(engine: str) -> None:
    fitted, table = serve(engine)
    expected = fitted.transform(table)
    for order in list(permutations(table.column_names))[::20] * 2:
        assert fitted.transform(table.select(order)).equals(expected)
        with pytest.raises(DataError, match="the frame has no column 'user'"):
            fitted.transform(table.select(order).drop(["user"]))
    wide = table.set_column(3, "count", table["count"].cast(pa.float64()))
    assert fitted.transform(wide).equals(expected)


class Miles(pa.ExtensionType):
    """A type of a user, which Python cannot hash."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "tests.miles")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Miles)

    __hash__ = None  # type: ignore[assignment]


def test_columns_of_types_of_users_are_what_they_are_stored_as(engine: str) -> None:
    fitted = workflow(engine)
    miles = pa.ExtensionArray.from_storage(Miles(), TABLE["x"].combine_chunks())
    for table in (TABLE.set_column(0, "x", miles), TABLE.append_column("far", miles)):
        assert fitted.transform(table).equals(fitted.transform(TABLE))


def test_threads_share_a_workflow_that_no_frame_has_met(engine: str) -> None:
    fitted, table = serve(engine)
    other = table.select(table.column_names[::-1])
    pickled = pickle.dumps(fitted)
    expected = [pickle.loads(pickled).transform(one) for one in (table.slice(5, 1), other)]  # noqa: S301
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(fitted.transform, [table.slice(5, 1), other] * 40))
    assert results == expected * 40
    assert len(pickle.dumps(fitted)) == len(pickled)  # what was prepared for frames stays in its process


@pytest.mark.promise("A pandas frame comes back with Arrow types")
def test_a_pandas_frame_comes_back_with_arrow_types() -> None:
    frame = pd.DataFrame({"brand": ["x", None, "x"], "tags": [["a", "b"], None, ["a"]], "price": [1.0, None, 3.0]})
    workflow = Workflow((["brand", "tags"] >> ops.Categorify()) + (["price"] >> ops.Normalize()))
    out = workflow.fit(frame).transform(frame)
    types = {"brand": "int32[pyarrow]", "tags": "list<item: int32>[pyarrow]", "price": "float[pyarrow]"}
    assert {name: str(dtype) for name, dtype in out.dtypes.items()} == types
    assert out["price"][1] is pd.NA
    assert out["brand"].to_numpy().tolist() == [3, 1, 3]


def test_a_workflow_and_its_results_show_themselves(engine: str) -> None:
    unfitted = Workflow((["x"] >> ops.FillMissing(0) >> ops.Normalize()) + ["c"])
    assert repr(unfitted) == "Workflow(operators=['FillMissing', 'Normalize'], not fitted)"
    dataset = Dataset(TABLE, engine=engine)
    transformed = unfitted.fit_transform(dataset)
    assert repr(unfitted) == "Workflow(operators=['FillMissing', 'Normalize'], columns=['x', 'c'])"
    assert repr(transformed) == f"Transformed({dataset!r}, columns=['x', 'c'])"


@pytest.mark.parametrize("kind", ["path", "folder", "paths", "dask"])
def test_transform_takes_what_fit_takes(engine: str, tmp_path: Path, kind: str) -> None:
    pq.write_table(TABLE, tmp_path / "in.parquet")
    path = tmp_path / "in.parquet"
    sources = {"path": str(path), "folder": tmp_path, "paths": [path], "dask": Dataset(path, engine=engine).to_ddf()}
    fitted = workflow(engine)
    transformed = fitted.transform(sources[kind])
    expected = to_list(fitted.transform(Dataset(TABLE, engine=engine)).head()["x"])
    assert to_list(transformed.head()["x"]) == expected
    with pytest.raises(JobError, match="the workflow is not fitted"):
        Workflow(graph()).transform(sources[kind])


@pytest.mark.system
def test_the_client_of_a_workflow_is_that_of_its_calls(tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    def cluster() -> LocalCluster:
        return LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0")

    with cluster() as one, cluster() as two, Client(one) as current, Client(two, set_as_default=False) as own:
        dataset = Dataset(TABLE, engine="pandas")
        fitted = Workflow(graph(), client=own)
        assert fitted.fit_transform(dataset).dataset.client is own
        assert fitted.transform(dataset).dataset.client is own
        assert fitted.refit_transform(dataset).dataset.client is own
        assert fitted.select(["x"]).client is own
        assert fitted.transform(TABLE).column_names == fitted.output_schema.to_arrow().names  # in this process
        fitted.transform(dataset).to_parquet(str(tmp_path / "out"), files=1)
        assert two.scheduler.transition_log
        assert not one.scheduler.transition_log  # nothing has run on the current client's worker
        assert fitted.transform(dataset, client=current).dataset.client is current
        assert fitted.fit_transform(dataset, client=current).dataset.client is current
        assert one.scheduler.transition_log
        assert pickle.loads(pickle.dumps(fitted)).client is None  # noqa: S301


def test_the_shuffle_modes_of_nvtabular_are_refused_with_those_of_here(tmp_path: Path) -> None:
    transformed = workflow("pandas").transform(Dataset(TABLE, engine="pandas"))
    for name, here in (("PER_WORKER", "worker"), ("PER_PARTITION", "partition"), ("FULL", "full")):
        with pytest.raises(JobError, match=f'shuffle={name}.* is a name of NVTabular: write shuffle="{here}"'):
            transformed.to_parquet(str(tmp_path / "out"), shuffle=name)


@pytest.mark.promise("an output may be larger than memory")
def test_rows_wait_in_scratch_files_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, scratch = pa.table({"x": np.arange(20_000) / 8}), tmp_path / "scratch"
    scratch.mkdir()
    made = Workflow(["x"] >> ops.Normalize()).fit_transform(Dataset(rows, engine="pandas"))
    in_memory = made.to_parquet(str(tmp_path / "memory"), files=2, exchange="memory")
    pool = LocalPool(2)
    pool.memory = 250_100_000  # 50 kB for 320 kB of pieces
    monkeypatch.setattr(Dataset, "pool", pool)
    on_disk = made.to_parquet(str(tmp_path / "disk"), files=2, scratch=scratch)
    assert (in_memory.data["exchange"], on_disk.data["exchange"]) == ("memory", "disk")
    assert [part["xxh3_128"] for part in on_disk.data["parts"]] == [p["xxh3_128"] for p in in_memory.data["parts"]]
    assert list(scratch.iterdir()) == []
    with pytest.raises(JobError, match=r"exchange: .*'ram'"):
        made.to_parquet(str(tmp_path / "no"), exchange="ram")


def test_rows_that_keep_their_order_wait_nowhere_and_have_the_same_bytes(tmp_path: Path) -> None:
    count = 300_000  # five blocks of row groups of 65,536 rows, in three files
    pq.write_table(pa.table({"x": np.arange(count) / 8, "s": ["a", "b", "-"] * (count // 3)}), tmp_path / "in.parquet",
                   row_group_size=1 << 16)  # fmt: skip
    for source in (Dataset(tmp_path / "in.parquet", engine="pandas", partition_size="1MB"), _dask_frame(tmp_path)):
        integer = ops.Lambda(expression="cast(_, 'int64')")
        fitted = Workflow((["x"] >> ops.Normalize()) + (["s"] >> integer >> ops.Rename(postfix="_i"))).fit(source)
        written = {}
        for exchange in ("auto", "memory"):
            folder = str(tmp_path / exchange)
            options = {"shuffle": "none", "files": 3, "on_existing": "replace"}
            written[exchange] = fitted.transform(source).to_parquet(folder, exchange=exchange, **options).data
        assert [part["xxh3_128"] for part in written["auto"]["parts"]] == [
            part["xxh3_128"] for part in written["memory"]["parts"]
        ]
        assert (written["auto"]["exchange"], written["memory"]["exchange"]) == ("none", "memory")
        casts = [one["stages"]["transform"]["failed_casts"][0]["rows"] for one in written.values()]
        assert casts == [count, count]  # a block of two files counts once
    few = Workflow(["x"] >> ops.Normalize()).fit_transform(Dataset(pa.table({"x": [1.0, 2.0, 3.0]}), engine="pandas"))
    empty = few.to_parquet(str(tmp_path / "few"), shuffle="none", files=5)
    assert (empty.data["exchange"], sum(part["rows"] for part in empty.data["parts"])) == ("memory", 3)
    filtered = Workflow((["x"] >> ops.Filter("x > 1")) + ["s"]).fit_transform(source)
    left = filtered.to_parquet(str(tmp_path / "left"), shuffle="none", files=3)
    assert (left.data["exchange"], left.data["rows"]["out"]) == ("memory", count - 9)


def _dask_frame(tmp_path: Path) -> Dataset:
    import dask.dataframe as dd

    table = pq.read_table(tmp_path / "in.parquet")
    starts = list(range(0, table.num_rows, 70_000))
    frame = dd.from_map(lambda start: table.slice(start, 70_000).to_pandas(), starts)
    return Dataset(frame, engine="pandas")


def test_lost_workers_and_short_memory_of_a_call_say_what_to_change() -> None:
    from distributed import KilledWorker

    from tasks.cluster.lost_worker import explain_losses

    with (
        pytest.raises(TransientError, match=r"1 worker\(s\) were lost with the same work of fit") as caught,
        explain_losses("fit", LocalPool(2), "pandas"),
    ):
        raise KilledWorker("task", None, 0)  # type: ignore[arg-type]
    assert "2 thread(s)" in caught.value.why
    assert "a smaller partition_size of the Dataset" in caught.value.do
    assert "a higher memory_limit" in caught.value.do
    with (
        pytest.raises(TransientError, match="there is not enough memory for to_parquet"),
        explain_losses("to_parquet", LocalPool(2), "pandas"),
    ):
        raise MemoryError


@pytest.mark.system
@pytest.mark.promise(
    "if no worker offers the resource within 10 seconds, that is an error", "infra/README.md#resources"
)
def test_annotations_choose_the_workers_that_offer_a_resource(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dask
    from distributed import Client

    from tests.clusters import start_threads

    with start_threads([{"GPU": 1}, {}]) as cluster, Client(cluster, set_as_default=False) as client:
        dataset = Dataset(pa.table({"x": np.arange(1 << 20) / 8}), engine="pandas", partition_size="1MB", client=client)
        with dask.annotate(resources={"GPU": 1}):
            fitted = Workflow(["x"] >> ops.Normalize()).fit(dataset)
            fitted.transform(dataset).to_parquet(str(tmp_path / "out"), files=2)
            svd(dataset)
            each(abs, range(20), client=client)
        ran = {name: worker.state.executed_count for name, worker in cluster.workers.items()}
        assert (ran["worker-0"] > 20, ran["worker-1"]) == (True, 0)
        monkeypatch.setattr("tasks.cluster.current.OFFER_SECONDS", 0.2)
        with (
            dask.annotate(resources={"TPU": 2}),
            pytest.raises(JobError, match=r"no worker offers TPU=2\n(.|\n)*2 worker\(s\) offer GPU=1, nothing"),
        ):
            fitted.fit(dataset)
