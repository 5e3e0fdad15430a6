"""The main job on a real server and a real cluster: states, names, artifacts, and an output that every reader reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from tasks.errors import DataError, JobError
from tasks.manifest import Manifest
from tests.flows.runs import completed_tasks, key_of, rows_of, run_flow

pytestmark = pytest.mark.xdist_group("flows")
STAGES = ("ingest", "statistics", "transform", "shuffle_write")
ROWS = 3000


def logs(folder: Path, first: int, rows: int, files: int = 1) -> Path:
    """Rows first .. : number counts them, x is number squared, word has 7 values (the first the most frequent)."""
    folder.mkdir()
    number = np.arange(first, first + rows)
    word = np.array(list("abcdefg"))[np.minimum(number % 10, 6)]
    table = pa.table({"number": number, "x": (number**2).astype(float), "word": word, "label": number % 2})
    for part in range(files):
        cut = slice(part * rows // files, (part + 1) * rows // files)
        pq.write_table(table.slice(cut.start, cut.stop - cut.start), folder / f"logs-{part}.parquet")
    return folder


def job(folder: Path, **source: Any) -> dict[str, Any]:
    return {
        "source": source,
        "features": [
            {"columns": ["number"]},
            {"columns": ["x"], "ops": [{"op": "Normalize"}]},
            {"columns": ["word"], "ops": [{"op": "Categorify"}]},
        ],
        "label": ["label"],
        "output": {"path": str(folder / "out"), "seed": 3, "files": 3},
    }


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, prefect_server: Any, cluster: Any) -> Path:
    folder = tmp_path_factory.mktemp("preprocess")
    source = logs(folder / "data", 0, ROWS, files=4)
    (found,) = run_flow(job(folder, path=str(source)), cluster)
    return found


def test_the_flow_run_and_its_four_tasks_are_completed(out: Path, api: Any) -> None:
    run = UUID(Manifest.load(out).data["run"])
    assert api.read_flow_run(run).state_name == "Completed"
    assert api.read_flow(api.read_flow_run(run).flow_id).name == "preprocess"
    tasks = completed_tasks(str(run), STAGES)
    assert not any(task.tags for task in tasks)  # each would cost a request, and now and then two seconds


@pytest.mark.promise(
    "The page of the run has its four stages, their progress, and a summary of each",
    "README.md#what-you-see",
)
@pytest.mark.promise("keys contain flow, output and stage and do not change between runs")
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_leaves_one_artifact(out: Path, api: Any, stage: str) -> None:
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    run = UUID(Manifest.load(out).data["run"])
    found = api.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run])))
    artifacts = {artifact.key: artifact for artifact in found}
    key = f"{key_of(out)}-{stage.replace('_', '-')}"

    assert artifacts[f"{key}-summary"].type == "markdown"
    assert f"{ROWS:,} rows" in artifacts[f"{key}-summary"].data
    assert [found for found in artifacts if found.startswith(key)] == [f"{key}-summary"]


def pandas_rows(out: Path) -> Any:
    return pd.read_parquet(out)


def dask_rows(out: Path) -> Any:
    import dask.dataframe as dd

    return dd.read_parquet(out).compute(scheduler="sync")


def duckdb_rows(out: Path) -> Any:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        return pd.DataFrame(connection.sql(f"from '{out}/**/*.parquet'").fetchnumpy())


def polars_rows(out: Path) -> Any:
    polars = pytest.importorskip("polars")
    return pd.DataFrame(polars.read_parquet(out / "**" / "*.parquet").to_dict(as_series=False))


def pyarrow_rows(out: Path) -> Any:
    return pyarrow.dataset.dataset(out).to_table().to_pandas()


@pytest.mark.promise("columns that are written last and tagged as target")
@pytest.mark.parametrize("read", [pandas_rows, dask_rows, duckdb_rows, polars_rows, pyarrow_rows])
def test_the_folder_is_a_data_set_of_the_written_rows(out: Path, read: Any) -> None:
    table = read(out).sort_values("number")
    x = np.arange(ROWS) ** 2.0

    assert list(table) == ["number", "x", "word", "label"]
    assert table["number"].tolist() == list(range(ROWS))
    np.testing.assert_allclose(table["x"].to_numpy(), (x - x.mean()) / x.std(ddof=1), rtol=1e-5, atol=1e-6)
    # g is 4 times as frequent as the others, which stand in the order of their values
    assert table["word"].tolist()[:10] == [4, 5, 6, 7, 8, 9, 3, 3, 3, 3]
    assert table["label"].tolist() == [0, 1] * (ROWS // 2)


def test_rows_are_shuffled_over_files_of_equal_size(out: Path) -> None:
    manifest = Manifest.load(out)
    number = rows_of(out)["number"].to_numpy()

    assert [part["rows"] for part in manifest.parts] == [1000, 1000, 1000]
    assert manifest.rows == {"in": ROWS, "dropped": 0, "added": 0, "out": ROWS}
    assert abs(np.corrcoef(number, np.arange(ROWS))[0, 1]) < 0.1
    assert sorted(manifest.data["stages"]) == sorted(STAGES)


def test_nothing_is_left_beside_the_output(out: Path) -> None:
    assert sorted(path.name for path in out.parent.iterdir()) == ["data", "out"]
    assert sorted(path.name for path in out.iterdir()) == [
        "_manifest.json",
        "_published.json",
        "_report.html",
        "_workflow",
        "part-00000.parquet",
        "part-00001.parquet",
        "part-00002.parquet",
    ]


@pytest.mark.promise("with what it has learned from `source.path`, and the outputs are `path/train` and `path/valid`")
def test_valid_rows_are_transformed_with_what_the_training_rows_taught(tmp_path: Path, run_alone: Any) -> None:
    train, valid = logs(tmp_path / "train-data", 0, 1000), logs(tmp_path / "valid-data", 500, 200)
    pq.write_table(pq.read_table(valid).set_column(2, "word", pa.array(["new"] * 200)), valid / "logs-0.parquet")
    folders = run_alone(job(tmp_path, path=str(train), valid=str(valid)))
    x = np.arange(1000) ** 2.0
    table = rows_of(folders[1]).sort_by("number")

    assert folders == [tmp_path / "out" / "train", tmp_path / "out" / "valid"]
    assert [Manifest.load(folder).rows["out"] for folder in folders] == [1000, 200]
    expected = (x[500:700] - x.mean()) / x.std(ddof=1)
    np.testing.assert_allclose(table["x"].to_numpy(), expected, rtol=1e-5, atol=1e-6)
    assert set(table["word"].to_pylist()) == {2}


def state_of(api: Any, folder: Path) -> Any:
    """The state of the run that was to write `out` in a folder."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags

    tags = FlowRunFilterTags(all_=[str(folder / "out")])
    (run,) = api.read_flow_runs(flow_run_filter=FlowRunFilter(tags=tags))
    return run.state


