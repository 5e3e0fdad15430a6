"""The passes over the source that a run will make, each with its columns and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.core.plan import Plan
from tasks.core.row_sizes import row_bytes
from tasks.core.schema import Schema
from tasks.engines.expression.syntax import parse
from tasks.graph.binding import Bound
from tasks.job.request import Request
from tasks.job.source_rules import condition_columns, looks
from tasks.stages.trial import list_phases


@dataclass(frozen=True)
class Reading:
    """One pass over the source: its purpose, its columns, about how many decoded bytes."""

    what: str
    columns: list[str]
    nbytes: int
    plan: str  # the name of the plan of which it reads the files


def list_readings(request: Request, bound: Bound, plans: Mapping[str, Plan], scale: float) -> list[Reading]:
    """The passes over the source, with the share of its bytes that their columns are."""
    source = request.source
    first = plans[request.plan_names[0]]
    always = condition_columns(request.source, False)
    readings = []
    for look in looks(source, first.schema):
        filtered_by = parse(source.filter).columns if source.filter else ()
        names = [n for n in first.schema if n in {*look.columns, *filtered_by}]
        nbytes = int(first.nbytes * _share(first, names) * scale)
        readings.append(Reading(f"ingest: {look.what}", names, nbytes, request.plan_names[0]))
    if source.keys:
        nbytes = int(first.nbytes * scale)
        readings.append(Reading("ingest: rows grouped by keys", list(first.schema), nbytes, request.plan_names[0]))
    if not request.fitted:
        for number, columns in enumerate(list_phases(bound), 1):
            names = [n for n in first.schema if n in {*columns, *always}]
            nbytes = int(first.nbytes * _share(first, names) * scale)
            readings.append(Reading(f"statistics, phase {number}", names, nbytes, request.plan_names[0]))
    if request.flow == "fit":
        return readings
    filters = [place for f in bound.filters for place in f.inputs.values()]
    columns = bound.source_columns([*bound.targets, *filters], training=not request.fitted)
    for split in request.splits:
        plan = plans[source.plan_name(split)]
        names = [n for n in plan.schema if n in {*columns, *always}]
        nbytes = int(plan.nbytes * _share(plan, names) * scale)
        readings.append(Reading(f"transform {split}".strip(), names, nbytes, source.plan_name(split)))
    return readings


def _share(plan: Plan, names: list[str]) -> float:
    """The part of a row's bytes that these columns are."""
    width = {name: row_bytes(Schema([column])) for name, column in plan.schema.items()}
    return sum(width[n] for n in names) / max(sum(width.values()), 1)
