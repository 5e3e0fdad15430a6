"""The decision of the gate: from a night's profile to findings and a verdict, and to what becomes of the run.

`flows/gate/judging.py` acts on the decision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

from tasks.core.contract import Contract
from tasks.core.settings import Checks
from tasks.gate.checks import BatchChecks
from tasks.gate.contract_values import check_values
from tasks.gate.earlier_outputs import Past
from tasks.gate.expected_range import WINDOW
from tasks.gate.notes import GateNote
from tasks.gate.question import GateStage
from tasks.gate.verdict import Finding, Outcome, Verdict, outcome
from tasks.profile.output_profile import Profile

LEVELS = {"stop": 0, "ask": 1, "warn": 2}


def judge(
    profile: Profile,
    history: Sequence[Past],
    contract: Contract | None,
    settings: Checks,
    day: date | None = None,
) -> Verdict:
    """The verdict on a night of the day `day`. `history` are the good versions, newest first."""
    night = BatchChecks(profile, list(history), settings, day)
    findings: list[Finding] = []
    notes: list[str] = []
    if contract is not None and (level := night.level("contract", len(history) + settings.nights)):
        checked = check_values(profile, contract, level)
        findings += checked.findings
        notes += checked.notes
    findings += night.columns(contract)
    findings += night.constants()
    findings += night.figures()
    findings += night.distributions()
    findings += night.new_values()
    findings += night.check_vanished_values()
    findings += night.associations([one for one in findings if one.check == "swapped"])
    findings += night.duplicates(findings)
    chosen = [one for one in findings if night.is_column_of_check(one.check, one.column)]
    chosen.sort(key=lambda one: (LEVELS[one.level], one.check != "rows", -_severity(one), one.check, one.column))
    notes += night.notes
    proposed = {check: dict(sorted(by.items())) for check, by in sorted(night.proposed.items())}
    versions = [past.version for past in history[:WINDOW]]
    return Verdict(outcome(chosen), tuple(chosen), versions, proposed, tuple(dict.fromkeys(notes)))


def _severity(finding: Finding) -> float:
    return finding.figure / finding.threshold if finding.threshold else math.inf


@dataclass(frozen=True)
class GateDecision:
    """What becomes of a run: `level` is that of the worst of its `findings`, which are those of the verdict that nobody
    has accepted; `note` is the run's note with the verdict."""

    level: Outcome
    findings: list[Finding]
    note: GateNote


def decide(note: GateNote, stage: GateStage, verdict: Verdict) -> GateDecision:
    """Decide after a stage whether a run goes on, stops or waits for an answer; `note` has what was accepted before."""
    note = note.with_verdict(stage, verdict)
    findings = note.remaining(verdict.findings)
    level = outcome(findings)
    return GateDecision(level, findings, replace(note, stopped=level == "stop"))
