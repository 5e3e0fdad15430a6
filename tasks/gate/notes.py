"""What the gate has said of a run: its verdicts, and what a person has accepted; in staging and in the output."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.gate.profile import Profile
from tasks.gate.question import FORMAT, GateStage, Question
from tasks.gate.verdict import ORDER
from tasks.storage.atomic import read_json, write_json
from tasks.storage.metadata_forms import check_form
from tasks.storage.own_files import GATE

NOTE = "gate.json"  # in the staging folder


@dataclass(frozen=True)
class GateNote:
    """The verdicts of a run by stage, and what people have `accepted`: answer, who, when, the stage, the digest `of`
    the profile that was judged, and the findings."""

    verdicts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    accepted: Sequence[Mapping[str, Any]] = ()
    stopped: bool = False

    @property
    def gate(self) -> str:
        """In one word: pass, warn, stop, ask, or published by hand."""
        if self.stopped:
            return "stop"
        open_ = [level_of(self.remaining(verdict["findings"])) for verdict in self.verdicts.values()]
        worst = max(open_, key=ORDER.index, default="pass")
        return "published by hand" if self.accepted and worst in ("pass", "warn") else worst

    def remaining(self, findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The findings that nobody has accepted: of a column and a check that were accepted no other figure counts."""
        names = {(one["column"], one["check"]) for entry in self.accepted for one in entry["findings"]}
        return [one for one in findings if one["level"] != "ask" or (one["column"], one["check"]) not in names]

    def with_verdict(self, stage: GateStage, verdict: Mapping[str, Any]) -> GateNote:
        return replace(self, verdicts={**self.verdicts, stage: verdict})

    def with_answer(self, question: Question) -> GateNote:
        """The note with the findings of a question that was answered with publish."""
        assert question.answer is not None
        entry = {**question.answer, "stage": question.stage, "of": question.of,
                 "findings": [one for one in question.verdict["findings"] if one["level"] == "ask"]}  # fmt: skip
        return replace(self, accepted=(*self.accepted, entry))

    def as_stopped(self) -> GateNote:
        return replace(self, stopped=True)

    def to_json(self) -> dict[str, Any]:
        data = {name: value for name, value in asdict(self).items() if name != "stopped"}
        return {"format": FORMAT, "gate": self.gate, **data, "accepted": [*self.accepted]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GateNote:
        return GateNote(data["verdicts"], tuple(data.get("accepted", ())), data["gate"] == "stop")


def level_of(findings: Sequence[Mapping[str, Any]]) -> str:
    """The worst level of findings; pass without any."""
    return max((str(one["level"]) for one in findings), key=ORDER.index, default="pass")


def read_note(folder: Path) -> GateNote:
    """The note in a staging folder; an empty one without it. A DataError if the file is damaged."""
    data = read_json(folder / NOTE)
    if data is None:
        return GateNote()
    check_form(data, "gate", folder / NOTE)
    return GateNote.from_json(data)


def read_gate(folder: Path) -> GateNote | None:
    """The note in an output; None without one. A DataError if the file is damaged."""
    data = read_json(folder / GATE)
    if data is None:
        return None
    check_form(data, "gate", folder / GATE)
    return GateNote.from_json(data)


def write_note(folder: Path, note: GateNote) -> None:
    write_json(folder / NOTE, note.to_json())


def is_stopped(folder: Path) -> bool:
    """Whether the gate has stopped the work in a staging folder: it waits for nobody, and makes room for other work."""
    data = read_json(folder / NOTE)
    return isinstance(data, dict) and data.get("gate") == "stop"


def digest_of(profile: Profile) -> str:
    """The sha256 of what a profile says of the rows, whatever time it took."""
    data = profile.to_json() | {"seconds": 0}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
