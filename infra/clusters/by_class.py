"""The kind `class`: any cluster class of Dask by its import path, with arguments as prefect-dask takes them."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import dask.config
from distributed import Adaptive, Status

from infra.clusters.encryption import security_of
from infra.clusters.model import exposed, first_workers
from infra.clusters.reach import engine_of
from infra.clusters.remote import LOOPBACK, RunningCluster, log, worker_settings
from infra.clusters.slurm import end
from infra.environment import GPU_ENVIRONMENT, cpu_environment, local_environment
from infra.workers.failed_starts import cause_of
from infra.workers.imports import WorkerImports
from infra.workers.plugin import SetUp
from tasks.errors import GiveUpError, JobError, RowmillError, near

if TYPE_CHECKING:
    from distributed.security import Security

    from infra.clusters.model import Cluster

LOGS = "log_directory"  # which a job of dask-jobqueue makes
# How to look at workers that do not come, by the module of their class or of a class that it is derived from.
LOOK = {
    "dask_jobqueue.pbs": "qstat -u $USER",
    "dask_jobqueue.sge": "qstat -u $USER",
    "dask_jobqueue.lsf": "bjobs",
    "dask_jobqueue.slurm": "squeue --me",
    "dask_jobqueue.htcondor": "condor_q",
    "dask_jobqueue.oar": "oarstat -u",
    "dask_jobqueue.moab": "showq -u $USER",
    "dask_kubernetes": "kubectl get pods -l dask.org/cluster-name",
    "dask_cloudprovider.aws": "aws ec2 describe-instances",
    "dask_cloudprovider.azure": "az vm list --output table",
    "dask_cloudprovider.gcp": "gcloud compute instances list",
}


def check_class(cluster: Cluster) -> Callable[..., Any]:
    """The class; a JobError for a class that does not exist or does not take the arguments, as far as its signature
    says, a GiveUpError where its package is missing."""
    module, _, name = str(cluster.cluster_class).rpartition(".")
    try:
        chosen: Callable[..., Any] = getattr(import_module(module), name)
    except ImportError as error:
        raise GiveUpError(
            f"{module} cannot be imported", where=_where(cluster), why=str(error),
            do="install its package where the flow runs and where its workers run, or correct the name",
        ) from None  # fmt: skip
    except AttributeError:
        known = [known for known in dir(import_module(module)) if known[:1].isupper()]
        raise JobError(f"{module} has no class {name}", where=_where(cluster), do=near(name, known)) from None
    try:
        signature, job = inspect.signature(chosen), getattr(chosen, "job_cls", None)
        signature.bind(**cluster.cluster_kwargs)
        if job:  # of dask-jobqueue, whose clusters pass on what they do not know
            job("", **{k: v for k, v in cluster.cluster_kwargs.items() if k not in {*signature.parameters, LOGS}})
    except (TypeError, ValueError) as error:
        raise _refused(cluster, "cluster_kwargs", chosen, error) from None
    return chosen


def open_class(opened: RunningCluster, cluster: Cluster, imports: WorkerImports) -> None:
    """Start a cluster of the class, and scale it; GiveUpError where that fails."""
    chosen, on_gpus = check_class(cluster), cluster.engine == "cudf"
    submit = getattr(getattr(chosen, "job_cls", None), "submit_command", None)
    if submit and shutil.which(submit) is None:
        raise GiveUpError(f"{submit} is not here", where=_where(cluster), why=f"no {submit} in PATH",
                          do="run rowmill where jobs are submitted to the queue")  # fmt: skip
    opened.delay = partial(_delay, cluster, chosen)
    settings = worker_settings(cluster, on_gpus, cluster.tls.model_dump() if cluster.tls else None, imports)
    settings["rowmill.says-start-only"] = True  # SSHCluster waits for the line of a worker that has started
    variables = {**(GPU_ENVIRONMENT if on_gpus else cpu_environment(None)), "DASK_LOGGING__DISTRIBUTED": None}
    if any(word in str(cluster.cluster_kwargs) for word in ("rmm", "ucx")):  # the class allocates memory of the GPUs
        settings.pop("rowmill.gpu-pool", None)
    try:
        with dask.config.set(settings), local_environment(variables):
            started = _constructed(chosen, _arguments(cluster, chosen, security_of(cluster)))
        opened.on_close.append(partial(end, started))
        if cluster.workers:
            started.scale(cluster.workers)
        if cluster.scaling:
            _adapt(cluster, started.adapt)
    except RowmillError:
        raise
    except (TypeError, ValueError) as error:
        raise _refused(cluster, "cluster_kwargs", chosen, error) from None
    except Exception as error:
        if "keyword argument" in (cause := cause_of(error)):
            raise _refused(cluster, "cluster_kwargs", chosen, cause) from None
        raise GiveUpError(
            "the cluster could not be started", where=_where(cluster), why=f"{type(error).__name__}: {error} ({cause})",
            do="call it by hand, in Python: `from {} import {}`".format(*str(cluster.cluster_class).rsplit(".", 1)),
        ) from None  # fmt: skip
    opened.scheduler_address, opened.security = started.scheduler_address, getattr(started, "security", None)
    opened.scaled = started
    opened.on_workers = partial(_set_up, cluster, SetUp(settings, imports, on_gpus))


def _constructed(chosen: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """The cluster, which is closed also where its constructor fails once it has started something."""
    if not isinstance(chosen, type):
        return chosen(**arguments)
    started: Any = chosen.__new__(chosen)
    try:
        chosen.__init__(started, **arguments)
    except BaseException:
        with suppress(AttributeError):  # of a constructor that has not come far
            if started.status is not Status.closed:
                started.close()
        raise
    return started


def _adapt(cluster: Cluster, adapt: Callable[..., Any]) -> None:
    """Have the number of workers follow the work; a JobError for arguments that Dask would pass over."""
    known = {**inspect.signature(adapt).parameters}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        known |= inspect.signature(Adaptive).parameters
    if unknown := [name for name in cluster.scaling if name not in known]:
        raise _refused(cluster, "adapt_kwargs", adapt, f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    adapt(**cluster.scaling | {"minimum": first_workers(cluster)})


def _arguments(cluster: Cluster, chosen: Callable[..., Any], security: Security | None) -> dict[str, Any]:
    """The arguments of the job, after those that rowmill sets where the class names them."""
    ours = {
        "security": security,
        "shared_temp_directory": "~",
        "scheduler_options": {"dashboard_address": LOOPBACK},
        "quiet": True,
    }
    taken = inspect.signature(chosen).parameters
    if "protocol" not in taken or not str(cluster.cluster_kwargs.get("protocol", "tls")).startswith("tls"):
        ours["security"] = None  # certificates are of use where the class has its scheduler and workers speak TLS
    return {name: value for name, value in ours.items() if name in taken and value is not None} | cluster.cluster_kwargs


def _set_up(cluster: Cluster, plugin: SetUp, client: Any) -> None:
    """Give workers what those of other kinds start with. An error where anybody could connect, or workers do not fit
    the job."""
    address = client.sync(client.scheduler.identity, n_workers=0)["address"]
    plain = not str(address).startswith(("tls://", "inproc://")) and not cluster.unencrypted
    if plain and exposed(cluster.model_copy(update={"kind": "address", "address": address})):
        raise JobError(
            "the scheduler is not encrypted", where=f"{_where(cluster)}, {address}",
            why="whoever reaches its port could run code as the user of the run, and read its data",
            do="give cluster.tls, and the class a protocol of tls://; or use kind: ssh, slurm or kubernetes; or accept "
            "that with cluster.unencrypted: true",
        )  # fmt: skip
    engine = engine_of(client)
    if plugin.on_gpus and engine != "cudf":
        raise GiveUpError("workers without a GPU, or without the packages for it", where="cluster.engine = cudf",
                          do="leave engine out, or have cluster_kwargs start workers on GPUs")  # fmt: skip
    if engine == "cudf" and not plugin.on_gpus:
        log.warning("the workers have GPUs that stay unused: set cluster.engine: cudf")
    client.register_plugin(plugin)


def _refused(cluster: Cluster, key: str, called: Callable[..., Any], why: object) -> JobError:
    """The error for arguments that a class, or its adapt, does not take. It shows the signature, and the names of
    parameters that the class passes on to its base classes or to its jobs."""
    known = inspect.signature(called).parameters
    classes = [*getattr(called, "__mro__", ()), *getattr(getattr(called, "job_cls", None), "__mro__", ())]
    passed = {name: None for of in classes for name, p in inspect.signature(of.__init__).parameters.items()
              if name not in {*known, "self"} and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}  # fmt: skip
    more = f", and also takes {', '.join(passed)}" if passed else ""
    return JobError(
        f"{called.__name__} does not take the arguments", where=f"{_where(cluster)}: {key}", why=str(why),
        do=f"its signature is {called.__name__}{inspect.signature(called)}{more}",
    )  # fmt: skip


def _delay(cluster: Cluster, chosen: Callable[..., Any]) -> str:
    """Where the queue, or the log, of workers that have not come can be read."""
    homes = [f"{of.__module__}." for of in getattr(chosen, "__mro__", (chosen,))]
    command = next((c for place, c in LOOK.items() if any(home.startswith(f"{place}.") for home in homes)), "")
    folder = cluster.cluster_kwargs.get(LOGS)
    texts = [f"`{command}` shows them" if command else "", f"{folder} has their logs" if folder else ""]
    return f"workers of {cluster.cluster_class}: " + ("; ".join(filter(None, texts)) or "none has registered")


def _where(cluster: Cluster) -> str:
    return f"cluster.cluster_class = {cluster.cluster_class}"
