"""The cluster configurations of this host: sections `cluster` by name, in the YAML file that ROWMILL_CLUSTERS names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from infra import bounded_yaml
from infra.clusters.keywords import Keywords
from tasks.errors import near

VARIABLE = "ROWMILL_CLUSTERS"
OF_JOB = ("configuration", "workers", "adapt")  # the keys that a job may set next to the name


def configurations() -> dict[str, Any]:
    """The sections by name, not validated; {} on a host without a file. A ValueError where the file cannot be read."""
    if not (path := os.environ.get(VARIABLE)):
        return {}
    try:
        sections = bounded_yaml.load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{VARIABLE} = {path} cannot be read: {error}") from None
    if not isinstance(sections, dict) or not all(isinstance(section, dict) for section in sections.values()):
        raise ValueError(f"{VARIABLE} = {path} is not a map of names to sections `cluster`")
    return {str(name): section for name, section in sections.items()}


def configuration(data: Mapping[str, Any]) -> Keywords:
    """The section of the name in `data`; a ValueError for an unknown name, and for keys of `data` that only the host
    may set."""
    if refused := [key for key, value in data.items() if value is not None and key not in OF_JOB]:
        raise ValueError(f"the host sets all but the number of workers of a configuration: leave out `{refused[0]}`")
    name = str(data["configuration"])
    sections = configurations()
    if name not in sections:
        hint = near(name, list(sections)) if sections else f"set {VARIABLE} to a YAML file of names and sections"
        raise ValueError(f"this host has no cluster configuration {name!r}: {hint}")
    if "configuration" in sections[name]:
        raise ValueError(f"the configuration {name} of this host names another one: write its keys there")
    return dict(sections[name])
