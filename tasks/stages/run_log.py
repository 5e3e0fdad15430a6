"""Has the log of a run show each error of rowmill once, without a traceback."""

from __future__ import annotations

import logging
import os

from tasks.errors import RowmillError

RUN_LOGS = ("prefect.flow_runs", "prefect.task_runs")
FAILED = "Finished in state Failed("


def only_message(record: logging.LogRecord) -> bool:
    """Shorten what Prefect logs of an error: no traceback of a RowmillError, and no text of it in the states after it.

    Other errors keep their traceback, and with `--debug` all do.
    """
    if os.environ.get("ROWMILL_DEBUG", "") not in ("", "0"):
        return True
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, RowmillError):
        record.msg = str(error)
        record.args = ()
        record.exc_info = None
        record.exc_text = None
    elif (text := record.getMessage()).startswith(FAILED) and " encountered an exception" in text:
        record.msg = "Finished in state Failed"
        record.args = ()
    return True


def install() -> None:
    """Shorten the logs of runs in this process; a second call does nothing."""
    for name in RUN_LOGS:
        logging.getLogger(name).addFilter(only_message)
