"""Prefect's command line with writers on SQLite that wait for each other; infra/orchestration/server.py starts its
server so.

Prefect's transactions begin deferred. One that reads, and writes when another has written meanwhile, fails at once with
"database is locked", however long it might wait: what an automation is told is dropped after four such failures. The
cursor that failed is left to the garbage collector, which may run in the server's event loop. It then waits for that
cursor's connection, which waits for a lock that only the event loop can give back: the server stands still for the
minute that SQLite waits. A transaction that takes the lock when it begins waits then, and does not fail.
"""

from __future__ import annotations

import runpy
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any

from prefect.server.database.configurations import AioSqliteConfiguration


def writers_wait() -> None:
    """Begin every transaction of this process on SQLite as IMMEDIATE; what only reads needs none and never waits."""
    begin = AioSqliteConfiguration.begin_transaction

    @wraps(begin)
    def immediate(self: Any, session: Any, with_for_update: bool = False) -> AbstractAsyncContextManager[Any]:
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = immediate  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    writers_wait()
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)
