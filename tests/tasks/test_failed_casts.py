"""Casts that fail are null, and a run says in how many rows: in its stages, manifest, page, log and preview. Whole
numbers that leave 64 bits end it with an error that names entry, partition, expression and cure."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from flows.preview.plan import preview
from flows.preview.text import markdown
from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.manifest import Manifest
from tasks.report.artifact import stage_markdown
from tasks.report.text import stage_line
from tasks.workflow import Workflow
from tests.stages import run_stages

ROWS = 12
TABLE = pa.table(
    {
        "number": range(ROWS),
        "text": ["1", "2", "x", None, "5", "", "7", "8", "9 km", "10", "300", "12"],
        "flag": ["1", "0", "1", "no", "1", "1", "1", "1", "1", "1", "1", "1"],
        "big": [1] * 11 + [2**62],
    }
)
CAST = "cast(_, 'int64')"
EXPECTED = [
    {"entry": "Lambda of 'text'", "expression": CAST, "rows": 3},
    {"entry": "Filter of 'number'", "expression": "number < 9 or cast(text, 'int8') > 0", "rows": 1},
    {"entry": "source.filter", "expression": "cast(flag, 'bool')", "rows": 1},
]


def job(folder: Path, **more: Any) -> dict[str, Any]:
    pq.write_table(TABLE, folder / "in.parquet", row_group_size=5)
    return {
        "source": {"path": str(folder / "in.parquet"), "partition_size": 200, "filter": "cast(flag, 'bool')"},
        "features": [
            {"columns": ["number"], "ops": [{"op": "Filter", "expression": "number < 9 or cast(text, 'int8') > 0"}]},
            {"columns": ["text"], "ops": [{"op": "Lambda", "expression": CAST, "name": "n"}, {"op": "Normalize"}]},
        ],
        "output": {"path": str(folder / "out"), "files": 2, "shuffle": "none"},
        **more,
    }


@pytest.mark.parametrize("exchange", ["memory", "disk"])
def test_a_run_counts_the_casts_that_fail(exchange: str, tmp_path: Path, engine: str) -> None:
    """'x', '' and '9 km' are no numbers, 300 is no int8 and 'no' no truth; what makes a column twice counts once."""
    done = run_stages(make_job(job(tmp_path, run={"exchange": exchange})).request(engine))
    _, statistics, transform, _ = done
    assert statistics.failed_casts == transform.failed_casts == EXPECTED
    manifest = Manifest.load(tmp_path / "out")
    assert manifest.rows["out"] == 9
    assert manifest.data["stages"]["transform"]["failed_casts"] == EXPECTED
    assert stage_line(transform).endswith(", casts failed in 5 rows")
    page = html.unescape((tmp_path / "out" / "_report.html").read_text())
    assert "3 row(s) are null in Lambda of 'text' because a cast failed: cast(_, 'int64')" in page
    assert "Casts that failed, their rows are null" in stage_markdown(transform)


def test_a_run_that_is_done_already_says_it_again(tmp_path: Path, engine: str) -> None:
    from tasks.cluster.local_pool import LocalPool
    from tasks.stages import ingest, shuffle_write
    from tasks.stages import statistics as stages_statistics
    from tasks.stages import transform as stages_transform

    request = make_job(job(tmp_path, run={"exchange": "disk"})).request(engine)
    for reused in (False, True):
        with request.staging.locked():
            ingest.ingest(request, LocalPool(1))
            statistics = stages_statistics.statistics(request, LocalPool(1))
            transform = stages_transform.transform(request, "", LocalPool(1))
            shuffle_write.shuffle_write(request, "", LocalPool(1))
        assert (statistics.reused, transform.reused) == (reused, reused)
        assert statistics.failed_casts == transform.failed_casts == EXPECTED


def test_names_of_folders_that_a_cast_cannot_read_are_counted(tmp_path: Path, engine: str) -> None:
    """Their files are opened, since what is left out unread could not be counted."""
    for day, number in (("2020-01-01", 1), ("2019-12-31", 2), ("unknown", 3)):
        (tmp_path / "in" / f"day={day}").mkdir(parents=True)
        pq.write_table(pa.table({"n": [number] * 2}), tmp_path / "in" / f"day={day}" / "part.parquet")
    condition = "cast(day, 'timestamp[s]') >= '2020-01-01'"
    data = {
        "source": {"path": str(tmp_path / "in"), "filter": condition},
        "features": [{"columns": ["n"]}],
        "output": {"path": str(tmp_path / "out"), "files": 1},
    }
    transform = run_stages(make_job(data).request(engine))[2]
    assert transform.rows_out == 2
    assert transform.failed_casts == [{"entry": "source.filter", "expression": condition, "rows": 2}]


def test_a_preview_shows_casts_that_fail(tmp_path: Path) -> None:
    text = markdown(preview(make_job(job(tmp_path)), "run"))
    assert "### Casts that fail" in text
    assert "Lambda of 'text'" in text


def test_calls_from_python_warn(tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture) -> None:
    said = "3 row(s) are null in Lambda of 'text' because a cast failed: cast(_, 'int64')"
    workflow = Workflow(["text"] >> ops.Lambda(expression=CAST, name="n") >> ops.Normalize())
    for call in (
        lambda: workflow.fit(Dataset(TABLE, engine=engine)),
        lambda: workflow.transform(TABLE),
        lambda: list(workflow.transform(Dataset(TABLE, engine=engine)).frames()),
        lambda: workflow.transform(Dataset(TABLE, engine=engine)).to_parquet(str(tmp_path / "out"), files=1),
    ):
        caplog.clear()
        call()
        assert [record.getMessage() for record in caplog.records if record.name == "millrace"] == [said]
    data = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert data["stages"]["transform"]["failed_casts"] == EXPECTED[:1]
    caplog.clear()
    workflow.transform(TABLE.slice(0, 2))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("entry", "more", "where"),
    [
        ({"columns": ["big"], "ops": [{"op": "Lambda", "expression": "_ * 2"}]}, {}, "Lambda of 'big', partition 0"),
        ({"columns": ["number"], "ops": [{"op": "Filter", "expression": "big * 2 > 0"}]}, {}, "Filter of 'number', "),
        ({"columns": ["number"]}, {"filter": "2 * big > 0"}, "source.filter, partition 0 (rows from 0)"),
    ],
)
def test_whole_numbers_beyond_64_bits_end_a_run(
    entry: Any, more: dict[str, Any], where: str, tmp_path: Path, engine: str
) -> None:
    data = job(tmp_path, features=[entry])
    data["source"] = {"path": data["source"]["path"], "partition_size": 200, **more}
    with pytest.raises(DataError, match=r"is beyond int64 in 1 row\(s\), column\(s\) '(_|big)'") as told:
        run_stages(make_job(data).request(engine))
    assert where in told.value.where
    assert "cast(x, 'float64')" in told.value.do
    assert not (tmp_path / "out").exists()
