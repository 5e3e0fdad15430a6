"""The deployment `train` of infra/prefect.yaml on a real server with a real worker: one training for each version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.run_calendar import BACKFILL
from flows.preprocess import preprocess
from flows.published import outbox
from flows.train import train
from infra.orchestration.deployment_file import FILE, read_file
from tasks.errors import GateAskedError, GateStoppedError, JobError
from tasks.storage.discarded import mark
from tests.faults.jobs import make_data, make_job
from tests.flows.runs import call, have_stages_here, key_of, run_any
from tests.infra.elsewhere import until
from tests.infra.operations import deploy, final_state, paused_pool, runs_of

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("deployments"), pytest.mark.slow, pytest.mark.timeout(600)]
DAYS = ["2026-11-21", "2026-11-22", "2026-11-23"]
MISSING, NULLS = "2026-11-24", "2026-11-25"  # days without a file, and with a column of nulls


@pytest.fixture
def folder(tmp_path: Path, api: Any) -> Path:
    """A folder with the rows of some days; `train/trains` is for what is published to `out` in it."""
    for day in (*DAYS, NULLS):
        make_data(tmp_path / "in" / day, files=1, rows=2000)
    (tmp_path / "in" / MISSING).mkdir()
    (path,) = (tmp_path / "in" / NULLS).iterdir()
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "x", pa.nulls(2000, pa.float64())), path)
    (spec,) = [one for one in read_file(FILE)["deployments"] if one["name"] == "train"]
    spec["name"] = spec["triggers"][0]["name"] = "trains"
    spec["triggers"][0]["match"]["prefect.resource.id"] = f"rowmill.output.{slug_of(tmp_path)}"
    deploy(tmp_path, [spec])
    return tmp_path


def slug_of(folder: Path) -> str:
    """By what the events of the output in a folder are known."""
    return key_of(folder / "out").removeprefix("preprocess-")


def job_of(folder: Path, day: str, level: str = "warn") -> dict[str, Any]:
    job = make_job(f"{folder}/in/{{date}}", folder / "out", output={"on_existing": "version"})
    contract = {"columns": {"x": {"nulls": 0.5}}}
    return {**job, "contract": contract, "checks": {"contract": {"level": level}}, "run": {"date": day, "retries": 0}}


@pytest.mark.promise("starts once for each version", "flows/OPERATIONS.md#when-it-is-published")
@pytest.mark.promise("It never starts for a night that failed, was refused or waits")
def test_each_version_is_trained_on_once(folder: Path, api: Any, worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect import tags
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
    from prefect.events import emit_event

    first, second, third = DAYS
    have_stages_here(monkeypatch)
    with paused_pool(api):  # until it is clear which trainings there are
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "mark_sent", lambda *_: None)
            run_any(preprocess, job_of(folder, first))  # the event is sent, and not marked
        run_any(preprocess, job_of(folder, second))  # this start sends it again
        with tags(BACKFILL):
            run_any(preprocess, job_of(folder, third))
            run_any(preprocess, job_of(folder, third))  # it is published already
        with pytest.raises(JobError, match="there are no data"):
            run_any(preprocess, job_of(folder, MISSING))
        with pytest.raises(GateStoppedError):
            run_any(preprocess, job_of(folder, NULLS, "stop"))
        with pytest.raises(GateAskedError):
            run_any(preprocess, job_of(folder, NULLS, "ask"))
        resource = {
            "prefect.resource.id": f"rowmill.output.{slug_of(folder)}",
            "rowmill.version": "vlast",
            "rowmill.train": "now",
        }
        emit_event("rowmill.output.published", resource, payload={"path": "none", "version": "vlast"})

        def trainings() -> dict[str, Any]:
            return {run.parameters["version"]: run for run in runs_of(api, "trains")}

        until(lambda: "vlast" in trainings(), "a training of the last event: the server has looked at all before it")
        assert len(runs_of(api, "trains")) == 4
        api.delete_flow_run(trainings()["vlast"].id)
        runs, out = trainings(), folder / "out"
        assert {version: run.parameters for version, run in runs.items()} == {
            version: {"path": str(out / version), "version": version} for version in ("v0001", "v0002", "v0003")
        }
        for version in ("v0001", "v0002"):  # the worker need not train thrice
            api.delete_flow_run(runs[version].id)
    assert final_state(api, runs["v0003"].id, worker) == "Completed"

    def epochs() -> list[str]:
        logs = api.read_logs(log_filter=LogFilter(flow_run_id=LogFilterFlowRunId(any_=[runs["v0003"].id])))
        return [log.message[:8] for log in logs if log.message.startswith("epoch")]

    until(lambda: epochs() == ["epoch 0:", "epoch 1:"], "the lines of the training, which may come after its end")


def test_what_cannot_be_trained_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match="there is no output to train on"):
        call(train, {"path": str(tmp_path / "out")})
    make_data(tmp_path / "in", files=1, rows=100)
    have_stages_here(monkeypatch)
    [out] = call(preprocess, make_job(tmp_path / "in", tmp_path / "out"))
    mark(Path(out))
    with pytest.raises(JobError, match="discarded after its publication"):
        call(train, {"path": out})
