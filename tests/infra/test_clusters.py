"""Real clusters: started, used, shut; found by address and left alone; and what is said where they cannot be had."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client
from distributed.process import AsyncProcess
from distributed.scheduler import KilledWorker
from pydantic import ValidationError

from infra import gpus
from infra.clusters import local, resolve
from infra.clusters.cuda_settings import memory_settings, pool_settings, threads_for
from infra.clusters.model import Cluster
from infra.clusters.resolve import Connection, resolve_cluster, workers_of
from infra.environment import METHOD
from tasks.cluster.dask_pool import workers_at
from tasks.errors import GiveUpError
from tests.clusters import make_cluster, start_threads
from tests.conftest import free_port

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters")]
T4 = gpus.Gpu(0, "GPU-aaaa", "T4", 16 * 10**9)
H200 = [gpus.Gpu(i, f"GPU-{i}{i}", "H200", 140 * 10**9) for i in range(2)]


def of_worker(dask_worker: Any) -> dict[str, Any]:
    """What a worker process sees of itself."""
    import dask.config
    import pyarrow

    listens = {c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}
    return {
        "pid": os.getpid(), "threads": dask_worker.state.nthreads, "memory": dask_worker.memory_manager.memory_limit,
        "arrow": pyarrow.cpu_count(), "listens": listens, "shuffle": dask.config.get("dataframe.shuffle.method"),
        "pause": dask.config.get("distributed.worker.memory.pause"), "folder": dask_worker.local_directory,
    }  # fmt: skip


@pytest.mark.promise("one worker per GPU, or one with a thread per core")
@pytest.mark.promise(
    "What rowmill starts on this host (Prefect server, Dask scheduler, workers, dashboard) listens on the loopback"
)
def test_one_worker_with_a_thread_per_core_on_the_loopback_only() -> None:
    with make_cluster(Cluster(kind="cpu")) as cluster, Client(cluster, set_as_default=False) as client:
        (seen,) = client.run(of_worker).values()
        assert client.gather(client.map(lambda x: x * x, range(4))) == [0, 1, 4, 9]
        assert cluster.scheduler.allowed_failures == 0
        ours = {c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}
        assert cluster.dashboard_link == ""
    assert seen["pid"] != os.getpid()
    assert seen["threads"] == seen["arrow"] == local.CPU_COUNT
    assert seen["listens"] == ours == {"127.0.0.1"}
    assert (seen["shuffle"], seen["pause"]) == ("tasks", False)
    assert not psutil.pid_exists(seen["pid"])


def test_a_cluster_takes_no_variables_from_the_one_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def seen(**asked: Any) -> int:
        with make_cluster(Cluster(kind="cpu", **asked)) as cluster, Client(cluster, set_as_default=False) as client:
            return int(next(iter(client.run(of_worker).values()))["arrow"])

    def ours() -> list[str]:
        """What rowmill says: Dask talks as much as the tests before have left its loggers to."""
        return [record.getMessage() for record in caplog.records if not record.name.startswith("distributed")]

    assert [seen(threads_per_worker=n) for n in (1, 3)] == [1, 3]
    assert not ours()
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert seen(threads_per_worker=2) == 5  # the user's own
    assert not ours()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert seen(threads_per_worker=2) == 1
    assert "OMP_NUM_THREADS=1 thread(s) instead of 2" in "".join(caplog.messages)
    monkeypatch.undo()
    assert seen() == local.CPU_COUNT


@pytest.mark.promise("the protocol (tls; ucx and tcp only with `unencrypted: true`)")
def test_two_workers_as_asked(tmp_path: Path) -> None:
    asked = Cluster(
        kind="cpu", workers=2, threads_per_worker=1, memory_limit="1GB", local_directory=str(tmp_path),
        resources={"transform": {"GPU": 1}, "ingest": {"disk": 2}},
    )  # fmt: skip
    with make_cluster(asked) as cluster, Client(cluster, set_as_default=False) as client:
        seen = list(client.run(of_worker).values())
        assert client.submit(os.getpid, resources={"GPU": 1}).result() in [worker["pid"] for worker in seen]
        assert {tuple(spec["resources"].items()) for spec in workers_at(client).values()} == {(("GPU", 1), ("disk", 2))}
    assert [(worker["threads"], worker["memory"]) for worker in seen] == [(1, 10**9)] * 2
    assert len({worker["pid"] for worker in seen}) == 2
    assert all(worker["folder"].startswith(str(tmp_path)) for worker in seen)


@pytest.mark.promise("number of workers, for the kinds cpu and slurm")
def test_workers_come_and_go_between_the_bounds_of_adapt() -> None:
    asked = Cluster(kind="cpu", threads_per_worker=1, adapt={"minimum": 1, "maximum": 2})
    with make_cluster(asked) as cluster, Client(cluster, set_as_default=False) as client:
        assert len(cluster.workers) == 1
        begun = client.map(time.sleep, [0.5] * 12, pure=False)
        client.wait_for_workers(2, timeout=240)
        client.gather(begun)


def test_a_killed_worker_fails_its_task_at_once_and_comes_back(capfd: pytest.CaptureFixture[str]) -> None:
    with make_cluster(Cluster(kind="cpu")) as cluster, Client(cluster, set_as_default=False) as client:
        (first,) = client.run(os.getpid).values()
        with pytest.raises(KilledWorker):
            client.submit(os.kill, first, signal.SIGKILL).result(timeout=30)
        assert client.submit(os.getpid).result(timeout=30) != first
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_takes_its_time_to_die_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def late(process: AsyncProcess) -> None:  # as a busy system does it
        threading.Timer(2.5, os.kill, (process.pid, signal.SIGKILL)).start()

    monkeypatch.setattr(AsyncProcess, "kill", late)
    with make_cluster(Cluster(kind="cpu")) as cluster, Client(cluster, set_as_default=False) as client:
        (pid,) = client.run(os.getpid).values()
        os.kill(pid, signal.SIGSTOP)  # it does not hear that it shall end
    assert not psutil.pid_exists(pid)


@pytest.mark.promise("`auto` takes the GPUs of the host if there are any, else its cores")
@pytest.mark.parametrize("form", [{"kind": "cpu"}, {"kind": "auto"}, {}])
def test_without_a_gpu_the_cores_are_taken(form: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "list_all_gpus", list)
    assert resolve_cluster(Cluster(**form)) == ("cpu", "pandas")


@pytest.mark.promise("`auto` takes the GPUs of the host if there are any, else its cores")
@pytest.mark.promise("a worker per GPU, cuDF instead of pandas", "infra/README.md#on-gpus")
@pytest.mark.promise("`the packages for GPUs are not installed`")
def test_a_gpu_is_taken_if_its_packages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "list_all_gpus", lambda: [T4])
    monkeypatch.setattr(gpus, "packages_missing", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert resolve_cluster(Cluster()) == resolve_cluster(Cluster(kind="cuda")) == ("cuda", "cudf")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert resolve_cluster(Cluster()) == ("cpu", "pandas")
    with pytest.raises(GiveUpError, match="CUDA_VISIBLE_DEVICES is ''"):
        resolve_cluster(Cluster(kind="cuda"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(gpus, "packages_missing", lambda: ["cudf"])
    assert resolve_cluster(Cluster()) == ("cpu", "pandas")
    with pytest.raises(GiveUpError, match=r"missing: cudf\n.*pip install 'rowmill\[cuda13\]'"):
        make_cluster(Cluster(kind="cuda"))


def test_a_worker_with_the_packages_but_no_visible_gpu_is_one_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "find_spec", lambda name: object())
    monkeypatch.setattr(gpus, "list_all_gpus", lambda: [gpus.Gpu(0, "GPU-a", "T4", 16)])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus.is_usable()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not gpus.is_usable()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(gpus, "find_spec", lambda name: None)
    assert not gpus.is_usable()


@pytest.mark.promise("`no GPU`", "infra/README.md#when-it-fails")
def test_a_gpu_asked_for_and_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "list_all_gpus", list)
    for attempt in (make_cluster, resolve_cluster):
        with pytest.raises(GiveUpError) as caught:
            attempt(Cluster(kind="cuda"))
        assert str(caught.value).splitlines() == [
            "no GPU", "  where: cluster.kind = cuda",
            "  why: neither NVML nor nvidia-smi reports one",
            "  do: set cluster.kind to cpu or auto",
        ]  # fmt: skip


@pytest.mark.promise("the protocol (tls; ucx and tcp only with `unencrypted: true`)")
def test_only_the_gpus_asked_for_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "list_all_gpus", lambda: H200)
    monkeypatch.setattr(gpus, "packages_missing", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert resolve.choose_gpus(Cluster(visible_devices=[1, 0])) == H200[::-1]
    assert resolve.choose_gpus(Cluster(visible_devices="GPU-1")) == H200[1:]
    assert resolve.choose_gpus(Cluster(workers=1)) == H200[:1]
    with pytest.raises(GiveUpError, match=r"no GPU 7\n.*\n  do: choose from: 0 \(H200\), 1 \(H200\)"):
        resolve.choose_gpus(Cluster(visible_devices=[0, 7]))
    with pytest.raises(GiveUpError, match="3 workers for 2 GPU"):
        resolve.choose_gpus(Cluster(workers=3))


@pytest.mark.promise("sizes per worker: 16GB, or 0.5 of the whole")
def test_allocator_and_spilling_fit_the_gpus_found() -> None:
    assert memory_settings(Cluster(), [T4], "tcp") == {"device_memory_limit": 8_000_000_000}
    assert pool_settings(Cluster(), [T4], "tcp") == {"limit": 14_720_000_000, "shared": True}
    assert memory_settings(Cluster(), H200, "tls") == {"device_memory_limit": 70_000_000_000 // 256 * 256}
    assert pool_settings(Cluster(cuda_ipc=False), H200, "tls") == {"limit": 128_800_000_000, "shared": False}
    asked = Cluster(rmm_pool_size=1, device_memory_limit="8GB")
    assert memory_settings(asked, [T4], "tcp") == {"device_memory_limit": 8 * 10**9}
    assert pool_settings(asked, [T4], "tcp") == {"limit": 16 * 10**9, "shared": True}


def test_ucx_has_a_pool_of_rmm() -> None:
    assert pool_settings(Cluster(), H200, "ucx") == {}
    assert memory_settings(Cluster(), H200, "ucx") == {
        "rmm_pool_size": 84_000_000_000 // 256 * 256, "device_memory_limit": 63_000_000_000 // 256 * 256,
    }  # fmt: skip
    limited = memory_settings(Cluster(rmm_pool_size="50GB"), H200, "ucx")
    assert (limited["rmm_pool_size"], limited["rmm_maximum_pool_size"]) == (50 * 10**9, 50 * 10**9)


def test_a_gpu_has_a_thread_for_8_gib_that_may_be_allocated() -> None:
    assert [threads_for(Cluster(), found) for found in ([T4], H200, [*H200, T4])] == [8, 16, 8]
    sizes = ("1.5GB", "90GB", "0.5", "500GB")
    assert [threads_for(Cluster(rmm_pool_size=size), H200) for size in sizes] == [8, 10, 8, 16]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """The address of a scheduler with a worker that somebody else has started."""
    with start_threads([{}]) as cluster:
        yield cluster.scheduler_address


@pytest.mark.promise("rowmill never closes it", "flows/KEYS.md#cluster")
def test_a_running_scheduler_is_used_and_never_closed(elsewhere: str) -> None:
    asked = Cluster(kind="address", address=elsewhere)
    assert resolve_cluster(asked) == ("address", "cudf" if find_spec("cudf") else "pandas")
    for _ in range(2):
        with make_cluster(asked) as cluster:
            assert cluster.scheduler_address == elsewhere
            with Client(cluster, set_as_default=False) as client:
                assert client.submit(sum, [1, 2]).result() == 3
                assert client.dashboard_link
        assert cluster.status.name == "closed"


def test_a_process_that_uses_a_running_scheduler_starts_its_own_workers_as_before(elsewhere: str) -> None:
    """Workers that it has started itself may be started again while the run works, and after it."""
    import dask.config

    for method in ("forkserver", "spawn"):
        with dask.config.set({METHOD: method}):
            with make_cluster(Cluster(kind="address", address=elsewhere)):
                assert dask.config.get(METHOD) == method
            assert dask.config.get(METHOD) == method


def test_a_flow_runs_on_the_cluster_that_its_parameter_names(elsewhere: str, prefect_server: Any) -> None:
    from prefect import flow, task
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from infra.orchestration.task_runner import runner, use_cluster

    @task
    def where() -> str:
        from distributed import worker_client

        with worker_client() as client:
            return str(client.scheduler.address)

    @flow(task_runner=runner())
    def asks(cluster: dict[str, Any]) -> str:
        use_cluster(Cluster(**cluster))
        return where.submit().result()

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        assert asks({"kind": "address", "address": elsewhere}) == elsewhere
        given = asks.with_options(task_runner=runner({"kind": "address", "address": elsewhere}))
        assert given({}) == elsewhere


@pytest.mark.promise("`no Dask scheduler answers`")
def test_nobody_answers_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "LOOK_SECONDS", 1)
    address = f"tcp://127.0.0.1:{free_port()}"
    begin = time.monotonic()
    with pytest.raises(GiveUpError) as caught:
        make_cluster(Cluster(kind="address", address=address))
    assert time.monotonic() - begin < 60
    assert caught.value.what == "no Dask scheduler answers"
    assert caught.value.where == f"cluster.address = {address}"
    assert "dask scheduler" in caught.value.do


@pytest.mark.parametrize("address", ["tls://127.0.0.1:1", "nowhere", "smoke://127.0.0.1:1"])
def test_a_client_that_cannot_connect_is_closed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "LOOK_SECONDS", 1)
    with pytest.raises(GiveUpError, match="no Dask scheduler answers"):
        workers_of(Cluster(kind="address", address=address, unencrypted=True))
    assert {found.status for found in gc.get_objects() if type(found) is Connection} <= {"closed"}


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"kind": "cpus"}, "Input should be 'auto', 'cuda', 'cpu', 'address', 'ssh', 'slurm', 'kubernetes' or 'class'"),
        ({"worker": 2}, "Extra inputs are not permitted"),
        ({"workers": 0}, "greater than or equal to 1"),
        ({"kind": "address"}, "kind: address needs `address`"),
        ({"address": "tcp://h:1"}, "`address` belongs to kind: address"),
        ({"memory_limit": "much"}, "is not a size"),
        ({"rmm_pool_size": 0}, "is not a size"),
        ({"kind": "cuda", "adapt": {"maximum": 2}}, "does not scale"),
        ({"adapt": {"minimum": 3, "maximum": 2}}, "minimum 3 is above maximum 2"),
    ],
)
def test_a_wrong_section_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Cluster(**section)
    assert said in str(caught.value)
