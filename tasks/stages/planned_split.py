"""The plan of one split as a value, and what a look at all its rows adds to it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import Any

from tasks.cluster.pool import Pool
from tasks.core.plan import PARSED, Plan, Sizing
from tasks.core.strict_json import JsonObject
from tasks.graph.row_rules import Division, RowRules
from tasks.job.request import Request
from tasks.shuffle.group_by_keys import by_keys
from tasks.shuffle.key_ranges import SourceRows
from tasks.shuffle.row_sets import find_repeated_rows, split_division
from tasks.sources.bad_lines import FileWithBadLines
from tasks.sources.planning import partition_size


@dataclass(frozen=True)
class PlannedSplit:
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


def look_at_rows(request: Request, split: str, planned: PlannedSplit, limits: Sizing, pool: Pool) -> PlannedSplit:
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
