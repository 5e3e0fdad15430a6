"""Clusters by class: that of a preset, or any cluster class of Dask with arguments as prefect-dask takes them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import dask.config
from distributed import Adaptive, Status
from distributed.security import Security

from infra.clusters import hosts, jobs
from infra.clusters.encryption import protocol_of, security_of
from infra.clusters.keywords import Keywords
from infra.clusters.model import OF_ANY, OF_STARTED, first_workers, is_reachable
from infra.clusters.reach import engine_of
from infra.clusters.remote import (
    CUDA_CLASS,
    IDLE_SECONDS,
    LOOPBACK,
    SAYS_START,
    RunningCluster,
    import_keeping_sigint,
    library,
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

# Keys of the section `cluster` that classes of presets get under their own names, where they have them.
BY_NAME = ("interface", "threads_per_worker", "memory_limit", "local_directory")
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
    """Check the class; a JobError for a class that does not exist or, as far as its signature says, does not take the
    arguments; a GiveUpError where its package is missing."""
    if cluster.preset and (needs := cluster.preset.needs):
        library(needs.module, needs.package, needs.extra, f"cluster.kind = {cluster.kind}")
    module, _, name = cluster.class_path.rpartition(".")
    try:
        home = import_keeping_sigint(module)
    except Exception as error:  # of a module of one's own it may be any
        do = "install its package where the flow runs and where its workers run, or correct the name"
        raise GiveUpError(f"{module} cannot be imported", where=cluster.place, why=str(error), do=do) from None
    if not callable(chosen := getattr(home, name, None)):
        hint = near(name, [known for known in dir(home) if known[:1].isupper()])
        raise JobError(f"{module} has no class {name}", where=cluster.place, do=hint)
    arguments = cluster.class_arguments
    try:
        signature = inspect.signature(chosen)
        signature.bind(**arguments)
        if jobs.is_of_jobs(chosen):  # whose clusters pass on what they do not know
            of_job = {k: v for k, v in arguments.items() if k not in {*signature.parameters, jobs.LOGS}}
            chosen.job_cls("", **of_job)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise _make_argument_error(cluster, "cluster_kwargs", chosen, error) from None
    return chosen


def open_class(opened: RunningCluster, cluster: Cluster, imports: WorkerImports) -> None:
    """Start a cluster by class, and scale it; GiveUpError where that fails, or where its queue refuses its jobs."""
    chosen = check_class(cluster)
    jobs.check_command(chosen, cluster.place)
    opened.delay = partial(_delay, cluster, chosen)
    try:
        started = construct(opened, cluster, chosen, imports)
        _scale(opened, cluster, chosen)
    except RowmillError:
        raise
    except Exception as error:
        cause = cause_of(error)
        if isinstance(error, (TypeError, ValueError)) or "keyword argument" in cause:
            raise _make_argument_error(cluster, "cluster_kwargs", chosen, cause) from None
        do = "call the class in Python, with the same arguments"
        if hosts.is_on_hosts(chosen):
            do = hosts.ADVICE
        why = f"{type(error).__name__}: {error} ({cause})"
        raise GiveUpError("the cluster could not be started", where=cluster.place, why=why, do=do) from None
    opened.delay = partial(_delay, cluster, chosen, started)


def construct(opened: RunningCluster, cluster: Cluster, chosen: Callable[..., Any], imports: WorkerImports) -> Any:
    """The started cluster of the class, with TLS, the options of workers and their folders; jobs are not submitted yet.

    `opened` gets its address, its certificates, and what ends it.
    """
    security = security_of(cluster) if _speaks_tls(cluster, chosen) else None
    files = cluster.tls.model_dump() if cluster.tls else None
    ready = hosts.prepare(opened, cluster, security) if hosts.is_on_hosts(chosen) else None
    if ready:
        files = hosts.certificate_files(ready, security) or files
    settings = worker_settings(cluster, cluster.gpus, files, imports) | SAYS_START
    if any(
        word in str(_select_fixed_arguments(cluster)) for word in ("rmm", "ucx")
    ):  # the class allocates memory of the GPUs
        settings.pop("rowmill.gpu-pool", None)
    if ready:
        settings["temporary-directory"] = ready.folder  # the scheduler's is there, too
    of_engine = GPU_ENVIRONMENT if cluster.gpus else cpu_environment(None)
    variables = {**of_engine, "DASK_LOGGING__DISTRIBUTED": None}
    started_in = local_environment(variables)  # until the cluster is closed, since workers may come later
    opened.on_close.append(partial(started_in.__exit__, None, None, None))
    with dask.config.set(settings):
        arguments = _arguments(cluster, chosen, jobs.export_settings(settings), imports, security)
        if "dask_settings" in inspect.signature(chosen).parameters:
            arguments.setdefault("dask_settings", settings)
        if ready:
            arguments = hosts.host_arguments(cluster, arguments, ready, security)
        started = _construct_cluster(chosen, arguments)
    opened.on_close.append(partial(jobs.end, started))
    opened.scheduler_address = started.scheduler_address
    opened.security = getattr(started, "security", None) or security
    opened.scaled = started
    opened.on_workers = partial(_set_up, cluster, SetUp(settings, imports, cluster.gpus > 0))
    return started


def _select_fixed_arguments(cluster: Cluster) -> Keywords:
    """Select the arguments that no keyword of a preset has set."""
    return cluster.preset.cluster_kwargs if cluster.preset else cluster.cluster_kwargs


def _scale(opened: RunningCluster, cluster: Cluster, chosen: Callable[..., Any]) -> None:
    """Have workers come: those that the constructor has not started. A queue is asked first."""
    started = opened.scaled
    number = cluster.workers
    if cluster.preset:
        number = None if cluster.scaling or _starts_all(cluster, chosen) else first_workers(cluster)
    elif jobs.is_of_jobs(chosen):
        number = number or cluster.class_arguments.get("n_workers")
    if jobs.is_of_jobs(chosen) and (number or cluster.scaling):
        jobs.ask_first(started, cluster.place)
    if number:
        started.scale(number)
    if cluster.scaling:
        _adapt(cluster, started.adapt)


def _starts_all(cluster: Cluster, chosen: Callable[..., Any]) -> bool:
    """Tell whether the constructor of a preset's class is given the number of workers."""
    if cluster.preset and cluster.preset.one_worker_for:
        return True
    return "n_workers" in inspect.signature(chosen).parameters and not jobs.is_of_jobs(chosen)


