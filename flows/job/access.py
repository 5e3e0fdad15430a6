"""Who may do what: paths, functions and secrets of a job against what the host allows, before anything is started."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.job.allowed_names import is_listed
from infra.clusters.configurations import VARIABLE as CONFIGURATIONS
from infra.clusters.model import Cluster
from infra.paths import expand_home
from tasks.core.redaction import plain_url
from tasks.core.settings import NO_BASE, collector_file
from tasks.errors import JobError
from tasks.graph.node import Node, side_paths, topological
from tasks.graph.saved_workflow import find_fitted_folder
from tasks.ops.user_code import VARIABLE as MODULES
from tasks.ops.user_code import is_allowed, read_allowed_modules
from tasks.storage.allowed_roots import VARIABLE as ROOTS
from tasks.storage.allowed_roots import check_files_in, check_path, is_local, read_allowed_roots
from tasks.storage.files import local_folder
from tasks.storage.output_mirror import check_can_publish
from tasks.storage.own_files import LATEST
from tasks.storage.staging import Staging

CLUSTERS = "ROWMILL_ALLOWED_CLUSTERS"
SWITCHES = "ROWMILL_ALLOWED_CLUSTER_KEYS"
# Keys of the section `cluster` that open a port to others; those of a preset are in its file.
SWITCH_KEYS = ("unencrypted", "protocol", "interface", "dashboard", "tls")
SAFE = {"protocol": "tls"}  # values that open nothing
LIMITS = (MODULES, CLUSTERS, SWITCHES)  # that are empty for runs of a deployment unless the host sets them
PASSWORD = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")
SIGNED = re.compile(r"[?&#](X-Amz-(Signature|Security-Token)|X-Goog-Signature|Signature|sig|(access_)?token)=", re.I)
CLUSTER_PATHS = ("local_directory", "tls.ca", "tls.cert", "tls.key")  # those of a preset are in its file
COLLECTOR_KEYS = {"run.lineage": "OPENLINEAGE_API_KEY", "run.metrics": "OTEL_EXPORTER_OTLP_HEADERS"}
HELD = "the options (key, secret, ..) are given as JSON in the variable ROWMILL_STORAGE_<NAME> or in a Secret block"


def limit_deployment() -> None:
    """A run of a deployment calls no function of a user's module, uses no other host's workers, and opens no port to
    others, unless the host allows them by name.

    Told by the run itself, whoever executes it (serve, a worker of a pool); what is typed on one's own machine has no
    deployment. The workers that the run starts inherit the limit.
    """
    for variable in LIMITS:
        if variable not in os.environ and _of_deployment():
            os.environ[variable] = ""


def _of_deployment() -> bool:
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    return bool(context and getattr(context.flow_run, "deployment_id", None))


@contextmanager
def limit_runs() -> Iterator[None]:
    """Runs in the block have the limits of a run of a deployment, unless the host sets others: for jobs that somebody
    else may have written."""
    added = [variable for variable in LIMITS if variable not in os.environ]
    os.environ.update(dict.fromkeys(added, ""))
    try:
        yield
    finally:
        for variable in added:
            os.environ.pop(variable, None)


def serving_limits() -> list[str]:
    """For whoever serves or deploys: sets the limits of runs, and says which others are missing."""
    for variable in LIMITS:
        os.environ.setdefault(variable, "")
    if read_allowed_roots() is not None:
        return []
    return [f"runs may read and write every path that this user may: set {ROOTS}, such as /data:s3://bucket/logs"]


def limits() -> dict[str, str]:
    """Return the limits for runs of this process, in words, a line for each variable."""
    roots = read_allowed_roots()
    modules = read_allowed_modules()
    clusters = read_cluster_allowlist()
    switches = read_switch_allowlist()
    return {
        ROOTS: "no limit" if roots is None else ", ".join(roots) or "no path",
        MODULES: "no limit" if modules is None else ", ".join(modules) or "no function",
        CLUSTERS: "no limit" if clusters is None else ", ".join(clusters) or "this host",
        SWITCHES: "no limit" if switches is None else ", ".join(switches) or "no key",
    }


def read_cluster_allowlist() -> tuple[str, ...] | None:
    """Patterns of the addresses, hosts and images that jobs may name, as the host lists them; None: all of them."""
    return _read_names(CLUSTERS)


def read_switch_allowlist() -> tuple[str, ...] | None:
    """Read the keys of `SWITCH_KEYS` that jobs may set, as the host lists them; None: all of them."""
    return _read_names(SWITCHES)


def _read_names(variable: str) -> tuple[str, ...] | None:
    """Read the names in a variable of the host, separated by commas or spaces; None if it is not set."""
    text = os.environ.get(variable)
    return None if text is None else tuple(name for name in re.split(r"[,\s]+", text) if name)


def check_access(job: Any, graph: Node | None = None) -> None:
    """Raise a JobError for the first path of a job that is outside of the allowed roots, and for secrets in the job.

    Output and scratch count with the folders that a run makes beside them.
    """
    limit_deployment()
    source = job.source
    paths = [*_pair_with_field("source.path", source.path)] if not source.iceberg else []  # a catalog locates a table
    paths += _pair_with_field("source.valid", source.valid)
    paths += _pair_with_field("refit.learn_from", getattr(getattr(job, "refit", None), "learn_from", None))
    paths += _pair_with_field("contract", job.contract if isinstance(job.contract, str) else None)
    paths_of_operators = [*_list_operator_paths(graph)] if graph else []
    for field, path in [*paths, ("output.path", job.output.path), *paths_of_operators, *_other_texts(job)]:
        _check_no_secret(field, path)
    collectors = [*_pair_with_field("run.lineage", job.run.lineage), *_pair_with_field("run.metrics", job.run.metrics)]
    for field, address in collectors:
        if plain_url(address) != address:
            raise JobError(
                "the address holds a user or a query",
                where=f"{field} = {plain_url(address)}",
                why="the server keeps and shows a job",
                do=f"write scheme, host, port; set {COLLECTOR_KEYS[field]} where the flow runs",
            )
    _check_local(job)
    for section in ("source", "output"):
        if not isinstance(getattr(job, section).storage_options, str | None):
            raise JobError(
                "options of a storage may hold secrets, which are not part of a job",
                where=f"{section}.storage_options",
                do=f"give a name; {HELD}",
            )
    elsewhere = [one for one in collectors if not collector_file(one[1])]
    if job.cluster.configuration is None:  # else the host has set what could do harm
        _check_no_commands(job.cluster)
        _check_switches(job.cluster)
        elsewhere += _elsewhere(job.cluster)
    _check_elsewhere(elsewhere)
    if read_allowed_roots() is None:
        return
    files = [(field, path) for field, address in collectors if (path := collector_file(address))]
    for field, path in [*paths, *files, *_list_write_paths(job), *_of_cluster(job.cluster)]:
        check_path(path, field)
    for field, path in paths_of_operators:
        check_files_in(path, field)


def _list_operator_paths(graph: Node) -> Iterator[tuple[str, str]]:
    """List what operators read besides the source, each path with the operator and its node."""
    for node in topological(graph):
        for path in node.op.files if node.op else ():
            yield f"{type(node.op).__name__} in {node.name}", str(path)


def _other_texts(job: Any) -> Iterator[tuple[str, str]]:
    """Texts that an error would repeat if they were no path: a URL there is wrong anyway, and may hold a secret."""
    yield from _pair_with_field("run.scratch", job.run.scratch)
    yield "source.bad_lines", job.source.bad_lines
    yield from _of_cluster(job.cluster)
    yield from _pair_with_field("cluster.address", job.cluster.address)
    for kind in ("fitted", "base"):
        yield from _pair_with_field(kind, getattr(job, kind, None))


def relative_paths(job: Any, graph: Node | None = None) -> list[str]:
    """Return the paths of this host in a job that begin in the current folder."""
    source = job.source
    run = job.run
    named = [
        *source.paths,
        job.output.path,
        job.output.delta,
        run.scratch,
        getattr(job, "fitted", None),
        getattr(job, "base", None),
    ]
    named += [path for _, path in _pair_with_field("", getattr(getattr(job, "refit", None), "learn_from", None))]
    named += [job.contract if isinstance(job.contract, str) else None]
    named += [source.bad_lines if source.bad_lines not in ("error", "skip") else None]
    named += [collector_file(address) for address in (run.lineage, run.metrics) if address]
    named += [path for _, path in _of_cluster(job.cluster)]
    named += side_paths(graph) if graph else []
    return [path for path in named if path and path != NO_BASE and "://" not in path and not path.startswith("/")]


def _check_local(job: Any) -> None:
    """Raise a JobError for a URL where a folder of this host is meant."""
    if is_local(job.output.path):
        local_folder(job.output.path, "the output", "output.path")
    else:
        check_can_publish(job.output.path)
    if job.run.scratch:
        local_folder(job.run.scratch, "the scratch folder", "run.scratch")
    for field, path in _of_cluster(job.cluster):
        local_folder(path, "a path of the section cluster", field)


def _list_write_paths(job: Any) -> Iterator[tuple[str, str]]:
    """What a run writes: the output, the work in progress, what Dask spills, lines that cannot be read."""
    yield "output.path", job.output.path
    if job.output.delta is not None:
        yield "output.delta", job.output.delta
    if is_local(job.output.path):
        staging = Staging.of(job.output, job.run)
        yield from (("output.path (the folder beside it)", str(p)) for p in (staging.old, staging.beside))
        yield "run.scratch" if job.run.scratch else "output.path (work in progress, run.scratch)", str(staging.folder)
    if job.run.scratch:
        yield "run.scratch", job.run.scratch
    if job.source.bad_lines not in ("error", "skip"):
        yield "source.bad_lines", job.source.bad_lines


def _of_cluster(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """The files and folders that the section `cluster` names, certificates and keys too; not those that the host's
    configuration names."""
    if cluster.configuration:
        return
    keywords = cluster.preset.keywords if cluster.preset else {}
    for key in (*CLUSTER_PATHS, *(f"{cluster.kind}.{name}" for name, keyword in keywords.items() if keyword.is_path)):
        place, _, name = key.rpartition(".")
        section: Any = getattr(cluster, place) if place else cluster
        if section is not None and name in section.model_fields_set:
            yield from (
                (f"cluster.{key}", expand_home(path))
                for _, path in _pair_with_field("", getattr(section, name))
                if path
            )


def _list_limited_keywords(variable: str, cluster: Cluster) -> list[str]:
    """List the keywords of the cluster's preset whose values a variable of the host has to allow."""
    keywords = cluster.preset.keywords if cluster.preset else {}
    return [name for name, keyword in keywords.items() if keyword.limited_by == variable]


