"""Computing on GPUs in processes that rowmill did not start: a user's Python, or the workers of a user's cluster.

Workers that rowmill starts are ready before their first task. Elsewhere the functions that tasks run call `prepare`
before they compute: threads of this process may be those of a Dask worker.
"""

from __future__ import annotations

from tasks import engines


def prepare(engine: str) -> None:
    """Make this process ready for tasks of an engine; for `pandas` there is nothing to do."""
    if engine == "cudf":
        from tasks.cluster.transfer import gpu_worker  # noqa: F401  needs CUDA; the import does the work, once


def allocatable() -> int:
    """Bytes that this process may allocate on its GPU, once it is ready for tasks."""
    prepare("cudf")
    return engines.allocatable()
