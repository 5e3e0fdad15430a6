"""The section `cluster` of a job: its fields, their limits, and those of every kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args
from urllib.parse import urlsplit

from distributed.utils import get_ip_interface
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)

from infra.clusters.configurations import configuration
from infra.clusters.keywords import Keywords
from infra.clusters.preset import Preset, Presets, read_presets
from infra.clusters.script_texts import AnyPath, PathWord, Word, check_word
from infra.environment import is_loopback
from infra.sizes import Size
from tasks.errors import mistakes, near

Engine = Literal["cudf", "pandas"]
KIND = "auto takes the GPUs of this host, else its cores"
STAGES = ("ingest", "statistics", "transform", "shuffle_write")
# the kinds that are no preset
HERE = ("auto", "cuda", "cpu")
ADDRESS = "address"
BY_CLASS = "class"
QUEUES = {"pbs": "PBS", "torque": "PBS", "sge": "SGE", "lsf": "LSF", "condor": "HTCondor", "htcondor": "HTCondor"}
CLOUDS = {"aws": "aws.EC2", "ec2": "aws.EC2", "azure": "azure.AzureVM", "gcp": "gcp.GCP", "gce": "gcp.GCP"}
# The classes of queues and clouds that are not kinds.
MANAGERS = {name: f"dask_jobqueue.{start}Cluster" for name, start in (QUEUES | {"oar": "OAR", "moab": "Moab"}).items()}
MANAGERS |= {name: f"dask_cloudprovider.{start}Cluster" for name, start in CLOUDS.items()}


class Adapt(BaseModel):
    """Bounds between which the number of workers follows the work."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    minimum: int = Field(1, ge=0, description="fewest workers")
    maximum: int = Field(..., ge=1, description="most workers")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.maximum}")
        return self


