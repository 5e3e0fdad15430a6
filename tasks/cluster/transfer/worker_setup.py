"""Makes the workers of a user's own cluster ready: a plugin brings what the preloads of rowmill's clusters bring."""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Worker, WorkerPlugin

from tasks.cluster.transfer import host_memory
from tasks.errors import HostError

log = logging.getLogger("rowmill")
_ready: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # engines by client
START = "start them with LocalCUDACluster() and no rmm_ argument, or as cluster.kind cuda of a job"


class WorkerSetup(WorkerPlugin):
    """What a worker does before its first task for an engine, also one that joins later; once in its process."""

    def __init__(self, engine: str) -> None:
        self.engine, self.name = engine, f"rowmill-{engine}"

    def setup(self, worker: Worker) -> None:
        """Let the worker read results out of the memory of other workers of its host, and out of their GPUs."""
        host_memory.dask_setup(worker)
        if self.engine == "cudf":
            from tasks.cluster.transfer import cuda_ipc, gpu_worker  # noqa: F401  needs CUDA; the import does the work

            cuda_ipc.prepare_own(worker)


def prepare_workers(client: Any, engine: str) -> None:
    """Register the plugin with a client's cluster, once; log what is slower there than on a cluster of rowmill."""
    known = _ready.setdefault(client, set())
    if engine in known:
        return
    try:
        client.register_plugin(WorkerSetup(engine))
    except ImportError as error:
        raise HostError(
            f"the workers of the Dask client lack a module for the engine {engine}", where=str(client.scheduler.address),
            why=str(error), do="install rowmill, and for cudf its extra cuda, where the workers run",
        ) from None  # fmt: skip
    known.add(engine)
    reasons = sorted({text for text in client.run(_why_slower).values() if text}) if engine == "cudf" else []
    if reasons:
        log.warning("results go from GPU to GPU through the host, which is slower: %s; %s", reasons[0], START)


def _why_slower() -> str:
    from tasks.cluster.transfer import cuda_ipc

    return cuda_ipc.why_slower()
