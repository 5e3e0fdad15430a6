"""Plans each split of a source: its files in blocks and partitions, in types that suit job, contract and base."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from tasks.cluster.parallelism import make_sizing
from tasks.cluster.pool import Pool
from tasks.core.contract import Contract, check_contract
from tasks.core.dtypes import dtype_name
from tasks.core.plan import PARSED, Plan
from tasks.core.strict_json import JsonObject
from tasks.job.apply_fitted import adapt_plan, base_schema, bind_graph, list_null_types
from tasks.job.learned_files import digest_file_samples
from tasks.job.refitting import LEARN_FROM
from tasks.job.request import Request
from tasks.job.text_order import check_text_order
from tasks.sources.bad_lines import bad_lines_of
from tasks.sources.exploded import describe_explode
from tasks.sources.formats import read_options
from tasks.sources.planning import make_plan
from tasks.sources.table_files import SourceFiles
from tasks.sources.uniting import uniting_notes, with_missing, without_unused
from tasks.stages.column_checks import check_columns
from tasks.stages.needs import ResourceEstimate, check_needs
from tasks.stages.parse_once import parse_text
from tasks.stages.planned_split import PlannedSplit, look_at_rows
from tasks.stages.source_files import naming_valid
from tasks.stages.statistics import decide_modes
from tasks.stages.trial import list_used_columns
from tasks.storage.files import batch_files, map_files
from tasks.storage.files_being_read import FOLDER


def plan_splits(
    request: Request, pool: Pool, paths: JsonObject, tables: Mapping[str, SourceFiles] = MappingProxyType({})
) -> dict[str, PlannedSplit]:
    """Plan each split, and the rows from which alone is learned in the types of the others.

    `tables` are the files of splits that are states of a table: it is not asked twice which they are.
    """
    planned = {
        split: plan_split(request, split, path, pool, tables.get(split))
        for split, path in paths.items()
        if split != LEARN_FROM
    }
    if LEARN_FROM in paths:  # in the types of the batch
        known = base_schema(request, planned[request.plan_names[0]].plan.schema)
        alike = replace(request, base=request.base and replace(request.base, schema=known.to_json()))
        planned[LEARN_FROM] = plan_split(alike, LEARN_FROM, paths[LEARN_FROM], pool)
    return planned


def plan_split(
    request: Request, split: str, path: str | list[str], pool: Pool, listed: SourceFiles | None = None
) -> PlannedSplit:
    """Plan one split."""
    source = request.source
    engine = request.of_stage(request.planned_stage).engine
    limits = make_sizing(engine, pool.planned_for, request.run.min_partition_size)
    with naming_valid(split):
        plan = make_plan(
            source.at(path),
            parallel_map=partial(_map_in_chunks, pool),
            sizing=limits,
            null_types=list_null_types(request),
            fit=request.fit,
            notes=str(request.staging.folder / FOLDER),
            listed_files=listed,
        )
    bad = plan, bad_lines_of(plan)
    notes: list[str] = []
    if request.rules is not None:
        plan, notes = apply_contract(plan, request.rules, split)
    types = {name: dtype_name(column.dtype) for name, column in plan.schema.items() if not name.startswith("__")}
    plan = adapt_plan(request, plan)
    if split != LEARN_FROM:
        decide_modes(request, plan.schema)
    bound = bind_graph(request, plan.schema)
    used = list_used_columns(request, bound)
    plan = without_unused(plan, used)
    sort = request.output.sort_by if request.flow != "fit" else []
    check_text_order(plan, plan, source, pool, bound, sort)
    check_columns(request, bound)  # columns and types, before any row is read
    learns = split == request.plan_names[0] and not request.fitted
    learned = _digest_files(plan, {**plan.options, **read_options(source)}, pool) if learns else []
    planned = PlannedSplit(plan, bad, learned, notes, uniting_notes(plan, used), types, exploded=describe_explode(plan))
    if (source.parse_once or source.keys) and request.flow != "fit":
        check_run_needs(request, {split: plan}, pool)  # before their scratch files are written
    if source.parse_once:
        columns = [name for name in plan.schema if name in used or source.keys]  # the rows of keys have all columns
        plan = parse_text(plan, request.staging.folder / f"{PARSED}{split}", columns, pool)
        planned = replace(planned, plan=plan)
    return look_at_rows(request, split, planned, limits, pool)


def apply_contract(plan: Plan, contract: Contract, split: str) -> tuple[Plan, list[str]]:
    """The plan of a split under a contract, and a sentence for each column that it has a rule for; a DataError for what
    it freezes."""
    allowed = check_contract(plan.schema, contract, f"source.{split or 'path'}")
    rules = contract.missing_rules
    for name, rule in contract.missing_rules.items():
        root = plan.schema.root(name)
        if root is not None and (rule == "freeze" or root not in rules):  # a file without the column lacks its fields
            rules[root] = rule
    plan = with_missing(replace(plan, schema=allowed.schema), rules)
    return plan, [note.text for note in allowed.notes]


def check_run_needs(request: Request, plans: Mapping[str, Plan], pool: Pool) -> ResourceEstimate:
    return check_needs(request.of_stage(request.planned_stage), plans, pool.planned_for)


def _digest_files(plan: Plan, options: Mapping[str, Any], pool: Pool) -> list[list[Any]]:
    """Path, size and digest of the files that have rows."""
    has_footer = plan.format in ("parquet", "arrow", "orc")
    files = [plan.files[number] for number in sorted({p.file for block in plan.blocks for p in block.pieces})]
    digest_file = partial(digest_file_samples, has_footer=has_footer, options=options)
    batches = _map_in_chunks(pool, partial(map_files, digest_file), batch_files(files))
    digests = [digest for batch in batches for digest in batch]
    return [[file.path, file.size, digest] for file, digest in zip(files, digests, strict=True)]


def _map_in_chunks(pool: Pool, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`function` over the items on the pool, in chunks so that thousands of files are few tasks."""
    items = list(items)
    size = max(1, len(items) // (8 * pool.threads))
    chunks = [items[i : i + size] for i in range(0, len(items), size)]
    return [result for chunk in pool.map(_each, function, chunks) for result in chunk]


def _each(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [function(item) for item in items]
