"""The command `publish`, and how a night of which the gate asks is discarded: the two answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.arguments import StorageOptions
from flows.commands.console import terminal
from flows.commands.outputs_on_stores import open_output
from flows.run.announcements import send_waiting
from tasks.core.strict_json import JsonObject
from tasks.core.wings import need_wing
from tasks.errors import JobError

if TYPE_CHECKING:
    from tasks.gate.question import Answer, Question
    from tasks.storage.staging import Staging

Out = Annotated[str, typer.Argument(metavar="OUT", help="output path of the run that asks, or its staging folder")]
Scratch = Annotated[
    Path | None, typer.Option("--scratch", help="run.scratch of the job, if no note next to the output has it")
]
Who = Annotated[str | None, typer.Option("--who", help="who answers; user and host if left out")]


def publish(out: Out, scratch: Scratch = None, who: Who = None, storage_options: StorageOptions = None) -> None:
    """Publish a night that waits for an answer of the gate: its run resumes from finished work.

    If a run of a deployment waits in Prefect, it resumes where it is served. Any other night is finished here, by a new
    run with the same job and date. The first answer counts; without one, the run is stopped after run.ask_timeout.

    Events of the output that the Prefect server has not received, because a run was killed or the server was away, are
    sent first.

    [bold]Examples[/bold]

      rowmill publish out/nightly
    """
    from tasks.gate.question import answer_question

    need_wing("flows/gate", "rowmill publish")
    with open_output(out, storage_options) as folder:
        sent = send_waiting([folder])
        for line in sent:
            terminal().print(line, soft_wrap=True, markup=False)
        try:
            staging, question = question_of(folder, scratch)
        except JobError:
            if sent:
                return
            raise
        name = who or _somebody()
        if _answer_waiting_run(question, "publish", name):
            return
        if staging.in_use():
            raise _busy(question)
        finish(staging, answer_question(staging.folder, "publish", name))


def discard_batch(out: Path, scratch: Path | None = None, who: str | None = None, why: str = "") -> None:
    """Throw away the work of a night of which the gate asks; those who hear of it hear why."""
    from tasks.gate.question import answer_question

    staging, question = question_of(out, scratch)
    name = f"{who or _somebody()}{f': {why}' if why else ''}"
    if _answer_waiting_run(question, "discard", name):
        return
    from flows.gate.judging import note_question_event
    from tasks.errors import GateStoppedError

    with staging.hold_lock():
        note_question_event(question, "discarded", GateStoppedError(f"{question.batch_text} was discarded by {name}"))
        answer_question(staging.folder, "discard", name)
        staging.clean()
    send_waiting([staging.target])
    terminal().print(f"discarded {question.batch_text}: its work is removed", soft_wrap=True, markup=False)


def question_of(out: Path, scratch: Path | None = None) -> tuple[Staging, Question]:
    """(the staging folder, the question in it) of an output; a JobError where there is none."""
    from tasks.gate.question import QUESTION, read_question
    from tasks.storage.own_files import VERSION
    from tasks.storage.staging import Staging

    inside = read_question(out) if (out / QUESTION).is_file() else None
    if inside is not None:
        noted = (out / "target.json").is_file()
        staging = Staging(inside.output, Path(os.path.realpath(out)).parent if noted else None)
    else:
        staging = Staging(out, scratch)
    elsewhere = None if read_question(staging.folder) else staging.asks_in
    if elsewhere is not None:
        staging = Staging(out, elsewhere.parent)
    question = read_question(staging.folder)
    if question is None:
        why = ""
        do = "give the output path of the run that asks; if its job sets run.scratch, add --scratch FOLDER"
        if elsewhere is not None:
            why = "the folder in which a night waited is gone from this host"
            do = "run that night again"
        elif VERSION.fullmatch(out.name):
            why = "this names a version; its output is the folder above"
            do = f"name the output: {out.parent}"
        raise JobError("nothing waits for an answer here", where=str(staging.folder), why=why, do=do)
    return staging, question


def _somebody() -> str:
    from tasks.gate.question import name_user

    return name_user()


def _busy(question: Question) -> JobError:
    from tasks.storage.output_mirror import address_of

    what = f"a run is working on {question.batch_text}"
    do = "wait for it to end, then try again"
    return JobError(what, where=address_of(question.output), do=do)


def _answer_waiting_run(question: Question, answer: Answer, who: str) -> bool:
    """Tell whether the run that asks waits in Prefect, and has the answer now. A JobError if it has another one."""
    from tasks.gate.question import check_first_answer

    check_first_answer(question, answer)
    if question.deployment is None or question.answer is not None:
        return False
    from flows.gate.questions import answer_of_form
    from infra.orchestration.server import ensure_server, flow_run_url
    from tasks.gate.question import Answered, make_already_answered_error, make_too_late_error

    console = terminal()
    server = ensure_server(console.print)
    page = flow_run_url(server.ui_url, question.run)
    state = _state_of(question)
    waits = state is not None and (state.is_paused() or state.is_scheduled())
    if waits and not _deployment_exists(question.deployment):
        _cancel(question.run)
        state = _state_of(question)
        console.print("the deployment of the run that asks is gone, so nothing would resume it", soft_wrap=True)
    if state is not None and state.is_paused():
        if question.is_expired:
            raise make_too_late_error(question)
        if _resume(question, answer, who):
            console.print(f"answered  {answer}: {question.batch_text}", soft_wrap=True, markup=False)
            console.print(f"run       {page}; it goes on where it is served", soft_wrap=True)
            return True
        state = _state_of(question)
    form = answer_of_form(question)
    if form is not None and form.answer != answer:
        from dataclasses import replace

        first = Answered(form.answer, form.who or "somebody", "the form of the run")
        raise make_already_answered_error(replace(question, answer=first))
    if question.is_expired:
        raise make_too_late_error(question)
    if state is not None and not state.is_final():
        if form is None:
            raise _busy(question)
        console.print(f"answered already: {answer}; run {page}", soft_wrap=True, markup=False)
        return True
    why = "is gone from the server" if state is None else f"is {state.name}"
    console.print(f"the run that asks {why}: {page}", soft_wrap=True, markup=False)
    return False


def _state_of(question: Question) -> Any:
    """The state of the run that asks; None where the server has no such run, or has one that did not ask this."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(question.run)  # type: ignore[arg-type]
        except ObjectNotFound:
            return None
    has_asked = question.key in (getattr(run.empirical_policy, "pause_keys", None) or ())
    is_of_deployment = run.deployment_id is None or str(run.deployment_id) == question.deployment
    return run.state if has_asked and is_of_deployment else None


