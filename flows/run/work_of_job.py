"""Where the work and the outputs of a job are, on its own date and on others."""

from __future__ import annotations

import glob
from datetime import date
from pathlib import Path

from prefect import get_run_logger
from prefect.context import FlowRunContext
from prefect.states import Completed, State

from flows.job.refit_job import AnyJob
from flows.job.run_calendar import Calendar, DatedOutput, calendar_of, find_all_outputs
from tasks.core.settings import Run
from tasks.errors import JobError
from tasks.job.run_date import RunDate, as_glob, is_pattern, parse_run_date, run_date_at
from tasks.storage.staging import Staging

CHOSEN_SECONDS = 30.0  # between the making of a run and its start, above which its start was chosen


def date_of_this_run(run: Run) -> RunDate:
    """Return the date of the current flow run: `run.date`, else its scheduled time, else the time at which it was made.

    Prefect sets that time once, when it makes the run, so that a retry has the same date.
    """
    if run.date is not None:
        return parse_run_date(run.date, run.timezone)
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    if flow_run is None or flow_run.expected_start_time is None:
        raise JobError("the run has no scheduled time", where="run.date", do="give run.date, such as 2026-11-22")
    expected = flow_run.expected_start_time
    apart = abs((expected - flow_run.created).total_seconds()) if flow_run.created else 0.0
    scheduled = getattr(flow_run, "auto_scheduled", False) or apart > CHOSEN_SECONDS
    return run_date_at(expected, run.timezone, "scheduled" if scheduled else "started")


def staging_of(job: AnyJob) -> Staging:
    """Return the staging folder of a job."""
    return Staging.of(job.output, job.run)


def staging_folders(job: AnyJob) -> list[Path]:
    """Return the staging folders of the job's output on all dates, as far as they exist."""
    here = staging_of(job).folder
    written = str(job.as_written()["output"]["path"])
    if not is_pattern(written):
        return [here]
    path = Path(as_glob(str(Path.cwd() / written)))
    if job.run.scratch:
        wanted = Path(glob.escape(str(Path.cwd() / job.run.scratch))) / f".{path.name}.*.rowmill"
    else:
        wanted = path.parent / f".{path.name}.rowmill"
    return [folder.resolve() for folder in sorted(Path("/").glob(str(wanted).lstrip("/")))]


def calendar_of_job(job: AnyJob) -> Calendar:
    """Return the run dates of a job."""
    return calendar_of(job.as_written())


def run_date_of_job(job: AnyJob) -> date:
    """Return the run date of the job; of one without a date, that of the current flow run."""
    run_date = job.dated.run_date if job.dated else date_of_this_run(job.run)
    return calendar_of_job(job).run_date_of(run_date.time)


def output_of(job: AnyJob) -> DatedOutput | None:
    """Return the published output of the run date of a job; None where there is none, and without a date."""
    if job.dated is None:
        return None
    written = str(job.as_written()["output"]["path"])
    options = job.output.storage_options
    outputs = find_all_outputs(written, Path.cwd(), calendar_of_job(job), options=options)
    return outputs.get(run_date_of_job(job))


def end_published(job: AnyJob, there: DatedOutput) -> State[list[str]]:
    """Say that the run date of a job has an output; return the state of its run."""
    since = ", removed since by output.keep_versions" if there.is_removed else ""
    text = f"{calendar_of_job(job).format_run_date(there.day)} is published already: {there.path}{since}"
    get_run_logger().info("%s", text)
    return Completed(message=text, data=[])
