"""Names of other libraries that are not public, whose loss nobody would notice: what uses them goes on with less.

Each is shown to be there, by name, in the version that is installed. A hook that fails loudly, or that has a test of
what it does, needs none here: those are in test_local_server, test_nanny, test_handshake, test_profiler, test_doors,
and, of what only a GPU host has, in test_same_on_both_engines and test_cuda.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Hook(NamedTuple):
    """`where` uses the names `uses`; `without`: what is lost, silently, when a library renames one."""

    where: str
    uses: str
    reason: str
    without: str
    issue: str = "none known"


HOOKS = {
    "workers of a run": Hook(
        "flows/run/stopping.py", "_cluster _exit_stack",
        "a run that is stopped kills its workers: a thread cannot be interrupted",
        "workers write on for minutes, and the output is locked until they end",
        "https://github.com/PrefectHQ/prefect/issues/12976",
    ),
    "Dask's future": Hook(
        "flows/run/stages.py", "wrapped_future client status release key",
        "a lost worker is noticed while the flow waits, and a finished stage is not made again",
        "an AttributeError in the stage that was lost, instead of another attempt",
        "https://github.com/PrefectHQ/prefect/issues/15442",
    ),
    "client of the runner": Hook(
        "infra/orchestration/task_runner.py", "_client",
        "Dask computes a token of all arguments of a task run, though the id among them makes each different",
        "20 ms for each task run",
    ),
    "settings of task runs": Hook(
        "infra/orchestration/task_settings.py", "SettingsContext serialize",
        "a task run reads all settings and loads all certificate authorities anew",
        "0.1 to 0.2 s for each stage on a host with GPUs",
    ),
    "tags of task runs": Hook(
        "flows/run/stages.py", "TagsContext current_tags",
        "a tag on a task run asks the server over a connection that it has closed",
        "2 s for each task run",
    ),
    "Prefect's client": Hook(
        "tasks/stages/progress_artifact.py", "__var__",
        "Dask starts a task in the context of another stage, whose client is closed",
        "no artifacts and no progress of the stages after the first",
    ),
    "place of a thread": Hook(
        "tasks/stages/task.py", "proceed",
        "a retried stage has left the pool already and must not leave it twice",
        "a KeyError in a retry, or up to 1 s at the end of a stage",
        "https://github.com/dask/distributed/issues/2021",
    ),
    "spilled bytes": Hook(
        "tasks/cluster/monitor.py", "spilled_total disk",
        "the report shows what workers have spilled", "the report shows 0 bytes",
    ),
    "spilled bytes of GPUs": Hook(
        "tasks/cluster/monitor.py", "host_buffer fast total_weight",
        "the report shows what GPUs have spilled to the host", "the report shows 0 bytes",
    ),
    "limit of a worker": Hook(
        "tasks/cluster/out_of_memory.py", "memory_manager memory_limit",
        "a message of too little memory says how much the worker may use", "the message lacks that number",
    ),
    "moves of a scheduler": Hook(
        "tasks/cluster/stalled_tasks.py", "transition_counter long_running executing last_seen task_metadata",
        "a stage whose tasks wait for ever is ended and tried again", "the stage stands still for ever",
    ),
    "expected workers": Hook(
        "tasks/cluster/stalled_tasks.py", "plan observed",
        "a stage that waits for workers in a queue does not count as one that stands still",
        "such a stage is ended as one that stands still",
    ),
    "certificates of Slurm's jobs": Hook(
        "infra/clusters/jobs.py", "_job_",
        "the temporary certificates of a cluster are closed, and with that removed", "they stay until the process ends",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Iterator[Mapping[str, Any]]:
    """A scheduler and a worker in this process, as Prefect's runner holds them."""
    from distributed import LocalCluster
    from prefect_dask import DaskTaskRunner

    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with DaskTaskRunner(cluster_class=LocalCluster, cluster_kwargs=options) as runner:
        assert runner.client is not None  # made when it is first used
        cluster: Any = runner._cluster
        yield {"runner": runner, "cluster": cluster, "worker": next(iter(cluster.workers.values()))}


@pytest.mark.system
def test_the_runner_holds_its_workers(run: Mapping[str, Any]) -> None:
    assert isinstance(run["cluster"].workers, dict)
    assert callable(run["runner"]._exit_stack.close)


def test_a_nanny_can_be_told_not_to_start_another_worker() -> None:
    from distributed import Nanny

    assert callable(Nanny.close_gracefully)
    assert isinstance(Nanny.pid, property)


@pytest.mark.system
def test_a_stage_s_future_is_one_of_dask(run: Mapping[str, Any]) -> None:
    from distributed import Future
    from prefect.futures import PrefectWrappedFuture

    assert isinstance(PrefectWrappedFuture.wrapped_future, property)
    future = run["runner"].client.submit(sum, [1, 2])
    assert isinstance(future, Future)
    assert future.result() == 3
    assert future.status == "finished"
    assert future.client is run["runner"].client
    assert future.key in run["cluster"].scheduler.tasks
    future.release()


