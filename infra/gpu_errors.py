"""Errors for GPUs and shared memory that are missing, with figures and the setting to change."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from infra import gpus
from infra.gpus import Gpu
from tasks.errors import GiveUpError, RowmillError

SHARED = Path("/dev/shm")
SHARED_PER_GPU = 128 * 2**20  # bytes; a container has 64 MiB in all by default
MORE_SHARED = "give the container more (docker run --shm-size=1g, shm_size in compose, an emptyDir of medium Memory)"


def transport(protocol: str | None, chosen: Sequence[Gpu]) -> str:
    """Return the protocol of workers on GPUs: tcp by default, since they copy pieces directly out of each other's GPU.

    GiveUpError if the protocol is ucx and /dev/shm is too small for it.
    """
    if protocol != "ucx":
        return protocol or "tcp"
    need = SHARED_PER_GPU * len(chosen)
    disk = shutil.disk_usage(SHARED) if SHARED.exists() else None
    free, total = (disk.free, disk.total) if disk else (0, 0)
    if len(chosen) < 2 or free >= need:
        return "ucx"
    figures = f"UCX wants {_mib(need)} for {len(chosen)} GPUs, {_mib(free)} of {_mib(total)} are free"
    raise GiveUpError(
        f"{SHARED} is too small for UCX",
        where="cluster.protocol = ucx",
        why=figures,
        do=f"{MORE_SHARED}, or leave cluster.protocol out",
    )


def missing(before: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs of `before` that this host does not show any more."""
    now = {gpu.uuid for gpu in gpus.list_all_gpus()}
    return [gpu for gpu in before if gpu.uuid not in now]


def make_lost_gpu_error(gone: Sequence[Gpu], before: Sequence[Gpu], when: str) -> GiveUpError:
    """Make the error for GPUs that have disappeared from the host."""
    left = [str(gpu.index) for gpu in before if gpu not in gone]
    named = f"[{', '.join(left)}]" if left else "none is left: cluster.kind cpu"
    return GiveUpError(
        f"{'a GPU' if len(gone) == 1 else f'{len(gone)} GPUs'} disappeared {when}",
        where=", ".join(f"GPU {gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in gone),
        why=f"{len(before)} were there before, {len(before) - len(gone)} {'is' if len(left) == 1 else 'are'} there now",
        do=f"look at nvidia-smi and for Xid errors in the kernel's log; set cluster.visible_devices to those that work "
        f"({named}); then run the same job again: what is done is kept",
    )


def not_started(error: Exception, chosen: Sequence[Gpu], written: str = "") -> RowmillError:
    """Why the workers on these GPUs did not start: one that is gone, or what the cluster says."""
    if isinstance(error, RowmillError):
        return error
    if gone := missing(chosen):
        return make_lost_gpu_error(gone, chosen, "while its worker started")
    sizes = ", ".join(f"GPU {gpu.index} ({gpu.name}) of {gpu.memory / 1e9:,.1f} GB" for gpu in chosen)
    text = str(error).splitlines()[0] if str(error) else "no reason was given"
    return GiveUpError(
        "the workers on GPUs did not start",
        where=sizes,
        why="; ".join(filter(None, [f"{type(error).__name__}: {text}", written])),
        do="look at nvidia-smi whether other processes hold their memory; lower cluster.rmm_pool_size, "
        "or set cluster.visible_devices to GPUs that are free",
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"
