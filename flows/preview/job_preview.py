"""The preview of a job: schema, sample rows, plan, needs, time, and the reasons for which the run would be refused."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.job.files_beside import check_files_beside
from flows.job.job import Application, Job
from flows.job.refit_job import AnyJob, Refit
from flows.job.run_history import Guess, guess
from infra.clusters.expected import ExpectedWorkers, estimate_workers
from infra.clusters.model import Cluster
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.parallelism import sizing
from tasks.core.plan import Plan
from tasks.core.row_sizes import row_bytes, row_width
from tasks.core.schema import Schema
from tasks.core.settings import FlowName, Source
from tasks.core.wings import from_wing
from tasks.engines.expression.syntax import parse
from tasks.errors import DataError, GiveUpError, JobError, RowmillError
from tasks.graph.binding import SOURCE, Bound
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import wants_unit
from tasks.job.apply_fitted import adapt_plan, bound_of, differences_of, missing_labels, null_types, subject
from tasks.job.base_version import describe_batches, newest_good, other_ids_text
from tasks.job.refitting import match_to_base
from tasks.job.request import Request
from tasks.job.run_date import Dated
from tasks.job.source_rules import condition_columns, looks
from tasks.job.text_order import check_text_order
from tasks.learning.refit_modes import mode_rows
from tasks.shuffle.key_ranges import SourceRows
from tasks.shuffle.row_order import Estimated, choice_text, choose_files, list_output_places, number_of_files
from tasks.shuffle.row_sets import unit_of_numbers
from tasks.sources.bad_lines import bad_lines_of, bad_lines_text
from tasks.sources.exploded import describe_explode
from tasks.sources.planning import make_plan
from tasks.sources.uniting import uniting_notes, without_unused
from tasks.stages.column_checks import check_columns, check_same_types
from tasks.stages.needs import ResourceEstimate, needs, too_little_memory, too_small
from tasks.stages.plan_splits import apply_contract
from tasks.stages.source_files import naming_valid
from tasks.stages.statistics import modes_of
from tasks.stages.trial import Sampled, list_used_columns, phases_of, run_trial
from tasks.storage.atomic import existing
from tasks.storage.sample_data import describe_sample_data, find_sample_folders

SAMPLE_ROWS = 20_000  # of look-alike data that are made for a preview alone


@dataclass(frozen=True)
class Reading:
    """One pass over the source: its purpose, its columns, about how many decoded bytes."""

    what: str
    columns: list[str]
    nbytes: int


@dataclass(frozen=True)
class SplitFiles:
    """The files of a split: `rows` of its source become about `left` rows; `chosen` says what the number was chosen
    for, "" for a number that the job gives."""

    number: int
    rows: int
    left: int
    chosen: str = ""


@dataclass(frozen=True)
class Preview:
    """The content of a preview. `scale` is above 1 where the plans are of fewer look-alike rows than the job makes."""

    target: str
    workers: ExpectedWorkers
    plans: Mapping[str, Plan]
    source: Schema
    job_source: Source
    sample: Sampled
    readings: list[Reading]
    needs: ResourceEstimate | None
    files: dict[str, SplitFiles]
    guess: Guess | None
    refused: list[RowmillError] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    united: list[str] = field(default_factory=list)
    contract: list[str] = field(default_factory=list)
    bad_lines: str = ""
    made_up: str = ""
    scale: float = 1.0
    dated: Dated | None = None
    base: str = ""
    modes: list[dict[str, str]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return int(sum(plan.rows for plan in self.plans.values()) * self.scale)

    @property
    def nbytes(self) -> int:
        return int(sum(plan.nbytes for plan in self.plans.values()) * self.scale)


def preview(job: AnyJob, flow: FlowName = "preprocess") -> Preview:
    """Preview a job without writing anything or starting a cluster; raises the errors of job and data."""
    refused: list[RowmillError] = []
    contract: list[str] = []
    workers = _workers(job.cluster, refused)
    request, base = _on_base(job, replace(job.request(workers.engine), flow=flow))
    wanted_source = request.source
    check_files_beside(request)
    with _data(job, request) as (request, scale):
        plans = _plans(request, workers, contract, refused)
        used = list_used_columns(request, bound_of(request, plans[request.plan_names[0]].schema))
        plans = {split: without_unused(plan, used) for split, plan in plans.items()}
        first = plans[request.plan_names[0]]
        bound = bound_of(request, first.schema)
        sort = request.output.sort_by if flow != "fit" else []
        check_text_order(first, first, request.source, LocalPool(), bound, sort)
        check_columns(request, bound)
        _check_unit_of_split(request, first)
        sample = run_trial(request, first)
    files = _files(request, plans, sample, scale, len(workers.workers))
    wanted = needs(request, plans, workers, sample, scale) if flow != "fit" else None
    if flow != "fit":
        _check_order(request, plans)
    refused += _collect_target_errors(request, wanted)
    if wanted and (error := too_little_memory(request, plans, workers)):
        refused.append(error)
    changes = match_to_base(request, first.schema)
    return Preview(
        target=str(request.staging.target),
        workers=workers,
        plans=plans,
        source=first.schema,
        job_source=request.source,
        sample=sample,
        readings=_readings(request, bound, plans, scale),
        needs=wanted,
        files=files if wanted else {},
        guess=_guess_time(request, plans, scale, workers),
        refused=refused,
        scale=scale,
        left_out=missing_labels(request, first.schema),
        differs=differences_of(request, first),
        made_up=_describe_lookalike_data(request, plans, request.source != wanted_source),
        dated=job.dated,
        united=_reading_notes(plans, used),
        contract=list(dict.fromkeys(contract)),
        bad_lines=bad_lines_text([file for plan in plans.values() for file in bad_lines_of(plan)]),
        base="; ".join([base, *(changes.lines if changes else ())]),
        modes=mode_rows(modes_of(request, first.schema)),
    )


def _guess_time(request: Request, plans: Mapping[str, Plan], scale: float, workers: ExpectedWorkers) -> Guess | None:
    """How long the run may take, by earlier runs of the job."""
    rows = sum(plan.rows for plan in plans.values())
    nbytes = sum(plan.nbytes for plan in plans.values())
    return guess(request, int(rows * scale), int(nbytes * scale), workers.threads)


def _check_unit_of_split(request: Request, plan: Plan) -> None:
    """A JobError if the times by which rows are split are numbers that do not tell their unit.

    Only the first and the last partition are read: where times have an order, they have the least and the largest.
    """
    rule = request.source.split
    if rule and wants_unit(plan.schema, rule):
        ends = replace(plan, partitions=tuple({plan.partitions[0], plan.partitions[-1]}))
        unit_of_numbers(SourceRows(ends, ends, "pandas", LocalPool(), request.source.filter), rule)


def _reading_notes(plans: Mapping[str, Plan], used: Collection[str]) -> list[str]:
    """What to know of how the files of all splits are read: lists that become rows, and columns about which files
    differ."""
    exploded = [text for plan in plans.values() if (text := describe_explode(plan))]
    return exploded + [text for plan in plans.values() for text in uniting_notes(plan, used)]


def _files(
    request: Request, plans: Mapping[str, Plan], sample: Sampled, scale: float, workers: int
) -> dict[str, SplitFiles]:
    """The files of each split. What is left of its rows is estimated from the sample, and from the shares of a split;
    a run chooses by the rows that it counts."""
    output = request.output
    source = request.source
    files = dict[str, SplitFiles]()
    is_whole = _keeps_all_rows(source, bound_of(request, plans[request.plan_names[0]].schema))
    for split in request.splits:
        rows = int(plans[source.plan_name(split)].rows * scale)
        share = source.split.share_of(split) if source.split else 1.0
        left = round(rows * sample.ratio * (1.0 if share is None else share))
        if not output.chooses_files:
            files[split] = SplitFiles(number_of_files(output, rows, sample.schema, workers), rows, left)
            continue
        estimated: Estimated = "at most " if source.unique or share is None else "about "
        chosen = choice_text(left, row_width(sample.schema), "" if is_whole else estimated)
        more = "" if is_whole else "; the run counts them"
        files[split] = SplitFiles(choose_files(left, sample.schema), rows, left, f"{chosen}{more}")
    return files


def _keeps_all_rows(source: Source, bound: Bound) -> bool:
    """Whether a row comes out for each row of the source."""
    leaves_out = source.filter or source.unique or source.split or source.downsample or bound.filters
    return bound.space == SOURCE and not leaves_out


def _on_base(job: AnyJob, request: Request) -> tuple[Request, str]:
    """(the request on top of the base that a run would take now, a sentence on it or on having none); the base is not
    read whole."""
    if isinstance(job, Application):
        return request, ""
    if job.base_path is None:
        return request, other_ids_text(request)
    choice = newest_good(job.base_path, thorough=False)
    if choice.version is None:
        text = choice.all_discarded(job.base_path) or f"nothing is published at {job.base_path} yet: the run is a fit"
        return request, text
    version = choice.version
    passed = [*choice.damaged.values(), *(f"{name} was discarded" for name in choice.discarded)]
    more = f"; newer, and not good: {'; '.join(passed)}" if passed else ""
    inherited = f"; as in the base: {job.inherited}" if isinstance(job, Refit) and job.inherited else ""
    text = f"{version.path}, {version.learned_rows:,} rows of {describe_batches(version.data)}{more}{inherited}"
    return replace(job.request(request.engine, version), flow=request.flow), text


def _describe_lookalike_data(request: Request, plans: Mapping[str, Plan], to_be_made: bool) -> str:
    """What of the source is look-alike data, or what the applied workflow was fitted on; "" if nothing is."""
    if to_be_made:
        return "look-alike data, which the run will make"
    paths = (file.path for plan in plans.values() for file in plan.files)
    return describe_sample_data([*find_sample_folders(paths), *(request.origin.made_up if request.origin else ())])


def _workers(cluster: Cluster, refused: list[RowmillError]) -> ExpectedWorkers:
    """The workers of the run; without any the reason is added to `refused`, and the cores of this host count."""
    try:
        return estimate_workers(cluster)
    except GiveUpError as error:
        refused.append(error)
        return estimate_workers(Cluster(kind="cpu"))


@contextmanager
def _data(job: AnyJob, request: Request) -> Iterator[tuple[Request, float]]:
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


def _plans(
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
                    source.model_copy(update={"path": path, "valid": None}),
                    parallel_map=pool.map,
                    sizing=sizing(request.engine, workers, run.min_partition_size),
                    null_types=null_types(request),
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


def _check_order(request: Request, plans: Mapping[str, Plan]) -> None:
    """The columns that `output.keys` and `sort_by` name exist."""
    for plan in plans.values():
        final, schema = subject(request, plan.schema)
        list_output_places(Work(plan, final, schema, "pandas"), request.output, plan)


def _readings(request: Request, bound: Bound, plans: Mapping[str, Plan], scale: float) -> list[Reading]:
    """The passes over the source, with the share of its bytes that their columns are."""
    source = request.source
    first = plans[request.plan_names[0]]
    always = condition_columns(request.source, False)
    readings = []
    for look in looks(source, first.schema):
        filtered_by = parse(source.filter).columns if source.filter else ()
        names = [n for n in first.schema if n in {*look.columns, *filtered_by}]
        nbytes = int(first.nbytes * _share(first, names) * scale)
        readings.append(Reading(f"ingest: {look.what}", names, nbytes))
    if source.keys:
        readings.append(Reading("ingest: rows grouped by keys", list(first.schema), int(first.nbytes * scale)))
    if not request.fitted:
        for number, columns in enumerate(phases_of(bound), 1):
            names = [n for n in first.schema if n in {*columns, *always}]
            readings.append(
                Reading(f"statistics, phase {number}", names, int(first.nbytes * _share(first, names) * scale))
            )
    if request.flow == "fit":
        return readings
    filters = [place for f in bound.filters for place in f.inputs.values()]
    columns = bound.source_columns([*bound.targets, *filters], training=not request.fitted)
    for split in request.splits:
        plan = plans[source.plan_name(split)]
        names = [n for n in plan.schema if n in {*columns, *always}]
        readings.append(Reading(f"transform {split}".strip(), names, int(plan.nbytes * _share(plan, names) * scale)))
    return readings


def _share(plan: Plan, names: list[str]) -> float:
    """The part of a row's bytes that these columns are."""
    width = {name: row_bytes(Schema([column])) for name, column in plan.schema.items()}
    return sum(width[n] for n in names) / max(sum(width.values()), 1)


def _collect_target_errors(request: Request, wanted: ResourceEstimate | None) -> list[RowmillError]:
    """The errors of the run's target and disks."""
    staging = request.staging
    errors = []
    try:
        staging.check(request.output.on_existing)
    except RowmillError as error:
        errors.append(error)
    for place in {existing(staging.folder), existing(staging.target.parent)}:
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            why = "this user may not write there" if place.is_dir() else "it is a file"
            errors.append(
                JobError(
                    "the output cannot be written",
                    where=str(place),
                    why=why,
                    do="choose another output.path or run.scratch",
                )
            )
    if wanted:
        errors += [too_small(disk) for disk in wanted.disks if disk.short]
    return errors
