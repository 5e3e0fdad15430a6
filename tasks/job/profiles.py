"""The profiles of a run: written to its staging folder by statistics and transform, read by the gate and the commit."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.core.dtypes import parse_dtype
from tasks.core.plan import RETYPED, Plan
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError
from tasks.graph import row_sample
from tasks.graph.binding import Bound, Step
from tasks.graph.evaluation import describe_step
from tasks.graph.failed_casts import Record
from tasks.graph.seen import Seen
from tasks.job.request import Request
from tasks.profile.associations import associations
from tasks.profile.column_figures import make_column_profiles
from tasks.profile.output_profile import PROFILE, Profile, StepProfile
from tasks.storage.atomic import read_json, write_text
from tasks.storage.checksum import digest

STATISTICS = "profile-statistics.json"  # in the staging folder: what statistics read


def whole_name(split: str) -> str:
    """Name the file of the staging folder with the profile of all columns of a split.

    >>> whole_name(""), whole_name("valid")
    ('profile.json', 'profile-valid.json')
    """
    return f"profile-{split}.json" if split else "profile.json"


def profile_of(
    seen: Seen, bound: Bound, failed: Sequence[Record], plan: Plan, source_types: Mapping[str, str]
) -> Profile:
    """Make the profile of the rows that a pass has seen.

    It has the steps that met something or in which casts failed. `source_types` are those of all columns of the source.
    A column that is an integer in the fit and a float in this plan has the type of this plan (`RETYPED`).
    """
    types = {name: bound.source[name].dtype for name in seen.columns}
    types |= {name: parse_dtype(dtype) for name, dtype in plan.options.get(RETYPED, {}).items() if name in types}
    columns = make_column_profiles(types, seen.columns, seen.sample, seen.step)
    repeated, compared = row_sample.measure_repeated_share(seen.hashes)
    # Without rows to compare there is no sample to associate columns in.
    pairs, associated = associations(seen.sample) if compared else ({}, 0)
    profile = Profile(seen.rows, columns, _steps(seen, bound, failed), seen.seconds)
    return replace(
        profile,
        repeated=repeated,
        compared=compared,
        associations=pairs,
        associated=associated,
        source=source_types,
    )


def _steps(seen: Seen, bound: Bound, failed: Sequence[Record]) -> dict[str, StepProfile]:
    by_key: dict[str, Step] = {step.key: step for step in bound.steps.values()}
    casts: dict[str, int] = {}  # failed rows by the text of `describe_step`, which records name a step by
    for record in failed:
        casts[record["entry"]] = casts.get(record["entry"], 0) + record["rows"]
    profiles = {}
    for key, step in by_key.items():
        met = seen.met.get(key, {})
        failed_rows = casts.pop(describe_step(step), 0)
        if met or failed_rows:
            profiles[key] = StepProfile(
                key,
                type(step.op).__name__,
                tuple(step.unit),
                rows=met.get("rows", seen.rows),
                out_of_vocabulary=met.get("out_of_vocabulary"),
                unmatched=met.get("unmatched"),
                failed_casts=failed_rows,
            )
    for entry, rows in casts.items():  # of `source.filter` and filters of the graph
        profiles[entry] = StepProfile(entry, entry.partition(" of ")[0], (), seen.rows, failed_casts=rows)
    return profiles


def save(request: Request, name: str, profile: Profile, fingerprint: str) -> None:
    """Write a profile into the staging folder, with the fingerprint of the work that made it."""
    write_text(request.staging.folder / name, profile.text(fingerprint=fingerprint))


def load_profile(request: Request, name: str, fingerprint: str = "") -> Profile | None:
    """Load a profile of the staging folder by its name; None if there is none, or one of another fingerprint."""
    path = request.staging.folder / name
    try:
        status = path.stat()
    except OSError:
        return None
    saved_fingerprint, profile = _parse_profile(path, status.st_mtime_ns, status.st_size)
    return None if fingerprint and saved_fingerprint != fingerprint else profile


@functools.lru_cache(maxsize=4)  # stages of a process ask for a profile again and again
def _parse_profile(path: Path, changed: int, size: int) -> tuple[Any, Profile | None]:
    """Parse a file: (its fingerprint, its profile); None if it is damaged. `changed` and `size` are for the cache."""
    content = read_json(path)
    if not isinstance(content, dict):
        return None, None
    try:
        return content.get("fingerprint"), Profile.from_json(content, path)
    except DataError:
        return None, None


def publish_profile(request: Request, split: str, folder: Path) -> list[JsonObject]:
    """Write `_profile.json` into the folder of a split that is published, and return its record for the manifest.

    [] if run.profile is off, or if the split has no readable profile.
    """
    whole = request.staging.folder / whole_name(split)
    content = read_json(whole) if request.run.profile else None
    if not isinstance(content, dict):
        return []
    try:
        Profile.from_json(content, whole)
    except DataError:
        return []
    path = folder / PROFILE
    write_text(path, json.dumps({name: value for name, value in content.items() if name != "fingerprint"}))
    return [{"path": PROFILE, "bytes": path.stat().st_size, "xxh3_128": digest(path)}]
