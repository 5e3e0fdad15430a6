"""Messages name a cause only where it was checked."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from flows.commands import backfill, dead_runs
from flows.job.run_calendar import DeployedJob
from tasks import ops
from tasks.errors import JobError
from tasks.manifest import no_output
from tasks.workflow import Workflow

NIGHTLY = DeployedJob("preprocess/nightly", "id", datetime.now(UTC), (), {}, Path())


@pytest.mark.promise("It names only causes that were checked", ".github/CONTRIBUTING.md#how-we-work")
@pytest.mark.parametrize(
    ("status", "running", "text"),
    [
        ("READY", ["quick-crow"], "it has not begun yet; running now: quick-crow"),
        ("READY", [], "it has not begun yet; something serves preprocess/nightly: look at the run's page"),
        ("NOT_READY", [], "it has not begun yet, and nothing serves preprocess/nightly: start `rowmill serve`, or a "
                          "worker of its pool"),
    ],
)  # fmt: skip
def test_a_backfill_says_that_nothing_serves_only_where_nothing_does(
    monkeypatch: pytest.MonkeyPatch, status: str, running: list[str], text: str
) -> None:
    deployment = SimpleNamespace(status=SimpleNamespace(value=status))
    client = SimpleNamespace(read_deployment=lambda id: deployment)
    monkeypatch.setattr("prefect.get_client", lambda sync_client: nullcontext(client))
    monkeypatch.setattr(dead_runs, "working_runs", lambda client: [SimpleNamespace(name=name) for name in running])
    assert backfill._explain_why_it_waits(NIGHTLY) == text


def test_a_folder_at_a_url_is_not_said_to_be_missing() -> None:
    with pytest.raises(JobError, match=r"the output is not a local folder\n.*s3://shop/out\n.*or a mounted one"):
        no_output("s3://shop/out")


def test_a_function_in_the_first_place_of_a_filter_is_its_function(engine: str) -> None:
    table = pa.table({"price": [3.0, -1.0, 2.0]})
    workflow = Workflow(["price"] >> ops.Filter(lambda frame: frame["price"] > 0))
    assert workflow.fit(table).transform(table).to_pydict() == {"price": [3.0, 2.0]}


def test_a_value_that_cannot_be_written_is_not_to_be_put_in_quotes() -> None:
    with pytest.raises(JobError) as error:
        ops.Lambda(expression=len)
    assert "put it in quotes" not in error.value.what
    with pytest.raises(JobError, match="put it in quotes, '3'"):
        ops.Lambda(expression=3)
