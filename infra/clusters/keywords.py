"""Keyword arguments as jobs and presets give them to classes of clusters and workers."""

from __future__ import annotations

from typing import Any, TypeAlias

Keywords: TypeAlias = dict[str, Any]  # name of an argument -> its value, as the class takes it
