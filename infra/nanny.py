"""The process that starts a worker, watches it and ends it."""

from __future__ import annotations

import asyncio
from typing import Any

import distributed
from distributed.core import Status

PATIENCE = 60.0  # seconds


class Nanny(distributed.Nanny):
    """A nanny that waits until a worker that it has killed is gone, and that starts one worker after the other.

    Dask gives the system one second for the first and raises a bare TimeoutError, which fails a run whose output is
    written; on a busy host, or where a worker has held much memory, it takes longer.

    Where a worker dies while it starts, Dask starts the next one before it has stopped listening for the first, and
    what the next one says is taken for the first one's and dropped: its cluster never closes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._one_start = asyncio.Lock()

    async def instantiate(self) -> Status:
        async with self._one_start:
            if self.status in (Status.closing, Status.closed):
                return Status.stopped
            return await super().instantiate()

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        try:
            await super().kill(timeout, reason)
        except TimeoutError:
            if self.process is not None:
                await asyncio.wait_for(self.process.stopped.wait(), PATIENCE)
