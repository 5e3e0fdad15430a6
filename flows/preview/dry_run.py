"""The dry run of a flow: the preview of its job, as an artifact of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.job.refit import AnyJob
from tasks.gate.question import FlowName


def show_preview(job: AnyJob, flow: FlowName = "preprocess") -> None:
    """Write the preview of a job as the one artifact of the current flow run and as a line of its log."""
    from prefect import get_run_logger
    from prefect.artifacts import create_markdown_artifact

    from flows.preview.own_process import looked
    from flows.preview.text import markdown, summary_line
    from tasks.job.request import output_slug
    from tasks.storage.files import local_path

    preview = looked(job.as_written(), flow, job.dated.run_date if job.dated else None)
    key = f"{flow}-{output_slug(local_path(job.output.path))}-preview"
    create_markdown_artifact(markdown(preview), key=key, description=summary_line(preview))
    log: Any = get_run_logger()
    log.info("dry run: %s; see the artifact %s", summary_line(preview), key)
    for error in preview.refused:
        log.warning("would be refused: %s", error)
