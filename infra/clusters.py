"""The section `cluster` of a job, and one function per kind that starts the workers or connects to them."""

from __future__ import annotations

import logging
import os
import socket
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, Self, cast

from dask.system import CPU_COUNT
from distributed import Client, LocalCluster
from distributed.security import Security
from distributed.system import MEMORY_LIMIT
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from infra import closed_schedulers, forkserver, gpus, starts
from infra.dask_settings import GPU_ENVIRONMENT, cpu_environment, local_environment, own_folder, use_settings
from infra.encryption import REMOTE, Tls, protocol_of, refusal, security_of
from infra.kubernetes import Kubernetes
from infra.kubernetes import start as on_kubernetes
from infra.lost_gpus import not_started
from infra.nanny import Nanny
from infra.remote import RunningCluster
from infra.sizes import Size, size_in_bytes
from infra.slurm import Slurm
from infra.slurm import start as on_slurm
from infra.ssh import Ssh
from infra.ssh import start as on_ssh
from tasks.errors import GiveUpError, JobError, near

log = logging.getLogger("millrace.clusters")
Engine = Literal["cudf", "pandas"]
Kind = Literal["cuda", "cpu", "address", "ssh", "slurm", "kubernetes"]
STAGES = ("ingest", "statistics", "transform", "shuffle_write")
SCALE = ("auto", "cpu", "slurm")


