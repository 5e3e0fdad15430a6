"""The kinds `cpu` and `cuda`: workers on this host."""

from __future__ import annotations

import logging
import os
import socket

from dask.system import CPU_COUNT
from distributed import LocalCluster
from distributed.system import MEMORY_LIMIT

from infra import gpus
from infra.clusters.encryption import protocol_of, security_of
from infra.clusters.keywords import Keywords
from infra.clusters.model import Cluster, list_offered_resources
from infra.clusters.resolve import choose_gpus
from infra.environment import GPU_ENVIRONMENT, cpu_environment, local_environment, own_folder
from infra.gpu_errors import not_started
from infra.sizes import size_in_bytes
from infra.workers import failed_starts, forkserver
from infra.workers.imports import NO_IMPORTS, WorkerImports
from infra.workers.nanny import Nanny
from tasks.errors import JobError, near

log = logging.getLogger("rowmill.clusters")


def prepare(cluster: Cluster, imports: WorkerImports = NO_IMPORTS) -> None:
    """Begin the slowest part of the cluster's start, beside the other work of this process."""
    if cluster.kind == "cpu" or (cluster.kind == "auto" and not gpus.visible()):
        forkserver.start(imports.tasks)


def cpu(cluster: Cluster, imports: WorkerImports = NO_IMPORTS) -> LocalCluster:
    """Processes on this host: one with a thread per core, since kernels release the GIL and threads share memory."""
    workers = cluster.workers or (cluster.adapt.minimum if cluster.adapt else 1)
    most = cluster.adapt.maximum if cluster.adapt else workers
    threads = cluster.threads_per_worker or max(1, CPU_COUNT // most)
    limit = _host_memory(cluster, most)
    with local_environment(cpu_environment(threads)):
        if (own := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(own) < threads:
            text = "workers read and write with OMP_NUM_THREADS=%s thread(s) instead of %d: it is set in this process, "
            log.warning(f"{text}where Dask's own clusters leave it; unset it to use all cores", own, threads)
        arguments = {"n_workers": workers, "threads_per_worker": threads, "memory_limit": limit, **_common(cluster)}
        started = failed_starts.start_with_retries(
            lambda forks: LocalCluster(**arguments, **forkserver.use(imports.tasks, forks))
        )
    if cluster.adapt:
        started.adapt(minimum=cluster.adapt.minimum, maximum=cluster.adapt.maximum)
    return started


def cuda(cluster: Cluster, imports: WorkerImports = NO_IMPORTS) -> LocalCluster:
    """A worker process per GPU of this host, its allocator, spilling and transport chosen for the GPUs found."""
    chosen = choose_gpus(cluster)
    from infra.clusters.cuda import start

    if cluster.adapt:
        do = "leave it out, or set cluster.kind: cpu"
        raise JobError("workers on GPUs do not scale", where="cluster.adapt", do=do)
    host_memory = _host_memory(cluster, len(chosen))
    if not cluster.memory_limit:
        # Hosts whose memory grows with use report little of it at first; a GPU host has at least half of its GPUs'.
        host_memory = max(host_memory, min(gpu.memory for gpu in chosen) // 2)
    threads = min(32, max(4, 2 * CPU_COUNT // len(chosen)))
    with local_environment(GPU_ENVIRONMENT | {"KVIKIO_NTHREADS": str(threads)}):
        return failed_starts.start_with_retries(
            lambda _: start(cluster, chosen, _common(cluster), host_memory, imports),
            lambda error, lines: not_started(error, chosen, failed_starts.describe_last_lines(lines)),
        )


def _common(cluster: Cluster) -> Keywords:
    """Arguments of every kind of local cluster. Nothing listens beyond the loopback unless an interface is named."""
    if cluster.interface and cluster.interface not in (names := [name for _, name in socket.if_nameindex()]):
        raise JobError(
            f"there is no network interface {cluster.interface}",
            where="cluster.interface",
            do=near(cluster.interface, names),
        )
    security = security_of(cluster)
    arguments: Keywords = {
        "host": None if cluster.interface else "127.0.0.1",
        "interface": cluster.interface,
        "protocol": protocol_of(cluster, security) if security else cluster.protocol,
        "security": security,
        "local_directory": own_folder(cluster.local_directory) if cluster.local_directory else None,
        "dashboard_address": "127.0.0.1:0",
        "worker_dashboard_address": "127.0.0.1:0" if cluster.dashboard else None,
        "scheduler_kwargs": {"dashboard": cluster.dashboard},
        "silence_logs": logging.ERROR,
        "resources": list_offered_resources(cluster),
        "death_timeout": cluster.start_timeout,
        "worker_class": Nanny,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _host_memory(cluster: Cluster, workers: int) -> int:
    """Bytes of host memory for each worker: the job's, else an equal share of the host's or the container's."""
    if cluster.memory_limit:
        return size_in_bytes(cluster.memory_limit, MEMORY_LIMIT)
    return MEMORY_LIMIT // workers
