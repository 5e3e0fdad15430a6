"""Import what tasks need: in the process that forks the workers (`infra.workers.forkserver`), and in those on GPUs.

The setting `rowmill.worker-imports` of Dask names the modules of the flow.
"""

import gc
import importlib
import signal
import threading

from infra.workers.garbage import loading

# A terminal's Ctrl-C is for the process that has started this one.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

THEIRS = ("prefect.task_engine", "pydantic.v1", "anyio._backends._asyncio", "distributed.protocol.numpy")  # when used
with loading():
    import dask.config

    import infra.workers.preload  # noqa: F401
    from infra.workers.forked import WORKER_IMPORTS

    for name in (*dask.config.get(WORKER_IMPORTS, []), *THEIRS):
        importlib.import_module(name)
    gc.collect()  # what forks share they shall go on sharing
