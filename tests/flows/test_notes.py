"""Notes next to an output are not believed: what a forged one could do with the rights of those who read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prefect.events import Event, RelatedResource, Resource
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.commands import publish
from flows.job.access import LIMITS
from flows.published import events, unsent
from flows.published.events import make_output_event
from flows.published.outbox import deliver, pending, put_in
from flows.published.unsent import box_of
from tasks.errors import DataError, JobError
from tasks.gate.question import FORMAT, Question, ask, read_question
from tasks.gate.verdict import Verdict
from tasks.job.publication import Publication, SplitFacts
from tasks.storage.atomic import write_note
from tasks.storage.documents import dump_document
from tasks.storage.retention import leftovers
from tasks.storage.staging import Staging

pytestmark = pytest.mark.promise("Notes next to an output are not believed", "infra/README.md#who-may-do-what")


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder of somebody else, which stays as it is."""
    (tmp_path / "victim" / "data").mkdir(parents=True)
    (tmp_path / "victim" / "data" / "file").write_text("theirs\n")
    yield tmp_path / "victim" / "data"
    assert [path.name for path in (tmp_path / "victim").rglob("*")] == ["data", "file"]


@pytest.mark.parametrize("there", [True, False])
def test_a_swap_moves_the_folders_of_its_output_only(there: bool, tmp_path: Path, victim: Path) -> None:
    staging = Staging(tmp_path / "out")
    staging.beside.mkdir()
    if there:
        staging.target.mkdir()
    inode = (staging.target if there else victim).stat().st_ino
    staging.swap.write_text(json.dumps({"new": inode, "at": str(victim)}))
    with staging.hold_lock():
        pass
    assert staging.target.exists() == there


def test_a_swap_in_a_scratch_folder_is_finished_from_beside_the_output(tmp_path: Path) -> None:
    for content in ("one", "two"):
        staging = Staging(tmp_path / "out", tmp_path / "scratch")
        with staging.hold_lock():
            (staging.new).mkdir()
            (staging.new / "_manifest.json").write_text(json.dumps({"parts": [], "content": content}))
            staging.publish("replace")
    assert json.loads((tmp_path / "out" / "_manifest.json").read_text())["content"] == "two"
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == []


def test_the_note_of_a_scratch_folder_names_its_own_output_only(tmp_path: Path, victim: Path) -> None:
    staging = Staging(tmp_path / "out", tmp_path / "scratch")
    staging.folder.mkdir(parents=True)
    note = staging.folder / "target.json"
    note.write_text(json.dumps({"target": str(staging.target)}))
    assert [one.target for one in leftovers([tmp_path / "scratch"])] == [staging.target]
    note.write_text(json.dumps({"target": str(victim)}))
    assert victim not in [one.target for one in leftovers([tmp_path / "scratch"])]


def question_of(staging: Staging, **changes: Any) -> Question:
    features = [{"columns": ["x"]}]
    parameters = {
        "source": {"path": "/data/in"},
        "features": features,
        "output": {"path": str(staging.target)},
        "run": {"scratch": str(staging.scratch)} if staging.scratch else {},
    }
    plain = Question(
        flow="preprocess",
        parameters=parameters,
        date=None,
        run="1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        deployment=None,
        stage="statistics",
        verdict=Verdict("ask", ()),
        of="",
        key="gate-statistics-0",
        output=str(staging.target),
        folder="/somewhere",
        asked_at="2026-11-28T00:00:00+00:00",
        until="2126-11-28T00:00:00+00:00",
        answer=None,
        format=FORMAT,
    )
    return replace(plain, **changes)


def test_a_question_is_of_the_work_in_its_folder(tmp_path: Path, victim: Path) -> None:
    beside, elsewhere = Staging(tmp_path / "out"), Staging(tmp_path / "out", tmp_path / "scratch")
    for staging in (beside, elsewhere):
        staging.beside.mkdir(parents=True, exist_ok=True)
        staging.folder.mkdir(parents=True, exist_ok=True)
        ask(staging, question_of(staging))
        assert read_question(staging.folder) == question_of(staging)
    assert beside.asks_in == elsewhere.folder
    for staging in (beside, elsewhere):
        ask(staging, question_of(staging, output=str(victim)))
        with pytest.raises(DataError, match="has its work in another folder"):
            read_question(staging.folder)


def test_the_note_on_a_question_elsewhere_names_a_folder_of_this_output(tmp_path: Path, victim: Path) -> None:
    staging = Staging(tmp_path / "out")
    staging.beside.mkdir()
    for folder in (victim, tmp_path / "scratch" / ".out.0123456789ab.rowmill", "..", 5):
        (staging.beside / "asks.json").write_text(json.dumps({"format": 1, "folder": str(folder)}))
        assert staging.asks_in is None


