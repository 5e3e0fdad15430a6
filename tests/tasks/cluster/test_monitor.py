"""Samples of workers: from the beginning of a stage to its end, on any cluster, never in the way."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.clusters.model import Cluster
from tasks.cluster import monitor, usage
from tasks.cluster.dask_pool import workers_at
from tasks.cluster.monitor import UsageSample
from tests.clusters import make_cluster


def sample(at: float, **known: Any) -> UsageSample:
    zero = dict.fromkeys(("cpu", "rss", "to_host", "to_disk", "sent", "rows", "bytes"), 0)
    return UsageSample(**{**zero, "device": None, "own": None, "busy": None, "at": at, **known})


def counted(rows: int) -> int:
    monitor.count(rows, 8 * rows)
    time.sleep(0.7)
    return rows


@pytest.fixture(scope="module")
def quiet() -> Iterator[Any]:
    """A client of a worker that does nothing else: what an earlier test has left on the session's is counted, too."""
    from distributed import Client

    with (
        make_cluster(Cluster(kind="cpu", threads_per_worker=2)) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.system
@pytest.mark.promise("Workers are sampled twice a second by a thread that ends soon after the run")
def test_a_stage_of_some_seconds_is_sampled_twice_a_second_and_its_rows_are_counted(quiet: Any) -> None:
    began = time.time()
    with monitor.watch_workers(quiet, list(workers_at(quiet))) as watch:
        while not watch.workers:
            time.sleep(0.01)
        assert sum(quiet.gather(quiet.map(counted, [10, 20, 30, 40], pure=False))) == 100
    (worker,) = watch.workers.values()
    samples = worker["samples"]

    assert len(samples) >= 3
    assert samples[-1].rows - samples[0].rows == 100
    assert samples[-1].bytes - samples[0].bytes == 800
    assert began <= samples[0].at < samples[-1].at <= time.time()
    assert [s.at for s in samples] == sorted({s.at for s in samples})
    assert all(s.rss > 10_000_000 for s in samples)
    assert worker["transport"] == "tls"
    assert worker["threads"] >= 1


@pytest.mark.system
def test_rows_that_were_counted_before_the_first_answer_are_the_stage_s_own(quiet: Any) -> None:
    addresses = list(workers_at(quiet))
    with monitor.watch_workers(quiet, addresses):
        pass
    late = monitor.Watch(quiet, addresses)
    quiet.submit(counted, 50, pure=False).result()
    late.read()
    (worker,) = late.workers.values()
    assert worker["samples"][-1].rows - worker["samples"][0].rows == 50
    assert worker["samples"][0].at == late.began


@pytest.mark.system
def test_a_short_stage_has_its_first_and_its_last_sample(quiet: Any) -> None:
    with monitor.watch_workers(quiet, list(workers_at(quiet))) as watch:
        pass
    (worker,) = watch.workers.values()
    assert len(worker["samples"]) >= 2


def computed(seconds: float) -> float:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return seconds


@pytest.mark.system
@pytest.mark.promise("the seconds that the processes of the workers computed, all threads together")
def test_core_seconds_are_those_of_the_processes_of_workers(quiet: Any) -> None:
    with monitor.watch_workers(quiet, list(workers_at(quiet))) as watch:
        while not watch.workers:
            time.sleep(0.01)
        quiet.gather(quiet.map(computed, [0.4, 0.4], pure=False))
    taken = usage.measure_resources(watch.workers)
    assert set(taken) == {"core_seconds"}
    assert 0.8 <= taken["core_seconds"] < 3


@pytest.mark.system
def test_every_worker_of_a_cluster_is_sampled() -> None:
    from distributed import Client, LocalCluster

    address = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0", "host": None}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, **address) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        addresses = list(workers_at(client))
        with monitor.watch_workers(client, addresses) as watch:
            pass
        assert sorted(watch.workers) == sorted(addresses)
        assert {w["transport"] for w in watch.workers.values()} == {"inproc"}
        assert all(w["samples"] for w in watch.workers.values())


class Broken:
    """A client whose scheduler is gone."""

    scheduler = SimpleNamespace(identity=None)

    def sync(self, *args: Any, **options: Any) -> Any:
        raise TimeoutError("gone")

    def _run(self) -> None:
        raise AssertionError


def test_workers_that_do_not_answer_break_no_stage() -> None:
    with monitor.watch_workers(Broken(), ["tcp://a", "tcp://b"]) as watch:
        done = 1
    assert (done, watch.workers) == (1, {})


@pytest.mark.promise("All of it is off with `--set run.report=false`")
def test_nothing_is_sampled_where_nobody_wants_it() -> None:
    with monitor.watch_workers(Broken(), ["tcp://a"], wanted=False) as watch:
        assert not watch.thread.is_alive()
    assert watch.workers == {}


def test_a_stage_that_fails_is_told_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), monitor.watch_workers(Broken(), []):
        1 / 0


