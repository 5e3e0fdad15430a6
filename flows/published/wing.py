"""What events and collectors add to a run."""

from __future__ import annotations

from flows.published.observers import CollectorsPlugin
from flows.published.plugins import EventsPlugin, OutboxPlugin

PLUGINS = (CollectorsPlugin, EventsPlugin)
FLOW_PLUGINS = (OutboxPlugin,)
