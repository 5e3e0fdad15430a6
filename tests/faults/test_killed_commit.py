"""kill -9 at file operations from the beginning of the commit to the end of the run, behind the rename, too.

After each, the same command ends well, with the same bytes, and its rows are counted once. Nightly at every operation,
else at every seventh of a refit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tasks.stages import commit
from tests.faults.jobs import digests, make_data, make_job
from tests.faults.rounds import Operations, Rounds, run_stages
from tests.faults.seeds import beside, nightly
from tests.faults.small_blocks import ROWS

pytestmark = pytest.mark.xdist_group("rounds")
MakeJob: TypeAlias = Callable[[Path, Path], dict[str, Any]]


def run_and_kill(job: dict[str, Any], step: int) -> int:
    """Run a job, and kill this process at the n-th file operation since the commit has begun; how many there are."""
    original, counted = commit.commit, list[Operations]()

    def begin(*arguments: Any, **options: Any) -> Any:
        counted.append(Operations(kill_at=step))
        return original(*arguments, **options)

    commit.commit = begin
    commit.PREPARE_DELAY = 60.0  # the preparation begins when the commit asks for it, so that it counts each time
    run_stages(job)
    counted[0].kill_at = 0  # what this process says of it is not of the run
    return counted[0].count


def plain(data: Path, out: Path) -> dict[str, Any]:
    return make_job(data, out, run={"report": False})


def in_splits(data: Path, out: Path) -> dict[str, Any]:
    split = {"split": {"by": "fraction", "valid": 0.2, "test": 0.2}}
    return make_job(data, out, source=split, run={"report": False})


def by_dates(data: Path, out: Path) -> dict[str, Any]:
    features: Any = [{"columns": ["x", "label"]}]
    output = {"partition_on": ["label"], "files": 2}
    return make_job(data, out, output=output, features=features, label=[], run={"report": False})


def in_versions(data: Path, out: Path) -> dict[str, Any]:
    return make_job(data, out, output={"on_existing": "version"}, run={"report": False})


def refit(data: Path, out: Path) -> dict[str, Any]:
    return {**in_versions(data, out), "base": str(out)}


def learned_rows(out: Path) -> list[tuple[str, int, int]]:
    """(folder, rows, batches) of each history below an output."""
    found = []
    for path in sorted(out.rglob("workflow.json")):
        history = json.loads(path.read_text())["history"]
        found.append((str(path.parent.relative_to(out)), history["rows"], len(history["nights"])))
    return found


@pytest.mark.parametrize(
    ("job", "stride"),
    [(refit, 7), *nightly([(plain, 1), (refit, 1), (in_splits, 1), (by_dates, 1), (in_versions, 1)])],
)
def test_a_kill_at_any_operation_of_the_commit_is_completed_once(
    job: MakeJob, stride: int, memory: Path, rounds: Rounds
) -> None:
    rows = ROWS // 8
    begin, data, quiet = memory / "begin", make_data(memory / "data", 2, rows), memory / "quiet" / "out"
    begin.mkdir()
    if job is refit:
        night = make_data(memory / "night", 1, rows, seed=1)
        assert rounds.run("stages", refit(night, begin / "out")).status == 0
        shutil.copytree(begin, quiet.parent)
    assert rounds.run("stages", job(data, quiet)).status == 0
    expected, learned = digests(quiet), learned_rows(quiet)
    assert learned[-1][1:] == ((3 * rows, 2) if job is refit else (2 * rows, 1))
    step, found_published = 1, 0
    while True:
        place = memory / f"step-{step}"
        shutil.copytree(begin, place)
        asked = {"job": job(data, place / "out"), "step": step}
        killed = rounds.run(f"{__name__}:{run_and_kill.__name__}", asked)
        if not killed.killed:
            break
        last = rounds.run("stages", asked["job"])
        assert last.status == 0, (step, last.error)
        assert digests(place / "out") == expected, step
        assert learned_rows(place / "out") == learned, step
        assert beside(place) == {"out"}, step
        found_published += last.stages == []
        shutil.rmtree(place)
        step += stride
    assert killed.status == 0, killed.error
    assert step - stride <= killed.answer < step
    assert found_published * stride > 10  # of the operations behind the rename
