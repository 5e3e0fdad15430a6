"""What Dask does with what a worker says when it connects: GPUs of one host lend their memory by it (see test_ipc)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from infra.clusters.encryption import temporary

pytestmark = pytest.mark.system


class Thing:
    """What a task returns."""


@pytest.mark.parametrize("protocol", ["tcp", "tls"])
def test_who_sends_a_result_knows_what_the_worker_that_asks_has_said(protocol: str) -> None:
    told: list[Any] = []

    @dask_serialize.register(Thing)
    def dump(thing: Thing, context: Any = None) -> tuple[dict[str, Any], list[Any]]:
        told.append((context or {}).get("recipient", {}).get("rowmill-test"))
        return {}, []

    @dask_deserialize.register(Thing)
    def load(header: dict[str, Any], frames: list[Any]) -> Thing:
        return Thing()

    async def run() -> None:
        security = temporary() if protocol == "tls" else None
        alone: dict[str, Any] = {
            "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1", "protocol": f"{protocol}://", "security": security,
        }  # fmt: skip
        async with (
            Scheduler(**alone, port=0) as scheduler,
            Worker(scheduler.address, **alone) as one,
            Worker(scheduler.address, **alone) as other,
            Client(scheduler.address, asynchronous=True, security=security) as client,
        ):
            assert {address.partition("://")[0] for address in (one.address, other.address)} == {protocol}
            for arguments in (other.connection_args, other.rpc.connection_args):
                arguments["handshake_overrides"] = {"rowmill-test": {"gpus": ["a"]}}
            made = client.submit(Thing, workers=[one.address], pure=False)
            await client.submit(type, made, workers=[other.address])
            await client.gather(made)

    asyncio.run(run())
    assert told == [{"gpus": ("a",)}, None]
