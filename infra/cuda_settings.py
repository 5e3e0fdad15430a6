"""Allocator, spilling and transport for the GPUs found: pure functions, tried without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infra.gpus import Gpu

if TYPE_CHECKING:
    from infra.clusters import Cluster


def over_nvlink(gpus: list[Gpu]) -> bool:
    """Whether pieces go from GPU to GPU over NVLink: several GPUs and every one has such a link."""
    return len(gpus) > 1 and all(gpu.nvlink for gpu in gpus)


def threads_for(cluster: Cluster, gpus: list[Gpu]) -> int:
    """Threads of a GPU's worker, each with a CUDA stream of its own: partitions and files overlap on the device.

    Writing files is most of the work and needs many files in flight; every thread holds a partition, so that there is
    one for 8 GiB of the smallest GPU, or of what `rmm_pool_size` leaves of it, 8 at least and 16 at most.
    """
    from infra.clusters import size_in_bytes

    total = min(gpu.memory for gpu in gpus)
    usable = min(size_in_bytes(cluster.rmm_pool_size, total), total) if cluster.rmm_pool_size else total
    return min(16, max(8, usable // (8 * 2**30)))


def memory_settings(cluster: Cluster, gpus: list[Gpu], protocol: str) -> dict[str, Any]:
    """Allocator and spiller for workers that speak so, sizes in bytes of the smallest GPU.

    The driver's asynchronous allocator up to 0.92. Over UCX, which opens memory in other processes and cannot open that
    allocator's, a pool of 0.6 (bigger ones make NVLink set-up take minutes), which may grow unless its size was asked
    for; threads with streams of their own wait for each other there: wide partitions take twice as long. Stored results
    above 0.5 (0.45) of the GPU spill to the host, then to disk; cuDF's own spilling stays off, since it adds a lock and
    a look-up in Python to every use of a buffer.
    """
    from infra.clusters import size_in_bytes

    total = min(gpu.memory for gpu in gpus)

    def aligned(asked: str | None, share: float) -> int:
        return (size_in_bytes(asked, total) if asked else int(share * total)) // 256 * 256

    if protocol != "ucx":
        pool = {"rmm_async": True, "rmm_maximum_pool_size": aligned(cluster.rmm_pool_size, 0.92)}
        return {**pool, "device_memory_limit": aligned(cluster.device_memory_limit, 0.5)}
    size = aligned(cluster.rmm_pool_size, 0.6)
    return {
        "rmm_pool_size": size,
        **({"rmm_maximum_pool_size": size} if cluster.rmm_pool_size else {}),
        "device_memory_limit": aligned(cluster.device_memory_limit, 0.45),
    }
