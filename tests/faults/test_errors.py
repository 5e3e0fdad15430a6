"""Mistakes that are told before any worker starts: one message, a Failed run, nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.errors import GiveUpError, JobError
from tests.faults.jobs import flow_state, make_data, make_job, run_flow, task_runs

pytestmark = pytest.mark.xdist_group("faults")
UNKNOWN = [{"columns": ["name"], "ops": [{"op": "Categorfy"}]}]
MISSPELT = [{"columns": ["name"], "ops": [{"op": "Categorify", "freq_treshold": 2}]}]
NOWHERE = {"kind": "address", "address": "tcp://127.0.0.1:9", "threads_per_worker": None}
CASES = {
    "unknown operator": ({"features": UNKNOWN}, JobError, ["'Categorfy'", "did you mean 'Categorify'"]),
    "unknown parameter": ({"features": MISSPELT}, JobError, ["'freq_treshold'", "did you mean 'freq_threshold'"]),
    "unknown option": ({"output": {"sead": 1}}, JobError, ["output.sead is unknown", "did you mean 'seed'"]),
    "scheduler that does not answer": ({"cluster": NOWHERE}, GiveUpError, ["no Dask scheduler answers", "127.0.0.1:9"]),
}


@pytest.mark.promise("A job with a mistake fails before anything starts")
@pytest.mark.promise("A mistake in a job is found before any worker starts")
@pytest.mark.parametrize("case", CASES)
def test_told_before_any_worker_starts(case: str, tmp_path: Path, prefect_server: Any) -> None:
    sections, kind, told = CASES[case]
    state = run_flow(make_job(tmp_path / "data", tmp_path / "out", **sections))
    error = state.result(raise_on_failure=False)
    assert type(error) is kind
    assert all(text in str(error) for text in told), str(error)
    assert (flow_state(state), task_runs(state)) == ("Failed", [])
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_exists_or_cannot_be_made_is_refused(tmp_path: Path, prefect_server: Any) -> None:
    data = make_data(tmp_path / "data", files=1, rows=10)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    told = [run_flow(make_job(data, tmp_path / "out" / name)).message for name in ("", "mine/deeper")]
    assert "the output already exists" in told[0]
    assert "the output cannot be written" in told[1]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "out"]
