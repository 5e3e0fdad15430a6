"""A disk that fills up while a run works: one error with figures, nothing half-written; with space again it goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import GiveUpError
from tasks.storage.staging import Staging
from tests.faults.jobs import digests, flow_state, go, make_data, make_job, reused, run_here, task_runs
from tests.faults.rounds import fill_up
from tests.infra.elsewhere import until

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("faults")]
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
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory, engine: str) -> dict[str, str]:
    """The files of a run with space."""
    out = tmp_path_factory.mktemp("roomy") / "out"
    go(make_job(data, out), engine)
    return digests(out)


def check_error(error: BaseException, disk: Path, work: Path) -> None:
    """What, where, why in figures and what to do; nothing half-written."""
    assert type(error) is GiveUpError, error
    assert error.what == "there is no space left"
    assert error.where.startswith(str(work))
    assert error.why.endswith(" of 33.6 MB are free there")
    assert error.do.startswith("free some space, or choose another output.path or run.scratch; then run the same job")
    assert not list(disk.rglob("*.tmp"))


# the stage before which the disk fills up, the bytes that are left, what was done before
CASES: dict[str, tuple[str, int, list[str]]] = {
    "the first file": ("ingest", 0, []),
    "the state": ("statistics", 8192, ["ingest"]),
    "the files": ("shuffle_write", 2**20, ["ingest", "statistics"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_full_disk_is_told_and_with_space_again_the_job_goes_on(
    case: str, disk: Path, data: Path, expected: dict[str, str], engine: str
) -> None:
    stage, left, kept = CASES[case]
    job = make_job(data, disk / "out")
    with pytest.raises(GiveUpError) as caught:
        go(job, engine, stage, partial(fill_up, disk / "filler", left))
    check_error(caught.value, disk, disk / ".out.rowmill")
    assert {p.name for p in disk.iterdir()} <= {".out.rowmill", "filler"}
    (disk / "filler").unlink()
    assert go(job, engine) == kept
    assert digests(disk / "out") == expected
    assert [p.name for p in disk.iterdir()] == ["out"]


def test_a_run_on_a_full_disk_is_failed_with_its_stage_and_the_next_is_completed(
    disk: Path, data: Path, expected: dict[str, str], cluster: Any, monkeypatch: pytest.MonkeyPatch, prefect_server: Any
) -> None:
    from flows.run import session, stages

    run_stage, job = stages.run_stage, make_job(data, disk / "out")

    def fill_first(function: Any, *args: Any) -> Any:
        if function.name == "shuffle_write":
            fill_up(disk / "filler", 2**20)
        return run_stage(function, *args)

    with monkeypatch.context() as patched:
        patched.setattr(session, "run_stage", fill_first)
        state = run_here(job, cluster)
    check_error(state.result(raise_on_failure=False), disk, disk / ".out.rowmill")
    assert flow_state(state) == "Failed"
    until(lambda: task_runs(state)[-1:] == [("shuffle_write", "Failed")], "the server knows of the stage")
    (disk / "filler").unlink()
    again = run_here(job, cluster)
    assert flow_state(again) == "Completed", again.message
    assert [name for name, found in reused(again).items() if found] == ["ingest", "statistics"]
    assert digests(disk / "out") == expected
    assert [p.name for p in disk.iterdir()] == ["out"]


def test_scratch_that_fills_up_with_more_than_was_estimated(tmp_path: Path, disk: Path, engine: str) -> None:
    rows = 65_536
    folder, out = tmp_path / "data", tmp_path / "out"
    folder.mkdir()
    for part in range(2):
        numbers = np.arange(part * rows, (part + 1) * rows)
        text = pa.array([f"{n:0>100}" for n in numbers])  # 24 bytes are assumed of a text
        pq.write_table(pa.table({"n": numbers, "text": text}), folder / f"{part}.parquet")
    sections = {"features": [{"columns": ["n", "text"]}], "label": []}
    go(make_job(folder, tmp_path / "roomy", **sections), engine)
    job = make_job(folder, out, **sections, run={"scratch": str(disk), "exchange": "disk"})
    with pytest.raises(GiveUpError) as caught:
        go(job, engine, "transform", partial(fill_up, disk / "filler", 8 * 2**20))
    check_error(caught.value, disk, Staging(out, disk).folder)
    assert not out.exists()
    (disk / "filler").unlink()
    assert go(job, engine) == ["ingest", "statistics"]
    assert digests(out) == digests(tmp_path / "roomy")
    assert list(disk.iterdir()) == []


def test_the_old_output_stays_whole_when_the_new_one_does_not_fit(
    disk: Path, data: Path, engine: str, expected: dict[str, str]
) -> None:
    out = disk / "out"
    go(make_job(data, out), engine)
    other = make_job(data, out, output={"on_existing": "replace", "seed": 8})
    with pytest.raises(GiveUpError, match="there is no space left"):
        go(other, engine, "shuffle_write", partial(fill_up, disk / "filler", 2**20))
    assert digests(out) == expected
    (disk / "filler").unlink()
    go(other, engine)
    assert digests(out).keys() == expected.keys()
    assert not set(digests(out).values()) & set(expected.values())
