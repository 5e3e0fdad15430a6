"""What the commands show on a terminal of 80 letters, and of modules and folders beside the current one."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from flows.commands.inspect import show_folder
from flows.job.job import load_job, make_job
from flows.preview.job_preview import preview
from flows.preview.preview_tables import print_rows
from flows.preview.preview_text import _tabulate_columns, sections
from flows.preview.preview_text import show as show_preview
from tasks.core.schema import Column, Schema
from tasks.dataset import Dataset
from tasks.manifest import Manifest
from tasks.workflow import Workflow
from tests.flows.test_cli import typed
from tests.stages import run_stages

NAMES = ["hour", "minute", "a_column_with_quite_a_long_name", "text"]


def lines_of(width: int, show: Any, *args: Any) -> list[str]:
    file = io.StringIO()
    show(*args, Console(file=file, width=width, highlight=False))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_rows_stand_under_their_names_where_there_is_room() -> None:
    rows = [["1", "2", "0.5", "x"], ["10", "20", "1.5", "y"]]
    assert lines_of(80, print_rows, NAMES, rows) == [
        "hour  minute  a_column_with_quite_a_long_name  text",
        "1     2       0.5                              x",
        "10    20      1.5                              y",
    ]
    assert lines_of(48, print_rows, NAMES, rows) == [
        "column                           row 1  row 2",
        "hour                             1      10",
        "minute                           2      20",
        "a_column_with_quite_a_long_name  0.5    1.5",
        "text                             x      y",
    ]


def test_hidden_columns_do_not_count_among_those_that_a_preview_leaves_out() -> None:
    columns = [Column(f"x{number}", pa.int64()) for number in range(42)]
    hidden = Column("__row__", pa.int64())
    rows = _tabulate_columns(Schema([*columns, hidden]))
    assert [row["column"] for row in rows[38:]] == ["x38", "x39", "and 2 more"]
    assert len(_tabulate_columns(Schema([*columns[:40], hidden]))) == 40


def test_rows_that_do_not_fit_beside_each_other_come_in_several_tables() -> None:
    rows = [["x" * 50, "1"], ["y" * 30, "2"], ["z", "3"]]
    assert lines_of(50, print_rows, ["text", "n"], rows) == [
        "column  row 1",
        "text    " + "x" * 34 + "..",
        "n       1",
        "",
        "column  row 2                           row 3",
        "text    " + "y" * 30 + "  z",
        "n       2                               3",
    ]


@pytest.mark.parametrize("count", [13, 40])
def test_many_columns_are_readable_on_80_letters(tmp_path: Path, count: int) -> None:
    names = [f"column_{i:02d}" for i in range(count)]
    table = pa.table({name: [i + 0.123456789, None, i * 1e6] for i, name in enumerate(names)})
    Workflow(names).fit_transform(Dataset(table)).to_parquet(str(tmp_path / "out"), shuffle="none", files=1)
    pq.write_table(table, tmp_path / "in.parquet")
    job = {"source": {"path": str(tmp_path / "in.parquet")}, "features": [{"columns": names}],
           "output": {"path": str(tmp_path / "new")}}  # fmt: skip
    found = preview(make_job(job))

    shown = lines_of(80, show_folder, tmp_path / "out", 5, 5)
    for lines in (shown, lines_of(80, show_preview, found, 3)):
        assert "column     row 1     row 2  row 3" in lines
        assert "column_03  3.12346          3e+06" in lines
    for line in shown[shown.index("columns") :]:
        assert len(line) <= 80


@pytest.mark.promise("`mine:Twice` of mine.py here")
def test_a_class_of_the_current_folder_is_explained_and_its_outputs_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_me.py").write_text(
        "from tasks.ops import Operator\n\n\nclass Thrice(Operator):\n"
        '    """Three times the value."""\n\n    def transform(self, column, fitted):\n        return column * 3\n'
    )
    done = typed("ops", "beside_me:Thrice")
    assert (done.exit_code, "Three times the value." in done.output) == (0, True)
    assert typed("ops", "beside_me:Twice").exit_code == 1


@pytest.mark.promise("`files` keeps its number if there are fewer rows: preview and log say how many files are empty")
def test_files_that_will_be_empty_are_announced_and_stay_as_many_as_were_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0, 4.0, 5.0]}), tmp_path / "in.parquet")
    job = {"source": {"path": str(tmp_path / "in.parquet")}, "features": [{"columns": ["x"]}],
           "output": {"path": str(tmp_path / "out"), "files": 8}}  # fmt: skip
    (plan,) = [section for section in sections(preview(make_job(job))) if section.title == "Plan"]
    run_stages(make_job(job).request("pandas"))
    manifest = Manifest.load(tmp_path / "out")

    assert plan.rows[-1]["reads"] == "8 files, of which about 3 will be empty: there are about 5 rows"
    assert sorted(part["rows"] for part in manifest.parts) == [0, 0, 0, 1, 1, 1, 1, 1]
    said = "3 of the 8 files are empty: 5 rows came out; output.files sets how many files are written"
    assert manifest.empty_files == said
    with caplog.at_level(logging.WARNING, "rowmill"):
        Workflow(["x"]).fit_transform(Dataset(tmp_path / "in.parquet")).to_parquet(str(tmp_path / "other"), files=8)
    assert said in caplog.messages


def test_a_folder_of_a_recipes_name_does_not_hide_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    assert load_job("toy").source.path == "data/toy"
