"""The good versions of an output and their profiles: what a batch is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tasks.errors import RowmillError
from tasks.gate.figures import Key, compute_figures
from tasks.profile.output_profile import PROFILE, Profile, read_profile
from tasks.storage import own_files
from tasks.storage.atomic import read_json
from tasks.storage.own_files import MANIFEST, SPLITS

MOST_VERSIONS = 60
DISCARDED = "_discarded.json"  # marks a version that was taken back: it is not a good version


@dataclass(frozen=True)
class Past:
    """A good version: its name, its run date (None for a job without dates), and the profile of what it read."""

    version: str
    day: date | None
    profile: Profile

    @property
    def weekday(self) -> int | None:
        """The weekday of its run date, 0 (Monday) .. 6 (Sunday)."""
        return self.day.weekday() if self.day else None

    @cached_property
    def figures(self) -> dict[Key, float]:
        """The single figures of its profile."""
        return compute_figures(self.profile)


class PastVersions(NamedTuple):
    """The versions that a batch is compared with, newest first, and a sentence on each version that is left out."""

    versions: list[Past]
    notes: list[str]


def read_good_versions(
    output: Path, most: int = MOST_VERSIONS, split: str = "", without: Sequence[str] = ()
) -> PastVersions:
    """Read the good versions of an output, at most `most`.

    Good versions are published, not marked as discarded, and have a readable profile. An output without versions counts
    as one. `split` is that of a job with `source.valid`; `without` names versions that do not count. Only manifests and
    profiles are read; `verify` checks the parts.
    """
    past: list[Past] = []
    notes: list[str] = []
    for folder in list_versions(output):
        if len(past) == most:
            break
        if folder.name in without:
            continue
        if (folder / DISCARDED).exists():
            notes.append(f"{folder.name} is left out: it is discarded")
            continue
        inner = folder / split if split else folder
        try:
            profile = read_profile(inner)
        except RowmillError as error:
            notes.append(f"{folder.name} is left out: {error.what}: {error.why or error.where}")
            continue
        if profile is None:
            notes.append(f"{folder.name} is left out: it has no {PROFILE}")
            continue
        past.append(Past(folder.name, _read_run_date(read_json(inner / MANIFEST)), profile))
    return PastVersions(past, notes)


def list_versions(output: Path) -> list[Path]:
    """List the published versions in an output's folder, newest first; the folder itself if it has no versions."""
    if any((output / place / MANIFEST).is_file() for place in ("", SPLITS[0])):
        return [output]
    versions = reversed(own_files.versions_of(output))
    return [path for path in versions if any((path / place / MANIFEST).is_file() for place in ("", SPLITS[0]))]


def _read_run_date(manifest: object) -> date | None:
    """Read the run date of a version from its manifest."""
    dated = manifest.get("dated") if isinstance(manifest, dict) else None
    try:
        return datetime.fromisoformat(dated["date"]).date() if isinstance(dated, dict) else None
    except (KeyError, TypeError, ValueError):
        return None