def _deployment_exists(deployment: str) -> bool:
    """Tell whether the deployment is still there: without it nothing resumes its runs."""
    from uuid import UUID

    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            client.read_deployment(UUID(deployment))
        except ObjectNotFound:
            return False
    return True


def _cancel(run: str) -> None:
    """Cancel a flow run that nothing would resume."""
    from uuid import UUID

    from prefect import get_client
    from prefect.states import Cancelled

    with get_client(sync_client=True) as client:
        why = "its deployment is gone; it was answered by a command"
        client.set_flow_run_state(UUID(run), Cancelled(message=why), force=True)


def _resume(question: Question, answer: Answer, who: str) -> bool:
    """Whether the paused run took the answer; False if another answer was faster."""
    from uuid import UUID

    from prefect import get_client
    from prefect.client.schemas.responses import SetStateStatus

    with get_client(sync_client=True) as client:
        response = client.resume_flow_run(UUID(question.run), run_input={"answer": answer, "who": who})
    return bool(response.status == SetStateStatus.ACCEPT)


def finish(staging: Staging, question: Question) -> None:
    """Finish the work of a question that was answered with publish, by a run of this process.

    The job is that of a note, and who can write next to the output can change it. So it has the limits of a run of a
    deployment, and is a job for this very work.
    """
    from flows.commands.console import is_debugging
    from flows.commands.launch import launch, make_importable
    from flows.job.access import limit_runs

    data: JsonObject = dict(question.parameters)
    if question.date is not None:
        data["run"] = {**data.get("run", {}), "date": question.date}
    make_importable(Path.cwd())
    with limit_runs():
        _check_noted(staging, question, data)
        launch(data, f"flows.{question.flow}", _flow(question.flow), terminal(), is_debugging())


def _check_noted(staging: Staging, question: Question, data: JsonObject) -> None:
    """A JobError unless the job of a question is one for the work in a staging folder, runs nobody's code, and means
    the same here as where it was started."""
    from flows.job.access import LIMITS, relative_paths
    from flows.job.refit_job import maker_of
    from tasks.storage.staging import Staging

    again = "start the job again as it was started: the night is accepted, and the run goes on"
    try:
        job = maker_of(question.flow)(data)
    except JobError as error:
        raise JobError(
            error.what,
            where=error.where,
            why=f"the job is that of a note in {staging.folder}, which is not believed; {error.why}",
            do=f"{again}; or, if the job is yours, set what it needs before the command ({', '.join(LIMITS)})",
        ) from None
    graph = job.graph() if hasattr(job, "graph") else None
    if Path.cwd() != Path(question.folder) and (relative := relative_paths(job, graph)):
        raise JobError(
            f"the job of this night has the relative path {relative[0]}",
            where=str(staging.folder),
            why=f"it was started in {question.folder}, and this is {Path.cwd()}",
            do=f"cd {question.folder}, then give the command again; or {again}",
        )
    if Staging.of(job.output, job.run).folder != staging.folder:
        raise JobError(
            "the job of this night writes to another output",
            where=str(staging.folder),
            why=f"the note says {job.output.path}, and somebody has changed it",
            do=again,
        )


def _flow(name: str) -> Callable[[], Any]:
    def load() -> Callable[..., Any]:
        from importlib import import_module

        return getattr(import_module(f"flows.{name}"), name)

    return load
