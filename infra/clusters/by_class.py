"""The kind `class`: any cluster class of Dask by its import path, with arguments as prefect-dask takes them."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import dask.config
from distributed import Adaptive, Status

from infra.clusters.encryption import security_of
from infra.clusters.jobs import PLAIN_COMMAND, end, exported
from infra.clusters.model import exposed, first_workers
from infra.clusters.reach import engine_of
from infra.clusters.remote import (
    CUDA_CLASS,
    CUDA_COMMAND,
    LOOPBACK,
    SAYS_START,
    RunningCluster,
    imported,
    log,
    worker_arguments,
    worker_options,
    worker_settings,
)
from infra.environment import GPU_ENVIRONMENT, cpu_environment, local_environment
from infra.workers.failed_starts import cause_of
from infra.workers.imports import WorkerImports
from infra.workers.plugin import RetireByName, SetUp
from tasks.errors import GiveUpError, JobError, RowmillError, near

if TYPE_CHECKING:
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
    "dask_kubernetes": "kubectl get pods -l dask.org/cluster-name",
    "dask_cloudprovider.aws": "aws ec2 describe-instances",
    "dask_cloudprovider.azure": "az vm list --output table",
    "dask_cloudprovider.gcp": "gcloud compute instances list",
}


def check_class(cluster: Cluster) -> Callable[..., Any]:
    """The class; a JobError for a class that does not exist or, as far as its signature says, does not take the
    arguments; a GiveUpError where its package is missing."""
    module, _, name = str(cluster.cluster_class).rpartition(".")
    try:
        home = imported(module)
    except Exception as error:  # of a module of one's own it may be any
        do = "install its package where the flow runs and where its workers run, or correct the name"
        raise GiveUpError(f"{module} cannot be imported", where=_where(cluster), why=str(error), do=do) from None
    if not callable(chosen := getattr(home, name, None)):
        hint = near(name, [known for known in dir(home) if known[:1].isupper()])
        raise JobError(f"{module} has no class {name}", where=_where(cluster), do=hint)
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
        why, do = f"no {submit} in PATH", "run rowmill where jobs are submitted to the queue"
        raise GiveUpError(f"{submit} is not here", where=_where(cluster), why=why, do=do)
    opened.delay = partial(_delay, cluster, chosen)
    tls = cluster.tls.model_dump() if cluster.tls else None
    settings = worker_settings(cluster, on_gpus, tls, imports) | SAYS_START
    variables = {**(GPU_ENVIRONMENT if on_gpus else cpu_environment(None)), "DASK_LOGGING__DISTRIBUTED": None}
    if any(word in str(cluster.cluster_kwargs) for word in ("rmm", "ucx")):  # the class allocates memory of the GPUs
        settings.pop("rowmill.gpu-pool", None)
    started_in = local_environment(variables)  # until the cluster is closed, since workers may come later
    opened.on_close.append(partial(started_in.__exit__, None, None, None))
    try:
        with dask.config.set(settings):
            started = _constructed(chosen, _arguments(cluster, chosen, exported(settings), imports))
        opened.on_close.append(partial(end, started))
        if cluster.workers:
            started.scale(cluster.workers)
        if cluster.scaling:
            _adapt(cluster, started.adapt)
    except RowmillError:
        raise
    except Exception as error:
        cause = cause_of(error)
        if isinstance(error, (TypeError, ValueError)) or "keyword argument" in cause:
            raise _refused(cluster, "cluster_kwargs", chosen, cause) from None
        why, do = f"{type(error).__name__}: {error} ({cause})", "call the class in Python, with the same arguments"
        raise GiveUpError("the cluster could not be started", where=_where(cluster), why=why, do=do) from None
    opened.scheduler_address, opened.security = started.scheduler_address, getattr(started, "security", None)
    opened.scaled = started
    opened.on_workers = partial(_set_up, cluster, SetUp(settings, imports, on_gpus))


def _constructed(chosen: Any, arguments: dict[str, Any]) -> Any:
    """The cluster, which is closed also where its constructor fails once it has started something."""
    if not inspect.isclass(chosen):
        return chosen(**arguments)
    started: Any = chosen.__new__(chosen)
    try:
        started.__init__(**arguments)
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


def _arguments(cluster: Cluster, chosen: Callable[..., Any], settings: str, imports: WorkerImports) -> dict[str, Any]:
    """The arguments of the job, after those that rowmill sets where the class names them. Certificates are for a class
    that has its scheduler and its workers speak TLS."""
    taken = inspect.signature(chosen).parameters
    speaks_tls = "protocol" in taken and str(cluster.cluster_kwargs.get("protocol", "tls")).startswith("tls")
    ours = {
        "security": security_of(cluster) if speaks_tls else None,
        "shared_temp_directory": "~",
        "scheduler_options": {"dashboard_address": LOOPBACK},
        "quiet": True,
    }
    known: dict[str, Any] = {name: value for name, value in ours.items() if name in taken and value is not None}
    known |= cluster.cluster_kwargs
    if cluster.engine == "cudf":
        known |= _of_gpus(cluster, chosen, settings, imports)
    if "worker_options" in taken:  # of SSHCluster: a worker that never finds its scheduler would wait forever
        known["worker_options"] = {"death_timeout": cluster.start_timeout} | dict(known.get("worker_options") or {})
    return known


def _of_gpus(cluster: Cluster, chosen: Callable[..., Any], settings: str, imports: WorkerImports) -> dict[str, Any]:
    """Arguments for workers of dask-cuda, a GPU each, where the class starts plain ones by default. {} where the job,
    or the configuration of dask-jobqueue, names the workers."""
    kwargs, started = cluster.cluster_kwargs, {}
    plain_class = str(getattr(_parameters(chosen).get("worker_class"), "default", ""))
    if job := getattr(chosen, "job_cls", None):
        section = dask.config.get(f"jobqueue.{kwargs.get('config_name') or job.default_config_name()}", {})
        section = {name.replace("-", "_"): value for name, value in section.items()}
        section |= {name: value for name, value in kwargs.items() if value is not None}
        if kwargs.get("worker_command") is None and section.get("worker_command") == PLAIN_COMMAND:
            arguments = section.get("worker_extra_args") or section.get("extra") or []
            lines = section.get("job_script_prologue") or section.get("env_extra") or []
            started = {
                "worker_command": CUDA_COMMAND,
                "processes": section.get("processes") or 1,
                "worker_extra_args": [*worker_arguments(cluster, 1, imports, "nthreads"), *arguments],
                "job_script_prologue": [*lines, settings],
            }
            log.info("each job starts `%s` for %s GPU(s) (processes)", CUDA_COMMAND, started["processes"])
    elif "worker_class" not in kwargs and plain_class.endswith("distributed.Nanny"):  # of SSHCluster and clouds
        options = worker_options(cluster, 1, imports) | dict(kwargs.get("worker_options") or {})
        started = {"worker_class": CUDA_CLASS, "worker_options": options}
        log.info("the workers are of the worker_class %s", CUDA_CLASS)
    return started


def _set_up(cluster: Cluster, plugin: SetUp, client: Any) -> None:
    """Give workers what those of other kinds start with. An error where anybody could connect, or workers do not fit
    the job."""
    address = str(client.sync(client.scheduler.identity, n_workers=0)["address"])
    plain = not address.startswith(("tls://", "inproc://")) and not cluster.unencrypted
    if plain and exposed(cluster.model_copy(update={"kind": "address", "address": address})):
        where, why = (
            f"{_where(cluster)}, {address}",
            "whoever reaches its port could run code as you, and read your data",
        )
        do = "give cluster.tls, and the class a protocol of tls://; use kind: ssh, slurm or kubernetes; or accept that "
        raise JobError("the scheduler is not encrypted", where=where, why=why, do=f"{do}with cluster.unencrypted: true")
    engine = engine_of(client)
    if plugin.on_gpus and engine != "cudf":
        what, do = "workers without a GPU, or without the packages for it", "have cluster_kwargs start workers on GPUs"
        raise GiveUpError(what, where="cluster.engine = cudf", do=f"leave cluster.engine out, or {do}")
    if engine == "cudf" and not plugin.on_gpus:
        log.warning("the workers have GPUs that stay unused: set cluster.engine: cudf")
    client.register_plugin(plugin)
    client.register_plugin(RetireByName())


def _refused(cluster: Cluster, key: str, called: Callable[..., Any], why: object) -> JobError:
    """The error for arguments that a class, or its adapt, does not take."""
    passed_on = [name for name in _parameters(called) if name not in inspect.signature(called).parameters]
    more = f", and also takes {', '.join(passed_on)}" if passed_on else ""
    what, where = f"{called.__name__} does not take the arguments", f"{_where(cluster)}: {key}"
    do = f"its signature is {called.__name__}{inspect.signature(called)}{more}"
    return JobError(what, where=where, why=str(why), do=do)


def _parameters(called: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters by name: those of the signature, then those that a class passes on to its jobs or, without jobs,
    to its base classes."""
    named: dict[str, inspect.Parameter] = {}
    for of in (called, *_constructors(getattr(called, "job_cls", called))):
        for parameter in inspect.signature(of).parameters.values():
            if parameter.name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                named.setdefault(parameter.name, parameter)
    return named


def _constructors(of: Any) -> list[Callable[..., Any]]:
    """The `__init__` of a class and of its bases in their order, up to the first that takes no **kwargs."""
    every = [vars(base)["__init__"] for base in getattr(of, "__mro__", ()) if "__init__" in vars(base)]
    last = next((number for number, init in enumerate(every) if not inspect.getfullargspec(init).varkw), len(every))
    return every[: last + 1]


def _delay(cluster: Cluster, chosen: Callable[..., Any]) -> str:
    """Where the queue, or the log, of workers that have not come can be read."""
    homes = [f"{of.__module__}." for of in getattr(chosen, "__mro__", (chosen,))]
    command = next((c for place, c in LOOK.items() if any(home.startswith(f"{place}.") for home in homes)), "")
    folder = cluster.cluster_kwargs.get(LOGS)
    texts = [f"`{command}` shows them" if command else "", f"{folder} has their logs" if folder else ""]
    return f"workers of {cluster.cluster_class}: " + ("; ".join(filter(None, texts)) or "none has registered")


def _where(cluster: Cluster) -> str:
    return f"cluster.cluster_class = {cluster.cluster_class}"