def _construct_cluster(chosen: Any, arguments: Keywords) -> Any:
    """Construct the cluster, which is closed also where its constructor fails once it has started something."""
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
        raise _make_argument_error(
            cluster, "adapt_kwargs", adapt, f"unknown: {', '.join(unknown)}; known: {', '.join(known)}"
        )
    adapt(**cluster.scaling | {"minimum": first_workers(cluster)})


def _speaks_tls(cluster: Cluster, chosen: Callable[..., Any]) -> bool:
    """Tell whether scheduler and workers of the class get certificates: where it takes them, and the job has not named
    another protocol."""
    taken = inspect.signature(chosen).parameters
    arguments = cluster.class_arguments
    protocol = arguments.get("protocol")
    if hosts.is_on_hosts(chosen):
        protocol = dict(arguments.get("scheduler_options") or {}).get("protocol")
    elif "protocol" not in taken:
        return False
    return protocol is None or str(protocol).startswith("tls")


def _arguments(
    cluster: Cluster,
    chosen: Callable[..., Any],
    settings: str,
    imports: WorkerImports,
    security: Security | None = None,
) -> Keywords:
    """The arguments of preset and job, after those that rowmill sets where the class names them; over them what makes
    workers those of rowmill. `settings` is the line of a job that gives them Dask's settings."""
    taken = inspect.signature(chosen).parameters
    own = dict(cluster.class_arguments)
    ours: Keywords = {
        "security": security,
        "shared_temp_directory": "~",
        "scheduler_options": {"dashboard_address": LOOPBACK},
        "quiet": True,
    }
    if cluster.preset:
        ours |= _of_preset(cluster, chosen, imports, security)
    if jobs.is_of_jobs(chosen):
        own.pop("n_workers", None)  # the queue is asked before a job is submitted
    known: Keywords = {name: value for name, value in ours.items() if name in taken and value is not None}
    options = known.get("scheduler_options", {}) | dict(own.get("scheduler_options") or {})
    known |= own
    if cluster.preset and options and "scheduler_options" in taken:
        known["scheduler_options"] = options
    if "shared_temp_directory" in known and security is not None:
        known["shared_temp_directory"] = jobs.check_shared(known["shared_temp_directory"], cluster.place)
    if jobs.is_of_jobs(chosen):
        of_workers = jobs.job_arguments(cluster, chosen, known, settings, imports)
    else:
        of_workers = _of_workers(cluster, chosen, known, imports)
    if cluster.preset and not of_workers and "worker_arguments" not in taken:
        _check_options(cluster, chosen)
    known |= of_workers
    if "worker_options" in taken:  # of SSHCluster: a worker that never finds its scheduler would wait forever
        known["worker_options"] = {"death_timeout": cluster.start_timeout} | dict(known.get("worker_options") or {})
    return known


def _of_preset(
    cluster: Cluster, chosen: Callable[..., Any], imports: WorkerImports, security: Security | None
) -> Keywords:
    """What the keys of the section `cluster` say, by the names that classes have for it."""
    protocol = f"{protocol_of(cluster, security)}://"
    scheduler: dict[str, Any] = {"port": 0, "dashboard": cluster.dashboard, "dashboard_address": LOOPBACK}
    if cluster.interface:
        scheduler["interface"] = cluster.interface
    if hosts.is_on_hosts(chosen):
        scheduler |= {"protocol": protocol, "idle_timeout": f"{IDLE_SECONDS}s"}
    return {
        "protocol": protocol,
        **{name: getattr(cluster, name) for name in BY_NAME},
        "n_workers": first_workers(cluster) if _starts_all(cluster, chosen) else None,
        "scheduler_options": scheduler,
        "silence_logs": logging.ERROR,
        "start_timeout": cluster.start_timeout,
        "worker_arguments": worker_arguments(cluster, cluster.gpus, imports, "memory_limit", "interface"),
    }