def _check_no_commands(cluster: Cluster) -> None:
    """Refuse commands in keywords of a preset, such as lines of a SLURM job, another Python and templates of pods, and
    arguments of a class, where the job's functions are limited: arguments are commands, such as job_script_prologue,
    hosts or images."""
    for name in ("cluster_kwargs", "adapt_kwargs"):
        if (arguments := getattr(cluster, name)) and not is_allowed("shell"):
            what = "arguments of a cluster class may not be given in a job"
            where = f"cluster.{name}: {[*arguments]}"
            why = f"they can run commands, and what users may run is limited by {MODULES} of the host"
            do = f"name a section of the host's file, which is in {CONFIGURATIONS}, as cluster.configuration"
            raise JobError(what, where=where, why=why, do=do)
    for name in _list_limited_keywords(MODULES, cluster):
        if getattr(cluster.section, name) and not is_allowed("shell"):
            raise JobError(
                "a job may not contain commands",
                where=f"cluster.{cluster.kind}.{name}",
                why=f"what users may run is limited by {MODULES} of the host",
                do=f"leave it out, or ask whoever runs the host to add shell to {MODULES}",
            )


def _check_switches(cluster: Cluster) -> None:
    """Refuse keys that open a scheduler to others, whoever lists its host: who reaches one runs code as this user."""
    allowed = read_switch_allowlist()
    values = {key: getattr(cluster, key) for key in SWITCH_KEYS}
    values |= {
        f"{cluster.kind}.{name}": getattr(cluster.section, name) for name in _list_limited_keywords(SWITCHES, cluster)
    }
    for key, value in values.items():
        if allowed is not None and value not in (None, False, SAFE.get(key)) and key not in allowed:
            raise JobError(
                f"a job may not set cluster.{key}",
                where=f"cluster.{key}",
                why=f"it can open the run to others, and what jobs may set is limited by {SWITCHES} of the host",
                do=f"leave it out, name a section of the host's file ({CONFIGURATIONS}) as cluster.configuration, or "
                f"ask whoever runs the host to add {key} to {SWITCHES}",
            )