class Adapt(BaseModel):
    """Bounds between which the number of workers follows the work."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    minimum: int = Field(1, ge=0)
    maximum: int = Field(..., ge=1)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.maximum}")
        return self


class Resolved(NamedTuple):
    """What `auto` came to: the kind of cluster and the engine of its workers."""

    kind: Kind
    engine: Engine


class Cluster(BaseModel):
    """Where the job runs. Everything but `kind` is chosen for the host when it is left out; sizes are per worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["auto", Kind] = Field("auto", description="auto takes the GPUs of this host, else its cores")
    workers: int | None = Field(None, ge=1, description="worker processes: one per GPU, or one with a thread per core")
    threads_per_worker: int | None = Field(None, ge=1)
    visible_devices: list[str] | None = Field(None, description="GPUs to use, as CUDA_VISIBLE_DEVICES names them")
    protocol: Literal["tcp", "tls", "ucx"] | None = Field(None, description="ucx for InfiniBand or RoCE; it has no TLS")
    cuda_ipc: bool = Field(True, description="GPUs of a host copy from each other over NVLink or PCIe, not the host")
    interface: str | None = Field(None, description="network interface to listen on; the loopback if left out")
    address: str | None = Field(None, description="running scheduler, such as tls://10.0.0.5:8786; for kind address")
    tls: Tls | None = Field(None, description="certificates; temporary ones are made for the run if left out")
    unencrypted: bool = Field(False, description="no TLS: whoever reaches a port can run code as you")
    memory_limit: Size = Field(None, description="host memory of a worker: 16GB, or 0.5 of the host")
    device_memory_limit: Size = Field(None, description="GPU memory above which results spill: 60GB, or 0.5 of the GPU")
    rmm_pool_size: Size = Field(None, description="GPU memory that a worker may allocate: 70GB, or 0.7 of the GPU")
    local_directory: str | None = Field(None, description="folder for spilled data, on a fast disk")
    adapt: Adapt | None = Field(None, description="bounds for the number of workers, for kinds that scale")
    resources: dict[str, dict[str, float]] = Field({}, description="what a stage takes: {transform: {GPU: 1}}")
    start_timeout: int = Field(300, ge=1, description="seconds that workers may take to come")
    ssh: Ssh | None = Field(None, description="for kind ssh: hosts, user, port, key, gpus")
    slurm: Slurm | None = Field(None, description="for kind slurm: cores, memory, gpus, queue, account, walltime")
    kubernetes: Kubernetes | None = Field(None, description="for kind kubernetes: image, cores, memory, gpus")

    @field_validator("visible_devices", mode="before", json_schema_input_type=list[str | int] | str | None)
    @classmethod
    def _as_names(cls, devices: Any) -> Any:
        if isinstance(devices, str):
            devices = devices.split(",")
        return [str(device).strip() for device in devices] if isinstance(devices, list) else devices

    @field_validator("resources")
    @classmethod
    def _of_stages(cls, resources: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        if unknown := [stage for stage in resources if stage not in STAGES]:
            raise ValueError(f"there is no stage {unknown[0]!r}: {near(unknown[0], STAGES)}")
        if any(amount <= 0 for stage in resources.values() for amount in stage.values()):
            raise ValueError("amounts are above 0")
        return resources

    @model_validator(mode="after")
    def _fits_kind(self) -> Self:
        if self.kind == "address" and not self.address:
            raise ValueError("kind: address needs `address`, such as tls://10.0.0.5:8786")
        for name in ("address", *REMOTE):
            if name != self.kind and getattr(self, name) is not None:
                raise ValueError(f"`{name}` belongs to kind: {name}")
        if self.kind in REMOTE and getattr(self, self.kind) is None:
            raise ValueError(f"kind: {self.kind} needs the section `{self.kind}`, which says where and how much")
        if self.kind == "ssh" and self.workers:
            raise ValueError("kind: ssh has a worker for each of ssh.hosts: leave out `workers`")
        if self.adapt and self.kind not in SCALE:
            raise ValueError(f"kind: {self.kind} does not scale: leave out `adapt`")
        if why := refusal(self):
            raise ValueError(why)
        return self

    def resolved(self) -> Resolved:
        """The concrete kind and engine; GiveUpError where GPUs are absent or nobody answers at `address`."""
        if self.kind == "address":
            return Resolved("address", engine_at(cast(str, self.address), security_of(self)))
        if self.kind in REMOTE:
            return Resolved(cast(Kind, self.kind), "cudf" if getattr(self, self.kind).gpus else "pandas")
        kind = self.kind if self.kind != "auto" else _found_kind()
        if kind == "cuda":
            chosen_gpus(self)
        return Resolved(kind, "cudf" if kind == "cuda" else "pandas")


def make_cluster(cluster: Cluster | None = None) -> Any:
    """Start, or connect to, what `cluster` asks for; a context manager that closes only what it started.

    The Dask settings that millrace relies on are set in this process and reach the workers from here.
    """
    cluster = cluster or Cluster()
    kind = cluster.kind if cluster.kind != "auto" else _found_kind()
    starts.check_address_space()
    closed_schedulers.forget()
    use_settings()
    kinds = {
        "cpu": cpu, "cuda": cuda, "address": address,
        "ssh": on_ssh, "slurm": on_slurm, "kubernetes": on_kubernetes,
    }  # fmt: skip
    return kinds[kind](cluster)


def prepare(cluster: Cluster) -> None:
    """Begin what takes longest of its start, beside what this process does meanwhile."""
    if cluster.kind == "cpu" or (cluster.kind == "auto" and not gpus.visible()):
        forkserver.start()


def cpu(cluster: Cluster) -> LocalCluster:
    """Processes on this host: one with a thread per core, since kernels release the GIL and threads share memory."""
    workers = cluster.workers or (cluster.adapt.minimum if cluster.adapt else 1)
    most = cluster.adapt.maximum if cluster.adapt else workers
    threads = cluster.threads_per_worker or max(1, CPU_COUNT // most)
    limit = _host_memory(cluster, most)
    with local_environment(cpu_environment(threads)):
        asked = {"n_workers": workers, "threads_per_worker": threads, "memory_limit": limit, **_common(cluster)}
        started = starts.tried(lambda forks: LocalCluster(**asked, **forkserver.use(forks)))
    if cluster.adapt:
        started.adapt(minimum=cluster.adapt.minimum, maximum=cluster.adapt.maximum)
    return started


def cuda(cluster: Cluster) -> Any:
    """A worker process per GPU of this host, its allocator, spilling and transport chosen for the GPUs found."""
    chosen = chosen_gpus(cluster)
    from infra.cuda import start

    if cluster.adapt:
        raise JobError("workers on GPUs do not scale", where="cluster.adapt", do="leave it out, or set kind: cpu")
    host_memory = _host_memory(cluster, len(chosen))
    if not cluster.memory_limit:
        # Hosts whose memory grows with use report little of it at first; a GPU host has at least half of its GPUs'.
        host_memory = max(host_memory, min(gpu.memory for gpu in chosen) // 2)
    threads = min(32, max(4, 2 * CPU_COUNT // len(chosen)))
    with local_environment(GPU_ENVIRONMENT | {"KVIKIO_NTHREADS": str(threads)}):
        return starts.tried(
            lambda _: start(cluster, chosen, _common(cluster), host_memory),
            lambda error, lines: not_started(error, chosen, starts.written(lines)),
        )


def address(cluster: Cluster) -> RunningCluster:
    """A scheduler that somebody else runs: connected to, never closed; GiveUpError when it does not answer."""
    where, security = cast(str, cluster.address), security_of(cluster)
    engine_at(where, security)
    return RunningCluster(where, security)


def chosen_gpus(cluster: Cluster) -> list[gpus.Gpu]:
    """The GPUs the job uses, in its order; GiveUpError where they, or the packages for them, are absent."""
    found = gpus.visible()
    if not found:
        mask = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = f"CUDA_VISIBLE_DEVICES is {mask!r}" if mask is not None and gpus.installed() else ""
        why = hidden or "neither NVML nor nvidia-smi reports one"
        raise GiveUpError("no GPU", where=_kind(cluster), why=why, do="set cluster.kind to cpu or auto")
    if missing := gpus.packages_missing():
        raise GiveUpError(
            "the packages for GPUs are not installed", where=_kind(cluster), why=f"missing: {', '.join(missing)}",
            do="pip install 'millrace[cuda13]' (or cuda12), or set cluster.kind to cpu",
        )  # fmt: skip
    if cluster.visible_devices is not None:
        named = [(device, [gpu for gpu in found if gpu.is_called(device)]) for device in cluster.visible_devices]
        if unknown := [device for device, matches in named if not matches]:
            what, here = f"no GPU {', '.join(unknown)}", ", ".join(f"{gpu.index} ({gpu.name})" for gpu in found)
            raise GiveUpError(what, where="cluster.visible_devices", do=f"choose from: {here}")
        found = [matches[0] for _, matches in named]
    if cluster.workers and cluster.workers > len(found):
        raise GiveUpError(
            f"{cluster.workers} workers for {len(found)} GPU(s)", where="cluster.workers",
            why="a worker has a GPU of its own", do=f"ask for at most {len(found)}",
        )  # fmt: skip
    return found[: cluster.workers]


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


def engine_at(address: str, security: Security | None = None) -> Engine:
    """The engine that every worker of a running scheduler can use; GiveUpError when there is none to ask."""
    try:
        client = Connection(address, set_as_default=False, timeout="8s", name="millrace-look", security=security)
    except (OSError, ValueError, TypeError) as error:  # TypeError: a tls:// address without certificates
        raise GiveUpError(
            "no Dask scheduler answers", where=f"cluster.address = {address}", why=str(error) or type(error).__name__,
            do="start one with `dask scheduler`, check host, port, firewall and certificates; or set kind to auto",
        ) from None  # fmt: skip
    with client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            raise GiveUpError(
                "the Dask scheduler has no workers", where=f"cluster.address = {address}",
                do=f"start some with `dask worker {address}` or `dask cuda worker {address}`",
            )  # fmt: skip
        strangers = [worker for worker, spec in client.run(find_spec, "infra").items() if spec is None]
        if strangers:
            raise GiveUpError(
                "workers without millrace", where=", ".join(strangers[:3]), do="install this millrace where they run",
            )  # fmt: skip
        on_gpus = all(spec is not None for spec in client.run(find_spec, "cudf").values())
        return "cudf" if on_gpus else "pandas"


def _kind(cluster: Cluster) -> str:
    return f"cluster.kind = {cluster.kind}"


def _found_kind() -> Literal["cuda", "cpu"]:
    """What `auto` means here: cuda with a visible GPU and the packages for it."""
    if not gpus.visible():
        return "cpu"
    if missing := gpus.packages_missing():
        log.warning("GPU unused, missing %s: pip install 'millrace[cuda13]' (or cuda12)", ", ".join(missing))
        return "cpu"
    return "cuda"


def offered(cluster: Cluster) -> dict[str, float]:
    """What workers that millrace starts offer: of each resource the most that a stage takes."""
    most: dict[str, float] = {}
    for stage in cluster.resources.values():
        for name, amount in stage.items():
            most[name] = max(amount, most.get(name, 0))
    return most


def _common(cluster: Cluster) -> dict[str, Any]:
    """Arguments of every kind of local cluster. Nothing listens beyond the loopback unless an interface is named."""
    if cluster.interface and cluster.interface not in (names := [name for _, name in socket.if_nameindex()]):
        raise JobError(f"there is no network interface {cluster.interface}", where="cluster.interface",
                       do=near(cluster.interface, names))  # fmt: skip
    security = security_of(cluster)
    arguments: dict[str, Any] = {
        "host": None if cluster.interface else "127.0.0.1",
        "interface": cluster.interface,
        "protocol": protocol_of(cluster, security) if security else cluster.protocol,
        "security": security,
        "local_directory": own_folder(cluster.local_directory) if cluster.local_directory else None,
        "dashboard_address": "127.0.0.1:0",
        "worker_dashboard_address": "127.0.0.1:0",
        "silence_logs": logging.ERROR,
        "resources": offered(cluster),
        "death_timeout": cluster.start_timeout,
        "worker_class": Nanny,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _host_memory(cluster: Cluster, workers: int) -> int:
    """Bytes of host memory for each worker: what was asked, else an equal share of the host's or the container's."""
    if cluster.memory_limit:
        return size_in_bytes(cluster.memory_limit, MEMORY_LIMIT)
    return MEMORY_LIMIT // workers
