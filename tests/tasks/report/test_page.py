"""The HTML report of outputs: in process, from literal data; and made again from what an output holds."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks.core.redaction import job_text
from tasks.errors import DataError
from tasks.graph.binding import Bound
from tasks.graph.saved_workflow import load_fitted
from tasks.job.base_version import find_newest_good
from tasks.job.output_check import list_damages
from tasks.manifest import Manifest
from tasks.report import page as page_of
from tasks.report.html import reports_of
from tests.stages import Report, run_stages
from tests.tasks.report.test_series import gpu, transformed


class Page(HTMLParser):
    """A page as its titles, the cells of its rows, and every address that it would load or that a person may follow."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.titles: list[str] = []
        self.rows: list[list[str]] = []
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        known = dict(attributes)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag in ("h1", "h2"):
            self.titles.append("")
        self.loaded += [known[a] for a in ("src", "srcset", "data", "poster") if a in known]
        (self.links if tag == "a" else self.loaded).extend([known["href"]] if "href" in known else [])

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.titles[-1] += data
        elif "tr" in self.open and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data

    def row(self, name: str) -> list[str]:
        """The cells of the first row that begins with a name."""
        return next(row for row in ([cell.strip() for cell in row] for row in self.rows) if row and row[0] == name)


def make(folder: Path, rows: int = 900, run: dict[str, Any] | None = None, **source: Any) -> Any:
    """A small job with a column of nothing but nulls, a text, and names that HTML would take for tags."""
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    table = pa.table({
        "x": pa.array([float(i) for i in range(rows)]), "brand": ["<b>", "acme", "acme"] * (rows // 3),
        "none": pa.nulls(rows, pa.string()), "label": [i % 2 for i in range(rows)],
    })  # fmt: skip
    pq.write_table(table, data / "a.parquet", row_group_size=300)
    return make_job({
        "source": {"path": str(data), **source},
        "features": [
            {"columns": ["x"], "ops": [{"op": "Normalize"}]},
            {"columns": ["brand"], "ops": [{"op": "Categorify"}]},
            {"columns": ["none"]},
        ],
        "label": ["label"], "output": {"path": str(folder / "out"), "files": 3}, "run": run or {},
    })  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    run_stages(make(folder).request("pandas"), plugins=[Report()])
    return folder / "out"


@pytest.fixture(scope="module")
def page(out: Path) -> Page:
    return Page((out / "_report.html").read_text())


def test_an_output_has_its_report_and_is_whole_with_it(out: Path, page: Page) -> None:
    assert list_damages(out) == []
    assert page.titles == [
        "out", "Stages", "Workflow", "Source columns", "Output columns", "Learned", "Embeddings", "Files", "Job",
    ]  # fmt: skip


def test_nothing_is_loaded_from_anywhere(page: Page, out: Path) -> None:
    assert page.loaded == []
    assert all(link.startswith("#") for link in page.links)
    text = (out / "_report.html").read_text()
    assert not re.findall(r"@import|url\(", text)
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_numbers_are_those_of_the_manifest(page: Page, out: Path) -> None:
    manifest = Manifest.load(out)
    for part in manifest.parts:
        assert page.row(part["path"]) == [part["path"], f"{part['rows']:,}", f"{part['bytes']:,}", part["xxh3_128"]]
    assert page.row("transform")[1] == "900"
    assert page.row("statistics")[1] == "900"


@pytest.mark.promise("The profile marks the figures that are of all rows")
def test_columns_are_told_exactly_where_they_were_learned(page: Page) -> None:
    columns = [row for row in page.rows if row and row[0].strip() in ("x", "brand", "none", "label") and len(row) == 9]
    source = {row[0].strip(): [" ".join(cell.split()) for cell in row] for row in columns[:4]}
    frequent = "acme (66.7 %), <b> (33.3 %) ●"
    assert source["brand"] == ["brand", "string", "0 ●", "2 ●", "", "<b>", "", "acme", frequent]
    assert source["none"] == ["none", "string", "100.0 %", "0", "", "", "", "", ""]
    assert source["x"][1:4] == ["float64", "0", "900"]
    assert source["x"][5:8] == ["0", "449.5 ●", "899"]
    output = {row[0].strip(): [" ".join(cell.split()) for cell in row] for row in columns[4:]}
    assert output["brand"][1:4] == ["int32", "0 ●", "≥ 2"]  # 300 of 900 rows are in the sample
    assert output["none"][2] == "100.0 % ●"


def test_what_was_learned_is_shown(page: Page) -> None:
    assert ["brand", "2", "0", "0", "acme (600), <b> (300)"] in [[c.strip() for c in row] for row in page.rows]
    assert ["brand", "5", "16", "320 B"] in [[c.strip() for c in row] for row in page.rows]
    assert page.row("Normalize")[1] == "x"
    assert "mean 449.5" in page.row("Normalize")[2]


def test_a_night_on_a_base_tells_its_own_columns_and_the_most_frequent_values_of_all(tmp_path: Path) -> None:
    for night, brands in (("a", ["old"] * 6 + ["rare"] * 3), ("b", ["rare"] * 30 + ["new"] * 3)):
        (tmp_path / night).mkdir()
        pq.write_table(
            pa.table({"brand": brands, "x": [float(len(brands))] * len(brands)}), tmp_path / night / "p.parquet"
        )
        job = {"source": {"path": str(tmp_path / night)}, "output": {"path": str(tmp_path / "out"), "files": 1},
               "features": [{"columns": ["brand"], "ops": [{"op": "Categorify"}]},
                            {"columns": ["x"], "ops": [{"op": "Normalize"}]}]}  # fmt: skip
        job |= {"base": str(tmp_path / "out")} if night == "b" else {}
        base = find_newest_good(tmp_path / "out").version if night == "b" else None
        job["output"]["on_existing"] = "version"  # type: ignore[index]
        run_stages(make_job(job).request("pandas", base), plugins=[Report()])
    newest = Page((tmp_path / "out" / "v0002" / "_report.html").read_text())
    rows = [[cell.strip() for cell in row] for row in newest.rows]
    assert ["brand", "3", "0", "0", "rare (33), old (6), new (3)"] in rows
    of_night = next(row for row in rows if row[0] == "brand" and len(row) == 9)
    assert "rare (90.9 %)" in " ".join(of_night[-1].split())
    of_x = next(row for row in rows if row[0] == "x" and len(row) == 9)  # the rows of the night, all of them counted
    assert "1 ● 33 ● 33 ● 33 ●" in " ".join(" ".join(of_x).split())


@pytest.mark.promise("With `source.valid` there is one for train and one for valid")
def test_train_and_valid_have_a_report_each(tmp_path: Path) -> None:
    job = make(tmp_path)
    valid = tmp_path / "valid"
    valid.mkdir()
    pq.write_table(pq.read_table(tmp_path / "data" / "a.parquet").slice(0, 30), valid / "v.parquet")
    run_stages(make(tmp_path, valid=str(valid)).request("pandas"), plugins=[Report()])
    pages = {name: Page((Path(job.output.path) / name / "_report.html").read_text()) for name in ("train", "valid")}
    assert {name: p.titles[0] for name, p in pages.items()} == {"train": "train", "valid": "valid"}
    assert [p.row("part-00000.parquet")[1] for p in pages.values()] == ["300", "10"]


@pytest.mark.promise("All of it is off with `--set run.report=false`")
def test_no_report_where_none_is_wanted(tmp_path: Path) -> None:
    run_stages(make(tmp_path, run={"report": False}).request("pandas"), plugins=[Report()])
    assert not (tmp_path / "out" / "_report.html").exists()


def test_a_report_that_fails_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("tasks.report.page.gantt", lambda facts: 1 / 0)
    run_stages(make(tmp_path).request("pandas"), plugins=[Report()])
    assert list_damages(tmp_path / "out") == []
    assert not (tmp_path / "out" / "_report.html").exists()
    assert "the report could not be made: ZeroDivisionError" in caplog.text


@pytest.mark.promise("and the job without its secrets", "flows/README.md#what-a-run-shows")
def test_the_job_is_shown_without_its_secrets() -> None:
    job = {
        "source": {
            "path": ["s3://user:xyzzy@bucket/a?sig=plugh&x=1", "data/*.csv"],
            "storage_options": {"key": "plover"},
            "keys": ["user"],
        },
        "features": [{"columns": ["a"], "ops": [{"op": "JoinExternal", "path": "https://h/t.parquet?token=frotz"}]}],
        "cluster": {"password": "fnord"},
    }  # fmt: skip
    text = job_text(job)
    assert not [word for word in ("xyzzy", "plugh", "plover", "frotz", "fnord") if word in text]
    assert "s3://bucket/a\n" in text
    assert "https://h/t.parquet\n" in text
    assert "storage_options: (not shown)" in text
    assert "- user\n" in text


def test_gpus_have_a_table_and_pictures_and_a_gpu_without_a_value_an_empty_cell(tmp_path: Path) -> None:
    run_stages(make(tmp_path).request("pandas"), plugins=[Report()])
    out = tmp_path / "out"
    saved, taken = load_fitted(out), {"gpu_seconds": 4.0, "energy_joules": 7200.0}
    gpus = {"a": gpu("GPU-0", [10, 310, 610]), "b": gpu("GPU-1", [None, None, None])}
    facts = page_of.Facts(
        Manifest.load(out).data | taken, Bound(saved.final, saved.schema, saved.state.values), saved.state.values,
        results=[transformed(resources=taken)], samples={"transform": gpus},
    )  # fmt: skip
    text = page_of.render(facts, out)
    rows = [row[1:5] for row in Page(text).rows if row[1:2] in (["GPU 0"], ["GPU 1"])]
    assert rows == [["GPU 0", "2.0", "600.0 J", "300 W"], ["GPU 1", "2.0", "", "300 W"]]
    assert "<p>The stages together: 4.0 GPU seconds, 7,200.0 J (2.00 Wh).</p>" in text
    assert "<title>GPU power, W</title>" in text
    assert "None" not in text.split("What each GPU took")[1].split("</table>")[0]


@pytest.mark.promise("makes the page again from the output alone, without the summaries and samples of the run")
def test_a_missing_report_is_made_again_and_one_that_is_there_stays(tmp_path: Path) -> None:
    run_stages(make(tmp_path).request("pandas"), plugins=[Report()])
    out = tmp_path / "out"
    before = (out / "_report.html").read_text()
    assert reports_of(out) == [out / "_report.html"]
    assert (out / "_report.html").read_text() == before

    (out / "_report.html").unlink()
    (again,) = reports_of(out)
    page = Page(again.read_text())
    assert page.titles == [
        "out",
        "Stages",
        "Workflow",
        "Source columns",
        "Output columns",
        "Learned",
        "Embeddings",
        "Files",
    ]
    assert [row[1].strip() for row in page.rows if len(row) == 9 and row[0].strip() == "brand"] == ["string", "int32"]
    assert page.row("transform")[1] == "900"
    assert list_damages(out) == []
    with pytest.raises(DataError, match="this is not an output"):
        reports_of(tmp_path / "data")


@pytest.mark.parametrize("form", ["arrow", "csv", "orc"])
def test_outputs_of_every_format_have_a_report(tmp_path: Path, form: str) -> None:
    job = make(tmp_path)
    output = job.output.model_copy(update={"format": form, "shuffle": "none"})
    run_stages(job.model_copy(update={"output": output}).request("pandas"), plugins=[Report()])
    page = Page((tmp_path / "out" / "_report.html").read_text())
    assert [row[3].strip() for row in page.rows if len(row) == 9 and row[0].strip() == "label"] == ["2", "2"]


def test_columns_that_name_folders_are_told_by_these(tmp_path: Path) -> None:
    job = make(tmp_path)
    output = job.output.model_copy(update={"partition_on": ["label"]})
    run_stages(job.model_copy(update={"output": output}).request("pandas"), plugins=[Report()])
    page = Page((tmp_path / "out" / "_report.html").read_text())
    (_, label) = [[c.strip() for c in row] for row in page.rows if len(row) == 9 and row[0].strip() == "label"]
    assert (label[1], label[3]) == ("int64", "≥ 2")
