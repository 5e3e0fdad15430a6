"""A disk that fills up at a random moment of a run: a clear error, nothing half-written; with space again it goes on.

Each round draws from its number the job, which disk is full (that of the output, that of `run.scratch`), at which file
operation of the run it fills up, and how many bytes are left. The disk is a small file system of the test's own.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Known
from tests.faults.rounds import Rounds
from tests.faults.seeds import VARIANTS, beside, contents, seeds, variant

pytestmark = pytest.mark.xdist_group("rounds")
SIZE = 256 * 2**20
REFUSED = (
    "there is no space left", "the disk is too small for this run", "the scratch disk is too small for the exchange",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full")


@pytest.fixture(scope="module")
def disk(place: Path) -> Iterator[Path]:
    """A file system of its own."""
    (place / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place / "disk")]
    done = subprocess.run(mount, capture_output=True, text=True) if os.geteuid() == 0 else None
    if done is None or done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip() if done else 'not root'}")
    try:
        yield place / "disk"
    finally:
        subprocess.run(["umount", "-l", str(place / "disk")], check=True)


@pytest.mark.promise("`there is no space left`")
@pytest.mark.parametrize("seed", seeds(few=8, all=500))
def test_a_full_disk_is_one_clear_error_and_with_space_the_run_goes_on(
    seed: int, place: Path, round_data: Path, disk: Path, rounds: Rounds, undisturbed: dict[str, Known]
) -> None:
    draws = random.Random(seed)
    name = draws.choice(sorted(VARIANTS))
    files, operations, _ = undisturbed[name]
    on_disk = draws.choice(["output", "scratch", "both", "replace"])
    out = (place if on_disk == "scratch" else disk) / "out"
    sections = {"run": {"scratch": str(disk if on_disk == "scratch" else place / "scratch")}}
    sections = {} if on_disk in ("both", "replace") else sections
    job = variant(name, round_data, out, **sections)
    before = None
    if on_disk == "replace":
        other = draws.choice(sorted(set(VARIANTS) - {name}))
        assert rounds.run("stages", variant(other, round_data, out)).status == 0
        before = contents(out)
        job = variant(name, round_data, out, output={"on_existing": "replace"})
    filler = disk / "filler"
    left = draws.choice([0, 0, 4096, 65536, draws.randint(0, 2**18)])
    try:
        ended = rounds.run("stages", job, fill_at=draws.randint(1, operations), fill=str(filler), left=left)
        if ended.status:
            assert ended.error["what"] in REFUSED, ended.error
            assert ended.error["where"].startswith(str(disk)), ended.error
            assert "free" in ended.error["why"], ended.error
            assert ended.error["do"], ended.error
            assert contents(out) == before if before else not out.exists()
            assert not list(disk.rglob("*.tmp"))
            filler.unlink(missing_ok=True)
            again = rounds.run("stages", job)
            assert again.status == 0, again.error
        assert contents(out) == files
        assert beside(disk) <= {"out", "filler"}
    finally:
        for path in (out, *disk.iterdir(), place / "scratch"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for path in place.glob(".out.rowmill*"):
            shutil.rmtree(path)
