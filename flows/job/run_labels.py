"""Labels of a run on the Prefect server: its host and its output, which notifications name, and its process."""

from __future__ import annotations

import logging
import os
import socket

from prefect import get_client
from prefect.context import FlowRunContext

from tasks.core.strict_json import JsonObject
from tasks.storage.process_identity import is_alive, namespace, start_time

log = logging.getLogger("rowmill")

# labels of a run, which notifications name
HOST = "rowmill.host"
OUTPUT = "rowmill.output"
PROCESS = "rowmill.process"  # label of a run: the process that executes the flow


def label_run(labels: JsonObject) -> None:
    """Add labels to the current flow run; nothing without one. A server that is away is no reason to stop."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run_labels(context.flow_run.id, labels)
    except Exception as error:
        log.debug("the run could not be labelled: %s", error)


def label_host() -> None:
    """Note on which host, and in which process, the current flow run works."""
    label_run({HOST: socket.gethostname(), PROCESS: this_process()})


def this_process() -> str:
    """A text for this process that no other process has, not on other hosts either; empty where that is unknown."""
    boot, pidns = namespace()
    if not boot:
        return ""
    return " ".join([boot, pidns, str(os.getpid()), str(start_time(os.getpid()))])


def has_ended(process: str) -> bool:
    """Return whether a process, as `this_process` describes it, ran on this host since it was booted and has ended.

    False for processes of other hosts and of other containers, which cannot be seen from here.

    >>> has_ended(this_process())
    False
    """
    words = process.split(" ")
    if len(words) != 4:
        return False
    boot, pidns, pid, start = words
    if (boot, pidns) != namespace() or not pid.isdigit():
        return False
    return is_alive(int(pid), start) is False
