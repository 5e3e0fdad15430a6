"""What the columns of a source and their types do not allow: the checks of a job before any row is read."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.core.dtypes import dtype_name
from tasks.core.schema import Schema
from tasks.core.settings import OF_STEPS
from tasks.errors import DataError, JobError, near
from tasks.graph.binding import Bound
from tasks.job.request import Request
from tasks.job.source_rules import check_splitting
from tasks.shuffle.group_by_keys import check_runs
from tasks.shuffle.parts import check_types
from tasks.shuffle.row_sets import check_unique
from tasks.sources.uniting import advise_one_type
from tasks.stages.trial import list_profiled_columns
from tasks.storage import hive


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
    absent -= {*bound.source}  # this source lacks them, that of another batch may have them
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


def check_same_types(train: Schema, valid: Schema) -> None:
    """A DataError for a column that has one type in the training data and another in the validation data."""
    for name, column in train.items():
        if name in valid and valid[name].dtype != column.dtype:
            raise DataError(
                f"column {name!r} has different types",
                where="source.path and source.valid",
                why=f"{dtype_name(column.dtype)} in the training data, {dtype_name(valid[name].dtype)} in the "
                "validation data",
                do=advise_one_type(name, column.dtype, valid[name].dtype),
            )
