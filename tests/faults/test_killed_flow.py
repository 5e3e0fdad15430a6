"""The process of the flow killed with kill -9 in every stage and between stages; the same command completes the
work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import python_path
from tests.faults import chaos
from tests.faults.jobs import STAGES, digests, make_data, make_job, plan_chaos, run_flow

pytestmark = [pytest.mark.xdist_group("killed-flow"), pytest.mark.timeout(900)]


def start(
    job: dict[str, Any], place: Path, *faults: dict[str, Any], before: str = ""
) -> subprocess.CompletedProcess[str]:
    """The job in a process of its own, whose workers meet the faults; killed `before` a stage."""
    (place / "job.json").write_text(json.dumps(job))
    plan = plan_chaos(place / "chaos.json", faults)
    environment = os.environ | {
        chaos.VARIABLE: str(plan), "ROWMILL_TEST_DIE_BEFORE": before, "PYTHONPATH": python_path(),
        "DASK_DISTRIBUTED__WORKER__PRELOAD": "tests.faults.chaos",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.faults.run_job", str(place / "job.json")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, cwd=place)


def inodes(folder: Path) -> dict[str, tuple[int, int]]:
    """(inode, mtime) of every file: a file that was written again has another one."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in files}


@pytest.mark.promise(
    "the run keeps the plan, the statistics and the parts that are done and belong to the same job and the same data"
)
@pytest.mark.promise("finished work is not done twice", "README.md#guarantees")
def test_killed_everywhere_and_started_again_it_completes_without_doing_work_twice(
    tmp_path: Path, prefect_server: Any
) -> None:
    data, out, staging = make_data(tmp_path / "data"), tmp_path / "out", tmp_path / ".out.rowmill"
    assert run_flow(make_job(data, tmp_path / "quiet")).is_completed()
    job = make_job(data, out)

    def killed(*faults: dict[str, Any], before: str = "") -> None:
        process = start(job, tmp_path, *({"do": "kill-flow", **fault} for fault in faults), before=before)
        assert process.returncode == -signal.SIGKILL, process.stderr
        assert (staging / "lock").exists()
        assert not out.exists()

    killed({"at": STAGES["ingest"]})
    assert not (staging / "plan.json").exists()
    killed({"at": STAGES["statistics"], "call": 2})
    plans = json.loads((staging / "plan.json").read_text())["plans"]
    killed(before="transform")
    learned = inodes(staging / "state")
    assert learned
    killed({"at": STAGES["transform"], "call": 3})
    killed(before="shuffle_write")
    killed({"at": STAGES["shuffle_write"], "call": 3})
    written = inodes(staging / "new")
    parts = {note.stem for note in (staging / "parts").iterdir() if note.suffix == ".json"}  # written and noted
    assert 1 <= len(parts) < 5
    assert set(written) - parts  # what the killed worker had begun, or had not noted yet
    killed(before="commit")
    all_written = inodes(staging / "new")
    assert {name: all_written[name] for name in parts} == {name: written[name] for name in parts}
    assert inodes(staging / "state") == learned
    assert json.loads((staging / "plan.json").read_text())["plans"] == plans

    last = start(job, tmp_path)
    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout.splitlines()[-1]) == [[stage, True] for stage in STAGES]
    assert {n: i for n, i in inodes(out).items() if n.startswith("part-")} == {
        n: i for n, i in all_written.items() if n.endswith(".parquet")
    }
    assert digests(out) == digests(tmp_path / "quiet")
    assert {p.name for p in out.iterdir()} == {
        *digests(out),
        "_manifest.json",
        "_published.json",
        "_report.html",
        "_workflow",
    }
    assert not staging.exists()


def test_a_swap_that_was_cut_off_is_finished_by_the_next_start(tmp_path: Path, prefect_server: Any) -> None:
    data, out = make_data(tmp_path / "data", files=1, rows=100), tmp_path / "out"
    replace = make_job(data, out, output={"on_existing": "replace", "seed": 1})
    assert run_flow(replace).is_completed()
    before = digests(out)
    other = make_job(data, out, output={"on_existing": "replace", "seed": 2})
    assert start(other, tmp_path, before="swap").returncode == -signal.SIGKILL
    swapped = digests(out)
    assert len(swapped) == 5
    assert swapped != before
    assert digests(tmp_path / ".out.rowmill" / "new") == before

    refusing = make_job(data, out, output={"on_existing": "fail", "seed": 2})
    state = run_flow(refusing)
    assert "the output already exists" in state.message
    assert run_flow(make_job(data, out, output={"on_existing": "replace", "seed": 2})).is_completed()
    assert digests(out) == swapped
    left = sorted(p for p in tmp_path.iterdir() if "out" in p.name and p != out)
    found = [digests(path) for path in left]
    assert found in ([before, swapped], [swapped, before])
    assert all(path.name.startswith(".out.rowmill-old-") for path in left)
