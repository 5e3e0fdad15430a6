"""What the gate says of a night: findings, each a sentence, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

from tasks.core.strict_json import decoded, encoded
from tasks.errors import visible

FORMAT = 1
ORDER = ("pass", "warn", "ask", "stop")  # of the worst finding: what stops is not asked
Outcome = Literal["pass", "warn", "stop", "ask"]


@dataclass(frozen=True)
class Finding:
    """One check that fails: `figure` is more than `threshold`.

    `column` is the name of the column, the columns of a step, or "" for the rows. `now` and `before` are the values
    of this night and of the last good one (numbers, texts or None). `text` is one sentence for people; `files` are
    those in which the change begins, as far as that is known.
    """

    column: str
    check: str
    now: Any
    before: Any
    figure: float
    threshold: float
    level: Literal["warn", "stop", "ask"]
    text: str
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", visible(self.text))  # names of columns may have any sign

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = encoded(asdict(self))
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        values = {name: value for name, value in decoded(data).items() if name in cls.__dataclass_fields__}
        return cls(**values | {"files": tuple(values.get("files", ()))})


@dataclass(frozen=True)
class Verdict:
    """What becomes of a night: pass, warn, stop or ask, by its worst finding (stop before ask before warn).

    `compared_with` names the versions that it was compared with, newest first. `proposed` has the thresholds of these
    checks as they follow from the good versions: {check: {column: threshold}}, the column "" for the rows.
    `notes` say what could not be checked.
    """

    verdict: Outcome
    findings: tuple[Finding, ...] = ()
    compared_with: list[str] = field(default_factory=list)
    proposed: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "findings": [finding.to_json() for finding in self.findings],
            "compared_with": list(self.compared_with),
            "proposed": encoded(self.proposed),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        return cls(
            verdict=data["verdict"],
            findings=tuple(Finding.from_json(one) for one in data["findings"]),
            compared_with=list(data.get("compared_with", ())),
            proposed=decoded(data.get("proposed", {})),
            notes=tuple(data.get("notes", ())),
        )


def outcome(findings: Sequence[Finding]) -> Outcome:
    """The outcome that the worst finding asks for.

    >>> outcome([])
    'pass'
    """
    worst = max((ORDER.index(finding.level) for finding in findings), default=0)
    return cast(Outcome, ORDER[worst])
