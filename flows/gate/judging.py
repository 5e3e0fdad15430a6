"""The gate of a run: judges its rows after statistics and again before the rename; warns, stops, or asks a person."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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
from tasks.gate.earlier_outputs import MOST_VERSIONS, Past, PastVersions, good_versions
from tasks.gate.locate import with_files
from tasks.gate.notes import GateNote, digest_of, read_note, write_note
from tasks.gate.question import FORMAT, GateStage, Question, ask, now, read_question
from tasks.gate.verdict import Finding, Verdict
from tasks.gate.verdict_text import verdict_markdown, verdict_rows
from tasks.job.profiles import STATISTICS, load_profile, whole_name
from tasks.job.request import PlanOf, Request, output_slug
from tasks.job.run_date import is_pattern
from tasks.profile.output_profile import Profile
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.storage.documents import dump_document

STOPPED = "rowmill.gate.stopped"  # the event of a run that the gate stops
SENTENCES = 5  # findings that a message names


class Judged(NamedTuple):
    """A verdict, the profile that was judged, and that of the last good version."""

    verdict: Verdict
    profile: Profile
    before: Profile | None = None


class GatePlugin(RunPlugin):
    """Judges the rows of a run when they have been learned from, and again before they are published."""

    place: ClassVar[int] = 80

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def after(self, run: CurrentRun, result: StageResult) -> None:
        if result.stage == "statistics":
            pass_gate(self.job, run.request, "statistics")

    def before_commit(self, run: CurrentRun) -> None:
        if run.request.flow != "fit":  # which reads nothing after its statistics
            pass_gate(self.job, run.request, "commit")
        note = read_note(run.request.staging.folder)
        if note.verdicts:
            run.gate = note.to_json()


def pass_gate(job: AnyJob, request: Request, stage: GateStage) -> None:
    """Judge the rows of the current run: log, artifact and the note in the staging folder say what the gate finds.

    GateStoppedError where it stops the run, GateAskedError where a person must answer first. A person is asked once, of
    all findings: after the last stage, when all columns have been read. What was accepted of these very rows passes.
    """
    judged = judge_run(job, request, stage)
    if judged is None:
        return
    folder = request.staging.folder
    log = get_run_logger()
    verdict = judged.verdict
    of = digest_of(judged.profile)
    decision = decide(_read_valid_note(request, stage, of), stage, verdict)
    write_note(folder, decision.note)
    for one in decision.findings:
        log.warning("gate: %s (checks.%s)", one.text, one.check)
    if line := _only_warned(request, verdict, decision):
        log.warning("gate: %s", line)
    if by_hand := len(verdict.findings) - len(decision.findings):
        log.warning("gate: %s finding(s) were accepted by hand", by_hand)
    if verdict.findings or stage == "commit":
        later(lambda: _show(request.key, stage, decision.note, judged), f"{request.key}-gate")
    if decision.level == "stop":
        _tell_stopped(job, request, stage, decision.findings)
        refusal = make_stop_error(job, request, decision.findings)
        _put_in(
            "refused", str(request.staging.target), of, {**_facts(job, stage), "text": refusal.what, "why": refusal.why}
        )
        deliver([request.staging.target])
        raise refusal
    if decision.level == "ask" and not _has_read_all(request, stage):
        log.warning("gate: whether to publish is asked once all columns are read")
    elif decision.level == "ask":
        question = _question(job, request, stage, verdict, of)
        put_question(question, "waiting", asks(question))
        ask(request.staging, question)
        deliver([request.staging.target])
        raise asks(question)


def judge_run(job: AnyJob, request: Request, stage: GateStage) -> Judged | None:
    """The verdict on the rows that a run has read so far; None where no profile of them was taken."""
    profile = read_profile(request, stage)
    if profile is None:
        return None
    past, notes = find_past_versions(job, request)
    past = [replace(night, profile=night.profile.with_keys_of(profile)) for night in past]
    day = job.dated.run_date.day if job.dated else None
    verdict = judge(profile, past, request.rules, request.gate, day)
    verdict = replace(verdict, notes=(*verdict.notes, *notes))
    before = past[0].profile if past else None
    if verdict.findings:
        plan = PlanOf(request).plan(request.splits[0])
        verdict = with_files(verdict, plan, profile, before, request.rules, request.source.filter, plain_url)
    return Judged(verdict, profile, before)


def find_past_versions(job: AnyJob, request: Request) -> PastVersions:
    """The good versions that a run is compared with: those of its output, or, where the path of the output holds a
    date, the outputs of the nights before."""
    split = request.splits[0]
    written = str(job.as_written()["output"]["path"])
    if job.dated is None or not is_pattern(written):
        return good_versions(request.staging.target, split=split)
    nights = find_published_outputs(written, Path.cwd())
    past: list[Past] = []
    notes: list[str] = []
    for day in sorted((day for day in nights if day < job.dated.run_date.day), reverse=True)[:MOST_VERSIONS]:
        of_day = good_versions(nights[day].path, 1, split)
        past += [replace(night, version=str(nights[day].path)) for night in of_day.versions]
        notes += of_day.notes
    return PastVersions(past, notes)


def read_profile(request: Request, stage: GateStage) -> Profile | None:
    """The profile of the rows that a run learns from, as far as it is known after a stage; None without one."""
    name = STATISTICS if stage == "statistics" else whole_name(request.splits[0])
    return load_profile(request, name) if request.run.profile else None


def _has_read_all(request: Request, stage: GateStage) -> bool:
    """Whether the profile of a stage is the whole one: nothing is read after the statistics of a fit."""
    return stage == "commit" or request.flow == "fit"


def make_stop_error(job: AnyJob, request: Request, findings: Sequence[Finding]) -> GateStoppedError:
    """The error of a run that the gate stops; it names the findings that do."""
    stops = [one for one in findings if one.level == "stop"]
    others = f"; {len(findings) - len(stops)} more finding(s) do not stop it" if len(findings) > len(stops) else ""
    return GateStoppedError(
        f"the gate stopped {_name_run(job, request)}: nothing is published",
        where=str(request.staging.target),
        why=_sentences(stops) + others,
        do=f"fix the data, or, if they are correct, set {_levels(stops)} to warn; the same job then goes on from "
        "what is done",
    )


def _levels(findings: Sequence[Finding]) -> str:
    """The keys of the levels of these findings' checks."""
    return ", ".join(dict.fromkeys(f"checks.{one.check}.level" for one in findings))