class Tls(BaseModel):
    """Certificates in PEM files, at the same paths on every host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ca: PathWord = Field(description="certificate of the authority; only those with one signed by it may connect")
    cert: PathWord = Field(description="certificate that this side shows")
    key: PathWord = Field(description="private key of `cert`, readable by its owner only")


class ClusterBase(BaseModel):
    """Where the job runs. Everything but `kind` is chosen for the host when it is left out; sizes are per worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field("auto", description=KIND)
    configuration: str | None = Field(None, description="cluster configuration of the host, by name; it has the rest")
    workers: int | None = Field(None, ge=1, description="worker processes: one per GPU, or one with a thread per core")
    threads_per_worker: int | None = Field(None, ge=1, description="threads of a worker process")
    visible_devices: list[Word] | None = Field(None, description="GPUs to use, as CUDA_VISIBLE_DEVICES names them")
    protocol: Literal["tcp", "tls", "ucx"] | None = Field(None, description="ucx for InfiniBand or RoCE; it has no TLS")
    cuda_ipc: bool = Field(True, description="GPUs of a host copy from each other over NVLink or PCIe, not the host")
    interface: Word | None = Field(None, description="network interface to listen on; the loopback if left out")
    address: str | None = Field(None, description="running scheduler, such as tls://10.0.0.5:8786; for kind address")
    tls: Tls | None = Field(None, description="certificates; temporary ones are made for the run if left out")
    unencrypted: bool = Field(False, description="no TLS: whoever reaches a port can run code as you")
    dashboard: bool = Field(False, description="Dask's dashboard, which every user of the host can read")
    memory_limit: Size = Field(None, description="host memory of a worker: 16GB, or 0.5 of the host")
    device_memory_limit: Size = Field(None, description="GPU memory above which results spill: 60GB, or 0.5 of the GPU")
    rmm_pool_size: Size = Field(None, description="GPU memory that a worker may allocate: 70GB, or 0.7 of the GPU")
    local_directory: AnyPath | None = Field(None, description="folder for spilled data, on a fast disk")
    adapt: Adapt | None = Field(None, description="bounds for the number of workers, for kinds that scale")
    resources: dict[str, dict[str, float]] = Field({}, description="what a stage takes: {transform: {GPU: 1}}")
    start_timeout: int = Field(300, ge=1, description="seconds to wait for workers")
    cluster_class: str | None = Field(
        None, pattern=r"^\w+(\.\w+)+$", description="for kind class: any Dask cluster, such as dask_jobqueue.PBSCluster"
    )
    cluster_kwargs: Keywords = Field({}, description="for kind class: arguments of the class")
    adapt_kwargs: Keywords = Field({}, description="for kind class: arguments of its adapt: {maximum: 8}")
    engine: Engine | None = Field(None, description="for kind class: cudf where its workers have GPUs, else pandas")

    presets: ClassVar[Presets] = Presets()
    _written: tuple[str, ...] = ()  # keys of the job; the host has the others

    @model_validator(mode="wrap")
    @classmethod
    def _of_host(cls, data: Any, handler: Callable[[Any], Self]) -> Self:
        """Take everything but the number of workers from the host's configuration, if the section names one."""
        if not isinstance(data, Mapping) or data.get("configuration") is None:
            by_class = isinstance(data, Mapping) and data.get("cluster_class")
            return handler({"kind": BY_CLASS, **data} if by_class else data)
        name = data["configuration"]
        section = configuration(data)
        try:
            of_host = cls.model_validate(section)
        except ValidationError as error:
            first = mistakes(error, section)[0]
            place = ".".join([str(name), *map(str, first.place)])
            raise ValueError(f"the configuration {place} of this host {first.text}") from None
        numbers = {key: value for key, value in data.items() if value is not None}
        replaced = {"workers", "adapt"} if len(numbers) > 1 else set()
        if "workers" in numbers:
            replaced.add("adapt_kwargs")
        cluster = handler(of_host.model_dump(exclude_unset=True, exclude=replaced) | numbers)
        _check_bounds(cluster, of_host, numbers)
        cluster._written = tuple(numbers)
        return cluster

    @model_serializer(mode="wrap")
    def _as_written(self, handler: Callable[[Any], dict[str, Any]]) -> Keywords:
        """Leave to the host what its configuration says."""
        return {key: value for key, value in handler(self).items() if not self._written or key in self._written}

    @property
    def preset(self) -> Preset | None:
        """The preset that is the kind, if it is one."""
        return self.presets.usable.get(self.kind)

    @property
    def section(self) -> Any:
        """What the job sets of its preset, or the defaults where nothing is required; None without a preset."""
        if self.preset is None:
            return None
        own = getattr(self, self.kind)
        if own is None and not any(keyword.required for keyword in self.preset.keywords.values()):
            return get_args(type(self).model_fields[self.kind].annotation)[0]()
        return own

    @property
    def class_path(self) -> str:
        """The import path of the class that starts the cluster: that of the preset, or the job's."""
        return self.preset.cluster_class if self.preset else str(self.cluster_class)

    @property
    def class_arguments(self) -> Keywords:
        """The arguments of that class, as preset and job say them."""
        return self.preset.arguments(self.section) if self.preset else self.cluster_kwargs

    @property
    def gpus(self) -> int:
        """GPUs of each host, job or pod of a preset; of a class of the job's own 1 where its workers have GPUs."""
        if self.preset:
            return int(getattr(self.section, "gpus", self.preset.gpus) or 0)
        return int(self.engine == "cudf")

    @property
    def place(self) -> str:
        """The key that an error names."""
        return f"cluster.{self.kind}" if self.preset else f"cluster.cluster_class = {self.cluster_class}"

    @property
    def scaling(self) -> Keywords:
        """The arguments of `adapt`, between whose bounds the number of workers follows the work; {}: it stays."""
        arguments = self.adapt_kwargs
        if self.preset:
            own = self.preset.adapt_kwargs
            arguments = own if self.adapt or ("maximum" in own and self.workers is None) else {}
        return arguments | (self.adapt.model_dump() if self.adapt else {})

    @property
    def has_no_gpus(self) -> bool:
        """Whether the section itself says that workers have no GPU; with `kind: auto` the host decides."""
        return self.kind == "cpu" or (self.preset is not None and not self.gpus)

    def is_set(self, name: str) -> bool:
        """Tell whether a key has another value than it has by default."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    @property
    def gpu_keys(self) -> list[str]:
        """The keys that are set and that only workers with GPUs have."""
        return [name for name in OF_GPUS if self.is_set(name)]

    @field_validator("visible_devices", mode="before", json_schema_input_type=list[str | int] | str | None)
    @classmethod
    def _as_names(cls, devices: Any) -> Any:
        if isinstance(devices, str):
            devices = devices.split(",")
        return [str(device).strip() for device in devices] if isinstance(devices, list) else devices

    @field_validator("kind", mode="before")
    @classmethod
    def _is_not_a_class(cls, kind: Any) -> Any:
        if kind in (*HERE, ADDRESS, BY_CLASS):
            return kind
        if why := cls.presets.refused.get(str(kind)):
            raise ValueError(f"the preset {kind} of this host cannot be used: {why}")
        if kind in cls.presets.usable:
            return kind
        if named := MANAGERS.get(name := str(kind).lower()):
            raise ValueError(f"{name} has a class: set cluster_class: {named} and its cluster_kwargs")
        if name == "yarn":
            raise ValueError("on YARN start a scheduler and workers with Skein or dask-yarn, and use kind: address")
        if why := cls.presets.refused.get(""):
            raise ValueError(f"there is no kind {kind!r}, and presets of this host cannot be read: {why}")
        return kind

    @field_validator("resources")
    @classmethod
    def _of_stages(cls, resources: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        if unknown := [stage for stage in resources if stage not in STAGES]:
            raise ValueError(f"there is no stage {unknown[0]!r}: {near(unknown[0], STAGES)}")
        for name in [name for stage in resources.values() for name in stage]:
            check_word(name)
        if any(amount <= 0 for stage in resources.values() for amount in stage.values()):
            raise ValueError("amounts are above 0")
        return resources

    @property
    def refuses(self) -> dict[str, str]:
        """The keys that have no meaning for the kind, each with the reason."""
        refused: dict[str, str] = {}
        if self.kind == ADDRESS:
            refused |= dict.fromkeys(OF_STARTED, "kind: address takes the workers that run there as they are")
        if self.has_no_gpus:
            where = f"{self.kind}.gpus is 0" if self.preset else f"kind is {self.kind}"
            refused |= dict.fromkeys(OF_GPUS, f"{where}, so workers have no GPU")
        if self.kind == BY_CLASS:
            of_workers = (*(name for name in OF_STARTED if name not in OF_ANY), "protocol")
            refused |= dict.fromkeys(of_workers, "cluster_kwargs say how workers of a class are started")
        if self.kind in ("cuda", ADDRESS):
            refused["adapt"] = f"kind: {self.kind} does not scale"
        return refused | (self.preset.refuses if self.preset else {})

    @model_validator(mode="after")
    def _fits_kind(self) -> Self:
        if self.kind == ADDRESS and not self.address:
            raise ValueError("kind: address needs `address`, such as tls://10.0.0.5:8786")
        for key, reason in self.refuses.items():
            if self.is_set(key):
                raise ValueError(f"{reason}: leave out `{key}`")
        sections = {name: name for name in (ADDRESS, *self.presets.usable)} | dict.fromkeys(OF_CLASS, BY_CLASS)
        for name, kind in sections.items():
            if kind != self.kind and getattr(self, name) not in (None, {}):
                raise ValueError(f"`{name}` belongs to kind: {kind}")
        if self.kind == BY_CLASS and not self.cluster_class:
            raise ValueError("kind: class needs `cluster_class`, such as dask_jobqueue.PBSCluster")
        if "asynchronous" in self.cluster_kwargs:
            raise ValueError("rowmill waits for its cluster: leave out `asynchronous` of cluster_kwargs")
        if self.preset and self.section is None:
            raise ValueError(f"kind: {self.kind} needs the section `{self.kind}`, which says where and how much")
        if why := refusal(self):
            raise ValueError(why)
        return self


def list_offered_resources(cluster: ClusterBase) -> dict[str, float]:
    """List the resources that workers of rowmill offer: of each the most that a stage takes."""
    most: dict[str, float] = {}
    for stage in cluster.resources.values():
        for name, amount in stage.items():
            most[name] = max(amount, most.get(name, 0))
    return most


def _check_bounds(cluster: ClusterBase, of_host: ClusterBase, numbers: Mapping[str, Any]) -> None:
    """Refuse numbers of workers that a job gives and the host's configuration does not allow."""
    low = of_host.scaling.get("minimum", 1)
    high = of_host.scaling.get("maximum", of_host.workers)
    wanted: dict[str, Any] = {"workers": cluster.workers} if "workers" in numbers else {}
    if cluster.adapt and "adapt" in numbers:
        wanted |= cluster.adapt.model_dump()
    for key, number in wanted.items():
        if not (isinstance(low, int) and isinstance(high, int)):
            raise ValueError(f"the configuration {cluster.configuration} sets no bounds for `{key}`: leave it out")
        if number is None or not low <= number <= high:
            raise ValueError(f"{key} is {number}; the configuration {cluster.configuration} allows {low} to {high}")


