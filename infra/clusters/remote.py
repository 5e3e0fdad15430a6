"""The common parts of the kinds with workers on other hosts: library, options, settings, and the wait for workers."""

from __future__ import annotations

import importlib
import logging
import signal
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from distributed import Client, Status
from distributed.security import Security

from infra.clusters.encryption import settings_of
from infra.clusters.keywords import Keywords
from infra.clusters.model import first_workers, list_offered_resources
from infra.clusters.reach import workers_at
from infra.environment import DASK_SETTINGS, GPU_ENVIRONMENT, cpu_environment, spawn_environment
from infra.sizes import size_or_part
from infra.workers.imports import NO_IMPORTS, WorkerImports, pre_import, pre_import_settings, preload_settings
from infra.workers.pages import page_settings
from tasks.errors import GiveUpError

if TYPE_CHECKING:
    from infra.clusters.model import Cluster

log = logging.getLogger("rowmill.clusters")
# SSHCluster waits for the lines by which a scheduler and a worker say that they have started. A command of rowmill
# silences Dask, and processes elsewhere inherit that.
SAYS_START = {"rowmill.says-start-only": True, "logging.distributed": "info"}
# A scheduler elsewhere outlives a flow that was killed: without work it ends after this, and its workers with it.
IDLE_SECONDS = 1800
# Threads of a worker on a GPU that is not seen from here; infra/clusters/cuda_settings.py has the rule for those that
# are.
GPU_THREADS = 8
# workers that pin a GPU each
CUDA_COMMAND = "dask cuda worker"
CUDA_CLASS = "dask_cuda.CUDAWorker"
LOOPBACK = "127.0.0.1:0"  # where dashboards elsewhere listen: any port, for no other host


def without_current_folder(python: str) -> str:
    """The command of a Python that does not import from its current folder, where another tasks/ may lie."""
    return f"{python.removesuffix(' -P')} -P"


@dataclass
class RunningCluster:
    """A scheduler elsewhere, in the shape of a Dask cluster; closing it runs `on_close`, by default nothing.

    `delay` says what holds up workers that have not come, `on_workers` is called with a client once they have.
    """

    scheduler_address: str = ""
    security: Security | None = None
    on_close: list[Callable[[], object]] = field(default_factory=list)
    delay: Callable[[], str] = str
    on_workers: Callable[[Client], object] = bool
    status: Status = Status.running
    scaled: Any = None  # a cluster of Dask whose workers come one by one, as their queue lets them

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self

    def close(self) -> None:
        """Forget the scheduler; what rowmill started there is ended, all of it even if an end fails."""
        self.status = Status.closed
        while self.on_close:
            try:
                self.on_close.pop()()
            except Exception as error:
                log.warning("not everything of the cluster could be ended: %s: %s", type(error).__name__, error)


def start(
    open_cluster: Callable[[RunningCluster, Cluster, WorkerImports], None], cluster: Cluster, imports: WorkerImports
) -> RunningCluster:
    """Start a cluster on other hosts and wait for its first workers.

    `open_cluster` adds to the RunningCluster what it has started, step by step: all of it is ended where a later step
    fails.
    """
    opened = RunningCluster()
    try:
        open_cluster(opened, cluster, imports)
        wait_for_workers(opened, cluster)
    except BaseException:
        opened.close()
        raise
    return opened


def library(module: str, package: str, extra: str | None, where: str) -> ModuleType:
    """Return the module that a cluster needs; GiveUpError with the command that installs it."""
    try:
        return import_keeping_sigint(module)
    except ImportError as error:
        what = f"'rowmill[{extra}]'" if extra else package
        raise GiveUpError(
            f"{package} is not installed",
            where=where,
            why=str(error),
            do=f"pip install {what}, where the flow runs and where its workers run",
        ) from None


def import_keeping_sigint(module: str) -> ModuleType:
    """The module, which leaves Ctrl-C to the command that runs; dask-jobqueue would take it when it is imported."""
    before = signal.getsignal(signal.SIGINT)
    try:
        return importlib.import_module(module)
    finally:
        if signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)