def _only_warned(request: Request, verdict: Verdict, decision: GateDecision) -> str:
    """Why findings only warn that would do more once there are enough good versions, in a line; "" if none does."""
    nights = len(verdict.compared_with)
    level = request.gate.on_finding
    waiting = [one for one in decision.findings if one.level == "warn" and request.gate.check(one.check).level is None]
    if level == "warn" or not waiting or nights >= request.gate.nights:
        return ""
    some = "these findings only warn" if len(waiting) == len(decision.findings) else "some of these findings only warn"
    text = (
        f"{some}, since {nights} of {request.gate.nights} good versions are there to compare with; "
        f"set {_levels(waiting)}: {level} to have it count at once"
    )
    if decision.level != "warn":  # it is not published, at least not yet
        return text
    name = "" if request.output.on_existing != "version" else "/VERSION"
    return f"{text}; to take the output back once it is published: rowmill discard {request.staging.target}{name}"


def asks(question: Question) -> GateAskedError:
    """The error of a run that waits for an answer."""
    return GateAskedError(
        f"the gate asks whether to publish {question.batch_text}",
        where=question.output,
        why=_sentences(question.verdict.findings),
        do=f"answer it before {question.until}: {question.commands}",
    )


def stop_unanswered(question: Question) -> None:
    """Send the event of a question whose time is over."""
    findings = question.verdict.findings
    why = "no answer came within run.ask_timeout"
    payload = {"date": question.date, "stage": question.stage, "why": why}
    _emit(question.output, findings, {**payload, "run": question.run, "until": question.until})
    put_question(question, "refused", GateStoppedError(f"{question.batch_text} was stopped", why=why))
    deliver([Path(question.output)])