@pytest.fixture
def without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command limits in its process ends with the test."""
    for variable in LIMITS:
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


SHELL = {"columns": ["x"], "ops": [{"op": "Lambda", "function": "os:system"}]}
OWN = {"columns": ["x"], "ops": [{"op": "mine:Twice"}]}
ATTACKS: dict[str, tuple[dict[str, Any], str]] = {
    "a function": ({"features": [SHELL]}, "'os:system' may not be used"),
    "an operator": ({"features": [OWN]}, "'mine:Twice' may not be used"),
    "a command": (
        {"cluster": {"kind": "slurm", "slurm": {"cores": 1, "memory": "1GB", "setup": ["id"]}}},
        "a job may not contain commands",
    ),
    "a class": ({"cluster": {"cluster_class": "mine.Cluster"}}, "mine.Cluster may not be used"),
    "another scheduler": (
        {"cluster": {"kind": "address", "address": "tls://evil:8786"}},
        "tls://evil:8786 may not be used",
    ),
    "an open port": ({"cluster": {"kind": "cpu", "unencrypted": True}}, "a job may not set cluster.unencrypted"),
    "another output": ({"output": {"path": "/other/out"}}, "the job of this night writes to another output"),
    "another folder": ({"source": {"path": "in"}}, "the job of this night has the relative path in"),
}


@pytest.mark.usefixtures("without_limits")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_question_runs_nobody_s_code(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, message = ATTACKS[attack]
    launched: list[Any] = []
    monkeypatch.setattr("flows.commands.launch.launch", lambda data, *_: launched.append(data))
    staging = Staging(tmp_path / "out")
    honest = question_of(staging)
    with pytest.raises(JobError, match=message) as refused:
        publish.finish(staging, replace(honest, parameters={**honest.parameters, **changes}))
    assert launched == []
    assert "start the job again as it was started" in refused.value.do
    publish.finish(staging, honest)
    assert launched == [honest.parameters | {"run": {}}]


@pytest.mark.usefixtures("without_limits")
def test_relative_paths_begin_where_the_job_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr("flows.commands.launch.launch", lambda data, *_: launched.append(data))
    monkeypatch.chdir(tmp_path)
    staging = Staging(tmp_path / "out")
    job = {"source": {"path": "in"}, "features": [{"columns": ["x"]}], "output": {"path": "out"}}
    publish.finish(staging, question_of(staging, folder=str(tmp_path), parameters=job, date="2026-11-28"))
    assert launched == [job | {"run": {"date": "2026-11-28"}}]


def forged(out: Path) -> list[Event]:
    """Events that somebody would like another user to send."""
    honest = make_output_event("refused", out, ("a",), {"text": "", "run": ""})
    state = Event(
        event="prefect.flow-run.Completed",
        resource=Resource({"prefect.resource.id": "prefect.flow-run.1b4e28ba-2fa1-11d2-883f-0016d3cca427"}),
    )
    of_deployment = RelatedResource({"prefect.resource.id": "prefect.deployment.1", "prefect.resource.role": "x"})
    return [
        state,
        honest.model_copy(update={"event": "rowmill.data.arrived"}),
        honest.model_copy(update={"event": "rowmill.output.arrived"}),
        honest.model_copy(update={"related": [of_deployment]}),
        honest.model_copy(update={"payload": {"output": "/other/out"}}),
        make_output_event("published", out.parent / "other", ("a",), {}),
    ]


def test_an_outbox_has_events_of_its_output_only(tmp_path: Path) -> None:
    out = tmp_path / "out"
    honest = [
        make_output_event("refused", out, ("a",), {"text": "", "run": "1b4e28ba-2fa1-11d2-883f-0016d3cca427"}),
        make_output_event("restored", out / "v0001", ("b",), {"text": "", "path": str(out / "v0001")}),
    ]
    for event in [*forged(out), *honest]:
        put_in(out, event)
    with box_of(out).open() as file:
        assert len(json.load(file)) == len(forged(out)) + 2
    assert [one.events[0].id for one in pending(out)] == [event.id for event in honest]


def test_an_outbox_that_is_nonsense_sends_nothing(tmp_path: Path) -> None:
    box = box_of(tmp_path / "out")
    box.parent.mkdir()
    for content in ("[5]", '[{"event": 5}]', "{}", "[" * 10_000, '"'):
        box.write_text(content)
        assert list(pending(tmp_path / "out")) == []


def test_without_a_server_no_event_of_the_versions_that_wait_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, looked = list[Path](), list[Path]()
    read = unsent.read_publication

    def looked_at(folder: Path) -> Publication | None:
        looked.append(folder)
        return read(folder)

    monkeypatch.setattr(unsent, "read_publication", looked_at)
    monkeypatch.setattr(events, "make_published_events", lambda folder, _: made.append(folder))
    out = tmp_path / "out"
    facts = SplitFacts("", rows=3, nbytes=1, files=1, manifest="aa")
    note = Publication("a", "preprocess", "", "", [facts], None, None, None, None, [])
    for name in ("v0001", "v0002", "v0003"):
        (out / name).mkdir(parents=True)
        (out / name / "_manifest.json").write_text("{}")
        write_note(out / name / "_published.json", dump_document(note))
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        assert deliver([out]) == []
    assert f"no Prefect server takes the events of {out}" in caplog.text
    assert looked == [out / "v0001"]
    assert made == []
