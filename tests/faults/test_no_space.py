"""A disk that fills up while a run works: one error with figures, nothing half-written; with space again it goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import GiveUpError
from tasks.storage.staging import Staging
from tests.faults.jobs import digests, flow_state, make_data, make_job, reused, run_here, task_runs
from tests.infra.elsewhere import until

pytestmark = pytest.mark.xdist_group("faults")
SIZE = 32 * 2**20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True) if os.geteuid() == 0 else None
    if done is None or done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip() if done else 'not root'}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("space") / "data")


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory, prefect_server: Any, cluster: Any) -> dict[str, str]:
    """The files of a run with space."""
    out = tmp_path_factory.mktemp("roomy") / "out"
    assert run_here(make_job(data, out), cluster).is_completed()
    return digests(out)


@pytest.fixture
def fills(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Path]:
    """fills(stage, left): the disk is full but for `left` bytes when the stage begins; the file that fills it."""
    from flows import preprocess
    from flows.run import session, stages

    run_stage, plan = stages.run_stage, dict[str, int]()

    def filling(function: Any, *args: Any) -> Any:
        if function.name in plan:
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            (disk / "filler").write_bytes(b"\1" * max(0, free - plan.pop(function.name)))
        return run_stage(function, *args)

    def at(stage: str, left: int) -> Path:
        plan[stage] = left
        return disk / "filler"

    monkeypatch.setattr(preprocess, "run_stage", filling)
    monkeypatch.setattr(session, "run_stage", filling)
    return at


# the stage before which the disk fills up, the bytes that are left, what was done before
CASES: dict[str, tuple[str, int, list[str]]] = {
    "the first file": ("ingest", 0, []),
    "the state": ("statistics", 8192, ["ingest"]),
    "the files": ("shuffle_write", 2**20, ["ingest", "statistics"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_full_disk_is_told_and_with_space_again_the_run_goes_on(
    case: str, disk: Path, data: Path, expected: dict[str, str], cluster: Any, fills: Any
) -> None:
    stage, left, kept = CASES[case]
    out, filler = disk / "out", fills(stage, left)
    told(run_here(make_job(data, out), cluster), stage, disk, disk / ".out.rowmill")
    assert {p.name for p in disk.iterdir()} <= {".out.rowmill", "filler"}
    filler.unlink()
    again = run_here(make_job(data, out), cluster)
    assert flow_state(again) == "Completed", again.message
    assert [name for name, found in reused(again).items() if found] == kept
    assert digests(out) == expected
    assert [p.name for p in disk.iterdir()] == ["out"]


def told(state: Any, stage: str, disk: Path, work: Path) -> None:
    """A Failed run of which the stage failed, with what, where, why in figures and what to do; nothing half-written."""
    error = state.result(raise_on_failure=False)
    assert type(error) is GiveUpError, error
    assert error.what == "there is no space left"
    assert error.where.startswith(str(work))
    assert error.why.endswith(" of 33.6 MB are free there")
    assert error.do.startswith("free some space, or choose another output.path or run.scratch; then run the same job")
    assert flow_state(state) == "Failed"
    last = ([(stage, "Failed")], [] if stage == "ingest" else None)  # or before any stage
    until(lambda: task_runs(state)[-1:] in last, "the server knows of the stage")
    assert not list(disk.rglob("*.tmp"))


def test_scratch_that_fills_up_with_more_than_was_estimated(
    tmp_path: Path, disk: Path, prefect_server: Any, cluster: Any, fills: Any
) -> None:
    rows = 65_536
    folder, out = tmp_path / "data", tmp_path / "out"
    folder.mkdir()
    for part in range(2):
        numbers = np.arange(part * rows, (part + 1) * rows)
        text = pa.array([f"{n:0>100}" for n in numbers])  # 24 bytes are assumed of a text
        pq.write_table(pa.table({"n": numbers, "text": text}), folder / f"{part}.parquet")
    sections = {"features": [{"columns": ["n", "text"]}], "label": []}
    assert run_here(make_job(folder, tmp_path / "roomy", **sections), cluster).is_completed()
    filler = fills("transform", 8 * 2**20)
    job = make_job(folder, out, **sections, run={"scratch": str(disk), "exchange": "disk"})
    told(run_here(job, cluster), "transform", disk, Staging(out, disk).folder)
    assert not out.exists()
    filler.unlink()
    again = run_here(job, cluster)
    assert flow_state(again) == "Completed", again.message
    assert [name for name, found in reused(again).items() if found] == ["ingest", "statistics"]
    assert digests(out) == digests(tmp_path / "roomy")
    assert list(disk.iterdir()) == []


def test_the_old_output_stays_whole_when_the_new_one_does_not_fit(
    disk: Path, data: Path, cluster: Any, fills: Any, expected: dict[str, str]
) -> None:
    out = disk / "out"
    assert run_here(make_job(data, out), cluster).is_completed()
    filler = fills("shuffle_write", 2**20)
    other = make_job(data, out, output={"on_existing": "replace", "seed": 8})
    assert "there is no space left" in run_here(other, cluster).message
    assert digests(out) == expected
    filler.unlink()
    assert run_here(other, cluster).is_completed()
    assert digests(out).keys() == expected.keys()
    assert not set(digests(out).values()) & set(expected.values())
