"""One function per kind of cluster: it starts the workers, or connects to them."""

from __future__ import annotations

from typing import Any

from infra.clusters import closed_schedulers
from infra.clusters.address import address
from infra.clusters.kubernetes import start as on_kubernetes
from infra.clusters.local import cpu, cuda
from infra.clusters.model import Cluster
from infra.clusters.resolve import _found_kind
from infra.clusters.slurm import start as on_slurm
from infra.clusters.ssh import start as on_ssh
from infra.environment import use_settings
from infra.workers import failed_starts


def make_cluster(cluster: Cluster | None = None) -> Any:
    """Start, or connect to, what `cluster` asks for; a context manager that closes only what it started.

    The Dask settings that millrace relies on are set in this process and reach the workers from here.
    """
    cluster = cluster or Cluster()
    kind = cluster.kind if cluster.kind != "auto" else _found_kind()
    failed_starts.check_address_space()
    closed_schedulers.forget()
    use_settings()
    kinds = {
        "cpu": cpu, "cuda": cuda, "address": address,
        "ssh": on_ssh, "slurm": on_slurm, "kubernetes": on_kubernetes,
    }  # fmt: skip
    return kinds[kind](cluster)
