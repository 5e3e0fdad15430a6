"""Stage 1, ingest: a plan of partitions, of source files whose schemas agree.

In: the request. Out: `plan.json` in the staging folder, with files, blocks and partitions of each split, and with
`source.keys` the rows brought together in scratch files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tasks.cluster.parallelism import sizing
from tasks.cluster.pool import Pool
from tasks.core.contract import Contract, check_contract
from tasks.core.dtypes import dtype_name
from tasks.core.plan import PARSED, Block, File, Plan, Sizing
from tasks.core.schema import Schema
from tasks.core.settings import OF_STEPS
from tasks.core.stage_results import IngestResult
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError, JobError, NoInputError, near
from tasks.graph.binding import Bound
from tasks.graph.row_rules import Division, RowRules
from tasks.job.apply_fitted import adapt_plan, adopt, base_schema, bound_of, differences_of, missing_labels, null_types
from tasks.job.fingerprints import fingerprint
from tasks.job.learned_files import check_new, digest_file_samples, find_learned_files
from tasks.job.published_before import find_published_work
from tasks.job.refitting import LEARN_FROM, copy_base, history_before
from tasks.job.request import PlanOf, Request
from tasks.job.source_rules import check_splitting, condition_columns
from tasks.job.text_order import check_text_order
from tasks.shuffle.group_by_keys import by_keys, check_runs
from tasks.shuffle.key_ranges import SourceRows, empty_folder
from tasks.shuffle.parts import check_types
from tasks.shuffle.row_order import number_of_files
from tasks.shuffle.row_sets import check_unique, find_repeated_rows, split_division
from tasks.sources.bad_lines import FileWithBadLines, bad_lines_of, bad_lines_text, target_of, write_bad_lines
from tasks.sources.exploded import describe_explode
from tasks.sources.formats import FORMATS, read_options
from tasks.sources.parsed_text import locate_block_file, with_parsed, write_table
from tasks.sources.planning import (
    NoRowsError,
    NoValidationRowsError,
    make_plan,
    partition_size,
)
from tasks.sources.reader import read
from tasks.sources.uniting import differ, in_one_type, uniting_notes, with_missing, without_unused
from tasks.stages.needs import ResourceEstimate, check_needs
from tasks.stages.progress import Progress, no_progress
from tasks.stages.statistics import modes_of
from tasks.stages.trial import list_profiled_columns, list_used_columns
from tasks.storage import hive
from tasks.storage.atomic import write_json
from tasks.storage.files import check_unchanged, expand
from tasks.storage.files_being_read import FOLDER
from tasks.storage.sample_data import describe_sample_data, find_sample_folders
from tasks.storage.sidecars import check_sidecars


def ingest(request: Request, pool: Pool, progress: Progress = no_progress) -> IngestResult:
    """Look at the source and write the plan of each split to `plan.json`; the plan of an earlier start is used again
    while the source stays as it is."""
    start = time.perf_counter()
    began = time.time()
    if request.fitted:
        adopt(request)
    if request.base:
        modes_of(request)
        copy_base(request)
    paths = _paths(request)
    storage_options = read_options(request.source)["storage_options"]
    listed = {split: _list_files(split, path, storage_options) for split, path in paths.items()}
    if LEARN_FROM in listed and (twice := listed[LEARN_FROM].keys() & listed[request.plan_names[0]].keys()):
        paths[LEARN_FROM] = [path for path in listed[LEARN_FROM] if path not in twice]  # the night is learned anyway
        listed[LEARN_FROM] = {path: listed[LEARN_FROM][path] for path in paths[LEARN_FROM]}
    sample = _find_lookalike_data(listed) + (request.origin.made_up if request.origin else [])
    result = _plan(request, pool, paths, listed, sample, began)
    saved = PlanOf(request)
    bad = [file for split in paths for file in saved.bad_lines(split)]
    published = find_published_work(request, saved)
    if published is None:
        _check_output(request, saved)
    again = _refuse_learned(request, saved) if published is None else 0
    plans = {split: saved.plan(split) for split in request.plan_names}
    rows = sum(plan.numbered_rows for plan in plans.values())
    progress(rows, rows)
    first = plans[request.plan_names[0]]
    bound = bound_of(request, first.schema)
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
        left_out=", ".join(missing_labels(request, first.schema)),
        differs_from_fit="; ".join(differences_of(request, first)),
        made_up=describe_sample_data(sample) if sample else "",
        contract="; ".join(dict.fromkeys(result.notes)),
        united="; ".join(dict.fromkeys(result.grown)),
        bad_lines=sum(file["count"] for file in bad) if request.source.bad_lines != "error" else None,
        bad_lines_of=bad_lines_text(bad),
        exploded="; ".join(saved.data.get("exploded", ())),
        repeated=_describe_repeated_rows(request, saved),
        divided=_describe_division(request, saved),
        again=again,
        estimate={} if published or request.flow == "fit" else _check_run_needs(request, plans, pool).summary(),
        published=str(published or ""),
        seconds=time.perf_counter() - start,
    )


def _describe_repeated_rows(request: Request, saved: PlanOf) -> str:
    """How many rows of each split `source.unique` leaves out; "" without it.

    The numbers are of the rows that the filter keeps.
    """
    counts = {split: saved.count_repeated_rows(split) for split in request.plan_names}
    lines = [f"{count:,} rows{f' of {split}' if split else ''}" for split, count in counts.items() if count is not None]
    return ", ".join(lines)


def _describe_division(request: Request, saved: PlanOf) -> str:
    """Where splits begin and which rows they have; "" where no look at all rows says so."""
    source = request.source
    division = saved.division
    if division is None or source.split is None:
        return ""
    column = source.split.column
    other_order = source.split.looks_back and source.keys and [column] != source.sort_by[:1]
    more = f"; histories are not in the order of {column}, which source.sort_by does not begin with"
    return division.text + (more if other_order else "")


def _paths(request: Request) -> JsonObject:
    """The path of each split of a job, and that of the rows which steps learn from that the base does not have."""
    source = request.source
    paths = {"train": source.path, "valid": source.valid} if source.valid else {"": source.path}
    if request.base and request.base.learn_from:
        paths[LEARN_FROM] = request.base.learn_from
    return paths


def _find_lookalike_data(listed: Mapping[str, Mapping[str, File]]) -> list[JsonObject]:
    """The look-alike data among the files of each split."""
    return [
        one | {"of": "valid"} if split == "valid" else one
        for split, files in listed.items()
        for one in find_sample_folders(files)
    ]


def _check_output(request: Request, saved: PlanOf) -> None:
    """Refuse an output that exists and is not the work of this request: the check that a run which resumes has left."""
    if not request.resumes:
        return
    try:
        request.staging.check(request.output.on_existing)
    except JobError:
        saved.path.unlink(missing_ok=True)
        raise


def _refuse_learned(request: Request, saved: PlanOf) -> int:
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


def _digest_files(plan: Plan, storage_options: Mapping[str, Any] | None, pool: Pool) -> list[list[Any]]:
    """Path, size and digest of the files that have rows."""
    files = [plan.files[number] for number in sorted({p.file for block in plan.blocks for p in block.pieces})]
    digests = _map_in_chunks(pool, partial(digest_file_samples, storage_options=storage_options), files)
    return [[file.path, file.size, digest] for file, digest in zip(files, digests, strict=True)]


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
    sample: list[JsonObject],
    began: float,
) -> _PlanResult:
    """Write the plans of all splits to `plan.json`, unless those of an earlier start are still right; with the time at
    which this start `began`, from which its seconds count."""
    saved = PlanOf(request)
    listing = {split: [[f.path, f.size, f.mtime] for f in files.values()] for split, files in listed.items()}
    wanted = fingerprint(request.plan_fingerprint, listing)
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
        planned = _plan_splits(request, pool, paths)
        notes = [note for one in planned.values() for note in one.notes]
        grown = [note for one in planned.values() for note in one.grown]
        if target:
            write_bad_lines(target, [one.bad for one in planned.values()])
        if request.source.valid:
            same_schema(planned["train"].plan.schema, planned["valid"].plan.schema)
        _note_plans(saved, planned)
        depends_on_users = request.source.parse_once or any(differ(one.plan) for one in planned.values())
        saved.data["users"] = users if depends_on_users else None
    numbers = _number_of_files(request, saved, pool) if request.flow != "fit" else {}
    run = {"fingerprint": wanted, "started": began, "files": numbers, "made_up": sample}
    write_json(saved.path, {**saved.data, **run, "contract": notes, "united": grown})
    return _PlanResult(reused, notes, grown)


def _plan_splits(request: Request, pool: Pool, paths: JsonObject) -> dict[str, Planned]:
    """Plan each split, and the rows from which alone is learned in the types of the others."""
    planned = {split: _plan_split(request, split, path, pool) for split, path in paths.items() if split != LEARN_FROM}
    if LEARN_FROM in paths:  # in the types of the night
        known = base_schema(request, planned[request.plan_names[0]].plan.schema)
        alike = replace(request, base=request.base and replace(request.base, schema=known.to_json()))
        planned[LEARN_FROM] = _plan_split(alike, LEARN_FROM, paths[LEARN_FROM], pool)
    return planned


def _note_plans(saved: PlanOf, planned: Mapping[str, Planned]) -> None:
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


def _number_of_files(request: Request, saved: PlanOf, pool: Pool) -> dict[str, int]:
    """How many files each split would have if no row of its plan was left out: its positions are divided by them."""
    workers = len(pool.planned_for.workers)
    files: dict[str, int] = {}
    for split in request.splits:
        plan = saved.plan(split)
        files[split] = number_of_files(request.output, plan.rows, bound_of(request, plan.schema).output, workers)
    return files


def _list_files(split: str, path: str | Sequence[str], storage_options: Mapping[str, Any] | None) -> dict[str, File]:
    """The files of a split by their paths."""
    with naming_valid(split):
        return {file.path: file for file in expand(path, storage_options)}


@contextmanager
def naming_valid(split: str) -> Iterator[None]:
    """Errors that speak of `source.path` become those of `source.valid`, where the split is `valid`, or of
    `refit.learn_from`."""
    try:
        yield
    except (NoInputError, NoRowsError) as error:
        if split == LEARN_FROM:
            raise DataError(
                "there are no rows to learn from",
                where=f"refit.learn_from: {error.where}",
                why=error.why or error.what,
                do="correct refit.learn_from, or leave it out",
            ) from None
        if split != "valid":
            raise
        kind = NoInputError if isinstance(error, NoInputError) else NoValidationRowsError
        raise kind(
            "there are no validation data",
            where=f"source.valid: {error.where}",
            why=error.why or error.what,
            do="correct source.valid, or leave it out",
        ) from None
    except JobError as error:
        key = {"valid": "source.valid", LEARN_FROM: "refit.learn_from"}.get(split)
        if key is None or not error.where.startswith("source.path"):
            raise
        where = error.where.replace("source.path", key, 1)
        raise type(error)(error.what, where=where, why=error.why, do=error.do) from None


@dataclass(frozen=True)
class Planned:
    """The plan of one split, and what was seen on the way to it.

    With `source.keys` it is the plan of the rows grouped by keys, in scratch files: `origins` are the source's
    own files then, else None. `bad` is the plan of the files with their bad lines, `learned` the files that are learned
    from, `notes` a sentence for each column that the contract has a rule for, `grown` one for each used column about
    which files differ, `columns` the types of all columns of the source. `repeated` are the rows that `source.unique`
    leaves out (path, digest, rows), `division` is what a look at all rows says of the splits; None where there was
    nothing to look for. `exploded` is a sentence on the lists that became rows; "" without any.
    """

    plan: Plan
    bad: tuple[Plan, list[FileWithBadLines]]
    learned: list[list[Any]]
    notes: list[str]
    grown: list[str]
    columns: dict[str, str]
    origins: list[Any] | None = None
    repeated: JsonObject | None = None
    division: Division | None = None
    exploded: str = ""


def _plan_split(request: Request, split: str, path: object, pool: Pool) -> Planned:
    """Plan one split."""
    source = request.source
    engine = request.of_stage(request.planned_stage).engine
    limits = sizing(engine, pool.planned_for, request.run.min_partition_size)
    with naming_valid(split):
        plan = make_plan(
            source.model_copy(update={"path": path, "valid": None}),
            parallel_map=partial(_map_in_chunks, pool),
            sizing=limits,
            null_types=null_types(request),
            fit=request.fit,
            notes=str(request.staging.folder / FOLDER),
        )
    bad = plan, bad_lines_of(plan)
    notes: list[str] = []
    if request.rules is not None:
        plan, notes = under_rules(plan, request.rules, split)
    types = {name: dtype_name(column.dtype) for name, column in plan.schema.items() if not name.startswith("__")}
    plan = adapt_plan(request, plan)
    if split != LEARN_FROM:
        modes_of(request, plan.schema)
    bound = bound_of(request, plan.schema)
    used = list_used_columns(request, bound)
    plan = without_unused(plan, used)
    sort = request.output.sort_by if request.flow != "fit" else []
    check_text_order(plan, plan, source, pool, bound, sort)
    check_columns(request, bound)  # columns and types, before any row is read
    learns = split == request.plan_names[0] and not request.fitted
    learned = _digest_files(plan, read_options(source)["storage_options"], pool) if learns else []
    planned = Planned(plan, bad, learned, notes, uniting_notes(plan, used), types, exploded=describe_explode(plan))
    if (source.parse_once or source.keys) and request.flow != "fit":
        _check_run_needs(request, {split: plan}, pool)  # before their scratch files are written
    if source.parse_once:
        columns = [name for name in plan.schema if name in used or source.keys]  # the rows of keys have all columns
        plan = _parse_text(plan, request.staging.folder / f"{PARSED}{split}", columns, pool)
        planned = replace(planned, plan=plan)
    return _look_at_rows(request, split, planned, limits, pool)


def _look_at_rows(request: Request, split: str, planned: Planned, limits: Sizing, pool: Pool) -> Planned:
    """The planned split with what `source.unique` and `source.split` find in its rows; with `source.keys`, with the
    plan of the files into which rows of the same key are brought together."""
    source = request.source
    run = request.run
    folder = request.staging.folder
    plan = planned.plan
    rows = SourceRows(
        plan, plan, request.engine, pool, source.filter, exchange=run.exchange, floor=run.min_partition_size
    )
    if source.unique:
        repeats, count = find_repeated_rows(rows, source.unique, folder / f"repeated{split}.bits")
        rows = replace(rows, rules=RowRules(repeats))
        file = {"path": "", "digest": ""} if source.keys else {"path": repeats.path, "digest": repeats.digest}
        repeated = {**file, "rows": count}  # rows grouped by keys are written without them
        planned = replace(planned, repeated=repeated)
    if source.split:
        planned = replace(planned, division=split_division(rows, source.split, folder))
    if not source.keys:
        return planned
    size = partition_size(source, plan.nbytes, limits)
    keyed = by_keys(replace(rows, filter=None), source.keys, source.sort_by, folder / f"keyed{split}", size)
    shutil.rmtree(folder / f"{PARSED}{split}", ignore_errors=True)  # the keyed files have its rows
    return replace(planned, plan=keyed, origins=[file.to_json() for file in plan.files])


def under_rules(plan: Plan, contract: Contract, split: str) -> tuple[Plan, list[str]]:
    """The plan of a split under a contract, and a sentence for each column that it has a rule for; a DataError for what
    it freezes."""
    allowed = check_contract(plan.schema, contract, f"source.{split or 'path'}")
    plan = with_missing(replace(plan, schema=allowed.schema), contract.missing_rules)
    return plan, [note.text for note in allowed.notes]


def _parse_text(plan: Plan, folder: Path, columns: Sequence[str], pool: Pool) -> Plan:
    """Write these columns of every block of text to an Arrow file; the plan that reads them from there."""
    if not FORMATS[plan.format].ranged:
        why = f"files of {plan.format} store columns, which every stage reads about as quickly"
        do = "leave source.parse_once out"
        raise JobError("parse_once is for text", where="source.parse_once", why=why, do=do)
    empty_folder(folder)
    parsed = with_parsed(plan, folder, columns)
    pool.map(_parse_block, (plan, parsed, columns), plan.blocks)
    check_unchanged(plan.files, plan.options.get("storage_options"))
    return parsed


def _parse_block(shared: tuple[Plan, Plan, Sequence[str]], block: Block) -> None:
    plan, parsed, columns = shared
    write_table(read(plan, plan.alone(block), columns), locate_block_file(parsed, block))


def _check_run_needs(request: Request, plans: Mapping[str, Plan], pool: Pool) -> ResourceEstimate:
    return check_needs(request.of_stage(request.planned_stage), plans, pool.planned_for)


def check_columns(request: Request, bound: Bound) -> None:
    """Refuse what the columns and their types do not allow."""
    source = request.source
    output = request.output
    check_runs(bound, source.keys)
    if source.sort_by and not source.keys:
        raise JobError(
            "source.sort_by belongs to source.keys",
            where="source.sort_by",
            why="it is the order of the rows that the keys bring together",
            do="name the keys, or leave it out; shuffle: key with output.sort_by sorts files",
        )
    if source.unique:
        check_unique(bound.source, source.unique)
    check_splitting(bound.source, source)
    _check_gate(request, bound)
    if request.flow != "fit":
        hive.check_columns(output.partition_on, bound.output)
        check_types(output, bound.output)


def _check_gate(request: Request, bound: Bound) -> None:
    """A JobError for a column of a check that the gate never sees: such a check would be off without a word."""
    profiled = list_profiled_columns(request, bound)
    absent = {*(request.rules.columns if request.rules else ()), *(request.fitted_schema if request.origin else ())}
    absent -= {*bound.source}  # tonight's source lacks them, that of another night may have them
    of_steps = {name for step in bound.steps.values() for name in step.unit}
    for check in sorted(request.checks):
        settings = request.checks[check]
        if check in OF_STEPS:
            known = absent | of_steps
            why = "this check compares what steps of the features meet in their columns"
        else:
            known = absent | profiled
            why = "the gate compares columns whose rows the run profiles: those of its features, order and conditions"
        if check == "columns":
            known |= {*bound.source}
        for name in (settings.get("columns") or ()) if isinstance(settings, Mapping) else ():
            if name not in known:
                where = f"checks.{check}.columns"
                raise JobError(f"the run reads no column {name!r}", where=where, why=why, do=near(name, sorted(known)))


def _map_in_chunks(pool: Pool, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`function` over the items on the pool, in chunks so that thousands of files are few tasks."""
    items = list(items)
    size = max(1, len(items) // (8 * pool.threads))
    chunks = [items[i : i + size] for i in range(0, len(items), size)]
    return [result for chunk in pool.map(_each, function, chunks) for result in chunk]


def _each(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [function(item) for item in items]


def same_schema(train: Schema, valid: Schema) -> None:
    for name, column in train.items():
        if name in valid and valid[name].dtype != column.dtype:
            raise DataError(
                f"column {name!r} has different types",
                where="source.path and source.valid",
                why=f"{dtype_name(column.dtype)} in the training data, {dtype_name(valid[name].dtype)} in the "
                "validation data",
                do=in_one_type(name, column.dtype, valid[name].dtype),
            )
