"""Writes the HTML reports: of a run before its commit, or later from what an output holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.cluster import monitor
from tasks.cluster.monitor import samples_path
from tasks.core.plan import Plan
from tasks.core.redaction import job_text, redact
from tasks.core.schema import ROW, Schema
from tasks.core.stage_results import StageResult
from tasks.core.strict_json import JsonObject
from tasks.graph.binding import Bound
from tasks.graph.learned_text import tabulate_growth
from tasks.graph.node import Node
from tasks.graph.refit_history import batch_rows, history_lines
from tasks.graph.saved_workflow import find_fitted_folder, load_fitted, read_fitted
from tasks.graph.state import load_changes
from tasks.manifest import Manifest, folders_of
from tasks.ops.fitted_values import FittedSteps
from tasks.report import page
from tasks.report.profile_section import ColumnSummary
from tasks.storage.atomic import no_space, partial_file, write_text
from tasks.storage.cached_copies import copy_file
from tasks.storage.output_mirror import address_of
from tasks.storage.own_files import REPORTS, WORKFLOW
from tasks.storage.published_copy import PublishedCopy, open_published
from tasks.storage.store import MissingFileError

PERFORMANCE = REPORTS[1]
log = logging.getLogger("rowmill")


class ReportWriter:
    """Writes the reports of a run, one for each of its outputs. A report that fails is a warning, never a failed run.

    `folder` is the staging folder of the run, `target` the folder of the output, `plan_of(split)` reads the plan of a
    split. `job` is shown as YAML without its secrets, `run_page` is a link. With `wanted=False` only Dask's own report
    is written.
    """

    def __init__(
        self,
        folder: Path,
        target: Path,
        splits: Sequence[str],
        plan_of: Callable[[str], Plan],
        job: JsonObject,
        run_page: str = "",
        wanted: bool = True,
    ) -> None:
        self.folder = folder
        self.target = target
        self.splits = splits
        self.plan_of = plan_of
        self.job = job
        self.run_page = run_page
        self.wanted = wanted
        self.sources: dict[str, tuple[list[ColumnSummary], str]] = {}
        self.upstream: Sequence[str] = ()  # the paths that the output is made of
        self.performance = ""  # Dask's own report as HTML, where the job sets run.performance_report

    def look(self) -> None:
        """Profile a sample of the source: the plan is enough for it, so it may run while the stages do."""
        if not self.wanted:
            return
        try:
            page.template()
            for split in self.splits:
                self.sources[split] = page.source_sample(self.plan_of(split))
        except Exception as error:
            log.debug("the report has no sample of the source: %s: %s", type(error).__name__, error)

    def write(
        self,
        folder: Path,
        results: Sequence[StageResult],
        manifests: Mapping[str, JsonObject],
        bound: Bound,
        values: FittedSteps,
    ) -> None:
        """Write a `_report.html` into the folder of every output, from the manifests that it will have."""
        try:
            if self.performance:
                page.write_report(folder / PERFORMANCE, self.performance)
            if not self.wanted:
                return
            samples = {r.title: monitor.load(samples_path(self.folder, r.title)) for r in results}
            for split, manifest in manifests.items():
                source, note = self.sources.get(split, ([], ""))
                performance_link = f"{'../' if split else ''}{PERFORMANCE}" if self.performance else ""
                facts = page.Facts(
                    manifest,
                    bound,
                    values,
                    split,
                    results,
                    samples,
                    source,
                    note,
                    job_text(self.job),
                    self.run_page,
                    address_of(self.target / split),
                    performance_link,
                    *_read_batches(folder / WORKFLOW),
                    self.upstream,
                )
                page.write(facts, folder / split)
        except Exception as error:
            log.warning("the report could not be made: %s: %s", type(error).__name__, error)


def reports_of(
    out: str | Path, again: bool = False, storage_options: str | Mapping[str, Any] | None = None
) -> list[Path]:
    """Return the reports of an output; missing ones (all with `again`) are made from its manifest, workflow and files.

    Those of a URL are copied to this host, or made here. What only the run knew is not in a report that is made again:
    the samples of its workers, when its stages began, how its source looks, the job as it was written. DataError if
    there is no output.
    """
    with open_published(out, storage_options, "the output", "OUT", every_version=True) as origin:
        return [_find_report(folder, again, origin) for folder in folders_of(origin.folder)]


def _find_report(folder: Path, again: bool, origin: PublishedCopy) -> Path:
    path = folder / page.REPORT
    if again or not (path.exists() or _copy_report(path, origin)):
        _write_report(folder, origin)
    return path


def _copy_report(path: Path, origin: PublishedCopy) -> bool:
    """Copy the report of an output behind a URL; whether it has one."""
    if not origin.is_copy:
        return False
    try:
        file = origin.find_file(path)
    except MissingFileError:
        return False
    with no_space(path), partial_file(path) as partial:
        copy_file(origin.store, file, partial)
    return True


def _write_report(folder: Path, origin: PublishedCopy) -> None:
    manifest = Manifest.load(folder)
    saved = load_fitted(folder, look=True)
    columns = Schema(c for c in saved.schema.columns if c.name != ROW)
    bound = Bound(*_subject(saved.final, columns, manifest), saved.state.values)
    lines, batches, growth = _read_batches(find_fitted_folder(folder))
    facts = page.Facts(
        redact(manifest.data),
        bound,
        saved.state.values,
        target=origin.name(folder) if origin.is_copy else str(folder.resolve()),
        history=lines,
        batches=batches,
        growth=growth,
    )
    with no_space(folder):
        if origin.is_copy:
            write_text(folder / page.REPORT, page.render(facts, folder, origin))
        else:
            page.write(facts, folder)


def _read_batches(folder: Path) -> tuple[list[str], list[JsonObject], list[JsonObject]]:
    """Read what a report says of the batches that a fitted workflow has learned.

    That is: lines of text, the last batches, and what the last refit changed by step.
    """
    data = read_fitted(folder)
    return history_lines(folder, data), batch_rows(data), tabulate_growth(load_changes(folder).get("steps", {}))


def _subject(final: Node, schema: Schema, manifest: Manifest) -> tuple[Node, Schema]:
    """Return the graph without the labels that the data of an `apply` lacked."""
    left_out = manifest.data.get("left_out")
    if not left_out:
        return final, schema
    names = tuple(name for name in Bound(final, schema).output if name not in left_out)
    return Node("pick", (final,), selection=names), schema