@pytest.mark.promise("`does not take column`")
def test_data_that_an_operator_refuses_are_a_failed_run(tmp_path: Path, api: Any, cluster: Any) -> None:
    data = job(tmp_path, path=str(logs(tmp_path / "data", 0, 10)))
    data["features"][1]["columns"] = ["word"]

    with pytest.raises(DataError, match="Normalize does not take column 'word'"):
        run_flow(data, cluster)

    assert state_of(api, tmp_path).name == "Failed"
    assert "Normalize does not take column 'word'" in state_of(api, tmp_path).message
    assert not (tmp_path / "out").exists()


def test_a_file_that_was_cut_off_is_a_failed_run(tmp_path: Path, api: Any, run_here: Any) -> None:
    source = logs(tmp_path / "data", 0, 100, files=2)
    whole = (source / "logs-1.parquet").read_bytes()
    (source / "logs-1.parquet").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(DataError, match=r"logs-1\.parquet"):
        run_here(job(tmp_path, path=str(source)))

    assert state_of(api, tmp_path).name == "Failed"
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("`the output already exists`")
def test_an_output_that_exists_is_a_failed_run_and_stays(tmp_path: Path, api: Any, run_here: Any) -> None:
    data = job(tmp_path, path=str(logs(tmp_path / "data", 0, 10)))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")

    with pytest.raises(JobError, match="the output already exists"):
        run_here(data)

    assert state_of(api, tmp_path).name == "Failed"
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


def test_a_job_from_a_form_that_cannot_be_right_is_a_failed_run(tmp_path: Path, api: Any, run_here: Any) -> None:
    data = job(tmp_path, path="nowhere")
    data["output"]["sead"] = 1

    with pytest.raises(JobError, match=r"output\.sead is unknown: did you mean 'seed'"):
        run_here(data)

    assert state_of(api, tmp_path).name == "Failed"


def test_a_source_becomes_train_valid_and_test_and_the_log_counts_what_is_left_out(
    tmp_path: Path, run_alone: Any, caplog: pytest.LogCaptureFixture
) -> None:
    source = {
        "path": str(logs(tmp_path / "data", 0, 1000, files=3)),
        "filter": "number >= 100",
        "unique": {"keys": ["x"]},
        "split": {"by": "time", "column": "number", "valid": 0.25, "test": 0.25},
        "downsample": {"where": "label == 0", "fraction": 0.25},
    }
    asked = job(tmp_path, **source)
    del asked["output"]["files"]
    folders = run_alone(asked)
    numbers = [sorted(rows_of(folder)["number"].to_pylist()) for folder in folders]

    assert folders == [tmp_path / "out" / name for name in ("train", "valid", "test")]
    assert numbers[1:] == [[*range(550, 775)], [*range(775, 1000)]]
    assert [n for n in numbers[0] if n % 2] == [*range(101, 550, 2)]
    assert 30 < len([n for n in numbers[0] if n % 2 == 0]) < 100
    assert "source.unique leaves out 0 rows: other rows have the same keys" in caplog.messages
    where = "valid begins at 550, test begins at 775; 450 rows are train, 225 rows are valid, 225 rows are test"
    assert f"source.split: {where}" in caplog.messages
    assert "train: 450 rows belong to other splits (source.split)" in caplog.messages
    assert f"source.downsample leaves out {450 - len(numbers[0])} rows" in caplog.messages
    assert "valid: output.files: 8, chosen for 5.4 kB of rows of 24 bytes" in caplog.messages
