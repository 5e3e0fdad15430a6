"""Texts that are numbers: a column becomes numbers only where no two different texts become one value."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rowmill import ops

from flows.job.job import make_job
from flows.preview.job_preview import preview
from flows.preview.preview_text import sections
from tasks.core.plan import Limits
from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.engines.algorithms.written_numbers import may_be_padded
from tasks.errors import DataError
from tasks.manifest import Manifest
from tasks.sources.bad_lines import bad_lines_of
from tasks.sources.formats import text_ranges
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.workflow import Workflow
from tests.frames import to_list
from tests.stages import Report, run_stages

SMALL = Limits(join_below=1, range_bytes=64)
BIG, NEXT = 9007199254740993, 9007199254740992
COLUMNS = [
    (["007", "7", "07"], "string"),
    (["00", "01", ""], "string"),
    (["-007", "-7"], "string"),
    (["0x10", "16"], "string"),
    (["1e5", "10e4", "100000"], "string"),
    (["32E2", "1"], "string"),
    ([str(BIG), str(NEXT), "7.0"], "string"),
    ([str(2**64), "1"], "string"),
    (["-1", str(2**64 - 1)], "string"),
    (["nan", "007", "7"], "string"),
    (["+5", "5", "-3"], "int64"),
    (["0", "10", " 7 "], "int64"),
    ([str(2**64 - 1), "1"], "uint64"),
    (["1e-05", "3", "1e5"], "double"),
    (["1.50", "1.5", "007.5"], "double"),
    (["1.5", str(2**53)], "double"),
    (["nan", "1", "2"], "double"),
]
NUMBERS = {"int64": int, "uint64": int, "double": float}


def table_of(path: Path, limits: Limits = SMALL, **source: Any) -> pa.Table:
    plan = make_plan(Source(path=str(path), **source), limits=limits)
    return pa.concat_tables([read(plan, number) for number in range(len(plan.partitions))])


def expected(texts: list[str], dtype: str) -> list[Any]:
    values = [text if dtype == "string" else NUMBERS[dtype](text) for text in texts]
    return [None if value == "" or value != value else value for value in values]


@pytest.mark.promise("Numbers are inferred only where no two texts become one number")
@pytest.mark.parametrize(("texts", "dtype"), COLUMNS)
@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "utf-16"])
def test_the_type_of_a_column_of_numbers(tmp_path: Path, texts: list[str], dtype: str, kind: str) -> None:
    sign = "\t" if kind == "tsv" else ","
    text = f"x{sign}y\n" + "".join(f"{value}{sign}a\n" for value in texts)
    path = tmp_path / ("a.csv" if kind == "utf-16" else f"a.{kind}")
    data = text.encode("utf-16" if kind == "utf-16" else "utf-8")
    path.write_bytes(gzip.compress(data) if kind == "csv.gz" else data)
    column = table_of(path, encoding="utf-16" if kind == "utf-16" else "utf-8")["x"]
    seen = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    assert (str(seen), column.to_pylist()) == (dtype, expected(texts, dtype))


@pytest.mark.promise("Numbers are inferred only where no two texts become one number")
@pytest.mark.parametrize(
    ("values", "dtype", "read_as"),
    [
        ([str(BIG), str(NEXT), "7.0"], "string", [str(BIG), str(NEXT), "7.0"]),
        ([str(2**64), "1"], "string", [str(2**64), "1"]),
        ([str(2**64 - 1), "1"], "uint64", [2**64 - 1, 1]),
        (["1e5", "100000"], "string", ["1e5", "100000"]),
        (["1e5", "0.5", "null"], "double", [1e5, 0.5, None]),
        ([f"[{2**64}, 1]", "[2]"], "list<item: string>", [[str(2**64), "1"], ["2"]]),
        ([f'{{"id": {BIG}}}', '{"id": 0.5}'], "struct<id: string>", [{"id": str(BIG)}, {"id": "0.5"}]),
    ],
)
def test_the_type_of_numbers_in_lines_of_json(tmp_path: Path, values: list[str], dtype: str, read_as: Any) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"x": {value}, "y": "1e5"}}\n' for value in values))
    data = Dataset(str(tmp_path / "a.jsonl"), engine="pandas")
    assert (str(data.schema["x"].dtype), table_of(tmp_path)["x"].to_pylist()) == (dtype, read_as)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_all_files_decide_the_type_of_a_column(tmp_path: Path, kind: str) -> None:
    for number, values in enumerate([[str(BIG), str(NEXT)], ["7.0", "8"]]):
        text = "x\n" + "\n".join(values) if kind == "csv" else "\n".join(f'{{"x": {value}}}' for value in values)
        (tmp_path / f"{number}.{kind}").write_text(text + "\n")
    assert table_of(tmp_path)["x"].to_pylist() == [str(BIG), str(NEXT), "7.0", "8"]


LATER = [
    ("007", "row 41", "{x: int64}"),
    ("-07", "row 41", "{x: string}"),
    ("0x10", "row 41", "{x: string}"),
    ("1e5", "row 41", "{x: string}"),
    ("1.5", "row 41", "{x: string}"),
]


@pytest.mark.promise("or has a value that does not fit the type of its column")
@pytest.mark.promise("a later value that would become another number is an error")
@pytest.mark.parametrize(("value", "row", "setting"), LATER)
def test_a_later_value_that_does_not_fit_is_an_error_or_a_bad_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, row: str, setting: str
) -> None:
    monkeypatch.setattr(text_ranges, "SAMPLE", 64)
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "".join(f"{n - 20},2024-01-0{n % 9 + 1} 05:00\n" for n in range(40)) + f"{value},\n+7,\n")
    with pytest.raises(DataError) as error:
        table_of(path)
    assert f"'{value}'" in str(error.value)
    assert error.value.where.startswith(f"{path}, column x, {row} ")
    assert "source.schema: {x: string}" in error.value.do
    assert setting in error.value.do
    assert table_of(path, schema={"x": "string"})["x"].to_pylist()[40:] == [value, "+7"]
    plan = make_plan(Source(path=str(path), bad_lines="skip"), limits=SMALL)
    rows = pa.concat_tables([read(plan, number) for number in range(len(plan.partitions))])
    assert rows["x"].to_pylist() == [*range(-20, 20), 7]
    assert plan.rows == 41
    (bad,) = bad_lines_of(plan)
    assert (bad["count"], bad["line"], bad["why"]) == (1, 42, f"'{value}' does not fit column 'x', which is int64")


@pytest.mark.promise("a later value that would become another number is an error")
def test_a_later_whole_number_that_floats_do_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_ranges, "SAMPLE", 64)
    for name, values in (("a.csv", "x\n{}\n"), ("a.jsonl", "{}\n")):
        path, line = tmp_path / name, "{}" if name == "a.csv" else '{{"x": {}}}'
        lines = [line.format(value) for value in (*(n + 0.5 for n in range(40)), BIG, 1.5)]
        path.write_text(values.format("\n".join(lines)))
        with pytest.raises(DataError, match="row 41"):
            table_of(path)
        assert table_of(path, bad_lines="skip")["x"].to_pylist() == [*(n + 0.5 for n in range(40)), 1.5]
        assert table_of(path, schema={"x": "float64"})["x"].to_pylist()[40:] == [float(NEXT), 1.5]


def test_a_declared_type_is_the_users_decision(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n007,1e5\n+7,0.5\n0x10,3\n")
    table = table_of(tmp_path, schema={"x": "int64", "y": "float64"})
    assert table.select(["x", "y"]).to_pydict() == {"x": [7, 7, 16], "y": [1e5, 0.5, 3.0]}
    with pytest.raises(DataError, match="column 'y' has a value that is not of type int64"):
        table_of(tmp_path, schema={"y": "int64"})


@pytest.mark.promise("`apply` and `refit` read in the types of the fit")
def test_the_type_of_the_fit_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, values in {"codes": ["007", "7"], "plain": ["7", "8"], "mixed": ["8", "007"]}.items():
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "".join(f"{value},1\n" for value in values))
        rows = "".join(json.dumps({"x": value}) + "\n" for value in values).replace('"0', '"9')
        (tmp_path / f"{name}.jsonl").write_text(rows)

    def ids(workflow: Workflow, name: str) -> list[int]:
        (frame,) = workflow.transform(Dataset(tmp_path / name, engine="pandas")).frames()
        return to_list(frame["x"])

    of_texts = Workflow(["x"] >> ops.Categorify()).fit(Dataset(tmp_path / "codes.csv", engine="pandas"))
    assert ids(of_texts, "codes.csv") == [3, 4]
    assert ids(of_texts, "plain.csv") == [4, 2]
    assert "column 'x' is int64 here, and text in the fit: it is read as text" in caplog.text
    of_texts.save(tmp_path / "fitted")
    assert ids(Workflow.load(tmp_path / "fitted"), "plain.csv") == [4, 2]
    caplog.clear()
    of_numbers = Workflow(["x"] >> ops.Categorify()).fit(Dataset(tmp_path / "plain.csv", engine="pandas"))
    with pytest.raises(DataError, match=r"(?s)not of type int64: '007'.*row 2.*\{x: int64\} makes one number of them"):
        ids(of_numbers, "mixed.csv")
    with pytest.raises(DataError, match="'007'"):
        of_numbers.refit(Dataset(tmp_path / "mixed.csv", engine="pandas"))
    as_said = Dataset(tmp_path / "mixed.csv", schema={"x": "int64"}, engine="pandas")
    (frame,) = of_numbers.transform(as_said).frames()
    assert to_list(frame["x"]) == [4, 3]


def test_numbers_of_json_that_the_fit_has_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"x": {2**64}}}\n{{"x": {2**64 + 1}}}\n{{"x": 5}}\n')
    (tmp_path / "b.jsonl").write_text('{"x": 5}\n{"x": 6}\n')
    workflow = Workflow(["x"] >> ops.Categorify()).fit(Dataset(tmp_path / "a.jsonl", engine="pandas"))
    got = [to_list(workflow.transform(Dataset(tmp_path / f"{n}.jsonl", engine="pandas")).head(3)["x"]) for n in "ab"]
    assert got == [[3, 4, 5], [5, 2]]


@pytest.mark.promise("`apply` and `refit` read in the types of the fit")
def test_names_of_folders_take_the_type_of_the_fit(tmp_path: Path) -> None:
    for folder in ("a/hour=10", "b/hour=07", "c/hour=10"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.csv").write_text("x\n1\n")
    workflow = Workflow(["hour"] >> ops.Categorify()).fit(Dataset(tmp_path / "a", engine="pandas"))
    assert to_list(workflow.transform(Dataset(tmp_path / "c", engine="pandas")).head(1)["hour"]) == [3]
    with pytest.raises(DataError, match=r"(?s)'07' in a folder's name would be the same as '7'.*source\.schema"):
        workflow.transform(Dataset(tmp_path / "b", engine="pandas")).head(1)
    said = Dataset(tmp_path / "b", schema={"hour": "int64"}, engine="pandas")
    assert to_list(workflow.transform(said).head(1)["hour"]) == [2]


def test_log_preview_manifest_report_and_draft_say_which_columns_stay_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("store,n\n" + "".join(f"{n % 30:03d},{n}\n" for n in range(90)))
    line = (
        f"column 'store' stays text (string), for example '000' in {path}: a number is not written with leading zeros; "
        "source.schema: {store: int64} makes numbers of it"
    )
    job = make_job(
        {
            "source": {"path": str(path)},
            "features": [{"columns": ["store"], "ops": [{"op": "Categorify"}]}],
            "output": {"path": str(tmp_path / "out"), "shuffle": "none", "files": 1},
        }
    )
    assert ("How columns are read", line) in [(s.title, s.text) for s in sections(preview(job))]
    assert run_stages(job.request("pandas"), plugins=[Report()])[0].united == line
    assert Manifest.load(tmp_path / "out").data["united"] == [line]
    assert "for example &#39;000&#39;" in (tmp_path / "out" / "_report.html").read_text()
    Workflow(["store"] >> ops.Categorify()).fit(Dataset(path, engine="pandas"))
    assert line in caplog.text


@pytest.mark.parametrize(
    ("text", "signed", "found"),
    [
        (b"10,0.5,0\n2024-01-05 05:00,100\n", False, False),
        (b"1,2\n007,3\n", False, True),
        (b"07,2\n", False, True),
        (b'1,"07"\n', False, True),
        (b"1, 07\n", False, True),
        (b"1,0x10\n", False, True),
        (b"1|07\n", False, True),
        (b"1,-07\n2024-01-05\n", True, True),
        (b"1, -07\n", True, True),
        (b"-07,1\n", True, True),
        (b"1,-7\n2024-01-05\n", True, False),
    ],
)
def test_the_look_for_numbers_with_leading_zeros(text: bytes, signed: bool, found: bool) -> None:
    assert may_be_padded(text, ',"|', signed) is found
    assert may_be_padded(b"1,2\n" * 2**17 + text, ',"|', signed) is found


@pytest.mark.parametrize(
    ("expression", "texts", "values"),
    [
        ("parse_number(_, ',', '.')", ["5,125", "8,5"], [5.125, 8.5]),
        ("parse_number(_, ',', '.')", ["5,125", "1.234,5"], [5.125, 1234.5]),
        ("strip(_)", ["1", "2"], ["1", "2"]),
        ("abs(_)", ["-1", "2"], [1, 2]),
        ("_ * 2", ["-1", "2"], [-2, 4]),
    ],
)
def test_an_expression_that_takes_texts_reads_texts_in_files_whose_values_all_are_numbers(
    expression: str, texts: list[str], values: list[float], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("\n".join(["x;y", *(f"{text};1" for text in texts)]))
    source = Source(path=str(tmp_path), delimiter=";", decimal=",", schema={"x": expression})
    plan = make_plan(source)
    assert read(plan, plan.partitions[0], ["x"])["x"].to_pylist() == values
