"""The page of a run: a name that says what it is, stages that follow each other, keys of its own, each line once."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tasks.errors import DataError, JobError
from tasks.manifest import Manifest
from tasks.stages.run_log import only_message
from tests.flows.runs import run_flow
from tests.flows.test_preprocess import job, logs

pytestmark = pytest.mark.xdist_group("flows")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_server: Any, cluster: Any) -> list[UUID]:
    """Two runs: of train and valid to out/Shop_1, and of other data to out/two."""
    folder = tmp_path_factory.mktemp("paged")
    source = {"path": str(logs(folder / "data", 0, 3000)), "valid": str(logs(folder / "valid", 3000, 600))}
    first = {**job(folder, **source), "output": {"path": str(folder / "out/Shop_1")}}
    second = {**job(folder, path=source["path"]), "output": {"path": str(folder / "out/two")}}
    return [UUID(Manifest.load(run_flow(data, cluster)[0]).data["run"]) for data in (first, second)]


def keys_of(api: Any, run: UUID) -> set[str]:
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    chosen = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    return {artifact.key for artifact in api.read_artifacts(artifact_filter=chosen) if artifact.key}


@pytest.mark.promise("the four stages as tasks that follow each other")
@pytest.mark.promise("calls the four", "README.md#the-four-stages")
def test_the_stages_follow_each_other_in_the_graph_of_the_run(runs: list[UUID], api: Any) -> None:
    graph = api.request("GET", "/flow_runs/{id}/graph-v2", path_params={"id": runs[0]}).json()
    labels = {node_id: node["label"] for node_id, node in graph["nodes"]}
    before = {node["label"]: {labels[parent["id"]] for parent in node["parents"]} for _, node in graph["nodes"]}
    assert before == {
        "ingest": set(),
        "statistics": {"ingest"},
        "transform train": {"statistics"},
        "shuffle_write train": {"transform train"},
        "transform valid": {"shuffle_write train"},
        "shuffle_write valid": {"transform valid"},
    }


@pytest.mark.promise("keys contain flow, output and stage and do not change between runs")
def test_two_jobs_have_no_key_in_common(runs: list[UUID], api: Any) -> None:
    first, second = (keys_of(api, run) for run in runs)
    assert "preprocess-out-shop-1-links" in first
    assert {f"preprocess-out-shop-1-transform-{split}-summary" for split in ("train", "valid")} <= first
    assert {"preprocess-out-two-ingest-summary", "preprocess-out-two-shuffle-write-summary"} <= second
    assert not first & second


@pytest.mark.promise("a name that says what it is (`out/toy (toy) beryl-sloth`)")
def test_the_name_of_a_run_says_what_it_writes_from_what(runs: list[UUID], api: Any) -> None:
    name = api.read_flow_run(runs[1]).name
    what, _, generated = name.rpartition(" ")
    folder = what.removeprefix("out/two (").partition("/")[0]
    assert what == f"out/two ({folder}/data)"
    assert generated.count("-") == 1


def test_a_name_that_somebody_has_typed_stays(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.run import run_names

    for before, after in (("shop-by-hand", "shop-by-hand"), ("beryl-sloth", "out (toy) beryl-sloth")):
        runtime = type("Runtime", (), {"name": before, "parameters": {"recipe": "toy", "output": {"path": "out"}}})
        monkeypatch.setattr(run_names, "flow_run", runtime)
        assert run_names.run_name() == after


@pytest.mark.promise("The log has a line at the beginning and the end of each stage; Dask's own chatter is left out")
def test_every_line_of_a_stage_stands_in_the_log_once(runs: list[UUID], api: Any) -> None:
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    titles = ("ingest", "statistics", "transform", "shuffle_write")
    wanted, deadline, found = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[runs[1]])), time.monotonic() + 60, []
    while len(found) < len(titles) and time.monotonic() < deadline:  # they are sent some seconds later, in batches
        found = [
            entry.message for entry in api.read_logs(wanted) if entry.message.startswith(tuple(f"{t}:" for t in titles))
        ]
        time.sleep(0.5)
    time.sleep(5)
    found = [
        entry.message for entry in api.read_logs(wanted) if entry.message.startswith(tuple(f"{t}:" for t in titles))
    ]
    assert sorted(line.partition(":")[0] for line in found) == sorted(titles)


def test_an_error_stands_in_the_log_once(tmp_path: Path, api: Any, caplog: pytest.LogCaptureFixture) -> None:
    from flows.preprocess import preprocess

    wrong = {
        **job(tmp_path, path=str(tmp_path / "data")),
        "features": [{"columns": ["x"], "ops": [{"op": "Normalise"}]}],
    }
    with caplog.at_level(logging.INFO):
        state = preprocess(**wrong, return_state=True)
    assert "unknown operator 'Normalise'" in state.message
    assert caplog.text.count("unknown operator 'Normalise'") == 1
    assert "Traceback" not in caplog.text
    assert "Finished in state Failed" in caplog.text


def test_with_debug_the_log_has_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def logged(error: Exception, text: str = "Encountered exception during execution: %r") -> tuple[str, bool]:
        record = logging.LogRecord("prefect.flow_runs", 40, "", 0, text, (error,), (type(error), error, None))
        assert only_message(record)
        return record.getMessage(), record.exc_info is None

    damaged = DataError("the file is damaged", where="a.parquet")
    assert logged(damaged) == ("the file is damaged\n  where: a.parquet", True)
    assert logged(ValueError("a bug")) == ("Encountered exception during execution: ValueError('a bug')", False)
    monkeypatch.setenv("ROWMILL_DEBUG", "1")
    assert logged(JobError("no"))[1] is False
