"""The watch of a folder: stray files are named and left alone, a path that is not there is no green run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rowmill.cli import app
from typer.testing import CliRunner

from tests.infra.elsewhere import until
from tests.object_store import ObjectStore

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    return tmp_path


def watched(**parameters: Any) -> Any:
    """The final state of a look."""
    from flows.watch_source import watch_source

    return watch_source("in", settle=0, return_state=True, **parameters)


def events_of(api: Any, folder: Path) -> list[list[str]]:
    """The files of each event of a folder, from the first to the last."""
    from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter

    name = EventNameFilter(name=["rowmill.data.arrived"])
    of_it = EventResourceFilter(id=[f"rowmill.source.{folder}"])
    found = api.read_events(EventFilter(event=name, resource=of_it), limit=50).events
    return [sorted(Path(path).name for path in e.payload["paths"]) for e in sorted(found, key=lambda e: e.occurred)]


@pytest.mark.promise(
    "Data are the files with a suffix that rowmill reads, those of one `format`, or those that match a `pattern`"
)
@pytest.mark.promise("rowmill names other files in the log, once, and leaves them alone")
def test_a_stray_file_is_named_and_the_good_ones_are_announced(
    folder: Path, api: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.csv", "b.csv", "notes.txt"):
        (folder / "in" / name).write_text("x\n1\n")
    with caplog.at_level(logging.INFO):
        assert watched().is_completed()
        assert watched().is_completed()
    assert caplog.text.count("not announced: " + str(folder / "in/notes.txt")) == 1
    assert "3 file(s) found: 1 not data, 2 new and complete" in caplog.text
    assert until(lambda: events_of(api, folder / "in"), "the event") == [["a.csv", "b.csv"]]

    assert watched(pattern="*.txt").is_completed()  # it was never announced
    until(lambda: events_of(api, folder / "in") == [["a.csv", "b.csv"], ["notes.txt"]], "the event of the stray")


@pytest.mark.promise("`rowmill trigger PATH..` announces them again")
def test_files_are_announced_again_by_a_command(folder: Path, api: Any) -> None:
    for name in ("a.csv", "b.csv", "notes.txt"):
        (folder / "in" / name).write_text("x\n1\n")
    assert watched().is_completed()
    until(lambda: events_of(api, folder / "in"), "the event")

    def announced(*paths: str) -> Result:
        return CliRunner().invoke(app, ["trigger", *paths])

    done = announced("in/a.csv", "in/b.csv")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "announced 1 event(s) rowmill.data.arrived")
    assert announced("in").exit_code == 0
    until(lambda: events_of(api, folder / "in") == [["a.csv", "b.csv"]] * 3, "the events")
    assert announced("in/a.csv", "in", "in/a.csv").exit_code == 0  # each file once
    until(lambda: events_of(api, folder / "in") == [["a.csv", "b.csv"]] * 4, "the events")
    assert "correct the path" in announced("in/c.csv").stderr
    refused = announced("in/notes.txt")
    assert refused.exit_code == 1
    assert "no data is there to announce" in refused.stderr


@pytest.mark.promise(
    "If the folder is not there (unless `create: true`), the look is a Failed run, and later looks that fail in the "
    "same way are Cancelled runs"
)
def test_a_path_that_is_not_there_fails_once_and_is_never_green(folder: Path) -> None:
    (folder / "in").rmdir()
    first, second = watched(), watched()
    assert first.is_failed()
    assert f"the watched folder is not there\n  where: {folder / 'in'}" in first.message
    assert (second.is_cancelled(), second.name) == (True, "StillFailing")
    assert "the watched folder is not there" in second.message

    (folder / "in").mkdir()
    assert watched().is_completed()
    (folder / "in").rmdir()
    assert watched().is_failed()
    assert watched(create=True).is_completed()
    assert (folder / "in").is_dir()


def test_an_empty_folder_is_no_failure(folder: Path) -> None:
    assert watched().is_completed()


@pytest.mark.system
def test_a_prefix_is_watched_by_its_versions(
    folder: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import watch_source

    sent: list[list[str]] = []

    async def send(arrivals: Any, files: Any) -> None:
        sent.extend(arrival.paths for arrival in arrivals)

    monkeypatch.setattr(watch_source, "_send_events", send)
    monkeypatch.setenv("ROWMILL_STORAGE_SHOP", json.dumps(object_store.options))
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", f"s3://shop/incoming:{folder}")
    url = "s3://shop/incoming/logs"

    def look() -> Any:
        return watch_source.watch_source(url, settle=0, storage_options="shop", return_state=True)

    assert look().is_completed()
    object_store.put("incoming/logs/day=1/a.csv", b"x\n1\n")
    object_store.put("incoming/logs/day=2/b.csv", b"x\n1\n")
    assert look().is_completed()
    assert look().is_completed()
    object_store.put("incoming/logs/day=2/b.csv", b"x\n2\n")  # in the same second, of the same size
    assert look().is_completed()
    assert sent == [[f"{url}/day=1/a.csv"], [f"{url}/day=2/b.csv"], [f"{url}/day=2/b.csv"]]
    assert [path.name for path in (folder / ".rowmill").iterdir()][0].startswith("seen-")
    refused = watch_source.watch_source("s3://shop/else", storage_options="shop", return_state=True)
    assert "outside the allowed roots" in refused.message
