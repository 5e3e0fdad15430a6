"""The gate of a run: judges its rows after statistics and again before the rename; warns, stops, or asks a person.

What it decides is announced in two ways. `rowmill.gate.stopped` is a Prefect event of the run, sent at once, for
automations that look at runs. An event of the output (`note_event`) is noted in the outbox next to the output and sent
by `deliver`, so that those who follow the output hear of it even if the server is away for a while.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from prefect import get_run_logger
from prefect.context import FlowRunContext
from prefect.events import emit_event

from flows.job.refit_job import AnyJob
from flows.job.run_calendar import find_published_outputs
from flows.run.announcements import deliver, note_event
from flows.run.artifacts import later, write_markdown, write_table
from flows.run.links import flow_run_id
from tasks.core.redaction import plain_url
from tasks.core.stage_results import StageResult
from tasks.core.wings import from_wing
from tasks.errors import GateAskedError, GateStoppedError, RowmillError
from tasks.gate.decide import GateDecision, decide, judge
from tasks.gate.earlier_outputs import MOST_VERSIONS, Past, PastVersions, read_good_versions
from tasks.gate.locate import add_files
from tasks.gate.notes import GateNote, compute_profile_digest, read_note, write_note
from tasks.gate.question import FORMAT, GateStage, Question, ask, now, read_question
from tasks.gate.verdict import Finding, Verdict
from tasks.gate.verdict_text import tabulate_findings, write_verdict_markdown
from tasks.job.profiles import STATISTICS, load_profile, whole_name
from tasks.job.request import Request, SavedPlans, output_slug
from tasks.job.run_date import is_pattern
from tasks.profile.output_profile import Profile
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.storage.documents import dump_document
from tasks.storage.output_mirror import address_of

STOPPED = "rowmill.gate.stopped"  # the event of a run that the gate stops
SENTENCES = 5  # findings that a message names


class Judged(NamedTuple):
    """A verdict with the profiles that its report shows."""

    verdict: Verdict
    profile: Profile  # the one that was judged
    before: Profile | None = None  # that of the last good version


class GatePlugin(RunPlugin):
    """Judges the rows of a run when they have been learned from, and again before they are published."""

    place: ClassVar[int] = 80

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def after(self, run: CurrentRun, result: StageResult) -> None:
        if result.stage == "statistics":
            run_gate(self.job, run.request, "statistics")

    def before_commit(self, run: CurrentRun) -> None:
        if run.request.flow != "fit":  # which reads nothing after its statistics
            run_gate(self.job, run.request, "commit")
        note = read_note(run.request.staging.folder)
        if note.verdicts:
            run.gate = note.to_json()


def run_gate(job: AnyJob, request: Request, stage: GateStage) -> None:
    """Judge the rows of the current run; log what the gate finds, show it as an artifact and note it in staging.

    GateStoppedError where it stops the run, GateAskedError where a person must answer first. A person is asked once, of
    all findings: after the last stage, when all columns have been read. What was accepted of these very rows passes.
    """
    judged = judge_run(job, request, stage)
    if judged is None:
        return
    log = get_run_logger()
    verdict = judged.verdict
    profile_digest = compute_profile_digest(judged.profile)
    decision = decide(_read_valid_note(request, stage, profile_digest), stage, verdict)
    write_note(request.staging.folder, decision.note)
    _log_findings(request, verdict, decision)
    if verdict.findings or stage == "commit":
        later(lambda: _write_artifacts(request.key, stage, decision.note, judged), f"{request.key}-gate")
    if decision.level == "stop":
        raise _announce_stop(job, request, stage, decision.findings, profile_digest)
    if decision.level == "ask" and not _has_read_all(request, stage):
        log.warning("gate: whether to publish is asked once all columns are read")
    elif decision.level == "ask":
        raise _ask_person(_make_question(job, request, stage, verdict, profile_digest), request)


def _log_findings(request: Request, verdict: Verdict, decision: GateDecision) -> None:
    log = get_run_logger()
    for finding in decision.findings:
        log.warning("gate: %s (checks.%s)", finding.text, finding.check)
    if explanation := _explain_only_warned(request, verdict, decision):
        log.warning("gate: %s", explanation)
    if by_hand := len(verdict.findings) - len(decision.findings):
        log.warning("gate: %s finding(s) were accepted by hand", by_hand)


def _announce_stop(
    job: AnyJob, request: Request, stage: GateStage, findings: Sequence[Finding], profile_digest: str
) -> GateStoppedError:
    """Announce that the gate stops a run; return the error with which it ends."""
    output = request.staging.target
    facts = _collect_event_facts(job, stage)
    refusal = make_stop_error(job, request, findings)
    _emit_stopped_event(str(output), findings, facts)
    _note_output_event("refused", str(output), profile_digest, {**facts, "text": refusal.what, "why": refusal.why})
    deliver([output])
    return refusal


def _ask_person(question: Question, request: Request) -> GateAskedError:
    """Put a question into the staging folder and announce it; return the error with which its run ends."""
    error = make_asked_error(question)
    note_question_event(question, "waiting", error)  # before the question is open: no open question lacks its event
    ask(request.staging, question)
    deliver([request.staging.target])
    return error


def judge_run(job: AnyJob, request: Request, stage: GateStage) -> Judged | None:
    """Judge the rows that a run has read so far; return None where no profile of them was taken."""
    profile = read_profile(request, stage)
    if profile is None:
        return None
    past, notes = find_past_versions(job, request)
    # a job that has changed since may number its nodes otherwise
    past = [replace(version, profile=version.profile.with_keys_of(profile)) for version in past]
    day = job.dated.run_date.day if job.dated else None
    verdict = judge(profile, past, request.rules, request.gate, day)
    verdict = replace(verdict, notes=(*verdict.notes, *notes))
    before = past[0].profile if past else None
    if verdict.findings:
        plan = SavedPlans(request).plan(request.splits[0])
        verdict = add_files(verdict, plan, profile, before, request.rules, request.source.filter, plain_url)
    return Judged(verdict, profile, before)


def find_past_versions(job: AnyJob, request: Request) -> PastVersions:
    """Find the good versions that a run is compared with: those of its output, or, where the path of the output holds a
    date, the outputs of earlier run dates."""
    split = request.splits[0]
    pattern = str(job.as_written()["output"]["path"])
    if job.dated is None or not is_pattern(pattern):
        return read_good_versions(request.staging.target, split=split)
    outputs = find_published_outputs(pattern, Path.cwd(), options=job.output.storage_options)
    earlier_days = [day for day in outputs if day < job.dated.run_date.day]
    past: list[Past] = []
    notes: list[str] = []
    for day in sorted(earlier_days, reverse=True)[:MOST_VERSIONS]:
        path = outputs[day].path
        of_day = read_good_versions(path, 1, split)
        past += [replace(version, version=str(path)) for version in of_day.versions]
        notes += of_day.notes
    return PastVersions(past, notes)


def read_profile(request: Request, stage: GateStage) -> Profile | None:
    """Read the profile of the rows that a run learns from, as far as it is known after a stage; None without one."""
    name = STATISTICS if stage == "statistics" else whole_name(request.splits[0])
    return load_profile(request, name) if request.run.profile else None


def _has_read_all(request: Request, stage: GateStage) -> bool:
    """Tell whether all columns have been read after a stage: a fit reads nothing after its statistics."""
    return stage == "commit" or request.flow == "fit"


def make_stop_error(job: AnyJob, request: Request, findings: Sequence[Finding]) -> GateStoppedError:
    """Make the error of a run that the gate stops; it names the findings that stop it."""
    stops = [finding for finding in findings if finding.level == "stop"]
    others = f"; {len(findings) - len(stops)} more finding(s) do not stop it" if len(findings) > len(stops) else ""
    return GateStoppedError(
        f"the gate stopped {_name_run(job, request)}: nothing is published",
        where=request.staging.address,
        why=_join_sentences(stops) + others,
        do=f"fix the data, or, if they are correct, set {_level_keys(stops)} to warn; the same job then goes on from "
        "what is done",
    )


def _level_keys(findings: Sequence[Finding]) -> str:
    """List the job keys of the levels of these findings' checks."""
    return ", ".join(dict.fromkeys(f"checks.{finding.check}.level" for finding in findings))


