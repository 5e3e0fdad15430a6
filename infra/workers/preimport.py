"""What the workers of a flow need: loaded by the process that forks them (`infra.workers.forkserver`), and by those on
GPUs."""

import gc
import importlib
import signal
import threading

from infra.workers.garbage import loading

# A terminal's Ctrl-C is for the process that has started this one.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

OURS = ("flows.preprocess", "infra.workers.preload")
THEIRS = ("prefect.task_engine", "pydantic.v1", "anyio._backends._asyncio", "distributed.protocol.numpy")  # when used
with loading():
    for name in (*OURS, *THEIRS):
        importlib.import_module(name)
    gc.collect()  # what forks share they shall go on sharing
