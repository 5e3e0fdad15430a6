"""What killed processes leave in and beside outputs, and notes that are not what they should be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flows.commands.discard import restore_version
from flows.published.unsent import unsent_notes
from tasks.core.dtypes import parse_dtype
from tasks.errors import DataError, JobError
from tasks.job import base_version
from tasks.job.learned_files import check_new
from tasks.job.publication import read_publication
from tasks.storage.atomic import partial_file, remove_partials, write_note, write_text
from tasks.storage.discarded import mark, unmark
from tasks.storage.staging import Staging
from tests.tasks.job.test_learned_files import KNOWN, NIGHTS


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    note = tmp_path / "_discarded.json"
    for name in ("_discarded.json.0123abcd.tmp", "_discarded.json.0123abce.tmp"):
        (tmp_path / name).write_text("{")
    others = ["_discarded.json.mine.tmp", "_other.json.0123abcd.tmp", "_discarded.json.bak"]
    for name in others:
        (tmp_path / name).write_text("")
    write_note(note, {"format": 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["_discarded.json", *others])


def test_what_a_living_writer_writes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def fsync(_: int) -> None:
        remove_partials(tmp_path / "note")
        seen.extend(path.name.partition(".")[0] for path in tmp_path.iterdir())

    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "note", "whole")
    assert seen == ["note"]
    assert (tmp_path / "note").read_text() == "whole"


def test_a_link_among_temporary_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "note.0123abcd.tmp").symlink_to("mine")
    remove_partials(tmp_path / "note")
    assert (tmp_path / "note.0123abcd.tmp").is_symlink()
    with partial_file(tmp_path / "note") as partial:
        partial.write_text("x")
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_night_that_was_just_learned_is_not_to_be_counted_twice() -> None:
    files = [("/in/a", 10, "aa")]  # of the first night, which is the last one of NIGHTS[:1]
    with pytest.raises(DataError) as refused:
        check_new(files, KNOWN, NIGHTS[:1])
    assert "nothing is left to do" in refused.value.do
    assert "again" not in refused.value.do
    with pytest.raises(DataError) as refused:
        check_new([*files, ("/in/new", 1, "new")], KNOWN, NIGHTS[:1])
    assert "refit.again: true" in refused.value.do


def versions(out: Path, *names: str) -> list[Path]:
    for name in names:
        (out / name).mkdir(parents=True)
        (out / name / "workflow.json").write_text("{}")
    (out / "_latest").write_text(f"{names[-1]}\n")
    return [out / name for name in names]


def test_an_undo_that_was_cut_off_is_finished_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = versions(tmp_path / "out", "v0001", "v0002")

    class Choice:
        class version:
            name = "v0002"
            path = second

    monkeypatch.setattr(base_version, "find_newest_good", lambda *_, **__: Choice)
    mark(second)
    (tmp_path / "out" / "_latest").write_text("v0001\n")
    unmark(second)  # and here it was killed
    assert restore_version(second) == [f"{second} is back already", "_latest is v0002 now"]
    assert (tmp_path / "out" / "_latest").read_text() == "v0002\n"
    with pytest.raises(JobError, match="this is not a discarded version"):
        restore_version(second)
    with pytest.raises(JobError, match="this is not a discarded version"):
        restore_version(first)


def test_latest_as_a_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "out" / "_latest").mkdir(parents=True)
    with pytest.raises(JobError, match="_latest of the output is a folder"):
        Staging(tmp_path / "out").check("version")
    with pytest.raises(JobError, match="the output cannot be written"):
        write_text(tmp_path / "out" / "_latest", "v0001\n")


def test_a_publication_without_splits_is_damaged(tmp_path: Path) -> None:
    [version] = versions(tmp_path / "out", "v0001")
    content = {"id": "a", "flow": "preprocess", "run": "", "created": "", "splits": [], "date": None, "gate": None,
               "base": None, "ids_added": None, "upstream": []}  # fmt: skip
    (version / "_published.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"_published\.json is damaged"):
        read_publication(version)
    assert list(unsent_notes(tmp_path / "out")) == []


@pytest.mark.parametrize("content", ["[5]", "5", '"x"', "null", "[[5]]", "{", "", "[" * 5000])
def test_notes_that_are_no_objects_are_no_notes(content: str, tmp_path: Path) -> None:
    staging = Staging(tmp_path / "out")
    staging.beside.mkdir()
    for path in (staging.swap, staging.beside / "asks.json", staging.lock):
        path.write_text(content)
    os.utime(staging.lock, (0, 0))
    assert staging.asks_in is None
    assert not staging.is_owned_by("a")
    assert not staging.in_use()
    with staging.hold_lock():
        pass


@pytest.mark.parametrize("kind", ["list<{}>", "struct<a: {}>", "map<string, {}>"])
def test_types_that_are_nested_too_deep_are_refused(kind: str) -> None:
    def nested(depth: int) -> str:
        text = "int64"
        for _ in range(depth):
            text = kind.format(text)
        return text

    parse_dtype(nested(100))
    for depth in (101, 500, 5000):
        with pytest.raises(JobError, match="more than 100 types are nested"):
            parse_dtype(nested(depth))
