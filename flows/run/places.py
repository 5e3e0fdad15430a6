"""The places that a run writes to: folders that last, and files beside the output that are its own."""

from __future__ import annotations

from flows.job.deployed import check_lasting
from flows.job.files_beside import check_files_beside
from tasks.core.settings import collector_file
from tasks.job.request import Request


def check_places(request: Request) -> None:
    """A JobError where the run would write to a folder that does not last, or a file beside the output that is not its
    own."""
    if request.staging.mirror is None:
        check_lasting(request.staging.target, "output.path")
    check_lasting(request.staging.folder, "run.scratch")
    for key in ("lineage", "metrics"):
        if path := collector_file(getattr(request.run, key) or ""):
            check_lasting(path, f"run.{key}")
    check_files_beside(request)
