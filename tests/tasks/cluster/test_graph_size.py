"""What was learned reaches the workers by other ways than the task graph, which the scheduler keeps in its memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks import ops
from tasks.cluster import current, dask_pool, pool
from tasks.cluster.dask_pool import DaskPool
from tasks.dataset import Dataset
from tasks.stages import commit, ingest, shuffle_write, statistics, transform
from tasks.workflow import Workflow

DISTINCT = 400_000
VOCABULARY = 16 * DISTINCT  # bytes of its values and counts
SMALL = 50_000


class TaskSizes:
    """A scheduler plugin that weighs every task that a client or a worker hands in."""

    name = "rowmill-test-sizes"

    def __init__(self) -> None:
        self.sizes: dict[Any, int] = {}

    def update_graph(self, scheduler: Any, *, keys: Any, **_: Any) -> None:
        specs = {key: scheduler.tasks[key].run_spec for key in scheduler.tasks if key not in self.sizes}
        self.sizes |= {key: len(pickle.dumps(spec)) for key, spec in specs.items() if spec is not None}


@pytest.fixture
def sizes(client: Any) -> Any:
    """How many bytes each task takes that is made while the test runs."""
    from distributed.diagnostics.plugin import SchedulerPlugin

    class Plugin(TaskSizes, SchedulerPlugin):  # type: ignore[misc]
        pass

    scheduler, plugin = client.cluster.scheduler, Plugin()
    before = {key for key, task in scheduler.tasks.items() if task.run_spec is not None}
    scheduler.add_plugin(plugin)
    plugin.sizes = dict.fromkeys(before, 0)
    yield plugin.sizes
    scheduler.remove_plugin(plugin.name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """400,000 distinct integers in two files, and a number."""
    source = tmp_path / "in"
    source.mkdir()
    values = np.random.default_rng(0).permutation(DISTINCT) << 20
    for part in range(2):
        half = values[part::2]
        pq.write_table(pa.table({"k": half, "x": half / 7}), source / f"{part}.parquet")
    return source


def nodes() -> Any:
    """Two phases: the second one needs the vocabulary that the first one learns."""
    coded = ["k"] >> ops.Categorify()
    return coded + (coded >> ops.Rename(postfix="_n") >> ops.Normalize()) + (["x"] >> ops.Normalize())


def test_a_later_phase_of_the_statistics_gets_the_vocabulary_past_the_graph(
    client: Any, engine: str, folder: Path, sizes: dict[Any, int]
) -> None:
    workflow = Workflow(nodes()).fit(Dataset(folder, engine=engine, partition_size="2MB"))
    assert workflow.state is not None
    vocabulary = next(v["values"] for v in workflow.state.values.values() if "values" in v)
    assert vocabulary.num_rows == DISTINCT
    assert vocabulary.nbytes >= VOCABULARY
    assert len(sizes) > 6
    assert max(sizes.values()) < SMALL


def test_transform_and_write_get_it_from_the_folder_of_the_output(
    client: Any, engine: str, folder: Path, tmp_path: Path, sizes: dict[Any, int]
) -> None:
    dataset = Dataset(folder, engine=engine, partition_size="2MB")
    made = Workflow(nodes()).fit(dataset).transform(dataset)
    sizes.clear()
    manifest = made.to_parquet(tmp_path / "out", files=3)
    assert manifest.data["rows"]["out"] == DISTINCT
    assert sorted(pq.read_table(tmp_path / "out", columns=["k"])["k"].to_pylist()) == list(range(3, DISTINCT + 3))
    assert max(sizes.values()) < SMALL
    assert Workflow.load(tmp_path / "out").state.values.keys() == made.workflow.state.values.keys()


def test_a_dask_frame_of_a_workflow_has_it_once_for_all_partitions(
    client: Any, engine: str, folder: Path, sizes: dict[Any, int]
) -> None:
    dataset = Dataset(folder, engine=engine, partition_size="2MB")
    workflow = Workflow(nodes()).fit(dataset)
    sizes.clear()
    ddf = workflow.transform(dataset).to_ddf()
    found = ddf["k"].sum().compute()
    assert ddf.npartitions == 2
    assert int(found) == sum(range(3, DISTINCT + 3))
    assert max(sizes.values()) < SMALL


def test_a_run_hands_the_workers_the_place_of_the_state(
    client: Any, engine: str, folder: Path, tmp_path: Path, sizes: dict[Any, int]
) -> None:
    job = make_job({
        "source": {"path": str(folder), "partition_size": "2MB"},
        "features": [{"columns": ["k"], "ops": [{"op": "Categorify"}, {"op": "Normalize"}]}],
        "output": {"path": str(tmp_path / "out"), "files": 2},
        "run": {"min_partition_size": 1000},
    })  # fmt: skip
    request, workers = job.request(engine), DaskPool(client)
    with request.staging.hold_lock():
        done = [ingest.ingest(request, workers), statistics.statistics(request, workers)]
        done += [transform.transform(request, "", workers), shuffle_write.shuffle_write(request, "", workers)]
        commit.commit(request, done)
    assert pq.read_table(tmp_path / "out").num_rows == DISTINCT
    assert max(sizes.values()) < SMALL


def at(numbers: np.ndarray, place: int) -> tuple[int, int]:
    """(the number at a place, who the array is)."""
    return int(numbers[place]), id(numbers)


def test_what_is_small_goes_along_with_its_tasks_and_is_made_once(
    client: Any, sizes: dict[Any, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, numbers = DaskPool(client), np.arange(2_000)
    found = workers.map(at, numbers, range(6))
    assert [number for number, _ in found] == list(range(6))
    assert len({who for _, who in found}) <= len(workers.workers)
    assert min(size for key, size in sizes.items() if key.startswith("at-")) > numbers.nbytes
    sizes.clear()
    monkeypatch.setattr(current, "LARGE", 6 * numbers.nbytes - 1)
    monkeypatch.setattr(dask_pool, "LARGE", 6 * numbers.nbytes - 1)
    assert [number for number, _ in workers.map(at, numbers, range(6))] == list(range(6))
    assert max(size for key, size in sizes.items() if key.startswith("at-")) < numbers.nbytes
    assert pool.count_pickled_bytes(pa.table({"x": numbers})) >= numbers.nbytes


def test_many_tasks_are_handed_in_by_and_by(
    client: Any, sizes: dict[Any, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_pool, "BATCH", 40)
    numbers = list(range(100))
    done: list[int] = []
    assert DaskPool(client).map(plus, 1, numbers, lambda number, _: done.append(number)) == list(range(1, 101))
    assert sorted(done) == numbers
    assert sum("plus-" in str(key) for key in sizes) == 100


def test_a_stage_on_a_worker_shares_what_is_large_the_same_way(client: Any, sizes: dict[Any, int]) -> None:
    found = client.submit(in_a_stage, dask_pool.LARGE + 1, key="in-a-stage").result()
    assert found == [dask_pool.LARGE + 1 + i for i in range(5)]
    assert max(sizes.values()) < SMALL


def in_a_stage(nbytes: int) -> list[int]:
    """What a stage does: leave the thread to the partitions, and hand them what they share."""
    from distributed import get_client, secede

    workers = DaskPool(get_client())
    secede()
    return workers.map(length_plus, bytes(nbytes), range(5))


def length_plus(shared: bytes, item: int) -> int:
    return len(shared) + item


def plus(shared: int, item: int) -> int:
    return shared + item
