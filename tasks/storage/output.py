"""A published output as one value: what its folder says of itself is read on first use, and once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tasks.core.strict_json import JsonObject
from tasks.storage.atomic import read_json, read_record
from tasks.storage.discarded import is_discarded
from tasks.storage.own_files import CHANGES, FITTED, MANIFEST, WORKFLOW, find_description, versions_of


class BaseNote(NamedTuple):
    """What an output says of its base: the name of the version, and the digest of its state; "" if unknown."""

    version: str
    state: str

    def means(self, state: str) -> bool:
        """Whether this is the base with a state; a digest that cannot be read may be any."""
        return not self.state or not state or self.state == state


@dataclass(frozen=True)
class PublishedOutput:
    """An output, a version of one, or a fitted workflow, by its folder.

    What is published does not change, so that it is read once for each value; only the mark of `rowmill discard` may
    come at any time, and is looked for anew. A note that cannot be read is as one that is not there: `verify` says what
    is wrong with it.
    """

    path: Path

    @classmethod
    def around(cls, folder: Path) -> PublishedOutput:
        """The output of a folder that may be that of one of its splits."""
        return cls(folder if (folder / WORKFLOW).exists() else folder.parent)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_discarded(self) -> bool:
        return is_discarded(self.path)

    @cached_property
    def manifest(self) -> JsonObject:
        """What its manifest, or that of its train, says; {} without one."""
        described = find_description(self.path)
        return read_record(described) if described and described.name == MANIFEST else {}

    @cached_property
    def workflow(self) -> Path:
        """The folder of its fitted workflow."""
        return self.path if (self.path / FITTED).exists() else self.path / WORKFLOW

    @cached_property
    def fitted(self) -> JsonObject:
        """What the `workflow.json` of its fitted workflow says; {} without one."""
        return read_record(self.workflow / FITTED)

    @cached_property
    def base(self) -> BaseNote:
        """The version that it was learned on top of; empty texts for one without a base."""
        if not self.manifest:
            changes = read_json(self.workflow / CHANGES)
            return BaseNote(str(changes.get("base", "")) if isinstance(changes, dict) else "", "")
        note = self.manifest.get("base")
        if not isinstance(note, dict):
            return BaseNote("", "")
        return BaseNote(str(note.get("version", "")), str(note.get("state", "")))

    @property
    def state(self) -> str:
        """The digest of the state that it has learned; "" if it cannot be read."""
        return str(self.fitted.get("state", ""))

    @property
    def ancestors(self) -> list[str]:
        """The digests of the states that it was learned on top of, the newest first."""
        return [str(state) for state in self.fitted.get("ancestors", ())]

    @property
    def batches(self) -> list[JsonObject]:
        """The batches that its fitted workflow has learned, the oldest first."""
        batches: list[JsonObject] = (self.fitted.get("history") or {}).get("nights") or []
        return batches

    @property
    def has_ids(self) -> bool:
        """Whether it has learned ids; one that does not say so counts as if it had."""
        return not self.batches or bool(self.batches[-1].get("ids", True))

    @cached_property
    def versions(self) -> tuple[PublishedOutput, ...]:
        """The versions in its folder, the oldest first; () for an output without."""
        return tuple(PublishedOutput(path) for path in versions_of(self.path))


def of_other_ids(versions: Sequence[PublishedOutput]) -> list[PublishedOutput]:
    """Those of the versions (the oldest first) whose ids are not those of the newest one, since it was not learned on
    top of them and not applied from what they, or a later one, have learned.

    A workflow names the states that it was learned on top of; one of an earlier rowmill, its base alone.
    """
    other: list[PublishedOutput] = []
    bases: dict[str, BaseNote] = {}
    states: set[str] = set()
    for version in reversed(versions):
        state = version.state
        is_ancestor = version.name in bases and bases[version.name].means(state)
        if version is versions[-1] or state in states or is_ancestor:
            states |= {state, *version.ancestors}
            if version.base.version:
                bases[version.base.version] = version.base
        elif version.has_ids:
            other.append(version)
    return other[::-1]


def of_begun_ids(versions: Sequence[PublishedOutput]) -> set[str]:
    """The columns of the newest of the versions (the oldest first) whose ids began after the oldest one: where that has
    the column, it was dropped and came back since, and the same id means another value."""
    newest = versions[-1]
    states = newest.ancestors
    oldest = min([states.index(one.state) for one in versions if one.state in states], default=len(states))
    return {name for name, since in newest.fitted.get("ids_since", {}).items() if oldest < since}