def first_workers(cluster: ClusterBase) -> int:
    """Return the number of worker processes with which a cluster on other hosts begins."""
    if cluster.preset is None:
        started = cluster.workers or cluster.cluster_kwargs.get("n_workers")
        return max(1, cluster.scaling.get("minimum") or (started if isinstance(started, int) else 1))
    processes = max(1, cluster.gpus)
    if counted := cluster.preset.one_worker_for:
        return len(getattr(cluster.section, counted)) * processes
    if cluster.scaling:
        return max(1, int(cluster.scaling.get("minimum", 1)))
    return cluster.workers or processes


OF_CLASS = ("cluster_class", "cluster_kwargs", "adapt_kwargs", "engine")
OF_GPUS = ("visible_devices", "cuda_ipc", "device_memory_limit", "rmm_pool_size")
OF_ANY = ("workers", "start_timeout", "dashboard")  # those that do not depend on how workers are started
# keys of workers that rowmill starts
OF_STARTED = (
    "workers",
    "threads_per_worker",
    "visible_devices",
    "cuda_ipc",
    "interface",
    "dashboard",
    "memory_limit",
    "device_memory_limit",
    "rmm_pool_size",
    "local_directory",
    "start_timeout",
)


def is_reachable(cluster: ClusterBase) -> bool:
    """True if other hosts can reach the cluster's ports."""
    if cluster.kind == ADDRESS:
        host = urlsplit(cluster.address or "").hostname or ""
        return not host.startswith("inproc") and not is_loopback(host)
    if cluster.preset:
        return True
    if cluster.interface is None:
        return False
    try:
        return not is_loopback(get_ip_interface(cluster.interface))
    except ValueError:  # no such interface here: make_cluster says so
        return True


