"""What rounds of seeded faults share: their numbers, the jobs that they run, and the digests of an output."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from tests.examples import nightly
from tests.faults.jobs import make_job
from tests.tiers import first_round

# Jobs that go different ways through the stages: pieces in memory and on disk, rows by key, folders by value, two
# splits, other formats. All with reports, which are part of an output but not of its bytes.
VARIANTS: dict[str, dict[str, Any]] = {
    "memory": {"run": {"exchange": "memory"}},
    "disk": {"run": {"exchange": "disk"}},
    "keys": {"source": {"keys": ["name"], "sort_by": ["row"]}, "output": {"seed": 3}},
    "by key": {"output": {"shuffle": "key", "keys": ["name"], "sort_by": ["row"]}},
    "csv": {"output": {"format": "csv", "files": 3}},
    "folders": {"output": {"partition_on": ["label"], "files": 2}, "label": [],
                "features": [{"columns": ["x", "label"]}]},
}  # fmt: skip


def variant(name: str, data: Path, out: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """The job of a variant; `sections` are laid over it."""
    merged = dict(VARIANTS[name])
    for section, keys in sections.items():
        merged[section] = {**merged.get(section, {}), **keys}
    merged["run"] = {"report": False, **merged.get("run", {})}
    return make_job(data, out, **merged)


def seeds(few: int, all: int) -> list[Any]:
    """Numbers of rounds: `few` for every run of the suite, the others for `-m nightly`, which begins elsewhere for each
    seed of the session."""
    return [*range(few), *nightly(first_round() + number for number in range(few, all))]


def beside(folder: Path) -> set[str]:
    """The names in a folder of outputs, but for outputs that were replaced and stay for a while."""
    return {path.name for path in folder.iterdir() if not re.match(r"\..+\.rowmill-old", path.name)}


def contents(output: Path) -> dict[str, str]:
    """sha256 of every data file of an output; an output that is not whole has none of these."""
    from tasks.manifest import Manifest

    noted = {part["path"] for part in Manifest.load(output).parts}
    there = {str(p.relative_to(output)): p for p in output.rglob("part-*") if p.is_file()}
    assert noted == set(there), f"{output} is not whole"
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(there.items())}
