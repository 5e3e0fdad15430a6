"""What the report adds to a run."""

from __future__ import annotations

from flows.report.plugins import ReportPlugin, StagePagesPlugin

PLUGINS = (StagePagesPlugin, ReportPlugin)
