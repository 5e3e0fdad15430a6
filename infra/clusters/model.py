"""The section `cluster` of a job: its fields, their limits, and those of every kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from distributed.utils import get_ip_interface
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from infra.clusters.configurations import configuration
from infra.clusters.script_texts import AnyPath, PathWord, Word, check_word
from infra.environment import is_loopback
from infra.sizes import Amount, Size
from tasks.errors import mistakes, near

Engine = Literal["cudf", "pandas"]
Kind = Literal["cuda", "cpu", "address", "ssh", "slurm", "kubernetes", "class"]
STAGES = ("ingest", "statistics", "transform", "shuffle_write")
SCALE = ("auto", "cpu", "slurm", "class")
KUBE = "dask_kubernetes.operator.KubeCluster"
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


class Cluster(BaseModel):
    """Where the job runs. Everything but `kind` is chosen for the host when it is left out; sizes are per worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["auto", Kind] = Field("auto", description="auto takes the GPUs of this host, else its cores")
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
    ssh: Ssh | None = Field(None, description="for kind ssh: hosts, user, port, key, gpus")
    slurm: Slurm | None = Field(None, description="for kind slurm: cores, memory, gpus, queue, account, walltime")
    kubernetes: Kubernetes | None = Field(None, description="for kind kubernetes: image, cores, memory, gpus")
    cluster_class: str | None = Field(
        None, pattern=r"^\w+(\.\w+)+$", description="for kind class: any Dask cluster, such as dask_jobqueue.PBSCluster"
    )
    cluster_kwargs: dict[str, Any] = Field({}, description="for kind class: arguments of the class")
    adapt_kwargs: dict[str, Any] = Field({}, description="for kind class: arguments of its adapt: {maximum: 8}")
    engine: Engine | None = Field(None, description="for kind class: cudf where its workers have GPUs, else pandas")

    _written: tuple[str, ...] = ()  # keys of the job; the host has the others

    @model_validator(mode="wrap")
    @classmethod
    def _of_host(cls, data: Any, handler: Callable[[Any], Self]) -> Self:
        """Take everything but the number of workers from the host's configuration, if the section names one."""
        if not isinstance(data, Mapping) or data.get("configuration") is None:
            by_class = isinstance(data, Mapping) and data.get("cluster_class")
            return handler({"kind": "class", **data} if by_class else data)
        name, section = data["configuration"], configuration(data)
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
    def _as_written(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Leave to the host what its configuration says."""
        return {key: value for key, value in handler(self).items() if not self._written or key in self._written}

    @property
    def scaling(self) -> dict[str, Any]:
        """The arguments of `adapt`, between whose bounds the number of workers follows the work; {}: it stays."""
        return self.adapt_kwargs | (self.adapt.model_dump() if self.adapt else {})

    @property
    def has_no_gpus(self) -> bool:
        """Whether the section itself says that workers have no GPU; with `kind: auto` the host decides."""
        section = getattr(self, self.kind) if self.kind in REMOTE else None
        return self.kind == "cpu" or (section is not None and not section.gpus)

    @property
    def gpu_keys(self) -> list[str]:
        """The keys that are set and that only workers with GPUs have."""
        return [name for name in OF_GPUS if getattr(self, name) != type(self).model_fields[name].default]

    @field_validator("visible_devices", mode="before", json_schema_input_type=list[str | int] | str | None)
    @classmethod
    def _as_names(cls, devices: Any) -> Any:
        if isinstance(devices, str):
            devices = devices.split(",")
        return [str(device).strip() for device in devices] if isinstance(devices, list) else devices

    @field_validator("kind", mode="before")
    @classmethod
    def _is_not_a_class(cls, kind: Any) -> Any:
        if named := MANAGERS.get(name := str(kind).lower()):
            raise ValueError(f"{name} has a class: set cluster_class: {named} and its cluster_kwargs")
        if name == "yarn":
            raise ValueError("on YARN start a scheduler and workers with Skein or dask-yarn, and use kind: address")
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

    @model_validator(mode="after")
    def _fits_kind(self) -> Self:
        if self.kind == "address" and not self.address:
            raise ValueError("kind: address needs `address`, such as tls://10.0.0.5:8786")
        own = [name for name in OF_STARTED if getattr(self, name) != type(self).model_fields[name].default]
        if self.kind == "address" and own:
            raise ValueError(f"kind: address takes the workers that run there as they are: leave out `{own[0]}`")
        if self.has_no_gpus and self.gpu_keys:
            where = f"{self.kind}.gpus is 0" if self.kind in REMOTE else f"kind is {self.kind}"
            raise ValueError(f"{where}, so workers have no GPU: leave out `{self.gpu_keys[0]}`")
        own = [name for name in own if name not in OF_ANY] + ["protocol"] * bool(self.protocol)
        if self.kind == "class" and own:
            raise ValueError(f"cluster_kwargs say how workers of a class are started: leave out `{own[0]}`")
        if self.kind in ("slurm", "kubernetes") and self.visible_devices is not None:
            raise ValueError(f"{self.kind} chooses the GPUs of a worker: leave out `visible_devices`")
        if self.kind == "kubernetes" and self.memory_limit is not None:
            raise ValueError("kubernetes.memory says what a pod may use: leave out `memory_limit`")
        if self.kind == "kubernetes" and self.interface is not None:
            raise ValueError("pods listen on the interface that Kubernetes gives them: leave out `interface`")
        sections = {name: name for name in ("address", *REMOTE)} | dict.fromkeys(OF_CLASS, "class")
        for name, kind in sections.items():
            if kind != self.kind and getattr(self, name) not in (None, {}):
                raise ValueError(f"`{name}` belongs to kind: {kind}")
        if self.kind == "class" and not self.cluster_class:
            raise ValueError("kind: class needs `cluster_class`, such as dask_jobqueue.PBSCluster")
        if "asynchronous" in self.cluster_kwargs:
            raise ValueError("rowmill waits for its cluster: leave out `asynchronous` of cluster_kwargs")
        if self.kind in REMOTE and getattr(self, self.kind) is None:
            raise ValueError(f"kind: {self.kind} needs the section `{self.kind}`, which says where and how much")
        if self.kind == "ssh" and self.workers:
            raise ValueError("kind: ssh has a worker for each of ssh.hosts: leave out `workers`")
        if self.adapt and self.kind not in SCALE:
            by_class = f", or set cluster_class: {KUBE} (without TLS) with adapt_kwargs" * (self.kind == "kubernetes")
            raise ValueError(f"kind: {self.kind} does not scale: leave out `adapt`{by_class}")
        if why := refusal(self):
            raise ValueError(why)
        return self


def offered(cluster: Cluster) -> dict[str, float]:
    """The resources that workers of rowmill offer: of each the most that a stage takes."""
    most: dict[str, float] = {}
    for stage in cluster.resources.values():
        for name, amount in stage.items():
            most[name] = max(amount, most.get(name, 0))
    return most


def _check_bounds(cluster: Cluster, of_host: Cluster, numbers: Mapping[str, Any]) -> None:
    """Refuse numbers of workers that a job gives and the host's configuration does not allow."""
    low, high = of_host.scaling.get("minimum", 1), of_host.scaling.get("maximum", of_host.workers)
    bounds = cluster.adapt.model_dump() if cluster.adapt and "adapt" in numbers else {}
    for key, number in {**({"workers": cluster.workers} if "workers" in numbers else {}), **bounds}.items():
        if not (isinstance(low, int) and isinstance(high, int)):
            raise ValueError(f"the configuration {cluster.configuration} sets no bounds for `{key}`: leave it out")
        if number is None or not low <= number <= high:
            raise ValueError(f"{key} is {number}; the configuration {cluster.configuration} allows {low} to {high}")


def first_workers(cluster: Cluster) -> int:
    """The number of worker processes with which a cluster on other hosts begins."""
    if cluster.kind == "class":
        started = cluster.workers or cluster.cluster_kwargs.get("n_workers")
        return max(1, cluster.scaling.get("minimum") or (started if isinstance(started, int) else 1))
    section = getattr(cluster, cluster.kind)
    if cluster.kind == "ssh":
        return len(section.hosts) * max(1, section.gpus)
    if cluster.adapt:
        return max(1, cluster.adapt.minimum)
    return cluster.workers or max(1, section.gpus)


REMOTE = ("ssh", "slurm", "kubernetes")
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


class Tls(BaseModel):
    """Certificates in PEM files, at the same paths on every host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ca: PathWord = Field(description="certificate of the authority; only those with one signed by it may connect")
    cert: PathWord = Field(description="certificate that this side shows")
    key: PathWord = Field(description="private key of `cert`, readable by its owner only")


def exposed(cluster: Cluster) -> bool:
    """True if other hosts can reach the cluster's ports."""
    if cluster.kind == "address":
        host = urlsplit(cluster.address or "").hostname or ""
        return not host.startswith("inproc") and not is_loopback(host)
    if cluster.kind in REMOTE:
        return True
    if cluster.interface is None:
        return False
    try:
        return not is_loopback(get_ip_interface(cluster.interface))
    except ValueError:  # no such interface here: make_cluster says so
        return True


def refusal(cluster: Cluster) -> str | None:
    """Why the cluster must not be used as it is set: connections that anybody can make who reaches a port."""
    if cluster.unencrypted:
        return "`tls` and `unencrypted: true` contradict each other" if cluster.tls else None
    if cluster.protocol == "tls" and not cluster.tls and cluster.kind == "address":
        return "protocol: tls needs `tls` with ca, cert and key"
    if cluster.kind == "address":
        shown = USER.sub("", cluster.address or "")
        if cluster.address and "://" not in cluster.address:
            return f"address {cluster.address} has no scheme: write tls://{cluster.address}, or tcp:// if it has no TLS"
        plain = not (cluster.address or "").startswith("tls://")
        if plain and exposed(cluster):
            return f"{shown} is not encrypted: give a tls:// address and `tls`, or set unencrypted: true"
        return None
    if cluster.protocol not in ("tcp", "ucx"):
        return None
    if cluster.tls:
        return f"protocol {cluster.protocol} has no TLS: leave it out, or leave out `tls`"
    who = "whoever reaches its ports" if exposed(cluster) else "every user of this host"
    return (
        f"protocol {cluster.protocol} has no TLS: {who} could run code as the user of the run, and read its data: "
        "leave it out for TLS, or accept that with unencrypted: true"
    )


USER = re.compile(r"(?<=://)[^/\s@]*@")  # of a URL; it may hold a password
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class Kubernetes(BaseModel):
    """What a worker's pod asks for. It runs one worker process, or one for each of its GPUs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str = Field(description="image with this rowmill, as infra/Dockerfile makes it")
    cores: float = Field(gt=0, description="CPU cores of a pod")
    memory: Amount = Field(description="host memory of a pod: 64GiB")
    gpus: int = Field(0, ge=0, description="GPUs of a pod (nvidia.com/gpu); 0: the cores")
    namespace: str | None = Field(None, pattern=DNS_LABEL, description="that of the current context, or of this pod")
    service_account: str | None = Field(None, description="service account of the pods")
    volumes: dict[str, str] = Field({}, description="claims and where pods see them: {data: /data}, as the flow does")
    shared_memory: Amount = Field("8GiB", description="size of a pod's /dev/shm, which UCX and NCCL use")
    node_selector: dict[str, str] = Field({}, description="labels that a node of a pod has")
    tolerations: list[dict[str, Any]] = Field([], description="taints of nodes that the pods tolerate")
    template: dict[Literal["worker", "scheduler"], dict[Literal["metadata", "spec"], dict[str, Any]]] = Field(
        {}, description="merged into the pods: {worker: {metadata: {annotations: ..}, spec: {priorityClassName: ..}}}"
    )

    @field_validator("template")
    @classmethod
    def _leaves_the_command(cls, template: dict[Any, Any]) -> dict[Any, Any]:
        for role, pod in template.items():
            containers = pod.get("spec", {}).get("containers", [])
            if not isinstance(containers, list) or not all(isinstance(c, dict) and "name" in c for c in containers):
                raise ValueError(f"the containers of {role} are not a list of maps with a name each")
            if any(c["name"] == role and {"args", "command"} & c.keys() for c in containers):
                raise ValueError(f"rowmill writes the command of the container {role}: leave out `args` and `command`")
        return template


WALLTIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")
LINE_BREAK = re.compile(r"[\n\r\0]")


class Slurm(BaseModel):
    """What a job in the queue asks for. It runs one worker process, or one for each of its GPUs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cores: int = Field(ge=1, description="CPU cores of a job")
    memory: Amount = Field(description="host memory of a job: 64GB")
    gpus: int = Field(0, ge=0, description="GPUs of a job; 0: the cores")
    queue: Word | None = Field(None, description="partition of SLURM; its default if left out")
    account: Word | None = Field(None, description="account that SLURM charges; its default if left out")
    walltime: str = Field("04:00:00", description="after which SLURM ends a job: 04:00:00, or 1-00:00:00 for a day")
    directives: list[str] = Field([], description="further #SBATCH lines: --constraint=h200, --exclusive")
    setup: list[str] = Field([], description="commands that a job runs first: module load cuda")
    python: str | None = Field(None, description="Python of the nodes; the path of this one if left out")
    log_directory: PathWord | None = Field(None, description="where the jobs' output goes; dropped if left out")
    shared_directory: PathWord = Field("~", description="folder that all nodes see, for temporary certificates")

    @field_validator("walltime", mode="before")
    @classmethod
    def _is_walltime(cls, walltime: Any) -> Any:
        if not isinstance(walltime, str) or not WALLTIME.fullmatch(walltime):
            raise ValueError('no walltime: write "04:00:00" in quotes (YAML takes 04:00:00 for a number)')
        return walltime

    @model_validator(mode="after")
    def _one_line_each(self) -> Self:
        if any(LINE_BREAK.search(line) for line in [*self.directives, *self.setup, self.python or ""]):
            raise ValueError("a line of directives, setup or python holds a line break")
        return self


CONNECT_SECONDS = 20


class Ssh(BaseModel):
    """Hosts that this user can log in to without a password, with rowmill installed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: list[str] = Field(
        min_length=1,
        description="a worker process on each, with gpus one per GPU; two where a host is named twice; "
        "the scheduler runs on the first",
    )
    user: str | None = Field(None, description="name to log in with; that of ~/.ssh/config, or the current one")
    port: int | None = Field(None, ge=1, le=65535, description="port of the SSH servers; that of ~/.ssh/config, or 22")
    key: str | None = Field(None, description="file of the private key; those of the agent and of ~/.ssh if left out")
    known_hosts: str | None = Field(None, description="file of the hosts' keys; ~/.ssh/known_hosts if left out")
    python: str | None = Field(None, description="the hosts' Python; the path of this one if left out")
    gpus: int = Field(0, ge=0, description="GPUs that are used on each host; 0: the cores")

    def connection(self) -> dict[str, Any]:
        """Arguments of asyncssh.connect."""
        arguments = {
            "username": self.user,
            "port": self.port,
            "known_hosts": self.known_hosts,
            "client_keys": [self.key] if self.key else None,
            "connect_timeout": CONNECT_SECONDS,
        }
        return {name: value for name, value in arguments.items() if value is not None}
