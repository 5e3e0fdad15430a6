"""Old versions and work that was left lying: what goes, and what never does."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from flows.commands.discard import discard_version
from tasks import ops
from tasks.core.settings import Output
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.job.base_version import find_newest_good
from tasks.manifest import Manifest
from tasks.storage import own_files
from tasks.storage.discarded import mark
from tasks.storage.own_files import MANIFEST
from tasks.storage.process_identity import namespace
from tasks.storage.retention import drop_versions, publish, read_removed_versions
from tasks.storage.staging import STALE_SECONDS, Staging
from tasks.workflow import Workflow
from tests.faults.test_commit import content, cut_off


def cleaned(*words: object) -> list[str]:
    result = CliRunner().invoke(app, ["clean", *map(str, words)], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def left(target: Path, days: float = 0.0) -> Path:
    """The staging folder of a run to `target` that was killed some days ago: a plan, a part, and its lock."""
    staging = Staging(target)
    staging.new.mkdir(parents=True)
    (staging.folder / "plan.json").write_text("{}")
    (staging.folder / "exchangetrain.json").write_text("{}")
    (staging.new / "part-00000.parquet").write_bytes(b"x" * 5000)
    write_lock(staging, host=os.uname().nodename, pid=2**22 + 1)
    then = time.time() - days * 86_400
    for path in (*staging.folder.rglob("*"), staging.folder):
        os.utime(path, (then, then))
    return staging.folder


def write_lock(staging: Staging, host: str, pid: int, age: float = 0.0) -> None:
    staging.folder.mkdir(parents=True, exist_ok=True)
    lock, (boot, pidns) = staging.lock, namespace()
    there = {"boot": boot if host == os.uname().nodename else "another", "pidns": pidns}
    lock.write_text(json.dumps({"id": "x", "host": host, "pid": pid, "start": "1", "since": "then", **there}))
    os.utime(lock, (time.time() - age, time.time() - age))


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.promise("Versions that were discarded or lack files do not count. If it is empty, all are kept")
def test_only_the_newest_versions_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    table = pa.table({"x": [1.0, 2.0]})
    fitted = Workflow(["x"] >> ops.Normalize()).fit_transform(table)
    written = [
        Path(fitted.to_parquet(str(out), files=1, on_existing="version", keep_versions=3).path).name for _ in range(5)
    ]
    assert written == ["v0001", "v0002", "v0003", "v0004", "v0005"]
    assert names(out) == ["_latest", "_removed.json", "v0003", "v0004", "v0005"]
    assert [night.version for night in read_removed_versions(out)] == ["v0001", "v0002"]
    assert list(own_files.strangers(out)) == []
    assert names(tmp_path) == ["out"]
    fitted.to_parquet(str(out), files=1, on_existing="version")
    assert len(names(out)) == 6  # nothing said, nothing removed
    with pytest.raises(JobError, match="keep_versions belongs to on_existing: version"):
        fitted.to_parquet(str(tmp_path / "single"), keep_versions=1)


def version(out: Path, number: int) -> Path:
    folder = out / f"v{number:04d}"
    folder.mkdir(parents=True)
    (folder / "part-00000.parquet").touch()
    (folder / MANIFEST).write_text(json.dumps({"parts": [{"path": "part-00000.parquet"}]}))
    return folder


def test_versions_that_were_taken_back_do_not_count_among_those_that_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number in range(1, 7):
        version(out, number)
    for number in (2, 4, 6):
        mark(out / f"v{number:04d}")
    (out / "_latest").write_text("v0005\n")
    staging = Staging(out)
    with staging.hold_lock():
        assert drop_versions(staging, 3) == []
        assert [p.name for p in drop_versions(staging, 2)] == ["v0001", "v0002"]
        assert [p.name for p in drop_versions(staging, 1)] == ["v0003", "v0004"]
    assert [night.version for night in read_removed_versions(out)] == [
        "v0001",
        "v0003",
    ]  # what was taken back is missing


def test_equal_rows_that_are_written_in_one_second_are_versions_and_no_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, fitted = tmp_path / "out", Workflow(["x"]).fit_transform(pa.table({"x": [1.0, 2.0]}))
    monkeypatch.setattr("tasks.stages.without_prefect.time", SimpleNamespace(perf_counter=lambda: 0.0))
    for _ in range(3):
        fitted.to_parquet(str(out), files=1, on_existing="version")
    assert [path.name for path in own_files.versions_of(out)] == ["v0001", "v0002", "v0003"]


@pytest.mark.parametrize("file", ["part-00000.parquet", "_workflow/state.json"])
def test_a_version_that_lacks_files_does_not_count(tmp_path: Path, file: str, caplog: pytest.LogCaptureFixture) -> None:
    out, fitted = tmp_path / "out", Workflow(["x"] >> ops.Normalize()).fit_transform(pa.table({"x": [1.0, 2.0]}))
    for _ in range(3):
        fitted.to_parquet(str(out), files=1, on_existing="version")
    (out / "v0002" / file).unlink()
    with Staging(out).hold_lock():
        assert drop_versions(Staging(out), 2) == []  # v0001 and v0003 are left to go on from
        assert f"v0002 does not count as a version: {file} is missing or cut off" in caplog.text
        assert find_newest_good(out, thorough=False).version.name == "v0003"  # type: ignore[union-attr]
        assert discard_version(out / "v0003")[-1] == "_latest is v0001 now"


def test_nights_that_were_removed_are_missing_once_the_ids_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, table = tmp_path / "out", pa.table({"x": [1.0, 2.0]})
    for _ in range(3):
        Workflow(["x"]).fit_transform(table).to_parquet(str(out), files=1, on_existing="version", keep_versions=1)
    assert len(read_removed_versions(out)) == 2
    publish(written_to(out), Output(path=str(out), on_existing="version"))
    assert len(read_removed_versions(out)) == 2
    publish(written_to(out), Output(path=str(out), on_existing="version"), anew=True)
    assert read_removed_versions(out) == []
    assert "the ids begin anew: 2 night(s) that output.keep_versions has removed are not among them" in caplog.text


def written_to(out: Path) -> Staging:
    """Work in progress that may be published."""
    staging = Staging(out)
    staging.new.mkdir(parents=True)
    (staging.new / MANIFEST).write_text(json.dumps({"parts": []}))
    return staging


def test_what_is_no_version_counts_for_nothing_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for number in (1, 2, 3, 4):
        version(out, number)
    (out / "v0009").mkdir()
    (out / "v12x").mkdir()
    (out / "v0008").write_text("a file")
    (out / "v0007").symlink_to(out / "v0001")
    (out / "_latest").write_text("v0004\n")
    described_by = own_files.find_description

    def closed(folder: Path) -> Path | None:
        if folder.name == "v0002":
            raise PermissionError(13, "Permission denied")
        return described_by(folder)

    monkeypatch.setattr(own_files, "find_description", closed)
    with Staging(out).hold_lock():
        assert [p.name for p in drop_versions(Staging(out), 2)] == ["v0001"]
    assert "v0002 does not count as a version: Permission denied" in caplog.text
    assert [n for n in names(out) if n.startswith("v")] == [
        "v0002", "v0003", "v0004", "v0007", "v0008", "v0009", "v12x",
    ]  # fmt: skip


def test_a_damaged_note_of_removed_nights_is_said_and_costs_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    for number in (1, 2):
        version(out, number)
    (out / "_latest").write_text("v0002\n")
    (out / "_removed.json").write_text("[]")
    with pytest.raises(DataError, match=r"_removed\.json"):
        read_removed_versions(out)
    staging = Staging(out)
    with staging.hold_lock():
        assert [p.name for p in drop_versions(staging, 1)] == ["v0001"]
    assert "_removed.json is written anew" in caplog.text
    assert [night.version for night in read_removed_versions(out)] == ["v0001"]


@pytest.mark.promise("or one with a foreign file in it: put a file into a version to keep it")
def test_the_latest_a_used_and_a_foreign_version_stay_whatever_their_age(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number in range(1, 9):
        version(out, number)
    (out / "_latest").write_text("v0001\n")  # somebody went back to it
    (out / "v0002" / "notes.txt").write_text("mine")
    write_lock(Staging(out / "v0003"), host="elsewhere", pid=1)
    (out / "v0004" / MANIFEST).unlink()
    (tmp_path / "v0005").mkdir()
    (out / "v0005").rename(tmp_path / "v0005" / "moved")
    (out / "v0005").symlink_to(tmp_path / "v0005" / "moved")
    staging = Staging(out)
    with staging.hold_lock():
        assert [p.name for p in drop_versions(staging, 1)] == ["v0006", "v0007"]
    kept = ["v0001", "v0002", "v0003", "v0004", "v0005", "v0008"]
    assert [n for n in names(out) if n.startswith("v")] == kept
    assert (tmp_path / "v0005" / "moved" / MANIFEST).exists()


@pytest.mark.promise("rowmill clean PATH.. [--older-than 7d]")
def test_clean_removes_what_was_left_and_no_output(tmp_path: Path) -> None:
    fitted = Workflow(["x"]).fit_transform(pa.table({"x": [1]}))
    fitted.to_parquet(str(tmp_path / "deep" / "done"), files=1)
    old, young = left(tmp_path / "deep" / "old", days=9), left(tmp_path / "deep" / "young", days=2)
    done = left(tmp_path / "deep" / "done", days=8)
    shown = cleaned(tmp_path, "--dry-run")
    assert [line.split(",")[0] for line in shown] == [
        f"would go {done}", f"would go {old}", f"kept     {young}", "would free 10.3 kB",
    ]  # fmt: skip
    assert old.exists()
    assert cleaned(tmp_path) == [
        f"removed  {done}, 5.2 kB, 8 d old", f"removed  {old}, 5.2 kB, 9 d old",
        f"kept     {young}, 5.2 kB, 2 d old: younger than 7d", "freed    10.3 kB",
    ]  # fmt: skip
    assert names(tmp_path / "deep") == [".young.rowmill", "done"]
    assert Manifest.load(tmp_path / "deep" / "done").rows["out"] == 1
    assert cleaned(tmp_path / "deep" / "young", "--older-than", "1d")[0].startswith("removed")
    assert names(tmp_path / "deep") == ["done"]


@pytest.mark.promise("never what a run works on, nor a folder with a file that rowmill did not write")
def test_clean_leaves_runs_and_foreign_files_alone_and_finishes_a_swap(tmp_path: Path) -> None:
    working = Staging(tmp_path / "working")
    mine = left(tmp_path / "mine")
    (mine / "notes.txt").write_text("mine")
    elsewhere = left(tmp_path / "elsewhere")
    write_lock(Staging(tmp_path / "elsewhere"), host="another-host", pid=1)
    cut_off(tmp_path / "swapped")
    with working.hold_lock():
        (working.folder / "plan.json").touch()
        lines = {line.split(",")[0].split("/")[-1]: line for line in cleaned(tmp_path, "--older-than", "0")}
        assert working.in_use()
    assert "another run is working on this output: process" in lines[".working.rowmill"]
    assert "process 1 on another-host" in lines[".elsewhere.rowmill"]
    assert lines[".mine.rowmill"].endswith("it holds notes.txt, which rowmill did not write")
    assert (mine / "plan.json").exists()
    assert (elsewhere / "plan.json").exists()
    assert content(tmp_path / "swapped") == "new"
    assert names(tmp_path) == [".elsewhere.rowmill", ".mine.rowmill", ".working.rowmill", "swapped"]


def test_ages_and_paths_that_are_none(tmp_path: Path) -> None:
    for words in ((tmp_path, "--older-than", "7 days"), (tmp_path, "--older-than", "7"), (tmp_path / "nowhere",)):
        result = CliRunner().invoke(app, ["clean", *map(str, words)])
        assert result.exit_code == 1
        assert "do: " in result.stderr


@pytest.mark.promise("and the lock of another host or container after 60 s without a sign of life")
def test_the_lock_of_another_host_goes_by_its_age(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "out")
    write_lock(staging, host="another-host", pid=os.getpid(), age=STALE_SECONDS - 20)
    with pytest.raises(JobError, match=f"process {os.getpid()} on another-host"), staging.hold_lock():
        pass
    write_lock(staging, host="another-host", pid=os.getpid(), age=STALE_SECONDS + 1)
    with staging.hold_lock() as owner:
        assert staging.is_owned_by(owner)
    assert names(tmp_path) == []


# Files of somebody else


def output(path: Path, **more: object) -> Path:
    """A real output with Hive folders, its fitted workflow, and the versions, splits or whatever `more` asks for."""
    table = pa.table({"x": [1.0, 2.0, 3.0, 4.0], "word": ["a", "b", "a", "b"], "day": [1, 1, 2, 2]})
    workflow = Workflow((["x"] >> ops.Normalize()) + (["word"] >> ops.Categorify()) + ["day"])
    settings = {"files": 1, "partition_on": ["day"], "metadata_file": True, **more}
    return Path(workflow.fit_transform(table).to_parquet(str(path), **settings).path)


PLACES = ["notes.txt", "_workflow/notes.txt", "_workflow/mine.vocab", "day=1/notes.txt", "day=1/part-00001.parquet",
          "day=3/notes.txt", "_notes/deep/notes.txt"]  # fmt: skip


@pytest.mark.promise("rowmill never replaces a folder with files that it did not write, however deep they lie")
@pytest.mark.parametrize("place", PLACES)
def test_a_file_of_somebody_else_is_noticed_wherever_it_lies(place: str, tmp_path: Path) -> None:
    out = output(tmp_path / "out")
    assert own_files.own_output(out)
    (out / place).parent.mkdir(parents=True, exist_ok=True)
    (out / place).write_text("mine")
    assert list(own_files.strangers(out)) == [place]
    with pytest.raises(JobError, match="rowmill did not write") as refused:
        output(tmp_path / "out", on_existing="replace")
    assert refused.value.why == f"such as {place}"
    assert own_files.remove_output(out) == [place]
    assert [str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()] == [place]


def test_a_file_that_was_written_over_a_link_and_an_empty_folder_count_too(tmp_path: Path) -> None:
    out = output(tmp_path / "out")
    (part,) = (out / "day=1").iterdir()
    whole = part.read_bytes()
    part.write_bytes(bytes(len(whole)))  # of the same size
    assert list(own_files.strangers(out)) == ["day=1/part-00000.parquet"]
    part.write_bytes(whole)
    assert own_files.own_output(out)  # touched, but what rowmill wrote
    part.rename(tmp_path / "moved")
    part.symlink_to(tmp_path / "moved")
    assert list(own_files.strangers(out)) == ["day=1/part-00000.parquet"]
    part.unlink()
    (tmp_path / "moved").rename(part)
    for name in ("workflow.json", "state.json", "README.md"):
        path = out / "_workflow" / name
        text = path.read_text()
        path.write_text(text + "\n my own words")
        assert own_files.own_output(out) is (name == "workflow.json"), name
        path.write_text(text)
    (out / "later").mkdir()
    assert list(own_files.strangers(out)) == ["later"]
    (out / "later").rmdir()
    shutil.copytree(out, tmp_path / "copy")
    assert own_files.own_output(tmp_path / "copy")
    fitted = out / "_workflow"
    assert own_files.own_output(fitted)


def test_the_readme_of_a_workflow_says_how_text_was_read_and_counts_too(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n2\n")
    fitted = tmp_path / "fitted"
    Workflow(["x"] >> ops.Normalize()).fit(Dataset(tmp_path / "in.csv")).save(fitted)
    text = (fitted / "README.md").read_text()
    assert "How its source was read" in text
    (fitted / "README.md").write_text(text)
    assert own_files.own_output(fitted)  # touched, as by a copy
    (fitted / "README.md").write_text(text + "\n my own words")
    assert list(own_files.strangers(fitted)) == ["README.md"]


@pytest.mark.promise("put a file into a version to keep it", "flows/OPERATIONS.md#stop-it-start-it-again-clean-up")
def test_versions_with_a_file_of_somebody_else_anywhere_stay(tmp_path: Path) -> None:
    for _ in range(4):
        output(tmp_path / "out", on_existing="version")
    (tmp_path / "out/v0001/_workflow/notes.txt").write_text("mine")
    (tmp_path / "out/v0002/day=2/notes.txt").write_text("mine")
    output(tmp_path / "out", on_existing="version", keep_versions=1)
    assert names(tmp_path / "out") == ["_latest", "_removed.json", "v0001", "v0002", "v0005"]
    assert (tmp_path / "out/v0001/part-00000.parquet").exists() or (tmp_path / "out/v0001/day=1").exists()
    assert names(tmp_path) == ["out"]


@pytest.mark.promise("After that the next run to that output or `rowmill clean` removes it")
@pytest.mark.promise("and outputs that were replaced once the time of `run.keep_replaced` is over")
def test_clean_removes_replaced_outputs_when_their_time_is_over_but_no_file_of_somebody_else(tmp_path: Path) -> None:
    for name in ("over", "mine", "young"):
        output(tmp_path / name)
        output(tmp_path / name, on_existing="replace")
    over, mine, young = (Staging(tmp_path / name).olds[0] for name in ("over", "mine", "young"))
    past = {path: path.with_name(f"{path.name.rpartition('-')[0]}-1000") for path in (over, mine)}
    for path, to in past.items():
        path.rename(to)
    (past[mine] / "day=1" / "notes.txt").write_text("mine")
    lines = cleaned(tmp_path)
    assert [line.split(",")[0] for line in lines if not line.startswith("freed")] == [
        f"kept     {past[mine]}", f"removed  {past[over]}", f"kept     {young}",
    ]  # fmt: skip
    assert lines[0].endswith("it holds day=1/notes.txt, which rowmill did not write")
    assert "readers may use it for another" in lines[2]
    assert [str(p.relative_to(past[mine])) for p in past[mine].rglob("*") if p.is_file()] == ["day=1/notes.txt"]
    assert cleaned(young.parent / "young", "--older-than", "0")[0].startswith("removed")


@pytest.mark.promise("If a kill interrupted the swap of two outputs, `clean` finishes the swap first and says so")
def test_clean_says_what_it_finished(tmp_path: Path) -> None:
    cut_off(tmp_path / "out")
    assert "once the swap that was cut off is finished" in cleaned(tmp_path, "--older-than", "0", "--dry-run")[0]
    lines = cleaned(tmp_path, "--older-than", "0")
    assert lines[0] == f"finished {tmp_path}/out: a swap was cut off; the new output was put in its place"
    assert content(tmp_path / "out") == "new"


@pytest.mark.promise("and never removes such a file")
def test_clean_leaves_files_of_somebody_else_deep_in_work_in_progress(tmp_path: Path) -> None:
    folder = left(tmp_path / "out", days=9)
    (folder / "new" / "notes.txt").write_text("mine")
    assert "it holds new/notes.txt, which rowmill did not write" in cleaned(tmp_path, "--older-than", "0")[0]
    with Staging(tmp_path / "out").hold_lock():
        Staging(tmp_path / "out").reset()
    (found,) = folder.rglob("*notes.txt")
    assert found.parent.name == "not-of-rowmill"


def test_clean_knows_whose_work_lies_in_a_scratch_folder(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "data" / "out", tmp_path / "scratch")
    with staging.hold_lock():
        (staging.folder / "plan.json").write_text("{}")
        lines = cleaned(tmp_path / "scratch", "--older-than", "0")
        assert "another run is working on this output" in lines[0]
    assert staging.folder.exists()
    lines = cleaned(tmp_path / "scratch", "--older-than", "0")
    assert lines[0].startswith(f"removed  {staging.folder}")
    assert names(tmp_path / "scratch") == []
