"""Questions of the gate in a run: it pauses in Prefect until it is answered, and nothing else touches its work."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal
from uuid import UUID

from prefect import get_client, get_run_logger
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound, Pause, PrefectHTTPStatusError
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.input.run_input import Keyset, keyset_from_base_key
from prefect.states import Cancelled, Scheduled, State
from pydantic import Field

from flows.gate.judging import announce_unanswered, note_question_event
from flows.job.refit_job import AnyJob
from flows.run.announcements import deliver
from flows.run.flow_plugin import CurrentFlow, Ended, FlowPlugin, NoOutputError
from flows.run.links import flow_run_id
from flows.run.listeners import folder_of_work
from flows.run.stopping import stop_workers
from flows.run.work_of_job import end_published, output_of, staging_folders, staging_of
from infra.orchestration.server import ui_url
from tasks.core.markdown import escape_markdown, markdown_table
from tasks.errors import GateAskedError, GateStoppedError, OpenQuestionError
from tasks.gate.notes import is_stopped, read_note, write_note
from tasks.gate.question import (
    Question,
    answer_question,
    end_question,
    lock_answers,
    make_open_question_error,
    read_question,
)
from tasks.gate.verdict_text import tabulate_findings
from tasks.job.request import output_slug
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.storage.staging import Staging

ASKED = "rowmill.gate.asked"  # the event of a run that waits for an answer
WAKE_SECONDS = 2.0  # between two looks of a waiting command at the question
AGAIN_SECONDS = 60.0  # after which a run of a deployment looks again
SHOWN = 12  # findings in the form
log = logging.getLogger("rowmill")


class DiscardedError(NoOutputError):
    """The answer was discard: the work of this run is thrown away."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Cancelled(message=text))


class PublishOrDiscard(RunInput):
    """The form of a question."""

    answer: Literal["publish", "discard"] = Field(description="publish the output, or throw it away")
    who: str = Field("", description="your name; it goes into _gate.json of the output")


class QuestionPlugin(RunPlugin):
    """Settles what the gate has asked of the work in the staging folder, before a run goes on with it."""

    place: ClassVar[int] = 20

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def begin(self, run: CurrentRun) -> None:
        settle_question(run.request.staging)


class AnswersPlugin(FlowPlugin):
    """Has a flow run wait for an answer where the gate asks, and go on from the top when it is there.

    A run of a deployment pauses until then: this process ends, and nothing is held meanwhile.
    """

    place: ClassVar[int] = 10

    def around(self, flow: CurrentFlow, run: Callable[[], Ended]) -> Ended:
        own = flow.own
        if has_asked() and not _has_work(own):
            return _end_without_work(own)
        while True:
            try:
                return run()
            except GateAskedError:
                pause_for_answer()
                raise
            except OpenQuestionError as error:
                wait_for_answer(own, error)

    def may_finish(self, staging: Staging) -> bool:
        if is_stopped(staging.folder):
            return False
        question = read_question(staging.folder)
        if question is None or question.run == flow_run_id():
            return True
        if question.is_open:
            raise make_open_question_error(question)
        if question.is_expired:
            close_unanswered(staging, question)
            return False
        return True


def _has_work(own: AnyJob) -> bool:
    """Whether the work of a run that has asked is still there: its own, or that of a date that it was to finish."""
    for folder in staging_folders(own):
        question = read_question(folder)
        if question is not None and question.run == flow_run_id():
            return True
    return (staging_of(own).folder / "plan.json").exists()


def _end_without_work(own: AnyJob) -> State[list[str]]:
    """Return the state of a run that has asked and whose work is gone when it goes on."""
    if there := output_of(own):
        return end_published(own, there)
    text = "its work is gone: another run has published it, or it was discarded"
    get_run_logger().warning("%s", text)
    return Cancelled(message=text)


def settle_question(staging: Staging) -> None:
    """Look at the question in the staging folder of this run, which has the lock.

    An OpenQuestionError where it is another run's and still open. Its own is open no more: the answer of the form is
    noted; DiscardedError where that is discard. A question whose time is over ends in stop.
    """
    _look_elsewhere(staging)
    question = read_question(staging.folder)
    if question is None:
        return
    own = question.run == flow_run_id()
    if question.answer is None and own:
        if (form := answer_of_form(question)) is None:  # tried again by hand, before anybody answered
            end_question(staging)
            return
        question = answer_question(staging.folder, form.answer, form.who or "somebody at the form of the run")
    if question.is_open:
        raise make_open_question_error(question)
    if question.is_expired:
        close_unanswered(staging, question)
    elif question.answer and question.answer.answer == "discard":
        text = f"{question.batch_text} was discarded by {question.answer.who} at {question.answer.when}"
        note_question_event(question, "discarded", GateStoppedError(text))
        staging.clean()
        deliver([staging.target])
        if own:
            get_run_logger().warning("%s", text)
            raise DiscardedError(text)
        log.warning("%s; its work is removed", text)
        staging.open()


