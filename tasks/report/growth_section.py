"""The growth of vocabularies from batch to batch, read from the changes that each version of an output has noted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasks.core.strict_json import JsonObject
from tasks.report import svg
from tasks.report.diagram import names_text
from tasks.storage.own_files import CHANGES, VERSION, WORKFLOW

MOST_BATCHES = 60
MOST_CURVES = 8


@dataclass
class Vocabulary:
    """Values with an id: `sizes` before the first known batch, and after each; values that wait for room."""

    columns: str
    sizes: list[int] = field(default_factory=list)
    waiting: int = 0

    @property
    def newcomers(self) -> list[int]:
        return [after - before for before, after in zip(self.sizes, self.sizes[1:], strict=False)]


def describe_growth(folder: Path, target: Path) -> JsonObject:
    """Tabulate the vocabularies that refits let grow, and draw their sizes; {} if there are none.

    folder: where the output's files are. target: where it is or will be: next to it are the versions of the batches
    before, of which those that led to this one are read, 60 at most, as far as they are still there.
    """
    batches = _read_batch_changes(folder, target)
    steps = batches[-1]["steps"] if batches else {}
    rows: list[JsonObject] = []
    curves: JsonObject = {}
    for step in steps.values():
        if step.get("mode") != "appended":
            continue
        one = Vocabulary(names_text(step["columns"], 8), waiting=step.get("waiting", 0))
        known = [same for batch in batches if (same := _find_same_step(batch["steps"].values(), step))]
        one.sizes = [known[0]["old_size"], *(each["new_size"] for each in known)]
        new = one.newcomers
        rows.append(
            {
                "columns": one.columns,
                "before": one.sizes[-2],
                "now": one.sizes[-1],
                "new": new[-1],
                "waiting": one.waiting,
                "nights": len(new),
                "bars": svg.bars(new),
            }
        )
        if one.sizes[0] and len(curves) < MOST_CURVES:
            curves[one.columns] = [(float(number), 100 * size / one.sizes[0]) for number, size in enumerate(one.sizes)]
    return {"rows": rows, "base": batches[-1].get("base", ""), "picture": _draw_sizes(curves)} if rows else {}


def _find_same_step(steps: Iterable[JsonObject], step: JsonObject) -> JsonObject | None:
    """Find the entry of a vocabulary in the changes of another batch; a changed job may have given its step another
    key."""
    same = (one for one in steps if one.get("mode") == "appended" and one["columns"] == step["columns"])
    return next((one for one in same if one["op"] == step["op"]), None)


def _draw_sizes(curves: Mapping[str, svg.Points]) -> str:
    """Draw the sizes by batch in percent of the first; empty for a single batch, of which a curve says nothing."""
    if max((len(points) for points in curves.values()), default=0) < 3:
        return ""
    return svg.lines("values with an id, in % of the first night", curves, "{:g} %".format, unit="")


def _read_batch_changes(folder: Path, target: Path) -> list[JsonObject]:
    """Read the changes of the batches that led to an output, the oldest first."""
    own = next((one for place in (folder, folder.parent) if (one := _read_changes(place))), None)
    if own is None:
        return []
    root = next((place for place in (target, *target.parents[:2]) if _has_versions(place)), target)
    batches = [own]
    while len(batches) < MOST_BATCHES and VERSION.fullmatch(str(batches[-1].get("base", ""))):
        earlier = _read_changes(root / batches[-1]["base"])
        if earlier is None:
            break
        batches.append(earlier)
    return batches[::-1]


def _has_versions(place: Path) -> bool:
    return place.is_dir() and any(VERSION.fullmatch(entry.name) for entry in place.iterdir())


def _read_changes(output: Path) -> JsonObject | None:
    """Read `changes.json` of an output or of a fitted workflow; None if it is missing or unreadable."""
    for folder in (output / WORKFLOW, output):
        try:
            data = json.loads((folder / CHANGES).read_bytes())
        except (OSError, ValueError):
            continue
        return data if isinstance(data, dict) and isinstance(data.get("steps"), dict) else None
    return None
