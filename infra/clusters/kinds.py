"""Each kind of cluster by its name: start its workers, or connect to them."""

from __future__ import annotations

import logging
from typing import Any, cast

import dask.config

from infra.clusters.by_class import open_class
from infra.clusters.encryption import security_of
from infra.clusters.local import cpu, cuda
from infra.clusters.model import BY_CLASS, Cluster
from infra.clusters.remote import RunningCluster, start
from infra.clusters.resolve import kind_on_this_host, workers_of
from infra.environment import use_settings
from infra.workers import failed_starts
from infra.workers.imports import NO_IMPORTS, WorkerImports, preload_settings
from infra.workers.pages import page_settings

log = logging.getLogger("rowmill.clusters")


def make_cluster(cluster: Cluster | None = None, imports: WorkerImports = NO_IMPORTS) -> Any:
    """Start, or connect to, what `cluster` asks for; a context manager that closes only what it started.

    Workers that it starts load `imports` before their first task. Rowmill's own are in flows/run/worker_imports.py.
    The Dask settings that rowmill relies on are set in this process and reach the workers from here.
    """
    cluster = cluster or Cluster()
    kind = kind_on_this_host(cluster)
    failed_starts.check_address_space()
    use_settings(preload_settings(imports), starts_workers=kind != "address")
    dask.config.set(page_settings(cluster.dashboard or kind == "address"))
    if cluster.dashboard:
        log.warning("every user of this host can read Dask's dashboard (cluster.dashboard)")
    if kind == "cpu" and cluster.gpu_keys:
        keys = ", ".join(f"cluster.{name}" for name in cluster.gpu_keys)
        log.warning("no GPU of this host is used, so that nothing follows from %s", keys)
    if kind == "address":
        return address(cluster)
    if kind == BY_CLASS or cluster.preset:
        return start(open_class, cluster, imports)
    return (cuda if kind == "cuda" else cpu)(cluster, imports)


def address(cluster: Cluster) -> RunningCluster:
    """A scheduler that rowmill did not start: connected to, never closed; GiveUpError when it does not answer."""
    where = cast(str, cluster.address)
    security = security_of(cluster)
    workers_of(cluster)
    return RunningCluster(where, security)
