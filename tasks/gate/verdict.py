"""The gate's judgement of a batch: findings, each a sentence, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from tasks.errors import visible
from tasks.storage.documents import Figure, Value

FORMAT = 1
ORDER = ("pass", "warn", "ask", "stop")  # the worst finding counts: a run that is stopped asks nothing
Outcome = Literal["pass", "warn", "stop", "ask"]
Level = Literal["warn", "stop", "ask"]


@dataclass(frozen=True)
class Finding:
    """A check that fails: its `figure` is more than its `threshold`.

    `column` is the name of the column, the columns of a step, or "" for the rows. `now` and `before` are the values
    of this batch and of the last good version, or the limit of the contract (numbers, texts or None). `text` is one
    sentence for people; `files` are those in which the change begins, if known.
    """

    column: str
    check: str
    now: Value
    before: Value
    figure: Figure
    threshold: Figure
    level: Level
    text: str
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", visible(self.text))  # column names may have any character


@dataclass(frozen=True)
class Verdict:
    """The verdict on a batch: pass, warn, stop or ask, by its worst finding (stop before ask before warn).

    `compared_with` names the versions that it was compared with, newest first. `proposed` has the thresholds of checks
    that follow from the good versions: {check: {column: threshold}}, the column "" for the rows. `notes` say what could
    not be checked.
    """

    verdict: Outcome
    findings: tuple[Finding, ...]
    compared_with: list[str] = field(default_factory=list)
    proposed: dict[str, dict[str, Figure]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    format: int = FORMAT


def choose_outcome(findings: Sequence[Finding]) -> Outcome:
    """Choose the outcome by the worst finding.

    >>> choose_outcome([])
    'pass'
    """
    worst = max((ORDER.index(finding.level) for finding in findings), default=0)
    return cast(Outcome, ORDER[worst])
