"""A stage whose tasks can never run: it is said what waits for what, tried again, and then the run fails."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect_dask.task_runners import PrefectDaskFuture

from flows.run.stages import wait_for
from tasks.cluster import stalled_tasks
from tasks.cluster.dask_pool import DaskPool
from tasks.errors import TransientError
from tasks.manifest import Manifest
from tests.faults.jobs import STAGES, digests, flow_state, go, make_data, make_job, run_flow
from tests.faults.small_blocks import ROWS

pytestmark = pytest.mark.xdist_group("faults")


def double(shared: int, item: int) -> int:
    return shared * item


def slow(shared: float, item: int) -> int:
    time.sleep(shared)
    return item


@pytest.mark.promise("the message has what waits and what workers offer")
def test_a_stage_whose_tasks_nobody_can_run_fails_and_says_what_the_scheduler_knows(client: Any) -> None:
    pool, began = DaskPool(client, {"nowhere": 1}), time.monotonic()
    with pytest.raises(TransientError) as caught, stalled_tasks.watch_for_stall("transform", pool, 2):
        pool.map(double, 2, [1, 2, 3])
    assert 2 <= time.monotonic() - began < 60
    assert caught.value.what == "transform made no progress for 2 s"
    assert "3 no-worker (3 double)" in caught.value.why
    assert "-000000 is no-worker, takes nowhere=1" in caught.value.why
    assert "offers " in caught.value.why
    assert "run.stalled_after" in caught.value.do
    assert pool.waiting() == []
    assert DaskPool(client).map(double, 2, [1, 2, 3]) == [2, 4, 6]


def test_a_stage_whose_tasks_take_long_or_that_works_itself_does_not_stand_still(client: Any) -> None:
    pool = DaskPool(client)
    with stalled_tasks.watch_for_stall("transform", pool, 1):
        assert pool.map(slow, 4.0, [1]) == [1]  # a worker says every half second what it runs
        time.sleep(3)
        assert pool.map(double, 2, [1]) == [2]


@pytest.mark.promise("Queues of SLURM, workers that `adapt` has requested and locks do not count")
def test_workers_that_are_expected_are_waited_for(client: Any) -> None:
    stall = stalled_tasks.Stall(client, lambda: ["a task"], 0.2)
    stalled_tasks.expect_workers(client, SimpleNamespace(plan={0, 1}, observed={0}), 600)
    for _ in range(3):
        assert stall.check() is None
        time.sleep(0.3)
    client.set_metadata(stalled_tasks.EXPECTED, 0.0)
    stalled_tasks.expect_workers(client, SimpleNamespace(plan={0}, observed={0}), 600)  # all have come
    deadline, facts = time.monotonic() + 60, None
    while facts is None and time.monotonic() < deadline:
        time.sleep(0.3)
        facts = stall.check()
    assert facts is not None
    assert facts["workers"]


def test_a_stage_that_no_worker_begins_is_not_waited_for(client: Any) -> None:
    stage = client.submit(double, 1, 2, resources={"nowhere": 1}, pure=False)
    with pytest.raises(stalled_tasks.NotBegunError, match="transform made no progress for 1 s"):
        wait_for(PrefectDaskFuture(uuid.uuid4(), stage), "transform", 1)
    assert stage.cancelled()
    done = client.submit(slow, 4.0, 1, pure=False)
    wait_for(PrefectDaskFuture(uuid.uuid4(), done), "transform", 1)
    assert done.result() == 1


class Fetched:
    """A value that writes a note when it leaves its worker."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getstate__(self) -> dict[str, Any]:
        with self.path.open("a") as notes:
            notes.write("fetched\n")
        return self.__dict__


def late(path: Path) -> Fetched:
    time.sleep(1.2)
    return Fetched(path)


def test_a_wait_for_a_stage_fetches_nothing(client: Any, tmp_path: Path) -> None:
    """A fetch that is cut off as it begins leaves a client whose every later fetch raises UnboundLocalError."""
    stage = client.submit(late, tmp_path / "notes", pure=False)
    wait_for(PrefectDaskFuture(uuid.uuid4(), stage), "transform")
    assert stage.status == "finished"
    assert not (tmp_path / "notes").exists()
    assert stage.result(60).path == tmp_path / "notes"
    assert (tmp_path / "notes").exists()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("stalled") / "data", files=2, rows=ROWS)


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory, in_small_blocks: None) -> dict[str, str]:
    """The files of an undisturbed run."""
    out = tmp_path_factory.mktemp("stalled") / "quiet"
    go(make_job(data, out), "pandas")
    return digests(out)


@pytest.mark.promise("but none runs and none ends, it is cancelled and tried again")
def test_a_stage_that_stands_still_once_is_tried_again(
    faults: Callable[..., None], data: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    faults({"at": "tasks.cluster.stalled_tasks:watch_for_stall", "call": 3, "do": "stall"})  # as transform begins
    assert run_flow(make_job(data, tmp_path / "out", run={"stalled_after": 3})).is_completed()
    stages = Manifest.load(tmp_path / "out").data["stages"]
    assert {name: stage["retries"] for name, stage in stages.items()} == {
        "ingest": 0, "statistics": 0, "transform": 1, "shuffle_write": 0,
    }  # fmt: skip
    assert digests(tmp_path / "out") == expected


@pytest.mark.parametrize("at", ["tasks.cluster.stalled_tasks:watch_for_stall", STAGES["transform"]])
def test_a_worker_that_is_stopped_is_lost_after_the_time(
    at: str, faults: Callable[..., None], data: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    faults({"at": at, "call": 1, "do": "stop"})  # the process that runs the stage, or one that works for it
    began = time.monotonic()
    cluster = {"kind": "cpu", "workers": 2, "threads_per_worker": 1}
    assert run_flow(make_job(data, tmp_path / "out", cluster=cluster, run={"stalled_after": 6})).is_completed()
    assert time.monotonic() - began < 100
    assert sum(stage["retries"] for stage in Manifest.load(tmp_path / "out").data["stages"].values()) == 1
    assert digests(tmp_path / "out") == expected


@pytest.mark.promise("but none runs and none ends, it is cancelled and tried again")
@pytest.mark.promise("`made no progress for`")
def test_a_stage_that_stands_still_in_every_attempt_is_a_failed_run(
    faults: Callable[..., None], data: Path, tmp_path: Path
) -> None:
    faults({"at": "tasks.cluster.stalled_tasks:watch_for_stall", "do": "stall", "always": True})
    state = run_flow(make_job(data, tmp_path / "out", run={"stalled_after": 3}))
    assert flow_state(state) == "Failed"
    assert "made no progress for 3 s" in state.message
    assert "takes nowhere=1" in state.message
    assert not (tmp_path / "out").exists()
