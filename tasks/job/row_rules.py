"""Which rows a request leaves out beyond its filter, and the column of weights that down-sampling adds."""

from __future__ import annotations

import pyarrow as pa

from tasks.core.schema import Column, Schema, Tags, check_names, check_ordered
from tasks.core.settings import Source
from tasks.engines.expression.syntax import parse
from tasks.engines.expression.typing import typed
from tasks.errors import JobError, MillraceError, near
from tasks.graph.row_rules import Downsampling, RowRules, Splitting
from tasks.job.request import PlanOf, Request


def downsampling_of(source: Source) -> Downsampling | None:
    """The down-sampling of a source; None without one."""
    section = source.downsample
    return Downsampling(section.where, section.fraction, section.weight, section.seed) if section else None


def row_rules(request: Request, split: str) -> RowRules:
    """What is left out of the rows of a split beyond `source.filter`."""
    source = request.source
    rows = PlanOf(request).repeated(split)
    return RowRules(rows, splitting_of(source, split), downsampling_of(source), source.strict)


def splitting_of(source: Source, split: str) -> Splitting | None:
    """Which rows belong to a split of the source; None where the source is not divided.

    >>> rule = {"by": "time", "column": "t", "valid": 5, "test": 9}
    >>> splitting_of(Source(path="x", split=rule), "valid").conditions
    (('test', "col('t') >= 9"), ('valid', "col('t') >= 5"))
    """
    rule = source.split
    if rule is None:
        return None
    ends = [(name, value) for name in ("test", "valid") if (value := getattr(rule, name)) is not None]
    if rule.by == "time":
        conditions = tuple((name, f"col({rule.column!r}) >= {value!r}") for name, value in ends)
        return Splitting(split, conditions, rule.column)
    if rule.by == "column":
        values = [(name, value if isinstance(value, list) else [value]) for name, value in ends]
        return Splitting(
            split, tuple((name, f"col({rule.column!r}) in {value!r}") for name, value in values), rule.column
        )
    shares = tuple((name, float(share)) for name, share in reversed(ends))
    return Splitting(split, shares=shares, keys=tuple(rule.together), seed=rule.seed)


def check_splitting(schema: Schema, source: Source) -> None:
    """A JobError for a column that does not exist, and for values that the column's type cannot be compared with."""
    rule = splitting_of(source, "train")
    if rule is None:
        return
    for name in rule.columns:
        if name not in schema:
            raise JobError(f"there is no column {name!r}", where="source.split", do=near(name, schema))
    check_ordered(schema, rule.columns, "source.split")
    for name, condition in rule.parsed:
        try:
            typed(condition, schema)
        except MillraceError as error:
            raise type(error)(
                error.what, where=f"source.split.{name}: {error.where}", why=error.why, do=error.do
            ) from None


def condition_columns(source: Source) -> tuple[str, ...]:
    """The columns that `source.filter`, `split` and `downsample` read."""
    conditions = [source.filter, source.downsample.where if source.downsample else None]
    names = [name for text in conditions if text for name in parse(text).columns]
    rule = splitting_of(source, "train")
    return tuple(dict.fromkeys([*names, *(rule.columns if rule else ())]))


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
