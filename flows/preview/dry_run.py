"""The dry run of a flow: the preview of its job, as an artifact of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tasks.core.settings import FlowName

if TYPE_CHECKING:
    from flows.job.refit_job import AnyJob


def show_preview(job: AnyJob, write: Callable[[str, str, str], Any], flow: FlowName = "preprocess") -> None:
    """Write the preview of a job as the one artifact of the current flow run, by `write(key, text, description)`, and
    as a line of its log."""
    from prefect import get_run_logger

    from flows.preview.own_process import make_preview
    from flows.preview.preview_text import markdown, summary_line
    from tasks.job.request import output_slug
    from tasks.storage.files import local_path

    preview = make_preview(job.as_written(), flow, job.dated.run_date if job.dated else None)
    key = f"{flow}-{output_slug(local_path(job.output.path))}-preview"
    write(key, markdown(preview), summary_line(preview))
    log: Any = get_run_logger()
    log.info("dry run: %s; see the artifact %s", summary_line(preview), key)
    for error in preview.refused:
        log.warning("would be refused: %s", error)
