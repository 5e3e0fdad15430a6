"""The dates of a run: its own, those that were begun before it and not published, and runs without any data."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from prefect import get_client, get_run_logger
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
)
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.states import Cancelled, Completed, State

from flows.gate.questions import DiscardedError, close_unanswered, has_asked, pause_for_answer, wait_for_answer
from flows.job.dates import DateOf
from flows.job.job import Application, Job
from flows.job.refit_job import AnyJob, Refit
from flows.job.run_calendar import (
    BACKFILL,
    Calendar,
    DeployedJob,
    Night,
    calendar_of,
    deployed,
    published_ever,
    roots_of,
)
from flows.job.run_history import rates_by_run
from flows.nights.table import NIGHTS, NO_DATA, nights_text
from flows.published.outbox import deliver
from flows.run.artifacts import write_markdown
from flows.run.links import flow_run_id
from flows.run.run_names import show_date
from tasks.core.markdown import escaped
from tasks.core.settings import Run
from tasks.core.stage_results import StageResult, TransformResult
from tasks.errors import GateAskedError, GateStoppedError, JobError, NoInputError, OpenQuestionError, RowmillError
from tasks.gate.notes import NOTE as GATE_NOTE
from tasks.gate.notes import is_stopped
from tasks.gate.question import read_question, waiting
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
from tasks.run.plugin import CurrentRun, NothingToDoError, RunPlugin
from tasks.run.run import Execute
from tasks.sources.formats import read_options
from tasks.sources.planning import NoRowsError, NoValidationRowsError
from tasks.stages.progress_artifact import fresh_client
from tasks.storage.atomic import read_json, write_json
from tasks.storage.files import expand, is_remote
from tasks.storage.staging import Staging

NOTE = "night.json"  # in the staging folder: the date of the work in it
SKIPPED = "rowmill.run.skipped"  # the event of a run that had no data
CHOSEN_SECONDS = 30.0  # between the making of a run and its start, above which its start was chosen
WAITS = "waits for an answer"  # the outcome of a night of which the gate asks
TRIES = 5  # times that the work of other dates may come and go while a run looks for its turn
RUNS = 200  # of a deployment that the table of nights looks at, as many as the server gives at once
Ended: TypeAlias = "list[str] | State[list[str]]"  # the folders that are committed, or the state of a run without any
J = TypeVar("J", Job, Application, Refit)
log = logging.getLogger("rowmill")


class NoDataError(NothingToDoError):
    """The source of a run has no rows, and `run.if_empty` is skip."""


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
        raise JobError("the run has no scheduled time", where="run.date", do="give run.date, such as 2026-11-22")
    expected = flow_run.expected_start_time
    apart = abs((expected - flow_run.created).total_seconds()) if flow_run.created else 0.0
    scheduled = getattr(flow_run, "auto_scheduled", False) or apart > CHOSEN_SECONDS
    return run_date_at(expected, run.timezone, "scheduled" if scheduled else "started")


def run_in_order(make: Callable[[DateOf], J], run: Callable[[J], list[str]]) -> Any:
    """Run the job of the current flow run, after those that earlier runs of it have begun and not published.

    `make` gives the job of a date, `run` does it and returns the folders that are committed. A command without
    `run.date` goes on with the date that was begun, and with that alone: it is the same command once more. Returns all
    folders, or the state of a run that had no data.

    Where the gate asks, a run of a deployment pauses until it is answered, and then goes on here from the top.
    """
    own: J = make(date_of_this_run)
    deliver({*roots_of(str(own.as_written()["output"]["path"]), Path.cwd()), Path(own.output.path)})
    if own.dated is not None:
        show_date(own.dated)
    if has_asked() and not _has_work(own):
        return _done_by_others(own)
    while True:
        try:
            return _once(own, make, run)
        except GateAskedError:
            pause_for_answer()
            raise
        except OpenQuestionError as error:
            wait_for_answer(own, error)


def _once(own: J, make: Callable[[DateOf], J], run: Callable[[J], list[str]]) -> Ended:
    """Run the job, after those that were begun; the table of nights says how each of them ended."""
    outcomes: dict[date, str] = {}
    try:
        if own.dated is None:
            return _run(own, run)
        return _in_order(own, make, run, outcomes)
    except (GateAskedError, OpenQuestionError):
        outcomes.setdefault(_night_of_this_run(own), WAITS)
        raise
    except RowmillError as error:
        outcomes.setdefault(_night_of_this_run(own), f"failed: {error.what}")
        raise
    finally:
        show_nights(outcomes)


def _has_work(own: AnyJob) -> bool:
    """Whether the work of a run that has asked is still there: its own, or that of a date that it was to finish."""
    for folder in _staging_folders(own):
        question = read_question(folder)
        if question is not None and question.run == flow_run_id():
            return True
    return (_staging(own).folder / "plan.json").exists()


def _done_by_others(own: AnyJob) -> State[list[str]]:
    """The state of a run that has asked and whose work is gone when it goes on."""
    if there := _output_of(own):
        return _published_already(own, there)
    text = "its work is gone: another run has published it, or it was discarded"
    get_run_logger().warning("%s", text)
    return Cancelled(message=text)


def _in_order(own: J, make: Callable[[DateOf], J], run: Callable[[J], list[str]], outcomes: dict[date, str]) -> Ended:
    """Run the job of each date; note in `outcomes` how those ended that have no output."""
    assert own.dated is not None
    if there := _published_before(own):
        return _published_already(own, there)
    folders: list[str] = []
    tries = 0
    while True:
        begun = next(begun_dates(own, make), None) if own.dated.became else None
        job = make(_always(begun)) if begun else own
        night = _calendar(own).night((job.dated or own.dated).run_date.time)
        _tell(job.dated, bool(begun))
        try:
            done = _run(job, run)
        except OtherNightError as error:
            tries += 1
            if tries == TRIES:
                raise JobError(
                    f"the work of {error} lies in the staging folder, and today's job cannot finish it",
                    where=str(_staging(job).folder),
                    why="its output.path or its time zone was different",
                    do=f"abandon it: rowmill clean --older-than 0 {_staging(job).folder}",
                ) from None
            continue
        except (GateAskedError, OpenQuestionError):
            outcomes[night] = WAITS
            raise
        except GateStoppedError as error:
            outcomes[night] = f"stopped: {error.why}"
            if not begun or _is_same_command(own):
                raise
            get_run_logger().error("%s; %s is next", error.what, own.dated.run_date.day)
            continue
        except RowmillError as error:
            outcomes[night] = f"failed: {error.what}"
            if begun:
                raise _not_finished(error, job) from error
            raise
        if not isinstance(done, list):
            outcomes[night] = "discarded" if done.is_cancelled() else NO_DATA
            if begun and done.is_cancelled() and not _is_same_command(own):
                continue
            return done if not begun or _is_same_command(own) else folders or done
        folders += done
        if job is own:
            return folders
        if _is_same_command(own):
            get_run_logger().warning(
                "%s was not run: this command finished %s, which was begun earlier; give it again, or add --date %s",
                own.dated.run_date.day,
                job.dated.run_date.day if job.dated else "",
                own.dated.run_date.text,
            )
            return folders


def _published_already(own: AnyJob, there: Night) -> State[list[str]]:
    """The state of a run whose night has an output."""
    since = ", removed since by output.keep_versions" if there.is_removed else ""
    text = f"{_calendar(own).shown(there.day)} is published already: {there.path}{since}"
    get_run_logger().info("%s", text)
    return Completed(message=text, data=[])


def _published_before(own: AnyJob) -> Night | None:
    """The published output of the night of a run that a backfill has started; None for other runs."""
    context = FlowRunContext.get()
    tags = getattr(context.flow_run, "tags", None) if context else None
    return _output_of(own) if BACKFILL in (tags or []) else None


def _output_of(own: AnyJob) -> Night | None:
    """The published output of the night of a job; None where there is none, and without a date."""
    if own.dated is None:
        return None
    written, calendar = own.as_written(), _calendar(own)
    return published_ever(str(written["output"]["path"]), Path.cwd(), calendar).get(_night_of_this_run(own))


def _night_of_this_run(own: AnyJob) -> date:
    return _calendar(own).night((own.dated.run_date if own.dated else date_of_this_run(own.run)).time)


def _calendar(job: AnyJob) -> Calendar:
    return calendar_of(job.as_written())


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
        if staging.folder != folder or staging.in_use() or note.get("night") == _night(own) or is_stopped(folder):
            continue
        if folder == here.folder or begun.time < own.dated.run_date.time:  # type: ignore[union-attr]
            question = read_question(folder)
            if question is not None and question.run != flow_run_id():
                if question.is_open:
                    raise waiting(question)
                if question.is_expired:
                    close_unanswered(staging, question)
                    continue
            dates.append(begun)
    yield from sorted(dates, key=lambda begun: begun.time)


class RunDatePlugin(RunPlugin):
    """Notes the date of a run in its staging folder, whose work is of one date only."""

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def begin(self, run: CurrentRun) -> None:
        note_night(self.job, run.request.staging)


class EmptySourcePlugin(RunPlugin):
    """Ends a run whose source has no rows, as `run.if_empty` has it, where they are looked for by a date."""

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def begin(self, run: CurrentRun) -> None:
        check_source(self.job, run.request)

    def after(self, run: CurrentRun, result: StageResult) -> None:
        if not isinstance(result, TransformResult) or result.split not in ("", "train"):
            return
        if not result.rows_out and needs_rows(self.job):
            run.request.staging.clean()
            empty(self.job, f"the filter leaves none of {result.rows:,} rows")

    def around(self, execute: Execute) -> Execute:
        """Let the stages of a run work as before, but that a source without rows is one without data."""

        def execute_unless_empty(stage: str, request: Request, split: str | None = None) -> StageResult:
            try:
                return execute(stage, request, split)
            except NoRowsError as error:
                place = "source.valid" if isinstance(error, NoValidationRowsError) else "source"
                if needs_rows(self.job, place):
                    empty(self.job, f"{error.what}: {error.where}")
                raise

        return execute_unless_empty


def note_night(job: AnyJob, staging: Staging) -> None:
    """Note the date of a run in its staging folder, whose lock the run has.

    OtherNightError where the work of another date is there, which must be finished first, or where the work of an
    earlier date that this run was to finish is gone. A JobError where a job without a date finds such work: its run
    would throw it away, and it cannot finish it.
    """
    note = read_json(staging.folder / NOTE)
    begun = note if isinstance(note, dict) and (staging.folder / "plan.json").exists() else None
    if begun and is_stopped(staging.folder) and begun.get("night") != _night(job):
        text = "the work of %s, which the gate stopped, gives way to this run"
        get_run_logger().warning(text, begun.get("date"))
        for name in (NOTE, GATE_NOTE):
            (staging.folder / name).unlink(missing_ok=True)
        begun = None
    if job.dated is None or not job.dated.became:
        if begun:
            raise JobError(
                f"the run of {begun.get('date')} was begun and not published",
                where=str(staging.folder),
                why="this job writes to the same output and names no date: its run would throw that work away",
                do=f"finish it first: run the job that names the date with --date {begun.get('run_date')}; to abandon "
                f"it: rowmill clean --older-than 0 {staging.folder}",
            )
        return
    if begun and begun.get("night") != _night(job):
        raise OtherNightError(str(begun.get("date")))
    if not begun and job.dated.run_date.origin == "begun":
        raise OtherNightError("published meanwhile")
    write_json(staging.folder / NOTE, {**job.dated.to_json(), "night": _night(job)})


def check_source(job: AnyJob, request: Request) -> None:
    """NoDataError or JobError where no file is at `source.path` or `source.valid`, before a stage begins; for paths
    that hold a date, and for `source.path` with `run.if_empty: skip`.

    The folder in front of the first pattern must be there: a mistyped path is not an empty day.
    """
    options = read_options(request.source)["storage_options"]
    if job.run.if_empty == "skip" or _patterns(job, "source.path"):
        _check_paths(job, "path", options)
    if _patterns(job, "source.valid"):
        _check_paths(job, "valid", options)


def _check_paths(job: AnyJob, name: str, options: Mapping[str, Any]) -> None:
    """NoDataError or JobError where no file is at the paths of `source`.`name`."""
    known = getattr(job.source, name)
    paths = [known] if isinstance(known, str) else known
    missing = [error for path in paths if (error := _nothing_at(path, options))]
    if not missing:
        return
    if len(missing) < len(paths):
        raise _nothing(job, f"{missing[0].where}: {missing[0].why}; other paths of source.{name} have files", "")
    written = job.as_written()["source"][name]
    for path in [written] if isinstance(written, str) else written:
        fixed = fixed_folder(path)
        if not is_remote(path) and fixed and not Path(fixed).is_dir():
            raise _nothing(job, f"{missing[0].where}: {missing[0].why}; the folder {fixed} does not exist", "")
    empty(job, f"{missing[0].where}: {missing[0].why}")


def empty(job: AnyJob, why: str) -> None:
    """Raise for a source without rows: NoDataError with `run.if_empty: skip`, else a JobError."""
    if job.run.if_empty == "skip":
        raise NoDataError(f"there are no data{_of_date(job)}: {why}")
    raise _nothing(job, why, "; with run.if_empty: skip, such a run writes nothing and counts as completed")


def needs_rows(job: AnyJob, place: str = "source") -> bool:
    """Whether a run without rows is one without data, instead of an empty output or another error.

    `place` is where the rows are missing. A `source.valid` without a date is the same on every day: a run in which it
    is empty is not a day without data.
    """
    skips = place != "source.valid" and job.run.if_empty == "skip"
    return skips or bool(_patterns(job, place))


def _run(job: J, run: Callable[[J], list[str]]) -> Ended:
    """Run a job; the state Completed where it has no data and `run.if_empty` is skip: log, artifact, event say so."""
    try:
        return run(job)
    except DiscardedError as reason:
        get_run_logger().warning("%s", reason)
        return Cancelled(message=str(reason))
    except NoDataError as reason:
        text = f"nothing was written: {reason}"
        get_run_logger().warning("%s", text)
        context = FlowRunContext.get()
        flow_name = context.flow.name if context and context.flow else "preprocess"
        slug = output_slug(Path(job.output.path).absolute())
        payload = {"reason": str(reason), "output": job.output.path, **(job.dated.to_json() if job.dated else {})}
        write_markdown(f"{flow_name}-{slug}-skipped", f"{escaped(text)}.", "No data")
        emit_event(SKIPPED, {"prefect.resource.id": f"rowmill.output.{slug}"}, payload=payload)
        return Completed(message=text, data=[])
    except NothingToDoError as published_before:
        return published_before.outputs


def has_date(job: AnyJob, place: str) -> bool:
    """Whether a place of the job was written with a date."""
    return bool(_patterns(job, place))


def _tell(dated: Dated | None, begun: bool) -> None:
    run_log = get_run_logger()
    if dated is None:
        return
    run_log.info("the date is %s", dated.run_date.sentence)
    if begun:
        run_log.warning("%s was begun by an earlier run but not published: it is finished first", dated.run_date.day)
    for line in dated.lines:
        run_log.info("%s", line)


def _not_finished(error: RowmillError, job: AnyJob) -> RowmillError:
    day = job.dated.run_date.day if job.dated else ""
    what = f"the run of {day}, which was begun and not published, cannot be finished: {error.what}"
    do = f"{error.do}; the dates after it wait; to abandon it: rowmill clean --older-than 0 {_staging(job).folder}"
    return type(error)(what, where=error.where, why=error.why, do=do.removeprefix("; "))


def _nothing(job: AnyJob, why: str, more: str) -> JobError:
    lines = [line for line in (job.dated.lines if job.dated else []) if line.startswith("source.")]
    where = "\n         ".join(lines) or "source.path"
    do = f"correct the path, or run it again once the data are there{more}"
    return JobError(f"there are no data{_of_date(job)}", where=where, why=why, do=do)


def _of_date(job: AnyJob) -> str:
    return f" for {job.dated.run_date.day}" if job.dated else ""


def _nothing_at(path: str, options: Mapping[str, Any]) -> NoInputError | None:
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
        wanted = Path(glob.escape(str(Path.cwd() / own.run.scratch))) / f".{path.name}.*.rowmill"
    else:
        wanted = path.parent / f".{path.name}.rowmill"
    return [folder.resolve() for folder in sorted(Path("/").glob(str(wanted).lstrip("/")))]


# The table of nights


def show_nights(outcomes: Mapping[date, str]) -> None:
    """Write the artifact of the nights of the deployment of the current flow run; nothing without a deployment.

    `outcomes` says of nights without an output how this run ended for them. A server that is away is no reason to fail.
    """
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    deployment_id = getattr(flow_run, "deployment_id", None)
    if context is None or context.flow is None or flow_run is None or deployment_id is None:
        return
    try:
        with fresh_client(), get_client(sync_client=True) as client:
            deployment = client.read_deployment(deployment_id)
            nights = deployed(f"{context.flow.name}/{deployment.name}", deployment)
            text = nights_text(nights, _runs_by_night(client, nights), outcomes, rates_by_run())
        write_markdown(artifact_key(nights.name), text, f"The nights of {nights.name}")
    except Exception as error:
        log.warning("the table of nights could not be written: %s", error)


def artifact_key(name: str) -> str:
    """The key of the artifact of a deployment's nights.

    >>> artifact_key("preprocess/Nightly 2")
    'rowmill-nights-preprocess-nightly-2'
    """
    return f"rowmill-nights-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"


def _runs_by_night(client: Any, nights: DeployedJob) -> dict[date, Any]:
    """The newest flow run of each night that the server knows, by the night that it is of."""
    calendar = nights.calendar
    since = calendar.begin(calendar.back(nights.today(), NIGHTS))
    expected = FlowRunFilterExpectedStartTime(after_=since, before_=datetime.now(UTC))
    flow_runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[nights.id])),
        flow_run_filter=FlowRunFilter(expected_start_time=expected),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=RUNS,
    )
    runs: dict[date, Any] = {}
    for run in flow_runs:
        section = run.parameters.get("run")
        text = section.get("date") if isinstance(section, Mapping) else None
        try:
            moment = parse_run_date(text, calendar.timezone).time if text else run.expected_start_time
        except JobError:
            continue
        runs.setdefault(calendar.night(moment), run)
    return runs
