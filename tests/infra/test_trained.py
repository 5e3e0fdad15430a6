"""The deployment `train` of infra/prefect.yaml on a real server with a real worker: one training for each version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from flows.job.run_calendar import BACKFILL
from flows.preprocess import preprocess
from flows.train import train
from infra.orchestration.deployment_file import FILE, read_file
from tasks.errors import GateAskedError, GateStoppedError, JobError
from tasks.storage.discarded import mark
from tests.faults.jobs import make_data, make_job
from tests.flows.runs import key_of, run_on
from tests.flows.test_published import killed
from tests.infra.elsewhere import until
from tests.infra.test_deployments import ended, final_state, runs_of, started

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("deployments"), pytest.mark.slow, pytest.mark.timeout(600)]
POOL = "rowmill-train"
DAYS = [f"2026-11-2{number}" for number in range(1, 6)]  # the last one has nulls


@pytest.fixture
def folder(tmp_path: Path, api: Any) -> Iterator[Path]:
    """A folder with four days of rows and one of nulls; a worker trains on what is published to `out` in it."""
    for day in DAYS:
        (path,) = make_data(tmp_path / "in" / day, files=1, rows=2000).glob("*.parquet")
        if day == DAYS[-1]:
            table = pq.read_table(path)
            pq.write_table(table.set_column(1, "x", pa.nulls(2000, pa.float64())), path)
    (spec,) = [one for one in read_file(FILE)["deployments"] if one["name"] == "train"]
    slug = key_of(tmp_path / "out").removeprefix("preprocess-")
    spec["triggers"][0]["match"]["prefect.resource.id"] = f"rowmill.output.{slug}"
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"deployments": [spec]}))
    assert ended(started(tmp_path, "rowmill", "deploy", "--pool", POOL, "--file", "own.yaml")) == 0
    worker = started(tmp_path, "prefect", "worker", "start", "--pool", POOL)
    time.sleep(5)  # in which the server looks for its automations
    yield tmp_path
    worker.terminate()
    ended(worker)
    api.delete_deployment(api.read_deployment_by_name("train/train").id)
    for automation in api.read_automations_by_name("rowmill-train"):
        api.delete_automation(automation.id)


def job_of(folder: Path, day: str, level: str = "warn") -> dict[str, Any]:
    job = make_job(f"{folder}/in/{{date}}", folder / "out", output={"on_existing": "version"})
    contract = {"columns": {"x": {"nulls": 0.5}}}
    return {**job, "contract": contract, "checks": {"contract": {"level": level}}, "run": {"date": day, "retries": 0}}


@pytest.mark.promise("starts once for each version", "flows/OPERATIONS.md#when-it-is-published")
@pytest.mark.promise("It never starts for a night that failed, was refused or waits")
def test_each_version_is_trained_on_once(folder: Path, api: Any, cluster: Any) -> None:
    from prefect import tags
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    first, second, third, missing, nulls = DAYS
    killed(folder, job_of(folder, first), "after")  # the event is sent, and not marked
    run_on(preprocess, job_of(folder, second), cluster)  # this start sends it again
    with tags(BACKFILL):
        run_on(preprocess, job_of(folder, third), cluster)
        run_on(preprocess, job_of(folder, third), cluster)  # it is published already
    for path in (folder / "in" / missing).iterdir():
        path.unlink()
    with pytest.raises(JobError, match="there are no data"):
        run_on(preprocess, job_of(folder, missing), cluster)
    with pytest.raises(GateStoppedError):
        run_on(preprocess, job_of(folder, nulls, "stop"), cluster)
    with pytest.raises(GateAskedError):
        run_on(preprocess, job_of(folder, nulls, "ask"), cluster)

    versions = ["v0001", "v0002", "v0003"]

    def trainings() -> list[Any]:  # of this output: other tests of the session may publish under the same server
        return [run for run in runs_of(api, "train") if str(run.parameters["path"]).startswith(f"{folder}/out/")]

    until(lambda: len(trainings()) >= 3, "three trainings")
    for run in trainings():
        assert final_state(api, run.id, folder / "log.txt") == "Completed"
    time.sleep(8)  # in which the server would have started another one
    runs = sorted(trainings(), key=lambda run: run.parameters["version"])
    assert [run.parameters for run in runs] == [
        {"path": str(folder / "out" / version), "version": version} for version in versions
    ]
    logs = api.read_logs(log_filter=LogFilter(flow_run_id=LogFilterFlowRunId(any_=[runs[0].id])))
    assert [log.message[:8] for log in logs if log.message.startswith("epoch")] == ["epoch 0:", "epoch 1:"]


def test_what_cannot_be_trained_on_is_refused(tmp_path: Path, prefect_server: Any, cluster: Any) -> None:
    with pytest.raises(JobError, match="there is no output to train on"):
        train(str(tmp_path / "out"))
    make_data(tmp_path / "in", files=1, rows=100)
    [out] = run_on(preprocess, make_job(tmp_path / "in", tmp_path / "out"), cluster)
    mark(Path(out))
    with pytest.raises(JobError, match="discarded after its publication"):
        train(out)
