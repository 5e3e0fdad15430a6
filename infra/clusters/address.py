"""The kind `address`: connect to a Dask scheduler that runs already."""

from __future__ import annotations

from typing import cast

from infra.clusters.encryption import security_of
from infra.clusters.model import Cluster
from infra.clusters.remote import RunningCluster
from infra.clusters.resolve import workers_of


def address(cluster: Cluster) -> RunningCluster:
    """A scheduler that rowmill did not start: connected to, never closed; GiveUpError when it does not answer."""
    where, security = cast(str, cluster.address), security_of(cluster)
    workers_of(cluster)
    return RunningCluster(where, security)
