"""Frames stay where they are: on the GPU, or with Dask, whose partitions each pass computes where the workers are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rowmill
from distributed import Client

from tasks import engines, ops
from tasks.dataset import Dataset
from tasks.engines.algorithms.reductions import on_host
from tasks.engines.convert.libraries import to_frame
from tasks.errors import DataError, JobError
from tasks.sources.frames import content_hash, frames_of
from tasks.workflow import Workflow
from tests.clusters import start_threads
from tests.frames import to_list

ROWS = 70_000  # of a partition: more than those of small frames, which are joined


def part(number: int) -> pd.DataFrame:
    rows = np.arange(number * ROWS, (number + 1) * ROWS)
    return pd.DataFrame({"n": rows, "x": rows / 8, "s": np.array(["a", "b", "c"])[rows % 3]})


def lazy(engine: str, function: Callable[[int], pd.DataFrame] = part, partitions: int = 4) -> Any:
    frame = dd.from_map(function, list(range(partitions)), meta=function(0).iloc[:0])
    return frame.to_backend("cudf") if engine == "cudf" else frame


def whole(partitions: int = 4) -> pa.Table:
    return pa.Table.from_pandas(pd.concat([part(i) for i in range(partitions)]), preserve_index=False)


def nodes() -> Any:
    return (["x"] >> ops.Normalize()) + (["s"] >> ops.Categorify()) + ["n"]


def digest(manifest: Any) -> Any:
    return [(record["rows"], record["xxh3_128"]) for record in manifest.data["parts"]]


def outputs(dataset: Dataset, out: Path, **client: Any) -> Any:
    return digest(Workflow(nodes()).fit_transform(dataset, **client).to_parquet(out, files=2, **client))


# Dask frames


def test_a_dask_frame_is_a_dask_array_and_is_decomposed(engine: str) -> None:
    frame, table = Dataset(lazy(engine), engine=engine), Dataset(whole(), engine=engine)
    array = on_host(frame.to_dask_array(["n", "x"]).compute())
    assert (array == on_host(table.to_dask_array(["n", "x"]).compute())).all()
    result = rowmill.svd(frame, ["n", "x"])
    assert np.abs(result.s - np.linalg.svd(array, compute_uv=False)).max() < 1e-9 * result.s[0]
    assert np.abs(on_host(result.u.compute()) * result.s @ result.v - array).max() < 1e-9 * result.s[0]


@pytest.mark.system
def test_a_frame_that_was_shuffled_is_used_again_and_decomposed(caplog: pytest.LogCaptureFixture) -> None:
    """Dask does not warn of `run_spec` while results of an earlier use are there, and loses no task of its shuffle."""
    table = part(0).head(60)
    matrix = table[["n", "x"]].to_numpy()
    with start_threads([{}]) as cluster, Client(cluster, set_as_default=False) as client, client.as_current():
        frame = dd.from_pandas(table, npartitions=2)
        by_tasks = frame.shuffle("n", ignore_index=True, shuffle_method="tasks")
        dataset = Dataset(by_tasks, engine="pandas")
        array = dataset.to_dask_array(["x"]).persist()
        Workflow(["x"] >> ops.Normalize()).fit(dataset)
        assert by_tasks["x"].sum().compute() == float(array.sum()) == table["x"].sum()
        u, s, _ = rowmill.svd(frame.shuffle("n", ignore_index=True, shuffle_method="p2p"), ["n", "x"])
        assert np.abs(s - np.linalg.svd(matrix, compute_uv=False)).max() < 1e-9 * s[0]
        assert u.compute().shape == (60, 2)
    assert "run_spec" not in caplog.text


@pytest.mark.promise("Each pass has Dask compute the partitions where the workers are, works on them one at a time")
def test_a_dask_frame_gives_the_output_of_its_table(engine: str, tmp_path: Path) -> None:
    dataset = Dataset(lazy(engine), engine=engine)
    assert dataset.npartitions == 4
    assert outputs(dataset, tmp_path / "lazy") == outputs(Dataset(whole(), engine=engine), tmp_path / "table")
    assert [len(frame) for frame in dataset.to_iter(["n"])] == [ROWS] * 4
    assert to_list(dataset.head(2)["n"]) == [0, 1]
    assert Dataset(lazy(engine), engine=engine, partition_size="300kB").npartitions == 4  # a block is not cut


def test_nothing_is_computed_before_it_is_needed_and_nothing_stays(tmp_path: Path) -> None:
    computed: list[int] = []

    def counted(number: int) -> pd.DataFrame:
        computed.append(number)
        return part(number)

    frame = dd.from_map(counted, [0, 1, 2], meta=part(0).iloc[:0])
    dataset = Dataset(frame, engine="pandas")
    assert dataset.head(ROWS + 1)["n"].tolist() == list(range(ROWS + 1))
    assert computed == [0, 1]
    computed.clear()
    assert dataset.num_rows == 3 * ROWS
    assert sorted(computed) == [0, 1, 2]
    Workflow(["x"] >> ops.Normalize()).fit(dataset)
    assert sorted(computed) == [0, 0, 1, 1, 2, 2]
    dataset.head(1)
    assert computed.count(0) == 3
    assert len(computed) == 7


def test_wrapping_types_and_to_ddf_compute_nothing_and_partitions_stay(engine: str) -> None:
    def refuse(number: int) -> pd.DataFrame:
        if number >= 0:
            raise AssertionError("computed")
        return pd.DataFrame()

    meta = pd.DataFrame({"n": [1], "x": [0.5], "s": ["a"]}).astype({"s": "string[pyarrow]"}).iloc[:0]
    frame = dd.from_map(refuse, list(range(30)), meta=meta)
    dataset = Dataset(frame.to_backend("cudf") if engine == "cudf" else frame, engine=engine)
    assert [(name, str(column.dtype)) for name, column in dataset.schema.items()] == [
        ("n", "int64"), ("x", "double"), ("s", "string"),
    ]  # fmt: skip
    assert dataset.npartitions == 30
    assert dataset.to_ddf(["s", "n"]).npartitions == 30
    assert list(dataset.to_ddf(["s", "n"]).columns) == ["s", "n"]
    assert bool(dataset)
    with pytest.raises(DataError, match="there is no column 'z'"):
        dataset.to_ddf(["z"])


def test_small_partitions_of_a_dask_frame_stay_apart_and_have_the_rows_of_their_table(
    engine: str, tmp_path: Path
) -> None:
    def small(number: int) -> pd.DataFrame:
        return part(0).iloc[number * 1440 : (number + 1) * 1440 if number != 3 else number * 1440]

    frame, table = lazy(engine, small, 30), pd.concat([small(number) for number in range(30)])
    dataset = Dataset(frame, engine=engine)
    back = dataset.to_ddf()
    assert back.npartitions == 30
    assert to_list(back["n"].compute()) == table["n"].tolist()
    assert len(dataset) == dataset.num_rows == 29 * 1440
    assert dataset.npartitions == 29  # one has no row
    assert [len(frame) for frame in dataset.to_iter(["n"])] == [1440] * 29
    assert dataset.to_ddf().npartitions == 30
    of_table = Dataset(pa.Table.from_pandas(table, preserve_index=False), engine=engine)
    assert of_table.npartitions == 1
    assert outputs(dataset, tmp_path / "frame") == outputs(of_table, tmp_path / "table")


def test_types_that_a_dask_frame_leaves_open_are_those_of_its_rows() -> None:
    with dask.config.set({"dataframe.convert-string": False}):  # else Dask makes texts of all objects
        frame = dd.from_map(lambda i: pd.DataFrame({"x": [[i]]}), [0, 1], meta=pd.DataFrame({"x": [[1]]}).iloc[:0])
        assert Dataset(frame, engine="pandas").schema["x"].dtype.value_type == pa.int64()
        assert [list(x) for x in Dataset(frame, engine="pandas").to_ddf().compute()["x"]] == [[0], [1]]
    named = dd.from_map(lambda i: pd.DataFrame({"c": ["a"]}, dtype="category"), [0, 1])
    assert str(Dataset(named, engine="pandas").schema["c"].dtype) == "string"


def test_what_dask_has_beside_frames_is_refused_at_once() -> None:
    with pytest.raises(JobError, match="a Dask Array is not a source"):
        Dataset(da.zeros((3, 2)))
    with pytest.raises(JobError, match="a Dask Series is not a source"):
        Dataset(lazy("pandas")["x"])


def test_results_of_to_ddf_are_a_source_like_any_dask_frame(engine: str, tmp_path: Path) -> None:
    pq.write_table(whole(2), tmp_path / "in.parquet", row_group_size=ROWS)
    of_files = Dataset(tmp_path / "in.parquet", engine=engine, partition_size="1MB")
    transformed = Workflow(nodes()).fit_transform(of_files)
    again = Dataset(transformed.to_ddf(), engine=engine)
    assert again.num_rows == 2 * ROWS
    mean = Workflow(["n"] >> ops.Normalize()).fit(Dataset(of_files.to_ddf(["n"]), engine=engine))
    assert mean.transform(pa.table({"n": [ROWS - 0.5]}))["n"].to_pylist() == [0.0]
    assert outputs(Dataset(of_files.to_ddf(), engine=engine), tmp_path / "a") == outputs(of_files, tmp_path / "b")


def changing(changes: Callable[[pd.DataFrame, int], pd.DataFrame]) -> Callable[[int], pd.DataFrame]:
    """Partitions that are changed from one computation to the next."""
    times: list[int] = []

    def computed(number: int) -> pd.DataFrame:
        times.append(number)
        return changes(part(number), times.count(number))

    return computed


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (lambda frame, time: frame.iloc[: ROWS - time], "has 69,998 rows; when they were counted it had 69,999"),
        (lambda frame, time: frame.assign(x=frame["x"] + time), "column 'x' of partition 0 of the frame has other"),
        (lambda frame, time: frame.iloc[:: 1 if time % 2 else -1], "of the frame has other values"),
    ],
    ids=["rows", "values", "order"],
)
def test_a_frame_that_is_not_the_same_in_each_pass_is_an_error_whose_advice_works(changes: Any, what: str) -> None:
    def frame() -> Any:
        return dd.from_map(changing(changes), [0], meta=part(0).iloc[:0])

    with pytest.raises(DataError) as caught:
        Workflow(["x"] >> ops.Normalize()).fit(Dataset(frame(), engine="pandas"))
    assert what in str(caught.value)
    assert "Dataset(frame).persist()" in caught.value.do
    dataset = Dataset(frame(), engine="pandas").persist()
    assert len(Workflow(["x"] >> ops.Normalize()).fit(dataset).transform(dataset).head(3)) == 3


def test_only_columns_that_a_pass_takes_are_compared() -> None:
    frame = dd.from_map(changing(lambda f, time: f.assign(x=f["x"] + time)), [0], meta=part(0).iloc[:0])
    Workflow(["n"] >> ops.Normalize()).fit(Dataset(frame, engine="pandas"))


def test_what_passes_cost_is_said_and_that_a_run_cannot_be_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rowmill")
    outputs(Dataset(lazy("pandas", partitions=2), engine="pandas"), tmp_path / "out")
    assert "the 2 partitions of the Dask frame are computed to count their rows, and again in each pass" in caplog.text
    assert "a run that ends early begins anew, it cannot be resumed" in caplog.text
    caplog.clear()
    Workflow(nodes()).fit(Dataset(lazy("pandas", partitions=2), engine="pandas").persist())
    assert caplog.text == ""


def test_a_partition_of_another_type_is_named() -> None:
    frame = dd.from_map(lambda i: pd.DataFrame({"x": [[1, 2], ["a", "b"]][i]}), [0, 1], meta=pd.DataFrame({"x": [1]}))
    with pytest.raises(DataError, match="column 'x' of the frame changes its type") as caught:
        _ = Dataset(frame, engine="pandas").plan
    assert caught.value.where == "frame 1"
    assert caught.value.why == "it is string there, and int64 before"
    whole_numbers = [pd.DataFrame({"x": [1, 2]}), pd.DataFrame({"x": [3.0, None]})]
    assert Dataset(whole_numbers, engine="pandas").head()["x"].isna().tolist() == [False] * 3 + [True]
    fractions = [pd.DataFrame({"x": [1, 2]}), pd.DataFrame({"x": [1.5]})]
    with pytest.raises(DataError, match=r"'x' has a value that is not of type int64: 1\.5") as caught:
        Dataset(fractions, engine="pandas").head()
    assert caught.value.do == "give it one type: frame.astype({'x': 'float64'})"
    fixed = [frame.astype({"x": "float64"}) for frame in fractions]
    assert Dataset(fixed, engine="pandas").head()["x"].tolist() == [1.0, 2.0, 1.5]


VALUES = {
    "number": [[1, 2, 3], [1, 3, 2], [1, 2, None]],
    "text": [["a", "b"], ["b", "a"], ["a", None]],
    "list": [[[1, 2], [3]], [[1], [2, 3]], [None, [1, 2, 3]], [[], [1, 2, 3]]],
    "struct": [[{"a": 1, "b": "x"}], [{"a": 1, "b": "y"}], [{"a": None, "b": "x"}], [None]],
}


@pytest.mark.parametrize("kind", VALUES)
def test_the_hash_of_a_column_tells_values_and_places_apart_on_both_engines(engine: str, kind: str) -> None:
    kernels = engines.engine(engine)
    hashes = [content_hash(kernels.column(pa.array(values)), kernels) for values in VALUES[kind]]
    host = engines.engine("pandas")
    assert hashes == [content_hash(host.column(pa.array(values)), host) for values in VALUES[kind]]
    assert len(set(hashes)) == len(hashes)


def test_the_hash_of_a_map_does_not_depend_on_what_it_is_a_slice_of() -> None:
    kernels, kind = engines.engine("pandas"), pa.map_(pa.string(), pa.int8())
    longer, alone = pa.array([[("z", 1)], [("a", 1)]], kind), pa.array([[("a", 1)]], kind)
    hashes = [content_hash(kernels.column(array), kernels) for array in (longer.slice(1), alone, longer.slice(0, 1))]
    assert hashes[0] == hashes[1] != hashes[2]


# The index


def test_an_index_becomes_a_column_by_its_name_or_is_left_out_with_a_line(
    engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    frame = to_frame(pa.table({"user": [7, 8, 9], "x": [1.0, 2.0, 3.0]}), engine).set_index("user")
    assert to_list(Dataset(frame, engine=engine, index="u").head()["u"]) == [7, 8, 9]
    assert caplog.text == ""
    assert list(Dataset(frame, engine=engine).schema) == ["x"]
    assert "the index of the frame is left out (Index 'user'): index='NAME' makes it a column" in caplog.text
    caplog.clear()
    assert list(Dataset(frame.reset_index(drop=True), engine=engine).schema) == ["x"]
    assert caplog.text == ""


def test_the_index_of_a_dask_frame(caplog: pytest.LogCaptureFixture) -> None:
    frame = lazy("pandas", partitions=2).set_index("n", sorted=True)
    kept = Dataset(frame, engine="pandas", index="n")
    assert list(kept.schema) == ["n", "x", "s"]
    assert kept.head(2)["n"].tolist() == [0, 1]
    for use in (lambda dataset: dataset.num_rows, lambda dataset: dataset.to_ddf()):
        caplog.clear()
        dataset = Dataset(frame, engine="pandas")
        assert list(dataset.schema) == ["x", "s"]
        use(dataset)
        assert "the index of the frame is left out (RangeIndex 'n')" in caplog.text
    caplog.clear()
    shuffled = lazy("pandas", partitions=2).shuffle("n", ignore_index=True)
    filtered = lazy("pandas", partitions=2).query("n > 5")
    for without in (shuffled, filtered):  # numbers of rows that are left over
        assert Dataset(without, engine="pandas").num_rows > 0
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (pa.table({"x": [1]}), "a Table has no index"),
        (pd.DataFrame({"x": [1]}), "the frame has a column 'x'"),
        (pd.DataFrame({"x": [1], "a": [1], "b": [1]}).set_index(["a", "b"]), "the index has several levels"),
        ("data.parquet", "files have no index"),
    ],
)
def test_an_index_that_cannot_be_a_column_is_refused(source: Any, what: str) -> None:
    with pytest.raises(JobError, match=what):
        _ = Dataset(source, index="x").schema


# cuDF frames


def test_columns_on_a_gpu_are_cut_joined_and_compared_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, with the kernels of the CPU: frames of pandas stand for those of cuDF."""
    kernels = engines.engine("pandas")
    monkeypatch.setattr("tasks.sources.frames.engines.engine", lambda name: kernels)
    monkeypatch.setattr("tasks.sources.frames.libraries.library", lambda frame: "cudf")
    struct = pd.array([{"a": 1}] * 3, pd.ArrowDtype(pa.struct([("a", pa.int8())])))
    small = [part(number).head(3).assign(m=struct) for number in range(3)]
    whole = frames_of(small, "cudf")
    assert [one.rows for one in whole.inputs] == [3, 3, 3]
    (partition,) = whole.partitions(whole.blocks(), 1 << 30)
    columns = whole.on_device(partition, ["s", "x", "m"], kernels)
    assert {name: to_list(column) for name, column in columns.items()} == {
        "s": ["a", "b", "c", "b", "c", "a", "c", "a", "b"],
        "x": [*(i / 8 for i in range(3)), *((ROWS + i) / 8 for i in range(3)), *((2 * ROWS + i) / 8 for i in range(3))],
    }  # what needs a stand-in is read by way of the host
    assert len(whole.read(partition.blocks[0].pieces, ["m"], partition.inputs)) == 9
    small[1].iloc[2, 1] = -1.0
    with pytest.raises(DataError, match="column 'x' of partition 1 of the frame has other values"):
        whole.on_device(partition, ["x"], kernels)
    assert list(whole.on_device(partition, ["n"], kernels)) == ["n"]


