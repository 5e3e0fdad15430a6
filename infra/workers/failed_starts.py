"""Workers of this host that die while they start: they are started again, then reported with their last lines."""

from __future__ import annotations

import logging
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from tasks.errors import GiveUpError, RowmillError

STARTS = 3  # of a cluster, until it is given up
LINES = 8  # the last lines of workers that an error shows
MAPPED = 4 * 10**9  # bytes that a process maps, most of which it never uses, before it has read any data
STDERR = 2
log = logging.getLogger("rowmill.clusters")
Running = TypeVar("Running")


def check_address_space() -> None:
    """GiveUpError where this process, and those that it starts, may not map what they need to start.

    A thread for which there is no room dies at its start, in libraries that wait for it for ever.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < MAPPED:
        raise GiveUpError(
            "the address space of this process is too small",
            where=f"ulimit -v = {limit // 1024} ({limit / 1e9:,.1f} GB)",
            why=f"a process maps {MAPPED / 1e9:,.0f} GB, of which it uses little, before it has read any data",
            do="raise it: `ulimit -v unlimited`; to bound memory use cluster.memory_limit, or a container",
        )


def start_with_retries(
    start: Callable[[bool], Running], to_error: Callable[[Exception, Sequence[str]], RowmillError] | None = None
) -> Running:
    """Call `start(forks)` up to `STARTS` times and return its cluster.

    The cause of a worker's death may pass, such as a moment without memory. From the second time on workers are no
    forks, since their fork server may be the cause, and their lines are read. After the last time raises what
    `to_error`, by default `make_start_error`, makes of the last error and the workers' last lines.
    """
    for attempt in range(1, STARTS + 1):
        with last_lines(attempt > 1) as lines:
            try:
                return start(attempt == 1)
            except RowmillError:
                raise
            except Exception as error:
                failed = error
        if attempt < STARTS:
            log.warning("workers died while they started (attempt %s of %s): %s", attempt, STARTS, cause_of(failed))
    raise (to_error or make_start_error)(failed, lines) from failed


def make_start_error(error: Exception, lines: Sequence[str]) -> GiveUpError:
    """Make the error for workers that did not start: the cause as far as is known, and what to look at."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    limited = limit != resource.RLIM_INFINITY
    bound = f"; this process may map {limit / 1e9:,.1f} GB of memory at most (ulimit -v)" if limited else ""
    look = "raise `ulimit -v`: processes map more than they use; " if limited else ""
    return GiveUpError(
        f"a worker died while it started, {STARTS} times",
        where="the workers of this host",
        why=f"{cause_of(error)}; {describe_last_lines(lines)}{bound}",
        do=f"{look}look at the host's memory and processes (`free`, `dmesg`, `ulimit -a`); try fewer workers",
    )


def describe_last_lines(lines: Sequence[str]) -> str:
    """Describe the last lines of workers, in words.

    >>> describe_last_lines(["Traceback ..\\n", "MemoryError\\n"])
    'it wrote: Traceback .. / MemoryError'
    """
    last = [line.strip() for line in lines if line.strip()]
    return f"it wrote: {' / '.join(last)}" if last else "it wrote nothing"


def cause_of(error: BaseException) -> str:
    """Return the first error of a chain, which Dask's own wrap: one line."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return f"{type(error).__name__}: {error}".splitlines()[0]


@contextmanager
def last_lines(wanted: bool) -> Iterator[list[str]]:
    """The last lines that this process and its children write to stderr in the block; stderr still gets them.

    The pipe and the thread that reads it live as long as one of the children.
    """
    lines: list[str] = []
    if not wanted:
        yield lines
        return
    reads, writes = os.pipe()
    before = os.dup(STDERR)
    last: deque[str] = deque(maxlen=LINES)

    def follow() -> None:
        with os.fdopen(reads, errors="replace") as pipe, os.fdopen(before, "w", errors="replace") as stderr:
            for line in pipe:
                last.append(line)
                stderr.write(line)
                stderr.flush()

    os.dup2(writes, STDERR)
    os.close(writes)
    thread = threading.Thread(target=follow, name="rowmill-stderr", daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        os.dup2(before, STDERR)
        thread.join(1.0)  # ends at once where no process is left that writes
        lines += last
