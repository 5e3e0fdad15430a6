"""Runs whose source has no rows: an error, or, with `run.if_empty: skip`, a run that is completed without output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from prefect import get_run_logger
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.states import Completed

from flows.job.refit_job import AnyJob
from flows.run.artifacts import write_markdown
from flows.run.flow_plugin import NoOutputError
from tasks.core.markdown import escape_markdown
from tasks.core.settings import Source
from tasks.core.stage_results import StageResult, TransformResult
from tasks.errors import JobError, NoInputError
from tasks.job.request import Request, output_slug
from tasks.job.run_date import find_fixed_folder
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.run.run import Execute
from tasks.sources.formats import read_options
from tasks.sources.planning import NoRowsError, NoValidationRowsError
from tasks.sources.table_files import list_source_files
from tasks.storage.files import expand, is_remote

SKIPPED = "rowmill.run.skipped"  # the event of a run that had no data


class NoDataError(NoOutputError):
    """The source of a run has no rows, and `run.if_empty` is skip."""


class EmptySourcePlugin(RunPlugin):
    """Ends a run whose source has no rows, as `run.if_empty` has it, where they are looked for by a date."""

    place: ClassVar[int] = 65

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def begin(self, run: CurrentRun) -> None:
        check_source(self.job, run.request)

    def after(self, run: CurrentRun, result: StageResult) -> None:
        if not isinstance(result, TransformResult) or result.split not in ("", "train"):
            return
        if not result.rows_out and needs_rows(self.job):
            run.request.staging.clean()
            end_empty(self.job, f"the filter leaves none of {result.rows:,} rows")

    def around(self, execute: Execute) -> Execute:
        """Let the stages of a run work as before, but that a source without rows is one without data."""

        def execute_unless_empty(stage: str, request: Request, split: str | None = None) -> StageResult:
            try:
                return execute(stage, request, split)
            except NoRowsError as error:
                place = "source.valid" if isinstance(error, NoValidationRowsError) else "source"
                if needs_rows(self.job, place):
                    end_empty(self.job, f"{error.what}: {error.where}")
                raise

        return execute_unless_empty


def check_source(job: AnyJob, request: Request) -> None:
    """NoDataError or JobError where no file is at `source.path` or `source.valid`, before a stage begins; for paths
    that hold a date, and for `source.path` with `run.if_empty: skip`.

    The folder in front of the first pattern must be there: a mistyped path is not an empty day.
    """
    if request.source.table:
        _check_table(job, request.source)
        return
    options = read_options(request.source)["storage_options"]
    if job.run.if_empty == "skip" or job.patterns("source.path"):
        _check_paths(job, "path", options)
    if job.patterns("source.valid"):
        _check_paths(job, "valid", options)


def _check_table(job: AnyJob, source: Source) -> None:
    """NoDataError or JobError where a table has no files; only for jobs for which that is not another error."""
    if job.run.if_empty != "skip":
        return
    try:
        list_source_files(source)
    except NoInputError as error:
        end_empty(job, f"{error.where}: {error.why}")


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
        fixed = find_fixed_folder(path)
        if not is_remote(path) and fixed and not Path(fixed).is_dir():
            raise _nothing(job, f"{missing[0].where}: {missing[0].why}; the folder {fixed} does not exist", "")
    end_empty(job, f"{missing[0].where}: {missing[0].why}")


def end_empty(job: AnyJob, why: str) -> None:
    """Raise for a source without rows: NoDataError with `run.if_empty: skip`, else a JobError."""
    if job.run.if_empty != "skip":
        raise _nothing(job, why, "; with run.if_empty: skip, such a run writes nothing and counts as completed")
    reason = f"there are no data{_of_date(job)}: {why}"
    text = f"nothing was written: {reason}"
    get_run_logger().warning("%s", text)
    context = FlowRunContext.get()
    flow_name = context.flow.name if context and context.flow else "preprocess"
    slug = output_slug(Path(job.output.path).absolute())
    payload = {"reason": reason, "output": job.output.path}
    if job.dated:
        payload |= job.dated.to_json()
    write_markdown(f"{flow_name}-{slug}-skipped", f"{escape_markdown(text)}.", "No data")
    emit_event(SKIPPED, {"prefect.resource.id": f"rowmill.output.{slug}"}, payload=payload)
    raise NoDataError(reason, Completed(message=text, data=[]))


def needs_rows(job: AnyJob, place: str = "source") -> bool:
    """Tell whether a run without rows is one without data, instead of an empty output or another error.

    `place` is where the rows are missing. A `source.valid` without a date is the same on every day: a run in which it
    is empty is not a day without data.
    """
    skips = place != "source.valid" and job.run.if_empty == "skip"
    return skips or bool(job.patterns(place))


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
