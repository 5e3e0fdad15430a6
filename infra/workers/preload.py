"""What a worker process of a local cluster does first (a preload of Dask)."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import Any

import dask.config

from infra.environment import INTERNAL_LEVEL
from infra.workers import dashboard_access
from infra.workers.forked import adopt

SWITCH = 0.001  # seconds


def dask_setup(worker: Any) -> None:
    """What is the same on every host.

    Threads that compute hold the interpreter for at most a millisecond: with Python's five, Dask's own thread, which
    hands out tasks and moves results, waits for many of them at each step.

    It leaves Ctrl-C, which a terminal sends to every process, to the one that started the cluster and closes it.

    What it shows over HTTP is for this user alone.

    A task that fails is told by the run, once and readably: the worker does not print its traceback as well. Over SSH
    it says that it has started, for which SSHCluster waits. Nor does it print that a server which went away takes no
    logs, where the command keeps such lines from the screen: it warns of the server itself.
    """
    adopt()
    dashboard_access.dask_setup(worker)
    sys.setswitchinterval(SWITCH)
    if os.environ.get(INTERNAL_LEVEL) == "CRITICAL":
        logging.raiseExceptions = False
    lines = logging.getLogger("distributed.worker")
    if dask.config.get("millrace.says-start-only", False):
        lines.addFilter(lambda record: "Start worker at" in record.getMessage())
    else:
        lines.setLevel(logging.CRITICAL)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