def _elsewhere(cluster: Cluster) -> list[tuple[str, str]]:
    """Return the schedulers, hosts, images and classes that the section `cluster` names, with the keys that do."""
    named = [("cluster.address", cluster.address), ("cluster.cluster_class", cluster.cluster_class)]
    for name in _list_limited_keywords(CLUSTERS, cluster):
        value = getattr(cluster.section, name)
        named += [(f"cluster.{cluster.kind}.{name}", one) for one in (value if isinstance(value, list) else [value])]
    return [(field, str(name)) for field, name in named if name]


def _check_elsewhere(named: Sequence[tuple[str, str]]) -> None:
    """Whoever runs a scheduler or an image runs code in the flow's process and reads what the job may read; a collector
    hears of the data, and gets the key that the host has for it."""
    allowed = read_cluster_allowlist()
    for field, name in named:
        if allowed is not None and not any(is_listed(name, pattern) for pattern in allowed):
            raise JobError(
                f"{name} may not be used",
                where=field,
                why=f"what jobs may name is limited by {CLUSTERS} of the host",
                do=f"leave it out, or ask whoever runs the host to add it to {CLUSTERS}",
            )


def check_fitted(path: object) -> None:
    """Raise a JobError if a fitted workflow, or a table of it, is outside of the allowed roots."""
    limit_deployment()
    if isinstance(path, str):
        _check_no_secret("fitted", path)
    if isinstance(path, str) and not is_local(path):
        check_path(path, "fitted")  # below a URL, no object leads elsewhere
    elif isinstance(path, str) and read_allowed_roots() is not None:
        check_path(path, "fitted")
        check_path(Path(path) / LATEST, "fitted")  # before its text is read, which an error repeats
        check_files_in(find_fitted_folder(Path(path)), "fitted")


