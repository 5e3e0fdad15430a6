"""Plugins of installed packages: those that the host names are made anew for each run, others are not imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tasks.errors import HostError, near
from tasks.run.plugin import RunPlugin

GROUP = "rowmill.plugins"
VARIABLE = "ROWMILL_PLUGINS"


def load_installed_plugins(log: Any) -> list[RunPlugin]:
    """The plugins that `ROWMILL_PLUGINS` names, in its order; nothing is imported of a plugin that it does not name.

    Raises:
        HostError: No package has a plugin of a name, two have it, or it cannot be made.
    """
    names = re.split(r"[,\s]+", os.environ.get(VARIABLE, ""))
    return [_make(point, log) for name in names if name for point in _points(name)]


def _points(name: str) -> Iterator[EntryPoint]:
    """Yield the entry point of a plugin."""
    points = entry_points(group=GROUP)
    offers = [point for point in points if point.name == name]
    if not offers:
        raise HostError(
            f"there is no plugin {name!r}",
            where=f"{VARIABLE} of this host",
            why="no installed package has an entry point of this name",
            do=near(name, sorted(points.names)) or f"install its package where the flow runs, or correct {VARIABLE}",
        )
    if len(offers) > 1:
        raise HostError(
            f"two packages have a plugin {name!r}",
            where="; ".join(map(_describe_entry_point, offers)),
            do="uninstall one of the two",
        )
    yield offers[0]


def _make(point: EntryPoint, log: Any) -> RunPlugin:
    """Import a plugin and make one for this run."""
    try:
        plugin = point.load()()
    except (Exception, SystemExit) as error:  # whatever the code of a package raises
        raise _make_plugin_error(point, f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    if not isinstance(plugin, RunPlugin):
        raise _make_plugin_error(point, f"{point.value} is not a subclass of rowmill.RunPlugin")
    log.info("plugin %s of %s", point.name, _describe_entry_point(point))
    return plugin


def _make_plugin_error(point: EntryPoint, why: str) -> HostError:
    return HostError(
        f"the plugin {point.name!r} cannot be used",
        where=_describe_entry_point(point),
        why=why,
        do=f"fix its package, or leave its name out of {VARIABLE}",
    )


def _describe_entry_point(point: EntryPoint) -> str:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
    return f"package {package}, entry point {point.name} = {point.value} of {GROUP}"
