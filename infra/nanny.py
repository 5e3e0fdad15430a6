"""The process that starts a worker, watches it and ends it."""

from __future__ import annotations

import asyncio

import distributed

PATIENCE = 60.0  # seconds


class Nanny(distributed.Nanny):
    """A nanny that waits until a worker that it has killed is gone.

    Dask gives the system one second for it and raises a bare TimeoutError, which fails a run whose output is written;
    on a busy host, or where a worker has held much memory, it takes longer.
    """

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        try:
            await super().kill(timeout, reason)
        except TimeoutError:
            if self.process is not None:
                await asyncio.wait_for(self.process.stopped.wait(), PATIENCE)
