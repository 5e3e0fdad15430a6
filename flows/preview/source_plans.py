"""The data of a job and the plan of each split, as ingest makes it, without a run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.job.job import Job
from flows.job.refit_job import AnyJob
from infra.clusters.expected import ExpectedWorkers
from tasks.cluster.parallelism import make_sizing
from tasks.core.plan import Plan
from tasks.core.wings import from_wing
from tasks.errors import DataError, RowmillError
from tasks.job.apply_fitted import adapt_plan, list_null_types
from tasks.job.request import Request
from tasks.sources.exploded import describe_explode
from tasks.sources.planning import make_plan
from tasks.sources.uniting import uniting_notes
from tasks.stages.column_checks import check_same_types
from tasks.stages.plan_splits import apply_contract
from tasks.stages.source_files import naming_valid
from tasks.storage.sample_data import describe_sample_data, find_sample_folders

SAMPLE_ROWS = 20_000  # of look-alike data that are made for a preview alone


def describe_lookalike_data(request: Request, plans: Mapping[str, Plan], to_be_made: bool) -> str:
    """What of the source is look-alike data, or what the applied workflow was fitted on; "" if nothing is."""
    if to_be_made:
        return "look-alike data, which the run will make"
    paths = (file.path for plan in plans.values() for file in plan.files)
    return describe_sample_data([*find_sample_folders(paths), *(request.origin.made_up if request.origin else ())])


@contextmanager
def provide_data(job: AnyJob, request: Request) -> Iterator[tuple[Request, float]]:
    """The request on data that are there: those of `source.sample` that are not made yet, as a few rows elsewhere."""
    source = request.source
    paths = [p for p in (source.path, source.valid) if isinstance(p, str)]
    sample = source.sample if isinstance(job, Job) else None
    make_sample = from_wing("flows/sample", "write", "make_sample")
    if (
        sample is None
        or make_sample is None
        or "://" in paths[0]
        or any(c in paths[0] for c in "*?[")
        or Path(paths[0]).exists()
    ):
        yield request, 1.0
        return
    rows = min(sample.rows, SAMPLE_ROWS)
    with tempfile.TemporaryDirectory(prefix="rowmill-preview-") as folder:
        changed = {}
        for number, (name, path) in enumerate(zip(("path", "valid"), paths, strict=False)):
            place = Path(folder) / name
            if number and (Path(path).exists() or not sample.valid):
                continue
            some = rows if number == 0 else max(1, rows // 5)
            drift = sample.later and number > 0
            make_sample(sample.name, place, some, sample.seed + number, drift=drift, columns=sample.columns)
            changed[name] = str(place)
        sections = {**request.sections, "source": {**request.sections["source"], **changed}}
        yield replace(request, sections=sections), sample.rows / rows


def plan_source(
    request: Request, workers: ExpectedWorkers, contract: list[str], refused: list[RowmillError]
) -> dict[str, Plan]:
    """The plan of every split, as ingest makes it; what the contract says of it is added to `contract`, and the error
    of one that it does not allow to `refused`."""
    source = request.source
    run = request.run
    names: dict[str, Any] = {"train": source.path, "valid": source.valid} if source.valid else {"": source.path}
    plans = {}
    with ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:
        for split, path in names.items():
            with naming_valid(split):
                plan = make_plan(
                    source.at(path),
                    parallel_map=pool.map,
                    sizing=make_sizing(request.engine, workers, run.min_partition_size),
                    null_types=list_null_types(request),
                    fit=request.fit,
                )
            if request.rules is not None:
                try:
                    plan, notes = apply_contract(plan, request.rules, split)
                    contract += notes
                except DataError as error:
                    refused.append(error)
            plans[split] = adapt_plan(request, plan)
    if source.valid:
        check_same_types(plans["train"].schema, plans["valid"].schema)
    return plans


def list_reading_notes(plans: Mapping[str, Plan], used: Collection[str]) -> list[str]:
    """What to know of how the files of all splits are read: lists that become rows, and columns about which files
    differ."""
    exploded = [text for plan in plans.values() if (text := describe_explode(plan))]
    return exploded + [text for plan in plans.values() for text in uniting_notes(plan, used)]
