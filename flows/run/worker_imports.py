"""The modules that workers of a flow load before their first task."""

from __future__ import annotations

from infra.workers.imports import WorkerImports


def worker_imports(flow: str) -> WorkerImports:
    """The modules for workers that run the tasks of a flow, which is named by its module, such as flows.preprocess.

    `host_memory` lets the workers of a host copy pieces out of each other's memory, `gpu_worker` makes one with
    a GPU ready for tasks on it. Tasks bring their flow with them, and with it all that its module imports.
    """
    return WorkerImports(
        preloads=("tasks.cluster.transfer.host_memory",),
        on_gpus=("tasks.cluster.transfer.gpu_worker",),
        tasks=(flow,),
    )
