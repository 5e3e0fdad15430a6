"""Clusters whose workers load what those of a run load."""

from __future__ import annotations

from typing import Any

from flows.run.worker_imports import worker_imports
from infra.clusters import kinds
from infra.clusters.model import Cluster

IMPORTS = worker_imports("flows.preprocess")


def make_cluster(cluster: Cluster | None = None) -> Any:
    return kinds.make_cluster(cluster, IMPORTS)