@pytest.mark.system
def test_the_runner_has_its_client_in_one_attribute_and_submits_without_a_token() -> None:
    from distributed import LocalCluster

    from infra.orchestration.task_runner import Runner

    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with Runner(cluster_class=LocalCluster, cluster_kwargs=options) as runner:
        client = runner.client
        assert runner._client is client is runner.client
        assert client.submit(sum, [1, 2]).key != client.submit(sum, [1, 2]).key


def test_tasks_get_settings_by_the_method_that_is_overridden() -> None:
    from prefect.context import SettingsContext, get_settings_context

    from infra.orchestration.task_settings import TaskSettings

    assert "serialize" in vars(TaskSettings)
    assert callable(SettingsContext.serialize)
    with TaskSettings.current() as settings:
        assert get_settings_context() is settings


def test_tags_of_a_flow_run_can_be_left_out() -> None:
    from prefect import tags
    from prefect.context import TagsContext

    from flows.run.stages import suspend_tags

    with tags("ours"), suspend_tags():
        assert TagsContext.get().current_tags == set()


def test_the_client_of_a_thread_is_a_context_variable() -> None:
    from prefect.context import SyncClientContext

    from tasks.stages.progress_artifact import prefect_client

    assert isinstance(SyncClientContext.__var__, ContextVar)
    other = SyncClientContext.model_construct()
    with prefect_client(other):
        assert SyncClientContext.get() is other
        with prefect_client(None):
            assert SyncClientContext.get() is None
        assert SyncClientContext.get() is other


def left_twice() -> list[bool]:
    """In a task: whether its thread belongs to the pool, at first and after it has left, twice."""
    from distributed.threadpoolexecutor import thread_state

    from tasks.stages.task import leave_pool

    found = [thread_state.proceed]
    for _ in range(2):
        leave_pool()
        found.append(thread_state.proceed)
    return found


@pytest.mark.system
def test_a_thread_knows_whether_it_has_left_the_pool(run: Mapping[str, Any]) -> None:
    assert run["runner"].client.submit(left_twice, pure=False).result() == [True, False, False]


def test_a_store_of_dask_knows_what_it_has_spilled(tmp_path: Path) -> None:
    from distributed.spill import SpillBuffer

    from tasks.cluster import monitor

    store = SpillBuffer(str(tmp_path), target=100)
    store["large"] = b"x" * 5000
    on_host, on_disk = monitor._count_spilled_bytes(store)
    assert on_host == 0
    assert on_disk > 1000


def test_a_buffer_of_zict_knows_its_weight() -> None:
    """What `host_buffer` of dask-cuda's store is."""
    import zict

    buffer: Any = zict.Buffer({}, {}, n=10, weight=lambda key, value: value)
    buffer["a"] = 7
    assert buffer.fast.total_weight == 7


@pytest.mark.gpu
def test_a_store_of_dask_cuda_knows_what_it_has_spilled(tmp_path: Path) -> None:
    module = importlib.import_module("dask_cuda.device_host_file")
    store = module.DeviceHostFile(
        worker_local_directory=str(tmp_path), device_memory_limit=1 << 20, memory_limit=1 << 30
    )
    assert store.host_buffer.fast.total_weight == 0
    assert hasattr(store, "disk")


@pytest.mark.system
def test_a_worker_knows_its_limit(run: Mapping[str, Any]) -> None:
    assert run["worker"].memory_manager.memory_limit > 0


@pytest.mark.system
def test_a_scheduler_counts_its_moves(run: Mapping[str, Any]) -> None:
    from tasks.cluster import stalled_tasks

    client = run["runner"].client
    before = client.run_on_scheduler(stalled_tasks.moves_of)
    client.submit(sum, [1, 2], pure=False).result()
    after = client.run_on_scheduler(stalled_tasks.moves_of)
    assert after["count"] > before["count"]
    assert not after["expected"]
    assert "incoming_count" in next(iter(run["cluster"].scheduler.workers.values())).metrics["transfer"]
    assert client.run_on_scheduler(stalled_tasks.state_of)["workers"]


@pytest.mark.system
def test_a_cluster_knows_which_workers_it_expects(run: Mapping[str, Any]) -> None:
    cluster = run["cluster"]
    assert len(cluster.plan) == len(cluster.observed) == 1
    assert cluster.plan - cluster.observed == set()


def test_a_slurm_cluster_has_its_certificates() -> None:
    core = pytest.importorskip("dask_jobqueue.core", reason="needs the extra slurm")
    source = inspect.getsource(core)
    assert 'setattr(self, "_job_" + key, f)' in source


def test_what_is_listed_is_used() -> None:
    missing = {
        name: word for name, hook in HOOKS.items() for word in hook.uses.split()
        if word not in (ROOT / hook.where).read_text()
    }  # fmt: skip
    assert missing == {}
