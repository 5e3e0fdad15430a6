"""Allocator, spilling and transport for the GPUs found: pure functions, tried without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.clusters.keywords import Keywords
from infra.gpus import Gpu
from infra.sizes import size_in_bytes

if TYPE_CHECKING:
    from infra.clusters.model import Cluster


def threads_for(cluster: Cluster, gpus: list[Gpu]) -> int:
    """Threads of a GPU's worker, each with a CUDA stream of its own: partitions and files overlap on the device.

    Writing files is most of the work and needs many files in flight; every thread holds a partition, so that there is
    one for 8 GiB of the smallest GPU, or of what `rmm_pool_size` leaves of it, 8 at least and 16 at most.
    """
    total = min(gpu.memory for gpu in gpus)
    usable = min(size_in_bytes(cluster.rmm_pool_size, total), total) if cluster.rmm_pool_size else total
    return min(16, max(8, usable // (8 * 2**30)))


def pool_settings(cluster: Cluster, gpus: list[Gpu], protocol: str) -> Keywords:
    """The arguments of `prepare` in tasks/cluster/transfer/cuda_ipc.py, in bytes of the smallest GPU; nothing over
    UCX."""
    if protocol == "ucx":
        return {}
    return {"limit": _align_size(cluster.rmm_pool_size, 0.92, gpus), "shared": cluster.cuda_ipc}


def memory_settings(cluster: Cluster, gpus: list[Gpu], protocol: str) -> Keywords:
    """Pool and spiller for workers that speak so, sizes in bytes of the smallest GPU.

    Over UCX, which cannot open memory of the asynchronous allocator in another process, RMM's pool of 0.6 (bigger ones
    make NVLink set-up take minutes), which may grow unless the job sets its size. Stored results above 0.5 (0.45) of
    the GPU spill to the host, then to disk; cuDF's own spilling stays off, since it adds a lock and a look-up in Python
    to every use of a buffer.
    """
    if protocol != "ucx":
        return {"device_memory_limit": _align_size(cluster.device_memory_limit, 0.5, gpus)}
    size = _align_size(cluster.rmm_pool_size, 0.6, gpus)
    settings = {"rmm_pool_size": size, "device_memory_limit": _align_size(cluster.device_memory_limit, 0.45, gpus)}
    if cluster.rmm_pool_size:
        settings["rmm_maximum_pool_size"] = size
    return settings


def _align_size(size: str | None, share: float, gpus: list[Gpu]) -> int:
    total = min(gpu.memory for gpu in gpus)
    return (size_in_bytes(size, total) if size else int(share * total)) // 256 * 256
