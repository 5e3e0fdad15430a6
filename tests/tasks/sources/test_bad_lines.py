"""Lines of text that cannot be read: counted, skipped, collected; the same ones in every pass and for any ranges."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from flows.job.job import make_job
from flows.preview.job_preview import preview
from flows.preview.preview_text import sections
from tasks import ops
from tasks.cluster.local_pool import LocalPool
from tasks.core.plan import Limits, Piece
from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.manifest import Manifest
from tasks.sources.bad_lines import bad_lines_of, bad_lines_text, target_of, write_bad_lines
from tasks.sources.formats import FORMATS, jsonl
from tasks.sources.formats.readable_lines import DelimitedSieve
from tasks.sources.formats.record_ends import Dialect
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.sources.sampling import of_source
from tasks.stages import ingest
from tasks.storage.files import expand
from tasks.workflow import Workflow
from tests.examples import examples
from tests.flows.runs import rows_of
from tests.frames import to_list
from tests.stages import Report, run_stages

CSV = b'x,y\n1,a\n2\n3,"b\nc"\n\n4,d,e\n5,\xff\n6,f\n7,"open\n'
BAD = [
    (3, "1 value, 2 columns", "2"),
    (7, "3 values, 2 columns", "4,d,e"),
    (8, "byte 0xff is not a letter of utf-8", "5,\\xff"),
    (10, "quotes are open at the end of the file: lines that are not read: 1", '7,"open'),
]
JSON = b'{"x": 1}\n\n{"x": 2\n[3]\n{"x": 4} {"x": 5}\n{"x": "\\ud800"}\n  \n{"x": 6}\n{"x": NaN}\n{"x": 7}'
BAD_JSON = [3, 4, 5, 6, 9]


def plan_of(path: Path, range_bytes: int = 8, **source: Any) -> Any:
    return make_plan(Source(path=str(path), **source), limits=Limits(join_below=1, range_bytes=range_bytes))


def rows(plan: Any, columns: list[str] | None = None) -> dict[str, list[Any]]:
    return pa.concat_tables([read(plan, i, columns) for i in range(len(plan.partitions))]).to_pydict()


def collected(plan: Any, path: Path) -> list[dict[str, Any]]:
    target = target_of(Source(path="in", bad_lines=str(path)))
    assert target is not None
    write_bad_lines(target, [(plan, bad_lines_of(plan))])
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.promise(
    "`error` names file and line. `skip` leaves them out. The path of a file (which may hold `{date}`) leaves them "
    "out and collects them there"
)
@pytest.mark.parametrize("range_bytes", [3, 8, 2**20])
@pytest.mark.parametrize("packed", [False, True])
def test_bad_lines_of_csv_are_left_out_counted_and_collected(range_bytes: int, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(CSV) if packed else CSV)
    plan = plan_of(path, range_bytes, bad_lines="skip")
    assert rows(plan) == {"x": [1, 3, 6], "y": ["a", "b\nc", "f"]}
    assert rows(plan, ["x"]) == {"x": [1, 3, 6]}
    (bad,) = bad_lines_of(plan)
    assert (bad["path"], bad["count"], bad["line"], bad["why"]) == (str(path), 4, 3, "1 value, 2 columns")
    found = collected(plan, tmp_path / "_bad.jsonl")
    assert [(row["line"], row["why"], row["text"]) for row in found] == BAD
    assert {row["file"] for row in found} == {str(path)}
    assert not list(tmp_path.glob("*.tmp"))


OPEN = "quotes are open at the end of the file: lines that are not read: {}"
TORN = "letters follow a closing quote, lines that are not read: {}"
# (text, the line with the open quote, why, the lines that can be read)
OPEN_QUOTES = [
    ('x,y\n1,a\n2,"b\n3,c\n4,d\n', 3, OPEN.format(3), [1]),
    ('x,y\n1,a\n2,b\n3,"c', 4, OPEN.format(1), [1, 2]),
    ('x,y\n1,a\n2,"b\n3,c\n4,"d\n5,e\n', 3, TORN.format(3), [1, 5]),
    ('x,y\n1,"a"\n2,"b\n3,"c"\n4,"d"\n', 3, TORN.format(2), [1, 4]),
    ('x,y\n1,a\n"2,b\n"3",c\n4,d\n', 3, TORN.format(2), [1, 4]),
    ('x,y\n"1",a\n2,"b""\n3,""\n', 3, OPEN.format(2), [1]),
]  # fmt: skip


@pytest.mark.promise("By default an open quote is an error that names its line")
@pytest.mark.parametrize("range_bytes", [3, 8, 2**20])
@pytest.mark.parametrize("kind", ["plain", "gzip", "utf-16", "escape", "comment"])
@pytest.mark.parametrize(("text", "line", "why", "left"), OPEN_QUOTES)
def test_an_open_quote_is_an_error_that_names_its_line(
    text: str, line: int, why: str, left: list[int], kind: str, range_bytes: int, tmp_path: Path
) -> None:
    settings: dict[str, str] = {
        "utf-16": {"encoding": "utf-16"}, "escape": {"escape": "!"}, "comment": {"comment": "#"},
    }.get(kind, {})  # fmt: skip
    data = text.encode("utf-16" if kind == "utf-16" else "utf-8")
    path = tmp_path / ("a.csv.gz" if kind == "gzip" else "a.csv")
    path.write_bytes(gzip.compress(data) if kind == "gzip" else data)
    if kind == "escape":
        why = why.replace("quotes are open at", "quotes are open, or an escape stands alone, at")
    with pytest.raises(DataError, match="a quote of a text file is not closed") as error:
        plan_of(path, range_bytes, **settings)
    assert (error.value.where, error.value.why) == (f"{path}, line {line}", why)
    plan = plan_of(path, range_bytes, bad_lines="skip", **settings)
    assert [int(x) for x in rows(plan)["x"]] == left
    (found,) = collected(plan, tmp_path / "_bad.jsonl")
    assert (found["line"], found["why"]) == (line, why)


@pytest.mark.parametrize("range_bytes", [3, 2**20])
def test_quotes_that_are_closed_hold_any_text(range_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'x,y\n1,"a"\n2,"b\n""3"",c" \n5,f"g\n6,"j\n"\n7,"k" \n8,"l"\t ')
    for bad_lines in ("error", "skip"):
        plan = plan_of(tmp_path / "a.csv", range_bytes, bad_lines=bad_lines)
        assert rows(plan)["y"] == ["a", 'b\n"3",c ', 'f"g', "j\n", "k ", "l\t "]


def test_an_open_quote_of_the_header_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,"y\n1,a\n2,b\n')
    for bad_lines in ("error", "skip"):
        with pytest.raises(DataError, match="a quote of a text file is not closed") as error:
            plan_of(tmp_path / "a.csv", bad_lines=bad_lines)
        assert error.value.where == f"{tmp_path}/a.csv, line 1"


@pytest.mark.promise(
    "`error` names file and line. `skip` leaves them out. The path of a file (which may hold `{date}`) leaves them "
    "out and collects them there"
)
@pytest.mark.parametrize("range_bytes", [3, 8, 2**20])
def test_bad_lines_of_json_are_left_out_counted_and_collected(range_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(JSON + b'\n{"x": "\xe9"}')
    plan = plan_of(path, range_bytes, bad_lines="skip")
    assert rows(plan) == {"x": [1, 6, 7]}
    found = collected(plan, tmp_path / "_bad.txt")
    assert [row["line"] for row in found] == [*BAD_JSON, 11]
    assert found[-1]["text"] == '{"x": "\\xe9"}'


@pytest.mark.parametrize("bad", ["", "[3]\n"])
def test_a_line_of_blanks_is_no_row_whatever_columns_are_read(bad: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n  \n' + bad + '{"x": 2}\n')
    plan = plan_of(tmp_path / "a.jsonl", 2**20, bad_lines="skip")
    assert rows(plan) == {"x": [1, 2]}
    assert read(plan, 0, []).num_rows == 2


@pytest.mark.promise(
    "`error` names file and line. `skip` leaves them out. The path of a file (which may hold `{date}`) leaves them "
    "out and collects them there"
)
@pytest.mark.promise("`cannot be parsed`")
def test_a_bad_line_is_an_error_that_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV.removesuffix(b'7,"open\n'))
    with pytest.raises(DataError, match="a text file cannot be parsed") as error:
        rows(plan_of(tmp_path / "a.csv", 2**20))
    assert error.value.where == f"{tmp_path}/a.csv, row 2 (line 3 of the file)"
    assert "source.bad_lines: skip" in error.value.do
    (tmp_path / "a.csv").write_bytes(b"x,y\n\xff,1\n\n2,b\n3,c,d\n\xfe,a\n")
    for columns, where in ((["y"], "row 3 (line 5 of the file)"), (["x"], "row 3 (line 5 of the file)")):
        with pytest.raises(DataError, match="a text file cannot be parsed") as error:
            rows(plan_of(tmp_path / "a.csv", 2**20, schema={"x": "string"}), columns)
        assert error.value.where == f"{tmp_path}/a.csv, {where}"
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,1\n\n# ,\n2,b\n\xfe,a\n")
    for signs, limit in (({"comment": "#"}, 2), ({"comment": "#"}, 2**20)):
        with pytest.raises(DataError, match="a text file cannot be parsed") as error:
            rows(plan_of(tmp_path / "a.csv", limit, schema={"x": "string"}, **signs), ["x"])
        assert error.value.where.endswith("(line 6 of the file)")
    (tmp_path / "a.jsonl").write_bytes(b'{"x": 1}\n\n{"x": 2\n')
    with pytest.raises(DataError, match="a line of JSON does not fit") as error:
        rows(plan_of(tmp_path / "a.jsonl", 2**20, schema={"x": "int64"}))
    assert error.value.where == f"{tmp_path}/a.jsonl, row 2 (line 3 of the file)"
    assert "source.bad_lines: skip" in error.value.do


@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_line_of_a_later_piece_is_counted_from_the_beginning_of_the_file(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    lines = [b"x,y\n", b"1,\xfe\n", b"2\n", b"\n", b'3,"b\nc"\n', b"4,d,e\n", b"5,\xff\n", b"6,f\n"]
    path.write_bytes(gzip.compress(b"".join(lines)) if packed else b"".join(lines))
    files = expand(str(path))
    options = {"header": True, "columns": None, "null_values": [""], "names": ["x", "y"], "other_names": {}}
    schema = pa.schema([("x", "string"), ("y", "string")])
    edges = np.cumsum([0, *map(len, lines)])
    for first, stop, where in ((1, 2, "line 2"), (2, 3, "line 3"), (4, 6, "line 7"), (6, 8, "line 8")):
        with pytest.raises(DataError, match="a text file cannot be parsed") as error:
            FORMATS["csv"].read(files, [Piece(0, int(edges[first]), int(edges[stop]))], schema, options)
        assert re.search(r"line \d", error.value.where)[0] == where


@pytest.mark.promise("or has a value that does not fit the type of its column")
def test_a_value_that_does_not_fit_its_type_makes_a_line_bad(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2\nz,b\n3,c\n")
    plan = plan_of(tmp_path, bad_lines="skip", schema={"x": "int64"})
    assert rows(plan) == {"x": [1, 3], "y": ["a", "c"]}
    assert [row["line"] for row in collected(plan, tmp_path / "_bad")] == [3, 4]


def test_files_of_bad_lines_alone_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1\n2\n")
    (tmp_path / "b.csv").write_text("x,y\n1,2\n")
    plan = plan_of(tmp_path, bad_lines="skip")
    assert rows(plan) == {"x": [1], "y": [2]}
    assert plan.skipped == (f"{tmp_path}/a.csv",)
    assert [row["line"] for row in collected(plan, tmp_path / "_bad")] == [2, 3]
    (tmp_path / "b.csv").unlink()
    with pytest.raises(DataError, match="no rows at all") as error:
        plan_of(tmp_path, bad_lines="skip")
    assert error.value.why == "none of 2 lines can be read; the first is line 2: 1 value, 2 columns"


def test_a_sample_of_the_source_leaves_bad_lines_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "1,'a\n2222222222222222222222222\n" * 20_000)
    table = of_source(plan_of(tmp_path, 2**20, bad_lines="skip"), 100)
    assert table is not None
    assert table["y"].to_pylist() == ["'a"] * 100


def test_the_text_names_the_files_with_the_most(tmp_path: Path) -> None:
    files = [{"path": f"{n}.csv", "count": n, "line": 2, "why": "no object"} for n in range(1, 31)]
    text = bad_lines_text(files)
    assert text.startswith(
        "465 lines cannot be read and are left out: 30 of 30.csv (the first is line 2: no object); 29"
    )
    assert text.endswith("; and those of 10 more files")
    assert bad_lines_text(files[:1]).startswith("1 line cannot be read and is left out: 1 of 1.csv")
    assert bad_lines_text([]) == ""


def test_python_users_get_a_warning_and_the_file(tmp_path: Path, engine: str, caplog: Any) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2\n3,b\n")
    source = Dataset(str(tmp_path), engine=engine, bad_lines=tmp_path / "_bad.jsonl")
    with caplog.at_level(logging.WARNING, "rowmill"):
        (frame,) = Workflow(["x"] >> ops.NormalizeMinMax()).fit_transform(source).frames()
    assert to_list(frame["x"]) == [0.0, 1.0]
    assert caplog.messages == [
        f"1 line cannot be read and is left out: 1 of {tmp_path}/a.csv (the first is line 3: 1 value, 2 columns)"
    ]
    assert json.loads((tmp_path / "_bad.jsonl").read_text()) == {
        "file": f"{tmp_path}/a.csv", "line": 3, "why": "1 value, 2 columns", "text": "2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bad_lines", "message"),
    [
        ("IN/bad.csv", "the file of source.bad_lines is inside the source"),
        ("OUT", "OUT is a folder"),
        ("OUT/pipe", "OUT/pipe is a pipe"),
        ("OUT/link", "OUT/link is a link"),
        ("/dev/null", r"(?s)/dev/null is a device.*source.bad_lines: skip"),
        ("s3://bucket/bad", "bad lines go into a file of this host"),
        ("OUT/mine.txt", "OUT/mine.txt exists, and no run has written it"),
        ("OUT/nul\0", "a path holds the character NUL"),
    ],
)
def test_a_file_for_bad_lines_that_cannot_be(bad_lines: str, message: str, tmp_path: Path) -> None:
    for name in ("IN", "OUT"):
        (tmp_path / name).mkdir()
    (tmp_path / "IN" / "a.csv").write_text("x\n1\n")
    (tmp_path / "OUT" / "mine.txt").write_text("mine\n")
    (tmp_path / "OUT" / "link").symlink_to("mine.txt")
    os.mkfifo(tmp_path / "OUT" / "pipe")
    named = bad_lines.replace("IN", f"{tmp_path}/IN").replace("OUT", f"{tmp_path}/OUT")
    with pytest.raises(JobError, match=message):
        _ = Dataset(str(tmp_path / "IN"), bad_lines=named).plan
    assert (tmp_path / "OUT" / "mine.txt").read_text() == "mine\n"
    assert Path("/dev/null").is_char_device()


def test_bad_lines_do_not_go_into_the_output(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("x,y\n1,2\n")
    for place in ("out", "out/bad.jsonl"):
        job = make_job(job_of(tmp_path, bad_lines=str(tmp_path / place)))
        with pytest.raises(JobError, match=r"the file of source\.bad_lines is inside the output"):
            run_stages(job.request("pandas"))


def test_quotes_that_are_never_closed_do_not_leave_out_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,y\n1,"a\n' + "2,b\n" * 100)
    for signs in ({}, {"comment": "#"}):
        with pytest.raises(DataError, match="a record of a text file is longer than 200 bytes") as error:
            plan_of(tmp_path, 2**20, bad_lines="skip", max_record_bytes=200, **signs)
        assert error.value.where == f"{tmp_path}/a.csv"
        with pytest.raises(DataError, match="none of 1 lines can be read"):
            plan_of(tmp_path, 2**20, bad_lines="skip", **signs)


def test_the_file_for_bad_lines_may_have_the_date_in_its_name(tmp_path: Path) -> None:
    job = make_job(job_of(tmp_path, bad_lines="{date}/bad.jsonl") | {"run": {"date": "2026-11-22"}})
    assert job.request("pandas").source.bad_lines == str(Path("2026-11-22/bad.jsonl").absolute())


@pytest.mark.parametrize(
    ("signs", "where"),
    [
        ({"delimiter": "#", "comment": "#"}, "source.comment"),
        ({"quote": ","}, "source.quote"),
        ({"escape": '"'}, "source.escape"),
    ],
)
def test_one_character_is_one_sign(signs: dict[str, str], where: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(JobError, match="of a text file") as error:
        plan_of(tmp_path, **signs)
    assert error.value.where == where


@pytest.mark.parametrize("sign", ["ab", "\n", "é", "\0"])
def test_a_sign_is_one_ascii_character(sign: str) -> None:
    for name in ("quote", "escape", "comment"):
        with pytest.raises(JobError, match="is not a sign of a text file"):
            Dataset("a.csv", **{name: sign})


def test_a_fitted_workflow_keeps_the_signs_of_its_text(tmp_path: Path, engine: str) -> None:
    for name, text in (("a", "x;y\n# 'it\n1;'a;\\''\n3;b\n"), ("b", "x;y\n2;'c;'\n# 9;'\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    fitted = Dataset(tmp_path / "a.csv", engine=engine, delimiter=";", comment="#", quote="'", escape="\\")
    workflow = Workflow((["x"] >> ops.NormalizeMinMax()) + ["y"]).fit(fitted)
    (frame,) = workflow.transform(fitted).frames()
    assert to_list(frame["y"]) == ["a;'", "b"]
    (frame,) = workflow.transform(Dataset(tmp_path / "b.csv", engine=engine)).frames()
    assert (to_list(frame["x"]), to_list(frame["y"])) == ([0.5], ["c;"])


def test_formats_without_lines_have_no_bad_ones(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(JobError, match="the format parquet takes no bad_lines"):
        plan_of(tmp_path, bad_lines="skip")


def job_of(tmp_path: Path, **source: Any) -> dict[str, Any]:
    return {
        "source": {"path": str(tmp_path / "in" / "*.csv"), **source},
        "features": [{"columns": ["x"], "ops": [{"op": "NormalizeMinMax"}]}],
        "output": {"path": str(tmp_path / "out"), "shuffle": "none", "files": 1},
    }


@pytest.mark.promise("Log, artifacts, report and manifest count bad lines by file")
def test_log_artifacts_manifest_report_and_preview_count_bad_lines(tmp_path: Path) -> None:
    for split in ("in", "valid"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.csv").write_text("x,y\n1,a\n2\n3,b\n")
    (tmp_path / "valid" / "a.csv").write_text("x,y\n1,2,3\n1,a\n")
    target = tmp_path / "bad" / "lines.jsonl"
    job = make_job(job_of(tmp_path, bad_lines=str(target), valid=str(tmp_path / "valid")))
    parts = [
        f"1 of {tmp_path}/in/a.csv (the first is line 3: 1 value, 2 columns)",
        f"1 of {tmp_path}/valid/a.csv (the first is line 2: 3 values, 2 columns)",
    ]
    text = f"2 lines cannot be read and are left out: {'; '.join(parts)}"
    assert ("Bad lines", text) in [(s.title, s.text) for s in sections(preview(job))]
    assert not target.exists()
    ingested, _, transformed, *_ = run_stages(job.request("pandas"), plugins=[Report()])
    assert (ingested.figures()["bad_lines"], ingested.figures()["bad_lines_of"]) == (2, text)
    assert transformed.figures()["bad_lines"] == 1
    wanted = {"path": f"{tmp_path}/in/a.csv", "count": 1, "line": 3, "why": "1 value, 2 columns"}
    assert Manifest.load(tmp_path / "out" / "train").data["bad_lines"] == [wanted]
    report = (tmp_path / "out" / "train" / "_report.html").read_text()
    assert f"1 lines of {tmp_path}/in/a.csv (the first is line 3: 1 value, 2 columns)" in report
    assert [json.loads(line)["line"] for line in target.read_text().splitlines()] == [3, 2]
    assert rows_of(tmp_path / "out" / "train").to_pydict() == {"x": [0.0, 1.0]}


def test_a_plan_is_made_again_where_the_file_for_bad_lines_is_gone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("x,y\n1,a\n2\n3,b\n")
    target = tmp_path / "bad.jsonl"
    request = make_job(job_of(tmp_path, bad_lines=str(target))).request("pandas")
    with request.staging.hold_lock():
        runs = [ingest.ingest(request, LocalPool(1)) for _ in range(2)]
        before = target.read_bytes()
        target.unlink()
        runs.append(ingest.ingest(request, LocalPool(1)))
    assert [run.reused for run in runs] == [False, True, False]
    assert [run.bad_lines for run in runs] == [1, 1, 1]
    assert target.read_bytes() == before


# laws


RAW = st.text(st.sampled_from('ab,;"\\#\n\r é'), min_size=1, max_size=60)
DIALECTS = st.sampled_from(
    [
        Dialect(), Dialect(";", "'"), Dialect(",", ""), Dialect(",", '"', "\\"), Dialect(",", '"', None, "#"),
        Dialect(",", '"', "\\", "#"), Dialect(",", "", "\\", "#"), Dialect(",;"), Dialect("é"), Dialect("a,", ""),
        Dialect(",", skip_space=True), Dialect(";", "", skip_space=True), Dialect(",,", "'", "\\", "#", True),
    ]
)  # fmt: skip
LAW = examples(150, HealthCheck.function_scoped_fixture)


@given(text=RAW, dialect=DIALECTS, columns=st.integers(1, 3), cut=st.integers(1, 40))
@example(text="\r,\n\n", dialect=Dialect(), columns=1, cut=1)  # the CR must not join the LF behind the bad line
@LAW
def test_arrow_reads_what_the_sieve_leaves_and_ranges_change_nothing(
    text: str, dialect: Dialect, columns: int, cut: int, tmp_path: Path
) -> None:
    sifted = DelimitedSieve(replace(dialect, blank=columns == 1), columns).sift(text.encode())
    assert sifted.rows == 0 or sifted.data
    names = [f"c{i}" for i in range(columns)]
    (tmp_path / "a.csv").write_bytes(text.encode())
    signs = {"delimiter": dialect.delimiter, "quote": dialect.quote, "escape": dialect.escape,
             "comment": dialect.comment, "skip_initial_space": dialect.skip_space}  # fmt: skip
    source = {**signs, "columns": names, "schema": dict.fromkeys(names, "string"), "bad_lines": "skip"}
    if not sifted.rows:
        with pytest.raises(DataError, match="no rows at all"):
            plan_of(tmp_path / "a.csv", cut, **source)
        return
    plans = [plan_of(tmp_path / "a.csv", size, **source) for size in (cut, 2**20)]
    tables = [rows(plan) for plan in plans]
    assert tables[0] == tables[1]
    assert len(tables[0]["c0"]) == plans[0].rows == sifted.rows
    assert bad_lines_of(plans[0]) == bad_lines_of(plans[1])
    assert sum(bad["count"] for bad in bad_lines_of(plans[0])) == len(sifted.bad)


FIELD = st.text(st.sampled_from('ab,"\\#\n é'), max_size=8)


@pytest.mark.promise("begins lines that are not rows", "flows/KEYS.md#source")
@pytest.mark.promise("After `escape` a quote, delimiter or line end is a plain letter")
@given(
    records=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=12), comments=st.lists(FIELD, max_size=12),
    quote=st.sampled_from(['"', "'", ""]), escape=st.sampled_from([None, "\\"]), comment=st.sampled_from([None, "#"]),
    cut=st.integers(1, 60),
)  # fmt: skip
@LAW
def test_signs_are_read_as_python_reads_them(
    records: list[tuple[str, str]], comments: list[str], quote: str, escape: str | None, comment: str | None, cut: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    if not quote and not escape:
        records = [(a.translate({44: "", 10: ""}), b.translate({44: "", 10: ""})) for a, b in records]
    if not quote:  # a record that begins with the sign of comments is one
        records = [("x" + a, b) for a, b in records]
    parts, expected = ["a,b\n"], []
    style: Any = {
        "quoting": csv.QUOTE_ALL if quote else csv.QUOTE_NONE, "quotechar": quote or None, "escapechar": escape,
        "doublequote": escape is None, "lineterminator": "\n",
    }  # fmt: skip
    for number, record in enumerate(records):
        out = io.StringIO()
        csv.writer(out, **style).writerow(record)
        if comment and number < len(comments):
            parts.append(comment + comments[number].replace("\n", "") + "\n")
        parts.append(out.getvalue())
        expected += csv.reader(io.StringIO(out.getvalue(), newline=""), **style)
    (tmp_path / "a.csv").write_text("".join(parts), newline="")
    plan = plan_of(tmp_path / "a.csv", cut, quote=quote, escape=escape, comment=comment,
                   schema={"a": "string", "b": "string"}, null_values=["NULL"])  # fmt: skip
    read_rows = rows(plan)
    assert [list(row) for row in zip(read_rows["a"], read_rows["b"], strict=True)] == expected


JSON_LINE = st.sampled_from(
    ['{"x": 1}', '{"x": "a"}', "null", "", " ", "{", '{"x": 1', "[1]", '{"x": "\\ud800"}', '{"x": 1}{"x": 2}',
     '"x": 2}', "\r", '{"y": [[1], [2]]}', "é"]
)  # fmt: skip


@given(lines=st.lists(JSON_LINE, min_size=1, max_size=12), cut=st.integers(1, 60))
@LAW
def test_the_verdict_on_a_line_of_json_is_that_on_the_line_alone(lines: list[str], cut: int, tmp_path: Path) -> None:
    text = "\n".join(lines).encode()
    sieve = jsonl._sieve({"bad_lines": True, "schema": {}})
    assert sieve is not None
    alone = [sieve.sift(line.encode()) for line in lines]
    sifted = sieve.sift(text)
    assert sifted.rows == sum(one.rows for one in alone)
    assert len(sifted.bad) == sum(len(one.bad) for one in alone)
    (tmp_path / "a.jsonl").write_bytes(text)
    if sifted.rows:
        plan = plan_of(tmp_path / "a.jsonl", cut, bad_lines="skip", schema={"x": "string", "z": "string"})
        assert len(rows(plan)["x"]) == plan.rows == sifted.rows
