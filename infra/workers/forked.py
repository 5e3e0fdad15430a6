"""What a fork server and its forks tell each other: names of variables, and what a fork does with them."""

from __future__ import annotations

import os

# Setting of Dask, and its variable: modules that infra/workers/preimport.py imports.
WORKER_IMPORTS, IMPORTS_VARIABLE = "millrace.worker-imports", "DASK_MILLRACE__WORKER_IMPORTS"
FORKED = "MILLRACE_FORKED"  # to a fork: the variables that it has from the server and must not have


def adopt() -> None:
    """In a worker, before its first task: what the variables of a fork say goes for what was loaded before them."""
    left = os.environ.pop(FORKED, None)
    if left is None:
        return
    for name in left.split():
        os.environ.pop(name, None)
    import pyarrow as pa
    from prefect.context import refresh_global_settings_context
    from prefect.logging.configuration import setup_logging

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads):
        pa.set_cpu_count(int(threads))
    refresh_global_settings_context()
    setup_logging(incremental=False)