def _look_elsewhere(staging: Staging) -> None:
    """An OpenQuestionError where a night of this output waits in another scratch folder; a warning where the folder in
    which it waited is gone, and the night with it."""
    folder = staging.asks_in
    if folder is None:
        return
    question = read_question(folder)
    if question is None:
        text = "a night of %s waited for an answer in %s, which is gone from this host: it is not published"
        log.warning(text, staging.address, folder)
        end_question(staging)
    elif folder != staging.folder and question.is_open:
        raise make_open_question_error(question)


def close_unanswered(staging: Staging, question: Question) -> None:
    """End a question whose time is over: the work counts as stopped, and other work may take its place."""
    with lock_answers(staging.folder):
        if read_question(staging.folder) is None:  # another run has just done so
            return
        write_note(staging.folder, read_note(staging.folder).as_stopped())
        end_question(staging)
    log.warning("%s was stopped: no answer came by %s", question.batch_text, question.until)
    announce_unanswered(question)


def answer_of_form(question: Question) -> PublishOrDiscard | None:
    """Return the answer in the form of the run that asks; None before that, and where the server has no such
    run."""
    with get_client(sync_client=True) as client:
        try:
            text = client.read_flow_run_input(UUID(question.run), _keys(question)["response"])
        except ObjectNotFound:
            return None
        except PrefectHTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            return None
    answer = json.loads(text) if isinstance(text, str) else text
    return PublishOrDiscard(**answer)


def pause_for_answer() -> None:
    """Suspend the current run until its question is answered: this process ends, and nothing is held meanwhile.

    Returns at once where the run is not one of a deployment: Prefect can start no other again.
    """
    context = FlowRunContext.get()
    folder = folder_of_work()
    question = read_question(folder) if folder else None
    if context is None or context.flow_run is None or question is None or question.deployment is None:
        return
    stop_workers()
    run = {
        "prefect.resource.id": f"prefect.flow-run.{context.flow_run.id}",
        "prefect.resource.name": context.flow_run.name,
    }
    emit_event(
        ASKED, run, payload={"text": f"{'; '.join(question.findings)}. {question.commands}, or the form of the run"}
    )
    seconds = (datetime.fromisoformat(question.until) - datetime.now(UTC)).total_seconds()
    form: Any = PublishOrDiscard.with_initial_data(description=form_text(question))
    suspend_flow_run(wait_for_input=form, timeout=max(int(seconds), 1), key=question.key)


def form_text(question: Question) -> str:
    """What stands above the form: the findings, and where the plots are."""
    findings = question.verdict.findings
    more = [f"- and {len(findings) - SHOWN} more"] if len(findings) > SHOWN else []
    key = f"{question.flow}-{output_slug(question.output)}-gate"
    rows = [
        {name: row[name] for name in ("column", "yesterday", "today", "threshold")}
        for row in tabulate_findings(findings[:SHOWN])
    ]
    return "\n".join(
        [
            f"**Publish {question.batch_text}?**",
            "",
            *(f"- {escape_markdown(one.text)}" for one in findings[:SHOWN]),
            *more,
            "",
            markdown_table(rows),
            "",
            f"[Yesterday and today, with plots]({ui_url()}/artifacts/key/{key}). Without an answer until "
            f"{question.until} the run is stopped.",
        ]
    )


def wait_for_answer(job: AnyJob, error: OpenQuestionError) -> None:
    """Wait as `run.lock: wait` asks for; raises the error where it does not.

    A run of a deployment holds no place while it waits: it is scheduled again, and this process ends.
    """
    if job.run.lock != "wait":
        raise error
    context = FlowRunContext.get()
    run_log = get_run_logger()
    run_log.warning("waiting, since run.lock is wait: %s", error.what)
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        time.sleep(WAKE_SECONDS)
        return
    again = datetime.now(UTC) + timedelta(seconds=AGAIN_SECONDS)
    state: Any = Scheduled(name="AwaitingAnswer", message=error.what, scheduled_time=again)
    stop_workers()
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(context.flow_run.id, state, force=True)
    raise Pause(state=state)


def has_asked() -> bool:
    """Tell whether the current flow run has paused before for an answer."""
    context = FlowRunContext.get()
    policy = getattr(context.flow_run, "empirical_policy", None) if context else None
    return any(key.startswith("gate-") for key in getattr(policy, "pause_keys", None) or ())


def _keys(question: Question) -> Keyset:
    return keyset_from_base_key(f"suspended-{question.key}")