@pytest.mark.gpu
@pytest.mark.promise("A cuDF frame stays on the GPU with the engine cudf")
@pytest.mark.parametrize("kind", ["cudf", "dask_cudf", "persisted"])
def test_a_cudf_frame_does_not_leave_the_gpu(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import cudf

    plain = to_frame(whole(1), "cudf")
    expected = outputs(Dataset(whole(1), engine="cudf"), tmp_path / "table")
    dataset = Dataset(plain if kind != "dask_cudf" else lazy("cudf", partitions=1), engine="cudf")
    dataset = dataset.persist() if kind == "persisted" else dataset

    def refused(self: Any, *args: Any, **options: Any) -> Any:
        assert len(self) == 0, "rows are copied to the host"
        return to_arrow(self, *args, **options)

    to_arrow = cudf.DataFrame.to_arrow
    monkeypatch.setattr(cudf.DataFrame, "to_arrow", refused)
    monkeypatch.setattr("tasks.sources.frames.to_table", lambda frame, *_: frame.head(0).to_arrow())
    assert outputs(dataset, tmp_path / "out") == expected
    assert type(next(dataset.to_iter())).__module__.startswith("cudf")
    assert len(dataset.to_ddf().compute(scheduler="sync")) == ROWS


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("engine", ["cudf", "pandas"])
def test_nested_columns_of_cudf_without_a_value_keep_their_types(rows: int, engine: str) -> None:
    import cudf

    filled = {"n": [1, 2], "l": [["a"], None], "p": [["b"], ["c"]], "s": [{"x": ["d"]}, None]}
    empty = {"n": [3] * rows, "l": [None] * rows, "p": [[None]] * rows, "s": [{"x": None}] * rows}
    types = pa.table(filled).schema
    parts = [cudf.DataFrame.from_arrow(pa.table(of, types)) for of in (empty, filled)]
    assert frames_of(parts, engine).schema.to_arrow() == types
    if rows:
        alone = Dataset(parts[0], engine=engine)
        assert alone.plan.schema.to_arrow() == types
        assert len(alone.head()) == rows


@pytest.mark.gpu
def test_a_cudf_frame_on_the_cpu_is_copied_once_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    import cudf

    caplog.set_level(logging.INFO, "rowmill")
    dataset = Dataset(cudf.DataFrame({"x": [1, 2]}), engine="pandas")
    assert dataset.head().to_dict("list") == {"x": [1, 2]}
    assert "the cuDF frame is copied to the host" in caplog.text


@pytest.mark.parametrize(
    "source",
    [
        da.from_delayed(dask.delayed(divmod)(1, 0), (2, 2), "float64"),
        dd.from_map(divmod, [1], [0], meta=pd.Series(dtype="int64", name="x")),
    ],
)
def test_an_array_or_a_series_of_dask_is_refused_before_it_is_computed(source: Any) -> None:
    with pytest.raises(JobError, match=f"a Dask {type(source).__name__} is not a source") as caught:
        _ = Dataset(source).plan
    assert caught.value.do == "give a frame: dask.dataframe.from_dask_array(array, columns=[..]), or series.to_frame()"
    array = da.ones((4, 2), chunks=2)
    frame = dd.from_dask_array(array, columns=["x", "y"])
    assert (Dataset(frame).num_rows, Dataset(frame.x.to_frame()).num_rows) == (4, 4)


# In memory


@pytest.mark.parametrize("kind", ["files", "table", "dask"])
def test_a_persisted_data_set_is_read_once_and_gives_the_same(engine: str, kind: str, tmp_path: Path) -> None:
    pq.write_table(whole(2), tmp_path / "in.parquet", row_group_size=ROWS)
    sources: dict[str, Any] = {"files": tmp_path / "in.parquet", "table": whole(2), "dask": lazy(engine, partitions=2)}

    def dataset() -> Dataset:
        rows = Dataset(sources[kind], engine=engine, partition_size="1MB").unique("n")
        return rows.split("hash", together="n", test=0.2)["train"]

    persisted = dataset().persist()
    expected = outputs(dataset(), tmp_path / "anew")
    if kind == "files":
        (tmp_path / "in.parquet").unlink()
    assert outputs(persisted, tmp_path / "persisted") == expected
    assert len(persisted.head(7)) == 7
    assert sum(len(frame) for frame in persisted.to_iter(["n"])) == persisted.num_rows
    assert dask.persist(persisted) == (persisted,)  # Dask leaves it as it is


def test_persisted_results_are_computed_once(engine: str) -> None:
    times: list[int] = []

    def counted(number: int) -> pd.DataFrame:
        times.append(number)
        return part(number)

    dataset = Dataset(lazy(engine, counted, 2), engine=engine)
    transformed = Workflow(nodes()).fit(dataset).transform(dataset).persist()
    before = len(times)
    assert to_list(transformed.head(2)["n"]) == [0, 1]
    assert [len(frame) for frame in transformed.to_iter()] == [ROWS] * 2
    assert len(transformed.to_ddf().compute(scheduler="sync")) == 2 * ROWS
    assert len(times) == before


@pytest.mark.parametrize("persisted", [False, True])
def test_an_array_of_what_comes_out_of_a_workflow(engine: str, persisted: bool) -> None:
    table = pa.table({"x": [1.0, 3.0, None, 5.0], "n": [1, 2, 3, 4], "s": ["a", "b", "c", "d"]})
    workflow = Workflow((["x", "n"] >> ops.Filter("n != 2")) + ["s"])
    transformed = workflow.fit_transform(Dataset(table, engine=engine))
    transformed = transformed.persist() if persisted else transformed
    array = transformed.to_dask_array(["n", "x"])
    assert (array.shape, array.chunks) == ((3, 2), ((3,), (2,)))
    assert np.array_equal(on_host(array.compute()), [[1.0, 1.0], [3.0, np.nan], [4.0, 5.0]], equal_nan=True)
    assert on_host(transformed.to_dask_array(["n"], "int8").compute()).dtype == np.int8
    with pytest.raises(JobError, match="column 's' is string, and an array holds numbers"):
        transformed.to_dask_array()


def test_what_comes_out_of_a_workflow_is_the_source_of_another(engine: str) -> None:
    first = Workflow((["x"] >> ops.Clip(max_value=2.0)) + ["s"])
    clipped = first.fit_transform(Dataset(pa.table({"x": [0.0, 1.0, 9.0], "s": ["a", "b", "c"]}), engine=engine))
    second = Workflow(["x"] >> ops.Normalize()).fit(clipped)
    assert to_list(second.transform(clipped).head()["x"]) == [-1.0, 0.0, 1.0]
