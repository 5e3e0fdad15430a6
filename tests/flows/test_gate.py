"""The gate in real runs: it warns, stops or asks; a question waits in Prefect, over restarts, until it is answered."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.exceptions import ObjectNotFound

from flows.commands.console import ASKED, STOPPED
from flows.commands.discard import discard_version, restore_version
from flows.gate import questions
from flows.gate.questions import form_text
from flows.nights.table import read_gate_result
from tasks.core.markdown import escape_markdown
from tasks.errors import GateAskedError, GateStoppedError, JobError, OpenQuestionError
from tasks.gate.question import Question, answer_question, read_question, write_question
from tasks.manifest import Manifest
from tasks.storage.discarded import is_discarded
from tasks.storage.staging import Staging
from tests.commands import rowmill, same_variables
from tests.flows.runs import execute, key_of, rows_of
from tests.hosts import Host
from tests.infra.elsewhere import until

pytestmark = pytest.mark.xdist_group("gate")
FOUND = "x: 100 % of 3 values are null, the contract allows 10 %"
GOOD, BAD, NEXT = "2026-11-21", "2026-11-22", "2026-11-23"  # the day of a run; it reads the day before


def day_of(folder: Path, day: str, nulls: tuple[str, ...] = ()) -> None:
    """A file of one day, in/DAY/a.parquet, in which some columns are null."""
    (path := folder / "in" / day).mkdir(parents=True, exist_ok=True)
    columns = {"x": pa.array([1.0, 2.0, 3.0]), "day": pa.array([day] * 3)}
    columns |= {name: pa.nulls(3, columns[name].type) for name in nulls}
    pq.write_table(pa.table(columns), path / "a.parquet")


def days(folder: Path, nulls: tuple[str, ...] = ("x",)) -> None:
    """Three days; what the run of BAD reads has nulls."""
    day_of(folder, "2026-11-20")
    day_of(folder, "2026-11-21", nulls)
    day_of(folder, "2026-11-22")


def job_of(folder: Path, day: str | None, level: str, **run: Any) -> dict[str, Any]:
    return {
        "source": {"path": f"{folder}/in/{{date-1}}"},
        "features": [{"columns": ["x"], "ops": [{"op": "Normalize"}]}, {"columns": ["day"]}],
        "output": {"path": str(folder / "out"), "on_existing": "version", "shuffle": "none", "files": 1},
        "contract": {"columns": {"x": {"nulls": 0.1}, "day": {"nulls": 0.1}}},
        "checks": {"contract": {"level": level}},
        "run": {"report": False, **({"date": day} if day else {}), **run},
    }


def versions(folder: Path) -> dict[str, str]:
    """The date of each published version."""
    paths = sorted((folder / "out").glob("v*/_manifest.json"))
    return {path.parent.name: json.loads(path.read_text())["dated"]["date"] for path in paths}


def staging_of(folder: Path) -> Path:
    return folder / ".out.rowmill"


def flow_run_of(api: Any, out: Path) -> Any:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
    from prefect.client.schemas.sorting import FlowRunSort

    chosen = FlowRunFilter(tags=FlowRunFilterTags(all_=[str(out)]))
    return api.read_flow_runs(flow_run_filter=chosen, sort=FlowRunSort.EXPECTED_START_TIME_DESC)[0]


def artifact(api: Any, key: str) -> Any:
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
    from prefect.client.schemas.sorting import ArtifactSort

    chosen = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
    return api.read_artifacts(artifact_filter=chosen, sort=ArtifactSort.CREATED_DESC)[0]


# Warn and stop


@pytest.mark.promise("`_gate.json` of the output; the manifest has `gate: pass`, `warn` or `published by hand`")
def test_a_finding_warns_in_log_artifact_manifest_and_output(
    tmp_path: Path, run_alone: Any, run_here: Any, api: Any, caplog: pytest.LogCaptureFixture
) -> None:
    days(tmp_path)
    [first], [out] = run_alone(job_of(tmp_path, GOOD, "warn")), run_here(job_of(tmp_path, BAD, "warn"))

    assert (Manifest.load(first).data["gate"], Manifest.load(out).data["gate"]) == ("pass", "warn")
    assert f"gate: {FOUND}" in caplog.text
    noted = json.loads((out / "_gate.json").read_text())
    assert noted["gate"] == "warn"
    broken = [one for one in noted["verdicts"]["statistics"]["findings"] if one["check"] == "contract"]
    assert [one["column"] for one in broken] == ["x"]
    key = f"{key_of(tmp_path / 'out')}-gate"
    text = artifact(api, key).data
    assert "The gate after commit: warn" in text
    assert "data:image/svg+xml" in text
    rows = json.loads(artifact(api, f"{key}-table").data)
    [row] = [row for row in rows if row["check"] == "contract"]
    assert (row["column"], row["yesterday"], row["today"]) == ("x", "0.1", "1")
    assert (row["figure"], row["threshold"], row["then"]) == ("1", "0.1", "warn")
    result = rowmill("verify", out)
    assert result.exit_code == 0, result.output


@pytest.mark.promise(
    "the run is Failed; the last good version and `_latest` stay as they are; the event `rowmill.gate.stopped` has "
    "columns and figures"
)
def test_a_finding_stops_before_anything_is_shuffled(tmp_path: Path, run_alone: Any, run_here: Any, api: Any) -> None:
    days(tmp_path)
    run_alone(job_of(tmp_path, GOOD, "stop"))
    with pytest.raises(GateStoppedError, match="the gate stopped the run of 2026-11-22 to out") as caught:
        run_here(job_of(tmp_path, BAD, "stop"))

    assert FOUND in str(caught.value)
    assert versions(tmp_path) == {"v0001": GOOD}
    assert (tmp_path / "out/_latest").read_text() == "v0001\n"
    assert not (staging_of(tmp_path) / "new").exists()
    flow_run = flow_run_of(api, tmp_path / "out")
    assert flow_run.state_name == "Failed"
    assert FOUND in flow_run.state.message
    slug = key_of(tmp_path / "out").removeprefix("preprocess-")
    wanted = {"event": {"name": ["rowmill.gate.stopped"]}, "resource": {"id": [f"rowmill.output.{slug}"]}}

    def events() -> Any:
        return api.request("POST", "/events/filter", json={"filter": wanted}).json()["events"]

    payload = until(events, "the event")[0]["payload"]
    assert (payload["columns"][0], payload["date"], payload["stage"]) == ("x", BAD, "statistics")
    assert (payload["findings"][0]["check"], payload["findings"][0]["figure"]) == ("contract", 1.0)
    run_alone(job_of(tmp_path, NEXT, "stop"))  # a night that was stopped is in nobody's way
    assert versions(tmp_path) == {"v0001": GOOD, "v0002": NEXT}


def test_a_night_that_was_stopped_goes_on_where_it_stopped(tmp_path: Path, run_alone: Any, run_here: Any) -> None:
    days(tmp_path)
    with pytest.raises(GateStoppedError):
        run_alone(job_of(tmp_path, BAD, "stop"))
    learned = (staging_of(tmp_path) / "state/state.json").stat().st_mtime_ns
    assert learned
    [out] = run_here(job_of(tmp_path, BAD, "warn"))  # at a server, which takes the event that waits beside the work
    assert Manifest.load(out).data["gate"] == "warn"
    assert not staging_of(tmp_path).exists()


@pytest.mark.promise("and again before the rename")
def test_what_only_the_whole_profile_shows_stops_before_the_rename(tmp_path: Path, run_alone: Any) -> None:
    days(tmp_path, ("day",))
    with pytest.raises(GateStoppedError, match="day: 100 %"):
        run_alone(job_of(tmp_path, BAD, "stop"))
    assert (staging_of(tmp_path) / "parts").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("A finding names the files in which its change begins")
def test_a_change_that_begins_in_the_third_of_five_files(
    tmp_path: Path, run_alone: Any, run_here: Any, api: Any
) -> None:
    (folder := tmp_path / "in/2026-11-21").mkdir(parents=True)
    for number in range(5):
        x = pa.array([1.0, 2.0, None if number >= 2 else 3.0])
        pq.write_table(pa.table({"x": x, "day": ["2026-11-21"] * 3}), folder / f"{number}.parquet")
    begins = f"the change begins in {folder}/2.parquet and 2 other files"
    with pytest.raises(GateStoppedError, match=begins):
        run_alone(job_of(tmp_path, BAD, "stop"))
    with pytest.raises(GateAskedError, match=begins):
        run_alone(job_of(tmp_path, BAD, "ask"))
    question = read_question(staging_of(tmp_path))
    assert question is not None
    assert escape_markdown(begins) in form_text(question)
    assert rowmill("discard", tmp_path / "out").exit_code == 0
    [out] = run_here(job_of(tmp_path, BAD, "warn", report=True))
    rows = json.loads(artifact(api, f"{key_of(out.parent)}-gate-table").data)
    files = ", ".join(f"{folder}/{number}.parquet" for number in (2, 3, 4))
    assert {row["begins in"] for row in rows if row["check"] == "contract"} == {files}
    assert files in (out / "_report.html").read_text()
    assert read_gate_result(out).file == f"{folder}/2.parquet"


# Ask, at a shell


@pytest.mark.promise("rowmill publish OUT | rowmill discard OUT")
@pytest.mark.promise("it ends with exit status 5, and `rowmill publish OUT` finishes it")
def test_a_run_at_a_shell_leaves_its_work_and_publish_finishes_it(
    tmp_path: Path, prefect_server: Any, stages_here: None
) -> None:
    days(tmp_path)
    (tmp_path / "job.yaml").write_text(json.dumps(job_of(tmp_path, None, "ask")))
    asked = rowmill("run", "job.yaml", "--date", BAD, folder=tmp_path)

    assert asked.exit_code == ASKED
    assert not (tmp_path / "out").exists()
    again = rowmill("run", "job.yaml", "--date", NEXT, folder=tmp_path)
    assert again.exit_code == 1
    assert f"the night {BAD} of {tmp_path}/out waits for an answer" in again.output + again.stderr
    assert f"rowmill publish {tmp_path}/out" in again.stderr
    kept = rowmill("clean", tmp_path, folder=tmp_path)
    assert "waits for an answer" in kept.output
    shown = rowmill("status", COLUMNS="400").output
    assert f"waiting  the night {BAD} of {tmp_path}/out waits for an answer until " in shown
    assert f"rowmill publish {tmp_path}/out, or rowmill discard {tmp_path}/out" in shown
    assert read_question(staging_of(tmp_path)) is not None

    done = rowmill("publish", "out", "--who", "ada", folder=tmp_path)
    assert done.exit_code == 0, done.output + done.stderr
    assert versions(tmp_path) == {"v0001": BAD}
    noted = json.loads((tmp_path / "out/v0001/_gate.json").read_text())
    assert (noted["gate"], noted["accepted"][0]["who"]) == ("published by hand", "ada")
    assert Manifest.load(tmp_path / "out").data["gate"] == "published by hand"
    assert not staging_of(tmp_path).exists()
    late = rowmill("publish", "out", folder=tmp_path)
    assert "nothing waits for an answer here" in late.stderr

    stopped = rowmill("run", "job.yaml", "--date", BAD, "--set", "checks.contract.level=stop", folder=tmp_path)
    assert stopped.exit_code == STOPPED


@pytest.mark.promise("rowmill publish OUT | rowmill discard OUT")
def test_discard_at_a_shell_removes_the_work(tmp_path: Path, run_alone: Any, prefect_server: Any) -> None:
    days(tmp_path)
    with pytest.raises(GateAskedError, match="asks whether to publish the night 2026-11-22"):
        run_alone(job_of(tmp_path, BAD, "ask"))
    result = rowmill("discard", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert not staging_of(tmp_path).exists()
    run_alone(job_of(tmp_path, NEXT, "ask"))
    assert versions(tmp_path) == {"v0001": NEXT}


@pytest.mark.parametrize("answer", ["publish", "discard"])
def test_a_night_in_a_scratch_folder_is_answered_by_its_output_alone(
    tmp_path: Path, run_alone: Any, prefect_server: Any, answer: str
) -> None:
    days(tmp_path)
    run_alone(job_of(tmp_path, GOOD, "ask"))
    with pytest.raises(GateAskedError):
        run_alone(job_of(tmp_path, BAD, "ask", scratch=str(tmp_path / "scratch")))
    for elsewhere in ({}, {"scratch": str(tmp_path / "other")}):  # no second night beside it
        with pytest.raises(OpenQuestionError, match=f"the night {BAD} of {tmp_path}/out waits for an answer"):
            run_alone(job_of(tmp_path, NEXT, "ask", **elsewhere))
    kept = rowmill("clean", "--older-than", "1s", tmp_path / "out")
    assert "waits for an answer" in kept.output
    assert len(list((tmp_path / "scratch").rglob("question.json"))) == 1

    words = ["--scratch", str(tmp_path / "wrong")] if answer == "discard" else []  # the note is right
    result = rowmill(answer, tmp_path / "out", *words)

    assert result.exit_code == 0, result.output + result.stderr
    assert [*versions(tmp_path).values()] == ([GOOD, BAD] if answer == "publish" else [GOOD])
    assert not is_discarded(tmp_path / "out/v0001")
    assert not staging_of(tmp_path).exists()
    assert not any((tmp_path / "scratch").iterdir())


def test_a_night_whose_scratch_folder_is_gone_is_said(
    tmp_path: Path, run_alone: Any, caplog: pytest.LogCaptureFixture
) -> None:
    days(tmp_path)
    data = job_of(tmp_path, BAD, "ask", scratch=str(tmp_path / "scratch"))
    data["output"]["on_existing"] = "replace"
    run_alone({**data, "run": {**data["run"], "date": GOOD}})
    with pytest.raises(GateAskedError):
        run_alone(data)
    shutil.rmtree(tmp_path / "scratch")
    for words in ([], ["--scratch", str(tmp_path / "scratch")]):
        result = rowmill("discard", tmp_path / "out", *words)
        assert (result.exit_code, "the folder in which a night waited is gone" in result.stderr) == (1, True)
    assert not is_discarded(tmp_path / "out")  # the good night of before

    run_alone({**data, "run": {**data["run"], "date": NEXT}})
    assert f"a night of {tmp_path}/out waited for an answer in {tmp_path}/scratch" in caplog.text
    nothing = rowmill("discard", tmp_path / "out", "--scratch", tmp_path / "scratch")
    assert (nothing.exit_code, "nothing waits for an answer here" in nothing.stderr) == (1, True)
    assert not is_discarded(tmp_path / "out")
    assert rowmill("discard", tmp_path / "out").exit_code == 0
    assert is_discarded(tmp_path / "out")


@pytest.mark.promise("The first answer counts, for the rows that were judged: other rows are judged anew")
def test_a_question_is_answered_once(tmp_path: Path, run_alone: Any) -> None:
    days(tmp_path)
    with pytest.raises(GateAskedError):
        run_alone(job_of(tmp_path, BAD, "ask"))
    folder = staging_of(tmp_path)
    first = answer_question(folder, "publish", "ada")
    assert answer_question(folder, "publish", "bob") == first
    assert first.pending.startswith("it was accepted, and is not finished: rowmill publish ")
    with pytest.raises(JobError, match="is already answered: publish"):
        answer_question(folder, "discard", "bob")
    with Staging(tmp_path / "out").hold_lock():  # the run goes on with the answer
        late = rowmill("discard", tmp_path / "out")
        assert (late.exit_code, "is already answered: publish" in late.stderr) == (1, True)
        assert f"`rowmill publish {tmp_path}/out` finishes it" in late.stderr
    [out] = run_alone(job_of(tmp_path, BAD, "ask"))  # any run of that night goes on with it
    assert Manifest.load(out).data["gate"] == "published by hand"


@pytest.mark.promise("The first answer counts, for the rows that were judged: other rows are judged anew")
def test_an_answer_holds_for_the_rows_that_were_judged(tmp_path: Path, run_alone: Any) -> None:
    days(tmp_path)
    with pytest.raises(GateAskedError):
        run_alone(job_of(tmp_path, BAD, "ask"))
    answer_question(staging_of(tmp_path), "publish", "ada")
    table = pa.table({"x": pa.nulls(4, pa.float64()), "day": ["other"] * 4})
    pq.write_table(table, tmp_path / "in/2026-11-21/a.parquet")
    with pytest.raises(GateAskedError):
        run_alone(job_of(tmp_path, BAD, "ask"))


@pytest.mark.promise("the question has all findings, and one `rowmill publish` finishes the night")
def test_one_answer_holds_for_columns_that_are_only_passed_through(
    tmp_path: Path, run_alone: Any, caplog: pytest.LogCaptureFixture
) -> None:
    days(tmp_path, ("x", "day"))
    with pytest.raises(GateAskedError, match=r"day: 100 %.*; x: 100 %"):
        run_alone(job_of(tmp_path, BAD, "ask"))
    assert "gate: whether to publish is asked once all columns are read" in caplog.text
    answer_question(staging_of(tmp_path), "publish", "ada")
    caplog.clear()
    [out] = run_alone(job_of(tmp_path, BAD, "ask"))
    noted = json.loads((out / "_gate.json").read_text())
    assert [entry["who"] for entry in noted["accepted"]] == ["ada"]
    assert {one["column"] for one in noted["accepted"][0]["findings"]} >= {"x", "day"}
    assert noted["gate"] == "published by hand"
    assert "x: 100 %" not in caplog.text  # what was accepted is not reported again
    assert rows_of(out).num_rows == 3


def expire(folder: Path) -> Question:
    question = read_question(folder)
    assert question is not None
    past = (datetime.now(UTC) - timedelta(seconds=5)).isoformat()
    write_question(folder, Question(**{**vars(question), "until": past}))
    return question


@pytest.mark.promise("after `run.ask_timeout` the run is stopped")
def test_a_question_that_nobody_answers_ends_in_stop(tmp_path: Path, run_alone: Any) -> None:
    days(tmp_path)
    with pytest.raises(GateAskedError):
        run_alone(job_of(tmp_path, BAD, "ask", ask_timeout="20h"))
    question = expire(staging_of(tmp_path))
    hours = datetime.fromisoformat(question.until) - datetime.fromisoformat(question.asked_at)
    assert hours == timedelta(hours=20)
    late = rowmill("publish", tmp_path / "out")
    assert "its run was stopped" in late.stderr
    run_alone(job_of(tmp_path, NEXT, "ask"))
    assert versions(tmp_path) == {"v0001": NEXT}


def test_python_does_not_touch_what_waits(tmp_path: Path, run_alone: Any) -> None:
    from tasks.dataset import Dataset
    from tasks.ops.continuous import Normalize
    from tasks.workflow import Workflow

    days(tmp_path)
    with pytest.raises(GateAskedError):
        run_alone(job_of(tmp_path, BAD, "ask"))
    dataset = Dataset(str(tmp_path / "in/2026-11-20"))
    workflow = Workflow(["x"] >> Normalize())
    with pytest.raises(OpenQuestionError, match="waits for an answer"):
        workflow.fit_transform(dataset).to_parquet(str(tmp_path / "out"))


# Ask, in runs of a deployment


class Deployment:
    """A deployment over days whose gate asks, at the session's server; its runs are executed in this process."""

    def __init__(self, folder: Path, api: Any) -> None:
        from flows.preprocess import preprocess

        days(folder)
        self.folder, self.api, self.flow = folder, api, preprocess
        job = job_of(folder, None, "ask")
        self.id = api.create_deployment(api.create_flow(preprocess), f"nights of {folder.name}", parameters=job)

    def begin(self, day: str, **run: Any) -> UUID:
        """A run of a day, executed until it ends or pauses."""
        parameters = {"run": {"report": False, "date": day, **run}}
        flow_run = self.api.create_flow_run_from_deployment(self.id, parameters=parameters)
        self.go_on(flow_run.id)
        return UUID(str(flow_run.id))

    def go_on(self, run: UUID) -> Any:
        """Execute a run as the process does that a runner starts for it; its state then."""
        execute(self.flow, self.api.read_flow_run(run))
        return self.state(run)

    def state(self, run: UUID) -> Any:
        return self.api.read_flow_run(run).state

    def command(self, *words: str) -> Any:
        return rowmill(*words, folder=self.folder)

    def publish(self) -> str:
        """What `publish` says that finishes the night that waits."""
        before = len(versions(self.folder))
        done = self.command("publish", "out")
        assert done.exit_code == 0, done.output
        assert len(versions(self.folder)) == before + 1
        return str(done.output)


