"""An event whose predecessor never comes is looked at after seconds; one whose predecessor comes waits for it."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from infra.orchestration import event_order


def event(follows: uuid.UUID | None = None) -> Any:
    from prefect.server.events.schemas.events import ReceivedEvent

    return ReceivedEvent(
        occurred=datetime.now(UTC), event="x", resource={"prefect.resource.id": "y"}, id=uuid.uuid4(), follows=follows
    )


async def handled(order: Any, one: Any) -> list[uuid.UUID]:
    """The ids of the events that are looked at when this one comes."""
    from prefect.server.events.ordering import EventArrivedEarly

    seen: list[uuid.UUID] = []

    async def handle(event: Any, depth: int = 0) -> None:
        try:
            async with order.preceding_event_confirmed(handle, event, depth):
                seen.append(event.id)
        except EventArrivedEarly:
            pass

    await handle(one)
    return seen


def test_an_event_waits_for_the_one_that_it_follows() -> None:
    async def both() -> None:
        order, first = event_order.CausalOrdering(str(uuid.uuid4())), event()
        second = event(first.id)
        assert await handled(order, second) == []
        assert await order.get_lost_followers() == []
        assert await handled(order, first) == [first.id, second.id]
        assert order.waiting == {}

    asyncio.run(both())


def test_it_waits_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_order, "LEADER_SECONDS", 0.0)

    async def lost() -> None:
        order = event_order.CausalOrdering(str(uuid.uuid4()))
        pending = event(uuid.uuid4())  # it follows what never comes
        crashed = event(pending.id)
        assert await handled(order, pending) == await handled(order, crashed) == []
        found = await order.get_lost_followers()
        assert [e.id for e in found] == [pending.id, crashed.id]
        assert [await handled(order, e) for e in found] == [[pending.id], [crashed.id]]
        assert (await order.get_lost_followers(), order.waiting, order.given_up) == ([], {}, set())

    asyncio.run(lost())


def test_the_server_that_rowmill_starts_uses_it(prefect_server: Any) -> None:
    settings = httpx.get(f"{prefect_server.api_url}/admin/settings").json()
    assert settings["server"]["events"]["causal_ordering"] == "infra.orchestration.event_order"
