"""The variables by which a fork server and its forks communicate, and how a fork adopts them."""

from __future__ import annotations

import os

# Setting of Dask, and its variable: modules that infra/workers/preimport.py imports.
WORKER_IMPORTS = "rowmill.worker-imports"
IMPORTS_VARIABLE = "DASK_ROWMILL__WORKER_IMPORTS"
FORKED = "ROWMILL_FORKED"  # names of the variables that a fork inherits from the server and must remove


def adopt() -> None:
    """Apply the variables of a fork, before its first task, to libraries that the server loaded before it had them."""
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
