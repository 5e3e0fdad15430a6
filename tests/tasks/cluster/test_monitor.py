"""Samples of workers: from the beginning of a stage to its end, on any cluster, never in the way."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.clusters.model import Cluster
from tasks.cluster import monitor
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
    with monitor.watched(quiet, list(workers_at(quiet))) as watch:
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
    with monitor.watched(quiet, addresses):
        pass
    late = monitor.Watch(quiet, addresses)
    quiet.submit(counted, 50, pure=False).result()
    late.read()
    (worker,) = late.workers.values()
    assert worker["samples"][-1].rows - worker["samples"][0].rows == 50
    assert worker["samples"][0].at == late.began


@pytest.mark.system
def test_a_short_stage_has_its_first_and_its_last_sample(quiet: Any) -> None:
    with monitor.watched(quiet, list(workers_at(quiet))) as watch:
        pass
    (worker,) = watch.workers.values()
    assert len(worker["samples"]) >= 2


@pytest.mark.system
def test_every_worker_of_a_cluster_is_sampled() -> None:
    from distributed import Client, LocalCluster

    address = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0", "host": None}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, **address) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        addresses = list(workers_at(client))
        with monitor.watched(client, addresses) as watch:
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
    with monitor.watched(Broken(), ["tcp://a", "tcp://b"]) as watch:
        done = 1
    assert (done, watch.workers) == (1, {})


@pytest.mark.promise("All of it is off with `--set run.report=false`")
def test_nothing_is_sampled_where_nobody_wants_it() -> None:
    with monitor.watched(Broken(), ["tcp://a"], wanted=False) as watch:
        assert not watch.thread.is_alive()
    assert watch.workers == {}


def test_a_stage_that_fails_is_told_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), monitor.watched(Broken(), []):
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


class Nvml(SimpleNamespace):
    """NVML of a host with two GPUs; `denied` is what this user must not ask."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"index {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return f"uuid {uuid}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"H200 {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=7, total=9)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        if self.denied:
            raise self.NVMLError
        return [SimpleNamespace(pid=1, usedGpuMemory=3), SimpleNamespace(pid=os.getpid(), usedGpuMemory=5)]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if self.denied:
            raise self.NVMLError
        return SimpleNamespace(gpu=80)


@pytest.mark.parametrize(("denied", "found"), [(False, (7, 5, 80)), (True, (7, None, None))])
def test_the_gpu_of_a_worker_is_the_first_that_it_may_use(
    denied: bool, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(denied=denied))
    names = {"1,0": "H200 index 1", "GPU-aa": "H200 uuid GPU-aa"}
    for visible, name in names.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        device: Any = monitor._device()
        assert (device.name, device.total, device()) == (name, 9, found)


def test_a_host_without_gpus_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert monitor._device()() == (None, None, None)


def test_spilled_bytes_are_those_of_dask_and_of_dask_cuda() -> None:
    dask = SimpleNamespace(spilled_total=SimpleNamespace(memory=9, disk=5))
    cuda = SimpleNamespace(
        host_buffer=SimpleNamespace(fast=SimpleNamespace(total_weight=3)), disk=SimpleNamespace(weights={"a": 4})
    )
    assert [monitor._spilled(store) for store in (dask, cuda, {})] == [(0, 5), (3, 4), (0, 0)]


def test_of_many_samples_the_first_and_the_last_are_kept() -> None:
    samples = [sample(float(i)) for i in range(5000)]
    kept = monitor.thinned(samples)
    assert len(kept) <= monitor.KEPT
    assert (kept[0].at, kept[-1].at) == (0.0, 4999.0)
    assert monitor.thinned(samples[:7]) == samples[:7]


def test_samples_are_found_again_and_broken_ones_are_none(tmp_path: Path) -> None:
    workers = {"tcp://a": {"name": "0", "host": "h", "samples": [sample(1.5, rows=3), sample(2.0, rows=9)]}}
    path = tmp_path / "samples" / "transform.json"
    monitor.save(path, workers)
    assert monitor.load(path) == workers
    path.write_text(path.read_text()[:40])
    assert monitor.load(path) == {}
    assert monitor.load(tmp_path / "none.json") == {}
