"""The gate's note on a run: its verdicts, and what a person has accepted; in the staging folder and in the output."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tasks.core.strict_json import JsonObject
from tasks.gate.question import FORMAT, Answered, GateStage, Question
from tasks.gate.verdict import Finding, Verdict, choose_outcome
from tasks.profile.output_profile import Profile
from tasks.storage.atomic import read_json, write_json
from tasks.storage.documents import Form, Number, dump_document, parse_document
from tasks.storage.own_files import GATE

NOTE = "gate.json"  # in the staging folder


@dataclass(frozen=True)
class Accepted(Answered):
    """The findings of a stage that a person has accepted; `of` is the digest of the profile that had them."""

    stage: GateStage
    of: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class GateNote:
    """The verdicts of a run by stage, and what people have accepted; `stopped` if the gate has ended the run."""

    verdicts: Mapping[GateStage, Verdict] = field(default_factory=dict)
    accepted: tuple[Accepted, ...] = ()
    stopped: bool = False

    @property
    def gate(self) -> str:
        """The result in one phrase: pass, warn, stop, ask, or published by hand."""
        if self.stopped:
            return "stop"
        verdict = self.verdicts.get("commit") or self.verdicts.get("statistics")  # that of commit covers all columns
        worst = choose_outcome(self.remaining(verdict.findings)) if verdict else "pass"
        return "published by hand" if self.accepted and worst in ("pass", "warn") else worst

    def remaining(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the findings that have not been accepted.

        Once a check of a column is accepted, all its figures are.
        """
        names = {(one.column, one.check) for entry in self.accepted for one in entry.findings}
        return [one for one in findings if one.level != "ask" or (one.column, one.check) not in names]

    def with_verdict(self, stage: GateStage, verdict: Verdict) -> GateNote:
        return replace(self, verdicts={**self.verdicts, stage: verdict})

    def with_answer(self, question: Question) -> GateNote:
        """Add the findings of a question that was answered with publish."""
        assert question.answer is not None
        open_ = tuple(one for one in question.verdict.findings if one.level == "ask")
        entry = Accepted(**vars(question.answer), stage=question.stage, of=question.of, findings=open_)
        return replace(self, accepted=(*self.accepted, entry))

    def as_stopped(self) -> GateNote:
        return replace(self, stopped=True)

    def to_json(self) -> JsonObject:
        data = {name: value for name, value in dump_document(self).items() if name != "stopped"}
        return {"format": FORMAT, "gate": self.gate, **data}


class _StoredNote(Form):
    """The content of the file of a note."""

    format: Number
    gate: Literal["pass", "warn", "stop", "ask", "published by hand"]
    verdicts: dict[GateStage, Verdict]
    accepted: tuple[Accepted, ...] = ()


def _read_note_file(path: Path) -> GateNote | None:
    data = read_json(path)
    if data is None:
        return None
    stored = parse_document(_StoredNote, data, path)
    return GateNote(stored.verdicts, stored.accepted, stored.gate == "stop")


def read_note(folder: Path) -> GateNote:
    """Read the note in a staging folder; an empty one if it has none. A DataError if the file is damaged."""
    return _read_note_file(folder / NOTE) or GateNote()


def read_gate(folder: Path) -> GateNote | None:
    """Read the note in an output; None if it has none. A DataError if the file is damaged."""
    return _read_note_file(folder / GATE)


def write_note(folder: Path, note: GateNote) -> None:
    write_json(folder / NOTE, note.to_json())


def is_stopped(folder: Path) -> bool:
    """Return whether the gate has stopped the work in a staging folder, which then makes room for other work."""
    data = read_json(folder / NOTE)
    return isinstance(data, dict) and data.get("gate") == "stop"


def compute_profile_digest(profile: Profile) -> str:
    """Compute the sha256 of what a profile says of the rows; the time that it took is left out."""
    data = profile.to_json() | {"seconds": 0}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
