"""Prefect's command line with writers on SQLite that wait for each other; infra/orchestration/server.py starts its
server so.

Prefect's transactions begin deferred. One that reads, and writes when another has written meanwhile, fails at once with
"database is locked", however long it might wait: what an automation is told is dropped after four such failures. The
cursor that failed is left to the garbage collector, which may run in the server's event loop. It then waits for that
cursor's connection, which waits for a lock that only the event loop can give back: the server stands still for the
minute that SQLite waits. A transaction that takes the lock when it begins waits then, and does not fail.

And the server checks the schema of a flow's parameters at each deployment and at each run that is requested. For the
form of a job that takes half a second, in which the server answers nobody: here it checks each schema once.
"""

from __future__ import annotations

import json
import runpy
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any

from jsonschema import Draft202012Validator
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.utilities.schema_tools.validation import _VALIDATOR


def writers_wait() -> None:
    """Begin every transaction of this process on SQLite as IMMEDIATE; what only reads needs none and never waits."""
    begin = AioSqliteConfiguration.begin_transaction

    @wraps(begin)
    def immediate(self: Any, session: Any, with_for_update: bool = False) -> AbstractAsyncContextManager[Any]:
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = immediate  # type: ignore[method-assign, assignment]


def check_schemas_once() -> None:
    """Check each JSON schema once in this process, by all validators that Prefect uses."""
    for validator in (Draft202012Validator, _VALIDATOR):
        validator.check_schema = _check_once_per_schema(validator.check_schema)  # type: ignore[method-assign]


def _check_once_per_schema(check: Any) -> Any:
    """Return `check` for schemas that it has not accepted before."""
    accepted: set[int] = set()

    @wraps(check)
    def check_new(schema: Any, *arguments: Any, **options: Any) -> None:
        known = hash(json.dumps(schema, sort_keys=True, default=str))
        if known not in accepted:
            check(schema, *arguments, **options)
            accepted.add(known)

    return check_new


if __name__ == "__main__":
    writers_wait()
    check_schemas_once()
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)
