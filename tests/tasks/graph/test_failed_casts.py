"""Casts that fail are null, and a run says in how many rows: in its stages, manifest, page, log and preview. Whole
numbers that leave 64 bits end it with an error that names entry, partition, expression and cure."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_application, make_job
from flows.preview.job_preview import preview
from flows.preview.preview_text import markdown
from tasks import ops
from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.graph.node import as_node
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import Downsampling, RowRules
from tasks.manifest import Manifest
from tasks.report.artifact import stage_markdown
from tasks.sources.planning import make_plan
from tasks.workflow import Workflow
from tests.stages import Report, run_stages

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


@pytest.mark.promise(
    "the rows that a failed `cast` makes null are counted by entry and expression, in the stage, the manifest, the "
    "page, the log and the preview"
)
@pytest.mark.promise("`because a cast failed`")
@pytest.mark.promise("`Lambda`, `Filter` and `source.filter` take expressions")
@pytest.mark.parametrize("exchange", ["memory", "disk"])
def test_a_run_counts_the_casts_that_fail(exchange: str, tmp_path: Path, engine: str) -> None:
    """'x', '' and '9 km' are not numbers, 300 is no int8, 'no' no truth; what makes a column twice counts once."""
    done = run_stages(make_job(job(tmp_path, run={"exchange": exchange})).request(engine), plugins=[Report()])
    _, statistics, transform, _ = done
    assert statistics.failed_casts == transform.failed_casts == EXPECTED
    manifest = Manifest.load(tmp_path / "out")
    assert manifest.rows["out"] == 9
    assert manifest.data["stages"]["transform"]["failed_casts"] == EXPECTED
    assert transform.line.endswith(", casts failed in 5 rows")
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
        with request.staging.hold_lock():
            ingest.ingest(request, LocalPool(1))
            statistics = stages_statistics.statistics(request, LocalPool(1))
            transform = stages_transform.transform(request, "", LocalPool(1))
            shuffle_write.shuffle_write(request, "", LocalPool(1))
        assert (statistics.reused, transform.reused) == (reused, reused)
        assert statistics.failed_casts == transform.failed_casts == EXPECTED


@pytest.mark.promise("files whose name cannot be read are opened, so that they are counted, too")
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


FORMATS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=2),
    "csv": pacsv.write_csv,
    "jsonl": lambda table, path: path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist())),
}
CODES = [["1", "2", "3"], ["4", "5", "6", "seven", "8"], ["9", "10", "eleven"]]  # by file


def coded(folder: Path, form: str, features: list[Any], **source: Any) -> dict[str, Any]:
    (folder / "in").mkdir()
    for number, codes in enumerate(CODES):
        table = pa.table({"code": pa.array(codes, pa.string()), "n": range(len(codes))})
        FORMATS[form](table, folder / "in" / f"{number}.{form}")
    return {
        "source": {"path": str(folder / "in"), "schema": {"code": "string"}, **source},
        "features": features,
        "output": {"path": str(folder / "out"), "files": 1, "shuffle": "none"},
    }


CODE = "cast(code, 'int64')"
SEVEN = "cannot read 'seven' of column 'code' in row 6 of the source (row 3 of {}/in/1.{}, counted from 0)"


@pytest.mark.promise(
    "a `cast` or `parse_..` that fails in `filter`, `split` or `downsample` ends the run with an error that names the "
    "value, its column, its file and its row there"
)
@pytest.mark.promise("`the expression is strict`")
@pytest.mark.promise("the first such value is an error that names it, its column, its file and its row there")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("where", "source", "features"),
    [
        ("source.filter", {"filter": f"n < 9 and {CODE} > 0", "strict": True}, [{"columns": ["n"]}]),
        (
            "source.filter",
            {"filter": f"{CODE} > 0", "strict": True, "unique": {"keys": ["n"]}},
            [{"columns": ["n"]}],
        ),
        (
            "source.downsample",
            {"downsample": {"where": f"{CODE} > 0", "fraction": 0.5}, "strict": True},
            [{"columns": ["n"], "ops": [{"op": "Normalize"}]}],
        ),
        (
            "Filter of 'n'",
            {},
            [{"columns": ["n"], "ops": [{"op": "Filter", "expression": f"{CODE} > 0", "strict": True}]}],
        ),
        (
            "Lambda of 'n'",
            {"filter": "n > 0"},
            [{"columns": ["n"], "ops": [{"op": "Lambda", "expression": CODE, "strict": True}]}],
        ),
    ],
)
def test_a_strict_expression_names_file_and_row(
    form: str, where: str, source: dict[str, Any], features: list[Any], tmp_path: Path, engine: str
) -> None:
    with pytest.raises(DataError) as told:
        run_stages(make_job(coded(tmp_path, form, features, **source)).request(engine))
    assert told.value.what == f"{CODE} {SEVEN.format(tmp_path, form)}"
    assert where in told.value.where
    assert "2 row(s) here have such a value" in told.value.why
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("form", "place"), [("parquet", "row 3 of {}/in/1.parquet, counted from 0"),
                                             ("csv", "in {}/in/0.csv or one of the 2 files after it")])  # fmt: skip
def test_a_row_that_keys_moved_knows_its_file(form: str, place: str, tmp_path: Path, engine: str) -> None:
    """Small files of text share a block: which of them has a row is not known any more."""
    data = coded(tmp_path, form, [{"columns": ["n"]}], filter=f"{CODE} < 9", strict=True, keys=["n"])
    with pytest.raises(DataError, match="cannot read 'seven' of column 'code' in row 6 of the source") as told:
        run_stages(make_job(data).request(engine))
    assert told.value.what.endswith(f" of the source ({place.format(tmp_path)})")


def test_the_rows_of_a_refit_are_those_of_its_own_source(tmp_path: Path, engine: str) -> None:
    """Row numbers go on behind those of the base; the file has only the rows of the night."""
    pq.write_table(pa.table({"code": ["1", "x"], "n": [1, 2]}), tmp_path / "night.parquet")
    plan = make_plan(Source(path=str(tmp_path / "night.parquet")))
    strict, thin = RowRules(strict=True), RowRules(downsampling=Downsampling(f"{CODE} > 0", 0.5), strict=True)
    plain, by_lambda = as_node(["n"]), ["n"] >> ops.Lambda(expression=CODE, strict=True)
    for node, filter, rules in ((plain, f"{CODE} > 0", strict), (plain, None, thin), (by_lambda, None, RowRules())):
        work = Work(plan, node, plan.schema, engine, filter=filter, training=True, first_row=100, rules=rules)
        with pytest.raises(DataError, match=r"in row 1 of the source \(row 1 of .*night.parquet, counted from 0\)"):
            work.open_partition(plan.partitions[0], work.bound.targets).outputs()


@pytest.mark.promise(
    "a `cast` or `parse_..` that fails in `filter`, `split` or `downsample` ends the run with an error that names the "
    "value, its column, its file and its row there"
)
def test_without_strict_the_source_counts_what_fails(tmp_path: Path, engine: str) -> None:
    rule = {"where": f"{CODE} > 0", "fraction": 0.5}
    data = coded(tmp_path, "csv", [{"columns": ["n"]}], filter=f"{CODE} != 3", downsample=rule)
    transform = run_stages(make_job(data).request(engine))[2]
    assert transform.failed_casts == [{"entry": "source.filter", "expression": f"{CODE} != 3", "rows": 2}]


def test_what_a_lenient_run_left_is_not_taken_for_a_strict_one(tmp_path: Path, engine: str) -> None:
    """The plan is; what statistics and transform have made of rows is not."""
    from tasks.cluster.local_pool import LocalPool
    from tasks.stages import ingest
    from tasks.stages import statistics as stages_statistics
    from tasks.stages import transform as stages_transform

    features = [{"columns": ["n"], "ops": [{"op": "Normalize"}]}]
    data = coded(tmp_path, "parquet", features, filter=f"{CODE} > 0")
    request = make_job(data).request(engine)
    with request.staging.hold_lock():
        ingest.ingest(request, LocalPool(1))
        stages_statistics.statistics(request, LocalPool(1))
        stages_transform.transform(request, "", LocalPool(1))
    data["source"]["strict"] = True
    strict = make_job(data).request(engine)
    with strict.staging.hold_lock():
        assert ingest.ingest(strict, LocalPool(1)).reused
        with pytest.raises(DataError, match="cannot read 'seven'"):
            stages_statistics.statistics(strict, LocalPool(1))


@pytest.mark.promise("files whose name cannot be read are opened, so that they are counted, too")
def test_names_of_folders_that_a_cast_cannot_read_are_refused_if_strict(tmp_path: Path, engine: str) -> None:
    """A filter that is decided by names of folders, before any file is open, is as strict as one of rows."""
    for day in ("2020-01-01", "unknown"):
        (tmp_path / "in" / f"day={day}").mkdir(parents=True)
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "in" / f"day={day}" / "part.parquet")
    data = {
        "source": {
            "path": str(tmp_path / "in"), "filter": "cast(day, 'timestamp[s]') >= '2020-01-01'", "strict": True,
        },
        "features": [{"columns": ["n"]}],
        "output": {"path": str(tmp_path / "out"), "files": 1},
    }  # fmt: skip
    with pytest.raises(DataError, match="cannot read 'unknown' of column 'day' in row 2 of the source") as told:
        run_stages(make_job(data).request(engine))
    assert f"row 0 of {tmp_path}/in/day=unknown/part.parquet" in told.value.what


@pytest.mark.promise(
    "`source.filter`, `strict`, `keys` and `sort_by` are those of the fit unless `--set` says otherwise"
)
def test_a_workflow_is_applied_as_strictly_as_it_was_fitted(tmp_path: Path, engine: str) -> None:
    good = pa.table({"code": ["1", "2"], "n": [1, 2]})
    pq.write_table(good, tmp_path / "good.parquet")
    data = {
        "source": {"path": str(tmp_path / "good.parquet"), "filter": f"{CODE} > 0", "strict": True},
        "features": [{"columns": ["n"], "ops": [{"op": "Normalize"}]}],
        "output": {"path": str(tmp_path / "out"), "files": 1},
    }
    run_stages(make_job(data).request(engine))
    pq.write_table(pa.table({"code": ["1", "x"], "n": [1, 2]}), tmp_path / "bad.parquet")
    for strict in (None, False):
        source = {"path": str(tmp_path / "bad.parquet")} | ({} if strict is None else {"strict": strict})
        job = {"fitted": str(tmp_path / "out"), "source": source, "output": {"path": str(tmp_path / f"of {strict}")}}
        request = make_application(job).request(engine)
        if strict is None:
            with pytest.raises(DataError, match="cannot read 'x' of column 'code' in row 1 of the source"):
                run_stages(request)
        else:
            assert run_stages(request)[1].rows_out == 1


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
        assert [record.getMessage() for record in caplog.records if record.name == "rowmill"] == [said]
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
