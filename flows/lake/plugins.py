"""The plugins of a run whose source is a table of Iceberg or Delta, or whose output is added to one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from flows.job.refit_job import AnyJob
from tasks.core.stage_results import WriteResult
from tasks.errors import JobError
from tasks.lake.pinning import describe_state, pin_table
from tasks.lake.tables import open_output_table
from tasks.lake.versions import Table, list_pending, read_columns, read_version
from tasks.run.plugin import CurrentRun, NothingToDoError, RunPlugin, UnfinishedError
from tasks.storage.output import PublishedOutput


class TableSourcePlugin(RunPlugin):
    """Settles which snapshot or version of a table the run reads, once it has its base."""

    place: ClassVar[int] = 55

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def begin(self, run: CurrentRun) -> None:
        run.request = pin_table(run.request)
        if run.request.source.table:
            run.log.info("%s", describe_state(run.request.source))


class TableOutputPlugin(RunPlugin):
    """Adds the version that the run publishes to a table, as one snapshot.

    Files have their place only when they are published, so that the table gets them right after. If this fails, or the
    process ends before, the next run of the output adds the version first.
    """

    place: ClassVar[int] = 85

    def __init__(self, job: AnyJob) -> None:
        self.job = job
        self._table: Table | None = None

    def begin(self, run: CurrentRun) -> None:
        output = run.request.output
        if not output.table or run.request.flow == "fit":
            return
        if run.request.splits != ("",):
            raise JobError(
                "a table gets the rows of one split",
                where=f"output.{output.table}, and {', '.join(run.request.splits)} of source",
                do=f"leave output.{output.table} out, or the splits",
            )
        self._table = open_output_table(output)
        added = ""
        for version in list_pending(run.request.staging.target, output, self._table.has):
            added = str(version.folder)
            snapshot = self._table.add(version)
            run.log.warning("an earlier run had published %s; it is added to the table only now: %s", added, snapshot)
        if added and _is_work_of(Path(added), run):
            raise NothingToDoError(f"{added} is published, and now in the table", [added])

    def before_commit(self, run: CurrentRun) -> None:
        """Find out before anything is published that the table cannot get it."""
        parts = [part for result in run.results if isinstance(result, WriteResult) for part in result.parts]
        full = [part for part in parts if part["rows"]]
        if self._table and full:
            self._table.check(read_columns(run.request.staging.new / full[0]["path"]))

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        output = run.request.output
        for folder in outputs if self._table else ():
            version = read_version(Path(folder))
            if not version.parts:
                run.log.warning("%s has no rows: nothing is added to %s", folder, output.table_name)
                continue
            assert self._table
            try:
                snapshot = self._table.add(version)
            except Exception as error:
                raise UnfinishedError(
                    f"the output is published, but not in the table: {getattr(error, 'what', error)}",
                    where=f"{folder}, output.{output.table} = {output.table_name}",
                    why=getattr(error, "why", ""),
                    do="run the same command again: the first thing it does is to add what is published",
                ) from error
            run.log.info("%s is in %s: %s", folder, output.table_name, snapshot)


def _is_work_of(folder: Path, run: CurrentRun) -> bool:
    """Whether a version is what this run would make: of its date, or without dates of the same job."""
    manifest = PublishedOutput(folder).manifest
    if run.request.dated:
        return bool(manifest.get("dated") == run.request.dated)
    return bool(manifest.get("fingerprints", {}).get("job") == run.request.parts_fingerprint())
