"""What the workers of a flow need, for the process that forks them (`infra.forkserver`)."""

import gc
import importlib
import signal

# A terminal's Ctrl-C is for the process that has started this one.
signal.signal(signal.SIGINT, signal.SIG_IGN)

OURS = ("flows.preprocess", "infra.worker")
THEIRS = ("prefect.task_engine", "pydantic.v1", "anyio._backends._asyncio", "distributed.protocol.numpy")  # when used
for name in (*OURS, *THEIRS):
    importlib.import_module(name)

gc.collect()
gc.freeze()  # not looked at again, so that forks go on sharing it
