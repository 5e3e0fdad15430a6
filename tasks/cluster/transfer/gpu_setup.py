"""Computing on GPUs in processes that rowmill did not start: a user's Python, or the workers of a user's cluster.

Workers that rowmill starts are ready before their first task. Elsewhere the functions that tasks run call `prepare`
before they compute: threads of this process may be those of a Dask worker.
"""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary

from tasks import engines
from tasks.errors import HostError

log = logging.getLogger("rowmill")
_ready: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # the engines for which a client's workers are ready
# Measured with TLS, which goes through the host, too: tests/bench/README.md, "Two hosts" (TLS beside UCX on one host).
COST = (
    "results go from GPU to GPU through the host, which is slower "
    "(as with TLS: a full shuffle of 158 M rows on two H100s takes 3.9 s instead of 1.4 s)"
)
START = "start the workers as LocalCUDACluster() does without rmm arguments, or as the cluster of a job"


def prepare(engine: str) -> None:
    """Make this process ready for tasks of an engine; for `pandas` there is nothing to do."""
    if engine == "cudf":
        from tasks.cluster.transfer import gpu_worker  # noqa: F401  needs CUDA; the import does the work, once


def allocatable() -> int:
    """Return the bytes that this process may allocate on its GPU, once it is ready for tasks."""
    prepare("cudf")
    return engines.allocatable()


def prepare_workers(client: Any, engine: str) -> None:
    """Make the workers of a client ready for an engine, once; a line of the log says if results move slowly."""
    known = _ready.setdefault(client, set())
    if engine in known:
        return
    from tasks.cluster.transfer.worker_setup import WorkerSetup, why_slower

    try:
        client.register_plugin(WorkerSetup(engine))
    except ImportError as error:
        what = "the workers lack a module"
        do = "install the same rowmill there; the engine cudf also needs cuDF"
        raise HostError(what, where=f"the cluster at {client.scheduler.address}", why=str(error), do=do) from None
    known.add(engine)
    if engine == "cudf" and (slower := max(client.run(why_slower).values(), default="")):
        log.warning("%s: %s; %s", COST, slower, START)
