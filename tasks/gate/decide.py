"""The decision of the gate: from the profile of a batch to findings and a verdict, and to what becomes of the run.

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
from tasks.gate.verdict import Finding, Outcome, Verdict, choose_outcome
from tasks.profile.output_profile import Profile

LEVELS = {"stop": 0, "ask": 1, "warn": 2}  # the order of findings: the worst first


def judge(
    profile: Profile,
    history: Sequence[Past],
    contract: Contract | None,
    settings: Checks,
    day: date | None = None,
) -> Verdict:
    """Judge a batch of the run date `day`. `history` are the good versions, newest first."""
    batch = BatchChecks(profile, list(history), settings, day)
    findings: list[Finding] = []
    notes: list[str] = []
    if contract is not None and (level := batch.choose_level("contract", len(history) + settings.nights)):
        checked = check_values(profile, contract, level)
        findings += checked.findings
        notes += checked.notes
    findings += batch.check_columns(contract)
    findings += batch.check_constants()
    findings += batch.check_figures()
    findings += batch.check_distributions()
    findings += batch.check_new_values()
    findings += batch.check_vanished_values()
    findings += batch.check_associations([one for one in findings if one.check == "swapped"])
    findings += batch.check_duplicates(findings)
    chosen = [one for one in findings if batch.is_column_of_check(one.check, one.column)]
    chosen.sort(key=lambda one: (LEVELS[one.level], one.check != "rows", -_severity(one), one.check, one.column))
    notes += batch.notes
    proposed = {check: dict(sorted(by.items())) for check, by in sorted(batch.proposed.items())}
    versions = [past.version for past in history[:WINDOW]]
    return Verdict(choose_outcome(chosen), tuple(chosen), versions, proposed, tuple(dict.fromkeys(notes)))


def _severity(finding: Finding) -> float:
    return finding.figure / finding.threshold if finding.threshold else math.inf


@dataclass(frozen=True)
class GateDecision:
    """What becomes of a run."""

    level: Outcome  # of the worst finding
    findings: list[Finding]  # those of the verdict that have not been accepted
    note: GateNote  # the run's note with the verdict


def decide(note: GateNote, stage: GateStage, verdict: Verdict) -> GateDecision:
    """Decide after a stage whether a run goes on, stops or waits for an answer; `note` has what was accepted before."""
    note = note.with_verdict(stage, verdict)
    findings = note.remaining(verdict.findings)
    level = choose_outcome(findings)
    return GateDecision(level, findings, replace(note, stopped=level == "stop"))
