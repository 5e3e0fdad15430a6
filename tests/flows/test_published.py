"""What others hear of outputs: events on a real server, counted once, also over kills and servers that are away."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from flows.published import outbox, plugins
from flows.published.outbox import deliver
from flows.published.unsent import outputs_to_announce
from infra.orchestration import deployments
from infra.orchestration.server import ensure_server
from tasks.errors import GateAskedError, GateStoppedError
from tasks.job.publication import read_publication
from tasks.manifest import Manifest
from tests.conftest import free_port
from tests.faults.jobs import make_data, make_job
from tests.faults.rounds import Rounds
from tests.faults.seeds import nightly
from tests.flows.runs import call, have_stages_here, key_of, run_any
from tests.flows.test_gate import BAD, FOUND, GOOD, days, job_of, staging_of
from tests.infra.elsewhere import ROOT, until

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("published")]
NAMES = [f"rowmill.output.{what}" for what in ("published", "discarded", "waiting", "refused")]


def events_of(api: Any, folder: Path, names: list[str] = NAMES) -> list[dict[str, Any]]:
    """The events of the output `out` in a folder that the server has, the oldest first."""
    slug = key_of(folder / "out").removeprefix("preprocess-")
    wanted = {"event": {"name": names}, "resource": {"id": [f"rowmill.output.{slug}"]}}
    return list(api.request("POST", "/events/filter", json={"filter": wanted}).json()["events"])[::-1]


def heard(api: Any, folder: Path, count: int) -> list[dict[str, Any]]:
    """The first `count` events of an output."""
    until(lambda: len(events_of(api, folder)) >= count, f"{count} event(s)")
    return events_of(api, folder)


def run_until_killed(job: dict[str, Any], when: str) -> None:
    """Run a job in this process, which is killed around the event of its publication."""
    from flows.preprocess import preprocess

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    ensure_server()
    have_stages_here(pytest.MonkeyPatch())
    if when == "before":  # after the rename, before the event
        plugins.EventsPlugin.committed = die  # type: ignore[method-assign]
    else:  # after the event, before the mark
        vars(outbox)["mark_sent"] = die
    run_any(preprocess, job)


@pytest.fixture
def run(run_alone: Any, prefect_server: Any) -> Any:
    """A run that no server hears of; what it leaves for a server is sent when it is done."""

    def run(job: dict[str, Any]) -> list[Path]:
        folders: list[Path] = run_alone(job)
        deliver([Path(job["output"]["path"])])
        return folders

    return run


def cli(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.promise(
    "The payload of `published` has `text`, `output`, `version`", "flows/OPERATIONS.md#when-it-is-published"
)
def test_a_publication_is_an_event_with_its_figures(tmp_path: Path, run_here: Any, api: Any) -> None:
    days(tmp_path)
    [out] = run_here(job_of(tmp_path, GOOD, "stop"))
    [event] = heard(api, tmp_path, 1)
    manifest = Manifest.load(out)
    [part] = manifest.parts
    payload = event["payload"]

    assert event["event"] == "rowmill.output.published"
    assert event["resource"]["prefect.resource.name"] == str(tmp_path / "out")
    assert (event["resource"]["rowmill.version"], event["resource"]["rowmill.train"]) == ("v0001", "now")
    assert payload.pop("text") == f"{out} is published: 3 rows in 1 files"
    assert payload == {
        "output": str(tmp_path / "out"), "version": "v0001", "path": str(out),
        "splits": [{"name": "", "path": str(out), "rows": 3, "bytes": part["bytes"], "files": 1,
                    "manifest": manifest.data["digest"]}],
        "rows": 3, "bytes": part["bytes"], "files": 1, "manifest": manifest.data["digest"], "date": GOOD,
        "created": manifest.data["created"],
        "gate": "pass", "base": None, "ids_added": None, "flow": "preprocess", "run": manifest.data["run"],
        "train": "now",
    }  # fmt: skip
    assert [one["prefect.resource.id"] for one in event["related"]] == [f"prefect.flow-run.{payload['run']}"]
    assert CliRunner().invoke(app, ["verify", str(out)]).exit_code == 0


@pytest.mark.promise(
    "The next start of the job, `rowmill publish OUT` or `rowmill clean OUT` sends it",
    "flows/OPERATIONS.md#when-it-is-published",
)
@pytest.mark.parametrize(
    ("when", "repaired_by"),
    [
        ("before", "start"),
        ("after", "clean"),
        *nightly([("after", "start"), ("before", "publish")]),
    ],
)
def test_a_kill_around_the_event_makes_one_event(
    when: str, repaired_by: str, tmp_path: Path, run_here: Any, api: Any, rounds: Rounds
) -> None:
    days(tmp_path)
    job = job_of(tmp_path, GOOD, "warn")
    ended = rounds.run(f"{__name__}:{run_until_killed.__name__}", {"job": job, "when": when})
    assert ended.killed, rounds.says()
    note = read_publication(tmp_path / "out/v0001")
    assert note is not None
    assert note.sent == ""
    if when == "before":
        assert events_of(api, tmp_path) == []
    if repaired_by == "start":
        run_here(job_of(tmp_path, BAD, "warn"))
    else:
        output = cli(repaired_by, str(tmp_path / "out"))
        assert f"sent     rowmill.output.published: {tmp_path / 'out/v0001'} is published" in output
    versions = ["v0001", "v0002"] if repaired_by == "start" else ["v0001"]
    assert [one["payload"]["version"] for one in heard(api, tmp_path, len(versions))] == versions
    assert read_publication(tmp_path / "out/v0001").sent  # type: ignore[union-attr]
    time.sleep(6)  # in which the server would have stored another one
    assert len(events_of(api, tmp_path)) == len(versions)
    assert CliRunner().invoke(app, ["publish", str(tmp_path / "out")]).exit_code == 1  # nothing is left to do


def test_a_discarded_version_is_an_event(tmp_path: Path, run: Any, api: Any) -> None:
    days(tmp_path)
    run(job_of(tmp_path, GOOD, "stop"))
    cli("discard", str(tmp_path / "out/v0001"), "--why", "half a day", "--who", "ada")
    _, event = heard(api, tmp_path, 2)
    assert event["event"] == "rowmill.output.discarded"
    assert (event["payload"]["version"], event["payload"]["why"], event["payload"]["who"]) == (
        "v0001", "half a day", "ada",
    )  # fmt: skip
    assert outputs_to_announce(tmp_path) == []


def test_nights_that_are_refused_or_wait_are_events(tmp_path: Path, run: Any, api: Any) -> None:
    days(tmp_path)
    with pytest.raises(GateStoppedError):
        run(job_of(tmp_path, BAD, "stop"))
    with pytest.raises(GateAskedError):
        run(job_of(tmp_path, BAD, "ask"))
    cli("discard", str(tmp_path / "out"))
    refused, waiting, discarded = heard(api, tmp_path, 3)
    assert [one["event"].rpartition(".")[2] for one in (refused, waiting, discarded)] == [
        "refused", "waiting", "discarded",
    ]  # fmt: skip
    assert FOUND in refused["payload"]["why"]
    assert (waiting["payload"]["date"], waiting["payload"]["stage"]) == (BAD, "commit")
    assert not staging_of(tmp_path).exists()


@pytest.mark.promise("Outputs of an earlier rowmill send nothing")
def test_versions_of_before_the_upgrade_send_nothing(tmp_path: Path, run: Any, api: Any) -> None:
    days(tmp_path)
    [first] = run(job_of(tmp_path, GOOD, "warn"))
    (first / "_published.json").unlink()
    run(job_of(tmp_path, BAD, "warn"))
    heard(api, tmp_path, 2)
    assert deliver([tmp_path / "out"]) == []
    assert outputs_to_announce(tmp_path) == []


@pytest.mark.promise("A server that is away costs a run less than a second")
def test_a_dead_server_costs_no_byte_and_less_than_a_second(
    tmp_path: Path, run_alone: Any, prefect_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    days(tmp_path)
    [out] = run_alone(job_of(tmp_path, GOOD, "warn"))
    caplog.clear()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with socket.socket() as silent:  # it is bound and never listens; then one whose queue is full
        silent.bind(("127.0.0.1", 0))
        for port in (free_port(), silent.getsockname()[1]):
            with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
                began = time.monotonic()
                assert deliver([tmp_path / "out"]) == []
                assert time.monotonic() - began < 1
    kept = f"no Prefect server takes the events of {tmp_path / 'out'}: they are kept and sent at the next start"
    assert kept in caplog.text
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert deliver([tmp_path / "out"])[-1].event == "rowmill.output.published"


def test_events_that_wait_stay_over_a_clean_and_the_next_run(
    tmp_path: Path, run: Any, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(tmp_path)
    monkeypatch.setattr("infra.orchestration.server.use_running_server", lambda: False)  # the server is away
    with pytest.raises(GateStoppedError):
        run(job_of(tmp_path, BAD, "stop"))
    output = cli("clean", str(tmp_path / "out"), "--older-than", "0")
    assert "no Prefect server runs that could take its events" in output
    assert "events in it wait for a Prefect server" in output
    assert [path.name for path in staging_of(tmp_path).iterdir()] == ["outbox.json"]
    run(job_of(tmp_path, GOOD, "warn"))
    assert [one["event"].rpartition(".")[2] for one in heard(api, tmp_path, 2)] == ["refused", "published"]
    assert not staging_of(tmp_path).exists()


def test_a_damaged_note_is_a_warning(tmp_path: Path, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    days(tmp_path)
    [out] = run(job_of(tmp_path, GOOD, "warn"))
    (out / "_published.json").write_text("{")
    assert deliver([tmp_path / "out"]) == []
    assert f"nothing is announced of {out}" in caplog.text


@pytest.mark.promise("a receiver that gets a key twice counts it once")
def test_a_webhook_hears_of_a_publication_with_its_id(tmp_path: Path, run: Any, api: Any) -> None:
    calls: list[dict[str, Any]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            calls.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    days(tmp_path)
    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        block = deployments.ensure_webhook(deployments.OUTPUTS_WEBHOOK, f"http://127.0.0.1:{server.server_port}/secret")
        deployments.ensure_automations()
        time.sleep(10)  # in which the server looks for its automations twice
        [out] = run(job_of(tmp_path, GOOD, "warn"))
        [event] = heard(api, tmp_path, 1)
        api.request("POST", "/events", json=[{**event, "received": None}])  # sent twice, as over a kill
        until(lambda: [call for call in calls if call.get("path") == str(out)], "the webhook is called")
        time.sleep(3)
        server.shutdown()
    (automation,) = api.read_automations_by_name("rowmill-outputs")
    api.delete_automation(automation.id)
    api.delete_block_document(UUID(block))
    assert [call for call in calls if call.get("path") == str(out)] == [
        {**event["payload"], "event": event["event"], "id": event["id"], "idempotency_key": event["id"]}
    ]


@pytest.mark.promise("This script ends with the path of the next version")
def test_the_script_of_the_manual_waits_for_the_next_version(tmp_path: Path, run: Any, api: Any) -> None:
    section = (ROOT / "flows/OPERATIONS.md").read_text().partition("## When it is published")[2].partition("\n## ")[0]
    (tmp_path / "wait.py").write_text(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0])
    days(tmp_path)
    slug = key_of(tmp_path / "out").removeprefix("preprocess-")
    command = [sys.executable, "-P", str(tmp_path / "wait.py"), slug]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        time.sleep(8)  # in which it subscribes
        assert waiting.poll() is None
        [out] = run(job_of(tmp_path, GOOD, "warn"))
        assert waiting.communicate(timeout=240)[0] == f"{out}\n"


# Assets


def assets_of(api: Any, folder: Path) -> list[dict[str, Any]]:
    """The asset events of what lies in a folder."""
    wanted = {"event": {"prefix": ["prefect.asset."]}, "resource": {"id_prefix": [f"file://{folder}"]}}
    return list(api.request("POST", "/events/filter", json={"filter": wanted}).json()["events"])


@pytest.mark.promise("the output is an asset of Prefect", "flows/OPERATIONS.md#when-it-is-published")
def test_a_job_without_splits_materializes_one_asset_of_what_it_read(tmp_path: Path, run: Any, api: Any) -> None:
    days(tmp_path)
    contract = tmp_path / "contract.yaml"
    contract.write_text("columns: {x: {nulls: 0.1}, day: {nulls: 0.1}}\n")
    job = {**job_of(tmp_path, GOOD, "stop"), "contract": str(contract), "run": {"date": GOOD, "report": True}}
    [out] = run(job)
    until(lambda: len(assets_of(api, tmp_path)) >= 3, "the assets")
    referenced, [asset] = (
        [one for one in assets_of(api, tmp_path) if one["event"].startswith(f"prefect.asset.{name}")]
        for name in ("referenced", "materialization.succeeded")
    )
    keys = {f"file://{tmp_path}/in/2026-11-20", f"file://{contract}"}
    assert {one["resource"]["prefect.resource.id"] for one in referenced} == keys
    resource, roles = asset["resource"], {one["prefect.resource.role"] for one in asset["related"]}
    assert resource["prefect.resource.id"] == f"file://{tmp_path}/out"
    assert {one["prefect.resource.id"] for one in asset["related"] if one["prefect.resource.role"] == "asset"} == keys
    assert roles == {"asset", "asset-materialized-by", "flow-run"}
    run_id = Manifest.load(out).data["run"]
    assert resource["prefect.asset.url"].endswith(f"/runs/flow-run/{run_id}")
    assert resource["prefect.asset.description"] == (
        f"v0001 of {GOOD}: 3 rows in 1 files. [run]({resource['prefect.asset.url']}), "
        f"report: rowmill report {out!s} --open"
    )
    [event] = heard(api, tmp_path, 1)
    facts = {name: value for name, value in event["payload"].items() if name not in ("text", "splits")}
    assert asset["payload"] == facts


def test_splits_are_assets_of_their_own(tmp_path: Path, run: Any, api: Any) -> None:
    rule = {"by": "fraction", "valid": 0.3}
    run(make_job(make_data(tmp_path / "in", files=1, rows=200), tmp_path / "out", source={"split": rule}))
    until(lambda: len(assets_of(api, tmp_path / "out")) >= 3, "the assets of the output and its splits")
    rows = {one["resource"]["prefect.resource.id"]: one["payload"]["rows"] for one in assets_of(api, tmp_path / "out")}
    key = f"file://{tmp_path}/out"
    assert {*rows} == {key, f"{key}/train", f"{key}/valid"}
    assert rows[key] == rows[f"{key}/train"] + rows[f"{key}/valid"] == 200


def test_the_base_of_a_refit_is_upstream_and_its_new_ids_are_counted(tmp_path: Path, run: Any, api: Any) -> None:
    from flows.refit import refit

    days(tmp_path, ())
    out = str(tmp_path / "out")
    features = [{"columns": ["day"], "ops": [{"op": "Categorify"}]}]
    run({**job_of(tmp_path, GOOD, "warn"), "features": features, "contract": None})
    output = {"path": out, "on_existing": "version"}
    source = {"path": str(tmp_path / "in/2026-11-21")}
    call(refit, {"base": out, "source": source, "output": output, "run": {"date": BAD}})
    deliver([tmp_path / "out"])
    _, event = heard(api, tmp_path, 2)
    assert (event["payload"]["version"], event["payload"]["base"], event["payload"]["ids_added"]) == (
        "v0002", f"{out}/v0001", 1,
    )  # fmt: skip
    until(lambda: f"file://{out}/v0001" in str(assets_of(api, tmp_path)), "the base is referenced")


def test_the_events_are_those_of_a_task_of_prefect_that_materializes(tmp_path: Path, run: Any, api: Any) -> None:
    from prefect import flow
    from prefect.assets import Asset, AssetProperties, add_asset_metadata, materialize

    properties = AssetProperties(name="n", url="http://127.0.0.1/x", description="d")
    asset = Asset(key=f"file://{tmp_path}/by-prefect/out", properties=properties)

    @materialize(asset, asset_deps=[f"file://{tmp_path}/by-prefect/in"], by="rowmill")
    def write() -> None:
        add_asset_metadata(asset, {"rows": 3})

    @flow
    def writing() -> None:
        write()

    writing()
    days(tmp_path)
    run(job_of(tmp_path, GOOD, "warn"))
    until(lambda: len(assets_of(api, tmp_path)) >= 4, "the assets of both")

    def shapes(of_prefect: bool) -> dict[str, Any]:
        chosen = [one for one in assets_of(api, tmp_path) if ("by-prefect" in str(one["resource"])) == of_prefect]
        roles = ("asset", "asset-materialized-by", "flow-run")
        return {one["event"]: (sorted(one["resource"]), {r["prefect.resource.role"] for r in one["related"]} & {*roles})
                for one in chosen}  # fmt: skip

    assert shapes(False) == shapes(True)


# The page of an output


@pytest.mark.promise("lists its versions")
def test_the_page_of_an_output_lists_its_versions_and_what_was_sent(tmp_path: Path, run: Any) -> None:
    from flows.apply import apply

    days(tmp_path)
    run({**job_of(tmp_path, GOOD, "warn"), "run": {"date": GOOD}})
    run(job_of(tmp_path, BAD, "warn"))
    cli("discard", str(tmp_path / "out/v0002"), "--who", "ada", "--why", "half a day")
    with pytest.raises(GateAskedError):
        run(job_of(tmp_path, BAD, "ask"))
    applied = {"fitted": str(tmp_path / "out/v0001"), "source": {"path": str(tmp_path / "in/2026-11-20")}}
    call(apply, {**applied, "output": {"path": str(tmp_path / "applied"), "shuffle": "none"}})
    text = cli("versions", str(tmp_path / "out")).replace("\\", "")
    second, first = [line.split(" | ") for line in text.splitlines() if line.startswith("| v0")]
    assert [cell.strip("| ") for cell in first[:5]] == ["v0001 (_latest)", GOOD, "3", "", "pass"]
    assert [cell.strip("| ") for cell in second[:5]] == ["v0002", BAD, "3", "", "warn"]
    assert " to http://127.0.0.1" in first[-1]
    assert second[-2].startswith("discarded by ada at ")
    assert second[-2].endswith(": half a day")
    assert "waits for an answer** until" in text
    assert f"v0001 is made of: {tmp_path}/in/2026-11-20" in text  # the newest one that is not discarded
    assert text.rstrip().endswith(f"Read by: {tmp_path / 'applied'}")
    assert f"Made of {tmp_path}/in/2026-11-20" in (tmp_path / "out/v0001/_report.html").read_text()


def test_the_page_of_an_output_says_that_the_gate_has_stopped_a_night(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(tmp_path)
    run(job_of(tmp_path, GOOD, "warn"))
    with pytest.raises(GateStoppedError):
        run(job_of(tmp_path, BAD, "stop"))
    text = cli("versions", str(tmp_path / "out")).replace("\\", "")
    assert "**The gate stopped a night, which is not published**: " in text
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # on a terminal
    shown = cli("versions", str(tmp_path / "out"))
    assert "The gate stopped a night, which is not published" in " ".join(shown.split())
    assert "**" not in shown
    assert "\\" not in shown


def test_those_who_heard_that_a_version_was_taken_back_hear_that_it_is_back(tmp_path: Path, run: Any, api: Any) -> None:
    days(tmp_path)
    run(job_of(tmp_path, GOOD, "warn"))
    version = tmp_path / "out/v0001"
    cli("discard", str(version), "--who", "ada")
    cli("discard", str(version), "--undo", "--who", "bob")
    cli("discard", str(version), "--who", "ada")
    name = "rowmill.output.restored"
    [event] = until(lambda: events_of(api, tmp_path, [name]), "the event")
    assert (event["payload"]["who"], event["payload"]["version"]) == ("bob", "v0001")
