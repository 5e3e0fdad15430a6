"""The base of a run: the version of an output that it learns on top of, and what differs from it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import ClassVar

from flows.job.job import Application, Job
from flows.job.refit_job import AnyJob, Refit
from tasks.core.stage_results import StageResult
from tasks.core.versions import rowmill_version
from tasks.errors import JobError
from tasks.job.base_version import (
    check_not_discarded,
    describe_batches,
    describe_other_ids,
    discard_damaged,
    explain_no_base,
    find_newest_good,
)
from tasks.job.refitting import match_to_base
from tasks.job.request import SavedPlans
from tasks.learning.refit_modes import mode_lines
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.stages.statistics import decide_modes
from tasks.storage.output_mirror import address_of

NO_BASE = "there is no base, and all is learned from source.path"


class BasePlugin(RunPlugin):
    """Puts the request of a run on top of the newest good version of its base, and looks whether that is still good
    before anything is shuffled, and before the commit."""

    place: ClassVar[int] = 50

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def begin(self, run: CurrentRun) -> None:
        choose_base(self.job, run)
        if isinstance(self.job, Job) and self.job.refit.learn_from and not run.request.changes_features:
            why = "the base has the features of the job" if run.request.base else NO_BASE
            run.log.info("refit.learn_from is not read: %s", why)

    def after(self, run: CurrentRun, result: StageResult) -> None:
        if result.stage == "ingest":
            for line in describe_changes(run):
                run.log.warning("differs from the base: %s", line)
        elif result.stage == "statistics":
            check_not_discarded(run.request)

    def before_commit(self, run: CurrentRun) -> None:
        check_not_discarded(run.request)


def choose_base(job: AnyJob, run: CurrentRun) -> None:
    """Put the request on top of the newest good version of the base, chosen by the owner of the output's lock; it stays
    as it is for a job without a base, and for the first run of an output that is its own base.

    The log says which version it is, and which newer ones are damaged or discarded. A JobError where there is no base
    at another place than the output's.
    """
    request = run.request
    log = run.log
    if isinstance(job, Application):
        return
    if job.base_path is None:
        if text := describe_other_ids(request):
            log.warning("%s", text)
        return
    root = job.base_path
    if job.output.keep_versions is not None:
        log.warning(
            "output.keep_versions: %s removes data: each version has only the rows of its own night",
            job.output.keep_versions,
        )
    choice = find_newest_good(root)
    address = address_of(root)
    for line in discard_damaged(choice, stops=job.checks.on_finding == "stop"):
        log.warning("not the base, since it is damaged: %s", line)
    if choice.on_discarded:
        log.warning("%s", choice.on_discarded)
    if choice.discarded:
        log.info("not the base, since discarded: %s", ", ".join(choice.discarded))
    staging = request.staging
    version = choice.version
    if version is None:
        if not isinstance(job, Job) or (os.path.realpath(root) != str(staging.target) and not job.patterns("base")):
            raise JobError(
                "there is no base",
                where=f"base: {address}",
                why=explain_no_base(root),
                do="correct base; or, in a job for rowmill run, write base: none to learn from the source alone",
            )
        first = f"there is no base at {address} yet: this run is a fit and writes the first version of the output"
        log.warning("%s", choice.all_discarded(root) or first)
        run.request = replace(request, no_base=True)
        return
    if os.path.realpath(root) == str(staging.target):
        staging.point_to(version.path)  # a run that was cut off may not have come so far
    based = replace(
        job.request(request.engine, version),
        flow=request.flow,
        owner=request.owner,
        resumes=request.resumes,
        stage_engines=request.stage_engines,
    )
    place = address_of(version.path)
    log.info("the base is %s: %s rows of %s", place, f"{version.learned_rows:,}", describe_batches(version.data))
    if (written_by := version.data.get("rowmill")) != rowmill_version():
        log.info("the base was written by rowmill %s, this is %s", written_by, rowmill_version())
    if isinstance(job, Refit) and job.inherited:
        log.info("as in the base: %s", job.inherited)
    if not version.data.get("history"):
        log.warning("%s does not say which files it has learned: files that come again cannot be refused", place)
    for line in mode_lines({key: mode for key, mode in decide_modes(based).items() if mode.mode == "frozen"}):
        log.warning("%s", line)
    run.request = based


def describe_changes(run: CurrentRun) -> list[str]:
    """In what the features of a job differ from those of its base, and what becomes of each; [] where they do not."""
    plan = SavedPlans(run.request).plan(run.request.splits[0])
    changes = match_to_base(run.request, plan.schema)
    return list(changes.lines) if changes else []
