"""The process that starts a worker, watches it and ends it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import distributed
import psutil
from distributed.core import Status

PATIENCE = 60.0  # seconds


class Nanny(distributed.Nanny):
    """A nanny that waits until a worker that it has killed is gone, and that starts one worker after the other.

    Dask gives the system one second for the first and raises a bare TimeoutError, which fails a run whose output is
    written; on a busy host, or where a worker has held much memory, it takes longer.

    Where a worker dies while it starts, Dask starts the next one before it has stopped listening for the first, and
    what the next one says is taken for the first one's and dropped: its cluster never closes.

    Where the process of a worker cannot even be made (its fork server was killed, no memory is left), or does not say
    in time that it runs, Dask stumbles over the state that it left it in, and whoever closes the nanny waits for ever.

    Where a fork server is killed, its forks seem to have ended with it, but live: their place would be taken twice.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._one_start = asyncio.Lock()
        self._last: psutil.Process | None = None

    async def instantiate(self) -> Status:
        async with self._one_start:
            if self.status in (Status.closing, Status.closed):
                return Status.stopped
            self._end_last()
            status = await super().instantiate()
            with suppress(psutil.NoSuchProcess):
                self._last = psutil.Process(self.pid) if self.pid else None
            return status

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        if self._has_no_process():
            self.process = None
            return
        try:
            await super().kill(timeout, reason)
            self._end_last()
        except TimeoutError:
            if self.process is not None:
                await asyncio.wait_for(self.process.stopped.wait(), PATIENCE)

    def _end_last(self) -> None:
        """End the worker before this one, of which Dask says that it has ended."""
        with suppress(psutil.NoSuchProcess):
            if self._last is not None:
                self._last.kill()
        self._last = None

    def _has_no_process(self) -> bool:
        """True if the start of the worker failed before there was a process; an existing process can be ended."""
        worker = self.process
        if worker is None or worker.status is Status.init:
            return True
        if worker.status is not Status.starting or not worker.running.is_set():
            return False
        if worker.process is None or worker.process.pid is None:
            return True
        worker.status = Status.failed  # which can be joined
        return False