def refusal(cluster: ClusterBase) -> str | None:
    """Why the cluster must not be used as it is set: connections that anybody can make who reaches a port."""
    if cluster.unencrypted:
        return "`tls` and `unencrypted: true` contradict each other" if cluster.tls else None
    if cluster.protocol == "tls" and not cluster.tls and cluster.kind == ADDRESS:
        return "protocol: tls needs `tls` with ca, cert and key"
    if cluster.kind == ADDRESS:
        shown = USER.sub("", cluster.address or "")
        if cluster.address and "://" not in cluster.address:
            return f"address {cluster.address} has no scheme: write tls://{cluster.address}, or tcp:// if it has no TLS"
        plain = not (cluster.address or "").startswith("tls://")
        if plain and is_reachable(cluster):
            return f"{shown} is not encrypted: give a tls:// address and `tls`, or set unencrypted: true"
        return None
    if cluster.protocol not in ("tcp", "ucx"):
        return None
    if cluster.tls:
        return f"protocol {cluster.protocol} has no TLS: leave it out, or leave out `tls`"
    who = "whoever reaches its ports" if is_reachable(cluster) else "every user of this host"
    return (
        f"protocol {cluster.protocol} has no TLS: {who} could run code as the user of the run, and read its data: "
        "leave it out for TLS, or accept that with unencrypted: true"
    )


USER = re.compile(r"(?<=://)[^/\s@]*@")  # of a URL; it may hold a password


def cluster_model(presets: Presets) -> type[ClusterBase]:
    """Return the section `cluster` where these presets are kinds, each with a section of its own."""
    kinds = (*HERE, ADDRESS, *presets.usable, BY_CLASS)
    fields: Keywords = {"kind": (Literal[kinds], Field("auto", description=KIND))}
    for name, preset in presets.usable.items():
        fields[name] = (preset.section() | None, Field(None, description=preset.description))
    model = create_model("Cluster", __base__=ClusterBase, __module__=__name__, __doc__=ClusterBase.__doc__, **fields)
    model.presets = presets
    return model


RESERVED = frozenset(ClusterBase.model_fields) | {*HERE, BY_CLASS} | {*dir(ClusterBase)}
if TYPE_CHECKING:
    Cluster = ClusterBase
else:
    Cluster = cluster_model(read_presets(RESERVED))
