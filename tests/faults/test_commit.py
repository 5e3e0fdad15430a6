"""Staging, lock and swap: what is refused, what a cut-off swap becomes, who may work on a target."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import GiveUpError, JobError
from tasks.storage import own_files
from tasks.storage import staging as storage_staging
from tasks.storage.own_files import MANIFEST, own_output
from tasks.storage.process_identity import namespace
from tasks.storage.staging import STALE_SECONDS, Staging, until_of
from tests.conftest import python_path
from tests.faults.rounds import Rounds
from tests.faults.seeds import nightly


def fill(folder: Path, text: str) -> None:
    """An output of one part, as it stands under `new/` before it is published."""
    folder.mkdir(parents=True)
    (folder / "part-00000.parquet").write_text(text)
    (folder / MANIFEST).write_text(json.dumps({"parts": [{"path": "part-00000.parquet"}]}))


def publish(
    target: Path, text: str, on_existing: str = "fail", scratch: Path | None = None, keep_replaced: float = 0
) -> Path:
    staging = Staging(target, scratch, keep_replaced)
    with staging.hold_lock():
        staging.check(on_existing)
        staging.reset()
        fill(staging.new, text)
        return staging.publish(on_existing)


def owner_of(pid: int, **more: str) -> dict[str, Any]:
    """What a lock says of a process of this name space."""
    boot, pidns = namespace()
    known = {"id": "x", "host": os.uname().nodename, "boot": boot, "pidns": pidns, "pid": pid, "start": "1"}
    return {**known, "since": "then", "target": "", **more}


def content(folder: Path) -> str:
    return (folder / "part-00000.parquet").read_text()


def test_fail_replace_and_version_leave_nothing_beside_the_target(tmp_path: Path) -> None:
    out, many = tmp_path / "out", tmp_path / "many"
    assert publish(out, "one") == out
    with pytest.raises(JobError, match="the output already exists"):
        publish(out, "two")
    assert content(out) == "one"
    publish(out, "three", "replace")
    assert content(out) == "three"
    assert [publish(many, text, "version").name for text in "ab"] == ["v0001", "v0002"]
    assert (many / "_latest").read_text() == "v0002\n"
    assert own_output(many)
    with pytest.raises(JobError, match="not a folder of versions"):
        publish(out, "four", "version")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["many", "out"]


@pytest.mark.promise("rowmill never replaces a folder with files that it did not write, however deep they lie")
@pytest.mark.promise("and never removes such a file")
@pytest.mark.promise("`the output holds files that rowmill did not write`")
def test_foreign_files_are_never_replaced(tmp_path: Path) -> None:
    publish(tmp_path / "out", "one")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(JobError, match="rowmill did not write"):
        publish(tmp_path / "out", "two", "replace")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def cut_off(out: Path) -> Staging:
    """A swap that was cut off between its two renames, on a file system that cannot exchange folders."""
    staging = Staging(out)
    fill(staging.target, "old")
    fill(staging.new, "new")
    staging.swap.write_text(json.dumps({"new": staging.new.stat().st_ino}))
    staging.target.rename(staging.old.with_name(f"{staging.old.name}-{int(time.time()) + 600}"))
    return staging


@pytest.mark.parametrize(("there", "left"), [(True, "new"), (False, "old")])
def test_a_swap_cut_off_between_its_renames_goes_forward_or_back(tmp_path: Path, there: bool, left: str) -> None:
    staging = cut_off(tmp_path / "out")
    if not there:
        shutil.rmtree(staging.new)
    assert staging.is_cut_off
    with Staging(tmp_path / "out").hold_lock():
        pass
    assert content(tmp_path / "out") == left
    assert beside(tmp_path) == ["old", "out"] if there else ["out"]
    assert not Staging(tmp_path / "out").is_cut_off


def test_links_slashes_and_relative_paths_name_the_same_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    same = [Staging(name).folder for name in ("real", "real/", "./real", "link", f"file://{tmp_path}/real")]
    assert same == [tmp_path / ".real.rowmill"] * 5
    publish(tmp_path / "link", "one")
    assert content(tmp_path / "real") == "one"
    assert (tmp_path / "link").is_symlink()


def test_scratch_on_another_file_system(tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    scratch = shared / f"rowmill-test-{os.getpid()}"
    try:
        publish(tmp_path / "out", "one", "fail", scratch)
        publish(tmp_path / "out", "two", "replace", scratch)
        assert list(scratch.iterdir()) == []
    finally:
        scratch.rmdir()
    assert content(tmp_path / "out") == "two"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_a_second_run_fails_or_waits_and_a_dead_owner_is_followed_at_once(tmp_path: Path) -> None:
    out, order = tmp_path / "out", []

    def second() -> None:
        with Staging(out).hold_lock(wait=True):
            order.append("second")

    with Staging(out).hold_lock():
        with pytest.raises(JobError, match="another run is working on this output"), Staging(out).hold_lock():
            pass
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.5)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]

    staging = Staging(out)
    staging.open()
    staging.lock.write_text(json.dumps(owner_of(2**22 + 1)))
    with staging.hold_lock() as owner:
        assert staging.is_owned_by(owner)
        assert not staging.is_owned_by("x")
    assert list(tmp_path.iterdir()) == []


# Replacing


def beside(folder: Path) -> list[str]:
    """What lies beside an output, without the times in names."""
    return sorted("old" if until_of(p) else p.name for p in folder.iterdir())


@pytest.mark.promise("a reader that has opened the old folder can continue to read it for `run.keep_replaced`")
@pytest.mark.promise("After that the next run to that output or `rowmill clean` removes it")
def test_the_old_output_stays_for_its_readers_and_goes_with_a_later_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish(out, "one")
    before = time.time()
    publish(out, "two", "replace", keep_replaced=1)
    after = time.time()
    (old,) = Staging(out).olds
    assert (content(out), content(old)) == ("two", "one")
    assert before <= (until_of(old) or 0) <= after + 2  # whole seconds
    publish(out, "three", "replace", keep_replaced=600)
    assert [content(path) for path in Staging(out).olds][-1] == "two"
    time.sleep(1.1)
    with Staging(out).hold_lock():
        pass
    assert [content(path) for path in Staging(out).olds] == ["two"]
    publish(out, "four", "replace", keep_replaced=0)
    assert beside(tmp_path) == ["old", "out"]


READER = """
import os, sys
seen, target = set(), sys.argv[1]
while not os.path.exists(sys.argv[2]):
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    texts = set()
    for name in os.listdir(folder):
        if name.startswith("part-"):
            file = os.open(name, os.O_RDONLY, dir_fd=folder)
            texts.add(os.read(file, 100))
            os.close(file)
    assert len(texts) == 1, texts
    seen |= texts
    os.close(folder)
