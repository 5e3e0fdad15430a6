"""How the memory of hosts and GPUs is divided: every share and every number of copies, in one table.

A GPU worker may allocate the memory of its pool: `cluster.rmm_pool_size`, or 0.92 of the GPU, over UCX 0.6. Of the
pool, `PIECES_SHARE` is for pieces that wait for their file, and `WORK_SHARE_OF_GPU` for partitions and files at work:
together all of the pool, which is less than the whole GPU. `CACHE_SHARE_OF_GPU` and `TABLES_SHARE_OF_GPU` are inside
the pieces' share: cached columns take what pieces leave of it, and statistics needs tables before there are pieces.

A worker on the CPU takes `WORKER_ITSELF` of its limit of host memory before it works. Of what is left the same
`PIECES_SHARE` is for pieces and cached columns; the rest, up to `USABLE_SHARE_OF_HOST` of the limit, is for partitions
and files at work: `host_work_limit`. Where it is short, a partition is divided, and a file is written in runs. A worker
caches nothing more once less than `FREE_SHARE_OF_HOST` is free.

infra/clusters/cuda_settings.py has the shares of a whole GPU, since infra may not import this table: 0.92 and 0.6 for
the pool, 0.5 and 0.45 for results, which spill to the host beyond that.
tests/tasks/core/test_memory_budget.py checks that both agree.
"""

from __future__ import annotations

PIECES_SHARE = 0.5  # of the workers' memory, host or GPU: pieces of partitions that wait for their file
WORK_SHARE_OF_GPU = 0.5  # of a GPU's memory: partitions that compute and files that are written
CACHE_SHARE_OF_GPU = 0.25  # of the GPUs' memory: columns that are cached so that transform does not read them again
TABLES_SHARE_OF_GPU = 1 / 8  # of a GPU's memory: the tables that statistics brings to it for one merge
FREE_SHARE_OF_HOST = 0.25  # of a host's memory: stays free of cached columns
STATE_SHARE_OF_HOST = 1 / 64  # of a host's memory: a saved state up to this size is read while workers write files

WORKER_ITSELF = 250_000_000  # bytes of a worker on the CPU: interpreter, libraries, what its allocator keeps
USABLE_SHARE_OF_HOST = 0.9  # of a worker's limit: Dask ends a worker at 0.95, looked at five times a second

COPIES_ON_CPU = 4  # of a partition that computes: as stored, its source and output columns, its rows in another order
COPIES_ON_GPU = 4  # the same; the GPU decodes what the file stores
COPIES_WRITTEN = 2.5  # of a file's rows: as they come and in their order, or in their order and encoded
COPIES_WRITTEN_ON_CPU = 3  # the same, one joined column and the order of the rows


def copies(engine: str) -> int:
    """How many times its decoded bytes a partition takes while it computes.

    >>> copies("pandas"), copies("cudf")
    (4, 4)
    """
    return COPIES_ON_GPU if engine == "cudf" else COPIES_ON_CPU


def work_limit(device_memory: int) -> int:
    """Bytes of GPU memory that work in progress may fill.

    >>> work_limit(8 * 10**9)
    4000000000
    """
    return int(WORK_SHARE_OF_GPU * device_memory)


def host_pieces_limit(memory: int, workers: int) -> int:
    """Bytes of the host memory of CPU workers that pieces may fill.

    >>> host_pieces_limit(2 * 10**9, 2)
    750000000
    """
    return int(PIECES_SHARE * max(memory - workers * WORKER_ITSELF, 0))


def host_work_limit(memory: int, threads: int, pieces_in_memory: bool = True) -> int:
    """Bytes that each thread of a CPU worker may take for a partition or a file at work.

    >>> host_work_limit(10**9, 1), host_work_limit(10**9, 2, pieces_in_memory=False), host_work_limit(10**8, 1)
    (275000000, 325000000, 1)
    """
    pieces = host_pieces_limit(memory, 1) if pieces_in_memory else 0
    work = int(USABLE_SHARE_OF_HOST * memory) - WORKER_ITSELF - pieces
    return max(work // max(threads, 1), 1)
