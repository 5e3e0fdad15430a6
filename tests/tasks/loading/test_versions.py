"""Several versions of an output as one data set, and as batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from flows.commands.discard import discard_version
from flows.job.job import make_application, make_job
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.loading import loader
from tasks.storage.discarded import mark
from tasks.workflow import Workflow
from tests.flows.test_fit_apply import written
from tests.stages import run_stages


def nights(folder: Path, count: int = 3, **output: Any) -> Path:
    """An output of several versions, with one row per night: x is 0, 1, 2, .."""
    for number in range(count):
        source = written(pa.table({"x": [number], "k": ["a"]}), folder / f"{number}.parquet")
        section = {"path": str(folder / "out"), "on_existing": "version", "files": 1, **output}
        features = [{"columns": ["x"], "ops": [{"op": "FillMissing"}]}, {"columns": ["k"]}]
        job = {"source": {"path": str(source)}, "features": features, "output": section}
        run_stages(make_job(job).request("pandas"))
    return folder / "out"


def xs(out: Path, versions: str | None) -> list[int]:
    frame = pa.concat_tables(
        pa.Table.from_pandas(f) for f in Dataset(out, versions=versions, engine="pandas").to_iter()
    )
    return list(frame["x"].to_pylist())


@pytest.mark.parametrize(
    ("versions", "expected"),
    [(None, [2]), ("all", [0, 1, 2]), ("v0002", [1]), ("v0001..v0002", [0, 1]), ("v0002..", [1, 2])],
)
def test_versions_are_read_one_after_another(tmp_path: Path, versions: str | None, expected: list[int]) -> None:
    out = nights(tmp_path)

    assert xs(out, versions) == expected
    batches = loader(out, versions=versions, shuffle=False)
    assert [x for batch in batches for x in batch["x"].to_pylist()] == expected
    assert batches.rows == len(expected)


def test_a_discarded_version_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = nights(tmp_path)
    mark(out / "v0002", "half of the day was missing")

    with caplog.at_level(logging.WARNING, "rowmill"):
        assert xs(out, "all") == [0, 2]
    assert "v0002 was discarded: it is left out" in caplog.text
    with pytest.raises(JobError, match="all of these versions were discarded"):
        xs(out, "v0002")


@pytest.mark.promise("where all are discarded, reading the output is an error")
@pytest.mark.parametrize("read", [
    lambda out: Dataset(out, engine="pandas").num_rows,
    lambda out: loader(out).rows,
    Workflow.load,
    lambda out: make_application({"fitted": str(out), "source": {"path": str(out.parent / "0.parquet")},
                                  "output": {"path": str(out.parent / "applied")}}).request("pandas"),
])  # fmt: skip
def test_an_output_whose_good_versions_are_all_taken_back_is_refused(
    tmp_path: Path, read: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    out = nights(tmp_path, 2)
    discard_version(out / "v0002")
    read(out)
    assert not caplog.records
    discard_version(out / "v0001")
    with pytest.raises(DataError, match="no good version is left in this output"):
        read(out)
    shown = CliRunner().invoke(app, ["inspect", str(out)])
    assert (shown.exit_code, "discarded by" in shown.stdout) == (0, True), shown.output
    read(out / "v0001")
    assert "v0001 was discarded, but is read anyway, since the path names it" in caplog.text


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("out/v*", 2), ("out/v*/*.parquet", 2), ("out/**/*.parquet", 2), ("out/v0002/part-00000.parquet", 1),
        ("out/v0002", 1), ("above", 1),
    ],
)  # fmt: skip
def test_whoever_reads_a_discarded_output_by_whatever_path_is_told_once(
    tmp_path: Path, path: str, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    out = nights(tmp_path, 2)
    mark(out / "v0002")
    (tmp_path / "above").mkdir()
    (tmp_path / "above/one").symlink_to(out / "v0002")

    assert Dataset(tmp_path / path, engine="pandas").num_rows == rows
    told = [record.getMessage() for record in caplog.records if "was discarded" in record.getMessage()]
    shown = tmp_path / "above/one" if path == "above" else out / "v0002"
    assert told == [f"{shown} was discarded, but is read anyway, since the path names it"]


def test_the_fitted_workflow_of_a_discarded_version_is_loaded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = nights(tmp_path, 1)
    Workflow.load(out / "v0001/_workflow")
    assert not caplog.records
    mark(out / "v0001")
    Workflow.load(out / "v0001/_workflow")
    assert f"{out / 'v0001'} was discarded, but is read anyway" in caplog.text


def test_commands_that_look_at_a_discarded_output_say_so(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    discard_version(out / "v0002", who="ada")
    discard_version(out / "v0001", who="ada")
    for words in (["verify", out], ["contract", out / "v0001"], ["diff", out / "v0001", "v0002"]):
        shown = CliRunner().invoke(app, [*map(str, words)])
        assert (shown.exit_code, "was discarded by ada at 20" in shown.output) == (0, True), shown.output


def test_a_folder_that_is_no_version_is_named(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    (out / "v0003").mkdir()
    with pytest.raises(JobError, match=r"(?s)v0003 is not a finished version.*_manifest.json"):
        xs(out, "all")
    assert xs(out, "v0001..v0002") == [0, 1]


def test_the_folders_of_partition_on_are_columns_of_every_version(tmp_path: Path) -> None:
    out = nights(tmp_path, 2, partition_on=["k"])

    assert [b["k"].to_pylist() for b in loader(out, versions="all", shuffle=False)] == [["a", "a"]]


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ("v0007", r"(?s)there is no version v0007.*v0001"),
        ("v0001..v0009", "there is no version v0009"),
        ("v0003..v0001", r"(?s)ends before it begins.*v0001\.\.v0003"),
        ("newest", r"(?s)'newest' names no versions.*v0003\.\.v0007"),
        (["v0001", "v0003"], "versions is not text, but \\['v0001', 'v0003'\\]"),
        (3, "versions is not text, but 3"),
    ],
)
def test_what_names_no_versions(tmp_path: Path, versions: Any, message: str) -> None:
    out = nights(tmp_path)
    with pytest.raises(JobError, match=message):
        Dataset(out, versions=versions)
    with pytest.raises(JobError, match=message):
        loader(out, versions=versions)


def test_an_output_without_versions_and_a_frame_have_none(tmp_path: Path) -> None:
    out = nights(tmp_path, 1, on_existing="fail")
    with pytest.raises(JobError, match="this output has no versions"):
        Dataset(out, versions="all")
    with pytest.raises(JobError, match="versions belongs to one output"):
        Dataset(pa.table({"x": [1]}), versions="all")


def test_a_split_of_all_versions(tmp_path: Path) -> None:
    rows = written(pa.table({"x": [1]}), tmp_path / "x.parquet")
    job = {
        "source": {"path": str(rows), "valid": str(rows)},
        "features": [{"columns": ["x"]}],
        "output": {"path": str(tmp_path / "out"), "on_existing": "version", "files": 1},
    }
    run_stages(make_job(job).request("pandas"))
    run_stages(make_job(job).request("pandas"))

    with pytest.raises(DataError, match=r"(?s)this output has splits.*out/v0002/train, .*out/v0002/valid"):
        loader(tmp_path / "out")
    with pytest.raises(JobError, match=r"(?s)no input.*name the split of a version: .*out/v0002/train"):
        Dataset(tmp_path / "out/train", engine="pandas").num_rows

    assert loader(tmp_path / "out" / "train", versions="all").rows == 2