print(len(seen))
"""


@pytest.mark.system
@pytest.mark.promise("a reader finds an output at any moment")
@pytest.mark.promise("A reader finds the old or the new output, never a mix")
def test_a_reader_finds_an_output_at_any_moment_and_never_two_mixed(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def replace(text: str) -> None:
        staging = Staging(out, None, 60)
        with staging.hold_lock():
            staging.new.mkdir(parents=True)
            parts = [f"part-{i:05d}.parquet" for i in range(5)]
            for part in parts:
                (staging.new / part).write_text(text)
            (staging.new / MANIFEST).write_text(json.dumps({"parts": [{"path": part} for part in parts]}))
            staging.publish("replace")

    replace("0")
    command = [sys.executable, "-c", READER, str(out), str(tmp_path / "stop")]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for number in range(1, 50):
        replace(str(number))
    (tmp_path / "stop").touch()
    for reader in readers:
        shown, _ = reader.communicate(timeout=240)
        assert reader.returncode == 0
        assert int(shown) > 1


@pytest.mark.promise("Where a file system cannot do that (NFS), two renames do it, and the log says so")
def test_where_folders_cannot_be_exchanged_two_renames_do_it_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(one: Path, other: Path) -> None:
        raise OSError(errno.EINVAL, "Invalid argument", str(other))

    publish(tmp_path / "out", "one")
    monkeypatch.setattr(storage_staging, "exchange", refused)
    with caplog.at_level(logging.WARNING, "rowmill"):
        publish(tmp_path / "out", "two", "replace", keep_replaced=60)
    assert "cannot exchange folders (Invalid argument): two renames" in caplog.text
    assert (content(tmp_path / "out"), content(Staging(tmp_path / "out").olds[0])) == ("two", "one")
    assert beside(tmp_path) == ["old", "out"]


def replace_output(out: str, scratch: str | None, can_exchange: bool) -> None:
    """The commit of a round, which is killed in it."""
    if not can_exchange:
        storage_staging.exchange = lambda one, other: (_ for _ in ()).throw(OSError(errno.EINVAL, "no"))
    staging = Staging(out, scratch, 60)
    with staging.hold_lock():
        fill(staging.new, "new")
        (staging.folder / "plan.json").write_text("{}")
        staging.publish("replace")


@pytest.mark.xdist_group("rounds")
@pytest.mark.promise("an output is there whole or not at all")
@pytest.mark.parametrize(
    ("scratch", "can_exchange"),
    [
        ("", True),
        ("elsewhere", False),
        *nightly([("", False), ("beside", True), ("beside", False), ("elsewhere", True)]),
    ],
)
def test_a_kill_before_any_file_operation_of_the_commit_leaves_the_old_or_the_new_output(
    scratch: str, can_exchange: bool, tmp_path: Path, memory: Path, rounds: Rounds
) -> None:
    place = (tmp_path if scratch == "elsewhere" else memory) / "scratch"
    step, seen = 1, set()
    while True:
        out = memory / str(step) / "out"
        publish(out, "old")
        job = {"out": str(out), "scratch": str(place) if scratch else None, "can_exchange": can_exchange}
        ended = rounds.run(f"{__name__}:replace_output", job, kill_at=step)
        assert ended.killed or ended.status == 0, ended.error
        found = content(out) if out.exists() else "none"
        assert found in (("old", "new") if can_exchange else ("old", "new", "none"))
        seen.add(found)
        with Staging(out, place if scratch else None).hold_lock():
            pass
        assert own_output(out)
        assert content(out) == ("old" if found == "old" else "new")
        publish(out, "next", "replace", place if scratch else None, keep_replaced=60)
        assert content(out) == "next"
        assert set(beside(out.parent)) == {"old", "out"}
        assert all(own_output(path) for path in Staging(out).olds)
        if not ended.killed:
            break
        step += 1
    assert seen == ({"old", "new"} if can_exchange else {"old", "new", "none"})
    assert step > 30
    if scratch:
        assert list(place.iterdir()) == []
        place.rmdir()


# Scratch folders


@pytest.mark.promise("A lock next to the output keeps two runs out of it, whatever their scratch folders")
def test_runs_with_different_scratch_folders_keep_out_of_each_others_output(tmp_path: Path) -> None:
    one = Staging(tmp_path / "out", tmp_path / "scratch-1")
    for scratch in (tmp_path / "scratch-2", tmp_path / "scratch-1", None):
        other = Staging(tmp_path / "out", scratch)
        with one.hold_lock(), pytest.raises(JobError, match="another run is working on this output"), other.hold_lock():
            pass
    assert list(tmp_path.glob("*/*")) == []  # not even an empty folder in them


def test_outputs_of_one_name_share_a_scratch_folder(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = Staging(tmp_path / "a" / "out", scratch), Staging(tmp_path / "b" / "out", scratch)
    assert one.folder != two.folder
    assert {p.parent for p in (one.folder, two.folder)} == {scratch}
    with one.hold_lock(), two.hold_lock():
        for staging, text in ((one, "one"), (two, "two")):
            fill(staging.new, text)
            staging.publish("fail")
    assert (content(tmp_path / "a" / "out"), content(tmp_path / "b" / "out")) == ("one", "two")
    assert list(scratch.iterdir()) == []


def test_a_url_is_no_scratch_folder(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="the scratch folder is not a local folder"):
        Staging(tmp_path / "out", "s3://bucket/scratch")


# Who lives

LOCKS = "import sys; from tasks.storage.staging import Staging\nwith Staging(sys.argv[1]).hold_lock(): print('mine')"


def elsewhere(target: Path) -> subprocess.CompletedProcess[str]:
    """A try for the lock in a name space of processes of its own, on a host of the same name."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", LOCKS, str(target)]
    if os.getuid():
        command.insert(1, "--map-root-user")
    environment = os.environ | {"PYTHONPATH": python_path()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.system
@pytest.mark.promise("and the lock of another host or container after 60 s without a sign of life")
def test_a_living_run_is_not_taken_over_from_another_name_space_of_processes(tmp_path: Path) -> None:
    with Staging(tmp_path / "out").hold_lock():
        found = elsewhere(tmp_path / "out")
        assert "another run is working on this output" in found.stderr
        old = time.time() - STALE_SECONDS - 1
        os.utime(Staging(tmp_path / "out").lock, (old, old))  # silent for a minute
        assert elsewhere(tmp_path / "out").stdout == "mine\n"


def test_only_processes_of_one_name_space_are_told_by_their_number(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "out")
    for owner, waits in (
        (owner_of(2**22 + 1), False),
        (owner_of(os.getpid()), False),  # the number is another process's now
        (owner_of(2**22 + 1, pidns="pid:[1]"), True),
        (owner_of(2**22 + 1, boot="another"), True),
        ({"id": "x", "host": os.uname().nodename, "pid": 2**22 + 1, "start": "1.0", "since": "then"}, True),
    ):
        staging.open()
        staging.lock.write_text(json.dumps(owner))
        assert staging.in_use() is waits
        then = time.time() - STALE_SECONDS - 1
        os.utime(staging.lock, (then, then))
        assert staging.in_use() is False


def test_a_run_that_was_taken_over_gives_no_sign_of_life_for_the_other_and_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_staging, "STALE_SECONDS", 0.6)
    staging = Staging(tmp_path / "out")
    with staging.hold_lock() as owner:
        staging.check_owner(owner)
        staging.lock.unlink()
        staging.lock.write_text(json.dumps(owner_of(1)))
        os.utime(staging.lock, (1, 1))
        time.sleep(0.4)
        assert staging.lock.stat().st_mtime == 1
        with pytest.raises(GiveUpError, match="another run took over"):
            staging.check_owner(owner)
    assert staging.lock.exists()


