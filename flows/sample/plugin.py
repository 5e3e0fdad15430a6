"""Look-alike data of a job, which are made where its source has none yet; runs on them are marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, TypeGuard

from prefect import get_client
from prefect.context import FlowRunContext

from flows.job.job import Job
from flows.job.refit_job import AnyJob
from flows.sample import make_sample
from tasks.core.settings import Sample
from tasks.core.stage_results import IngestResult, StageResult
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.stages import progress_artifact
from tasks.storage.sample_data import marker

MADE_UP = "made-up-data"  # tag of a run; infra/automations.yaml looks at it, too
VALID_PART = 5  # the validation data have a fifth of the rows


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
    """Make the look-alike data of `source.sample` at `source.path`, and at `source.valid` if the sample has valid data.

    A folder is made where none is yet; one that a run was cut off making is completed.
    """
    sample = job.source.sample
    if sample is None:
        return
    if _is_plain_folder(job.source.path):
        _make_one_sample(Path(job.source.path), sample, sample.rows, sample.seed, False, log)
    if sample.valid and _is_plain_folder(job.source.valid):
        rows = max(1, sample.rows // VALID_PART)
        _make_one_sample(Path(job.source.valid), sample, rows, sample.seed + 1, sample.later, log)


def _is_plain_folder(path: object) -> TypeGuard[str]:
    """Tell whether data can be made at a path: it is not a list, a pattern or a URL."""
    return isinstance(path, str) and not any(char in path for char in "*?[") and "://" not in path


def _make_one_sample(folder: Path, sample: Sample, rows: int, seed: int, drift: bool, log: Any) -> None:
    if folder.exists():
        record = marker(folder)
        if (record.get("rows"), record.get("seed")) != (rows, seed):
            return
    log.info("making %s look-alike rows of %s in %s", f"{rows:,}", sample.name, folder)
    make_sample(sample.name, folder, rows, seed, drift=drift, columns=sample.columns)  # keeps a folder that is whole
    mark_made_up()  # before ingest ends, so that a run which fails earlier is marked, too


def mark_made_up() -> None:
    """Tag the run as one on made-up data, for its page and for notifications."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or MADE_UP in run.tags:
        return
    run.tags = [*run.tags, MADE_UP]
    with progress_artifact.open_prefect_client(), get_client(sync_client=True) as client:
        client.update_flow_run(run.id, tags=run.tags)
