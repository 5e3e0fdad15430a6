"""The dry run of a flow: what its job would do, as an artifact; nothing is run."""

from __future__ import annotations

from flows.job.refit_job import AnyJob
from flows.run.artifacts import write_markdown
from tasks.core.settings import FlowName
from tasks.core.wings import from_wing, need_wing


def show_dry_run(job: AnyJob, flow: FlowName) -> None:
    """Write the preview of a job as the one artifact of the current flow run, and as a line of its log."""
    need_wing("flows/preview", "dry_run")
    show_preview = from_wing("flows/preview", "dry_run", "show_preview")
    assert show_preview is not None
    show_preview(job, write_markdown, flow)
