"""Runs that have a time to be ready: which that is, and how a real run says that it is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.ready_by import deadline
from flows.nights import late
from tasks.core.settings import Run
from tests.flows.runs import key_of
from tests.infra.elsewhere import until

pytestmark = pytest.mark.xdist_group("flows")


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


@pytest.mark.parametrize(("text", "value"), [("06:00", "06:00"), (630, "10:30"), ("23:59", "23:59")])
def test_a_time_of_day_is_a_text_also_where_yaml_reads_a_number(text: Any, value: str) -> None:
    assert Run(ready_by=text).ready_by == value


@pytest.mark.parametrize("text", ["6", "24:00", "06:60", "6am", 1440, True])
def test_what_is_no_time_of_day_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="ready_by"):
        Run(ready_by=text)


# Real runs


def job_of(folder: Path) -> dict[str, Any]:
    """A job of three rows with a deadline."""
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0]}), folder / "in/a.parquet")
    return {
        "source": {"path": str(folder / "in")},
        "features": [{"columns": ["x"], "ops": [{"op": "Normalize"}]}],
        "output": {"path": str(folder / "out"), "shuffle": "none", "files": 1},
        "run": {"report": False, "ready_by": "06:00"},
    }


@pytest.mark.promise("A run that is not ready then says so once, at the deadline", "flows/NIGHTS.md#ready-by-six")
def test_a_run_whose_time_is_over_says_so_once(
    tmp_path: Path, run_here: Any, api: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter, FlowRunFilterTags

    monkeypatch.setattr(late, "deadline", lambda *_: datetime(2026, 11, 22, 6, tzinfo=UTC))
    data = job_of(tmp_path)
    run_here(data)
    [text] = [record.getMessage() for record in caplog.records if "run.ready_by" in record.getMessage()]
    assert text == "the run is late: it was not ready by 06:00 (UTC), its run.ready_by"
    key = f"{key_of(tmp_path / 'out')}-late"
    [artifact] = api.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    assert artifact.data == r"The run is late: it was not ready by 06:00 (UTC), its run.ready_by."
    [run] = api.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[data["output"]["path"]])))
    assert late.LATE in run.labels
    wanted = {"event": {"name": [late.LATE]}, "resource": {"id": [f"prefect.flow-run.{run.id}"]}}

    def events() -> Any:
        return api.request("POST", "/events/filter", json={"filter": wanted}).json()["events"]

    [event] = until(events, "the event")
    assert event["payload"] == {"text": text, "ready_by": "2026-11-22T06:00:00+00:00"}


def test_a_run_in_time_says_nothing(
    tmp_path: Path, run_here: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(late, "deadline", lambda *_: datetime.now(UTC) + timedelta(hours=1))
    run_here(job_of(tmp_path))
    assert "run.ready_by" not in caplog.text
