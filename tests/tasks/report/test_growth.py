"""The section of the report on how vocabularies grew over the nights: from what the versions have noted."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.commands.inspect import show_folder
from tasks.report.growth_section import MOST_BATCHES, describe_growth
from tasks.report.html import reports_of
from tests.stages import run_stages
from tests.tasks.report.test_page import Page, make


def note(version: Path, base: str, old: int, new: int, **more: Any) -> None:
    """The changes of a night whose base is a version."""
    folder = version / "_workflow"
    folder.mkdir(parents=True, exist_ok=True)
    step = {"op": "Categorify", "columns": ["brand"], "mode": "appended", "old_size": old, "new_size": new, **more}
    steps = {"brand": step, "x": {"op": "Normalize", "columns": ["x"], "mode": "merged", "old": {}, "new": {}}}
    (folder / "changes.json").write_text(json.dumps({"format": 1, "base": base, "rows": {}, "steps": steps}))


@pytest.fixture
def out(tmp_path):
    """Versions 1 to 5, where 4 was discarded: 5 is based on 3."""
    (tmp_path / "v0001" / "_workflow").mkdir(parents=True)
    note(tmp_path / "v0002", "v0001", 100, 110)
    note(tmp_path / "v0003", "v0002", 110, 115)
    note(tmp_path / "v0004", "v0003", 115, 999)
    note(tmp_path / "v0005", "v0003", 115, 140, waiting=7)
    return tmp_path


def test_the_nights_that_led_to_a_version(out):
    known = describe_growth(out / "v0005", out / "v0005")
    (row,) = known["rows"]
    numbers = {"before": 115, "now": 140, "new": 25, "waiting": 7, "nights": 3}
    assert {name: row[name] for name in numbers} == numbers
    assert (row["columns"], known["base"]) == ("brand", "v0003")
    assert row["bars"].count("<rect") == 3
    assert "<svg" in known["picture"]


def test_a_version_that_is_being_made_and_splits(out):
    new = out.parent / ".staging" / "new"
    note(new, "v0005", 140, 150)
    for folder, target in ((new, out), (new / "train", out / "train")):
        (row,) = describe_growth(folder, target)["rows"]
        assert (row["now"], row["nights"]) == (150, 4)


def test_versions_that_are_gone_are_left_out(out):
    (out / "v0002" / "_workflow" / "changes.json").write_text("no JSON")
    (row,) = describe_growth(out / "v0005", out / "v0005")["rows"]
    assert (row["nights"], row["before"], row["now"]) == (2, 115, 140)


def test_one_night_has_no_curve(out):
    known = describe_growth(out / "v0002", out / "v0002")
    assert known["picture"] == ""
    assert known["rows"][0]["nights"] == 1


def test_a_first_fit_has_no_growth(out):
    assert describe_growth(out / "v0001", out / "v0001") == {}


def test_a_chain_that_bites_its_tail_ends(out):
    note(out / "v0002", "v0005", 100, 110)
    assert describe_growth(out / "v0005", out / "v0005")["rows"][0]["nights"] == MOST_BATCHES


def test_the_page(tmp_path):
    run_stages(make(tmp_path).request("pandas"))
    out = tmp_path / "out"
    (first,) = reports_of(out, again=True)
    assert "Growth" not in Page(first.read_text()).titles
    note(out, "v0003", 2, 3, waiting=1)
    (report,) = reports_of(out, again=True)
    page = Page(report.read_text())
    assert "Growth" in page.titles
    assert ["brand", "2", "3", "1", "1", "1"] in [[cell.strip() for cell in row][:6] for row in page.rows]
    assert "Ids of the base v0003 stay" in report.read_text()
    console = Console(file=StringIO(), width=120)
    show_folder(out, console=console)
    text = console.file.getvalue()
    assert "growth on top of v0003" in text
    assert ["brand", "2", "3", "1", "1", "1"] in [line.split() for line in text.splitlines()]
