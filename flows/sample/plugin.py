"""Look-alike data of a job, which are made where its source has none yet; runs on them are marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from prefect import get_client
from prefect.context import FlowRunContext

from flows.job.job import Job
from flows.job.refit_job import AnyJob
from flows.sample import make_sample
from tasks.core.stage_results import IngestResult, StageResult
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.stages import progress_artifact
from tasks.storage.sample_data import marker

MADE_UP = "made-up-data"  # tag of a run; infra/automations.yaml looks at it, too


class SamplesPlugin(RunPlugin):
    """Makes the data that `source.sample` asks for, and tags a run that reads made-up data."""

    place: ClassVar[int] = 60

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def begin(self, run: CurrentRun) -> None:
        if isinstance(self.job, Job):
            make_samples(self.job, run.log)

    def after(self, run: CurrentRun, result: StageResult) -> None:
        if isinstance(result, IngestResult) and result.made_up:
            mark_made_up()


def make_samples(job: Job, log: Any) -> None:
    """Make look-alike data for `source.sample` where nothing is at `source.path` yet, or where a run was cut off making
    it."""
    sample = job.source.sample
    paths = [(n, p) for n, p in enumerate((job.source.path, job.source.valid)) if isinstance(p, str)]
    for number, path in paths:
        folder = Path(path)
        if sample and (sample.valid or not number) and not any(c in path for c in "*?[") and "://" not in path:
            rows = sample.rows if number == 0 else max(1, sample.rows // 5)
            drift = sample.later and number > 0
            begun = marker(folder)
            if not folder.exists() or (begun.get("rows"), begun.get("seed")) == (rows, sample.seed + number):
                log.info("making %s look-alike rows of %s in %s", f"{rows:,}", sample.name, folder)
                make_sample(sample.name, folder, rows, sample.seed + number, drift=drift, columns=sample.columns)
                mark_made_up()


def mark_made_up() -> None:
    """Tag the run, for its page and for whoever is notified: its data are made up."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or MADE_UP in run.tags:
        return
    run.tags = [*run.tags, MADE_UP]
    with progress_artifact.fresh_client(), get_client(sync_client=True) as client:
        client.update_flow_run(run.id, tags=run.tags)
