"""Nights on top of each other, as Prefect flows: the first is a fit, ids stay, nothing is learned twice by chance."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from flows.commands.discard import discard_version, restore_version
from flows.commands.launch import refit_of
from flows.preprocess import preprocess
from flows.public.rowmill.cli import app
from flows.refit import refit
from tasks.errors import DataError, GateStoppedError, JobError
from tasks.manifest import Manifest
from tasks.storage.discarded import is_discarded, read_mark
from tasks.workflow import Workflow
from tests.flows.runs import call, rows_of, run_any
from tests.flows.test_fit_apply import written
from tests.tasks.job import test_base_version
from tests.tasks.job.test_base_version import job, manifest

pytestmark = pytest.mark.xdist_group("flows")


@pytest.fixture
def night(tmp_path: Path, run_alone: Any) -> Any:
    """Run `preprocess` on the rows of a night, on top of the output; the folders that were committed."""
    return lambda number, **more: run_alone(job(tmp_path, number, base=str(tmp_path / "out"), **more))


def test_the_first_night_is_a_fit_and_the_next_ones_go_on(
    tmp_path: Path, run_alone: Any, prefect_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The third as a flow of Prefect; the other tests call the functions of flows."""
    out = tmp_path / "out"
    run_alone(job(tmp_path, 0, base=str(out)))
    assert "there is no base at" in caplog.text
    assert "this run is a fit" in caplog.text
    assert manifest(out, "v0001")["base"] == "none"

    run_alone(job(tmp_path, 1, base=str(out)))
    assert f"the base is {out}/v0001: 3 rows of 1 night until" in caplog.text
    data = {"base": str(out), "source": {"path": job(tmp_path, 2)["source"]["path"]}, "output": {"path": str(out)}}
    data["output"]["on_existing"] = "version"
    [third] = run_any(refit, data)

    assert Path(third).name == "v0003"
    assert [rows_of(out / f"v000{n}")["k"].to_pylist() for n in (1, 2)] == [[3, 3, 4], [5, 4]]
    assert rows_of(Path(third))["k"].to_pylist() == [6]
    assert manifest(out, "v0003")["base"] == {
        "version": "v0002", "path": str(out / "v0002/_workflow"), "rows": 5,
        "state": manifest(out, "v0002")["fingerprints"]["state"],
    }  # fmt: skip
    changes = json.loads((out / "v0003/_workflow/changes.json").read_text())
    assert (changes["base"], changes["rows"]) == ("v0002", {"old": 5, "new": 1})
    assert {step["op"]: step["mode"] for step in changes["steps"].values()} == {
        "Categorify": "appended", "Normalize": "merged",
    }  # fmt: skip
    whole = Workflow.load(out / "v0003")
    assert whole.transform(pa.table({"k": ["a", "b", "c", "d"], "x": [0.0] * 4}))["k"].to_pylist() == [3, 4, 5, 6]


@pytest.mark.promise("`files were already learned`")
def test_a_night_that_was_learned_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, night: Any, caplog: pytest.LogCaptureFixture
) -> None:
    night(0)
    with pytest.raises(DataError, match="1 of 1 files were already learned"):
        night(0)
    assert not (tmp_path / ".out.rowmill").exists()
    night(0, refit={"again": True})
    assert "1 files are learned once more: their rows count twice" in caplog.text
    assert manifest(tmp_path / "out", "v0002")["base"]["version"] == "v0001"


def test_after_a_discarded_night_the_same_rows_go_on_from_the_one_before(tmp_path: Path, night: Any) -> None:
    night(0)
    night(1)
    discard_version(tmp_path / "out/v0002")
    [third] = night(1)

    assert manifest(tmp_path / "out", "v0003")["base"]["version"] == "v0001"
    assert rows_of(third).equals(rows_of(tmp_path / "out/v0002"))


