"""Labels of a run on the Prefect server: its host and its output, which notifications name."""

from __future__ import annotations

import logging
import socket
from typing import Any

from prefect import get_client
from prefect.context import FlowRunContext

log = logging.getLogger("rowmill")

HOST, OUTPUT = "rowmill.host", "rowmill.output"  # labels of a run, which notifications name


def label_run(labels: dict[str, Any]) -> None:
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
    """Note on which host the current flow run works."""
    label_run({HOST: socket.gethostname()})
