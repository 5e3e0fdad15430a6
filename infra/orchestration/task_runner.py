"""The Dask task runner of a flow, on the cluster that a job asks for."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from typing import Any

from prefect_dask import DaskTaskRunner

from infra.clusters.kinds import make_cluster
from infra.clusters.model import Cluster
from infra.workers.imports import NO_IMPORTS, WorkerImports


class Runner(DaskTaskRunner):
    """Prefect's own runner, without a token of all arguments of a task run, which takes 20 ms for each: the id among
    the arguments makes every token different. `infra.orchestration.task_settings` has the figures."""

    @property
    def client(self) -> Any:
        if not self._client:
            client = super().client
            client.submit = partial(client.submit, pure=False)  # type: ignore[method-assign]
        return self._client


def runner(cluster: Cluster | dict[str, Any] | None = None, imports: WorkerImports = NO_IMPORTS) -> Runner:
    """Return a task runner that starts its cluster inside the run, at the first task.

    Without `cluster` it starts the one that the flow passed to `use_cluster`, so that one decorated flow serves the
    command, the form and schedules. With it, it is for `flow.with_options(task_runner=runner(job.cluster, imports))`.
    """
    if cluster is None:
        return Runner(cluster_class=cluster_of_this_run)
    return Runner(
        cluster_class=make_cluster, cluster_kwargs={"cluster": Cluster.model_validate(cluster), "imports": imports}
    )


_requested: ContextVar[tuple[Cluster | None, WorkerImports]] = ContextVar("cluster", default=(None, NO_IMPORTS))


def use_cluster(cluster: Cluster, imports: WorkerImports = NO_IMPORTS) -> None:
    """Set, in a flow before its first task, the cluster of its job and what that cluster's workers load."""
    _requested.set((cluster, imports))


def cluster_of_this_run() -> Any:
    """Return the cluster that the current flow run passed to `use_cluster`; the default cluster if it passed none."""
    return make_cluster(*_requested.get())
