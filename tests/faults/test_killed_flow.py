"""The process of the flow killed with kill -9 in every stage and between stages; the same command completes the
work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterName

from flows.commands.dead_runs import mark_dead_runs
from tests.faults.chaos import kill_at
from tests.faults.jobs import STAGES, digests, make_data, make_job, plan_chaos, reused, run_flow
from tests.faults.rounds import Rounds
from tests.faults.small_blocks import ROWS

pytestmark = [pytest.mark.xdist_group("rounds"), pytest.mark.timeout(900)]
COMMIT = "tasks.stages.commit:commit"
ALL_REUSED = [(stage, True) for stage in STAGES]


def before(stage: str) -> dict[str, Any]:
    """The fault that kills the process before it begins with a stage."""
    return kill_at(f"tasks.stages.{stage}:{stage}")


def inodes(folder: Path) -> dict[str, tuple[int, int]]:
    """(inode, mtime) of every file: a file that was written again has another one."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in files}


def parts_of(written: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {name: inode for name, inode in written.items() if name.startswith("part-") and name.endswith(".parquet")}


def state_of_run(name: str) -> str:
    """What the server says of the run with a name, and that none of its tasks is still at work."""
    with get_client(sync_client=True) as client:
        (run,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name])))
        tasks = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
    assert "Running" not in {str(task.state_name) for task in tasks}
    return str(run.state_name)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("killed-flow") / "data", rows=ROWS)


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory, rounds: Rounds) -> dict[str, str]:
    """The files of a run that nobody kills."""
    out = tmp_path_factory.mktemp("killed-flow") / "quiet"
    assert rounds.run("stages", make_job(data, out)).status == 0
    return digests(out)


@pytest.mark.promise(
    "the run keeps the plan, the statistics and the parts that are done and belong to the same job and the same data"
)
@pytest.mark.promise("finished work is not done twice", "README.md#guarantees")
def test_killed_everywhere_and_started_again_it_completes_without_doing_work_twice(
    tmp_path: Path, data: Path, expected: dict[str, str], rounds: Rounds
) -> None:
    out, staging = tmp_path / "out", tmp_path / ".out.rowmill"
    job = make_job(data, out)

    def killed(fault: dict[str, Any]) -> None:
        ended = rounds.run("stages", job, here=[fault])
        assert ended.killed, ended
        assert (staging / "lock").exists()
        assert not out.exists()

    killed(kill_at(STAGES["ingest"]))
    assert not (staging / "plan.json").exists()
    killed(kill_at(STAGES["statistics"], call=2))
    plans = json.loads((staging / "plan.json").read_text())["plans"]
    killed(before("transform"))
    learned = inodes(staging / "state")
    assert learned
    killed(kill_at(STAGES["transform"], call=3))
    killed(before("shuffle_write"))
    killed(kill_at(STAGES["shuffle_write"], call=3))
    written = inodes(staging / "new")
    parts = {note.stem for note in (staging / "parts").iterdir() if note.suffix == ".json"}  # written and noted
    assert 1 <= len(parts) < 5
    assert set(written) - parts  # what the killed process had begun, or had not noted yet
    killed(kill_at(COMMIT))
    all_written = inodes(staging / "new")
    assert {name: all_written[name] for name in parts} == {name: written[name] for name in parts}
    assert inodes(staging / "state") == learned
    assert json.loads((staging / "plan.json").read_text())["plans"] == plans

    last = rounds.run("stages", job)
    assert last.status == 0, last.error
    assert last.stages == ALL_REUSED
    assert parts_of(inodes(out)) == parts_of(all_written)
    assert digests(out) == expected
    assert not staging.exists()


def test_a_flow_that_is_killed_in_transform_and_before_the_commit_is_completed_by_the_next(
    tmp_path: Path, data: Path, expected: dict[str, str], rounds: Rounds, prefect_server: Any
) -> None:
    out, staging = tmp_path / "out", tmp_path / ".out.rowmill"
    job = make_job(data, out)

    def killed(**faults: Any) -> None:
        ended = rounds.run("flow", job, **faults)
        assert ended.killed, ended
        assert (staging / "lock").exists()
        assert not out.exists()

    plan = plan_chaos(tmp_path / "chaos.json", [{"at": STAGES["transform"], "call": 3, "do": "kill-flow"}])
    killed(in_workers=str(plan))
    learned = inodes(staging / "state")
    assert learned
    killed(here=[kill_at(COMMIT)])
    assert inodes(staging / "state") == learned
    all_written = inodes(staging / "new")

    assert mark_dead_runs(str(tmp_path / "another")) == []
    names = mark_dead_runs(str(out))
    assert len(names) == 2
    assert {state_of_run(name) for name in names} == {"Crashed"}
    assert mark_dead_runs(str(out)) == []

    last = run_flow(job)
    assert last.is_completed(), last.message
    assert reused(last) == dict(ALL_REUSED)
    assert parts_of(inodes(out)) == parts_of(all_written)
    assert digests(out) == expected
    assert {p.name for p in out.iterdir()} == {
        *expected,
        "_manifest.json",
        "_published.json",
        "_report.html",
        "_workflow",
    }
    assert not staging.exists()


def test_a_swap_that_was_cut_off_is_finished_by_the_next_start(tmp_path: Path, rounds: Rounds) -> None:
    data, out = make_data(tmp_path / "data", files=1, rows=100), tmp_path / "out"
    replace = make_job(data, out, output={"on_existing": "replace", "seed": 1})
    assert rounds.run("stages", replace).status == 0
    old = digests(out)
    other = make_job(data, out, output={"on_existing": "replace", "seed": 2})
    # when the new output is in its place, before the old one is put away
    assert rounds.run("stages", other, here=[kill_at("tasks.storage.staging:rename")]).killed
    swapped = digests(out)
    assert len(swapped) == 5
    assert swapped != old
    assert digests(tmp_path / ".out.rowmill" / "new") == old

    refusing = make_job(data, out, output={"on_existing": "fail", "seed": 3})
    assert rounds.run("stages", refusing).error["what"] == "the output already exists"
    assert rounds.run("stages", other).status == 0
    assert digests(out) == swapped
    left = sorted(p for p in tmp_path.iterdir() if "out" in p.name and p != out)
    found = [digests(path) for path in left]
    assert found in ([old, swapped], [swapped, old])
    assert all(path.name.startswith(".out.rowmill-old-") for path in left)
