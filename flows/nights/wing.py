"""What run dates add to a run."""

from __future__ import annotations

from flows.nights.base import BasePlugin
from flows.nights.late import ReadyByPlugin
from flows.nights.run_dates import BegunDatesPlugin, RunDatePlugin

PLUGINS = (RunDatePlugin, BasePlugin)
FLOW_PLUGINS = (ReadyByPlugin, BegunDatesPlugin)
