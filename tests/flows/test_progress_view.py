"""The lines of the console while a run goes on."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.commands.progress_view import ProgressView
from tasks.core.stage_results import StageResult


def told(path: Path, stage: str, **figures: Any) -> None:
    """The progress of a stage, as the workers write it."""
    note = {"stage": stage, "split": "", "rows_per_second": 25.0, "seconds_left": 0.0, "at": 1.0, **figures}
    path.write_text(json.dumps(note))


@pytest.fixture
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgressView:
    monkeypatch.setattr("flows.commands.progress_view.folder_of_work", lambda: None)
    found = ProgressView(tmp_path / "progress.json", [""], Console(file=io.StringIO()))
    found.began = 0.0
    return found


@pytest.mark.promise("A figure means the same in the console, the log, the manifest, the report, the artifacts")
def test_a_stage_is_printed_with_its_own_seconds(view: ProgressView) -> None:
    told(view.path, "ingest", done=10, total=10, seconds=0.4)
    view.look()
    assert list(view.plain()) == []

    view.hear(StageResult(stage="ingest", rows=10, nbytes=0, seconds=0.2))
    assert list(view.plain()) == ["ingest: 10 rows 0.2 s, 50 rows/s"]
    assert list(view.plain()) == []


def test_a_stage_whose_figures_do_not_come_is_printed_when_the_next_one_has_begun(view: ProgressView) -> None:
    told(view.path, "ingest", done=10, total=10, seconds=0.4)
    view.look()
    told(view.path, "statistics", done=5, total=10, seconds=0.1)
    view.look()
    assert list(view.plain()) == ["ingest: 10 rows 0.4 s, 25 rows/s"]
