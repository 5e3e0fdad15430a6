"""What a worker process of a local cluster does first (a preload of Dask)."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

import dask.config


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the one that started the cluster and closes it.

    A task that fails is told by the run, once and readably: the worker does not print its traceback as well. Over SSH
    it says that it has started, for which SSHCluster waits.
    """
    lines = logging.getLogger("distributed.worker")
    if dask.config.get("millrace.says-start-only", False):
        lines.addFilter(lambda record: "Start worker at" in record.getMessage())
    else:
        lines.setLevel(logging.CRITICAL)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
