"""LocalCUDACluster with its allocator, spilling and transport chosen for the GPUs found. Needs the cuda extra."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dask import config
from dask_cuda import LocalCUDACluster
from dask_cuda.plugins import CPUAffinity

from infra.clusters.cuda_settings import memory_settings, pool_settings, threads_for
from infra.clusters.keywords import Keywords
from infra.gpu_errors import transport
from infra.gpus import Gpu
from infra.workers.imports import WorkerImports, pre_import, pre_import_settings

if TYPE_CHECKING:
    from infra.clusters.model import Cluster


class _CudaCluster(LocalCUDACluster):
    """Workers on the cores near their GPU, but no others than this process may use: dask-cuda would widen `taskset`."""

    def new_worker_spec(self) -> dict[Any, dict[str, Any]]:
        specs: dict[Any, dict[str, Any]] = super().new_worker_spec()
        allowed = os.sched_getaffinity(0)
        for spec in specs.values():
            for plugin in spec["options"]["plugins"]:
                if isinstance(plugin, CPUAffinity):
                    plugin.cores = sorted(allowed.intersection(plugin.cores) or allowed)
        return specs


def start(
    cluster: Cluster, gpus: list[Gpu], common: Keywords, host_memory: int, imports: WorkerImports
) -> LocalCUDACluster:
    """A worker per GPU with its own RMM resource, CuPy allocating through it, cuDF imported before the first task."""
    offered = {"GPU": 1} | common.pop("resources", {})
    protocol = common["protocol"] = transport(common.get("protocol"), gpus)
    pool = pool_settings(cluster, gpus, protocol)
    # The workers spill device -> host -> disk themselves; a nanny that kills at 95 % would only get in the way.
    settings = {"distributed.worker.memory.terminate": False, "rowmill.gpu-pool": pool, **pre_import_settings(imports)}
    with config.set(settings):
        return _CudaCluster(
            CUDA_VISIBLE_DEVICES=[gpu.uuid for gpu in gpus],
            n_workers=len(gpus),
            threads_per_worker=cluster.threads_per_worker or threads_for(cluster, gpus),
            memory_limit=host_memory,
            rmm_allocator_external_lib_list=["cupy"],
            pre_import=pre_import(imports),
            resources=offered,
            **memory_settings(cluster, gpus, protocol),
            **common,
        )
