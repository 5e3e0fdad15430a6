"""Workers killed with kill -9 in every stage and between stages: the run completes with the same bytes, or fails
honestly."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.manifest import Manifest
from tests.faults.jobs import STAGES, digests, flow_state, go, make_data, make_job, run_flow, task_runs
from tests.faults.small_blocks import ROWS
from tests.infra.elsewhere import eventually, is_worker

pytestmark = pytest.mark.xdist_group("faults")
QUIET = [(stage, "Completed") for stage in STAGES]
AGAIN = [run for stage in STAGES for run in ((stage, "Crashed"), (f"{stage} again 1", "Completed"))]
EVERYWHERE = [{"at": place, "call": 1 if stage == "ingest" else 2} for stage, place in STAGES.items()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def data(place: Path) -> Path:
    return make_data(place / "data", rows=ROWS)


@pytest.fixture(scope="module")
def expected(data: Path, place: Path, in_small_blocks: None) -> dict[str, str]:
    """The files of an undisturbed run in this process, the whole source as one partition."""
    sections = {"source": {"partition_size": "1GB"}, "run": {"min_partition_size": "1GB"}}
    go(make_job(data, place / "quiet", **sections), "pandas")
    found = digests(place / "quiet")
    assert len(found) == 5
    return found


def workers() -> set[int]:
    """The worker processes of this process's clusters."""
    return {child.pid for child in psutil.Process().children(recursive=True) if is_worker(child)}


def kill_workers_before(monkeypatch: pytest.MonkeyPatch, stages: Sequence[str]) -> list[str]:
    """From now on kill -9 ends the workers of a run before it begins with one of the stages; the stages that begin."""
    from flows.run import session
    from flows.run import stages as run_stages

    run_stage, started, of_others = run_stages.run_stage, list[str](), workers()

    def between(function: Any, *args: Any) -> Any:
        started.append(function.name)
        if function.name in stages:
            for worker in workers() - of_others:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)  # as the kernel does when memory is short
        return run_stage(function, *args)

    monkeypatch.setattr(session, "run_stage", between)
    return started


def completed(runs: Sequence[tuple[str, str]]) -> list[str]:
    """The stages that were completed, each as often as it was, sorted as in STAGES.

    The server's order may be another one: a stage whose worker could not tell it starts there when the flow does.
    """
    return sorted((name.split(" ")[0] for name, final in runs if final == "Completed"), key=list(STAGES).index)


@pytest.mark.promise("A killed worker costs its stage another attempt")
def test_one_worker_killed_once_in_every_stage(
    faults: Callable[..., None], data: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    faults(*EVERYWHERE)
    state = run_flow(make_job(data, tmp_path / "out"))  # four partitions
    assert task_runs(state, AGAIN) == AGAIN
    assert flow_state(state) == "Completed"
    assert digests(tmp_path / "out") == expected
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out"]
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        *expected,
        "_manifest.json",
        "_published.json",
        "_report.html",
        "_workflow",
    }


@pytest.mark.nightly
def test_two_workers_killed_in_every_stage_and_between_transform_and_shuffle_write(
    faults: Callable[..., None], data: Path, tmp_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = kill_workers_before(monkeypatch, ["shuffle_write"])
    faults(*({"at": place} for place in STAGES.values()))  # the first call of each: two partitions, two workers
    two = {"workers": 2, "threads_per_worker": 1}
    state = run_flow(
        make_job(data, tmp_path / "out", source={"partition_size": "500kB"}, cluster=two, run={"retries": 2})
    )
    eventually(lambda: {final for _, final in task_runs(state)} == {"Crashed", "Completed"})
    runs = task_runs(state)
    assert started == list(STAGES)
    assert {name for name, final in runs if final == "Crashed"} >= set(STAGES)
    assert {final for _, final in runs} == {"Crashed", "Completed"}
    assert completed(runs) == list(STAGES)
    assert flow_state(state) == "Completed"
    assert digests(tmp_path / "out") == expected


def test_stages_whose_workers_were_killed_before_they_told_the_server_are_completed_there(
    faults: Callable[..., None], data: Path, tmp_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults(*({"at": STAGES[stage], "do": "mute", "always": True} for stage in ("ingest", "statistics")))
    started = kill_workers_before(monkeypatch, list(STAGES)[1:])
    state = run_flow(make_job(data, tmp_path / "out", run={"retries": 2}))
    assert started == list(STAGES)
    assert flow_state(state) == "Completed"
    assert digests(tmp_path / "out") == expected
    eventually(lambda: completed(task_runs(state)) == list(STAGES))
    runs = task_runs(state)
    assert completed(runs) == list(STAGES), runs
    assert {final for _, final in runs} <= {"Crashed", "Completed"}, runs


@pytest.mark.promise("`a worker was lost in each of`")
def test_a_worker_killed_in_every_attempt_is_a_failed_run_that_can_be_resumed(
    faults: Callable[..., None], data: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    faults({"at": STAGES["transform"], "always": True})
    state = run_flow(make_job(data, tmp_path / "out"))
    assert flow_state(state) == "Failed"
    lost = [*QUIET[:2], ("transform", "Crashed"), ("transform again 1", "Crashed")]
    assert task_runs(state, lost) == lost
    assert "a worker was lost in each of 2 attempts of transform" in state.message
    assert "run the same job again: what is done is kept" in state.message
    assert not (tmp_path / "out").exists()

    assert go(make_job(data, tmp_path / "out"), "pandas") == ["ingest", "statistics"]
    assert digests(tmp_path / "out") == expected
    assert not (tmp_path / ".out.rowmill").exists()


@pytest.mark.promise("So neither the number of workers nor the partition size nor a retry changes a byte")
@pytest.mark.promise("how often a stage is tried again after a failure that may pass")
def test_what_passes_is_tried_again_by_prefect(
    faults: Callable[..., None], data: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    faults(*({"at": STAGES[stage], "do": "hiccup", "call": 2} for stage in ("statistics", "shuffle_write")))
    state = run_flow(make_job(data, tmp_path / "out"))
    assert task_runs(state, QUIET) == QUIET
    assert digests(tmp_path / "out") == expected
    stages = Manifest.load(tmp_path / "out").data["stages"]
    assert [stages[name]["retries"] for name in STAGES] == [0, 1, 0, 1]
