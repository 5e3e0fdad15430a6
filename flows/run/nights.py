"""The dates of a run: its own, those that were begun before it and not published, and runs without any data."""

from __future__ import annotations

import glob
import logging
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.states import Completed

from flows.job.dates import DateOf
from flows.job.job import Application, Job
from flows.job.nights import BACKFILL, Night, published
from flows.job.refit import AnyJob, Refit
from flows.run.nights_table import show_nights
from tasks.core.settings import Run
from tasks.errors import JobError, MillraceError, NoInputError
from tasks.job.request import Request, output_slug
from tasks.job.run_date import (
    Dated,
    RunDate,
    as_glob,
    fixed_folder,
    is_pattern,
    names_hour,
    parse_run_date,
    resolved,
    run_date_at,
)
from tasks.sources.planning import read_options
from tasks.stages.progress_artifact import fresh_client
from tasks.storage.atomic import read_json, write_json
from tasks.storage.files import expand, is_remote
from tasks.storage.staging import Staging

NOTE = "night.json"  # in the staging folder: the date of the work in it
SKIPPED = "millrace.run.skipped"  # the event of a run that had no data
CHOSEN_SECONDS = 30.0  # between the making of a run and its start, above which somebody has chosen its start
TRIES = 5  # times that the work of other dates may come and go while a run looks for its turn
J = TypeVar("J", Job, Application, Refit)
log = logging.getLogger("millrace")


class NoDataError(Exception):
    """The source of a run has no rows, and `run.if_empty` is skip."""


class PublishedError(Exception):
    """A run was cut off right after its output had been published: `folders` have it."""

    def __init__(self, folders: list[str]) -> None:
        super().__init__(", ".join(folders))
        self.folders = folders


class OtherNightError(Exception):
    """The staging folder holds the work of another date than this run's, or that work is gone."""


def date_of_this_run(run: Run) -> RunDate:
    """The date of the current flow run: `run.date`, else its scheduled time, else the time at which it was made.

    Prefect sets that time once, when it makes the run, so that a retry has the same date.
    """
    if run.date is not None:
        return parse_run_date(run.date, run.timezone)
    context = FlowRunContext.get()
    flow_run: Any = context.flow_run if context else None
    if flow_run is None or flow_run.expected_start_time is None:
        raise JobError("the run has no time", where="run.date", do="give run.date, such as 2026-11-22")
    expected = flow_run.expected_start_time
    apart = abs((expected - flow_run.created).total_seconds()) if flow_run.created else 0.0
    scheduled = getattr(flow_run, "auto_scheduled", False) or apart > CHOSEN_SECONDS
    return run_date_at(expected, run.timezone, "scheduled" if scheduled else "started")


def run_in_order(make: Callable[[DateOf], J], run: Callable[[J], list[str]]) -> Any:
    """Run the job of the current flow run, after those that earlier runs of it have begun and not published.

    `make` gives the job of a date, `run` does it and returns the folders that are committed. A command without
    `run.date` goes on with the date that was begun, and with that alone: it is the same command once more. Returns all
    folders, or the state of a run that had no data.
    """
    own = make(date_of_this_run)
    if own.dated is None:
        return _run(own, run)
    outcomes: dict[date, str] = {}
    try:
        return _in_order(own, make, run, outcomes)
    finally:
        show_nights(outcomes)


def _in_order(own: J, make: Callable[[DateOf], J], run: Callable[[J], list[str]], outcomes: dict[date, str]) -> Any:
    """Run the job of each date; note in `outcomes` how those ended that have no output."""
    assert own.dated is not None
    if night := _published_before(own):
        text = f"{night.day} is published already: {night.path}"
        get_run_logger().info("%s", text)
        return Completed(message=text, data=[])
    folders: list[str] = []
    tries = 0
    while True:
        begun = next(begun_dates(own, make), None) if own.dated.became else None
        job = make(_always(begun)) if begun else own
        day = job.dated.run_date.day if job.dated else own.dated.run_date.day
        _tell(job.dated, bool(begun))
        try:
            done = _run(job, run)
        except OtherNightError as error:
            tries += 1
            if tries == TRIES:
                raise JobError(
                    f"the work of {error} lies in the staging folder, and the job of today cannot finish it",
                    where=str(_staging(job).folder), why="its output.path, or its time zone, was another one",
                    do=f"give it up: millrace clean --older-than 0 {job.output.path}",
                ) from None  # fmt: skip
            continue
        except MillraceError as error:
            outcomes[day] = f"failed: {error.what}"
            if begun:
                raise _not_finished(error, job) from error
            raise
        if not isinstance(done, list):
            outcomes[day] = "no data"
            return done if not begun or _is_same_command(own) else folders or done
        folders += done
        if job is own:
            return folders
        if _is_same_command(own):
            get_run_logger().warning(
                "%s was not run: the same command goes on with %s, which was begun; give it again, or --date %s",
                own.dated.run_date.day, day, own.dated.run_date.text,
            )  # fmt: skip
            return folders


