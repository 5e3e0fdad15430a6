"""The task runner of the flows, and the cluster that the job of a run starts on it."""

from __future__ import annotations

from typing import Any

from flows.run.worker_imports import worker_imports
from infra.clusters.local import prepare
from infra.clusters.model import Cluster
from infra.orchestration.task_runner import runner, use_cluster
from tasks.core.settings import FlowName

on_cluster: Any = runner()  # Prefect's own types know its thread and process runners only


def choose_cluster(cluster: Cluster, flow: FlowName) -> None:
    """Let the tasks of this run work on the cluster of its job, whose workers import what the flow needs."""
    imports = worker_imports(f"flows.{flow}")
    prepare(cluster, imports)
    use_cluster(cluster, imports)
