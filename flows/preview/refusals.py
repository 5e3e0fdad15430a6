"""Reasons for which the run would be refused, that columns, plan and target of the job show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from tasks.cluster.local_pool import LocalPool
from tasks.core.plan import Plan
from tasks.errors import JobError, RowmillError
from tasks.graph.binding import Bound
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import needs_unit
from tasks.job.apply_fitted import choose_graph_and_schema
from tasks.job.request import Request
from tasks.job.text_order import check_text_order
from tasks.shuffle.key_ranges import SourceRows
from tasks.shuffle.row_order import list_output_places
from tasks.shuffle.row_sets import find_unit_of_numbers
from tasks.stages.column_checks import check_columns
from tasks.stages.needs import ResourceEstimate, make_disk_error
from tasks.storage.atomic import existing


def check_source(request: Request, plan: Plan, bound: Bound) -> None:
    """Refuse what the columns of the source, their order and the times of a split do not allow."""
    sort = request.output.sort_by if request.flow != "fit" else []
    check_text_order(plan, plan, request.source, LocalPool(), bound, sort)
    check_columns(request, bound)
    _check_unit_of_split(request, plan)


def _check_unit_of_split(request: Request, plan: Plan) -> None:
    """A JobError if the times by which rows are split are numbers that do not tell their unit.

    Only the first and the last partition are read: where times have an order, they have the least and the largest.
    """
    rule = request.source.split
    if rule and needs_unit(plan.schema, rule):
        ends = replace(plan, partitions=tuple({plan.partitions[0], plan.partitions[-1]}))
        find_unit_of_numbers(SourceRows(ends, ends, "pandas", LocalPool(), request.source.filter), rule)


def check_order(request: Request, plans: Mapping[str, Plan]) -> None:
    """The columns that `output.keys` and `sort_by` name exist."""
    for plan in plans.values():
        final, schema = choose_graph_and_schema(request, plan.schema)
        list_output_places(Work(plan, final, schema, "pandas"), request.output, plan)


def collect_target_errors(request: Request, wanted: ResourceEstimate | None) -> list[RowmillError]:
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
        errors += [make_disk_error(disk) for disk in wanted.disks if disk.short]
    return errors
