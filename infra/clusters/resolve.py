"""Which kind of cluster `auto` means on this host, on which GPUs, and which engine the workers have."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Set
from typing import Any, Literal, NamedTuple, cast

from distributed import Client

from infra import gpus
from infra.clusters.by_class import check_class
from infra.clusters.encryption import security_of
from infra.clusters.model import BY_CLASS, STAGES, Cluster, Engine
from infra.clusters.reach import LOOK_SECONDS, offering, on_gpus, workers_at
from tasks.errors import GiveUpError

log = logging.getLogger("rowmill.clusters")

# stages: one hands its rows to the other
WORK = "transform"
AFTER = "shuffle_write"


class Resolved(NamedTuple):
    """The kind of cluster that `auto` means, and the engine of its workers."""

    kind: str
    engine: Engine


def resolve_cluster(cluster: Cluster) -> Resolved:
    """Resolve the concrete kind and engine; GiveUpError where GPUs are absent or `address` does not answer."""
    if cluster.kind == "address":
        return Resolved("address", _engines(*workers_of(cluster), cluster.resources)[WORK])
    if cluster.preset:
        return Resolved(cluster.kind, "cudf" if cluster.gpus else "pandas")
    if cluster.kind == BY_CLASS:
        check_class(cluster)
        return Resolved("class", cluster.engine or "pandas")
    kind = kind_on_this_host(cluster)
    if kind == "cuda":
        choose_gpus(cluster)
    return Resolved(kind, "cudf" if kind == "cuda" else "pandas")


def kind_on_this_host(cluster: Cluster) -> str:
    """Return the kind of the cluster, where `auto` is cuda with a visible GPU and the packages for it, else cpu."""
    return cluster.kind if cluster.kind != "auto" else _local_kind()


def choose_gpus(cluster: Cluster) -> list[gpus.Gpu]:
    """Choose the GPUs the job uses, in its order; GiveUpError where they, or the packages for them, are absent."""
    chosen = gpus.visible()
    if not chosen:
        mask = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = f"CUDA_VISIBLE_DEVICES is {mask!r}" if mask is not None and gpus.list_all_gpus() else ""
        why = hidden or "neither NVML nor nvidia-smi reports one"
        raise GiveUpError("no GPU", where=_kind(cluster), why=why, do="set cluster.kind to cpu or auto")
    if missing := gpus.packages_missing():
        raise GiveUpError(
            "the packages for GPUs are not installed",
            where=_kind(cluster),
            why=f"missing: {', '.join(missing)}",
            do="pip install 'rowmill[cuda13]' (or cuda12), or set cluster.kind to cpu",
        )
    if cluster.visible_devices is not None:
        named = [(device, [gpu for gpu in chosen if gpu.is_called(device)]) for device in cluster.visible_devices]
        if unknown := [device for device, matches in named if not matches]:
            what = f"no GPU {', '.join(unknown)}"
            here = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in chosen)
            raise GiveUpError(what, where="cluster.visible_devices", do=f"choose from: {here}")
        chosen = [matches[0] for _, matches in named]
    if cluster.workers and cluster.workers > len(chosen):
        raise GiveUpError(
            f"{cluster.workers} workers for {len(chosen)} GPU(s)",
            where="cluster.workers",
            why="a worker has a GPU of its own",
            do=f"ask for at most {len(chosen)}",
        )
    return chosen[: cluster.workers]


class Connection(Client):
    """A client that is closed where it cannot connect, whatever the reason.

    Dask leaves it half made after all but an OSError; the garbage collector then closes it, perhaps in the middle of
    making another client, whose lock it waits for: forever.
    """

    async def _start(self, *args: Any, **options: Any) -> None:
        try:
            await super()._start(*args, **options)
        except BaseException:
            await self._close()
            raise


def stage_engines(cluster: Cluster) -> dict[str, Engine]:
    """Return the engine of each stage where they differ, as on a cluster of workers with and without GPUs; else {}.

    GiveUpError where transform and shuffle_write differ; a warning where no stage uses GPUs that are there.
    """
    if cluster.kind != "address":
        return {}
    workers, gpu_workers = workers_of(cluster)
    engines = _engines(workers, gpu_workers, cluster.resources)
    if engines[WORK] != engines[AFTER]:
        one, other = (WORK, AFTER) if engines[WORK] == "cudf" else (AFTER, WORK)
        taken = ", ".join(f"{name}: {amount:g}" for name, amount in cluster.resources[one].items())
        raise GiveUpError(
            f"{one} runs on GPUs, and {other} does not",
            where=f"cluster.resources.{other}",
            why="the rows that one hands to the other stay in the memory of one kind of worker",
            do=f"set cluster.resources.{other} to {{{taken}}}",
        )
    if gpu_workers and "cudf" not in engines.values():
        log.warning(
            "%s of %s workers have a GPU, which no stage uses: keep stages to these workers with cluster.resources",
            len(gpu_workers),
            len(workers),
        )
    return engines if len(set(engines.values())) > 1 else {}


def _engines(
    workers: Mapping[str, Any], gpu_workers: Set[str], resources: Mapping[str, Mapping[str, float]]
) -> dict[str, Engine]:
    """Return the engine of each stage: cudf where every worker that offers what the stage takes has a GPU."""
    fitting = {stage: offering(workers, resources.get(stage, {})) or {*workers} for stage in STAGES}
    return {stage: "cudf" if chosen <= gpu_workers else "pandas" for stage, chosen in fitting.items()}


def workers_of(cluster: Cluster) -> tuple[dict[str, Any], set[str]]:
    """Return the workers of a running scheduler, and which of them can use a GPU; GiveUpError where there is none."""
    address = cast(str, cluster.address)
    security = security_of(cluster)
    try:
        client = Connection(address, set_as_default=False, timeout=LOOK_SECONDS, name="rowmill-look", security=security)
    except (OSError, ValueError, TypeError) as error:  # TypeError: a tls:// address without certificates
        raise GiveUpError(
            "no Dask scheduler answers",
            where=f"cluster.address = {address}",
            why=str(error) or type(error).__name__,
            do="start one with `dask scheduler`; check host, port, firewall and certificates; or set cluster.kind: "
            "auto",
        ) from None
    with client:
        if not (workers := workers_at(client)):
            raise GiveUpError(
                "the Dask scheduler has no workers",
                where=f"cluster.address = {address}",
                do=f"start some with `dask worker {address}` or `dask cuda worker {address}`",
            )
        return workers, on_gpus(client)


def _kind(cluster: Cluster) -> str:
    return f"cluster.kind = {cluster.kind}"


def _local_kind() -> Literal["cuda", "cpu"]:
    if not gpus.visible():
        return "cpu"
    if missing := gpus.packages_missing():
        log.warning("GPU unused, missing %s: pip install 'rowmill[cuda13]' (or cuda12)", ", ".join(missing))
        return "cpu"
    return "cuda"
