"""The order in which the server looks at events: one that follows another waits for it seconds, not 15 minutes.

Prefect's setting `server.events.causal_ordering` names this module; infra/orchestration/server.py sets it for the
server that it starts. An event says which one it follows, and automations see it after that one. The state in which the
scheduler makes a run has no event: what follows it, and all that follows that (Pending, Running, Crashed), waits for 15
minutes in Prefect, as does what follows an event of before the server's last start.
"""

from __future__ import annotations

import time
from uuid import UUID

from prefect.server.events.ordering import memory
from prefect.server.events.schemas.events import ReceivedEvent

LEADER_SECONDS = 10.0


class CausalOrdering(memory.CausalOrdering):
    """Prefect's own, which gives up an event that has not come after `LEADER_SECONDS`."""

    waiting: dict[UUID, tuple[float, ReceivedEvent]]  # since when
    given_up: set[UUID]  # events that do not wait any more

    def __init__(self, scope: str) -> None:
        super().__init__(scope)
        if not hasattr(self, "waiting"):  # there is one object for each scope
            self.waiting, self.given_up = {}, set()

    async def record_follower(self, event: ReceivedEvent) -> None:
        await super().record_follower(event)
        self.waiting[event.id] = (time.monotonic(), event)

    async def forget_follower(self, follower: ReceivedEvent) -> None:
        await super().forget_follower(follower)
        self.waiting.pop(follower.id, None)

    async def get_lost_followers(self) -> list[ReceivedEvent]:
        """The events that have waited long enough; the server calls this every few seconds."""
        now = time.monotonic()
        lost = [event for since, event in list(self.waiting.values()) if now - since >= LEADER_SECONDS]
        for event in lost:
            await self.forget_follower(event)
            self.given_up.add(event.id)
        return sorted(lost, key=lambda event: event.occurred)

    async def wait_for_leader(self, event: ReceivedEvent) -> None:
        if event.id in self.given_up:
            self.given_up.discard(event.id)
            return
        await super().wait_for_leader(event)
