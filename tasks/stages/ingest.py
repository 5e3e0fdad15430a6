"""Stage 1, ingest: a plan of partitions, of source files whose schemas agree.

In: the request. Out: `plan.json` in the staging folder, with files, blocks and partitions of each split, and with
`source.keys` the rows brought together in scratch files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from tasks.cluster.pool import Pool
from tasks.core.plan import File
from tasks.core.stage_results import IngestResult
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError, JobError
from tasks.job.apply_fitted import adopt, bind_graph, list_differences, list_missing_labels
from tasks.job.fingerprints import fingerprint
from tasks.job.learned_files import check_new, find_learned_files
from tasks.job.published_before import find_published_work
from tasks.job.refitting import LEARN_FROM, copy_base, history_before
from tasks.job.request import Request, SavedPlans
from tasks.job.source_rules import condition_columns
from tasks.shuffle.row_order import compute_number_of_files
from tasks.sources.bad_lines import bad_lines_text, target_of, write_bad_lines
from tasks.sources.table_files import SourceFiles
from tasks.sources.uniting import files_differ
from tasks.stages.column_checks import check_columns, check_same_types
from tasks.stages.plan_splits import check_run_needs, plan_splits
from tasks.stages.planned_split import PlannedSplit
from tasks.stages.progress import Progress, no_progress
from tasks.stages.source_files import find_lookalike_data, list_files, list_split_paths
from tasks.stages.statistics import decide_modes
from tasks.storage.atomic import write_json
from tasks.storage.sample_data import describe_sample_data
from tasks.storage.sidecars import check_sidecars


def ingest(request: Request, pool: Pool, progress: Progress = no_progress) -> IngestResult:
    """Look at the source and write the plan of each split to `plan.json`; the plan of an earlier start is used again
    while the source stays as it is."""
    start = time.perf_counter()
    began = time.time()
    if request.fitted:
        adopt(request)
    if request.base:
        decide_modes(request)
        copy_base(request)
    paths = list_split_paths(request)
    split_files = {split: list_files(split, path, request.source) for split, path in paths.items()}
    listed = {split: {file.path: file for file in of_split.files} for split, of_split in split_files.items()}
    tables = {split: of_split for split, of_split in split_files.items() if of_split.table}
    if LEARN_FROM in listed and (twice := listed[LEARN_FROM].keys() & listed[request.plan_names[0]].keys()):
        paths[LEARN_FROM] = [path for path in listed[LEARN_FROM] if path not in twice]  # the batch is learned anyway
        listed[LEARN_FROM] = {path: listed[LEARN_FROM][path] for path in paths[LEARN_FROM]}
    sample = find_lookalike_data(listed) + (request.origin.made_up if request.origin else [])
    result = _plan(request, pool, paths, listed, tables, sample, began)
    saved = SavedPlans(request)
    bad = [file for split in paths for file in saved.bad_lines(split)]
    published = find_published_work(request, saved)
    if published is None:
        _check_output(request, saved)
    again = _refuse_learned(request, saved) if published is None else 0
    plans = {split: saved.plan(split) for split in request.plan_names}
    rows = sum(plan.numbered_rows for plan in plans.values())
    progress(rows, rows)
    first = plans[request.plan_names[0]]
    bound = bind_graph(request, first.schema)
    check_columns(request, bound)
    return IngestResult(
        rows=rows,
        nbytes=sum(plan.nbytes for plan in plans.values()),
        reused=result.reused,
        files=sum(len(saved.sources(split)[0]) for split in plans),
        skipped=sum(len(plan.skipped) for plan in plans.values()),
        blocks=sum(len(plan.blocks) for plan in plans.values()),
        partitions=sum(len(plan.partitions) for plan in plans.values()),
        columns=len(first.schema),
        output_columns=len(bound.output),
        threads=pool.threads,
        workers=len(pool.workers),
        left_out=", ".join(list_missing_labels(request, first.schema)),
        differs_from_fit="; ".join(list_differences(request, first)),
        made_up=describe_sample_data(sample) if sample else "",
        contract="; ".join(dict.fromkeys(result.notes)),
        united="; ".join(dict.fromkeys(result.grown)),
        bad_lines=sum(file["count"] for file in bad) if request.source.bad_lines != "error" else None,
        bad_lines_of=bad_lines_text(bad),
        exploded="; ".join(saved.data.get("exploded", ())),
        repeated=_describe_repeated_rows(request, saved),
        divided=_describe_division(request, saved),
        again=again,
        estimate={} if published or request.flow == "fit" else check_run_needs(request, plans, pool).summary(),
        published=str(published or ""),
        seconds=time.perf_counter() - start,
    )


def _describe_repeated_rows(request: Request, saved: SavedPlans) -> str:
    """How many rows of each split `source.unique` leaves out; "" without it.

    The numbers are of the rows that the filter keeps.
    """
    counts = {split: saved.count_repeated_rows(split) for split in request.plan_names}
    lines = [f"{count:,} rows{f' of {split}' if split else ''}" for split, count in counts.items() if count is not None]
    return ", ".join(lines)


def _describe_division(request: Request, saved: SavedPlans) -> str:
    """Where splits begin and which rows they have; "" where no look at all rows says so."""
    source = request.source
    division = saved.division
    if division is None or source.split is None:
        return ""
    column = source.split.column
    other_order = source.split.looks_back and source.keys and [column] != source.sort_by[:1]
    more = f"; histories are not in the order of {column}, which source.sort_by does not begin with"
    return division.text + (more if other_order else "")


def _check_output(request: Request, saved: SavedPlans) -> None:
    """Refuse an output that exists and is not the work of this request: the check that a run which resumes has left."""
    if not request.resumes:
        return
    try:
        request.staging.check(request.output.on_existing)
    except JobError:
        saved.path.unlink(missing_ok=True)
        raise


def _refuse_learned(request: Request, saved: SavedPlans) -> int:
    """A DataError for files that the base has learned already; how many there are where `refit.again` insists."""
    if not request.base:
        return 0
    history, files = history_before(request)
    if not request.base.again:
        try:
            check_new(saved.learned_files, files, history.get("nights", ()), request.base.path)
        except DataError:
            saved.path.unlink(missing_ok=True)  # nothing was begun that a later run could finish
            raise
    return len(find_learned_files(saved.learned_files, files))


class _PlanResult(NamedTuple):
    """reused: whether the plans of an earlier start are still right; notes: sentences on columns that the contract
    takes or leaves out; grown: sentences on columns about which files differ."""

    reused: bool
    notes: list[str]
    grown: list[str]


def _plan(
    request: Request,
    pool: Pool,
    paths: JsonObject,
    listed: Mapping[str, Mapping[str, File]],
    tables: Mapping[str, SourceFiles],
    sample: list[JsonObject],
    began: float,
) -> _PlanResult:
    """Write the plans of all splits to `plan.json`, unless those of an earlier start are still right; with the time at
    which this start `began`, from which its seconds count. `tables` are the splits that are states of a table."""
    saved = SavedPlans(request)
    listing = {split: [[f.path, f.size, f.mtime] for f in files.values()] for split, files in listed.items()}
    states = {split: of_split.table.note for split, of_split in tables.items() if of_split.table}
    wanted = fingerprint(request.plan_fingerprint, listing, *([states] if states else []))
    users = fingerprint(
        request.graph,
        request.source.filter,
        condition_columns(request.source),
        request.output.keys,
        request.output.sort_by,
    )
    reused = (
        saved.data.get("fingerprint") == wanted
        and saved.data.get("users") in (None, users)
        and all(saved.is_of(split, listed[split]) for split in paths)
        and (not request.source.keys or saved.complete(request.plan_names))
        and saved.has_all_parsed_text(request.plan_names)
        and saved.row_sets_whole(request.plan_names)
    )
    target = target_of(request.source)
    check_sidecars([target] if target else [], request.read_paths, request.staging)
    reused = reused and not (target and not target.path.exists())
    notes: list[str] = saved.data.get("contract", []) if reused else []
    grown: list[str] = saved.data.get("united", []) if reused else []
    if not reused:
        planned = plan_splits(request, pool, paths, tables)
        notes = [note for one in planned.values() for note in one.notes]
        grown = [note for one in planned.values() for note in one.grown]
        if target:
            write_bad_lines(target, [one.bad for one in planned.values()])
        if request.source.valid:
            check_same_types(planned["train"].plan.schema, planned["valid"].plan.schema)
        _note_plans(saved, planned)
        depends_on_users = request.source.parse_once or any(files_differ(one.plan) for one in planned.values())
        saved.data["users"] = users if depends_on_users else None
    numbers = _number_of_files(request, saved, pool) if request.flow != "fit" else {}
    run = {"fingerprint": wanted, "started": began, "files": numbers, "made_up": sample, "tables": states}
    write_json(saved.path, {**saved.data, **run, "contract": notes, "united": grown})
    return _PlanResult(reused, notes, grown)


def _note_plans(saved: SavedPlans, planned: Mapping[str, PlannedSplit]) -> None:
    """Take the plans of all splits, and what is known of their rows and files, into the data of `plan.json`."""
    saved.set_plans(
        {split: one.plan for split, one in planned.items()},
        origins={split: one.origins for split, one in planned.items() if one.origins is not None},
        repeated={split: one.repeated for split, one in planned.items() if one.repeated is not None},
        division=next((one.division for one in planned.values() if one.division), None),
    )
    saved.data["learned_files"] = [file for one in planned.values() for file in one.learned]
    saved.data["columns"] = {split: one.columns for split, one in planned.items()}
    exploded = {split: one.exploded for split, one in planned.items() if one.exploded}
    saved.data["exploded"] = [f"{split}: {text}" if split else text for split, text in exploded.items()]
    saved.data["bad_lines"] = {split: files for split, one in planned.items() if (files := one.bad[1])}


def _number_of_files(request: Request, saved: SavedPlans, pool: Pool) -> dict[str, int]:
    """How many files each split would have if no row of its plan was left out: its positions are divided by them."""
    workers = len(pool.planned_for.workers)
    files: dict[str, int] = {}
    for split in request.splits:
        plan = saved.plan(split)
        files[split] = compute_number_of_files(
            request.output, plan.rows, bind_graph(request, plan.schema).output, workers
        )
    return files
