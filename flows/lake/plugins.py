"""The plugins of a run whose source is a table of Iceberg or Delta."""

from __future__ import annotations

from typing import ClassVar

from flows.job.refit_job import AnyJob
from tasks.lake.pinning import describe_state, pin_table
from tasks.run.plugin import CurrentRun, RunPlugin


class TableSourcePlugin(RunPlugin):
    """Settles which snapshot or version of a table the run reads, once it has its base."""

    place: ClassVar[int] = 55

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def begin(self, run: CurrentRun) -> None:
        run.request = pin_table(run.request)
        if run.request.source.table:
            run.log.info("%s", describe_state(run.request.source))
