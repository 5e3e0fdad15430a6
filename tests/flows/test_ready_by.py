"""Runs that will not be ready in time: what is expected from earlier nights, and how a real run says so."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job import run_history as history
from flows.job.job import make_job
from flows.job.ready_by import StageProgress, deadline, forecast
from flows.nights import late
from flows.preprocess import preprocess
from tasks.core.settings import Run
from tests.flows.runs import key_of, run_on
from tests.infra.elsewhere import until

pytestmark = pytest.mark.xdist_group("flows")
TWO = datetime(2026, 11, 22, 2, tzinfo=UTC)
USUAL = {"ingest": 60.0, "statistics": 600.0, "transform": 1200.0, "shuffle_write": 600.0}
AFTER_INGEST = ("transform", "shuffle_write")


def nights(number: int, rows: int = 1000, **seconds: float) -> list[dict[str, Any]]:
    return [{"rows": rows, "seconds": USUAL | seconds}] * number


@pytest.mark.promise(
    "on the day on which it starts, or, if it starts later in the day (at 23:30, say), on the next one"
)
@pytest.mark.parametrize(
    ("zone", "scheduled", "limit"),
    [
        ("UTC", "2026-11-22T02:30Z", "2026-11-22T06:00:00+00:00"),
        ("UTC", "2026-11-21T23:30Z", "2026-11-22T06:00:00+00:00"),  # it starts before midnight
        ("UTC", "2026-11-22T06:00Z", "2026-11-23T06:00:00+00:00"),
        ("Europe/Berlin", "2026-11-21T23:30Z", "2026-11-22T06:00:00+01:00"),
        ("Europe/Berlin", "2026-03-28T23:30Z", "2026-03-29T06:00:00+02:00"),  # the clocks go forward that night
        ("America/New_York", "2026-11-01T04:30Z", "2026-11-01T06:00:00-05:00"),  # and back
    ],
)
def test_the_limit_is_the_next_such_time_of_day_after_the_schedule(zone: str, scheduled: str, limit: str) -> None:
    assert deadline("06:00", zone, datetime.fromisoformat(scheduled)).isoformat() == limit


def test_a_run_that_goes_as_usual_ends_as_usual() -> None:
    before = StageProgress(None, {}, "ingest", 0.0, None, ("statistics", *AFTER_INGEST))
    within = StageProgress(1000, {"ingest": 60.0}, "statistics", 300.0, 0.5, AFTER_INGEST)
    for progress, minutes in ((before, 41), (within, 35)):
        expected = forecast(TWO, progress, nights(5))
        assert expected is not None
        assert expected.end == TWO + timedelta(minutes=minutes)
        assert (expected.grown, expected.reason) == (None, "")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_without_history_nothing_is_expected(number: int) -> None:
    assert (
        forecast(TWO, StageProgress(10**9, {"ingest": 60.0}, "statistics", 1e6, 0.1, AFTER_INGEST), nights(number))
        is None
    )


@pytest.mark.promise("whether the rows grew or the seconds per row", "flows/NIGHTS.md#ready-by-six")
def test_rows_that_grew_are_named_before_their_stage_begins() -> None:
    progress = StageProgress(4000, {"ingest": 60.0}, "statistics", 0.0, None, AFTER_INGEST)
    expected = forecast(TWO, progress, nights(5))
    assert expected is not None
    assert expected.end == TWO + timedelta(minutes=4 * 40)
    reason = "transform takes 1 h 20 min instead of 20 min 0 s on the last 5 nights: "
    assert expected.reason == reason + "the rows grew 4.0 x (4,000 instead of 1,000)"


@pytest.mark.promise("whether the rows grew or the seconds per row")
def test_a_stage_that_became_slow_is_named() -> None:
    progress = StageProgress(1100, {"ingest": 60.0}, "statistics", 3000.0, 0.5, AFTER_INGEST)
    expected = forecast(TWO, progress, nights(5))
    assert expected is not None
    assert expected.left == 3000.0 + 1.1 * 1800.0
    assert expected.reason.startswith("statistics takes 1 h 40 min instead of 10 min 0 s on the last 5 nights")
    assert "the seconds per row grew 9.1 x (rows: 1,100 instead of 1,000)" in expected.reason


def test_one_slow_night_among_the_earlier_ones_changes_nothing() -> None:
    several = [*nights(4), *nights(1, statistics=90_000.0)]
    expected = forecast(TWO, StageProgress(1000, {"ingest": 60.0}, "statistics", 0.0, None, AFTER_INGEST), several)
    assert expected is not None
    assert expected.end == TWO + timedelta(minutes=40)


def test_a_split_that_is_done_counts_and_the_other_goes_on() -> None:
    done = {"ingest": 60.0, "statistics": 600.0, "transform": 900.0}
    rest = ("transform", "shuffle_write", "shuffle_write")
    expected = forecast(TWO, StageProgress(1000, done, "shuffle_write", 300.0, 0.75, rest), nights(5))
    assert expected is not None
    assert expected.left == (600.0 - 300.0) + (1200.0 - 900.0)


def test_a_run_is_late_only_by_more_than_an_expectation_errs() -> None:
    expected = forecast(TWO, StageProgress(1000, {"ingest": 60.0}, "statistics", 0.0, None, AFTER_INGEST), nights(5))
    assert expected is not None
    assert not expected.is_late(TWO + timedelta(minutes=37))
    assert expected.is_late(TWO + timedelta(minutes=35))


@pytest.mark.parametrize(("text", "value"), [("06:00", "06:00"), (630, "10:30"), ("23:59", "23:59")])
def test_a_time_of_day_is_a_text_also_where_yaml_reads_a_number(text: Any, value: str) -> None:
    assert Run(ready_by=text).ready_by == value


@pytest.mark.parametrize("text", ["6", "24:00", "06:60", "6am", 1440, True])
def test_what_is_no_time_of_day_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="ready_by"):
        Run(ready_by=text)


# Real runs


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rowmill"


def job_of(folder: Path, hours: float) -> dict[str, Any]:
    """A job of three rows that is to be ready in so many hours."""
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0]}), folder / "in/a.parquet")
    limit = datetime.now(UTC) + timedelta(hours=hours)
    return {
        "source": {"path": str(folder / "in")},
        "features": [{"columns": ["x"], "ops": [{"op": "Normalize"}]}],
        "output": {"path": str(folder / "out"), "shuffle": "none", "files": 1},
        "run": {"report": False, "ready_by": f"{limit:%H:%M}"},
    }


def plant(state: Path, data: dict[str, Any], engine: str, number: int, **hours: float) -> None:
    """Record earlier nights of a job on an engine, of one row each, whose stages took so many hours."""
    request = make_job(data).request(engine)
    history.record(request, [])
    entry = {
        "at": "2026-11-22T02:00:00+00:00", "recipe": None, "job": history.job_key(request), "engine": engine,
        "host": history.socket.gethostname(), "threads": 1, "rows": 1, "bytes": 8,
        "seconds": {name: 3600 * hours.get(name, 0.001) for name in USUAL},
    }  # fmt: skip
    state.mkdir(parents=True, exist_ok=True)
    (state / "rates.jsonl").write_text((json.dumps(entry) + "\n") * number)


@pytest.mark.promise(
    "As soon as the expected end is too late, by more than the error of such an expectation, the run says so once"
)
def test_a_run_says_once_that_it_will_be_late_and_which_stage_grew(
    tmp_path: Path, state: Path, engine: str, cluster: Any, api: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter, FlowRunFilterTags

    monkeypatch.setattr(late, "WAKE_SECONDS", 0.005)  # a stage of this run takes 0.03 s
    data = job_of(tmp_path, 2)
    plant(state, data, engine, 3, transform=1.0)
    run_on(preprocess, data, cluster)

    [text] = [record.getMessage() for record in caplog.records if "run.ready_by" in record.getMessage()]
    assert text.startswith("the run will be late: it is expected to end at ")
    reason = (
        "; transform takes 3 h 0 min instead of 1 h 0 min on the last 3 nights: the rows grew 3.0 x (3 instead of 1)"
    )
    assert text.endswith(reason)
    key = f"{key_of(tmp_path / 'out')}-late"
    [artifact] = api.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    assert "| transform | 3 h 0 min | 1 h 0 min | 3.0 x |" in " ".join(artifact.data.split())
    [run] = api.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[data["output"]["path"]])))
    assert late.LATE in run.labels
    wanted = {"event": {"name": [late.LATE]}, "resource": {"id": [f"prefect.flow-run.{run.id}"]}}

    def events() -> Any:
        return api.request("POST", "/events/filter", json={"filter": wanted}).json()["events"]

    [event] = until(events, "the event")
    assert (event["payload"]["stage"], event["payload"]["text"]) == ("transform", text)


@pytest.mark.promise("Without three earlier nights nothing is expected: a run is late when its time is over")
@pytest.mark.parametrize(("number", "hours"), [(0, 2), (2, 2), (3, 5)])
def test_a_run_without_history_or_in_time_says_nothing(
    tmp_path: Path, state: Path, engine: str, run_here: Any, number: int, hours: int, monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr(late, "WAKE_SECONDS", 0.02)
    data = job_of(tmp_path, hours)
    plant(state, data, engine, number, transform=1.0)
    run_here(data)
    assert "run.ready_by" not in caplog.text


@pytest.mark.promise("Without three earlier nights nothing is expected: a run is late when its time is over")
def test_a_run_whose_time_is_over_is_late_also_without_history(
    tmp_path: Path, run_here: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(late, "deadline", lambda *_: datetime(2026, 11, 22, 6, tzinfo=UTC))
    monkeypatch.setattr(late, "WAKE_SECONDS", 3600)  # nothing looks before the run has ended
    run_here(job_of(tmp_path, 2))
    [text] = [record.getMessage() for record in caplog.records if "06:00" in record.getMessage()]
    assert text.startswith("the run is late: it ended at ")
