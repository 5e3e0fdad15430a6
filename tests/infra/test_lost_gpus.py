"""GPUs that go away, workers that do not start, too little shared memory: told with figures, by probes of a host."""

from __future__ import annotations

import shutil
from typing import Any, NamedTuple

import pytest

from flows.run.lost_workers import WorkersAtStart, in_every_attempt
from infra import gpu_errors, gpus
from infra.clusters import kinds, resolve
from infra.clusters.model import Cluster
from infra.gpus import Gpu
from tasks.errors import GiveUpError, JobError, TransientError

pytestmark = pytest.mark.system

H200 = [Gpu(i, f"GPU-{i}", "H200", 140 * 10**9) for i in range(2)]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Any:
    """host(gpus, shared): what NVML and /dev/shm (MiB free of as many) say from now on."""

    def is_now(found: list[Gpu], shared: int = 1024) -> None:
        monkeypatch.setattr(gpus, "list_all_gpus", lambda: found)
        usage = Usage(shared * 2**20, 0, shared * 2**20)
        monkeypatch.setattr(gpu_errors.shutil, "disk_usage", lambda _: usage)

    monkeypatch.setattr(gpus, "packages_missing", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert shutil.disk_usage is gpu_errors.shutil.disk_usage
    return is_now


def test_workers_on_gpus_speak_tcp_unless_another_is_asked_for(host: Any) -> None:
    host(H200, 64)
    assert [gpu_errors.transport(asked, H200) for asked in (None, "tcp", "tls")] == ["tcp", "tcp", "tls"]
    assert gpu_errors.transport("ucx", H200[:1]) == "ucx"
    host(H200)
    assert gpu_errors.transport("ucx", H200) == "ucx"


@pytest.mark.promise("`is too small for UCX`")
def test_ucx_asked_for_with_too_little_shared_memory_is_refused(host: Any) -> None:
    host(H200, 64)
    with pytest.raises(GiveUpError) as caught:
        gpu_errors.transport("ucx", H200)
    assert str(caught.value).splitlines() == [
        "/dev/shm is too small for UCX",
        "  where: cluster.protocol = ucx",
        "  why: UCX wants 256 MiB for 2 GPUs, 64 MiB of 64 MiB are free",
        "  do: give the container more (docker run --shm-size=1g, shm_size in compose, an emptyDir of medium Memory), "
        "or leave cluster.protocol out",
    ]


def test_gpus_that_go_away_between_plan_and_start(host: Any) -> None:
    host(H200)
    job = Cluster(kind="cuda", visible_devices=["0", "1"])
    assert resolve.resolve_cluster(job).engine == "cudf"
    host(H200[:1])
    with pytest.raises(GiveUpError, match=r"no GPU 1\n.*cluster.visible_devices\n.*choose from: 0 \(H200\)"):
        kinds.make_cluster(job)
    host([])
    with pytest.raises(GiveUpError, match="no GPU"):
        kinds.make_cluster(Cluster(kind="cuda"))


@pytest.mark.promise("`disappeared`")
def test_a_gpu_that_goes_away_while_its_worker_starts(host: Any) -> None:
    host(H200[:1])
    told = gpu_errors.not_started(RuntimeError("Nanny failed to start."), H200)
    assert str(told).splitlines() == [
        "a GPU disappeared while its worker started",
        "  where: GPU 1 (H200, GPU-1)",
        "  why: 2 were there before, 1 is there now",
        "  do: look at nvidia-smi and for Xid errors in the kernel's log; set cluster.visible_devices to those that "
        "work ([0]); then run the same job again: what is done is kept",
    ]


@pytest.mark.promise("`the workers on GPUs did not start`")
def test_workers_that_do_not_start_are_told_with_their_gpus(host: Any) -> None:
    host(H200)
    told = gpu_errors.not_started(MemoryError("std::bad_alloc: out_of_memory\nmore"), H200)
    assert isinstance(told, GiveUpError)
    assert told.where == "GPU 0 (H200) of 140.0 GB, GPU 1 (H200) of 140.0 GB"
    assert told.why == "MemoryError: std::bad_alloc: out_of_memory"
    assert "cluster.rmm_pool_size" in told.do
    refused = JobError("workers on GPUs do not scale")
    assert gpu_errors.not_started(refused, H200) is refused


def test_workers_lost_in_every_attempt_with_and_without_their_gpus(host: Any) -> None:
    before = WorkersAtStart(2, 16, 64 * 10**9, tuple(H200))
    host(H200)
    told = in_every_attempt("transform", 3, before)
    assert type(told) is TransientError
    assert told.what == "a worker was lost in each of 3 attempts of transform"
    assert "there were 2 worker(s) of 16 thread(s) with 64.0 GB of memory each; " in told.why
    assert told.why.endswith(" are free now")
    assert all(key in told.do for key in ("cluster.memory_limit", "cluster.threads_per_worker", "run.retries"))
    assert told.do.endswith("what is done is kept")
    read = in_every_attempt("transform", 3, before, ["/in/0.parquet"])
    assert read.where == "while it read /in/0.parquet"
    assert read.do.endswith(
        "is overwritten while it is read ends its reader, too: write it under another name, then rename it"
    )
    ran = in_every_attempt("transform", 3, before, ["ran mine:f of partition 0"])
    assert ran.do.endswith("that function, or call it on the rows of that file")
    host([])
    gone = in_every_attempt("transform", 3, before)
    assert type(gone) is GiveUpError
    assert gone.what == "2 GPUs disappeared during transform"
    assert gone.why == "2 were there before, 0 are there now"
    assert "(none is left: cluster.kind cpu)" in gone.do
