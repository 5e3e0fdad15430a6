"""The plugin by which workers of a user's own cluster get what the preloads of rowmill's clusters bring."""

from __future__ import annotations

from distributed import Worker, WorkerPlugin

from tasks.cluster.transfer import host_memory


class WorkerSetup(WorkerPlugin):
    """What a worker does before its next task for an engine, also one that joins later."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.name = f"rowmill-{engine}"

    def setup(self, worker: Worker) -> None:
        """Let the worker read results out of the memory of other workers of its host, and out of their GPUs."""
        host_memory.dask_setup(worker)
        if self.engine == "cudf":
            from tasks.cluster.transfer import cuda_ipc, gpu_worker  # noqa: F401  needs CUDA; the import does the work

            cuda_ipc.prepare_own(worker)


def why_slower() -> str:
    """Explain why results of this worker go from its GPU through the host; "" if they do not."""
    from tasks.cluster.transfer import cuda_ipc

    return cuda_ipc.why_slower()
