"""The plugins of the wings that this installation has: each wing lists its own in a module `wing`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from flows.job.refit_job import AnyJob
from flows.run.flow_plugin import FlowPlugin
from tasks.core.wings import WINGS, absent_wing, has_wing
from tasks.run.plugin import RunPlugin

log = logging.getLogger("rowmill")


def run_plugins(job: AnyJob) -> list[RunPlugin]:
    """Return the plugins of all wings for a run of a job."""
    return [plugin(job) for wing in _wings() for plugin in getattr(wing, "PLUGINS", ())]


def flow_plugins() -> list[FlowPlugin]:
    """Return the plugins of all wings for a flow run, in their order."""
    plugins: list[FlowPlugin] = [plugin() for wing in _wings() for plugin in getattr(wing, "FLOW_PLUGINS", ())]
    return sorted(plugins, key=lambda plugin: plugin.place)


def _wings() -> Iterator[ModuleType]:
    """Yield the modules that list plugins. A wing that needs another one, which is not there, is left out, too."""
    for folder in WINGS:
        module = f"{folder.replace('/', '.')}.wing"
        if not has_wing(folder) or find_spec(module) is None:
            continue
        try:
            yield import_module(module)
        except ModuleNotFoundError as error:
            absent = absent_wing(error, folder)
            if absent is None:
                raise
            log.warning("%s is left out: %s", folder, absent.why)
