"""What a worker process of a local cluster does first (a preload of Dask)."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from typing import Any

import dask.config

from infra.forkserver import adopt

SWITCH = 0.001  # seconds


def dask_setup(worker: Any) -> None:
    """What is the same on every host.

    Threads that compute hold the interpreter for at most a millisecond: with Python's five, Dask's own thread, which
    hands out tasks and moves results, waits for many of them at each step.

    It leaves Ctrl-C, which a terminal sends to every process, to the one that started the cluster and closes it.

    A task that fails is told by the run, once and readably: the worker does not print its traceback as well. Over SSH
    it says that it has started, for which SSHCluster waits.
    """
    adopt()
    sys.setswitchinterval(SWITCH)
    lines = logging.getLogger("distributed.worker")
    if dask.config.get("millrace.says-start-only", False):
        lines.addFilter(lambda record: "Start worker at" in record.getMessage())
    else:
        lines.setLevel(logging.CRITICAL)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