def _published_before(own: AnyJob) -> Night | None:
    """The published output of the date of a run that a backfill has started; None for other runs."""
    context = FlowRunContext.get()
    tags = getattr(context.flow_run, "tags", None) if context else None
    if own.dated is None or BACKFILL not in (tags or []):
        return None
    return published(str(own.as_written()["output"]["path"]), Path.cwd()).get(own.dated.run_date.day)


def begun_dates(own: J, make: Callable[[DateOf], J]) -> Iterator[RunDate]:
    """The dates of earlier runs to the same output, or to that of an earlier date, that were begun and not published
    and that no run works on; the oldest first."""
    here, dates = _staging(own), list[RunDate]()
    for folder in _staging_folders(own):
        note = read_json(folder / NOTE)
        if not isinstance(note, dict) or not (folder / "plan.json").exists():
            continue
        begun = parse_run_date(str(note.get("run_date")), own.run.timezone, "begun")
        staging = _staging(make(_always(begun)))
        if staging.folder != folder or staging.in_use() or note.get("night") == _night(own):
            continue
        if folder == here.folder or begun.time < own.dated.run_date.time:  # type: ignore[union-attr]
            dates.append(begun)
    yield from sorted(dates, key=lambda begun: begun.time)


def note_night(job: AnyJob, staging: Staging) -> None:
    """Note the date of a run in its staging folder, whose lock the run has.

    OtherNightError where the work of another date is there, which must be finished first, or where the work of an
    earlier date that this run was to finish is gone. A job without a date throws such work away, and says so.
    """
    note = read_json(staging.folder / NOTE)
    begun = note if isinstance(note, dict) and (staging.folder / "plan.json").exists() else None
    if job.dated is None or not job.dated.became:
        if begun:
            text = "the work of %s, which was begun and not published, may be lost: this job names no date"
            log.warning(text, begun.get("date"))
            (staging.folder / NOTE).unlink(missing_ok=True)
        return
    if begun and begun.get("night") != _night(job):
        raise OtherNightError(str(begun.get("date")))
    if not begun and job.dated.run_date.origin == "begun":
        raise OtherNightError("published meanwhile")
    write_json(staging.folder / NOTE, {**job.dated.to_json(), "night": _night(job)})


def check_source(job: AnyJob, request: Request) -> None:
    """NoDataError or JobError where no file is at `source.path`, before a stage begins; for jobs whose paths hold a
    date and those with `run.if_empty: skip`.

    The folder in front of the first pattern must be there: a mistyped path is no empty day.
    """
    source = job.source
    patterns = _patterns(job, "source.path")
    if job.run.if_empty == "fail" and not patterns:
        return
    paths = [source.path] if isinstance(source.path, str) else source.path
    options = read_options(request.source)["storage_options"]
    missing = [error for path in paths if (error := _nothing_at(path, options))]
    if not missing:
        return
    if len(missing) < len(paths):
        raise _nothing(job, f"{missing[0].where}: {missing[0].why}; other paths of source.path have files", "")
    written = job.as_written()["source"]["path"]
    for path in [written] if isinstance(written, str) else written:
        fixed = fixed_folder(path)
        if not is_remote(path) and fixed and not Path(fixed).is_dir():
            raise _nothing(job, f"{missing[0].where}: {missing[0].why}; the folder {fixed} does not exist", "")
    empty(job, f"{missing[0].where}: {missing[0].why}")


def empty(job: AnyJob, why: str) -> None:
    """Raise for a source without rows: NoDataError with `run.if_empty: skip`, else a JobError."""
    if job.run.if_empty == "skip":
        raise NoDataError(f"there are no data{_of_date(job)}: {why}")
    raise _nothing(job, why, "; with run.if_empty: skip such a run writes nothing and is completed")


