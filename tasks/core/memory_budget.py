"""How the memory of hosts and GPUs is divided: every share and every number of copies, in one table.

A GPU worker may allocate the memory of its pool: `cluster.rmm_pool_size`, or 0.92 of the GPU, over UCX 0.6. Of the
pool, `PIECES_SHARE` is for pieces that wait for their file, and `WORK_SHARE_OF_GPU` for partitions and files at work:
together all of the pool, which is less than the whole GPU. `CACHE_SHARE_OF_GPU` and `TABLES_SHARE_OF_GPU` are inside
the pieces' share: cached columns take what pieces leave of it, and statistics needs tables before there are pieces.

Of a host's memory, the same `PIECES_SHARE` is for pieces and cached columns; the rest is for partitions at work. A
worker caches nothing more once less than `FREE_SHARE_OF_HOST` is free.

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

COPIES_ON_CPU = 3  # of a partition that computes: its source columns, its output columns, its rows in another order
COPIES_ON_GPU = 4  # the same, and the partition as the file stores it, which the GPU decodes
COPIES_WRITTEN = 2.5  # of a file's rows: as they come and in their order, or in their order and encoded


def copies(engine: str) -> int:
    """How many times its decoded bytes a partition takes while it computes.

    >>> copies("pandas"), copies("cudf")
    (3, 4)
    """
    return COPIES_ON_GPU if engine == "cudf" else COPIES_ON_CPU


def work_limit(device_memory: int) -> int:
    """Bytes of GPU memory that work in progress may fill.

    >>> work_limit(8 * 10**9)
    4000000000
    """
    return int(WORK_SHARE_OF_GPU * device_memory)