def _explain_only_warned(request: Request, verdict: Verdict, decision: GateDecision) -> str:
    """Explain in a line why findings only warn for now, although they will do more once there are enough good versions
    to compare with; "" if that holds for none of them."""
    versions = len(verdict.compared_with)
    level = request.gate.on_finding
    waiting = [
        finding
        for finding in decision.findings
        if finding.level == "warn" and request.gate.check(finding.check).level is None
    ]
    if level == "warn" or not waiting or versions >= request.gate.nights:
        return ""
    some = "these findings only warn" if len(waiting) == len(decision.findings) else "some of these findings only warn"
    text = (
        f"{some}, since {versions} of {request.gate.nights} good versions are there to compare with; "
        f"set {_level_keys(waiting)}: {level} to have it count at once"
    )
    if decision.level != "warn":  # it is not published, at least not yet
        return text
    name = "" if request.output.on_existing != "version" else "/VERSION"
    return f"{text}; to take the output back once it is published: rowmill discard {request.staging.address}{name}"


def make_asked_error(question: Question) -> GateAskedError:
    """Make the error of a run that waits for an answer."""
    return GateAskedError(
        f"the gate asks whether to publish {question.batch_text}",
        where=address_of(question.output),
        why=_join_sentences(question.verdict.findings),
        do=f"answer it before {question.until}: {question.commands}",
    )