class Worker(SimpleNamespace):
    """What a sampler asks of a worker; unlike its base it can be referred to weakly."""


@pytest.mark.promise("Workers are sampled twice a second by a thread that ends soon after the run")
def test_the_thread_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "INTERVAL", 0.01)
    monkeypatch.setattr(monitor, "LEASE", 0.5)
    worker = Worker(data={}, transfer_outgoing_bytes_total=7, status=SimpleNamespace(name="running"))
    sampler = monitor.Sampler(worker)
    assert sampler.since(0.0)[-1].sent == 7
    thread = sampler.thread
    assert thread is not None
    thread.join(5)
    assert not thread.is_alive()
    assert len(sampler.samples) > 2


class Nvml:
    """NVML of a host with two GPUs, which refuse the functions and fields in `lacks`; `joules` are those of GPUs."""

    class NVMLError(Exception):
        pass

    NVML_SUCCESS, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 0, 138, 139
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    def __init__(self, lacks: Collection[str | int] = (), joules: float = 50.0) -> None:
        self.lacks, self.joules, self.asked = lacks, joules, list[str]()

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByIndex": lambda index: f"index {index}",
            "nvmlDeviceGetHandleByUUID": lambda uuid: f"uuid {uuid}",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetName": lambda handle: f"H200 {handle}",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=7, total=9),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
                SimpleNamespace(pid=1, usedGpuMemory=3), SimpleNamespace(pid=os.getpid(), usedGpuMemory=5),
            ],
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=80),
            "nvmlDeviceGetPowerUsage": lambda handle: 350_500,
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: int(self.joules * 1000),
            "nvmlDeviceGetPcieThroughput": lambda handle, way: 20 + way,
            "nvmlDeviceGetFieldValues": self.fields,
        }  # fmt: skip
        self.asked.append(name)
        if name in self.lacks:
            return self.refuse
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def refuse(self, *arguments: Any) -> Any:
        raise self.NVMLError

    def fields(self, handle: str, wanted: list[tuple[int, int]]) -> list[Any]:
        """Kibibytes that all links have moved; other scopes are single links."""
        assert {scope for _, scope in wanted} == {0xFFFFFFFF}
        return [SimpleNamespace(nvmlReturn=3 * (field in self.lacks), value=SimpleNamespace(ullVal=field))
                for field, _ in wanted]  # fmt: skip


OPTIONAL = (
    "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPcieThroughput",
)  # fmt: skip
NONE_OF_THEM = (7, *[None] * 6)


def gpu_of(nvml: Nvml | None, monkeypatch: pytest.MonkeyPatch) -> monitor._Device | None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return monitor._open_device()


def test_the_gpu_of_a_worker_is_the_first_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"1,0": "index 1", "GPU-aa": "uuid GPU-aa"}
    for visible, handle in names.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        device = gpu_of(Nvml(), monkeypatch)
        assert device is not None
        assert (device.name, device.uuid, device.total) == (f"H200 {handle}", f"GPU-{handle}", 9)


