"""The rows of a split as every pass over them needs them: the graph bound to their columns, and the rules on rows."""

from __future__ import annotations

from tasks.core.schema import Schema
from tasks.graph.partition_work import Work
from tasks.job.apply_fitted import choose_graph_and_schema
from tasks.job.request import Request, SavedPlans
from tasks.job.source_rules import row_rules


def work_of(request: Request, plans: SavedPlans, split: str, source: Schema | None = None) -> Work:
    """Make the work of a pass over the rows of a split, without what is learned.

    `source` are the columns, if not those of the split's plan.
    """
    plan = plans.plan(split)
    section = request.source
    final, schema = choose_graph_and_schema(request, source or plan.schema)
    return Work(plan, final, schema, request.engine, filter=section.filter, rules=row_rules(section, plans, split))