def put_question(question: Question, what: str, error: RowmillError) -> None:
    """Put the event of a night of which the gate asks, or asked, beside its output; `deliver` sends it."""
    payload = {"date": question.date, "stage": question.stage, "run": question.run, "until": question.until}
    _put_in(what, question.output, question.of, {**payload, "text": error.what, "why": error.why})


def _put_in(what: str, output: str, of: str, payload: Mapping[str, Any]) -> None:
    identity = (output, of, payload["stage"], payload["run"])
    note_event(what, Path(output), identity, payload)


def _facts(job: AnyJob, stage: GateStage) -> dict[str, Any]:
    return {"date": job.dated.run_date.day.isoformat() if job.dated else None, "stage": stage, "run": flow_run_id()}


def _read_valid_note(request: Request, stage: GateStage, of: str) -> GateNote:
    """The note of the staging folder, with what people have accepted of these very rows.

    They have accepted the whole profile. After statistics it is that of an earlier start, if any: what was accepted
    there is not reported again; whether the rows are still the same is decided once all of them are read.
    """
    folder = request.staging.folder
    note = read_note(folder)
    question = read_question(folder)
    whole = None if _has_read_all(request, stage) else read_profile(request, "commit")
    digest = digest_of(whole) if whole else of
    valid = tuple(entry for entry in note.accepted if entry.of == digest)
    verdicts = {} if stage == "statistics" else note.verdicts
    note = GateNote(verdicts, valid)
    if question is None or question.answer is None or question.answer.answer != "publish":
        return note
    if question.of in {entry.of for entry in valid}:
        return note
    if question.of == digest:
        return note.with_answer(question)
    if question.stage == stage:
        get_run_logger().warning("gate: the answer of %s does not count: it was for other rows", question.answer.who)
    return note


def _question(job: AnyJob, request: Request, stage: GateStage, verdict: Verdict, of: str) -> Question:
    context = FlowRunContext.get()
    deployment = getattr(context.flow_run, "deployment_id", None) if context else None
    asked_at = datetime.now(UTC)
    until = (asked_at + timedelta(seconds=job.run.ask_timeout)).isoformat(timespec="seconds")
    return Question(
        flow=request.flow,
        parameters={name: value for name, value in job.as_written().items() if value is not None},
        date=job.dated.run_date.text if job.dated else None,
        run=flow_run_id(),
        deployment=str(deployment) if deployment else None,
        stage=stage,
        verdict=verdict,
        of=of,
        key=f"gate-{stage}-{uuid.uuid4().hex[:8]}",
        output=str(request.staging.target),
        folder=str(Path.cwd()),
        asked_at=now(),
        until=until,
        answer=None,
        format=FORMAT,
    )


def _tell_stopped(job: AnyJob, request: Request, stage: GateStage, findings: Sequence[Finding]) -> None:
    _emit(str(request.staging.target), findings, _facts(job, stage))


def _emit(output: str, findings: Sequence[Finding], more: Mapping[str, Any]) -> None:
    columns = list(dict.fromkeys(one.column for one in findings))
    payload = {"output": output, "columns": columns, "findings": [dump_document(one) for one in findings], **more}
    emit_event(STOPPED, {"prefect.resource.id": f"rowmill.output.{output_slug(output)}"}, payload=payload)


def _show(key: str, stage: GateStage, note: GateNote, judged: Judged) -> None:
    """Write the verdict as an artifact of the run: a page with plots, and a table."""
    verdict = note.verdicts[stage]
    draw = from_wing("tasks/report", "verdict_section", "distribution_url")
    text = verdict_markdown(stage, note, judged.profile, judged.before, draw)
    description = f"The gate after {stage}: {verdict.verdict}, {len(verdict.findings)} finding(s)"
    write_markdown(f"{key}-gate", text, description)
    if rows := verdict_rows(verdict.findings):
        write_table(f"{key}-gate-table", rows, description)


def _name_run(job: AnyJob, request: Request) -> str:
    date = f" of {job.dated.run_date.day}" if job.dated else ""
    return f"the run{date} to {request.staging.target.name}"


def _sentences(findings: Sequence[Finding]) -> str:
    texts = [one.text for one in findings]
    more = f"; and {len(texts) - SENTENCES} more" if len(texts) > SENTENCES else ""
    return "; ".join(texts[:SENTENCES]) + more