def worker_options(cluster: Cluster, gpus: int, imports: WorkerImports = NO_IMPORTS) -> Keywords:
    """Options of a worker elsewhere, by the names of distributed.Nanny, or dask_cuda.CUDAWorker with `gpus`.

    Sizes of hosts that are not known here stay parts. How GPUs allocate, save over UCX, stands in `worker_settings`.
    """
    options: Keywords = {
        "nthreads": cluster.threads_per_worker or (GPU_THREADS if gpus else None),
        "memory_limit": size_or_part(cluster.memory_limit) if cluster.memory_limit else None,
        "local_directory": cluster.local_directory,
        "interface": cluster.interface,
        "dashboard": cluster.dashboard,
        "dashboard_address": LOOPBACK,
    }
    resources = list_offered_resources(cluster)
    if gpus:
        resources = {"GPU": 1.0, **resources}
        if cluster.protocol == "ucx":
            options |= {"rmm_pool_size": size_or_part(cluster.rmm_pool_size or "0.6")}
        device = size_or_part(cluster.device_memory_limit) if cluster.device_memory_limit else 0.45
        options |= {
            "device_memory_limit": device,
            "rmm_allocator_external_lib_list": ["cupy"],
            "pre_import": ",".join(pre_import(imports)),
        }
    if resources:
        options["resources"] = _amounts(resources) if gpus else resources  # CUDAWorker takes them as its command does
    return {name: value for name, value in options.items() if value is not None}


def _amounts(resources: dict[str, float]) -> str:
    return ",".join(f"{name}={amount:g}" for name, amount in resources.items())


FLAGS = {"rmm_allocator_external_lib_list": "set-rmm-allocator-for-libs"}


def worker_arguments(cluster: Cluster, gpus: int, imports: WorkerImports, *without: str) -> list[str]:
    """Return the same for the commands `dask worker` and `dask cuda worker`, save the options named `without`."""
    arguments = []
    for name, value in worker_options(cluster, gpus, imports).items():
        flag = "--" + FLAGS.get(name, name).replace("_", "-")
        if name in without:
            continue
        if isinstance(value, dict):
            arguments += [flag, _amounts(value)]
        elif isinstance(value, bool):
            arguments += [flag if value else flag.replace("--", "--no-")]
        else:
            arguments += [flag, ",".join(value) if isinstance(value, list) else str(value)]
    return arguments


def worker_settings(
    cluster: Cluster, gpus: int, files: dict[str, str] | None = None, imports: WorkerImports = NO_IMPORTS
) -> Keywords:
    """Dask's settings for the processes elsewhere: those of every cluster, environment, files of TLS."""
    environment = GPU_ENVIRONMENT if gpus else cpu_environment(cluster.threads_per_worker)
    settings: Keywords = {**DASK_SETTINGS, **preload_settings(imports), **spawn_environment(environment)}
    settings |= page_settings(cluster.dashboard)
    settings |= settings_of(files) if files else {}
    settings["distributed.scheduler.idle-timeout"] = f"{IDLE_SECONDS}s"
    if gpus:  # the workers spill device -> host -> disk themselves; a nanny that kills would only get in the way
        settings |= {"distributed.worker.memory.terminate": False, **pre_import_settings(imports)}
        if cluster.protocol != "ucx":
            limit = size_or_part(cluster.rmm_pool_size or "0.92")
            settings["rowmill.gpu-pool"] = {"limit": limit, "shared": cluster.cuda_ipc}
    return settings


def nest_settings(settings: Keywords) -> Keywords:
    """Settings with dots as the tree that Dask keeps.

    >>> nest_settings({"a.b": 1, "a.c.d": 2})
    {'a': {'b': 1, 'c': {'d': 2}}}
    """
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        *branches, leaf = path.split(".")
        place = tree
        for branch in branches:
            place = place.setdefault(branch, {})
        place[leaf] = value
    return tree


def wait_for_workers(running: RunningCluster, cluster: Cluster) -> None:
    """Wait for the first workers; when `cluster.start_timeout` is over, go on with those that have come.

    GiveUpError when none came.
    """
    wanted = first_workers(cluster)
    with Client(running, set_as_default=False, timeout="30s") as client:
        with suppress(TimeoutError):
            client.wait_for_workers(wanted, timeout=cluster.start_timeout)
        if came := len(workers_at(client)):
            running.on_workers(client)
    if came == 0:
        raise GiveUpError(
            f"no worker has come within {cluster.start_timeout} s",
            where=f"cluster.kind = {cluster.kind}",
            why=running.delay(),
            do="look at the workers' logs; raise cluster.start_timeout if they only wait for their turn",
        )
    if came < wanted:
        log.warning("%s of %s workers came within %s s; the run starts with them", came, wanted, cluster.start_timeout)
