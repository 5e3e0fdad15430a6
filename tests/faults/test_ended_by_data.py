"""Data that end a process: the preview survives it, and whoever lost a worker says what that worker was reading."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from flows.preview.own_process import make_preview
from tasks.core.plan import OPTION
from tasks.errors import DataError, GiveUpError
from tasks.storage.files_being_read import FOLDER, note_activity, notes_left
from tests.conftest import python_path
from tests.faults.jobs import make_data, make_job, run_flow

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("faults")]

ENDING = """
import os, signal
from tasks.sources.formats import parquet

def ended(*_):
    os.kill(os.getpid(), signal.{name})

parquet._read_file = ended
"""


def job_of(folder: Path, **sections: Any) -> dict[str, Any]:
    data = make_data(folder / "in", files=1, rows=100)
    return make_job(data, folder / "out", **sections)


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has the reader of Parquet end every interpreter that starts from now on by a signal."""

    def write(name: str) -> None:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "sitecustomize.py").write_text(ENDING.format(name=name))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "lib"), python_path()]))

    return write


@pytest.mark.promise("A preview looks at the data in a process of its own")
@pytest.mark.parametrize(("name", "kind"), [("SIGSEGV", DataError), ("SIGKILL", GiveUpError)])  # SIGBUS: see below
def test_a_preview_names_the_file_that_ended_its_process(
    name: str, kind: type[Exception], ending: Callable[[str], None], tmp_path: Path
) -> None:
    ending(name)
    job = job_of(tmp_path)
    with pytest.raises(kind) as caught:
        make_preview(job)
    assert caught.value.where == str(tmp_path / "in" / "0.parquet")  # type: ignore[attr-defined]
    assert name in str(caught.value) or kind is GiveUpError


@pytest.mark.promise("A preview looks at the data in a process of its own")
def test_the_command_survives_it_too(ending: Callable[[str], None], tmp_path: Path) -> None:
    ending("SIGBUS")
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job_of(tmp_path)))
    done = CliRunner().invoke(app, ["preview", str(path)], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert done.stderr.startswith("error: the process that looked at the data was ended by SIGBUS")
    assert str(tmp_path / "in" / "0.parquet") in done.stderr


def test_a_preview_finds_what_it_found_in_this_process(tmp_path: Path) -> None:
    found = make_preview(job_of(tmp_path))
    assert (found.rows, found.sample.after.column_names) == (100, ["x", "name", "label"])


def test_notes_are_gone_when_a_file_is_read(tmp_path: Path) -> None:
    options = {OPTION: str(tmp_path / FOLDER)}
    with note_activity(options, "/data/a.parquet"):
        (note,) = (tmp_path / FOLDER).iterdir()
        assert note.read_text() == "/data/a.parquet"
    assert list((tmp_path / FOLDER).iterdir()) == []
    with note_activity({}, "/data/b.parquet"):
        assert notes_left(tmp_path / FOLDER) == []


@pytest.mark.promise("when a file ends a worker, the run names the file")
def test_a_run_names_the_file_that_its_worker_was_reading(
    faults: Callable[..., None], tmp_path: Path, prefect_server: Any
) -> None:
    faults({"at": "tasks.sources.formats.parquet:_read_file", "always": True})
    state = run_flow(job_of(tmp_path, run={"retries": 0}))
    assert "a worker was lost in each of 1 attempts of statistics" in state.message
    assert f"while it read {tmp_path / 'in' / '0.parquet'}" in state.message
    assert not (tmp_path / "out").exists()


FUNCTION = """
import os, signal

def ends(values):
    if (values == 77).any():
        os.kill(os.getpid(), signal.SIGKILL)
    return values
"""


def test_a_run_names_the_function_that_ended_its_worker_with_partition_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_server: Any
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "my_module.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(tmp_path / "lib")  # which workers inherit; with another PYTHONPATH they were no forks
    job = job_of(tmp_path, run={"retries": 0})
    pq.write_table(pa.table({"x": [1, 77], "name": ["a", "b"], "label": [0, 1]}), tmp_path / "in" / "0.parquet")
    job["features"] = [{"columns": ["x"], "ops": [{"op": "Lambda", "function": "my_module:ends", "name": "y"}]}]
    state = run_flow(job)
    assert "a worker was lost in each of 1 attempts of transform" in state.message
    assert "while it ran my_module:ends (Lambda of 'x') on partition 0 (rows from 0) of " in state.message
    assert str(tmp_path / "in" / "0.parquet") in state.message
    assert "try the job without that function, or call it on the rows of that file" in state.message
