"""New complete files: growing ones wait, told ones stay so, a marker completes a folder; an event is the same twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from tasks.core.plan import File
from tasks.errors import DataError, JobError
from tasks.sources.arrivals import (
    Sight,
    data_files,
    group_files,
    is_announced,
    load_seen,
    load_strays,
    look,
    save_seen,
    select_marked_files,
)
from tasks.storage.files import expand
from tests.object_store import ObjectStore

DAY = 86400.0


def told(files: list[File], seen: dict[str, Sight], now: float) -> tuple[list[str], dict[str, Sight]]:
    new, seen = look(files, seen, now, settle=30)
    return [file.path for file in new], seen


@pytest.mark.promise("a file is complete when it has not changed for 30 s")
def test_a_file_that_grows_is_told_once_it_has_been_still() -> None:
    looks = [(0, 10, 0), (60, 20, 60), (80, 20, 60), (91, 20, 60), (120, 20, 60)]  # now, size, time of change
    found, seen = [], {}
    for now, size, mtime in looks:
        names, seen = told([File("in/a", size, mtime)], seen, now)
        found.append(names)
    assert found == [[], [], [], ["in/a"], []]


@pytest.mark.promise(
    "Each file is announced once. The list is kept in `.rowmill/` of the folder in which runs start. A rewritten file "
    "is announced again"
)
def test_a_file_that_is_written_again_is_new_again() -> None:
    seen = {"in/a": Sight(10, 1, 0, 0, announced=True)}
    assert told([File("in/a", 10, 1)], seen, 100)[0] == []
    names, seen = told([File("in/a", 10, 2)], seen, 100)
    assert names == []
    assert told([File("in/a", 10, 2)], seen, 130)[0] == ["in/a"]


def test_files_that_were_away_for_a_day_are_not_new_and_after_a_month_forgotten() -> None:
    file, seen = File("in/a", 10, 1), {"in/a": Sight(10, 1, 0, 0, announced=True)}
    away = told([], seen, DAY)[1]
    assert told([file], away, 2 * DAY)[0] == []
    assert told([], seen, 31 * DAY)[1] == {}


@pytest.mark.promise("or when its folder has a marker", "flows/OPERATIONS.md#new-data")
def test_a_marker_completes_its_folder_and_those_in_it(tmp_path: Path) -> None:
    for name in ("day=1/a", "day=1/h=1/b", "day=2/c", "day=1/_SUCCESS"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    root = str(tmp_path)
    files = select_marked_files(expand(root), root, "_SUCCESS", {})
    assert [file.path.removeprefix(root) for file in files] == ["/day=1/a", "/day=1/h=1/b"]


def test_a_marker_above_the_watched_folder_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a").write_text("x")
    root = str(tmp_path / "in")
    assert select_marked_files(expand(root), root, "_SUCCESS", {}) == []
    (tmp_path / "in/_SUCCESS").write_text("")
    assert [file.path for file in select_marked_files(expand(root), root, "_SUCCESS", {})] == [f"{root}/a"]


def test_a_prefix_of_an_object_store() -> None:
    store = fsspec.filesystem("memory")
    store.pipe({"/arrivals/day=1/a": b"x", "/arrivals/day=1/_SUCCESS": b"", "/arrivals/day=2/b": b"xy"})
    files = expand("memory://arrivals")
    complete = select_marked_files(files, "memory:///arrivals", "_SUCCESS", {})
    assert [file.path for file in complete] == ["memory:///arrivals/day=1/a"]
    assert [(a.folder, a.bytes) for a in group_files(files, "memory:///arrivals")] == [
        ("memory:///arrivals/day=1", 1),
        ("memory:///arrivals/day=2", 2),
    ]


def test_many_files_are_told_in_several_events() -> None:
    files = [File(f"in/{number}", 1, 0) for number in range(4500)]
    assert [len(arrival.paths) for arrival in group_files(files, "in")] == [2000, 2000, 500]


@pytest.mark.promise(
    "Each file is announced once. The list is kept in `.rowmill/` of the folder in which runs start. A rewritten file "
    "is announced again"
)
def test_what_was_seen_is_kept(tmp_path: Path) -> None:
    seen = {"in/a": Sight(10, 1, 2.5, 3.5, announced=True), "in/b": Sight(0, 0, 0, 0)}
    note = tmp_path / "notes" / "seen.json"
    assert load_seen(note) == {}
    save_seen(note, seen)
    assert load_seen(note) == seen
    assert [path.name for path in note.parent.iterdir()] == ["seen.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2, "files": {}}', '{"format": 1, "files": {"a": [1]}}'])
def test_a_damaged_or_newer_note_is_told_not_forgotten(tmp_path: Path, text: str) -> None:
    (tmp_path / "seen.json").write_text(text)
    with pytest.raises(DataError, match="what the watch has seen cannot be read"):
        load_seen(tmp_path / "seen.json")
    assert (tmp_path / "seen.json").read_text() == text


def test_the_event_of_the_same_files_is_the_same_event() -> None:
    from flows.watch_source import event_of

    def event(mtime: int) -> object:
        files = [File("in/day=1/a", 10, mtime), File("in/day=1/b", 5, 1)]
        (arrival,) = group_files(files, "in")
        return event_of(arrival, {file.path: file for file in files})

    first, again, changed = event(1), event(1), event(2)
    assert first.id == again.id != changed.id  # type: ignore[attr-defined]
    assert first.payload == {"folder": "in/day=1", "paths": ["in/day=1/a", "in/day=1/b"], "files": 2, "bytes": 15}  # type: ignore[attr-defined]
    assert first.resource.id == "rowmill.source.in/day=1"  # type: ignore[attr-defined]


@pytest.mark.promise("Files of several formats are announced separately")
def test_strays_are_no_data_and_formats_arrive_apart() -> None:
    names = ["in/a.csv", "in/a.csv.gz", "in/b.PARQUET", "in/notes.txt", "in/day=1/README", "in/day=1/c.csv"]
    files = [File(name, 1, 0) for name in names]
    data, strays = data_files(files, "in")
    assert [file.path for file in strays] == ["in/notes.txt", "in/day=1/README"]
    assert [arrival.paths for arrival in group_files(data, "in")] == [
        ["in/a.csv", "in/a.csv.gz"], ["in/b.PARQUET"], ["in/day=1/c.csv"],
    ]  # fmt: skip
    of_a_day = data_files(files, "in", ["day=*/*.csv", "notes.*"])[0]
    assert [file.path for file in of_a_day] == ["in/notes.txt", "in/day=1/c.csv"]
    with pytest.raises(JobError, match="did you mean 'parquet'"):
        data_files(files, "in", format="parqet")


def test_strays_are_noted(tmp_path: Path) -> None:
    note = tmp_path / "seen.json"
    assert load_strays(note) == set()
    save_seen(note, {}, ["in/notes.txt"])
    assert (load_strays(note), load_seen(note)) == ({"in/notes.txt"}, {})
    save_seen(note, {})
    assert load_strays(note) == set()


def test_objects_are_told_apart_by_their_version() -> None:
    first = File("s3://shop/in/a.csv", 10, 1, version="x")
    _, seen = look([first], {}, now=0, settle=0)
    assert is_announced(first, seen)
    same = replace(first, mtime=2)  # the same bytes, copied again
    assert look([same], seen, now=1, settle=0)[0] == []
    other = replace(first, version="y")  # in the same second, of the same size
    assert look([other], seen, now=1, settle=0)[0] == [other]
    earlier = {first.path: Sight(10, 1, 0, 0, announced=True)}  # noted before versions were
    new, seen = look([first], earlier, now=1, settle=0)
    assert (new, seen[first.path].version) == ([], "x")


@pytest.mark.system
def test_many_objects_are_listed_in_pages_and_each_folder_is_asked_once(object_store: ObjectStore) -> None:
    for number in range(3_000):
        object_store.put(f"watched/day={number % 30}/{number:05}.csv", b"x")
    for day in range(20):
        object_store.put(f"watched/day={day}/_SUCCESS", b"")
    url = "s3://shop/watched"
    with object_store.proxy.counting() as traffic:
        files = expand(url, object_store.options)
    assert (len(files), traffic.count("list")) == (3_000, 4)
    with object_store.proxy.counting() as traffic:
        marked = select_marked_files(files, url, "_SUCCESS", object_store.options)
    assert len(marked) == 2_000
    assert traffic.count("head") == 31  # 30 folders, and the one that is watched
