"""The question of the gate in a staging folder: whether rows with findings are published, and who answered what."""

from __future__ import annotations

import fcntl
import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from tasks.core.settings import FlowName
from tasks.core.strict_json import JsonObject
from tasks.errors import JobError, OpenQuestionError
from tasks.gate.verdict import Verdict
from tasks.storage.atomic import read_json, write_json
from tasks.storage.documents import Moment, Number, dump_document, make_damage_error, parse_document
from tasks.storage.output_mirror import address_of
from tasks.storage.own_files import ASKS
from tasks.storage.staging import Staging, is_work_of

QUESTION = "question.json"  # in the staging folder
FORMAT = 1
Answer = Literal["publish", "discard"]
GateStage = Literal["statistics", "commit"]


@dataclass(frozen=True)
class Answered:
    """An answer, who gave it, and when."""

    answer: Answer
    who: str
    when: Moment


@dataclass(frozen=True)
class Question:
    """A question of the gate about the work in a staging folder. The fields are the keys of its file.

    flow, parameters: the flow, and the job as its author wrote it; together they make a run that resumes the work.
    date: the run date of the job; None for a job without one.
    run, deployment: the flow run that asks, and its deployment, if any. A run of a deployment waits in Prefect.
    stage: the stage after which the gate judged.
    verdict: what the gate says of the rows.
    of: the digest of the profile that it judged.
    key: the key of the form in which a run of a deployment gets its answer.
    output: the output that the work is for.
    folder: the folder at which relative paths of the job begin.
    asked_at, until: the time of the question, and the time after which the run is stopped without an answer.
    answer: None until it is answered.
    """

    flow: FlowName
    parameters: JsonObject
    date: str | None
    run: str
    deployment: str | None
    stage: GateStage
    verdict: Verdict
    of: str
    key: str
    output: str
    folder: str
    asked_at: Moment
    until: Moment
    answer: Answered | None
    format: Number

    @property
    def is_expired(self) -> bool:
        """Whether the time for an answer has passed; its run is then stopped."""
        return self.answer is None and datetime.now(UTC) >= datetime.fromisoformat(self.until)

    @property
    def is_open(self) -> bool:
        """Whether it still waits for an answer."""
        return self.answer is None and not self.is_expired

    @property
    def batch_text(self) -> str:
        """The work that it is about: `the night 2026-11-22 of /data/out`, or `a run to /data/out` without a date."""
        return f"the night {self.date} of {self.output}" if self.date else f"a run to {self.output}"

    @property
    def pending(self) -> str:
        """What it waits for: an answer, or the end of an accepted run; "" for nothing."""
        if self.is_open:
            return f"it waits for an answer: {self.commands}"
        if self.answer is not None and self.answer.answer == "publish":
            return f"it was accepted, and is not finished: rowmill publish {self.output}, or the next run, does that"
        return ""

    @property
    def findings(self) -> list[str]:
        """The sentences of the findings."""
        return [finding.text for finding in self.verdict.findings]

    @property
    def commands(self) -> str:
        """The shell commands that answer it."""
        return f"rowmill publish {self.output}, or rowmill discard {self.output}"


def read_question(folder: Path) -> Question | None:
    """Read the question in a staging folder; None without one.

    A DataError if the file is damaged, or names an output with another staging folder: its answer would be carried
    out there.
    """
    path = folder / QUESTION
    data = read_json(path)
    if data is None and not path.exists():
        return None
    question = parse_document(Question, data, path)
    if not is_work_of(folder, Path(question.output)):
        raise make_damage_error(path, "output", f"{question.output} has its work in another folder")
    return question


def write_question(folder: Path, question: Question) -> None:
    """Write a question into a staging folder; it replaces an earlier one."""
    write_json(folder / QUESTION, dump_document(question))


def ask(staging: Staging, question: Question) -> None:
    """Write a question into the staging folder of a run.

    If that is in a scratch folder, a pointer to it is written next to the output, where commands look for questions.
    """
    write_question(staging.folder, question)
    if staging.folder != staging.beside:
        write_json(staging.beside / ASKS, {"format": FORMAT, "folder": str(staging.folder)})


def end_question(staging: Staging) -> None:
    """Remove the question of a staging folder, and the pointer to it."""
    (staging.beside / ASKS).unlink(missing_ok=True)
    (staging.folder / QUESTION).unlink(missing_ok=True)


def answer_question(folder: Path, answer: Answer, who: str) -> Question:
    """Answer the question in a staging folder; the first answer counts.

    Repeating that answer returns the question as it was answered first. A JobError if the folder has no question, if
    its time has passed, and if it has the other answer.
    """
    with lock_answers(folder):
        question = read_question(folder)
        if question is None:
            raise JobError(
                "there is no open question",
                where=str(folder),
                why="nothing waits for an answer here",
                do="look at the page of the run, or at the output: rowmill inspect OUT",
            )
        check_first_answer(question, answer)
        if question.answer is not None:
            return question
        if question.is_expired:
            raise make_too_late_error(question)
        question = replace(question, answer=Answered(answer, who, now()))
        write_question(folder, question)
        return question


def check_first_answer(question: Question, answer: Answer) -> None:
    """Raise a JobError if a question has the other answer."""
    if question.answer is not None and question.answer.answer != answer:
        raise make_already_answered_error(question)


def make_already_answered_error(question: Question) -> JobError:
    """Make the error for a second answer that differs from the first."""
    first = question.answer
    assert first is not None
    what = f"the question about {question.batch_text} is already answered: {first.answer}"
    do = "the first answer counts; run that night again if it is to be published"
    if first.answer == "publish":
        out = question.output
        do = f"the first answer counts: `rowmill publish {out}` finishes it where its run does not; then `rowmill "
        do += f"discard {out}` (with versions: {out}/VERSION) takes the published output back"
    return JobError(what, where=address_of(question.output), why=f"{first.who} answered at {first.when}", do=do)


def make_too_late_error(question: Question) -> JobError:
    """Make the error for an answer after `run.ask_timeout`."""
    what = f"the question about {question.batch_text} was open until {question.until}: its run was stopped"
    return JobError(
        what,
        where=question.output,
        why="no answer came within run.ask_timeout",
        do="run that date again: it resumes from finished work, and asks again",
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def name_user() -> str:
    """Name the user and the host of this process: `ada@host`."""
    name = str(os.getuid())
    with suppress(OSError, KeyError):  # in containers, a user may have a number but no name
        name = getpass.getuser()
    return f"{name}@{socket.gethostname()}"


@contextmanager
def lock_answers(folder: Path) -> Iterator[None]:
    """Keep other processes of this host from answering while the block runs."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # without a folder there is no question to lock; the block reports that
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_no_open_question(staging: Staging) -> None:
    """Raise an OpenQuestionError if work for the same output waits for an answer: no other run may touch it."""
    for folder in filter(None, (staging.folder, staging.asks_in)):
        question = read_question(folder)
        if question is not None and question.is_open:
            raise make_open_question_error(question)


def make_open_question_error(question: Question) -> OpenQuestionError:
    """Make the error for a run or command that needs work about which a question is open."""
    return OpenQuestionError(
        f"{question.batch_text} waits for an answer, and nothing else may touch its work",
        where=question.output,
        why=f"the gate asked at {question.asked_at}: {'; '.join(question.findings)}",
        do=f"answer it before {question.until}: {question.commands}; or set run.lock to wait",
    )
