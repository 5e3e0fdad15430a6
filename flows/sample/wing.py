"""What look-alike data add to a run."""

from __future__ import annotations

from flows.sample.plugin import SamplesPlugin

PLUGINS = (SamplesPlugin,)
