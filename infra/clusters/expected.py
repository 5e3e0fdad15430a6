"""The workers that a job would have, without starting any: for estimates."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from dask.system import CPU_COUNT
from distributed import Client
from distributed.deploy.utils import nprocesses_nthreads
from distributed.system import MEMORY_LIMIT

from infra.clusters.cuda_settings import threads_for
from infra.clusters.encryption import security_of
from infra.clusters.model import first_workers
from infra.clusters.reach import LOOK_SECONDS, offering, workers_at
from infra.clusters.remote import GPU_THREADS
from infra.clusters.resolve import choose_gpus, resolve_cluster
from infra.sizes import size_in_bytes

if TYPE_CHECKING:
    from infra.clusters.model import Cluster


@dataclass(frozen=True)
class ExpectedWorkers:
    """Engine and number of workers, and of all of them together: threads, bytes of host memory and of GPU memory.

    `device_memory` is 0 without GPUs, and while the GPUs are unknown.
    """

    engine: str
    workers: tuple[str, ...]
    threads: int
    memory: int
    device_memory: int
    text: str

    @property
    def smallest_memory(self) -> int:
        return self.memory // max(len(self.workers), 1)

    @property
    def smallest_device_memory(self) -> int:
        return self.device_memory // max(len(self.workers), 1)


def estimate_workers(cluster: Cluster) -> ExpectedWorkers:
    """The workers that `cluster` would start, or that run at its address; GiveUpError without GPUs or an answer."""
    kind, engine = resolve_cluster(cluster)
    return {"cpu": _cpu, "cuda": _cuda, "address": _address, "class": _by_class}.get(kind, _elsewhere)(cluster, engine)


def _cpu(cluster: Cluster, engine: str) -> ExpectedWorkers:
    workers = cluster.workers or (cluster.adapt.minimum if cluster.adapt else 1) or 1
    most = cluster.adapt.maximum if cluster.adapt else workers
    threads = workers * (cluster.threads_per_worker or max(1, CPU_COUNT // most))
    memory = workers * (
        size_in_bytes(cluster.memory_limit, MEMORY_LIMIT) if cluster.memory_limit else MEMORY_LIMIT // most
    )
    return _make_expected_workers(engine, workers, threads, memory, 0, "on this host")


def _cuda(cluster: Cluster, engine: str) -> ExpectedWorkers:
    gpus = choose_gpus(cluster)
    threads = len(gpus) * (cluster.threads_per_worker or threads_for(cluster, gpus))
    limit = cluster.memory_limit
    memory = len(gpus) * size_in_bytes(limit, MEMORY_LIMIT) if limit else MEMORY_LIMIT
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    return _make_expected_workers(
        engine, len(gpus), threads, memory, sum(gpu.memory for gpu in gpus), f"on the GPUs of this host ({names})"
    )


def _address(cluster: Cluster, engine: str) -> ExpectedWorkers:
    where = cast(str, cluster.address)
    with Client(where, set_as_default=False, timeout=LOOK_SECONDS, security=security_of(cluster)) as client:
        info = workers_at(client)
    if fitting := offering(info, cluster.resources.get("transform", {})):
        info = {worker: info[worker] for worker in fitting}
    threads = sum(worker["nthreads"] for worker in info.values())
    memory = sum(worker["memory_limit"] or MEMORY_LIMIT for worker in info.values())
    return _make_expected_workers(engine, len(info), threads, memory, 0, f"at {where}")


def _elsewhere(cluster: Cluster, engine: str) -> ExpectedWorkers:
    """The workers that a preset would start, by job and preset; hosts without a size count as equal to this one."""
    arguments = cluster.class_arguments
    workers = first_workers(cluster)
    processes = max(1, cluster.gpus)
    cores = arguments.get("cores")
    memory = arguments.get("memory")
    threads = cluster.threads_per_worker or (GPU_THREADS if cluster.gpus else int(cores or CPU_COUNT))
    if cluster.memory_limit:
        limit = size_in_bytes(cluster.memory_limit, MEMORY_LIMIT)
    else:  # what a host, job or pod has, in equal shares
        limit = size_in_bytes(str(memory or MEMORY_LIMIT), MEMORY_LIMIT) // processes
    where = f"by {cluster.kind}" + ("" if cores else ", taken to be like this one")
    return _make_expected_workers(engine, workers, workers * max(1, threads), workers * limit, 0, where)


def _by_class(cluster: Cluster, engine: str) -> ExpectedWorkers:
    """The workers of a class, by the arguments that say how large they are; without these they count as this host."""
    size = cluster.cluster_kwargs
    workers = first_workers(cluster)
    cores = size.get("threads_per_worker", size.get("cores"))
    processes = size.get("processes", 1)
    threads = cores if isinstance(cores, int) else GPU_THREADS if engine == "cudf" else CPU_COUNT
    if "cores" in size and "processes" not in size:  # of a job of dask-jobqueue, which divides them so
        processes = 1 if engine == "cudf" else nprocesses_nthreads(threads)[0]
    memory = MEMORY_LIMIT
    with suppress(ValueError):  # "auto", or none
        memory = size_in_bytes(str(size.get("memory_limit", size.get("memory"))), MEMORY_LIMIT) or memory
    jobs = workers / processes if isinstance(processes, int) and processes else workers
    where = f"by {cluster.cluster_class}, as far as its arguments say how large they are"
    return _make_expected_workers(engine, workers, int(jobs * threads), int(jobs * memory), 0, where)


def _make_expected_workers(
    engine: str, workers: int, threads: int, memory: int, device: int, where: str
) -> ExpectedWorkers:
    names = tuple(f"worker {number}" for number in range(workers))
    text = f"{workers} worker(s) with {threads} thread(s) in all, {where}; engine {engine}"
    return ExpectedWorkers(engine, names, max(threads, 1), memory, device, text)
