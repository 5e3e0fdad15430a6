"""Lost workers in calls from Python: Dask's bare errors as ones that say what to change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.cluster.out_of_memory import explain_out_of_memory
from tasks.cluster.pool import Pool
from tasks.core.units import amount
from tasks.errors import TransientError


@contextmanager
def explain_losses(call: str, pool: Pool, engine: str) -> Iterator[None]:
    """Turn out of memory, and a worker that was lost too often, into a TransientError of the Python call `call`."""
    with explain_out_of_memory(call, engine):
        try:
            yield
        except Exception as error:
            if "distributed" not in sys.modules:
                raise
            from distributed import KilledWorker

            if not isinstance(error, KilledWorker):
                raise
            raise _make_lost_worker_error(call, pool, error.allowed_failures + 1, engine) from error


def _make_lost_worker_error(call: str, pool: Pool, times: int, engine: str) -> TransientError:
    memory = "rmm_pool_size" if engine == "cudf" else "memory_limit"
    return TransientError(
        f"{times} worker(s) were lost with the same work of {call}",
        why="Dask ends a worker that takes 95 % of its memory_limit; else it crashed or was killed from outside; there "
        f"were {len(pool.workers)} worker(s), {pool.threads} thread(s) and {amount(pool.memory)} of memory in all",
        do=f"give workers less to do at once ({advise_smaller_work(call)}, fewer threads for each worker) or a higher "
        f"{memory}; if memory is not short, the log of the worker says why it ended",
    )


def advise_smaller_work(stage: str) -> str:
    """Name the settings that make the work of a stage, or of a call from Python, smaller.

    >>> advise_smaller_work("shuffle_write"), advise_smaller_work("fit")
    ('a higher output.files or a smaller output.row_group_size', 'a smaller partition_size of the Dataset')
    """
    if stage.startswith("shuffle_write"):
        return "a higher output.files or a smaller output.row_group_size"
    if stage in ("fit", "refit", "to_parquet"):
        files = " (or more files)" if stage == "to_parquet" else ""
        return f"a smaller partition_size of the Dataset{files}"
    return "a smaller source.partition_size"