@pytest.mark.promise("the run publishes nothing; the same job again takes the good version before it")
@pytest.mark.parametrize("stage", ["statistics", "shuffle_write"])
def test_a_run_whose_base_is_discarded_meanwhile_publishes_nothing(
    tmp_path: Path, night: Any, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.run import session

    night(0)
    night(1)
    run_stage = session.run_stage

    def meanwhile(function: Any, *args: Any) -> Any:
        if function.name == stage:
            discard_version(tmp_path / "out/v0002", who="ada")
        return run_stage(function, *args)

    with monkeypatch.context() as patch:
        patch.setattr(session, "run_stage", meanwhile)
        with pytest.raises(JobError, match=r"(?s)the base of this run was discarded: v0002.*by ada at 20"):
            night(2)
    assert not (tmp_path / "out/v0003").exists()
    [third] = night(2)  # what had been learned on top of v0002 is learned anew
    assert manifest(tmp_path / "out", third.name)["base"]["version"] == "v0001"
    assert rows_of(third)["k"].to_pylist() == [5]


def test_a_fit_after_all_was_taken_back_says_that_ids_are_new(
    tmp_path: Path, night: Any, caplog: pytest.LogCaptureFixture
) -> None:
    night(0)
    discard_version(tmp_path / "out/v0001")
    night(1)
    text = f"every version at {tmp_path / 'out'} is discarded (v0001): this run is a fit, and all values get new ids"
    assert text in caplog.text


def test_a_damaged_base_is_named_and_the_one_before_it_is_taken(
    tmp_path: Path, night: Any, caplog: pytest.LogCaptureFixture
) -> None:
    night(0)
    [second] = night(1)
    state = (second / "_workflow/state.json").read_bytes()
    (second / "_workflow/state.json").write_text("{}")
    stop = {"on_finding": "stop"}
    with pytest.raises(
        DataError, match=r"(?s)the newest version is damaged.*v0002: state.json.*restore.*discard.*again"
    ):
        night(1, checks=stop)
    assert not is_discarded(second)
    night(1)

    assert "not the base, since it is damaged: v0002: state.json is damaged" in caplog.text
    assert f"its night is to be run again: {datetime.now(UTC).date()}" in caplog.text
    assert manifest(tmp_path / "out", "v0003")["base"]["version"] == "v0001"
    assert read_mark(second).why.startswith("damaged: v0002: state.json")
    with pytest.raises(DataError, match=r"(?s)v0002 is damaged.*restore it"):
        restore_version(second)
    (second / "_workflow/state.json").write_bytes(state)
    assert restore_version(second) == [f"{second} is back"]  # v0003 has the same rows, hence the same ids
    assert not is_discarded(second)


def test_two_refits_of_one_base_go_on_from_each_other(
    tmp_path: Path, night: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the lock, and takes the base that is there then; with run.lock: fail it is refused."""
    night(0)
    from tasks.stages import ingest as stage

    begun, goes_on, ingest = threading.Event(), threading.Event(), stage.ingest

    def slow(*args: Any, **more: Any) -> Any:
        if threading.current_thread().name == "the other":
            begun.set()
            goes_on.wait(120)
        return ingest(*args, **more)

    monkeypatch.setattr(stage, "ingest", slow)
    other = threading.Thread(target=test_base_version.night, args=(tmp_path, 1), name="the other")
    other.start()
    assert begun.wait(120)
    with pytest.raises(JobError, match="another run is working on this output"):
        night(2)
    threading.Timer(1, goes_on.set).start()
    [third] = night(2, run={"lock": "wait"})
    other.join()

    assert third.name == "v0003"
    assert manifest(tmp_path / "out", "v0003")["base"]["version"] == "v0002"
    assert rows_of(third)["k"].to_pylist() == [6]


def test_a_base_elsewhere_must_be_there(tmp_path: Path, stages_here: None) -> None:
    data = job(tmp_path, 0, base=str(tmp_path / "nightly"))
    with pytest.raises(JobError, match=r"(?s)there is no base.*base: none"):
        call(preprocess, data)


def test_no_base_learns_anew(tmp_path: Path, night: Any, caplog: pytest.LogCaptureFixture) -> None:
    night(0)
    call(preprocess, job(tmp_path, 1, base="none"))
    assert "this run has no base and gives all values new ids: the earlier versions (v0001) have other" in caplog.text
    assert rows_of(tmp_path / "out/v0002")["k"].to_pylist() == [4, 3]
    assert "base" not in manifest(tmp_path / "out", "v0002")


def test_keep_versions_warns_that_days_go(tmp_path: Path, night: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        night(0, output={"path": str(tmp_path / "out"), "on_existing": "version", "keep_versions": 2})
    assert "output.keep_versions: 2 removes data" in caplog.text


def test_a_day_that_came_late_is_learned_behind_the_later_one(tmp_path: Path, stages_here: None) -> None:
    """A refit of `{date}`; the day is in the history and in the manifest."""
    for number, day in enumerate(("2026-11-21", "2026-11-22", "2026-11-23")):
        written(pa.table({"k": test_base_version.KEYS[number], "x": [1.0] * len(test_base_version.KEYS[number])}),
                tmp_path / "in" / day / "a.parquet")  # fmt: skip
    for day in ("2026-11-21", "2026-11-23", "2026-11-22"):
        data = job(tmp_path, 0, base=str(tmp_path / "out"), run={"date": day})
        call(preprocess, {**data, "source": {"path": f"{tmp_path}/in/{{date}}"}})
    out = tmp_path / "out"
    history = json.loads((out / "v0003/_workflow/workflow.json").read_text())["history"]

    assert [one["day"] for one in history["nights"]] == ["2026-11-21", "2026-11-23", "2026-11-22"]
    assert rows_of(out / "v0003")["k"].to_pylist() == [6, 4]
    assert Manifest.load(out).data["dated"]["date"] == "2026-11-22"


def test_what_is_typed_becomes_the_parameters_of_the_flow(tmp_path: Path) -> None:
    changes = ["refit.Normalize=freeze", "refit.features[0]=merge", "refit.forget=365d"]
    assert refit_of("out/x", ["logs/{date-1}/"], None, changes, "2026-11-23") == {
        "base": "out/x",
        "source": {"path": "logs/{date-1}/"},
        "refit": {"Normalize": "freeze", "features[0]": "merge", "forget": "365d"},
        "run": {"date": "2026-11-23"},
    }
    with pytest.raises(JobError, match="there is no section 'features'"):
        refit_of("out/x", ["a"], None, ["features=[]"])


@pytest.mark.promise("So are `checks`, `contract` and `output`")
def test_the_deployment_nightly_refit_stops_what_the_job_of_its_base_stops(
    tmp_path: Path, night: Any, caplog: pytest.LogCaptureFixture
) -> None:
    night(0, checks={"on_finding": "stop"}, contract={"columns": {"x": {"nulls": 0.1}}})
    deployments = yaml.safe_load(Path("infra/prefect.yaml").read_text())["deployments"]
    data = dict(next(one for one in deployments if one["name"] == "nightly-refit")["parameters"])
    data |= {"base": str(tmp_path / "out"), "source": {"path": str(tmp_path / "logs/{date-1}")}}
    data |= {"output": {"path": str(tmp_path / "out"), "on_existing": "version"}}  # as without: a version of the base
    data["run"] = {**data["run"], "date": "2026-11-22"}
    (tmp_path / "logs/2026-11-21").mkdir(parents=True)
    written(pa.table({"k": ["a"], "x": pa.nulls(1, pa.float64())}), tmp_path / "logs/2026-11-21/a.parquet")
    with pytest.raises(GateStoppedError, match="x: 100 % of 1 values are null"):
        call(refit, data)
    assert not (tmp_path / "out/v0002").exists()
    assert "as in the base: checks.on_finding: stop, output.shuffle: none, output.files: 1, contract" in caplog.text


def test_the_log_of_a_changed_job_says_what_becomes_of_each_step(
    tmp_path: Path, night: Any, caplog: pytest.LogCaptureFixture
) -> None:
    night(0)
    features = [{"columns": ["x"]}, {"columns": ["k"], "ops": [{"op": "Categorify"}]}]
    [second] = night(1, features=features, refit={"learn_from": str(tmp_path / "0.parquet")})
    assert rows_of(second).to_pydict() == {"x": [1.0, 1.0], "k": [5, 4]}
    assert "differs from the base: Normalize of 'x' is dropped; v0001 keeps it" in caplog.text
    night(2, features=features, refit={"learn_from": str(tmp_path / "0.parquet")})
    assert "refit.learn_from is not read: the base has the features of the job" in caplog.text


def test_a_base_may_be_typed_as_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[dict[str, Any]] = []
    monkeypatch.setattr("flows.commands.launch.launch", lambda data, *_: launched.append(data))
    monkeypatch.setattr("flows.commands.launch.begin", lambda *_: nullcontext())
    words = ["refit", "s3://shop/nightly", "--source", "s3://shop/logs", "--output", "out", "--storage-options", "shop"]
    assert CliRunner().invoke(app, words).exit_code == 0
    words = ["apply", "s3://shop/nightly/v0001", "--source", "new", "--storage-options", "shop"]
    assert CliRunner().invoke(app, words).exit_code == 0
    storage = {"storage_options": "shop"}
    source = {"path": "s3://shop/logs", **storage}
    assert launched == [
        {"base": "s3://shop/nightly", "source": source, "output": {"path": "out", **storage}},
        {"fitted": "s3://shop/nightly/v0001", "source": {"path": "new", **storage}, "output": storage},
    ]