def needs_rows(job: AnyJob) -> bool:
    """Whether a run whose filter leaves no row is one without data, instead of an empty output."""
    return job.run.if_empty == "skip" or bool(_patterns(job, "source"))


def _run(job: J, run: Callable[[J], list[str]]) -> Any:
    """Run a job; the state Completed where it has no data and `run.if_empty` is skip: log, artifact, event say so."""
    try:
        return run(job)
    except PublishedError as published_before:
        return published_before.folders
    except NoDataError as reason:
        text = f"nothing was written: {reason}"
        get_run_logger().warning("%s", text)
        context = FlowRunContext.get()
        flow_name = context.flow.name if context and context.flow else "preprocess"
        slug = output_slug(Path(job.output.path).absolute())
        payload = {"reason": str(reason), "output": job.output.path, **(job.dated.to_json() if job.dated else {})}
        with fresh_client():
            create_markdown_artifact(f"{text}.", key=f"{flow_name}-{slug}-skipped", description="No data")
        emit_event(SKIPPED, {"prefect.resource.id": f"millrace.output.{slug}"}, payload=payload)
        return Completed(message=text, data=[])


def has_date(job: AnyJob, place: str) -> bool:
    """Whether a place of the job was written with a date."""
    return bool(_patterns(job, place))


def _tell(dated: Dated | None, begun: bool) -> None:
    run_log = get_run_logger()
    if dated is None:
        return
    run_log.info("the date is %s", dated.run_date.sentence)
    if begun:
        run_log.warning("%s was begun by an earlier run and not published: it is finished first", dated.run_date.day)
    for line in dated.lines:
        run_log.info("%s", line)


def _not_finished(error: MillraceError, job: AnyJob) -> MillraceError:
    day = job.dated.run_date.day if job.dated else ""
    what = f"the run of {day}, which was begun and not published, cannot be finished: {error.what}"
    do = f"{error.do}; the dates after it wait. To give it up: millrace clean --older-than 0 {job.output.path}"
    return type(error)(what, where=error.where, why=error.why, do=do.removeprefix("; "))


def _nothing(job: AnyJob, why: str, more: str) -> JobError:
    lines = [line for line in (job.dated.lines if job.dated else []) if line.startswith("source.")]
    where = "\n         ".join(lines) or "source.path"
    do = f"correct source.path, or run it again when the data are there{more}"
    return JobError(f"there are no data{_of_date(job)}", where=where, why=why, do=do)


def _of_date(job: AnyJob) -> str:
    return f" for {job.dated.run_date.day}" if job.dated else ""


def _nothing_at(path: str, options: Any) -> NoInputError | None:
    try:
        expand(path, options)
    except NoInputError as error:
        return error
    return None


def _patterns(job: AnyJob, place: str) -> list[str]:
    became = job.dated.became if job.dated else {}
    return [pattern for name, (pattern, _) in became.items() if name.startswith(place)]


def _night(job: AnyJob) -> str:
    """What tells the nights of a job apart: the day, with the hour where a pattern names one."""
    if job.dated is None:
        return ""
    hours = any(names_hour(pattern) for pattern, _ in job.dated.became.values())
    return resolved("{hour:%Y-%m-%dT%H%z}" if hours else "{date}", job.dated.run_date)


def _always(run_date: RunDate) -> DateOf:
    return lambda _: run_date


def _is_same_command(own: AnyJob) -> bool:
    """Whether a run was typed without a date: it may be the same command once more."""
    context = FlowRunContext.get()
    of_deployment = bool(context and getattr(context.flow_run, "deployment_id", None))
    return bool(own.dated and own.dated.run_date.origin == "started" and not of_deployment)


def _staging(job: AnyJob) -> Staging:
    return Staging(job.output.path, job.run.scratch)


def _staging_folders(own: AnyJob) -> list[Path]:
    """The staging folders of the job's output on all dates, as far as they exist."""
    here = _staging(own).folder
    written = str(own.as_written()["output"]["path"])
    if not is_pattern(written):
        return [here]
    path = Path(as_glob(str(Path.cwd() / written)))
    if own.run.scratch:
        wanted = Path(glob.escape(str(Path.cwd() / own.run.scratch))) / f".{path.name}.*.millrace"
    else:
        wanted = path.parent / f".{path.name}.millrace"
    return [folder.resolve() for folder in sorted(Path("/").glob(str(wanted).lstrip("/")))]
