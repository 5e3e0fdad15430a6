"""The rates of earlier runs: kept small, whole under parallel runs, read though damaged, nothing private in them."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.job import run_history as history
from tasks import ops
from tasks.core.settings import Output, Run, Source
from tasks.core.stage_results import IngestResult, StageResult
from tasks.job.request import Request, make_request


def request(engine: str = "pandas", nodes: Any = None, **run: Any) -> Request:
    graph = nodes or ["x"] >> ops.Normalize()
    return make_request(Source(path="/secret/data"), graph, Output(path="/secret/out"), Run(**run), engine)


def done(rows: int, seconds: float, **more: Any) -> list[StageResult]:
    """The results of a run: each stage takes this long, shuffle_write twice (train and valid)."""
    common = {"rows": rows, "nbytes": 10 * rows, "seconds": seconds, **more}
    counts = {"files": 1, "skipped": 0, "blocks": 1, "partitions": 1, "columns": 1, "output_columns": 1, "workers": 1}
    sample = "look-alike data in /secret/out"
    ingest = IngestResult(threads=2, made_up=sample, **counts, **common)
    return [ingest, *(StageResult(stage=stage, **common) for stage in [*history.STAGES[1:], "shuffle_write"])]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "rowmill"


def test_the_next_run_of_a_job_is_guessed_by_its_rows() -> None:
    assert history.guess(request(), 1000, 10_000, 2) is None
    history.record(request(), done(1000, 2.0), "toy")
    found = history.guess(request(), 3000, 1, 2)
    assert found
    assert found.seconds == {"ingest": 6.0, "statistics": 6.0, "transform": 6.0, "shuffle_write": 12.0}
    assert found.total == 30.0
    assert found.basis == "1 run(s) of this job, of 1,000 rows"


@pytest.mark.promise("how long it takes, how many core seconds, GPU seconds and joules")
def test_what_a_run_takes_is_guessed_by_earlier_ones_and_its_cost_by_the_price_of_today() -> None:
    taken = {"core_seconds": 3.0, "gpu_seconds": 2.0, "energy_joules": 500.0, "cost": 7.0}
    history.record(request(), done(1000, 2.0))
    history.record(request(), done(1000, 2.0, resources=taken))
    found = history.guess(request(), 2000, 1, 2)
    assert found
    assert found.resources == {"core_seconds": 30.0, "gpu_seconds": 20.0, "energy_joules": 5000.0}
    found = history.guess(request(price_per_hour=3.6), 2000, 1, 2)
    assert found
    assert found.resources["cost"] == pytest.approx(0.02)


def test_the_nearest_in_size_count_and_their_median() -> None:
    for rows, seconds in ((1_000_000, 900.0), *((1000 + i, s) for i, s in enumerate((1.0, 1.0, 1.0, 50.0, 50.0)))):
        history.record(request(), done(rows, seconds))
    found = history.guess(request(), 1000, 1, 2)
    assert found
    assert found.seconds["transform"] == pytest.approx(1.0, rel=0.01)
    assert found.basis == "5 run(s) of this job, of 1,000 to 1,004 rows"


def test_other_jobs_say_something_by_their_bytes_and_other_engines_nothing() -> None:
    history.record(request(nodes=["y"] >> ops.LogOp()), done(1000, 2.0))
    found = history.guess(request(), 1, 20_000, 2)
    assert found
    assert found.seconds["ingest"] == 4.0
    assert found.basis == "1 run(s) of other jobs, by bytes, of 1,000 rows"
    assert history.guess(request("cudf"), 1, 20_000, 2) is None


def test_stages_that_were_found_done_say_nothing(state: Path) -> None:
    results = done(1000, 2.0)
    results[1] = replace(results[1], reused=True)
    history.record(request(), results)
    found = history.guess(request(), 1000, 1, 2)
    assert found
    assert set(found.seconds) == {"ingest", "transform", "shuffle_write"}
    history.record(request(), done(1000, 2.0, reused=True))
    assert len((state / "rates.jsonl").read_text().splitlines()) == 1


@pytest.mark.promise("whose rates are kept in `~/.local/state/rowmill` (no paths, no data)")
def test_nothing_of_paths_or_data_is_kept(state: Path) -> None:
    history.record(request(), done(1000, 2.0), "toy")
    text = (state / "rates.jsonl").read_text()
    assert "secret" not in text
    figures = {"threads", "rows", "bytes", "seconds", "resources"}
    assert set(json.loads(text)) == {"at", "recipe", "job", "engine", "host", *figures}
    assert json.loads(text)["host"] == socket.gethostname()


def test_runs_beside_each_other_lose_nothing_and_the_file_stays_small(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: history.record(request(), done(1000 + i, 1.0)), range(40)))
    rows = [json.loads(line)["rows"] for line in (state / "rates.jsonl").read_text().splitlines()]
    assert sorted(rows) == list(range(1000, 1040))
    monkeypatch.setattr(history, "MOST_RUNS", 10)
    history.record(request(), done(5000, 1.0))
    kept = [json.loads(line)["rows"] for line in (state / "rates.jsonl").read_text().splitlines()]
    assert kept == [*rows[-9:], 5000]
    assert sorted(p.name for p in state.iterdir()) == ["rates.jsonl", "rates.lock"]


@pytest.mark.parametrize("damage", ["{", "null", "[1]", '{"rows": "x"}', '{"job": 1}', "\x00\xff", '{"rows": NaN}'])
def test_damaged_lines_are_left_out(damage: str, state: Path) -> None:
    history.record(request(), done(1000, 2.0))
    path = state / "rates.jsonl"
    path.write_bytes(damage.encode("latin-1") + b"\n" + path.read_bytes() + damage.encode("latin-1"))
    found = history.guess(request(), 1000, 1, 2)
    assert found
    assert found.total == 10.0
    history.record(request(), done(1000, 2.0))
    assert len(path.read_text().splitlines()) == 2


def test_a_folder_that_cannot_be_written_fails_no_run(state: Path) -> None:
    state.write_text("a file where the folder should be")
    history.record(request(), done(1000, 2.0))
    assert history.guess(request(), 1000, 1, 2) is None