def test_a_lock_can_be_taken_where_files_have_one_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    staging = Staging(tmp_path / "out")
    with (
        staging.hold_lock(),
        pytest.raises(JobError, match="another run is working"),
        Staging(tmp_path / "out").hold_lock(),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_folders_that_another_run_removes_meanwhile_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, probe, gone = Staging(tmp_path / "out"), storage_staging._probe, []

    def removed_first(folder: Path, name: str) -> None:
        if folder == staging.folder and len(gone) < 3:
            gone.append(name)
            folder.rmdir()
        probe(folder, name)

    monkeypatch.setattr(storage_staging, "_probe", removed_first)
    with staging.hold_lock():
        assert len(gone) == 3
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_replaced_while_it_is_looked_at_is_not_taken_for_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "out", "one")
    known_files, looks = own_files.list_expected_files, []

    def swapped_first(folder: Path) -> object:
        looks.append(folder)
        if len(looks) > 1:
            return known_files(folder)
        publish(tmp_path / "out", "two", "replace")
        return {}  # what a mix of both looks like

    monkeypatch.setattr(own_files, "list_expected_files", swapped_first)
    Staging(tmp_path / "out").check("replace")
    assert content(tmp_path / "out") == "two"
    assert len(looks) >= 2


def test_the_folder_of_a_run_that_was_cut_off_tells_until_it_is_gone(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "out")
    assert not staging.has_remains
    with staging.hold_lock():
        assert staging.has_remains
        assert not staging.resumes
    staging.beside.mkdir()  # all that a kill before the last operation leaves
    assert staging.has_remains
    with staging.hold_lock():
        assert staging.resumes
    staging.beside.mkdir()
    (staging.beside / "outbox.json").write_text("[]")
    assert not staging.has_remains
