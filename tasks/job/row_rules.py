"""Which rows a request leaves out beyond its filter, and the column of weights that down-sampling adds."""

from __future__ import annotations

import pyarrow as pa

from tasks.core.schema import Column, Schema, Tags, check_names
from tasks.core.settings import Source
from tasks.engines.expression.syntax import parse
from tasks.errors import JobError
from tasks.graph.row_rules import Downsampling, RowRules
from tasks.job.request import PlanOf, Request


def downsampling_of(source: Source) -> Downsampling | None:
    """The down-sampling of a source; None without one."""
    section = source.downsample
    return Downsampling(section.where, section.fraction, section.weight, section.seed) if section else None


def row_rules(request: Request, split: str) -> RowRules:
    """What is left out of the rows of a split beyond `source.filter`."""
    return RowRules(PlanOf(request).repeated(split), downsampling_of(request.source))


def condition_columns(source: Source) -> tuple[str, ...]:
    """The columns that `source.filter` and `source.downsample` read."""
    conditions = [source.filter, source.downsample.where if source.downsample else None]
    return tuple(dict.fromkeys(name for text in conditions if text for name in parse(text).columns))


def with_weight(schema: Schema, source: Source) -> Schema:
    """The columns of a source and the weight that its down-sampling adds; a JobError if the name is taken."""
    name = source.downsample.weight if source.downsample else None
    if name is None:
        return schema
    if name in schema:
        raise JobError(f"the source has a column {name!r} already", where="source.downsample.weight",
                       why="the weight of each row is a new column", do="choose another name for it")  # fmt: skip
    check_names([name], "source.downsample.weight")
    return Schema([*schema.columns, Column(name, pa.float32()).tagged(Tags.SAMPLE_WEIGHT)])
