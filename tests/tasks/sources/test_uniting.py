"""Files of one source are united by name: columns that some lack, types that grew, columns that nobody reads."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from flows.preview.job_preview import preview
from flows.preview.preview_text import sections
from tasks import engines, ops
from tasks.cluster.local_pool import LocalPool
from tasks.core.contract import make_contract
from tasks.core.settings import Source
from tasks.core.stage_results import IngestResult
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.manifest import Manifest
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.sources.uniting import check_together, uniting_notes, with_missing, without_unused
from tasks.stages import ingest
from tasks.storage import hive
from tasks.workflow import Workflow
from tests.flows.runs import rows_of
from tests.frames import to_list
from tests.stages import Report, run_stages


def write_avro(table: pa.Table, path: Path) -> None:
    import fastavro

    names = {"int64": "long", "int32": "int", "double": "double", "string": "string"}
    fields = [{"name": f.name, "type": ["null", names[str(f.type)]]} for f in table.schema]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, table.to_pylist())


def write_twice(kind: str, path: Path) -> None:
    """Two files of columns x, x, y, and of x, y."""
    twice = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4]), pa.array(["a", "b"])], ["x", "x", "y"])
    once = pa.table({"x": [5], "y": ["c"]})
    for name, table in (("a", twice), ("b", once)):
        if kind in ("csv", "tsv"):
            options = pacsv.WriteOptions(delimiter="\t" if kind == "tsv" else ",")
            pacsv.write_csv(table, path / f"{name}.{kind}", options)
        elif kind == "arrow":
            feather.write_feather(table, str(path / f"{name}.arrow"), compression="uncompressed")
        else:
            {"parquet": pq.write_table, "orc": paorc.write_table}[kind](table, path / f"{name}.{kind}")


@pytest.mark.promise("Two columns of one name do not block a file of which a job uses neither")
@pytest.mark.parametrize("kind", ["parquet", "csv", "tsv", "arrow", "orc"])
def test_columns_of_one_name_block_those_alone_that_use_them(kind: str, tmp_path: Path, engine: str) -> None:
    write_twice(kind, tmp_path)
    source = Dataset(tmp_path, engine=engine)
    (frame,) = Workflow(["y"]).fit(source).transform(source).frames()
    assert to_list(frame["y"]) == ["a", "b", "c"]
    for name in ("x", "x (column 2)"):
        with pytest.raises(DataError, match="there are two columns 'x'") as refused:
            list(Workflow([name, "y"]).fit(source).transform(source).frames())
        assert refused.value.where == f"{tmp_path}/a.{kind}"
        named = 'source.columns: ["x", "x_2", "y"] and source.skip_rows: 1' if kind in ("csv", "tsv") else "of its own"
        assert named in refused.value.do


def test_a_header_with_a_name_twice_is_known_again(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,,,x\n1,,,2\nx,,,x\n3,,,4\n")
    with pytest.raises(DataError, match="the header of a text file is there again"):
        make_plan(Source(path=str(tmp_path)))
    plan = make_plan(Source(path=str(tmp_path), bad_lines="skip"))
    assert (plan.rows, [*plan.schema]) == (2, ["x", "", " (column 3)", "x (column 4)"])


def write_jsonl(table: pa.Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


WRITERS = {
    "parquet": pq.write_table,
    "orc": paorc.write_table,
    "arrow": lambda table, path: feather.write_feather(table, str(path), compression="uncompressed"),
    "avro": write_avro,
    "csv": pacsv.write_csv,
    "jsonl": write_jsonl,
}


def folder_of(tmp_path: Path, format: str, *tables: dict[str, Any]) -> str:
    for number, columns in enumerate(tables):
        WRITERS[format](pa.table(columns), tmp_path / f"{number}.{format}")
    return str(tmp_path)


def rows(path: str, columns: list[str] | None = None, **settings: Any) -> dict[str, list[Any]]:
    plan = make_plan(Source(path=path, **settings))
    tables = [read(plan, i, columns) for i in range(len(plan.partitions))]
    return pa.concat_tables(tables).to_pydict()


@pytest.mark.gpu
def test_a_gpu_reads_what_all_files_have_alike(tmp_path: Path) -> None:
    """Other columns do not keep it from that: those that a file lacks, and those that grew, are read on the host."""
    path = folder_of(
        tmp_path, "parquet", {"x": [1, 2], "n": pa.array([1, 1], pa.int32())}, {"brand": ["a"], "n": [2], "x": [3]}
    )
    plan = make_plan(Source(path=path, missing="null"))
    (partition,) = plan.partitions
    kernels = engines.engine("cudf")
    read_there = kernels.read_partition(plan, partition, ["x", "n", "brand"])
    assert {name: kernels.host(column).to_pylist() for name, column in read_there.items()} == {"x": [1, 2, 3]}


@pytest.mark.promise("`error`, or `null` in the rows of these files. Files are united by name")
@pytest.mark.parametrize("format", WRITERS)
def test_a_column_that_some_files_lack_is_null_there(format: str, tmp_path: Path) -> None:
    path = folder_of(tmp_path, format, {"x": [1, 2]}, {"brand": ["a"], "x": [3]}, {"x": [4]})
    assert rows(path, missing="null") == {"x": [1, 2, 3, 4], "brand": [None, None, "a", None]}
    assert rows(path, ["brand"], missing="null") == {"brand": [None, None, "a", None]}
    assert rows(path, ["x"]) == {"x": [1, 2, 3, 4]}


@pytest.mark.parametrize("format", WRITERS)
def test_a_column_that_some_files_lack_is_an_error_once_it_is_read(format: str, tmp_path: Path) -> None:
    path = folder_of(tmp_path, format, {"x": [1]}, {"x": [2], "brand": ["a"]})
    with pytest.raises(DataError, match="column 'brand' is missing in a file") as error:
        rows(path)
    assert error.value.where == str(tmp_path / f"0.{format}")
    assert str(tmp_path / f"1.{format}") in error.value.why
    assert "source.missing: null" in error.value.do


GROWN = [
    (pa.array([1], pa.int32()), pa.array([2**40]), "int64", [1, 2**40]),
    (pa.array([1], pa.int64()), pa.array([0.5]), "float64", [1.0, 0.5]),
    (pa.array([1], pa.int8()), pa.array([0.5], pa.float32()), "float64", [1.0, 0.5]),
    (pa.array([0.25], pa.float32()), pa.array([0.5]), "float64", [0.25, 0.5]),
    (pa.array([200], pa.uint8()), pa.array([-1], pa.int8()), "int64", [200, -1]),
    (
        pa.array([dt.date(2026, 11, 1)]),
        pa.array([dt.datetime(2026, 11, 2, 3)], pa.timestamp("us")),
        "timestamp[us]",
        [dt.datetime(2026, 11, 1), dt.datetime(2026, 11, 2, 3)],
    ),
]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("case", range(len(GROWN)))
def test_a_type_that_grew_is_read_as_the_wider_one(case: int, reverse: bool, tmp_path: Path, engine: str) -> None:
    first, second, name, values = GROWN[case]
    both = [second, first] if reverse else [first, second]
    path = folder_of(tmp_path, "parquet", *({"x": values} for values in both))
    plan = make_plan(Source(path=path))
    assert str(plan.schema["x"].dtype) in (name, {"float64": "double"}.get(name))
    (note,) = uniting_notes(plan, {"x"})
    assert note.startswith("column 'x' is ")
    assert note.endswith(f"read as {name}")
    assert str(tmp_path / "0.parquet") in note
    assert str(tmp_path / "1.parquet") in note
    assert uniting_notes(plan, set()) == []
    frames = Workflow(["x"]).fit(Dataset(path, engine=engine)).transform(Dataset(path, engine=engine)).frames()
    read_values = [value for frame in frames for value in to_list(frame["x"])]
    assert read_values == (values[::-1] if reverse else values)


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_a_type_of_text_that_grew_from_file_to_file_is_said(format: str, tmp_path: Path) -> None:
    path = folder_of(tmp_path, format, {"x": [1], "y": [0.5], "z": ["a"]}, {"x": [0.5], "y": [1], "z": ["b"]})
    text = f"column 'x' is float64 in {tmp_path}/1.{format}, int64 in {tmp_path}/0.{format}: read as float64"
    assert uniting_notes(make_plan(Source(path=path)), {"x", "y", "z"}) == [text]
    assert uniting_notes(make_plan(Source(path=path, schema={"x": "float64"})), {"x"}) == []
    assert rows(path, ["x", "y"]) == {"x": [1.0, 0.5], "y": [0.5, 1.0]}


@pytest.mark.promise(
    "A JSON Lines column is missing where no line of the file has the key, unless `source.schema` names it"
)
def test_a_key_that_comes_late_in_a_file_of_json_lines_is_there(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_text('{"x": 1, "y": 2}\n')
    (tmp_path / "1.jsonl").write_text('{"x": 1}\n' * 300_000 + '{"y": 3}\n')
    assert rows(str(tmp_path), ["y"])["y"] == [2, *[None] * 300_000, 3]
    (tmp_path / "1.jsonl").write_text('{"x": 1}\n{"\\u0079": 3}\n')
    assert rows(str(tmp_path), ["y"])["y"] == [2, None, 3]
    (tmp_path / "1.jsonl").write_text('{"x": 1}\n{"x": 3}\n')
    with pytest.raises(DataError, match="column 'y' is missing in a file"):
        rows(str(tmp_path), ["y"])
    assert rows(str(tmp_path), ["x"], schema={"y": "int8"})["x"] == [1, 1, 3]
    assert rows(str(tmp_path), ["y"], schema={"y": "int8"})["y"] == [2, None, None]


def test_python_users_are_warned_once_of_columns_that_they_read(
    tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder_of(tmp_path, "parquet", {"n": [1, 3], "x": [1, 1], "y": [1, 2]}, {"n": [2.5], "x": [0.5]})
    source = Dataset(path, engine=engine, missing="null")
    workflow = Workflow(["n"] >> ops.NormalizeMinMax()).fit(source)
    assert [len([*workflow.transform(source).frames()]), len(caplog.messages)] == [1, 1]
    assert caplog.messages[0].startswith(f"how columns are read: column 'n' is float64 in {tmp_path}/1.parquet")
    assert len([*source.to_iter(["x", "y"])]) == 1
    assert len(source.head(1)) == 1
    assert [text.partition("column ")[2][:3] for text in caplog.messages] == ["'n'", "'x'", "'y'"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array(["a"]), pa.array([1])),
        (pa.array([1], pa.uint64()), pa.array([-1], pa.int64())),
        (pa.array([True]), pa.array([1])),
        (pa.array([0], pa.timestamp("us")), pa.array([0], pa.timestamp("us", "UTC"))),
        (pa.array([[1]]), pa.array([1])),
    ],
)
def test_other_types_are_an_error_that_names_both_files_once_they_are_read(
    first: pa.Array, second: pa.Array, tmp_path: Path
) -> None:
    path = folder_of(tmp_path, "parquet", {"x": first, "y": [1]}, {"x": second, "y": [2]})
    assert rows(path, ["y"]) == {"y": [1, 2]}
    with pytest.raises(DataError, match="column 'x' has different types") as error:
        rows(path, ["x", "y"])
    assert error.value.where == str(tmp_path / "1.parquet")
    assert str(tmp_path / "0.parquet") in error.value.why


def test_a_workflow_does_not_look_at_columns_that_it_does_not_use(tmp_path: Path, engine: str) -> None:
    path = folder_of(tmp_path, "parquet", {"n": [1.0, 3.0], "x": ["a", "b"]}, {"n": [5.0], "x": [1], "new": [2]})
    source = Dataset(path, engine=engine)
    workflow = Workflow(["n"] >> ops.NormalizeMinMax()).fit(source)
    (frame,) = workflow.transform(source).frames()
    assert to_list(frame["n"]) == [0.0, 0.5, 1.0]
    with pytest.raises(DataError, match="column 'x' has different types"):
        Workflow(["x"] >> ops.Categorify()).fit(source)


def test_columns_that_files_disagree_about_leave_the_plan_where_nobody_uses_them(tmp_path: Path) -> None:
    plan = make_plan(Source(path=folder_of(tmp_path, "parquet", {"n": [1], "x": ["a"]}, {"n": [2], "x": [1]})))
    assert [*without_unused(plan, {"n"}).schema] == ["n"]
    with pytest.raises(DataError, match="different types"):
        without_unused(plan, {"n", "x"})


def test_a_contract_goes_before_source_missing(tmp_path: Path) -> None:
    path = folder_of(tmp_path, "parquet", {"n": [1]}, {"n": [2], "x": [1]})
    rules = {"x": make_contract({"columns": {"x": {"missing": "evolve"}}}).columns["x"].missing}
    assert read(with_missing(make_plan(Source(path=path)), rules), 0, ["x"]).to_pydict() == {"x": [None, 1]}
    with pytest.raises(DataError, match="the contract forbids that") as error:
        with_missing(make_plan(Source(path=path, missing="null")), {"x": "freeze"})
    assert error.value.where == str(tmp_path / "0.parquet")


def test_yaml_s_null_is_the_word(tmp_path: Path) -> None:
    assert Source.model_validate({"path": "a", "missing": None}).missing == "null"
    assert Source(path="a").missing == "error"


def job_of(tmp_path: Path, **source: Any) -> dict[str, Any]:
    return {
        "source": {"path": str(tmp_path / "*.parquet"), **source},
        "features": [{"columns": ["n"], "ops": [{"op": "NormalizeMinMax"}]}],
        "label": ["y"],
        "output": {"path": str(tmp_path / "out"), "shuffle": "none", "files": 1},
    }


@pytest.mark.promise("the wider type is read, and log, summary, manifest, report and preview name it")
def test_log_manifest_report_and_preview_say_what_was_united(tmp_path: Path) -> None:
    folder_of(tmp_path, "parquet", {"n": [1, 3], "y": [0, 1], "x": ["a", "b"]}, {"n": [1.5], "x": [1], "z": [1]})
    lines = [
        f"column 'n' is float64 in {tmp_path}/1.parquet, int64 in {tmp_path}/0.parquet: read as float64",
        f"column 'y' is missing in {tmp_path}/1.parquet of 2 files: read as null there",
    ]
    job = make_job(job_of(tmp_path, missing=None))
    assert ("How columns are read", "; ".join(lines)) in [(s.title, s.text) for s in sections(preview(job))]
    ingested = run_stages(job.request("pandas"), plugins=[Report()])[0]
    assert ingested.united == "; ".join(lines)
    assert ingested.figures()["united"] == "; ".join(lines)
    assert Manifest.load(tmp_path / "out").data["united"] == lines
    report = (tmp_path / "out" / "_report.html").read_text()
    assert all(line.replace("'", "&#39;") in report for line in lines)
    assert rows_of(tmp_path / "out").to_pydict() == {"n": [0.0, 1.0, 0.25], "y": [0, 1, None]}


@pytest.mark.promise("`is missing in a file`")
def test_a_job_refuses_a_used_column_that_some_files_lack(tmp_path: Path) -> None:
    folder_of(tmp_path, "parquet", {"n": [1, 3], "y": [0, 1]}, {"n": [1]})
    for run in (lambda job: run_stages(job.request("pandas")), preview):
        with pytest.raises(DataError, match="column 'y' is missing in a file"):
            run(make_job(job_of(tmp_path)))


@pytest.mark.promise("A contract's `missing` takes precedence")
def test_a_contract_of_a_job_goes_before_source_missing(tmp_path: Path) -> None:
    folder_of(tmp_path, "parquet", {"n": [1, 3], "y": [0, 1]}, {"n": [2]})
    evolve = job_of(tmp_path) | {"contract": {"columns": {"n": {}, "y": {"missing": "evolve"}}}}
    freeze = job_of(tmp_path, missing="null") | {"contract": {"columns": {"n": {}, "y": {}}}}
    with pytest.raises(DataError, match="the contract forbids that"):
        run_stages(make_job(freeze).request("pandas"))
    (refused,) = preview(make_job(freeze)).refused
    assert "the contract forbids that" in str(refused)
    assert len(preview(make_job(evolve)).united) == 1
    run_stages(make_job(evolve).request("pandas"))
    assert rows_of(tmp_path / "out")["y"].to_pylist() == [0, 1, None]


def test_a_plan_is_made_again_for_a_job_that_uses_other_columns(tmp_path: Path) -> None:
    folder_of(tmp_path, "parquet", {"n": [1, 3], "y": [0, 1]}, {"n": [2]})
    without_y = {key: value for key, value in job_of(tmp_path).items() if key != "label"}

    def ingested(job: dict[str, Any]) -> IngestResult:
        request = make_job(job).request("pandas")
        with request.staging.hold_lock():
            return ingest.ingest(request, LocalPool(1))

    assert [ingested(without_y).reused for _ in range(2)] == [False, True]
    with pytest.raises(DataError, match="column 'y' is missing in a file"):
        ingested(job_of(tmp_path))


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_a_column_that_folders_name_has_their_values_in_a_type_of_the_schema(tmp_path: Path, format: str) -> None:
    """JSON Lines may lack a key of `source.schema`: such a column was null in all rows."""
    for day in ("01", "02"):
        (tmp_path / f"day={day}").mkdir()
        folder_of(tmp_path / f"day={day}", format, {"x": [1]})
    assert rows(str(tmp_path), ["day"], schema={"day": "string"}) == {"day": ["01", "02"]}


@pytest.mark.promise("A file that lies in no such folder lacks the column")
def test_a_file_outside_of_the_folders_that_name_a_column_lacks_it(tmp_path: Path) -> None:
    for name in ("day=1/a.csv", f"day={hive.NULL}/b.csv", "c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n1\n")
    plan = make_plan(Source(path=str(tmp_path)))
    assert read(plan, 0, ["x"]).to_pydict() == {"x": [1, 1, 1]}
    for filter in (None, "day == 1"):
        with pytest.raises(DataError, match="column 'day' is missing in a file") as error:
            check_together(make_plan(Source(path=str(tmp_path), filter=filter)), ["day"])
        assert error.value.where == f"{tmp_path}/c.csv"
    with pytest.raises(DataError, match="column 'day' is missing in a file"):
        read(plan, 0, ["day"])
    plan = make_plan(Source(path=str(tmp_path), missing="null"))
    check_together(plan, ["day"])
    assert read(plan, 0, ["day"]).to_pydict() == {"day": [None, 1, None]}
    assert uniting_notes(plan, ["day"]) == [
        f"column 'day' is missing in {tmp_path}/c.csv of 3 files: read as null there"
    ]
    (tmp_path / "c.csv").unlink()
    assert read(make_plan(Source(path=str(tmp_path))), 0, ["day"]).to_pydict() == {"day": [1, None]}