@pytest.fixture
def deployment(tmp_path: Path, api: Any, stages_here: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.chdir(tmp_path)
    deployment = Deployment(tmp_path, api)
    yield deployment
    with suppress(ObjectNotFound):
        api.delete_deployment(deployment.id)


@pytest.mark.promise(
    "the next night fails and names the question with the commands that answer it, or waits with `run.lock: wait`"
)
def test_a_night_waits_for_the_answer_to_the_night_before(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without run.lock: wait night 2 fails; with it it is scheduled again and holds no place; a shell answers."""
    first, out = deployment.begin(BAD), deployment.folder / "out"
    assert deployment.state(first).name == "Suspended"
    message = deployment.state(deployment.begin(NEXT)).message
    assert f"the night {BAD} of {out} waits for an answer" in message
    assert f"rowmill publish {out}, or rowmill discard" in message
    assert staging_of(deployment.folder).exists()

    monkeypatch.setattr(questions, "AGAIN_SECONDS", 1.0)
    second = deployment.begin(NEXT, lock="wait")
    waiting = deployment.state(second)
    assert (waiting.name, waiting.is_scheduled()) == ("AwaitingAnswer", True)
    assert f"the night {BAD}" in waiting.message
    command = deployment.command("discard", "out", "--who", "ada", "--why", "a bad day")
    assert command.exit_code == 0, command.output
    ended = deployment.go_on(first)
    assert ended.name == "Cancelled"
    assert "was discarded by ada: a bad day" in ended.message
    assert deployment.go_on(second).name == "Completed"
    assert versions(deployment.folder) == {"v0001": NEXT}
    again = deployment.command("discard", "out")
    assert again.exit_code == 1
    assert "an output of several versions is not discarded as a whole" in again.stderr


@pytest.mark.promise("after `run.ask_timeout` the run is stopped")
def test_a_run_that_nobody_answers_in_time_fails(deployment: Deployment) -> None:
    first = deployment.begin(BAD, ask_timeout="4s")
    until(lambda: deployment.state(first).name == "Failed", "the run fails")
    assert "never resumed" in deployment.state(first).message
    late = deployment.command("publish", "out")
    assert late.exit_code == 1
    assert "no answer came within run.ask_timeout" in late.stderr
    assert deployment.state(deployment.begin(NEXT)).name == "Completed"
    assert versions(deployment.folder) == {"v0001": NEXT}


def test_a_shell_publishes_where_the_run_is_gone(deployment: Deployment) -> None:
    first = deployment.begin(BAD)
    assert deployment.state(first).name == "Suspended"
    deployment.api.delete_flow_run(first)
    assert "the run that asks is gone from the server" in deployment.publish()


def test_a_shell_publishes_where_the_deployment_is_gone(deployment: Deployment) -> None:
    """Nothing would go on with the run."""
    first = deployment.begin(BAD)
    assert deployment.state(first).name == "Suspended"
    deployment.api.delete_deployment(deployment.id)
    assert "the deployment of the run that asks is gone" in deployment.publish()
    assert deployment.state(first).is_cancelled()


class Asking(Host):
    """A folder with days, a deployment over them whose gate asks, a server of its own and `rowmill serve`."""

    def __init__(self, folder: Path) -> None:
        job = job_of(folder, None, "ask") | {"cluster": {"kind": "cpu", "workers": 1, "threads_per_worker": 1}}
        super().__init__(folder, job, poll_seconds=1)
        self.serving: subprocess.Popen[str] | None = None

    def start_server(self) -> None:
        """As a command of this host does."""
        from prefect.context import refresh_global_settings_context

        from infra.orchestration.server import ensure_server

        with same_variables():
            os.environ.pop("PREFECT_API_URL", None)
            os.environ.update(self.environment)
            refresh_global_settings_context()
            assert ensure_server().api_url == self.api_url

    def begin_serving(self) -> None:
        before = self.log.count("press Ctrl-C to stop")
        self.serving = self.serve()
        until(lambda: self.log.count("press Ctrl-C to stop") > before, "serve")
        until(self.is_offered, "the deployment")

    def stop_serving(self, how: signal.Signals) -> None:
        if self.serving is not None and self.serving.poll() is None:
            os.killpg(self.serving.pid, how)
            self.serving.wait(60)

    def api(self, method: str, path: str, **more: Any) -> Any:
        import httpx

        response = httpx.request(method, f"{self.api_url}{path}", timeout=30, **more)
        response.raise_for_status()
        return response.json() if response.content else None

    def is_offered(self) -> bool:
        import httpx

        try:
            return bool(self.deployment()["status"] == "READY")
        except httpx.HTTPStatusError:
            return False

    def deployment(self) -> Any:
        return self.api("GET", "/deployments/name/preprocess/nights")

    def begin(self, day: str, **run: Any) -> str:
        body = {"parameters": {"run": {"date": day, **run}}}
        return str(self.api("POST", f"/deployments/{self.deployment()['id']}/create_flow_run", json=body)["id"])

    def state(self, flow_run: str) -> Any:
        return self.api("GET", f"/flow_runs/{flow_run}")["state"]

    def wait(self, flow_run: str, *names: str) -> Any:
        def reached() -> Any:
            state = self.state(flow_run)
            assert state["type"] not in ("FAILED", "CRASHED") or state["name"] in names, state
            return state if state["name"] in names else None

        return until(reached, f"{names}: {self.state(flow_run)['name']}; {self.log[-2000:]}", 90)

    def answer(self, flow_run: str, answer: str) -> Any:
        body = {"run_input": {"answer": answer, "who": "ada"}}
        return self.api("POST", f"/flow_runs/{flow_run}/resume", json=body)

    def workers(self) -> list[int]:
        """Processes of runs: below the fork server of `serve`, that is a run and what it holds."""
        assert self.serving is not None
        numbers = []
        for child in psutil.Process(self.serving.pid).children():
            with suppress(psutil.Error):  # it ends at this moment
                numbers += [one.pid for one in child.children(recursive=True)]
        return numbers


@pytest.fixture
def host(tmp_path: Path, new_prefect_home: Callable[[Path], Path]) -> Iterator[Asking]:
    host = Asking(tmp_path)
    new_prefect_home(host.home)
    days(host.folder)
    host.start_server()
    try:
        host.begin_serving()
        yield host
    finally:
        host.stop_serving(signal.SIGTERM)
        host.kill_server()


@pytest.mark.promise("**A run of a deployment that asks** pauses in Prefect")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_of_a_deployment_pauses_over_restarts_and_publishes(host: Asking) -> None:
    """Server and host are restarted meanwhile; and the process that serves ends as otherwise without its deployment."""
    first = host.begin(BAD)
    until(host.workers, "a process of the run")
    state = host.wait(first, "Suspended")
    until(lambda: not host.workers(), "no process of the run is left")
    question = read_question(staging_of(host.folder))
    assert question is not None
    assert (question.run, question.date) == (first, BAD)
    left = datetime.fromisoformat(state["state_details"]["pause_timeout"]) - datetime.now(UTC)
    assert timedelta(hours=19.9) < left < timedelta(hours=20.1)
    form = host.api("GET", f"/flow_runs/{first}/input/{state['state_details']['run_input_keyset']['description']}")
    assert FOUND in form
    assert f"/artifacts/key/preprocess-{key_of(host.folder / 'out').removeprefix('preprocess-')}-gate" in form

    learned = (staging_of(host.folder) / "state/state.json").stat().st_mtime_ns
    host.stop_serving(signal.SIGKILL)
    host.kill_server()
    host.start_server()
    host.begin_serving()
    assert host.state(first)["name"] == "Suspended"
    assert host.answer(first, "publish")["status"] == "ACCEPT"
    assert host.answer(first, "discard")["status"] == "ABORT"
    host.wait(first, "Completed")
    assert versions(host.folder) == {"v0001": BAD}
    out = host.folder / "out/v0001"
    noted = json.loads((out / "_gate.json").read_text())
    assert (noted["gate"], noted["accepted"][0]["who"]) == ("published by hand", "ada")
    assert Manifest.load(out).data["stages"]["statistics"]["rows"] == 3
    assert learned

    host.api("DELETE", f"/deployments/{host.deployment()['id']}")
    host.stop_serving(signal.SIGINT)
    assert "stopped serving; the schedules are paused" in host.log


@pytest.mark.promise(
    "Until `checks.nights` (7) good versions are there, thresholds are wide and a finding only warns, except for"
)
def test_findings_that_only_warn_say_from_when_they_stop(
    tmp_path: Path, run_alone: Any, caplog: pytest.LogCaptureFixture
) -> None:
    days(tmp_path)
    for day in (GOOD, BAD):
        job = job_of(tmp_path, day, "off")
        run_alone(job | {"checks": {**job["checks"], "on_finding": "stop"}})
    line = "only warn, since 1 of 7 good versions are there to compare with; set checks.nulls.level"
    assert line in caplog.text
    assert "(checks.nulls)" in caplog.text
    assert f"once it is published: rowmill discard {tmp_path}/out/VERSION" in caplog.text


@pytest.mark.promise("So do the contract and, from the second night on, `duplicated`, which needs no history")
def test_a_stop_names_the_findings_that_stop_and_not_those_that_warn(
    tmp_path: Path, run_alone: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pa.table({"x": [float(n) if n % 2 else None for n in range(100)], "day": ["2026-11-20"] * 100})
    for day in ("2026-11-20", "2026-11-22"):
        (tmp_path / "in" / day).mkdir(parents=True)
        pq.write_table(rows, tmp_path / "in" / day / "a.parquet")
    checks = {"on_finding": "stop", "contract": {"level": "warn"}}
    run_alone(job_of(tmp_path, GOOD, "off") | {"checks": checks})
    caplog.clear()
    with pytest.raises(GateStoppedError) as caught:
        run_alone(job_of(tmp_path, NEXT, "off") | {"checks": checks})

    assert "(checks.contract)" in caplog.text
    assert caught.value.why == (
        "the rows are those of v0001: 100 rows with the same values; 1 more finding(s) do not stop it"
    )
    assert "set checks.duplicated.level to warn" in caught.value.do
    assert "rowmill discard" not in caplog.text


@pytest.mark.promise("A version whose base is discarded, or whose date another good version has, does not come back")
def test_a_version_comes_back_to_its_place_only(tmp_path: Path, run_alone: Any) -> None:
    days(tmp_path)
    job = job_of(tmp_path, GOOD, "off")
    [first] = run_alone(job)
    [second] = run_alone(job_of(tmp_path, BAD, "off") | {"base": str(tmp_path / "out")})
    assert len(discard_version(first, and_later=True)) >= 2
    with pytest.raises(JobError, match=r"(?s)v0001 is discarded, and v0002 was learned.*discard .*v0001 --undo"):
        restore_version(second)
    restore_version(first)
    restore_version(second)
    discard_version(second)
    [again] = run_alone(job_of(tmp_path, BAD, "off") | {"base": str(tmp_path / "out")})
    with pytest.raises(JobError, match=rf"(?s){again.name} has the rows of {BAD}, too.*discard .*{again.name}"):
        restore_version(second)
    discard_version(again)
    assert restore_version(second)[0] == f"{second} is back"