@pytest.mark.promise("A value that a GPU does not offer is left out, never 0")
@pytest.mark.parametrize(
    ("lacks", "reading", "pcie"),
    [
        ((), (7, 5, 80, 350.5, 50_000, 139 * 1024, 138 * 1024), (21_000, 20_000)),
        ((*OPTIONAL, "nvmlDeviceGetFieldValues"), NONE_OF_THEM, (None, None)),
        ((*OPTIONAL, 138, 139), NONE_OF_THEM, (None, None)),
        ((138, "nvmlDeviceGetPowerUsage"), (7, 5, 80, None, 50_000, 139 * 1024, None), (21_000, 20_000)),
    ],
)
def test_what_a_gpu_does_not_offer_is_none_and_never_zero(
    lacks: Any, reading: Any, pcie: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = gpu_of(Nvml(lacks), monkeypatch)
    assert device is not None
    assert tuple(device.read().values()) == (None, None, *reading)
    assert tuple(device.read(wait=True).values()) == (*pcie, *reading)


def test_energy_is_that_after_the_wait_for_pcie(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Nvml):
        def __getattr__(self, name: str) -> Any:
            self.joules += 5 * (name == "nvmlDeviceGetPcieThroughput")
            return super().__getattr__(name)

    device = gpu_of(Slow(), monkeypatch)
    assert device is not None
    assert device.read(wait=True)["energy"] == 60_000


def test_a_host_without_gpus_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_of(None, monkeypatch) is None
    assert gpu_of(Nvml(["nvmlInit"]), monkeypatch) is None


def test_pcie_which_takes_its_time_is_read_by_the_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other samples are taken in the event loop of the worker."""
    monkeypatch.setattr(monitor, "INTERVAL", 0.01)
    monkeypatch.setattr(monitor, "LEASE", 0.5)
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    worker = Worker(data={}, transfer_outgoing_bytes_total=7, status=SimpleNamespace(name="running"))
    sampler = monitor.Sampler(worker)
    sampler.sample()
    assert "nvmlDeviceGetPcieThroughput" not in nvml.asked
    (first,) = sampler.samples
    assert (first.watts, first.energy, first.pcie_in, first.nvlink_out) == (350.5, 50_000, None, 138 * 1024)
    sampler.since(0.0)
    assert sampler.thread is not None
    sampler.thread.join(5)
    assert (sampler.samples[-1].pcie_in, sampler.samples[-1].pcie_out) == (21_000, 20_000)


@pytest.mark.parametrize("loaded", [True, False])
def test_a_gpu_is_of_the_workers_whose_process_computes_on_it(loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    if loaded:
        monkeypatch.setitem(sys.modules, "cudf", SimpleNamespace())
    else:
        monkeypatch.delitem(sys.modules, "cudf", raising=False)
    worker = Worker(
        data={}, transfer_outgoing_bytes_total=7, status=SimpleNamespace(name="closed"), address="tcp://a", name=0,
        state=SimpleNamespace(nthreads=1), memory_manager=SimpleNamespace(memory_limit=None),
    )  # fmt: skip
    monkeypatch.setattr(monitor, "_samplers", {})
    assert monitor.look(0.0, worker)["gpu_uuid"] == ("GPU-index 0" if loaded else None)


@pytest.mark.gpu
@pytest.mark.system
def test_a_real_gpu_says_its_power_and_energy() -> None:
    from distributed import Client

    asked = Cluster(kind="cuda", workers=1, rmm_pool_size="1GB")
    with (
        make_cluster(asked) as cluster,
        Client(cluster, set_as_default=False) as client,
        monitor.watch_workers(client, list(workers_at(client))) as watch,
    ):
        time.sleep(3)
    (worker,) = watch.workers.values()
    taken = usage.measure_resources(watch.workers)
    assert all(1 <= s.watts <= 2000 for s in worker["samples"])
    assert taken["energy_joules"] > 0
    assert 1 <= taken["energy_joules"] / taken["gpu_seconds"] <= 2000
    assert any(s.pcie_in is not None for s in worker["samples"])


def test_spilled_bytes_are_those_of_dask_and_of_dask_cuda() -> None:
    dask = SimpleNamespace(spilled_total=SimpleNamespace(memory=9, disk=5))
    cuda = SimpleNamespace(
        host_buffer=SimpleNamespace(fast=SimpleNamespace(total_weight=3)), disk=SimpleNamespace(weights={"a": 4})
    )
    assert [monitor._count_spilled_bytes(store) for store in (dask, cuda, {})] == [(0, 5), (3, 4), (0, 0)]


def test_of_many_samples_the_first_and_the_last_are_kept() -> None:
    samples = [sample(float(i)) for i in range(5000)]
    kept = monitor.thin_samples(samples)
    assert len(kept) <= monitor.KEPT
    assert (kept[0].at, kept[-1].at) == (0.0, 4999.0)
    assert monitor.thin_samples(samples[:7]) == samples[:7]


def test_samples_are_found_again_and_broken_ones_are_none(tmp_path: Path) -> None:
    workers = {"tcp://a": {"name": "0", "host": "h", "samples": [sample(1.5, rows=3), sample(2.0, rows=9)]}}
    path = tmp_path / "samples" / "transform.json"
    monitor.save(path, workers)
    assert monitor.load(path) == workers
    path.write_text(path.read_text()[:40])
    assert monitor.load(path) == {}
    assert monitor.load(tmp_path / "none.json") == {}
