"""`rowmill clean --runs`: old runs of rowmill go from the Prefect server, and nothing else does."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from prefect import flow, get_client
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.states import Completed, Running
from rowmill.cli import app
from typer.testing import CliRunner

from flows.commands import old_runs


@flow(name="preprocess", persist_result=False)
def ours() -> None:
    create_markdown_artifact("text", key="pruned")


@flow(name="somebody-elses", persist_result=False)
def theirs() -> None:
    return


def begun(function: Any, tags: list[str], ended: bool = True) -> uuid.UUID:
    """A run on the server that has begun, and perhaps ended."""
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(function, tags=tags)
        client.set_flow_run_state(run.id, Running(), force=True)
        if ended:
            client.set_flow_run_state(run.id, Completed(), force=True)
    return run.id


def there(ids: list[uuid.UUID]) -> list[bool]:
    with get_client(sync_client=True) as client:
        found = {run.id for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids)))}
    return [number in found for number in ids]


@pytest.mark.promise("`rowmill clean --runs 90d` removes runs of rowmill that ended so long ago")
def test_only_old_runs_of_rowmill_that_have_ended_go(prefect_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tag = f"rowmill-{uuid.uuid4().hex}"  # the runs of other tests stay
    monkeypatch.setattr(old_runs, "TAG", tag)
    ids = [begun(ours, [tag]), begun(ours, [tag, "out"]), begun(ours, ["other"]), begun(theirs, [tag])]
    ids += [begun(ours, [tag], ended=False)]
    between = datetime.now(UTC)
    ids += [begun(ours, [tag])]

    def age() -> float:
        return (datetime.now(UTC) - between).total_seconds()

    assert old_runs.prune_runs(age(), dry_run=True).runs == 2
    assert there(ids) == [True] * 6
    assert old_runs.prune_runs(age())[:2] == (2, 0)
    assert there(ids) == [False, False, True, True, True, True]
    assert old_runs.prune_runs(age()) == (0, 0, None, None)


def test_the_command_says_what_went_and_from_where(prefect_server: Any) -> None:
    result = CliRunner().invoke(app, ["clean", "--runs", "2000d", "--dry-run"], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("would go 0 run(s) older than 2000d with 0 artifact(s), from http://127.0.0.1:")


def test_nothing_named_is_an_error() -> None:
    result = CliRunner().invoke(app, ["clean"])
    assert result.exit_code == 1
    assert "--runs 90d" in result.stderr
