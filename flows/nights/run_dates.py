"""The dates of a run: those that earlier runs have begun and not published, the oldest first, then its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

from prefect import get_run_logger
from prefect.context import FlowRunContext

from flows.job.dates import DateOf
from flows.job.refit_job import AnyJob
from flows.job.run_calendar import BACKFILL, DatedOutput
from flows.nights.table import NO_DATA, write_run_dates_artifact
from flows.run.empty_sources import NoDataError
from flows.run.flow_plugin import CurrentFlow, Ended, FlowPlugin
from flows.run.work_of_job import end_published, output_of, run_date_of_job, staging_folders, staging_of
from tasks.core.strict_json import JsonObject
from tasks.errors import GateAskedError, GateStoppedError, JobError, OpenQuestionError, RowmillError
from tasks.job.run_date import RunDate, names_hour, parse_run_date, resolve_patterns
from tasks.run.plugin import CurrentRun, NothingToDoError, RunPlugin
from tasks.storage.atomic import read_json, write_json
from tasks.storage.staging import Staging

NOTE = "night.json"  # in the staging folder: the date of the work in it
PASSED_OVER = "passed_over"  # in the note: other runs do not begin with this date any more
WAITS = "waits for an answer"  # the outcome of a run date whose batch the gate asks about
log = logging.getLogger("rowmill")


class BegunDatesPlugin(FlowPlugin):
    """Puts the dates that earlier runs have begun before the run's own one; tabulates the deployment's run dates."""

    place: ClassVar[int] = 30

    def around(self, flow: CurrentFlow, run: Callable[[], Ended]) -> Ended:
        own = flow.own
        if own.dated is not None and (published := _find_backfill_output(own)):
            return end_published(own, published)
        flow.errors.clear()  # a run that goes on after an answer has those of its first attempt
        try:
            if own.dated is not None and own.dated.became:
                begun = [flow.make(_make_date_of(run_date)) for run_date in find_unfinished_dates(flow)]
                flow.jobs[:] = [*begun, own]
            return run()
        except RowmillError as error:
            if not flow.errors:
                flow.errors.append((own, error))
            job = flow.errors[-1][0]
            if job is own or isinstance(error, GateAskedError | OpenQuestionError):
                raise
            raise _make_unfinished_error(error, job) from error
        finally:
            write_run_dates_artifact(_describe_outcomes(flow))


class RunDatePlugin(RunPlugin):
    """Notes the date of a run in its staging folder, whose work is of one date only."""

    place: ClassVar[int] = 30

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def begin(self, run: CurrentRun) -> None:
        note_date(self.job, run.request.staging)

    def ended(self, run: CurrentRun, error: BaseException | None) -> None:
        if self.job.dated is None or not isinstance(error, Exception):
            return
        if isinstance(error, NothingToDoError | GateAskedError | OpenQuestionError):
            return
        # What failed in its own run is tried once more by the next one; what the gate has stopped is not.
        if isinstance(error, GateStoppedError) or self.job.dated.run_date.origin == "begun":
            pass_over(run.request.staging)


def find_unfinished_dates(flow: CurrentFlow) -> list[RunDate]:
    """Find the dates that earlier runs have begun and not published, the oldest first.

    They are of runs to the same output, or to that of an earlier date, and no run works on them now. Those that are
    passed over are named in the log.
    """
    own = flow.own
    assert own.dated is not None
    here = staging_of(own).folder
    dates: list[RunDate] = []
    for folder in staging_folders(own):
        note = _read_note(folder)
        if note is None:
            continue
        begun = parse_run_date(str(note.get("run_date")), own.run.timezone, "begun")
        staging = staging_of(flow.make(_make_date_of(begun)))
        if staging.folder != folder or staging.in_use() or note.get("night") == name_run_date(own):
            continue
        if folder != here and begun.time >= own.dated.run_date.time:
            continue
        if not note.get(PASSED_OVER) and flow.may_finish(staging):
            dates.append(begun)
            continue
        if not note.get(PASSED_OVER):
            pass_over(staging)
        if folder != here:
            do = f"run it with --date {begun.text}, or abandon it: rowmill clean --older-than 0 {folder}"
            get_run_logger().warning("%s was begun and not published, and is passed over: %s", begun.day, do)
    return sorted(dates, key=lambda begun: begun.time)


def note_date(job: AnyJob, staging: Staging) -> None:
    """Note the date of a run in its staging folder, whose lock the run has.

    Work of another date that is passed over gives way. A JobError where other work of another date is there: this run
    would throw it away, and it cannot finish it.
    """
    note = _read_note(staging.folder)
    own = name_run_date(job)
    if note and note.get("night") != own:
        if not note.get(PASSED_OVER):
            raise _make_other_date_error(note, staging)
        get_run_logger().warning("the work of %s, which is passed over, gives way to this run", note.get("date"))
        staging.clean()
        staging.open()
    if job.dated is not None and job.dated.became:
        write_json(staging.folder / NOTE, {**job.dated.to_json(), "night": own})


def pass_over(staging: Staging) -> None:
    """Note that other runs do not begin with the date of the work in a staging folder any more."""
    if note := _read_note(staging.folder):
        write_json(staging.folder / NOTE, {**note, PASSED_OVER: True})


def _read_note(folder: Path) -> dict[str, Any] | None:
    """Read the note on the date of the work in a staging folder; None where no work of a date is there."""
    note = read_json(folder / NOTE)
    return note if isinstance(note, dict) and (folder / "plan.json").exists() else None


def _make_other_date_error(note: JsonObject, staging: Staging) -> JobError:
    return JobError(
        f"the run of {note.get('date')} was begun and not published",
        where=str(staging.folder),
        why="this job writes to the same output, and its run would throw that work away",
        do=f"finish it first: run the job that names the date with --date {note.get('run_date')}; to abandon "
        f"it: rowmill clean --older-than 0 {staging.folder}",
    )


def name_run_date(job: AnyJob) -> str:
    """Name the run date of a job: the day, with the hour where a pattern names one; "" without a date."""
    if job.dated is None or not job.dated.became:
        return ""
    hours = any(names_hour(pattern) for pattern, _ in job.dated.became.values())
    return resolve_patterns("{hour:%Y-%m-%dT%H%z}" if hours else "{date}", job.dated.run_date)


def _find_backfill_output(own: AnyJob) -> DatedOutput | None:
    """Find the published output of the run date of a run that a backfill has started; None for other runs."""
    context = FlowRunContext.get()
    tags = getattr(context.flow_run, "tags", None) if context else None
    return output_of(own) if BACKFILL in (tags or []) else None


def _make_unfinished_error(error: RowmillError, job: AnyJob) -> RowmillError:
    assert job.dated is not None
    what = f"the run of {job.dated.run_date.day}, which was begun and not published, cannot be finished: {error.what}"
    text = job.dated.run_date.text
    folder = staging_of(job).folder
    do = f"{error.do}; then run it with --date {text}, or abandon it: rowmill clean --older-than 0 {folder}; other "
    do += "runs pass it over from now on"
    return type(error)(what, where=error.where, why=error.why, do=do.removeprefix("; "))


def _describe_outcomes(flow: CurrentFlow) -> dict[date, str]:
    """Describe by run date how the jobs of a flow run ended that have no output."""
    return {run_date_of_job(job): _describe_outcome(error) for job, error in flow.errors}


def _describe_outcome(error: RowmillError | NothingToDoError) -> str:
    if isinstance(error, NoDataError):
        return NO_DATA
    if isinstance(error, NothingToDoError):
        return "discarded"
    if isinstance(error, GateAskedError | OpenQuestionError):
        return WAITS
    if isinstance(error, GateStoppedError):
        return f"stopped: {error.why}"
    return f"failed: {error.what}"


def _make_date_of(run_date: RunDate) -> DateOf:
    return lambda _: run_date
