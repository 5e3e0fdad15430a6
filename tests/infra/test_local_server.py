"""Transactions of Prefect's server on SQLite, as the server that rowmill starts begins them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from infra.orchestration.sqlite_server import check_schemas_once, writers_wait


async def both_add(path: Path) -> int:
    """Two transactions read a count and then write one more, the second while the first is at it; what is left."""
    import sqlalchemy as sa
    from prefect.server.database.configurations import AioSqliteConfiguration

    on_sqlite: Any = AioSqliteConfiguration(f"sqlite+aiosqlite:///{path}")
    engine = await on_sqlite.engine()
    first_has_read, second_is_done = asyncio.Event(), asyncio.Event()

    async def said(sql: str) -> Any:
        async with await on_sqlite.session(engine) as session, on_sqlite.begin_transaction(session):
            return await session.execute(sa.text(sql))

    async def first() -> None:
        async with await on_sqlite.session(engine) as session, on_sqlite.begin_transaction(session):
            count = (await session.execute(sa.text("SELECT n FROM counts"))).scalar_one()
            first_has_read.set()
            with contextlib.suppress(TimeoutError):  # it cannot be done before, if it waits for this one
                await asyncio.wait_for(second_is_done.wait(), 1)
            await session.execute(sa.text(f"UPDATE counts SET n = {count + 1}"))

    async def second() -> None:
        await first_has_read.wait()
        await said("UPDATE counts SET n = n + 1")
        second_is_done.set()

    await said("CREATE TABLE counts (n INTEGER)")
    await said("INSERT INTO counts VALUES (0)")
    try:
        await asyncio.gather(first(), second())
        return int((await said("SELECT n FROM counts")).scalar_one())
    finally:
        await engine.dispose()


@pytest.mark.promise("On SQLite use the server that `rowmill` starts")
def test_transactions_that_read_and_then_write_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.server.database.configurations import AioSqliteConfiguration
    from sqlalchemy.exc import OperationalError

    monkeypatch.setattr(AioSqliteConfiguration, "begin_transaction", AioSqliteConfiguration.begin_transaction)
    with pytest.raises(OperationalError, match="database is locked"):  # else nobody needs local_server.py any more
        asyncio.run(both_add(tmp_path / "deferred.db"))
    writers_wait()
    assert asyncio.run(both_add(tmp_path / "immediate.db")) == 2


def test_a_schema_is_checked_once_and_a_wrong_one_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import jsonschema
    from prefect.utilities.schema_tools import validation

    checked: list[Any] = []

    def check(schema: Any) -> None:
        checked.append(schema)
        if "wrong" in schema:
            raise jsonschema.SchemaError("wrong")

    for validator in (jsonschema.Draft202012Validator, validation._VALIDATOR):
        monkeypatch.setattr(validator, "check_schema", check)
    check_schemas_once()
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    for value in (1, 2):
        jsonschema.validate({"x": value}, schema)
    assert checked == [schema]
    jsonschema.validate({"x": 1}, {**schema, "title": "another"})
    assert len(checked) == 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"x": "a"}, schema)
    for _ in range(2):
        validation.validate({"x": 1}, schema, raise_on_error=True)
    assert len(checked) == 3
    for _ in range(2):
        with pytest.raises(jsonschema.SchemaError):
            jsonschema.validate({"x": 1}, {**schema, "wrong": True})
    assert len(checked) == 5
