"""The plugins of this wing."""

from __future__ import annotations

from flows.lake.plugins import TableOutputPlugin, TableSourcePlugin

PLUGINS = (TableSourcePlugin, TableOutputPlugin)