def check_base(path: str | None) -> None:
    """Raise a JobError if the base of a refit is outside of the allowed roots, or no folder of this host."""
    limit_deployment()
    if path is None:
        return
    _check_no_secret("base", path)
    if not is_local(path):
        check_path(path, "base")
    elif read_allowed_roots() is not None:
        check_path(path, "base")
        check_files_in(Path(path), "base")


def _pair_with_field(field: str, path: str | list[str] | None) -> Iterator[tuple[str, str]]:
    many: Iterable[str] = [] if path is None else [path] if isinstance(path, str) else path
    yield from ((field, item) for item in many)


def _find_options_key(field: str) -> str:
    """Find the key that names the options of the storage for the URL of a field."""
    if " in " in field:  # of an operator
        return f"storage_options of {field}"
    return f"{'output' if field.startswith(('output.', 'base')) else 'source'}.storage_options"


def _check_no_secret(field: str, path: str) -> None:
    """Refuse a URL that carries a password or a signature: jobs are shown and kept by the server."""
    secret = "a password" if PASSWORD.search(path) else "a signature" if "://" in path and SIGNED.search(path) else ""
    if secret:
        shown = re.split("[?#]", PASSWORD.sub("***", path))[0]
        raise JobError(
            f"the URL holds {secret}",
            where=f"{field} = {shown}",
            why="the server keeps and shows a job",
            do=f"write the URL without it and give {_find_options_key(field)} a name; {HELD}; "
            "change a password that a server has seen",
        )