def announce_unanswered(question: Question) -> None:
    """Send the events of a question whose time is over: of the run that is stopped, and of its output."""
    findings = question.verdict.findings
    why = "no answer came within run.ask_timeout"
    facts = {"date": question.date, "stage": question.stage, "why": why}
    _emit_stopped_event(question.output, findings, {**facts, "run": question.run, "until": question.until})
    note_question_event(question, "refused", GateStoppedError(f"{question.batch_text} was stopped", why=why))
    deliver([Path(question.output)])


def note_question_event(question: Question, what: str, error: RowmillError) -> None:
    """Note an event about a question (waiting, refused, discarded) next to its output; `deliver` sends it."""
    facts = {"date": question.date, "stage": question.stage, "run": question.run, "until": question.until}
    _note_output_event(what, question.output, question.of, {**facts, "text": error.what, "why": error.why})


def _note_output_event(what: str, output: str, profile_digest: str, payload: Mapping[str, Any]) -> None:
    identity = (output, profile_digest, payload["stage"], payload["run"])  # the same rows in the same run: one event
    note_event(what, Path(output), identity, payload)


def _collect_event_facts(job: AnyJob, stage: GateStage) -> dict[str, Any]:
    return {"date": job.dated.run_date.day.isoformat() if job.dated else None, "stage": stage, "run": flow_run_id()}


def _read_valid_note(request: Request, stage: GateStage, profile_digest: str) -> GateNote:
    """Read the note of the staging folder, reduced to what people have accepted of these very rows.

    People accept a whole profile, which after statistics is known only if an earlier start has read all columns. Then
    what was accepted of it is not reported again now; whether the rows are still the same is decided at the commit.
    """
    folder = request.staging.folder
    note = read_note(folder)
    question = read_question(folder)
    whole_profile = None if _has_read_all(request, stage) else read_profile(request, "commit")
    whole_digest = compute_profile_digest(whole_profile) if whole_profile else profile_digest
    valid = tuple(entry for entry in note.accepted if entry.of == whole_digest)
    verdicts = {} if stage == "statistics" else note.verdicts
    note = GateNote(verdicts, valid)
    if question is None or question.answer is None or question.answer.answer != "publish":
        return note
    if question.of in {entry.of for entry in valid}:  # the answer is in the note
        return note
    if question.of == whole_digest:
        return note.with_answer(question)
    if question.stage == stage:
        get_run_logger().warning("gate: the answer of %s does not count: it was for other rows", question.answer.who)
    return note


def _make_question(job: AnyJob, request: Request, stage: GateStage, verdict: Verdict, profile_digest: str) -> Question:
    context = FlowRunContext.get()
    deployment = getattr(context.flow_run, "deployment_id", None) if context else None
    asked_at = now()
    until = datetime.fromisoformat(asked_at) + timedelta(seconds=job.run.ask_timeout)
    return Question(
        flow=request.flow,
        parameters={name: value for name, value in job.as_written().items() if value is not None},
        date=job.dated.run_date.text if job.dated else None,
        run=flow_run_id(),
        deployment=str(deployment) if deployment else None,
        stage=stage,
        verdict=verdict,
        of=profile_digest,
        key=f"gate-{stage}-{uuid.uuid4().hex[:8]}",
        output=str(request.staging.target),
        folder=str(Path.cwd()),
        asked_at=asked_at,
        until=until.isoformat(timespec="seconds"),
        answer=None,
        format=FORMAT,
    )


def _emit_stopped_event(output: str, findings: Sequence[Finding], facts: Mapping[str, Any]) -> None:
    columns = list(dict.fromkeys(finding.column for finding in findings))
    documents = [dump_document(finding) for finding in findings]
    payload = {"output": output, "columns": columns, "findings": documents, **facts}
    emit_event(STOPPED, {"prefect.resource.id": f"rowmill.output.{output_slug(output)}"}, payload=payload)


def _write_artifacts(key: str, stage: GateStage, note: GateNote, judged: Judged) -> None:
    """Write the verdict as artifacts of the run: a page with plots, and a table."""
    verdict = note.verdicts[stage]
    draw = from_wing("tasks/report", "verdict_section", "draw_distribution_url")
    text = write_verdict_markdown(stage, note, judged.profile, judged.before, draw)
    description = f"The gate after {stage}: {verdict.verdict}, {len(verdict.findings)} finding(s)"
    write_markdown(f"{key}-gate", text, description)
    if rows := tabulate_findings(verdict.findings):
        write_table(f"{key}-gate-table", rows, description)


def _name_run(job: AnyJob, request: Request) -> str:
    date = f" of {job.dated.run_date.day}" if job.dated else ""
    return f"the run{date} to {request.staging.target.name}"


def _join_sentences(findings: Sequence[Finding]) -> str:
    texts = [finding.text for finding in findings]
    more = f"; and {len(texts) - SENTENCES} more" if len(texts) > SENTENCES else ""
    return "; ".join(texts[:SENTENCES]) + more
