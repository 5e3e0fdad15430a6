"""Old versions and work that was left lying: what goes, and what never does."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from flows.cli import app
from tasks import ops
from tasks.commit import MANIFEST, STALE_SECONDS, Staging
from tasks.errors import JobError
from tasks.manifest import Manifest
from tasks.retention import drop_versions
from tasks.workflow import Workflow


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
    lock = staging.folder / "lock"
    lock.write_text(json.dumps({"id": "x", "host": host, "pid": pid, "start": "1.0", "since": "then"}))
    os.utime(lock, (time.time() - age, time.time() - age))


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_only_the_newest_versions_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    table = pa.table({"x": [1.0, 2.0]})
    fitted = Workflow(["x"] >> ops.Normalize()).fit_transform(table)
    written = [
        Path(fitted.to_parquet(str(out), files=1, on_existing="version", keep_versions=3).path).name for _ in range(5)
    ]
    assert written == ["v0001", "v0002", "v0003", "v0004", "v0005"]
    assert names(out) == ["_latest", "v0003", "v0004", "v0005"]
    assert names(tmp_path) == ["out"]
    fitted.to_parquet(str(out), files=1, on_existing="version")
    assert len(names(out)) == 5  # nothing said, nothing removed
    with pytest.raises(JobError, match="keep_versions belongs to on_existing: version"):
        fitted.to_parquet(str(tmp_path / "single"), keep_versions=1)


def version(out: Path, number: int) -> Path:
    folder = out / f"v{number:04d}"
    folder.mkdir(parents=True)
    (folder / "part-00000.parquet").touch()
    (folder / MANIFEST).write_text(json.dumps({"parts": [{"path": "part-00000.parquet"}]}))
    return folder


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
    with staging.locked():
        assert [p.name for p in drop_versions(staging, 1)] == ["v0006", "v0007"]
    kept = ["v0001", "v0002", "v0003", "v0004", "v0005", "v0008"]
    assert [n for n in names(out) if n.startswith("v")] == kept
    assert (tmp_path / "v0005" / "moved" / MANIFEST).exists()


def test_clean_removes_what_was_left_and_no_output(tmp_path: Path) -> None:
    fitted = Workflow(["x"]).fit_transform(pa.table({"x": [1]}))
    fitted.to_parquet(str(tmp_path / "deep" / "done"), files=1)
    old, young = left(tmp_path / "deep" / "old", days=9), left(tmp_path / "deep" / "young", days=2)
    done = left(tmp_path / "deep" / "done", days=8)
    shown = cleaned(tmp_path, "--dry-run")
    assert [line.split(",")[0] for line in shown] == [
        f"would go {done}", f"would go {old}", f"kept     {young}", "freed    0 B",
    ]  # fmt: skip
    assert old.exists()
    assert cleaned(tmp_path) == [
        f"removed  {done}, 5.1 kB, 8 d old", f"removed  {old}, 5.1 kB, 9 d old",
        f"kept     {young}, 5.1 kB, 2 d old: younger than 7d", "freed    10.2 kB",
    ]  # fmt: skip
    assert names(tmp_path / "deep") == [".young.millrace", "done"]
    assert Manifest.load(tmp_path / "deep" / "done").rows["out"] == 1
    assert cleaned(tmp_path / "deep" / "young", "--older-than", "1d")[0].startswith("removed")
    assert names(tmp_path / "deep") == ["done"]


def test_clean_leaves_runs_and_foreign_files_alone_and_finishes_a_swap(tmp_path: Path) -> None:
    working = Staging(tmp_path / "working")
    mine = left(tmp_path / "mine")
    (mine / "notes.txt").write_text("mine")
    elsewhere = left(tmp_path / "elsewhere")
    write_lock(Staging(tmp_path / "elsewhere"), host="another-host", pid=1)
    swapped = Staging(tmp_path / "swapped")
    for folder, text in ((swapped.old, "old"), (swapped.new, "new")):
        folder.mkdir(parents=True)
        (folder / "part-00000.parquet").write_text(text)
    (swapped.new / MANIFEST).write_text("{}")
    with working.locked():
        (working.folder / "plan.json").touch()
        lines = {line.split(",")[0].split("/")[-1]: line for line in cleaned(tmp_path, "--older-than", "0")}
        assert working.in_use()
    assert "another run works on this output: process" in lines[".working.millrace"]
    assert "process 1 on another-host" in lines[".elsewhere.millrace"]
    assert lines[".mine.millrace"].endswith("it holds notes.txt, which millrace did not write")
    assert (mine / "plan.json").exists()
    assert (elsewhere / "plan.json").exists()
    assert (tmp_path / "swapped" / "part-00000.parquet").read_text() == "new"
    assert names(tmp_path) == [".elsewhere.millrace", ".mine.millrace", ".working.millrace", "swapped"]


def test_ages_and_paths_that_are_none(tmp_path: Path) -> None:
    for words in ((tmp_path, "--older-than", "7 days"), (tmp_path, "--older-than", "7"), (tmp_path / "nowhere",)):
        result = CliRunner().invoke(app, ["clean", *map(str, words)])
        assert result.exit_code == 1
        assert "do: " in result.stderr


def test_the_lock_of_another_host_goes_by_its_age(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "out")
    write_lock(staging, host="another-host", pid=os.getpid(), age=STALE_SECONDS - 20)
    with pytest.raises(JobError, match=f"process {os.getpid()} on another-host"), staging.locked():
        pass
    write_lock(staging, host="another-host", pid=os.getpid(), age=STALE_SECONDS + 1)
    with staging.locked() as owner:
        assert staging.owned_by(owner)
    assert names(tmp_path) == []
