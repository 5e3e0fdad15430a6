"""Data sets: the same rows from files and from frames of every kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.sources.reader import read
from tasks.workflow import Workflow

TABLE = pa.table({"n": [1, 2, 3, 4], "s": ["a", None, "b", "a"], "f": [1.0, None, 2.5, 0.0]})


def frames() -> dict[str, Any]:
    pandas = pd.DataFrame({"n": [1, 2, 3, 4], "s": ["a", None, "b", "a"], "f": [1.0, float("nan"), 2.5, 0.0]})
    return {
        "pandas": pandas,
        "table": TABLE,
        "batch": TABLE.to_batches()[0],
        "dask": dd.from_pandas(pandas, npartitions=2),
        "list": [TABLE.slice(0, 1), TABLE.slice(1)],
    }


@pytest.mark.promise("`Dataset` also takes frames, and text files as a job does")
@pytest.mark.parametrize("kind", ["pandas", "table", "batch", "dask", "list"])
def test_frames_give_their_rows(kind: str) -> None:
    dataset = Dataset(frames()[kind], engine="pandas")
    partitions = 2 if kind == "dask" else 1
    assert (dataset.num_rows, dataset.npartitions, list(dataset.schema)) == (4, partitions, ["n", "s", "f"])
    rows = pa.concat_tables([read(dataset.handle, number) for number in range(partitions)])
    assert rows.to_pydict() == TABLE.to_pydict()
    assert read(dataset.handle, 0, ["s"]).schema.field("s").type == pa.dictionary(pa.int32(), pa.string())


def test_columns_of_pandas_that_arrow_does_not_hold_are_named() -> None:
    for column, why in (([1, "a"], "Could not convert 'a' with type str"), ([1j, 2j], "Unsupported numpy type")):
        with pytest.raises(DataError, match="column 'odd' of a pandas frame does not convert to Arrow") as caught:
            _ = Dataset(pd.DataFrame({"x": [1, 2], "odd": column}), engine="pandas").schema
        assert why in str(caught.value.why)
        assert "frame['odd'].astype('string')" in str(caught.value.do)
    with pytest.raises(DataError, match="a pandas frame has several columns of one name\n  why: a\n"):
        _ = Dataset(pd.DataFrame([[1, 2, 3]], columns=["a", "b", "a"]), engine="pandas").schema


def test_names_that_are_numbers_are_taken_as_texts() -> None:
    frame = pd.DataFrame({0: [7, 9, 7], 1: [1, 1, 1]})
    workflow = Workflow(["0"] >> ops.Categorify()).fit(Dataset(frame, engine="pandas"))
    assert workflow.transform(frame)["0"].tolist() == [3, 4, 3]


@pytest.mark.system
def test_a_dask_frame_is_converted_on_the_workers_of_a_client() -> None:
    from distributed import Client

    with (
        dask.config.set({"distributed.worker.daemon": False}),
        Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0"),
    ):
        dataset = Dataset(frames()["dask"], engine="pandas")
        assert dataset.num_rows == 4
        tables = [read(dataset.handle, number) for number in range(dataset.npartitions)]
        assert pa.concat_tables(tables).to_pydict() == TABLE.to_pydict()


@pytest.mark.promise("`Dataset` also takes frames, and text files as a job does")
def test_text_is_read_as_a_job_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("1|x|-\n2|-|'a|b'\n")
    with pytest.raises(DataError):
        Dataset(tmp_path / "a.log", format="csv", delimiter="|", header=False).head()
    (tmp_path / "a.log").write_text('1|x|-\n2|-|"a|b"\n')
    plain = Dataset(tmp_path / "a.log", format="csv", delimiter="|", header=False)
    assert plain.head().to_dict("list") == {"f0": [1, 2], "f1": ["x", "-"], "f2": ["-", "a|b"]}
    named = Dataset(tmp_path / "a.log", "csv", columns=["n", "a", "b"], delimiter="|", null_values=["-"])
    assert named.head().convert_dtypes().fillna("null").to_dict("list") == {
        "n": [1, 2], "a": ["x", "null"], "b": ["null", "a|b"],
    }  # fmt: skip
    with pytest.raises(JobError, match="cannot stand between values"):
        Dataset(tmp_path / "a.log", "csv", delimiter='"')


def test_files_head_iter_and_ddf(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pq.write_table(TABLE, tmp_path / "b.parquet")
    dataset = Dataset(tmp_path, engine="pandas")
    assert dataset.num_rows == 8
    head = dataset.head(2)
    assert head["n"].tolist() == [1, 2]
    assert head.isna().to_dict("list") == {"n": [False, False], "s": [False, True], "f": [False, True]}
    assert [len(frame) for frame in dataset.to_iter(["n"])] == [8]
    ddf = dataset.to_ddf(["s", "n"])
    assert ddf.npartitions == 1
    assert list(ddf.columns) == ["s", "n"]
    assert ddf.compute(scheduler="sync").groupby("s")["n"].sum().to_dict() == {"a": 10, "b": 6}
    assert ddf.compute(scheduler="sync")["s"].str.upper().tolist()[:1] == ["A"]


def test_a_missing_column_names_near_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are: n, s, f"):
        read(Dataset(TABLE).handle, 0, ["quantity"])


@pytest.mark.parametrize(("asked", "partitions"), [(None, 2), ("1GB", 1), ("8MiB", 4)])
def test_left_to_itself_it_has_partitions_for_every_core(asked: str | None, partitions: int) -> None:
    rows = pa.table({"x": np.arange(4 << 20)})  # 32 MiB in blocks of 8
    assert Dataset(rows, engine="pandas", partition_size=asked).npartitions == partitions


def test_a_share_of_memory_cuts_frames_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.dataset.file_plans.worker_memory", lambda engine, pool: 32 << 20)
    rows = pa.table({"x": np.arange(4 << 20)})  # 32 MiB in blocks of 8
    pq.write_table(rows, tmp_path / "in.parquet", row_group_size=1 << 20, use_dictionary=False, compression="none")
    for source in (rows, tmp_path / "in.parquet"):
        assert Dataset(source, engine="pandas", part_mem_fraction=0.55).npartitions == 2
    with pytest.raises(JobError, match="give one of them"):
        Dataset(rows, part_mem_fraction=0.5, partition_size="8MiB")


def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(JobError, match="is not a source"):
        _ = Dataset(3).plan
    with pytest.raises(JobError, match="'cuda' is not an engine"):
        Dataset(TABLE, engine="cuda")
    with pytest.raises(JobError, match="partition_size"):
        Dataset("a.parquet", partition_size="much")
    with pytest.raises(DataError, match="no rows at all"):
        _ = Dataset(TABLE.slice(0, 0)).plan


@pytest.mark.parametrize(
    ("parameters", "what", "do"),
    [
        ({"part_size": "1GB"}, "'part_size' is not a parameter of Dataset", "'part_size' is a name of NVTabular"),
        ({"colums": ["x"]}, "'colums' is not a parameter of Dataset", "did you mean 'columns'"),
        ({"engine": "parquet"}, "'parquet' is not an engine", "say format='parquet', and leave engine out"),
        ({"engine": "csv"}, "'csv' is not an engine", "say format='csv', and leave engine out"),
        ({"engine": "cuDF"}, "'cuDF' is not an engine", "did you mean 'cudf'?"),
    ],
)
def test_parameters_of_other_libraries_are_refused_with_the_name_that_they_have_here(
    parameters: dict[str, Any], what: str, do: str
) -> None:
    with pytest.raises(JobError) as caught:
        Dataset("data/*.parquet", **parameters)
    assert (caught.value.what, caught.value.where) == (what, "Dataset")
    assert caught.value.do.startswith(do)


def test_a_data_set_shows_itself_without_reading(tmp_path: Path) -> None:
    assert repr(Dataset("missing/*.parquet")) == "Dataset('missing/*.parquet', engine='auto')"
    assert repr(Dataset([Path("a.csv"), "b.csv", "c.csv"])) == "Dataset('a.csv' and 2 more, engine='auto')"
    assert repr(Dataset([TABLE, TABLE], engine="pandas")) == "Dataset(pyarrow.Table and 1 more, engine='pandas')"
    assert repr(Dataset(3)) == "Dataset(builtins.int, engine='auto')"
    dataset = Dataset(pa.table({"x": [1, 2], "y": [0.5, 1.5]}), engine="pandas")
    few = dataset.downsample("y > 1", 0.5, "w")
    assert repr(few) == repr(dataset) == "Dataset(pyarrow.Table, engine='pandas')"
    assert few.num_rows >= 1
    assert repr(few) == "Dataset(pyarrow.Table, engine='pandas', columns=['x', 'y', 'w'], partitions=1)"
    assert repr(dataset.persist()) == "Dataset(pyarrow.Table, engine='pandas', columns=['x', 'y'], partitions=1)"


def test_a_file_that_changed_after_counting_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n\n1\n2\n")
    dataset = Dataset(path)
    assert dataset.num_rows == 2
    times = path.stat()
    path.write_text("n\n1\n\n\n")
    with pytest.raises(DataError, match="a source file changed during the run"):
        read(dataset.handle, 0)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # of the same size and time
    with pytest.raises(DataError, match="3 rows were read where 2 had been counted"):
        read(dataset.handle, 0)


@pytest.mark.parametrize("more", [{"columns": ["x"]}, {"format": "csv"}, {"schema": {"x": "int8"}}, {"header": True}])
def test_a_frame_takes_no_rules_for_reading_files(more: dict[str, Any]) -> None:
    with pytest.raises(JobError, match=f"a data set of a frame takes no {next(iter(more))}"):
        Dataset(pa.table({"x": [1]}), **more)
