"""The first steps of a worker process of a local cluster (a preload of Dask)."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from contextlib import suppress

import dask.config

from infra.environment import INTERNAL_LEVEL, keep_on_without_reader
from infra.workers import pages
from infra.workers.forked import adopt

SWITCH_SECONDS = 0.001


def dask_setup(worker: object) -> None:
    """Set a worker up, on any host.

    Threads that compute hold the interpreter for at most a millisecond: with Python's five, Dask's own thread, which
    hands out tasks and moves results, waits for many of them at each step.

    The worker ignores Ctrl-C, which a terminal sends to every process: the process that started the cluster closes it.

    Its HTTP pages are closed unless they are to be shown.

    The worker prints no tracebacks: the run reports a failed task once, readably. Over SSH the worker prints only that
    it has started, for which SSHCluster waits. Where the command keeps Prefect's own lines from the screen, the worker
    does not print that a server has gone either: the command warns of that. A crash in compiled code is another matter:
    the worker prints which of our lines called it. It works on when nobody reads what it prints.
    """
    adopt()
    keep_on_without_reader()
    with suppress(OSError, RuntimeError, ValueError):  # a process without an error stream
        faulthandler.enable(sys.__stderr__ or sys.stderr, all_threads=False)
    pages.dask_setup(worker)
    sys.setswitchinterval(SWITCH_SECONDS)
    if os.environ.get(INTERNAL_LEVEL) == "CRITICAL":
        logging.raiseExceptions = False
    lines = logging.getLogger("distributed.worker")
    if dask.config.get("rowmill.says-start-only", False):
        logging.getLogger("distributed").setLevel(logging.ERROR)
        lines.setLevel(logging.INFO)
        lines.addFilter(lambda record: "Start worker at" in record.getMessage())
    else:
        lines.setLevel(logging.CRITICAL)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
