"""Files that a run writes next to its output: what is never replaced, appended to or reached by a link."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.job.files_beside import check_files_beside, collector_files
from flows.job.job import make_job
from flows.preview.job_preview import preview
from tasks.core.settings import Run
from tasks.errors import JobError
from tasks.report.html import reports_of
from tasks.storage.sidecars import Sidecar
from tasks.storage.signature import add_signature, is_signed
from tests.stages import run_stages

KEYS = {
    "source.bad_lines": ("source", "bad_lines"),
    "run.metrics": ("run", "metrics"),
    "run.lineage": ("run", "lineage"),
}
EVENT = b'{"eventTime": "2026-11-28", "producer": "pkg:pypi/rowmill@1"}\n'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a source, another output, and what a job must not touch."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("x,y\n1,2\n3,4\n")
    (tmp_path / "side.csv").write_text("x,z\n1,2\n")
    (tmp_path / "notes").write_text("mine\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("notes")
    (tmp_path / "nowhere").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe")
    run_stages(make_job(job(tmp_path, out="other")).request("pandas"))
    return tmp_path


def job(root: Path, out: str = "out", **keys: str) -> dict[str, Any]:
    """A job that joins a side table; `keys` are values of `KEYS`, by the last part of their names."""
    data: dict[str, Any] = {
        "source": {"path": str(root / "in" / "*.csv")},
        "features": [{"columns": ["x"], "ops": [{"op": "JoinExternal", "table": str(root / "side.csv"), "on": "x"}]}],
        "output": {"path": str(root / out), "shuffle": "none", "files": 1},
        "run": {},
    }
    for section, key in KEYS.values():
        if key in keys:
            data[section][key] = keys[key]
    return data


def all_files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


ATTACKS = {
    "folder": "folder is a folder",
    "link": "link is a link",
    "nowhere": "nowhere is a link",
    "pipe": "pipe is a pipe",
    "/dev/null": "/dev/null is a device",
    "notes": "notes exists, and no run has written it",
    "side.csv": "side.csv exists, and no run has written it",
    "in/a.csv": "in/a.csv exists, and no run has written it",
    "in/b.csv": "is inside the source",
    "in": "in is a folder",
    "out": "is inside the output",
    "out/x": "is inside the output",
    ".out.rowmill/plan.json": "is inside the output",
    "other/x": "is inside another output",
    "other/_manifest.json": "other/_manifest.json exists, and no run has written it",
    "notes/x": "notes is not a folder",
}


@pytest.mark.promise("A run never replaces or extends any other file", "infra/README.md#who-may-do-what")
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_job_may_not_name_is_refused_before_anything_is_written(key: str, attack: str, place: Path) -> None:
    before, (_, name) = all_files(place), KEYS[key]
    attacked = make_job(job(place, **{name: str(place / attack)}))
    for look in (lambda: check_files_beside(attacked.request("pandas")), lambda: preview(attacked)):
        with pytest.raises(JobError, match=ATTACKS[attack]) as refused:
            look()
        assert refused.value.where == f"{key} = {place / attack}"
    assert all_files(place) == before
    assert Path("/dev/null").is_char_device()


def test_two_keys_do_not_name_one_file(place: Path) -> None:
    (place / "again").symlink_to(place)
    attacked = make_job(job(place, metrics=str(place / "run"), lineage=str(place / "again" / "run")))
    with pytest.raises(JobError, match=r"run\.metrics and run\.lineage name the same file"):
        check_files_beside(attacked.request("pandas"))


def test_the_output_needs_a_folder_where_a_file_would_be(place: Path) -> None:
    attacked = make_job(job(place, out="night/toy", metrics=str(place / "night")))
    with pytest.raises(JobError, match=r"the file of run\.metrics is inside the output"):
        check_files_beside(attacked.request("pandas"))


BAD_LINE = b'{"file": "a.csv", "line": 3, "why": "1 value", "text": "2"}\n'


@pytest.mark.parametrize(
    ("key", "ours", "theirs"),
    [
        ("bad_lines", BAD_LINE, BAD_LINE + b"my notes\n"),
        ("bad_lines", BAD_LINE, b'{"file": "a.csv", "line": "3", "why": "", "text": ""}\n'),
        ("metrics", add_signature(b"rowmill_run_success 1\n"), b"rowmill_run_success 1\n"),
        ("metrics", add_signature(b"rowmill_run_success 1\n"), add_signature(b"rowmill_run_success 1\n") + b"mine 1\n"),
        ("metrics", add_signature(b"a 1\n"), add_signature(b"a 1\n").replace(b"a 1", b"a 2")),
        ("lineage", EVENT, EVENT + b"my notes\n"),
        ("lineage", EVENT, EVENT.replace(b"rowmill", b"dbt")),
    ],
)
def test_a_text_that_begins_like_ours_is_not_ours(key: str, ours: bytes, theirs: bytes, place: Path) -> None:
    for content in (ours, b""):
        (place / "file").write_bytes(content)
        check_files_beside(make_job(job(place, **{key: str(place / "file")})).request("pandas"))
    (place / "file").write_bytes(theirs)
    with pytest.raises(JobError, match="file exists, and no run has written it"):
        check_files_beside(make_job(job(place, **{key: str(place / "file")})).request("pandas"))


def write_metrics(file: Sidecar) -> None:
    with file.replace() as written:
        written.write(add_signature(b"a 1\n"))


def write_event(file: Sidecar) -> None:
    file.append(EVENT)


WRITERS = pytest.mark.parametrize(("key", "write"), [("metrics", write_metrics), ("lineage", write_event)])


@WRITERS
def test_files_are_written_again_by_the_next_run(key: str, write: Callable[[Sidecar], None], tmp_path: Path) -> None:
    for run in (1, 2):
        file = collector_files(Run(**{key: str(tmp_path / "new" / "folder" / "file")}))[key]
        write(file)
        wanted = {"metrics": add_signature(b"a 1\n"), "lineage": EVENT * run}
        assert all_files(tmp_path) == {"new/folder/file": wanted[key]}


@WRITERS
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_that_is_swapped_in_leads_nowhere(
    kind: str, key: str, write: Callable[[Sidecar], None], tmp_path: Path
) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("theirs\n")
    (tmp_path / "shared").mkdir()
    file = collector_files(Run(**{key: str(tmp_path / "shared" / "file")}))[key]
    file.check()
    assert file.folder == tmp_path / "shared"
    if kind == "file":
        (tmp_path / "shared" / "file").symlink_to(tmp_path / "victim" / "file")
    else:
        (tmp_path / "shared").rmdir()
        (tmp_path / "shared").symlink_to("victim")
    with pytest.raises(JobError, match="file is a link" if kind == "file" else "shared is not a folder"):
        write(file)
    assert all_files(tmp_path / "victim") == {"file": b"theirs\n"}


@WRITERS
def test_a_file_that_is_put_there_during_the_run_stays(
    key: str, write: Callable[[Sidecar], None], tmp_path: Path
) -> None:
    file = collector_files(Run(**{key: str(tmp_path / "file")}))[key]
    file.check()
    (tmp_path / "file").write_text("mine\n")
    with pytest.raises(JobError, match="no run has written it"):
        write(file)
    assert all_files(tmp_path) == {"file": b"mine\n"}


def test_an_event_is_appended_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = collector_files(Run(lineage=str(tmp_path / "file")))["lineage"]
    file.append(EVENT)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Exception, match="no space left"):
        file.append(EVENT)
    assert (tmp_path / "file").read_bytes() == EVENT


def test_a_report_is_made_again_but_not_through_a_link_nor_over_a_text(place: Path) -> None:
    report = place / "other" / "_report.html"
    [made] = reports_of(place / "other", again=True)
    assert made == report
    with report.open("rb") as file:
        assert is_signed(file)
    report.unlink()
    report.symlink_to(place / "notes")
    with pytest.raises(JobError, match=r"_report\.html is a link"):
        reports_of(place / "other", again=True)
    report.unlink()
    report.write_text("<title>out: report of rowmill</title> my notes")
    with pytest.raises(JobError, match="move it away"):
        reports_of(place / "other", again=True)
    assert (place / "notes").read_text() == "mine\n"