def _check_options(cluster: Cluster, chosen: Callable[..., Any]) -> None:
    """A JobError for a key of the section `cluster` that would have no effect, since the class of the preset starts
    workers of its own and does not take the key."""
    names = [name for name in OF_STARTED if name not in OF_ANY and cluster.is_set(name)]
    for name in names:
        if name not in BY_NAME or name not in inspect.signature(chosen).parameters:
            raise JobError(
                f"{chosen.__name__} does not take {name}",
                where=f"cluster.{name}",
                why=f"the preset {cluster.kind} has workers that rowmill does not start",
                do="leave it out, or have the preset set it: an entry in cluster_kwargs, or a keyword",
            )


def _of_workers(cluster: Cluster, chosen: Callable[..., Any], arguments: Keywords, imports: WorkerImports) -> Keywords:
    """The options of workers, and the class of those on GPUs, where a class starts plain ones by default. {} where the
    job names the class of workers, and for plain workers of a class of the job's own."""
    plain_class = str(getattr(_parameters(chosen).get("worker_class"), "default", ""))
    if "worker_class" in arguments or not plain_class.endswith("distributed.Nanny"):  # of SSHCluster and clouds
        return {}
    if not (cluster.preset or cluster.gpus):
        return {}
    more: Keywords = {
        "worker_options": worker_options(cluster, cluster.gpus, imports) | dict(arguments.get("worker_options") or {})
    }
    if cluster.gpus:
        more["worker_class"] = CUDA_CLASS
        log.info("the workers are of the worker_class %s", CUDA_CLASS)
    return more


def _set_up(cluster: Cluster, plugin: SetUp, client: Any) -> None:
    """Give workers what those of other kinds start with. An error where anybody could connect, or workers do not fit
    the job."""
    address = str(client.sync(client.scheduler.identity, n_workers=0)["address"])
    plain = not address.startswith(("tls://", "inproc://")) and not cluster.unencrypted
    if plain and is_reachable(cluster.model_copy(update={"kind": "address", "address": address})):
        where = f"{cluster.place}, {address}"
        why = "whoever reaches its port could run code as you, and read your data"
        do = "give cluster.tls, and the class a protocol of tls://; use kind: ssh, slurm or kubernetes; or accept that "
        raise JobError("the scheduler is not encrypted", where=where, why=why, do=f"{do}with cluster.unencrypted: true")
    engine = engine_of(client)
    key, wanted = (f"{cluster.place}.gpus", str(cluster.gpus)) if cluster.preset else ("cluster.engine", "cudf")
    if plugin.on_gpus and engine != "cudf":
        what = "workers without a GPU, or without the packages for it"
        do = "have cluster_kwargs start workers on GPUs"
        raise GiveUpError(what, where=f"{key} = {wanted}", do=f"leave {key} out, or {do}")
    if engine == "cudf" and not plugin.on_gpus:
        log.warning("the workers have GPUs that stay unused: set %s", key if cluster.preset else f"{key}: cudf")
    client.register_plugin(plugin)
    client.register_plugin(RetireByName())


def _make_argument_error(cluster: Cluster, key: str, called: Callable[..., Any], why: object) -> JobError:
    """Make the error for arguments that a class, or its adapt, does not take."""
    passed_on = [name for name in _parameters(called) if name not in inspect.signature(called).parameters]
    more = f", and also takes {', '.join(passed_on)}" if passed_on else ""
    of = f" of the preset {cluster.kind}" if cluster.preset else ""
    what = f"{called.__name__} does not take the arguments"
    where = f"{cluster.place}: {key}{of}"
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
    """Return the `__init__` of a class and of its bases in their order, up to the first that takes no **kwargs."""
    every = [vars(base)["__init__"] for base in getattr(of, "__mro__", ()) if "__init__" in vars(base)]
    last = next((number for number, init in enumerate(every) if not inspect.getfullargspec(init).varkw), len(every))
    return every[: last + 1]


def _delay(cluster: Cluster, chosen: Callable[..., Any], started: Any = None) -> str:
    """What holds up workers that have not come, as queue or pods say it, else where their queue or log can be read."""
    if jobs.is_of_jobs(chosen) and (state := jobs.queue_state(started)):
        return state
    if describe := getattr(started, "what_holds_up", None):
        return str(describe())
    homes = [f"{of.__module__}." for of in getattr(chosen, "__mro__", (chosen,))]
    command = next((c for place, c in LOOK.items() if any(home.startswith(f"{place}.") for home in homes)), "")
    folder = cluster.class_arguments.get(jobs.LOGS)
    texts = [f"`{command}` shows them" if command else "", f"{folder} has their logs" if folder else ""]
    return f"workers of {cluster.class_path}: " + ("; ".join(filter(None, texts)) or "none has registered")
